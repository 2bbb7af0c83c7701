# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See memory/namespace.pxd."""
cimport cython

from fluxmq._core.errors import CorruptError

__all__ = ["ENDED", "ROOT", "Namespace", "read_namespace"]

cdef int64_t BUDGET_NONE = <int64_t>1 << 62      # budget of a namespace without a limit: never used up
cdef uint64_t SLICES = 4      # per second: an unused budget accumulates to one slice's share at most

cdef enum:
    KEPT = 1
    HAS_ENDED = 2

ENDED = bytes((HAS_ENDED, 0, 0))    # the record of an ended namespace, whose number is not reused
ROOT = b"/"     # the default namespace, AMQP 0-9-1 section 1.4.2.2


def read_namespace(bytes record not None) -> tuple:
    """Parses `Namespace.record`: (name, None if it has ended; whether it is kept). Raises CorruptError."""
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
        """Limits the messages that its clients may publish per second; 0 = no limit."""
        if rate_max == self.rate_max:
            return
        self.rate_max = rate_max
        self.earned = 0
        self.budget = slice_of(rate_max) if rate_max else BUDGET_NONE

    cdef void begin_slice(self, uint64_t elapsed_ms) noexcept:
        """Adds the budget for the elapsed time. A slice may overdraw it (a read is handled to its end); the deficit is
        carried over to the next slices, so that the rate holds on average."""
        if self.rate_max == 0:
            return
        self.earned += self.rate_max * elapsed_ms
        self.budget = min(self.budget + <int64_t>(self.earned // 1000), slice_of(self.rate_max))
        self.earned %= 1000

    @property
    def text(self) -> str:
        """The name as str."""
        return self.name.decode("utf-8", "replace")

    @property
    def record(self) -> bytes:
        """Encoding in records and the view: u8 flags (1: kept), u16 length, name."""
        return bytes((KEPT if self.kept else 0,)) + len(self.name).to_bytes(2, "big") + self.name

    def __repr__(self):
        return f"<namespace {self.text}>"
