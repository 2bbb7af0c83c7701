# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Codec. Messages of Raft as bytes, big-endian:

    u8 kind, u8 flags (1 refused, 2 forced), u32 to, u32 sender, u64 term, u64 index, u64 log term, u64 commit,
    u64 hint, u64 hint term, u32 number of entries, u32 CRC-32C of all this, then for each entry
    u64 term, u8 kind, u32 length, u32 CRC-32C of these and data, data
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

cimport cython

from fluxmq._core.errors import CorruptError
from fluxmq._core.wire.crc32c cimport crc32c_extend
from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64, put_u16, put_u32, put_u64
from fluxmq._core.wire.sizes cimport fit_u16, fit_u32

__all__ = ["ENTRY_MEMBERS", "ENTRY_NOTHING", "ENTRY_RECORDS", "KINDS", "Entry", "Message", "MessageKind",
           "decode_message", "encode_members", "encode_message", "members_of"]

KINDS = ("APPEND", "APPENDED", "HEARTBEAT", "ALIVE", "VOTE", "VOTED", "PRE_VOTE", "PRE_VOTED", "CAMPAIGN", "COPY")

cdef enum:
    FLAG_REFUSED = 1
    FLAG_FORCED = 2


@cython.final
cdef class Entry:
    """An entry of a group's log. term: of the leader that has made it. kind: ENTRY_…"""

    def __cinit__(self, uint64_t term, uint8_t kind, bytes data not None):
        self.term = term
        self.kind = kind
        self.data = data

    def __eq__(self, other):
        return isinstance(other, Entry) and self.astuple() == (<Entry>other).astuple()

    def __hash__(self):
        return hash(self.astuple())

    def __repr__(self):
        return f"Entry({self.term}, {self.kind}, {self.data!r})"

    def astuple(self) -> tuple:
        """(term, kind, data)."""
        return self.term, self.kind, self.data


@cython.final
cdef class Message:
    """A message of one replica to another; kind: see raft/messages.pxd."""

    def __init__(self, uint8_t kind, uint32_t to, uint64_t term=0, *, uint32_t sender=0, uint64_t index=0,
                 uint64_t log_term=0, uint64_t commit=0, uint64_t hint=0, uint64_t hint_term=0, bint refused=False,
                 bint forced=False, list entries=None):
        self.kind = kind
        self.to = to
        self.sender = sender
        self.term = term
        self.index = index
        self.log_term = log_term
        self.commit = commit
        self.hint = hint
        self.hint_term = hint_term
        self.refused = refused
        self.forced = forced
        self.entries = [] if entries is None else entries

    def __eq__(self, other):
        return isinstance(other, Message) and self.astuple() == (<Message>other).astuple()

    __hash__ = None

    def __repr__(self):
        return f"{KINDS[self.kind - 1]}{self.astuple()[1:]}"

    def astuple(self) -> tuple:
        """Its fields in the order of the bytes."""
        return (self.kind, self.refused, self.forced, self.to, self.sender, self.term, self.index, self.log_term,
                self.commit, self.hint, self.hint_term, self.entries)


