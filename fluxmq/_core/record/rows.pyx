# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Converts entries of a recording's ring to columns. docs/internals/recording.md, "Ring" and "Rows".

    entry ──► its connection ──► is it kept? ──► record_mqtt, record_amqp091 ──► record_columns ──► take()

If clients are selected by name, entries of a connection are held until its client is known, then processed or counted.
So the row `opened` of such a connection may follow younger rows.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from fnmatch import fnmatchcase

from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from msgspec import DecodeError
from msgspec.json import decode as json_decode

from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.record.amqp091 cimport amqp_rows, amqp_whole
from fluxmq._core.record.columns cimport (
    HAS_DETAIL, HAS_PROTOCOL, HAS_REASON, KIND_ACCEPTED, KIND_CLOSED, KIND_LOST, KIND_OPENED, WAY_IN, WAY_OUT, row_t)
from fluxmq._core.record.mqtt cimport connect_client, mqtt_rows, mqtt_whole
from fluxmq._core.record.state cimport (
    PAYLOAD_FULL, PAYLOAD_HASH, PAYLOAD_SIZE, Peer, Recording, TopicChoice, json_of, row_begin, row_end)
from fluxmq._core.wire.text cimport utf8_valid
from fluxmq._core.wire.xxh64 cimport xxh64_of

__all__ = ["RecordRows", "whole_packets"]

cdef enum:
    HEAD = 32               # bytes of an entry before its data
    FILLER = 0
    ENTRY_OPENED = 1
    ENTRY_ACCEPTED = 2
    ENTRY_IN = 3
    ENTRY_OUT = 4
    ENTRY_CLOSED = 5
    ENTRY_LOST = 6
    AMQP091 = 2             # of the field protocol
    HELD_BYTES_MAX = 262144 # of a connection that does not say who it is

cdef dict PAYLOADS = {"size": PAYLOAD_SIZE, "hash": PAYLOAD_HASH, "full": PAYLOAD_FULL}
cdef tuple PROTOCOL_NAMES = ("mqtt", "amqp091")



cdef bint read_entry(const uint8_t* at, const uint8_t* end, entry_t* entry, size_t* size) except -1:
    """Returns False for a filler. Raises CorruptError for an invalid entry."""
    cdef uint32_t whole = 0
    if end - at >= 8:
        memcpy(&whole, at, 4)
    if whole < 8 or whole > <size_t>(end - at) or whole & 7:
        raise CorruptError("what came out of the ring of the recording is not an entry")
    size[0] = whole
    entry.kind = at[4]
    if entry.kind == FILLER:
        return 0
    if whole >= HEAD:
        memcpy(&entry.length, at + 24, 4)
    if whole < HEAD or entry.length > whole - HEAD or entry.kind > ENTRY_LOST:
        raise CorruptError("what came out of the ring of the recording is not an entry")
    entry.protocol = at[5]
    memcpy(&entry.flags, at + 6, 2)
    memcpy(&entry.connection, at + 8, 8)
    memcpy(&entry.time, at + 16, 8)
    entry.data = at + HEAD
    return 1


