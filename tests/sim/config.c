/* Settings from the environment, read once. README.md lists them. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of an H200 as cuDeviceTotalMem reports it, in MiB. */
#define H200_MIB 143156

static long long number(const char *name, long long otherwise)
{
    const char *text = getenv(name);
    char *end;
    long long value;

    if (text == NULL || *text == '\0') {
        return otherwise;
    }
    value = strtoll(text, &end, 0);
    if (*end != '\0') {
        fprintf(stderr, "simulated driver: %s=%s is not a number\n", name,
                text);
        abort();
    }
    return value;
}

static enum sim_fabric fabric_mode(void)
{
    const char *text = getenv("VMMLANE_SIM_FABRIC");

    if (text == NULL || strcmp(text, "lying") == 0) {
        return SIM_FABRIC_LYING;
    }
    if (strcmp(text, "on") == 0) {
        return SIM_FABRIC_ON;
    }
    if (strcmp(text, "off") == 0) {
        return SIM_FABRIC_OFF;
    }
    fprintf(stderr,
            "simulated driver: VMMLANE_SIM_FABRIC=%s is not on, off or "
            "lying\n",
            text);
    abort();
}

static enum sim_imex imex_mode(void)
{
    const char *text = getenv("VMMLANE_SIM_IMEX");

    if (text == NULL || strcmp(text, "1") == 0) {
        return SIM_IMEX_ALL;
    }
    if (strcmp(text, "0") == 0) {
        return SIM_IMEX_NONE;
    }
    if (strcmp(text, "create") == 0) {
        return SIM_IMEX_CREATE;
    }
    fprintf(stderr,
            "simulated driver: VMMLANE_SIM_IMEX=%s is not 0, 1 or create\n",
            text);
    abort();
}

static void fabric_folder(struct sim_config *config)
{
    const char *text = getenv("VMMLANE_SIM_FABRIC_DIR");

    if (text != NULL && strlen(text) >= sizeof(config->fabric_dir)) {
        fprintf(stderr,
                "simulated driver: VMMLANE_SIM_FABRIC_DIR is too long\n");
        abort();
    }
    snprintf(config->fabric_dir, sizeof(config->fabric_dir), "%s",
             text == NULL ? "" : text);
}

bool sim_fabric_creates(void)
{
    return sim.config.fabric == SIM_FABRIC_ON &&
           sim.config.imex != SIM_IMEX_NONE;
}

bool sim_fabric_shares(void)
{
    return sim.config.fabric == SIM_FABRIC_ON &&
           sim.config.imex == SIM_IMEX_ALL;
}

/* As the driver reads it: stops at the first number that names no device. */
static void visible_devices(struct sim_config *config, int total)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    char *end;
    long dev;

    if (text == NULL) {
        for (dev = 0; dev < total; dev++) {
            config->physical[dev] = (int)dev;
        }
        config->devices = total;
        return;
    }
    while (config->devices < SIM_MAX_DEVICES) {
        dev = strtol(text, &end, 10);
        if (end == text || dev < 0 || dev >= total) {
            return;
        }
        config->physical[config->devices++] = (int)dev;
        if (*end != ',') {
            return;
        }
        text = end + 1;
    }
}

static void read_all(void)
{
    struct sim_config *config = &sim.config;
    long long total = number("VMMLANE_SIM_DEVICES", 1);
    const char *domain = getenv("VMMLANE_SIM_DOMAIN");

    if (total < 0 || total > SIM_MAX_DEVICES) {
        fprintf(stderr, "simulated driver: VMMLANE_SIM_DEVICES is at most %d\n",
                SIM_MAX_DEVICES);
        abort();
    }
    visible_devices(config, (int)total);
    config->peer = number("VMMLANE_SIM_PEER", 1) != 0;
    config->fabric = fabric_mode();
    config->imex = imex_mode();
    fabric_folder(config);
    config->driver_version = (int)number("VMMLANE_SIM_DRIVER_VERSION", 13000);
    config->nvlink = number("VMMLANE_SIM_NVLINK", 0) != 0;
    config->node = (unsigned)number("VMMLANE_SIM_NODE", 0);
    config->vram_limited = getenv("VMMLANE_SIM_VRAM_MB") != NULL;
    config->vram = (uint64_t)number("VMMLANE_SIM_VRAM_MB", H200_MIB) << 20;
    snprintf(config->domain, sizeof(config->domain), "%s",
             domain == NULL ? "0" : domain);
    sim_set_copy_slice((size_t)number("VMMLANE_SIM_SLICE_KB", 256) << 10);
    sim_set_slice_delay((unsigned)number("VMMLANE_SIM_SLICE_DELAY_US", 0));
}

void sim_config_read(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_all);
}
