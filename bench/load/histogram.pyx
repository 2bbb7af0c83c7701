# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Latency histogram: constant memory, 1/128 relative error, whatever the number of values."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from bench.load.buckets cimport BUCKETS, Buckets, bucket_last, buckets_add

__all__ = ["Histogram"]


@cython.final
cdef class Histogram:
    """Counts of latencies in nanoseconds, in log-linear buckets.

    A percentile is the upper edge of its bucket, never above the largest value recorded, so it errs by at most
    1/128 of itself and always upwards.
    """
    cdef Buckets b

    def __cinit__(self):
        memset(&self.b, 0, sizeof(Buckets))

    @staticmethod
    def from_bytes(bytes raw) -> Histogram:
        """A histogram from what `to_bytes` gave (native byte order: between processes of one machine only).

        Raises ValueError when the length is another one.
        """
        if len(raw) != sizeof(Buckets):
            raise ValueError(f"a histogram is {sizeof(Buckets)} bytes, these are {len(raw)}")
        cdef Histogram self = Histogram()
        memcpy(&self.b, PyBytes_AS_STRING(raw), sizeof(Buckets))
        return self

    def to_bytes(self) -> bytes:
        """All counts, for `from_bytes`."""
        return PyBytes_FromStringAndSize(<char*>&self.b, sizeof(Buckets))

    def record(self, uint64_t ns) -> None:
        """Count one value, in nanoseconds."""
        buckets_add(&self.b, ns)

    def merge(self, Histogram other not None) -> None:
        """Add the counts of another histogram."""
        cdef uint32_t i
        for i in range(BUCKETS):
            self.b.count[i] += other.b.count[i]
        self.b.total += other.b.total
        self.b.sum_ns += other.b.sum_ns
        if other.b.max_ns > self.b.max_ns:
            self.b.max_ns = other.b.max_ns

    def percentile(self, double percent) -> int:
        """The value in ns below or at which `percent` (0 to 100) of the values lie; 0 when there are none.

        Raises ValueError when percent is outside 0 to 100.
        """
        if not 0.0 <= percent <= 100.0:
            raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
        if self.b.total == 0:
            return 0
        cdef double exact = percent / 100.0 * <double>self.b.total
        cdef uint64_t rank = <uint64_t>exact
        if <double>rank < exact:
            rank += 1
        if rank < 1:
            rank = 1
        cdef uint64_t seen = 0
        cdef uint32_t i
        for i in range(BUCKETS):
            seen += self.b.count[i]
            if seen >= rank:
                # The last bucket also holds what is too large for any: only the maximum bounds that.
                return self.b.max_ns if i == BUCKETS - 1 else min(bucket_last(i), self.b.max_ns)
        return self.b.max_ns

    @property
    def count(self) -> int:
        """Number of values recorded."""
        return self.b.total

    @property
    def max(self) -> int:
        """The largest value recorded, exact, in ns."""
        return self.b.max_ns

    @property
    def mean(self) -> float:
        """The mean of the values, exact, in ns; 0.0 when there are none."""
        return <double>self.b.sum_ns / <double>self.b.total if self.b.total else 0.0

    def summary(self) -> dict[str, float]:
        """{"count", "mean", "p50", "p90", "p99", "p99.9", "max"}; all but the count in microseconds."""
        cdef dict out = {"count": self.b.total, "mean": self.mean / 1000.0}
        for name, percent in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)):
            out[name] = self.percentile(percent) / 1000.0
        out["max"] = self.b.max_ns / 1000.0
        return out