cdef dict json_object(const uint8_t* at, size_t n):
    """{} if it is not a JSON object."""
    try:
        found = json_decode((<const char*>at)[:n])
    except (DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


@cython.final
cdef class RecordRows:
    """Machine. Rows of the bytes that the broker read and wrote.

    payload: full, hash or size. topics, clients, protocols, sample: as in RecordOptions; empty and 1.0: all.
    batch_rows, batch_bytes (of text and payloads): limits at which `full` becomes true. go_on: after an invalid packet
    whose end is certain, decoding goes on with the next one, as brokers do that accept it; otherwise what follows in
    that direction is counted. Raises UsageError.

    filtered_rows: left out by the selection. lost_entries, lost_bytes: as counted by the broker. undecoded_bytes: bytes
    of connections that could not be decoded. All are totals.
    """
    def __init__(self, payload: str = "hash", *, topics: object = (), clients: object = (), protocols: object = (),
                 sample: float = 1.0, batch_rows: int = 131072, batch_bytes: int = 67108864,
                 go_on: bool = False) -> None:
        if payload not in PAYLOADS:
            raise UsageError(f"payload must be one of {sorted(PAYLOADS)}, not {payload!r}")
        self.recording = Recording()
        self.recording.payload = PAYLOADS[payload]
        self.recording.go_on = go_on
        self.recording.topics = TopicChoice(tuple(topics)) if topics else None
        self.peers = {}
        self.last = None
        self.clients = tuple(clients)
        self.protocols = frozenset(protocols or PROTOCOL_NAMES)
        self.sample = sample
        self.batch_rows = batch_rows
        self.batch_bytes = batch_bytes
        self.lost_entries = self.lost_bytes = 0

    @property
    def rows(self) -> int:
        """Rows in the current batch."""
        return self.recording.columns.rows

    @property
    def seq(self) -> int:
        """Number of the next row, that is, of rows so far."""
        return self.recording.columns.first + <int64_t>self.recording.columns.rows

    @property
    def full(self) -> bool:
        return self.is_full()

    @property
    def filtered_rows(self) -> int:
        return self.recording.filtered

    @property
    def undecoded_bytes(self) -> int:
        return self.recording.undecoded

    @property
    def invalid(self) -> list[tuple[int, str, int, int, int, int]]:
        """With `go_on`, the directions that had invalid packets: connection, direction, invalid packets after which
        decoding went on, their bytes, directions that were broken off (0 or 1), bytes of that. Connection 0: all that
        are too many to be listed."""
        return [(number, "out" if direction == WAY_OUT else "in", *counts)
                for (number, direction), counts in sorted(self.recording.invalid.items())]

    @property
    def connections(self) -> int:
        """Connections with state."""
        return len(self.peers)

    cdef bint is_full(self) noexcept:
        return (self.recording.columns.rows >= self.batch_rows
                or self.recording.columns.held() >= self.batch_bytes)

    def feed(self, entries: object, start: int = 0) -> int:
        """Processes complete entries from byte `start` on until the batch is full. Returns the position reached.

        Raises CorruptError for an invalid entry.
        """
        cdef Py_buffer view
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef entry_t entry
        cdef size_t size = 0
        PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or start > view.len:
                raise UsageError("the start must lie within the entries")
            at = <const uint8_t*>view.buf + <Py_ssize_t>start
            end = <const uint8_t*>view.buf + view.len
            while at != end and not self.is_full():
                if read_entry(at, end, &entry, &size):
                    self.take_entry(&entry)
                at += size
            return at - <const uint8_t*>view.buf
        finally:
            PyBuffer_Release(&view)

    def take(self) -> tuple[int, dict[str, object]]:
        """Number of rows of the batch, and its columns as buffers (fluxmq.record.files.batch_of_columns). Begins a new
        batch."""
        return self.recording.columns.rows, self.recording.columns.taken()

    cdef Peer peer_of(self, const entry_t* entry):
        cdef Peer peer = self.last
        if peer is not None and peer.number == entry.connection:
            return peer
        peer = self.peers.get(entry.connection)
        if peer is None:
            peer = Peer()
            peer.number = entry.connection
            peer.protocol = 1 if entry.protocol == AMQP091 else 0
            if PROTOCOL_NAMES[peer.protocol] not in self.protocols:
                peer.kept = 0
            elif self.clients or self.sample < 1.0:
                peer.held = []
            self.peers[entry.connection] = peer
        self.last = peer
        return peer

    cdef int take_entry(self, const entry_t* entry) except -1:
        cdef Peer peer
        if entry.kind == ENTRY_LOST:
            return self.take_lost(entry)
        peer = self.peer_of(entry)
        if peer.held is not None and not self.decided(peer, entry):
            if peer.held_bytes + entry.length <= HELD_BYTES_MAX:
                peer.held_bytes += entry.length
                peer.held.append((entry.kind, entry.time, (<const char*>entry.data)[:entry.length]))
                return 0
            self.decide(peer, None)
        return self.take_of(peer, entry)

    cdef int take_of(self, Peer peer, const entry_t* entry) except -1:
        if entry.kind == ENTRY_IN or entry.kind == ENTRY_OUT:
            if peer.protocol:
                return amqp_rows(self.recording, peer, WAY_IN if entry.kind == ENTRY_IN else WAY_OUT, entry.time,
                                 entry.data, entry.data + entry.length)
            return mqtt_rows(self.recording, peer, WAY_IN if entry.kind == ENTRY_IN else WAY_OUT, entry.time,
                             entry.data, entry.data + entry.length)
        return self.take_event(peer, entry)

    # ── whether a connection is kept ─────────────────────────────────────────────────────────────────────────

    cdef bint decided(self, Peer peer, const entry_t* entry) except -1:
        """Whether this entry decides which client it is, or that it stays unknown. Then processes the held entries."""
        cdef bytes client = None
        if entry.kind == ENTRY_ACCEPTED:
            client = self.client_of(peer, json_object(entry.data, entry.length))
        elif entry.kind == ENTRY_IN and not peer.protocol:
            client = connect_client(entry.data, entry.data + entry.length)
        elif entry.kind == ENTRY_CLOSED:
            self.decide(peer, None)
            return 1
        if client is None:
            return 0
        self.decide(peer, client)
        return 1

    cdef int decide(self, Peer peer, bytes client) except -1:
        cdef list held = peer.held
        cdef entry_t entry
        peer.held = None
        peer.kept = client is not None and self.is_kept(client)
        for kind, time, data in held:
            entry.kind = kind
            entry.time = time
            entry.protocol = 0
            entry.flags = 0
            entry.connection = peer.number
            entry.data = <const uint8_t*><const char*>data
            entry.length = <uint32_t>len(data)
            self.take_of(peer, &entry)
        return 0

    cdef bint is_kept(self, bytes client) except -1:
        cdef uint64_t share
        if self.clients:
            name = client.decode("utf-8", "replace")
            if not any(fnmatchcase(name, pattern) for pattern in self.clients):
                return 0
        share = xxh64_of(<const uint8_t*><const char*>client, <size_t>len(client), 0) >> 11
        return self.sample >= 1.0 or <double>share / 9007199254740992.0 < self.sample     # of 53 bits

    # ── session events ───────────────────────────────────────────────────────────────────────────────────────

    cdef bytes client_of(self, Peer peer, dict details):
        name = details.get("client_id")
        if isinstance(name, str) and name:
            return name.encode()
        return b"amqp091-%d" % peer.number if peer.protocol else None

    cdef int take_event(self, Peer peer, const entry_t* entry) except -1:
        cdef row_t row
        cdef int kind = (KIND_OPENED if entry.kind == ENTRY_OPENED else
                         KIND_ACCEPTED if entry.kind == ENTRY_ACCEPTED else KIND_CLOSED)
        cdef dict details = {}
        if kind != KIND_OPENED and peer.kept:
            details = json_object(entry.data, entry.length)
        if kind == KIND_ACCEPTED and peer.kept:
            client = self.client_of(peer, details)
            if client is not None:
                peer.client = client
                peer.client_batch = 0
            version = details.get("version")
            if isinstance(version, int) and (version == 91 if peer.protocol else 3 <= version <= 5):
                peer.version = <int8_t>version
            peer.aliases_in = aliases_of(details.get("aliases_in")) or peer.aliases_in
            peer.aliases_out = aliases_of(details.get("aliases_out")) or peer.aliases_out
        row_begin(self.recording, peer, &row, entry.time, kind)
        if entry.length and utf8_valid(entry.data, entry.length):
            row.has |= HAS_DETAIL
            row.detail.at = entry.data
            row.detail.n = entry.length
        code = details.get("code")
        if kind == KIND_CLOSED and isinstance(code, int) and 0 <= code < 1 << 31:
            row.has |= HAS_REASON
            row.reason = code
        row_end(self.recording, peer, &row, 1)
        if kind == KIND_CLOSED:
            self.peers.pop(peer.number, None)
            self.last = None
        return 0

    cdef int take_lost(self, const entry_t* entry) except -1:
        """A gap in one connection, or (connection 0) in all: drops state that the gap may invalidate."""
        cdef row_t row
        cdef uint64_t entries = 0, lost = 0
        cdef Peer peer
        cdef bytes detail
        if entry.length >= 16:
            memcpy(&entries, entry.data, 8)
            memcpy(&lost, entry.data + 8, 8)
        self.lost_entries += <int64_t>entries
        self.lost_bytes += <int64_t>lost
        if entry.connection:
            peer = self.peer_of(entry)
            peer.forget()
        else:
            for peer in self.peers.values():
                peer.forget()
            peer = Peer()
        row_begin(self.recording, peer, &row, entry.time, KIND_LOST)
        if not entry.connection:
            row.has &= ~<uint32_t>HAS_PROTOCOL
        detail = json_of({"entries": entries, "bytes": lost})
        row.has |= HAS_DETAIL
        row.detail.at = <const uint8_t*><const char*>detail
        row.detail.n = <size_t>len(detail)
        row_end(self.recording, peer, &row, 1)
        return 0


def whole_packets(data: object, amqp091: bool = False) -> int:
    """Number of bytes at the front that are complete packets (AMQP: frames); -1: there is no valid packet, even with
    more bytes. For cutting a stream into entries."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if amqp091:
            return amqp_whole(<const uint8_t*>view.buf, <const uint8_t*>view.buf + view.len)
        return mqtt_whole(<const uint8_t*>view.buf, <const uint8_t*>view.buf + view.len)
    finally:
        PyBuffer_Release(&view)


cdef dict aliases_of(found):
    """Topic aliases in use when the recording began: topic by alias. None: there are none."""
    cdef dict aliases = {}
    for each in found if isinstance(found, list) else ():
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], int) and isinstance(each[1], str):
            aliases[each[0]] = (<str>each[1]).encode()
    return aliases or None
