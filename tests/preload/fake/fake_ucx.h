/* SPDX-License-Identifier: MIT */
/* What the functions of the two fake UCX copies return. */
#ifndef FAKE_UCX_H
#define FAKE_UCX_H

enum fake_ucx_function {
    FAKE_UCX_REG = 1,
    FAKE_UCX_QUERY,
    FAKE_UCX_PACK,
    FAKE_UCX_UNPACK,
    FAKE_UCX_UNPACK_V2,
    FAKE_UCX_QUERY_V2,
    FAKE_UCX_RELEASE,
    FAKE_UCX_FENCE,
};

/* ucs_status_t is one byte. */
#define FAKE_UCX_RESULT(copy, function) ((signed char)((copy)*20 + (function)))

/* Sum of all arguments, each times its place: none may be lost or moved. */
typedef long fake_ucx_elem_pack_fn(long, long, long, long, long, long, long,
                                   long, long, double, double, double, double,
                                   double, double, double, double, double);

/* Members of libucp: what its code gets when it calls through its PLT. */
typedef int fake_ucx_ask_fn(enum fake_ucx_function function);
typedef fake_ucx_ask_fn *fake_ucx_ask_ptr;
typedef long fake_ucx_elem_fn(void);

#define FAKE_UCX_ELEM_SUM                                                      \
    (1 * 1 + 2 * 2 + 3 * 3 + 4 * 4 + 5 * 5 + 6 * 6 + 7 * 7 + 8 * 8 + 9 * 9 +   \
     10 * 1 + 11 * 2 + 12 * 3 + 13 * 4 + 14 * 5 + 15 * 6 + 16 * 7 + 17 * 8 +   \
     18 * 9)

#endif
