/* SPDX-License-Identifier: MIT */
/* Copy 1 is a new libuct, copy 2 an old one that lacks functions. */
#include "fake_ucx.h"
#include "ucx/uct_abi.h"

#define FAKE(name, function)                                                   \
    FAKE_EXPORT signed char fake_##name(void) __asm__(#name);                  \
    signed char fake_##name(void)                                              \
    {                                                                          \
        return FAKE_UCX_RESULT(FAKE_COPY, function);                           \
    }

FAKE(uct_md_mem_reg_v2, FAKE_UCX_REG)
FAKE_EXPORT const void *fake_query_caller;

FAKE_EXPORT signed char fake_query(void) __asm__("uct_md_mem_query");
signed char fake_query(void)
{
    fake_query_caller = __builtin_return_address(0);
    return FAKE_UCX_RESULT(FAKE_COPY, FAKE_UCX_QUERY);
}

FAKE(uct_md_mkey_pack_v2, FAKE_UCX_PACK)
FAKE(uct_rkey_release, FAKE_UCX_RELEASE)

#if FAKE_COPY == 1
FAKE(uct_md_mem_query_v2, FAKE_UCX_QUERY_V2)

FAKE_EXPORT int fake_unpacks; /* how often the inner function ran */

FAKE_EXPORT signed char
uct_rkey_unpack_v2(vmml_uct_component_h component, const void *buffer,
                   const struct vmml_uct_rkey_unpack_params *params,
                   struct vmml_uct_rkey_bundle *bundle);
FAKE_EXPORT signed char
uct_rkey_unpack_v2(vmml_uct_component_h component, const void *buffer,
                   const struct vmml_uct_rkey_unpack_params *params,
                   struct vmml_uct_rkey_bundle *bundle)
{
    fake_unpacks++;
    return FAKE_UCX_RESULT(FAKE_COPY, FAKE_UCX_UNPACK_V2);
}

/* As libuct from 1.19 on: through its own PLT, so through the preload. */
FAKE_EXPORT signed char uct_rkey_unpack(vmml_uct_component_h component,
                                        const void *buffer,
                                        struct vmml_uct_rkey_bundle *bundle);
FAKE_EXPORT signed char uct_rkey_unpack(vmml_uct_component_h component,
                                        const void *buffer,
                                        struct vmml_uct_rkey_bundle *bundle)
{
    static const struct vmml_uct_rkey_unpack_params params;

    return uct_rkey_unpack_v2(component, buffer, &params, bundle);
}

FAKE_EXPORT fake_ucx_elem_pack_fn uct_md_mem_elem_pack;
FAKE_EXPORT long uct_md_mem_elem_pack(long a, long b, long c, long d, long e,
                                      long f, long g, long h, long i, double j,
                                      double k, double l, double m, double n,
                                      double o, double p, double q, double r)
{
    return a * 1 + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7 + h * 8 +
           i * 9 +
           (long)(j * 1 + k * 2 + l * 3 + m * 4 + n * 5 + o * 6 + p * 7 +
                  q * 8 + r * 9);
}
#else
FAKE(uct_rkey_unpack, FAKE_UCX_UNPACK)
#endif
