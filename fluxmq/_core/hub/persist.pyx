# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Export to the view and load from view and journal; see hub/persist.pxd. All integers are big-endian.

    session value    ┌─────────┬──────────┬──────────────┬───────────┬─────────┬─────────┬──────────┐
                     │ version │ head     │ sequence_last│ packet id │ slots   │ line    │ received │
                     │ u8 = 1  │ u32 + n  │ u64          │ u16 last  │ u32 × ↓ │ u32 × ↓ │ u32 × u16│
                     └─────────┴──────────┴──────────────┴───────────┴─────────┴─────────┴──────────┘
                     one slot or line entry: u64 message (0 = released), u64 sequence, u16 packet id (0 = in line),
                     u8 first byte, u8 n, n × u32 subscription identifiers
    message value    u8 = 1, i64 expires_at, u8 qos, u16 topic length, u32 properties length, u32 payload length,
                     topic, properties, payload
    retained value   as a message
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.namespace import ROOT
from fluxmq._core.disk.journal_format cimport journal_next_record
from fluxmq._core.disk.record_kinds cimport (
    RECORD_ARRIVAL, RECORD_CLOCK, RECORD_COMPLETED, RECORD_EXCHANGE, RECORD_LINK, RECORD_MESSAGE,
    RECORD_NAMESPACE, RECORD_ORIGIN, RECORD_ORIGIN_END, RECORD_PEER_POSITION, RECORD_RECEIVED, RECORD_RELEASED,
    RECORD_RETAINED, RECORD_RETAINED_NAMED, RECORD_RETAINED_REVISION, RECORD_RETAINED_VERSION, RECORD_SENT,
    RECORD_SESSION, RECORD_SESSION_END, RECORD_SETTLED, RECORD_SUBSCRIBE, RECORD_UNBIND, RECORD_UNSUBSCRIBE,
    is_of_queues,
    is_of_replicas,
)
from fluxmq._core.memory.message cimport (
    BLOB_BYTES_MIN, blob_copy, blob_drop, body_bytes, body_t, ids_drop, ids_new, msg_drop, msg_hold, msg_new,
)
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.pubsub.retained cimport Retained
from fluxmq._core.pubsub.session cimport SLOT_RELEASE_HELD, SLOT_WAITING, entry_t
from fluxmq._core.pubsub.topics cimport Topics, topics_of
from fluxmq._core.wire.primitives cimport (
    Cursor, put_u8, put_u16, put_u32, put_u64, take_bytes16, take_u8, take_u16, take_u32, take_u64,
)

__all__ = ["Loader", "MessageHold", "export_namespaces", "export_retained", "export_session", "message_key",
           "namespace_key", "retained_key", "session_key",
           "session_entries", "session_without"]

cdef enum:
    VALUE_VERSION = 1
    ENTRY_BYTES = 20            # without identifiers


@cython.final
cdef class MessageHold:
    """Value. Keeps a loaded message until the sessions that need it have taken their references."""
    cdef msg_t* msg

    def __dealloc__(self):
        if self.msg != NULL:
            msg_drop(self.msg)


# -------------------------------------------------------------------- export

cdef bytes message_value(const body_t* body, uint8_t qos):
    cdef size_t size = 20 + body_bytes(body)
    cdef bytes value = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(value)
    at = put_u8(at, VALUE_VERSION)
    at = put_u64(at, <uint64_t>body.expires_at)
    at = put_u8(at, qos)
    at = put_u16(at, <uint16_t>body.topic_length)
    at = put_u32(at, body.properties_length)
    at = put_u32(at, body.payload_length)
    memcpy(at, body.topic, body.topic_length)
    at += body.topic_length
    memcpy(at, body.properties, body.properties_length)
    memcpy(at + body.properties_length, body.payload, body.payload_length)
    return value


