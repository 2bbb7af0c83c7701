/* The two positions of a recording's ring are shared by two processes: each is written by one of them, after the bytes
   that it speaks of, and read by the other, before. */
#ifndef FLUXMQ_CORE_TAP_H
#define FLUXMQ_CORE_TAP_H

#include <stdint.h>

static inline uint64_t fluxmq_load_acquire(const uint64_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void fluxmq_store_release(uint64_t *at, uint64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

#endif
