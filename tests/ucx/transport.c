#include "client.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct transport ucx;

enum {
    SPINS = 2000,   /* empty rounds of progress before a pause */
    PAUSE_MS = 1,   /* of a pause */
    INFO_SIZE = 512 /* what UCX says of one request */
};

#define UCX_MUST(call) ucx_must((call), #call)

static void ucx_must(ucs_status_t status, const char *call)
{
    if (status != UCS_OK)
        die(EXIT_SETUP, "%s: %s", call, ucs_status_string(status));
}

void transport_open(void)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_RMA | (opt.tag ? UCP_FEATURE_TAG : 0),
    };
    ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucp_config_t *config;

    if (opt.deepbind_late)
        open_deepbind();
    UCX_MUST(ucp_config_read(NULL, NULL, &config));
    UCX_MUST(ucp_init(&params, config, &ucx.context));
    ucp_config_release(config);
    UCX_MUST(ucp_worker_create(ucx.context, &worker_params, &ucx.worker));
}

ucp_ep_h transport_connect(const void *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .address = address,
        .err_mode = opt.peer_errors ? UCP_ERR_HANDLING_MODE_PEER
                                    : UCP_ERR_HANDLING_MODE_NONE,
    };
    ucp_ep_h ep;

    UCX_MUST(ucp_ep_create(ucx.worker, &params, &ep));
    return ep;
}

void transport_close(void)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };

    if (ucx.ep != NULL)
        transport_wait(ucp_ep_close_nbx(ucx.ep, &param));
    ucp_worker_destroy(ucx.worker);
    ucp_cleanup(ucx.context);
}

void transport_until_readable(int fd)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    double end = now() + opt.timeout;
    int idle = 0;

    for (;;) {
        idle = ucp_worker_progress(ucx.worker) != 0 ? 0 : idle + 1;
        if (idle % 64 != 0)
            continue;
        if (poll(&pollfd, 1, idle > SPINS ? PAUSE_MS : 0) > 0)
            return;
        if (now() > end)
            die(EXIT_TIMEOUT, "nothing from the peer for %.0f s", opt.timeout);
    }
}

ucs_status_t transport_wait(ucs_status_ptr_t request)
{
    double end = now() + opt.timeout;
    ucs_status_t status;

    if (request == NULL)
        return UCS_OK;
    if (UCS_PTR_IS_ERR(request))
        return UCS_PTR_STATUS(request);
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
        if (ucp_worker_progress(ucx.worker) == 0 && now() > end)
            die(EXIT_TIMEOUT, "a request did not end in %.0f s", opt.timeout);
    }
    ucp_request_free(request);
    return status;
}

/* Shortens UCX's description of a request. */
void transport_lane(ucs_status_ptr_t request, char *lane)
{
    char info[INFO_SIZE] = "";
    ucp_request_attr_t attr = {
        .field_mask = UCP_REQUEST_ATTR_FIELD_INFO_STRING |
                      UCP_REQUEST_ATTR_FIELD_INFO_STRING_SIZE,
        .debug_string = info,
        .debug_string_size = sizeof(info),
    };

    snprintf(lane, LANE_SIZE, "unknown");
    if (!UCS_PTR_IS_PTR(request) || ucp_request_query(request, &attr) != UCS_OK)
        return;
    if (opt.verbose)
        printf("request %s\n", info);
    if (strstr(info, "software emulation") != NULL)
        snprintf(lane, LANE_SIZE, "emulation");
    else if (strstr(info, "cuda_ipc") != NULL)
        snprintf(lane, LANE_SIZE, "cuda_ipc");
    else if (strstr(info, "cuda_copy") != NULL)
        snprintf(lane, LANE_SIZE, "cuda_copy");
    else
        snprintf(lane, LANE_SIZE, "other");
}

ucs_status_ptr_t transfer_post(const struct transfer *transfer, char *lane)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
    };
    ucp_ep_h ep = transfer->ep != NULL ? transfer->ep : ucx.ep;
    void *local = (void *)transfer->local;
    ucs_status_ptr_t request;

    if (transfer->local_memh != NULL) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = transfer->local_memh;
    }
    if (transfer->operation == OP_GET)
        request = ucp_get_nbx(ep, local, transfer->length, transfer->remote,
                              transfer->rkey, &param);
    else
        request = ucp_put_nbx(ep, local, transfer->length, transfer->remote,
                              transfer->rkey, &param);
    if (lane != NULL)
        transport_lane(request, lane);
    return request;
}

ucs_status_t transport_flush(ucp_ep_h ep)
{
    ucp_request_param_t param = {.op_attr_mask = 0};

    return transport_wait(ucp_ep_flush_nbx(ep, &param));
}

ucs_status_t transfer_run(const struct transfer *transfer, char *lane)
{
    ucs_status_t status = transport_wait(transfer_post(transfer, lane));

    if (status == UCS_OK && transfer->operation == OP_PUT)
        status = transport_flush(transfer->ep != NULL ? transfer->ep : ucx.ep);
    return status;
}

ucs_status_t memory_register(CUdeviceptr address, size_t length,
                             ucp_mem_h *memh)
{
    ucp_mem_map_params_t params = {
        .field_mask =
            UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = (void *)address,
        .length = length,
    };

    return ucp_mem_map(ucx.context, &params, memh);
}

ucs_status_t memory_pack(ucp_mem_h memh, void **key, size_t *length)
{
    return ucp_rkey_pack(ucx.context, memh, key, length);
}