cdef uint8_t* put_entry(uint8_t* at, msg_t* msg, uint64_t sequence, uint16_t packet_id, uint8_t first, ids_t* ids):
    cdef uint32_t n = min(ids.count, 255) if ids != NULL else 0
    cdef uint32_t i
    at = put_u64(at, msg.id if msg != NULL else 0)
    at = put_u64(at, sequence)
    at = put_u16(at, packet_id)
    at = put_u8(at, first)
    at = put_u8(at, <uint8_t>n)
    for i in range(n):
        at = put_u32(at, ids.items[i])
    return at


cdef int need_message(msg_t* msg, list puts) except -1:
    """Adds a message to `puts` unless the view has it: every message that a stored session names must be there."""
    if msg != NULL and not msg.stored:
        puts.append((message_key(msg.id), message_value(&msg.body, msg.qos)))
        msg.stored = 1
    return 0


def session_key(uint64_t number) -> bytes:
    return b"s" + number.to_bytes(8, "big")


def message_key(uint64_t number) -> bytes:
    return b"m" + number.to_bytes(8, "big")


def namespace_key(uint64_t number) -> bytes:
    return b"n" + number.to_bytes(8, "big")


def retained_key(uint64_t namespace, bytes topic not None) -> bytes:
    return b"t" + namespace.to_bytes(8, "big") + topic


def export_session(Session session not None, bytes head not None) -> list:
    """[(key, value)] for the view: the session and those of its messages that the view does not have yet.

    A session that is stored for its will only (not journalled) has no messages on disk, and none in the view.
    """
    cdef list puts = []
    cdef uint32_t slots_end = session.slots_mask + 1 if session.journalled and session.slots != NULL else 0
    cdef uint32_t queued = session.queued if session.journalled else 0
    cdef uint32_t received = session.received_count if session.journalled else 0
    cdef size_t size = 1 + 4 + len(head) + 8 + 2 + 4 + 4 + 4 + 2 * received
    cdef uint32_t i, n, slots = 0
    cdef slot_t* slot
    cdef entry_t* entry
    cdef bytes value
    cdef uint8_t* at
    cdef uint8_t* begin
    for i in range(slots_end):
        slot = &session.slots[i]
        if slot.packet_id and slot.sequence:    # without a sequence it belongs to a queue, which stores it
            slots += 1
            size += ENTRY_BYTES + (4 * min(slot.ids.count, 255) if slot.ids != NULL else 0)
            need_message(slot.msg, puts)
    for i in range(queued):
        entry = &session.queue[(session.queue_head + i) & session.queue_mask]
        size += ENTRY_BYTES + (4 * min(entry.ids.count, 255) if entry.ids != NULL else 0)
        need_message(entry.msg, puts)
    value = PyBytes_FromStringAndSize(NULL, size)
    at = begin = <uint8_t*>PyBytes_AS_STRING(value)
    at = put_u8(at, VALUE_VERSION)
    at = put_u32(at, <uint32_t>len(head))
    memcpy(at, <const char*>head, len(head))
    at += len(head)
    at = put_u64(at, session.sequence_last)
    # The view does not store which identifiers of the reserved range were used: continue behind the whole range.
    at = put_u16(at, session.packet_id_kept if session.keeps_packet_id(session.packet_id_last) else
                 session.packet_id_last)
    at = put_u32(at, slots)
    for i in range(slots_end):
        slot = &session.slots[i]
        if slot.packet_id and slot.sequence:
            at = put_entry(at, slot.msg, slot.sequence, slot.packet_id, slot.first, slot.ids)
    at = put_u32(at, queued)
    for i in range(queued):
        entry = &session.queue[(session.queue_head + i) & session.queue_mask]
        at = put_entry(at, entry.msg, entry.sequence, 0, entry.first, entry.ids)
    at = put_u32(at, received)
    if received:
        for n in range(1, 65536):
            if session.has_received(<uint16_t>n):
                at = put_u16(at, <uint16_t>n)
    assert at - begin == <Py_ssize_t>size
    puts.append((session_key(session.number), value))
    return puts


