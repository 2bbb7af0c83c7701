# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Codec. Frames of the stream that carries Raft's messages of all groups to another node, big-endian:

    frame           u8 version (1), u32 number of records, then these
    record          u8 kind, u32 bytes of its body, u32 CRC-32C, body
    1 MESSAGE       u64 group, a message (raft/messages.pyx); the CRC is of kind, length, group and the message's head,
                    since its entries have their own
    2 HEARTBEATS    rows of u8 kind (HEARTBEAT or ALIVE), u64 group, u32 to, u32 sender, u64 term, u64 commit; the CRC
                    is of kind, length and rows
    3 REPLICAS      which replicas the sender has, as cluster/raft/words.py says it; the CRC is of kind, length and body

What cannot wait stands in front: votes, then heartbeats, then the rest. HEARTBEAT and ALIVE use no other fields than a
row has (raft/machine.pyx), and each group has one for each other node as often as the other.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from fluxmq._core.errors import CorruptError
from fluxmq._core.raft.messages cimport (
    ALIVE, CAMPAIGN, HEARTBEAT, MESSAGE_HEAD_BYTES, VOTE, Message, message_at, message_bytes, put_message,
)
from fluxmq._core.wire.crc32c cimport crc32c_extend
from fluxmq._core.wire.primitives cimport peek_u32, peek_u64, put_u32, put_u64
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["decode_frame", "encode_frames", "encode_replicas", "frame_bytes", "is_urgent"]

cdef enum:
    VERSION = 1
    MESSAGE = 1
    HEARTBEATS = 2
    REPLICAS = 3
    FRAME_HEAD_BYTES = 5
    RECORD_HEAD_BYTES = 9
    ROW_BYTES = 33


cdef bint is_vote(Message message) noexcept:
    return VOTE <= message.kind <= CAMPAIGN


cdef bint is_heartbeat(Message message) noexcept:
    return message.kind == HEARTBEAT or message.kind == ALIVE


def is_urgent(Message message not None) -> bool:
    """Whether it stands in front of what is not: votes and heartbeats, all of which are small."""
    return is_vote(message) or is_heartbeat(message)


def frame_bytes(Message message not None) -> int:
    """How many bytes of a frame it is. Heartbeats share a few more, and so do all records of a frame."""
    return ROW_BYTES if is_heartbeat(message) else RECORD_HEAD_BYTES + 8 + message_bytes(message)


@cython.final
cdef class Packer:
    """Gathers records, which fill frames of at most `most` bytes."""
    cdef size_t most
    cdef size_t size        # of the frame that gathers
    cdef list records       # of it: (group, message), or a list of such for HEARTBEATS
    cdef list frames

    def __cinit__(self, size_t most):
        self.most = most
        self.size = FRAME_HEAD_BYTES
        self.records = []
        self.frames = []

    cdef bint fits(self, size_t size) noexcept:
        return self.size + size <= self.most

    cdef int add(self, object record, size_t size) except -1:
        """What is too large for any frame has one of its own."""
        if self.records and not self.fits(size):
            self.close()
        self.records.append(record)
        self.size += size
        return 0

    cdef int add_heartbeats(self, list rows) except -1:
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t count
        while at < len(rows):
            if self.records and not self.fits(RECORD_HEAD_BYTES + ROW_BYTES):
                self.close()
            count = 1
            if self.fits(RECORD_HEAD_BYTES + ROW_BYTES):
                count = <Py_ssize_t>((self.most - self.size - RECORD_HEAD_BYTES) // ROW_BYTES)
            count = min(count, len(rows) - at)
            self.add(rows[at:at + count], RECORD_HEAD_BYTES + <size_t>count * ROW_BYTES)
            at += count
        return 0

    cdef int close(self) except -1:
        """The frame that gathers is full, or the last one."""
        cdef bytes frame
        cdef uint8_t* at
        if not self.records:
            return 0
        frame = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>self.size)
        at = begin_frame(frame, fit_u32(<uint64_t>len(self.records)))
        for record in self.records:
            at = put_heartbeats(at, record) if isinstance(record, list) else put_one(at, record[0], record[1])
        self.frames.append(frame)
        self.records = []
        self.size = FRAME_HEAD_BYTES
        return 0


cdef uint8_t* begin_frame(bytes frame, uint32_t count) noexcept:
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(frame)
    at[0] = VERSION
    return put_u32(at + 1, count)


cdef uint8_t* put_one(uint8_t* start, uint64_t group, Message message) except NULL:
    cdef uint8_t* at = start + RECORD_HEAD_BYTES
    cdef uint8_t* end
    end = put_message(put_u64(at, group), message)
    put_head(start, MESSAGE, <size_t>(end - at), 8 + MESSAGE_HEAD_BYTES)
    return end


