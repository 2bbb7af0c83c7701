/* Numbers into fewer bits, checked in every build: one comparison, in front of what would be written behind its memory
   or into a file if the number did not fit. The process then says where, and ends (debug.h).

   Macros, so that the message has the place of the caller. The argument is evaluated once; a negative one does not
   fit. */
#ifndef FLUXMQ_CORE_WIRE_SIZES_H
#define FLUXMQ_CORE_WIRE_SIZES_H

#include <stdint.h>
#include "debug.h"

#define fluxmq_fit(type, most, text, n) __extension__({ \
    uint64_t fit_n_ = (uint64_t)(n); \
    if (__builtin_expect(fit_n_ > (uint64_t)(most), 0)) \
        fluxmq_broken(text, __FILE__, __LINE__); \
    (type)fit_n_; })

#define fluxmq_fit_u8(n) fluxmq_fit(uint8_t, UINT8_MAX, "a size fits 8 bits: " #n, n)
#define fluxmq_fit_u16(n) fluxmq_fit(uint16_t, UINT16_MAX, "a size fits 16 bits: " #n, n)
#define fluxmq_fit_u32(n) fluxmq_fit(uint32_t, UINT32_MAX, "a size fits 32 bits: " #n, n)
#define fluxmq_fit_i32(n) fluxmq_fit(int32_t, INT32_MAX, "a size fits 31 bits: " #n, n)

#define fluxmq_low_u8(n) ((uint8_t)(n))
#define fluxmq_low_u16(n) ((uint16_t)(n))
#define fluxmq_low_u32(n) ((uint32_t)(n))

#endif