def session_entries(bytes value not None) -> list:
    """[(message, begin, end, which)] of a session's value: the number of each message that it names (0: released), the
    place of its entry, and whether it is in the window (0) or queued (1). Raises CorruptError."""
    cdef list found = []
    cdef Py_ssize_t at = 5 + len(Loader.head_of(value)) + 10
    cdef Py_ssize_t begin
    for which in range(2):
        count, at = int.from_bytes(value[at:at + 4], "big"), at + 4
        for _ in range(count):
            begin, at = at, at + ENTRY_BYTES
            if at > len(value):
                raise CorruptError("a stored session is shorter than it says")
            at += 4 * value[at - 1]
            found.append((int.from_bytes(value[begin:begin + 8], "big"), begin, at, which))
    return found


def session_without(bytes value not None, missing not None) -> bytes:
    """A session's value without the entries of these messages, for a repair that lost them. Raises CorruptError."""
    cdef list entries = session_entries(value)
    cdef Py_ssize_t at = 5 + len(Loader.head_of(value)) + 10
    parts = [value[:at]]
    for which in range(2):
        here = [entry for entry in entries if entry[3] == which]
        kept = [value[begin:end] for number, begin, end, _ in here if number not in missing]
        parts += [len(kept).to_bytes(4, "big"), *kept]
        at = here[len(here) - 1][2] if here else at + 4
    return b"".join([*parts, value[at:]])


def export_retained(Topics space not None, list topics not None) -> tuple:
    """(puts, deletes) for the view: retained messages of these topics, as they are now."""
    cdef Retained kept
    cdef bytes topic
    puts, deletes = [], []
    for topic in topics:
        kept = space.retained.get(topic)
        if kept is None or kept.unstored:
            deletes.append(retained_key(space.namespace.number, topic))
        elif not kept.volatile:
            puts.append((retained_key(space.namespace.number, topic), message_value(&kept.msg.body, kept.msg.qos)))
    return puts, deletes


def export_namespaces(Hub hub not None) -> list:
    """[(key, value)] for the view: namespaces created or ended since the last call."""
    return [(namespace_key(number), said) for number, said in hub.namespaces.take_changes().items()]


# -------------------------------------------------------------------- load

cdef msg_t* read_message(Cursor* c, uint64_t number, bint stored) except NULL:
    """Reads expires_at … payload. The checksum was verified before, so a short value has an unknown format."""
    cdef body_t body
    cdef uint64_t expires_at
    cdef uint16_t topic_length
    cdef uint8_t qos
    cdef msg_t* msg
    memset(&body, 0, sizeof(body))
    if not (take_u64(c, &expires_at) and take_u8(c, &qos) and take_u16(c, &topic_length)
            and take_u32(c, &body.properties_length) and take_u32(c, &body.payload_length)):
        raise CorruptError("a stored message is shorter than its header")
    return read_body(c, &body, expires_at, qos, topic_length, number, stored)


cdef msg_t* read_body(Cursor* c, body_t* body, uint64_t expires_at, uint8_t qos, uint16_t topic_length, uint64_t number,
                      bint stored) except NULL:
    cdef msg_t* msg
    body.topic_length = topic_length
    if <uint64_t>(c.end - c.at) < <uint64_t>topic_length + body.properties_length + body.payload_length:
        raise CorruptError("a stored message is shorter than it says")
    body.topic = c.at
    body.properties = c.at + topic_length
    body.payload = body.properties + body.properties_length
    body.expires_at = <int64_t>expires_at
    c.at = body.payload + body.payload_length
    if body.payload_length >= BLOB_BYTES_MIN:
        body.blob = blob_copy(body.payload, body.payload_length)
        body.payload = body.blob.data
    msg = msg_new(body, qos)
    blob_drop(body.blob)
    msg.id = number
    msg.stored = stored
    return msg