cdef uint8_t* put_heartbeats(uint8_t* start, list rows) except NULL:
    cdef uint8_t* at = start + RECORD_HEAD_BYTES
    cdef Message message
    cdef uint64_t group
    for group, message in rows:
        at[0] = message.kind
        at = put_u64(at + 1, group)
        at = put_u32(at, message.to)
        at = put_u32(at, message.sender)
        at = put_u64(at, message.term)
        at = put_u64(at, message.commit)
    put_head(start, HEARTBEATS, <size_t>len(rows) * ROW_BYTES, <size_t>len(rows) * ROW_BYTES)
    return at


cdef int put_head(uint8_t* start, uint8_t kind, size_t size, size_t summed) except -1:
    """In front of a body that is there. summed: how many bytes of it the CRC is of."""
    start[0] = kind
    put_u32(start + 1, fit_u32(size))
    put_u32(start + 5, sum_of(start, summed))
    return 0


cdef uint32_t sum_of(const uint8_t* start, size_t summed) noexcept:
    return crc32c_extend(crc32c_extend(0, start, 5), start + RECORD_HEAD_BYTES, summed)


def encode_frames(list out not None, size_t most) -> list:
    """out: (group, message) of each message for one node. Returns frames of at most `most` bytes, but for one message
    that is longer, which is alone in its frame. Those of a group that are of one urgency keep their order."""
    cdef Packer packer = Packer(most)
    cdef Message message
    cdef uint64_t group
    cdef list heartbeats = []
    cdef list rest = []
    for group, message in out:
        if is_vote(message):
            packer.add((group, message), RECORD_HEAD_BYTES + 8 + message_bytes(message))
        else:
            (heartbeats if is_heartbeat(message) else rest).append((group, message))
    packer.add_heartbeats(heartbeats)
    for group, message in rest:
        packer.add((group, message), RECORD_HEAD_BYTES + 8 + message_bytes(message))
    packer.close()
    return packer.frames


def encode_replicas(bytes body not None) -> bytes:
    """A frame in which the sender says which replicas it has. body: opaque here."""
    cdef size_t size = <size_t>len(body)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(FRAME_HEAD_BYTES + RECORD_HEAD_BYTES + size))
    cdef uint8_t* at = begin_frame(frame, 1)
    memcpy(at + RECORD_HEAD_BYTES, PyBytes_AS_STRING(body), size)
    put_head(at, REPLICAS, size, size)
    return frame


def decode_frame(bytes frame not None) -> tuple:
    """(messages, replicas). messages: (group, message) of each, in the order of the frame. replicas: what
    encode_replicas was given; None: the frame does not say. Raises CorruptError for what is no frame, or not what was
    sent."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(frame)
    cdef const uint8_t* end = at + len(frame)
    cdef const uint8_t* body
    cdef list messages = []
    cdef uint32_t count, size
    replicas = None
    if len(frame) < FRAME_HEAD_BYTES or at[0] != VERSION:
        raise CorruptError("no frame of Raft's stream that this version reads")
    count = peek_u32(at + 1)
    at += FRAME_HEAD_BYTES
    while count:
        if end - at < RECORD_HEAD_BYTES or <size_t>(end - at) - RECORD_HEAD_BYTES < peek_u32(at + 1):
            raise CorruptError("a record of a frame is cut off")
        size = peek_u32(at + 1)
        body = at + RECORD_HEAD_BYTES
        if at[0] == MESSAGE:
            if size < 8 + MESSAGE_HEAD_BYTES:
                raise CorruptError("a message of a frame is cut off")
            check_sum(at, 8 + MESSAGE_HEAD_BYTES)
            messages.append((peek_u64(body), message_at(body + 8, body + size)))
        elif at[0] == HEARTBEATS:
            check_sum(at, size)
            take_heartbeats(messages, body, size)
        elif at[0] == REPLICAS and replicas is None:
            check_sum(at, size)
            replicas = (<const char*>body)[:size]
        else:
            raise CorruptError(f"a record of a frame is of kind {at[0]}, or says again which replicas there are")
        at = body + size
        count -= 1
    if at != end:
        raise CorruptError("a frame is longer than it says")
    return messages, replicas


cdef int check_sum(const uint8_t* start, size_t summed) except -1:
    if sum_of(start, summed) != peek_u32(start + 5):
        raise CorruptError("a record of a frame is not what was sent")
    return 0


cdef int take_heartbeats(list messages, const uint8_t* at, size_t size) except -1:
    cdef const uint8_t* end = at + size
    if size == 0 or size % ROW_BYTES != 0:
        raise CorruptError("heartbeats are cut off")
    while at != end:
        if at[0] != HEARTBEAT and at[0] != ALIVE:
            raise CorruptError(f"a heartbeat is of kind {at[0]}")
        messages.append((peek_u64(at + 1), Message(at[0], peek_u32(at + 9), peek_u64(at + 17), sender=peek_u32(at + 13),
                                                   commit=peek_u64(at + 25))))
        at += ROW_BYTES
    return 0