def encode_message(Message message not None) -> bytes:
    """Raises nothing: sizes are the machine's."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>message_bytes(message))
    put_message(<uint8_t*>PyBytes_AS_STRING(made), message)
    return made


cdef size_t message_bytes(Message message) except 0:
    cdef Entry entry
    cdef size_t size = MESSAGE_HEAD_BYTES
    for entry in message.entries:
        size += ENTRY_HEAD_BYTES + <size_t>len(entry.data)
    return size


cdef uint8_t* put_message(uint8_t* start, Message message) except NULL:
    cdef Entry entry
    cdef uint8_t* at
    start[0] = message.kind
    start[1] = (FLAG_REFUSED if message.refused else 0) | (FLAG_FORCED if message.forced else 0)
    at = put_u32(start + 2, message.to)
    at = put_u32(at, message.sender)
    at = put_u64(at, message.term)
    at = put_u64(at, message.index)
    at = put_u64(at, message.log_term)
    at = put_u64(at, message.commit)
    at = put_u64(at, message.hint)
    at = put_u64(at, message.hint_term)
    at = put_u32(at, fit_u32(<uint64_t>len(message.entries)))
    at = put_u32(at, crc32c_extend(0, start, MESSAGE_HEAD_BYTES - 4))
    for entry in message.entries:
        at = put_entry(at, entry)
    return at


cdef uint8_t* put_entry(uint8_t* at, Entry entry) except NULL:
    cdef size_t size = <size_t>len(entry.data)
    put_u64(at, entry.term)
    at[8] = entry.kind
    put_u32(at + 9, fit_u32(size))
    memcpy(at + ENTRY_HEAD_BYTES, PyBytes_AS_STRING(entry.data), size)
    put_u32(at + 13, sum_of(at, size))
    return at + ENTRY_HEAD_BYTES + size


cdef uint32_t sum_of(const uint8_t* at, size_t size) noexcept:
    """Of an entry with so many bytes of data."""
    return crc32c_extend(crc32c_extend(0, at, 13), at + ENTRY_HEAD_BYTES, size)


cdef Entry take_entry(const uint8_t** at, const uint8_t* end):
    cdef const uint8_t* head = at[0]
    cdef uint32_t size
    if end - head < ENTRY_HEAD_BYTES or <size_t>(end - head) - ENTRY_HEAD_BYTES < peek_u32(head + 9):
        raise CorruptError("an entry is cut off")
    size = peek_u32(head + 9)
    if sum_of(head, size) != peek_u32(head + 13):
        raise CorruptError("an entry is not what was written")
    at[0] = head + ENTRY_HEAD_BYTES + size
    return Entry(peek_u64(head), head[8], (<const char*>head)[ENTRY_HEAD_BYTES:ENTRY_HEAD_BYTES + size])


def decode_message(bytes data not None) -> Message:
    """Raises CorruptError: what came is no message, or an entry is not what was sent."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    return message_at(at, at + len(data))


cdef Message message_at(const uint8_t* at, const uint8_t* end):
    cdef Message message
    cdef uint32_t count
    if end - at < MESSAGE_HEAD_BYTES or not APPEND <= at[0] <= COPY or at[1] > (FLAG_REFUSED | FLAG_FORCED):
        raise CorruptError("no message of Raft")
    if crc32c_extend(0, at, MESSAGE_HEAD_BYTES - 4) != peek_u32(at + MESSAGE_HEAD_BYTES - 4):
        raise CorruptError("a message of Raft is not what was sent")
    message = Message(at[0], peek_u32(at + 2), peek_u64(at + 10), sender=peek_u32(at + 6), index=peek_u64(at + 18),
                      log_term=peek_u64(at + 26), commit=peek_u64(at + 34), hint=peek_u64(at + 42),
                      hint_term=peek_u64(at + 50), refused=at[1] & FLAG_REFUSED != 0, forced=at[1] & FLAG_FORCED != 0)
    count = peek_u32(at + 58)
    at += MESSAGE_HEAD_BYTES
    if count and message.kind != APPEND:
        raise CorruptError(f"a message of Raft of kind {message.kind} has entries")
    while count:
        message.entries.append(take_entry(&at, end))
        count -= 1
    if at != end:
        raise CorruptError("a message of Raft is longer than it says")
    return message


def encode_members(voters, learners) -> bytes:
    """The data of ENTRY_MEMBERS: u16 number of voters, the numbers (u32) of voters, then of learners. voters, learners:
    collections of ints."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 2 + 4 * (len(voters) + len(learners)))
    cdef uint8_t* at = put_u16(<uint8_t*>PyBytes_AS_STRING(made), fit_u16(<uint64_t>len(voters)))
    for number in [*sorted(voters), *sorted(learners)]:
        at = put_u32(at, number)
    return made


def members_of(bytes data not None) -> tuple:
    """(voters, learners), frozensets of numbers. Raises CorruptError."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t voters, i
    if len(data) < 2 or (len(data) - 2) % 4 != 0 or (len(data) - 2) // 4 < peek_u16(at):
        raise CorruptError("these are no members of a group")
    voters = peek_u16(at)
    numbers = [peek_u32(at + 2 + 4 * i) for i in range((len(data) - 2) // 4)]
    found = frozenset(numbers[:voters]), frozenset(numbers[voters:])
    if not found[0] or len(found[0]) + len(found[1]) != len(numbers) or found[0] & found[1]:
        raise CorruptError("a group has a member twice, or no voter")
    return found
