# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See memory/namespace.pxd."""
cimport cython

from fluxmq._core.errors import CorruptError

__all__ = ["ENDED", "ROOT", "Namespace", "read_namespace"]

cdef int64_t BUDGET_NONE = <int64_t>1 << 62      # of a namespace without a limit: more than are ever published
cdef uint64_t SLICES = 4      # of a second: the most that it saves up is what it may publish in one of them

cdef enum:
    KEPT = 1
    HAS_ENDED = 2

ENDED = bytes((HAS_ENDED, 0, 0))    # the record of one that is no more; no other one gets its number
ROOT = b"/"     # the namespace of clients that name none, AMQP 0-9-1 section 1.4.2.2


def read_namespace(bytes record not None) -> tuple:
    """(name, None: it has ended, whether it is kept) of what `Namespace.record` is. Raises CorruptError."""
    if len(record) < 3 or len(record) != 3 + int.from_bytes(record[1:3], "big") or record[0] > HAS_ENDED:
        raise CorruptError("the record of a namespace is not as long as it says")
    name = record[3:]
    if (record[0] == HAS_ENDED) == bool(name):
        raise CorruptError("the record of a namespace has no name")
    try:
        name.decode()
    except UnicodeDecodeError:
        raise CorruptError("the name of a namespace is no text") from None
    return name or None, record[0] == KEPT


cdef inline int64_t slice_of(uint64_t rate_max) noexcept:
    return max(<int64_t>(rate_max // SLICES), <int64_t>1)


@cython.final
cdef class Namespace:
    """Machine. name: UTF-8."""

    def __cinit__(self, bytes name not None):
        self.name = name
        self.open = True
        self.budget = BUDGET_NONE
        self.waiting = []

    def limit_rate(self, uint64_t rate_max):
        """Messages a second that its clients may publish from now on; 0 = any number."""
        if rate_max == self.rate_max:
            return
        self.rate_max = rate_max
        self.earned = 0
        self.budget = slice_of(rate_max) if rate_max else BUDGET_NONE

    cdef void begin_slice(self, uint64_t elapsed_ms) noexcept:
        """So much time has passed since the last one. What one slice has overdrawn (a read is handled to its end) is
        taken off the next ones, so that the rate holds."""
        if self.rate_max == 0:
            return
        self.earned += self.rate_max * elapsed_ms
        self.budget = min(self.budget + <int64_t>(self.earned // 1000), slice_of(self.rate_max))
        self.earned %= 1000

    @property
    def text(self) -> str:
        """The name as people read it."""
        return self.name.decode("utf-8", "replace")

    @property
    def record(self) -> bytes:
        """As records and the view have it: u8 flags (1: kept), u16 length, name."""
        return bytes((KEPT if self.kept else 0,)) + len(self.name).to_bytes(2, "big") + self.name

    def __repr__(self):
        return f"<namespace {self.text}>"
