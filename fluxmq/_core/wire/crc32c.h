/* CRC32-C (Castagnoli, polynomial 0x1EDC6F41, reflected 0x82F63B78): the checksum of every file this broker writes.
 *
 * Why this polynomial: x86-64 has an instruction for it (SSE4.2), so a batch costs about 0.15 ns per byte. Which way
 * is taken is decided once per process, at run time, because wheels are built for the baseline processor; without the
 * instruction eight tables of 256 entries do eight bytes per step. tests compare both ways.
 *
 * crc32c_extend(crc, data, length): `crc` is a finished CRC (0 to begin), the result is finished again, so pieces
 * chain: extend(extend(0, a), b) == extend(0, a + b).
 */
#ifndef FLUXMQ_CRC32C_H
#define FLUXMQ_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32c_tables[8][256];

static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *data, size_t length)
{
    crc = ~crc;
    while (length >= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
                              | (uint32_t)data[3] << 24);
        crc = crc32c_tables[7][low & 0xFF] ^ crc32c_tables[6][low >> 8 & 0xFF] ^ crc32c_tables[5][low >> 16 & 0xFF]
            ^ crc32c_tables[4][low >> 24] ^ crc32c_tables[3][data[4]] ^ crc32c_tables[2][data[5]]
            ^ crc32c_tables[1][data[6]] ^ crc32c_tables[0][data[7]];
        data += 8;
        length -= 8;
    }
    while (length--)
        crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *data++) & 0xFF];
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
static uint32_t crc32c_by_hardware(uint32_t crc, const uint8_t *data, size_t length)
{
    uint64_t wide = (uint32_t)~crc;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
        data += 8;
        length -= 8;
    }
    uint32_t narrow = (uint32_t)wide;
    while (length--)
        narrow = __builtin_ia32_crc32qi(narrow, *data++);
    return ~narrow;
}
#endif

static uint32_t (*crc32c_extend)(uint32_t crc, const uint8_t *data, size_t length) = crc32c_by_table;

/* Runs when the module is loaded, before any of its code. */
__attribute__((constructor))
static void crc32c_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1)));
        crc32c_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int t = 1; t < 8; t++)
            crc32c_tables[t][byte] = crc32c_tables[t - 1][byte] >> 8
                                   ^ crc32c_tables[0][crc32c_tables[t - 1][byte] & 0xFF];
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        crc32c_extend = crc32c_by_hardware;
#endif
}

#endif
