"""Log-linear buckets of a latency histogram, in the manner of HDR histograms. Header only: engine.pyx and
histogram.pyx inline it.

    value v in ns      v < 256: bucket v, exact
                       else with s = floor(log2 v) - 7: bucket 128 s + (v >> s), 128 buckets to each power of two

So a bucket is never wider than 1/128 of its values. Values from 2^44 ns (4.9 hours) on share the last bucket.

The `.pxd` files of this folder are cimported as `bench.load.*`, their path in the tree: the package that they ship in,
fluxmq.bench.load, exists only through setup.py's package_dir, which Cython does not know. Header-only files leave no
trace of that name in the compiled module.
"""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from * nogil:
    int clzll "__builtin_clzll"(unsigned long long) noexcept

cdef enum:
    BUCKETS = 36 * 128 + 256
    BUCKET_VALUE_BITS = 44

cdef struct Buckets:
    uint64_t count[BUCKETS]
    uint64_t total          # sum of count
    uint64_t sum_ns         # of the values as recorded
    uint64_t max_ns

cdef inline uint32_t bucket_of(uint64_t ns) noexcept nogil:
    cdef uint32_t shift
    if ns < 256:
        return <uint32_t>ns
    if ns >> BUCKET_VALUE_BITS:
        return BUCKETS - 1
    shift = 63 - 7 - clzll(ns)
    return (shift << 7) + <uint32_t>(ns >> shift)

cdef inline uint64_t bucket_last(uint32_t bucket) noexcept nogil:
    """The largest value that falls into the bucket."""
    cdef uint32_t shift
    if bucket < 256:
        return bucket
    shift = (bucket >> 7) - 1
    return ((<uint64_t>(bucket - (shift << 7)) + 1) << shift) - 1

cdef inline void buckets_add(Buckets* b, uint64_t ns) noexcept nogil:
    b.count[bucket_of(ns)] += 1
    b.total += 1
    b.sum_ns += ns
    if ns > b.max_ns:
        b.max_ns = ns
