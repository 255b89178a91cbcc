#include "client.h"

#include <stdlib.h>
#include <string.h>

/* Staging buffer between host and device, bytes. */
enum { STAGE = 4 << 20 };

/* A bijective mix of the word's index, so that no two words of a segment agree.
 */
static inline uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = (index + (seed << 44)) * 0xd6e8feb86659fd93u;

    return (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
}

static inline uint8_t pattern_byte(uint64_t seed, uint64_t offset)
{
    return (uint8_t)(pattern_word(seed, offset / 8) >> (offset % 8 * 8));
}

void pattern_write(void *buffer, size_t length, uint64_t seed, uint64_t offset)
{
    uint8_t *bytes = buffer;
    size_t i = 0;

    for (; i < length && (offset + i) % 8 != 0; i++)
        bytes[i] = pattern_byte(seed, offset + i);
    for (; i + 8 <= length; i += 8) {
        uint64_t word = pattern_word(seed, (offset + i) / 8);

        memcpy(bytes + i, &word, sizeof(word));
    }
    for (; i < length; i++)
        bytes[i] = pattern_byte(seed, offset + i);
}

uint64_t pattern_compare(const void *buffer, size_t length, uint64_t seed,
                         uint64_t offset, uint64_t *first)
{
    const uint8_t *bytes = buffer;
    uint64_t wrong = 0;
    size_t i = 0;

    while (i < length) {
        uint64_t word;

        if ((offset + i) % 8 == 0 && i + 8 <= length) {
            memcpy(&word, bytes + i, sizeof(word));
            if (word == pattern_word(seed, (offset + i) / 8)) {
                i += 8;
                continue;
            }
        }
        if (bytes[i] != pattern_byte(seed, offset + i) && wrong++ == 0)
            *first = offset + i;
        i++;
    }
    return wrong;
}

static void *stage(void)
{
    static void *buffer;

    if (buffer == NULL)
        buffer = malloc(STAGE);
    if (buffer == NULL)
        die(EXIT_SETUP, "out of memory");
    return buffer;
}

void device_fill(CUdeviceptr address, size_t length, uint64_t seed,
                 uint64_t offset)
{
    while (length > 0) {
        size_t part = length < STAGE ? length : STAGE;

        pattern_write(stage(), part, seed, offset);
        CU_MUST(cuMemcpyHtoD(address, stage(), part));
        address += part;
        offset += part;
        length -= part;
    }
}

uint64_t device_compare(CUdeviceptr address, size_t length, uint64_t seed,
                        uint64_t offset, uint64_t *first)
{
    uint64_t wrong = 0;

    while (length > 0) {
        size_t part = length < STAGE ? length : STAGE;
        uint64_t at = 0;
        uint64_t found;

        CU_MUST(cuMemcpyDtoH(stage(), address, part));
        found = pattern_compare(stage(), part, seed, offset, &at);
        if (wrong == 0 && found != 0)
            *first = at;
        wrong += found;
        address += part;
        offset += part;
        length -= part;
    }
    return wrong;
}