cdef ids_t* read_ids(Cursor* c, uint8_t n) except? NULL:
    cdef uint32_t[255] items
    cdef uint8_t i
    for i in range(n):
        if not take_u32(c, &items[i]):
            raise CorruptError("a stored delivery is shorter than it says")
    return ids_new(items, n) if n else NULL


@cython.final
cdef class Loader:
    """Machine. Rebuilds sessions and retained messages at start: first the view's values, then the journal's batches.

    hub: empty. line: source of the records. on_cold: called with (kind, session number, body) for records of the cold
    half; for SESSION it must create the Session and put it into `sessions`.
    """

    def __init__(self, Hub hub not None, on_cold, Line line=None):
        self.hub = hub
        self.line = hub.commits.local if line is None else line
        self.stale_keys = []
        self.on_cold = on_cold
        self.sessions = {}
        self.messages = {}

    def add_message(self, uint64_t number, bytes value not None):
        cdef Cursor c
        cdef uint8_t version
        cdef MessageHold hold = MessageHold()
        c.at = <const uint8_t*><const char*>value
        c.end = c.at + len(value)
        if not take_u8(&c, &version) or version != VALUE_VERSION:
            raise CorruptError(f"stored message {number} has a format of another version")
        hold.msg = read_message(&c, number, 1)
        self.messages[number] = hold
        self.message_last = max(self.message_last, number)

    def add_namespace(self, bytes rest not None, bytes value not None):
        """rest: the key without its first byte."""
        if len(rest) != 8:
            raise CorruptError("the key of a namespace is not as long as a number")
        self.hub.namespaces.learn(self.line, int.from_bytes(rest, "big"), value)

    def add_retained(self, bytes key not None, bytes value not None):
        """key: as the view has it."""
        cdef Cursor c
        cdef Namespace namespace
        cdef bytes topic
        cdef uint8_t version
        cdef Retained kept = Retained.__new__(Retained)
        c.at = <const uint8_t*><const char*>value
        c.end = c.at + len(value)
        if not take_u8(&c, &version) or version != VALUE_VERSION:
            raise CorruptError("a retained message has a format of another version")
        kept.msg = read_message(&c, 0, 0)
        if key[:1] == b"t":
            namespace, topic = self.line.namespace(int.from_bytes(key[1:9], "big")), key[9:]
        else:
            size = int.from_bytes(key[1:3], "big")
            namespace, topic = self.hub.namespaces.add(key[3:3 + size] or ROOT), key[3 + size:]
            self.stale_keys.append(key)
        if namespace is None:
            return              # the namespace had ended when the view was written
        self.hub.retained.put(<Topics>topics_of(namespace), topic, kept)
        if key[:1] != b"t":
            (<Topics>topics_of(namespace)).retained_dirty.add(topic)

    @staticmethod
    def head_of(bytes value not None) -> bytes:
        """The msgpack head of a session's value."""
        cdef Cursor c
        cdef uint8_t version
        cdef uint32_t n
        c.at = <const uint8_t*><const char*>value
        c.end = c.at + len(value)
        if not take_u8(&c, &version) or version != VALUE_VERSION or not take_u32(&c, &n) or c.end - c.at < n:
            raise CorruptError("a stored session has a format of another version")
        return value[5:5 + n]

    def fill_session(self, Session session not None, bytes value not None):
        """Restores window, queue and inbound identifiers of a session; all its messages must have been added before."""
        cdef Cursor c
        cdef uint32_t n, i
        cdef uint16_t packet_id = 0
        cdef uint16_t packet_id_last = 0
        cdef bint ok
        c.at = <const uint8_t*><const char*>value + 5 + len(Loader.head_of(value))
        c.end = <const uint8_t*><const char*>value + len(value)
        ok = take_u64(&c, &session.sequence_last) and take_u16(&c, &packet_id_last)
        for _ in range(2):
            ok = ok and take_u32(&c, &n)
            if ok:
                for i in range(n):
                    self.fill_entry(session, &c)
        ok = ok and take_u32(&c, &n)
        if not ok or c.end - c.at != 2 * <Py_ssize_t>n:
            raise CorruptError(f"stored session {session.number} is shorter than it says")
        for i in range(n):
            take_u16(&c, &packet_id)
            session.mark_received(packet_id, True)
        session.packet_id_last = session.packet_id_kept = packet_id_last    # restore_slot has changed it
        self.sessions[session.number] = session

    cdef int fill_entry(self, Session session, Cursor* c) except -1:
        cdef uint64_t number, sequence
        cdef uint16_t packet_id
        cdef uint8_t first, n
        cdef ids_t* ids
        cdef MessageHold hold
        if not (take_u64(c, &number) and take_u64(c, &sequence) and take_u16(c, &packet_id) and take_u8(c, &first)
                and take_u8(c, &n)):
            raise CorruptError(f"stored session {session.number} is shorter than it says")
        ids = read_ids(c, n)
        try:
            if number == 0:
                if packet_id == 0:
                    raise CorruptError(f"stored session {session.number} has an entry in line that names no message")
                return self.add_target(session, NULL, sequence, packet_id, first, NULL)
            hold = self.messages.get(number)
            if hold is None:
                raise CorruptError(f"stored session {session.number} names message {number}, which is not stored")
            return self.add_target(session, hold.msg, sequence, packet_id, first, ids)
        finally:
            ids_drop(ids)

    # ---------------------------------------------------------------- replay

    def replay(self, bytes batch not None):
        """Applies one batch of the journal."""
        cdef const uint8_t* at = <const uint8_t*><const char*>batch
        cdef const uint8_t* end = at + len(batch)
        cdef const uint8_t* body
        cdef uint32_t length
        cdef uint8_t kind
        cdef int found
        while True:
            found = journal_next_record(&at, end, &kind, &body, &length)
            if found == 0:
                return
            if found < 0:
                raise CorruptError("a batch of the journal does not divide into records")
            self.records += 1
            self.apply(kind, body, body + length)

    cdef int apply(self, uint8_t kind, const uint8_t* at, const uint8_t* end) except -1:
        cdef Cursor c
        cdef uint64_t number, sequence
        cdef uint16_t packet_id
        cdef Session session
        cdef slot_t* slot
        if kind == RECORD_MESSAGE:
            return self.apply_message(at, end)
        if kind == RECORD_RETAINED or kind == RECORD_RETAINED_NAMED or kind == RECORD_RETAINED_VERSION:
            return self.apply_retained(at, end, kind)
        if is_of_queues(kind) and self.queues is not None and self.queues.take(
                kind, at, <uint32_t>(end - at)):        # fits: the length of a record is a u32
            return 0
        c.at = at
        c.end = end
        if not take_u64(&c, &number):
            raise CorruptError(f"a record of kind {kind} is shorter than a session's number")
        if kind in (RECORD_SESSION, RECORD_SESSION_END, RECORD_SUBSCRIBE, RECORD_UNSUBSCRIBE, RECORD_LINK,
                    RECORD_ARRIVAL):
            self.on_cold(kind, number, PyBytes_FromStringAndSize(<const char*>c.at, c.end - c.at))
            return 0
        if (kind == RECORD_CLOCK or kind == RECORD_PEER_POSITION or kind == RECORD_RETAINED_REVISION
                or kind == RECORD_ORIGIN or kind == RECORD_ORIGIN_END
                or is_of_queues(kind) or is_of_replicas(kind)
                or RECORD_EXCHANGE <= kind <= RECORD_UNBIND):           # their numbers are their own
            self.on_cold(kind, number, PyBytes_FromStringAndSize(<const char*>c.at, c.end - c.at))
            return 0
        if kind == RECORD_NAMESPACE:
            self.hub.namespaces.learn(self.line, number, PyBytes_FromStringAndSize(<const char*>c.at, c.end - c.at))
            return 0
        if kind not in (RECORD_RECEIVED, RECORD_COMPLETED, RECORD_SENT, RECORD_SETTLED, RECORD_RELEASED):
            raise CorruptError(f"the journal has a record of kind {kind}, which this version does not know: it was "
                               f"written by a newer one")
        session = self.sessions.get(number)
        if session is None:
            return 0                # the view knows already that a later record ends the namespace
        if kind == RECORD_RECEIVED or kind == RECORD_COMPLETED:
            if not take_u16(&c, &packet_id):
                raise CorruptError(f"a record of kind {kind} is too short")
            session.mark_received(packet_id, kind == RECORD_RECEIVED)
            return 0
        if not take_u64(&c, &sequence):
            raise CorruptError(f"a record of kind {kind} is too short")
        if kind == RECORD_SENT:
            if not take_u16(&c, &packet_id):
                raise CorruptError("a record of kind SENT is too short")
            return self.apply_sent(session, sequence, packet_id)
        if kind == RECORD_SETTLED:
            return self.apply_settled(session, sequence)
        slot = self.slot_of(session, sequence)
        if slot != NULL and slot.msg != NULL:
            session.drop_message(slot)
            slot.state = SLOT_RELEASE_HELD
        return 0

    cdef int apply_message(self, const uint8_t* at, const uint8_t* end) except -1:
        cdef Cursor c
        cdef body_t body
        cdef uint64_t number, expires_at, target, sequence
        cdef uint32_t targets, i
        cdef uint16_t topic_length, packet_id
        cdef uint8_t qos, first, n
        cdef ids_t* ids
        cdef Session session
        cdef MessageHold hold
        memset(&body, 0, sizeof(body))
        c.at = at
        c.end = end
        if not (take_u64(&c, &number) and take_u64(&c, &expires_at) and take_u8(&c, &qos)
                and take_u16(&c, &topic_length) and take_u32(&c, &body.properties_length)
                and take_u32(&c, &body.payload_length) and take_u32(&c, &targets)):
            raise CorruptError("a MESSAGE record is shorter than its header")
        hold = self.messages.get(number)
        if hold is None:
            hold = MessageHold()
            hold.msg = read_body(&c, &body, expires_at, qos, topic_length, number, 0)
        else:
            c.at += topic_length + body.properties_length + body.payload_length
        self.message_last = max(self.message_last, number)
        for i in range(targets):
            if not (take_u64(&c, &target) and take_u64(&c, &sequence) and take_u16(&c, &packet_id)
                    and take_u8(&c, &first) and take_u8(&c, &n)):
                raise CorruptError("a MESSAGE record is shorter than its targets")
            ids = read_ids(&c, n)
            session = self.sessions.get(target)
            if session is not None and sequence > session.sequence_last:
                session.sequence_last = sequence
                self.add_target(session, hold.msg, sequence, packet_id, first, ids)
            ids_drop(ids)
        return 0

    cdef int apply_retained(self, const uint8_t* at, const uint8_t* end, uint8_t kind) except -1:
        # Of an earlier version: it has the name of the namespace instead of its number.
        cdef bint named = kind == RECORD_RETAINED_NAMED
        cdef uint64_t version = 0
        cdef uint64_t life = 0
        cdef uint8_t absent = 0
        cdef Cursor c
        cdef body_t body
        cdef uint64_t number = 0
        cdef uint64_t expires_at
        cdef uint16_t topic_length, name_length
        cdef uint8_t qos
        cdef const uint8_t* name
        cdef Namespace namespace
        cdef Retained kept = Retained.__new__(Retained)
        memset(&body, 0, sizeof(body))
        c.at = at
        c.end = end
        if not ((named or take_u64(&c, &number)) and take_u64(&c, &expires_at) and take_u8(&c, &qos)
                and take_u16(&c, &topic_length) and take_u32(&c, &body.properties_length)
                and take_u32(&c, &body.payload_length) and (not named or take_bytes16(&c, &name, &name_length))):
            raise CorruptError("a RETAINED record is shorter than its header")
        if named:
            namespace = self.hub.namespaces.add(PyBytes_FromStringAndSize(<const char*>name, name_length) or ROOT)
        else:
            namespace = self.line.namespace(number)
        kept.msg = read_body(&c, &body, expires_at, qos, topic_length, 0, 0)
        if kind == RECORD_RETAINED_VERSION and not (
                take_u64(&c, &version) and take_u64(&c, &life) and take_u8(&c, &absent)):
            raise CorruptError("a RETAINED_VERSION record is shorter than its header")
        topic = kept.topic
        if namespace is not None:
            if kept.msg.body.payload_length == 0:
                kept = None
            self.hub.retained.put(<Topics>topics_of(namespace), topic, kept)
            self.hub.retained.set_version(<Topics>topics_of(namespace), topic, kept, version, life, absent)
            (<Topics>topics_of(namespace)).retained_dirty.add(topic)
            if self.hub.retained.changed is not None:
                self.hub.retained.note_change(<Topics>topics_of(namespace), topic)
        return 0

    cdef int add_target(self, Session session, msg_t* msg, uint64_t sequence, uint16_t packet_id, uint8_t first,
                        ids_t* ids) except -1:
        """Adds a message as recorded: in flight under its packet identifier, or at the end of the session's queue."""
        cdef slot_t* slot
        if packet_id == 0:
            session.restore_queued(msg, first, ids, sequence)
            return 0
        slot = session.restore_slot(packet_id)
        slot.ids = ids
        slot.first = first
        slot.sequence = sequence
        slot.state = SLOT_WAITING if msg != NULL else SLOT_RELEASE_HELD
        if msg != NULL:
            msg_hold(msg)
            session.put_message(slot, msg)
        if ids != NULL:
            ids.refs += 1
        return 0

    cdef int apply_sent(self, Session session, uint64_t sequence, uint16_t packet_id) except -1:
        cdef entry_t entry
        if sequence == 0:               # Session.keep_packet_ids
            session.packet_id_last = session.packet_id_kept = packet_id
            return 0
        if not session.take_queued(sequence, &entry):
            return 0
        self.add_target(session, entry.msg, sequence, packet_id, entry.first, entry.ids)
        session.ledger.forget(entry.msg)
        ids_drop(entry.ids)
        session.packet_id_last = (session.packet_id_kept if session.keeps_packet_id(packet_id) else packet_id)
        return 0

    cdef int apply_settled(self, Session session, uint64_t sequence) except -1:
        cdef entry_t entry
        cdef slot_t* slot = self.slot_of(session, sequence)
        if slot != NULL:
            session.slot_free(slot)
        elif session.take_queued(sequence, &entry):
            session.ledger.forget(entry.msg)
            ids_drop(entry.ids)
        return 0

    cdef slot_t* slot_of(self, Session session, uint64_t sequence) noexcept:
        cdef uint32_t i
        if session.slots != NULL:
            for i in range(session.slots_mask + 1):
                if session.slots[i].packet_id and session.slots[i].sequence == sequence:
                    return &session.slots[i]
        return NULL

    def use_message(self, uint64_t number):
        """A record about sessions has used the numbers of messages up to this one."""
        self.message_last = max(self.message_last, number)

    def orphans(self) -> list:
        """Numbers of messages in the view that no session needs: left by a crash between two checkpoints."""
        cdef MessageHold hold
        return [number for number, hold in self.messages.items() if (<MessageHold>hold).msg.refs == 1]

    def let_go(self):
        """Releases all loaded messages: no record that follows names an earlier one."""
        self.messages.clear()

    def finish(self):
        """The journal is replayed: releases what only loading needed; call after `orphans`."""
        self.let_go()
        self.hub.ledger.message_last = self.message_last
