# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A session's messages on their way to another node; see hub/transfer.pxd."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.errors import ProtocolError
from fluxmq._core.memory.message cimport (
    BLOB_BYTES_MIN, GROUP_MARK, blob_copy, blob_drop, body_bytes, body_t, ids_drop, ids_hold, ids_new, mark_of,
    msg_hold, msg_new,
)
from fluxmq._core.mqtt.consts cimport PUBLISH, REASON_MALFORMED_PACKET, REASON_PROTOCOL_ERROR
from fluxmq._core.mqtt.props cimport publish_props_t, scan_publish_props
from fluxmq._core.pubsub.session cimport (
    SLOT_HELD, SLOT_RELEASE_HELD, SLOT_UNSENT, SLOT_WAITING, entry_t, slot_t,
)
from fluxmq._core.wire.primitives cimport (
    VARINT_MAX, Cursor, peek_u32, put_u8, put_u16, put_u32, put_u64, take_u8, take_u16, take_u32, take_u64,
)
from fluxmq._core.wire.sizes cimport fit_u16, fit_u32
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid

__all__ = ["Snapshot", "check_entries", "check_properties", "continue_behind", "insert_entries", "merge_sessions",
           "received_of", "restore_entries", "resume", "sequence_of", "without_entries"]

cdef enum:
    ENTRY_BYTES = 32            # without identifiers and message
    ITEMS_MIN = 64

cdef struct read_t:             # an entry; everything points into the part
    uint64_t sequence
    int64_t left_ms
    const uint8_t* ids
    body_t body
    uint16_t packet_id
    uint8_t state
    uint8_t first
    uint8_t qos
    uint8_t ids_count


# ---------------------------------------------------------------- out

cdef int by_sequence(const void* a, const void* b) noexcept nogil:
    cdef uint64_t left = (<const moved_t*>a).sequence
    cdef uint64_t right = (<const moved_t*>b).sequence
    return (left > right) - (left < right)


cdef inline size_t entry_bytes(const moved_t* item) noexcept:
    return (ENTRY_BYTES + (4 * min(item.ids.count, <uint32_t>255) if item.ids != NULL else 0)
            + (body_bytes(&item.msg.body) if item.msg != NULL else 0))


@cython.final
@cython.no_gc_clear             # __dealloc__ needs the ledger
cdef class Snapshot:
    """The messages of a session without a connection at one instant, by reference. after: only those of the line with a
    higher sequence; None: all, those in flight included."""

    def __init__(self, Session session not None, after=None):
        self.ledger = session.ledger
        self.upto = session.sequence_last
        self.last = after or 0
        # Which identifiers of a reserved range were used is not known: they continue behind the whole range.
        self.packet_id_last = (session.packet_id_kept if session.keeps_packet_id(session.packet_id_last) else
                               session.packet_id_last)
        self.gather(session, after is None, self.last)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.at, self.count):
            self.drop(i)
        free(self.items)

    cdef void drop(self, size_t i) noexcept:
        if self.items[i].msg != NULL:
            self.ledger.forget(self.items[i].msg)
        ids_drop(self.items[i].ids)

    cdef int add(self, moved_t item) except -1:
        """Adds an entry; takes its own references."""
        cdef moved_t* grown
        if self.count & (self.count - 1) == 0 and (self.count == 0 or self.count >= ITEMS_MIN):
            grown = <moved_t*>realloc(self.items, max(2 * self.count, <size_t>ITEMS_MIN) * sizeof(moved_t))
            if grown == NULL:
                raise MemoryError()
            self.items = grown
        if item.msg != NULL:
            msg_hold(item.msg)
        else:
            item.ids = NULL         # a session restored from disk has them still
        ids_hold(item.ids)
        self.items[self.count] = item
        self.count += 1
        return 0

    cdef int gather(self, Session session, bint flights, uint64_t after) except -1:
        cdef uint32_t i
        cdef uint32_t slots = session.slots_mask + 1 if session.slots != NULL and flights else 0
        cdef slot_t* slot
        cdef entry_t* entry
        for i in range(slots):
            slot = &session.slots[i]
            if slot.packet_id and slot.sequence:        # without a sequence it belongs to a queue, which keeps it
                self.add(moved_t(slot.msg, slot.ids, slot.sequence, slot.packet_id, slot.first,
                                 MOVED_RELEASED if slot.msg == NULL else
                                 MOVED_UNSENT if slot.state == SLOT_HELD or slot.state == SLOT_UNSENT else MOVED_SENT))
        slots = fit_u32(self.count)
        for i in range(session.queued):
            entry = &session.queue[(session.queue_head + i) & session.queue_mask]
            if entry.sequence > after:
                self.add(moved_t(entry.msg, entry.ids, entry.sequence, 0, entry.first, MOVED_QUEUED))
        if slots:               # the line is in order already
            qsort(self.items, self.count, sizeof(moved_t), by_sequence)
        return 0

    @property
    def left(self) -> int:
        """Number of entries not taken yet."""
        return self.count - self.at

    def take(self, bytes begin not None, size_t size) -> bytes:
        """`begin`, then as many of the next entries as make at most `size` bytes with it, and at least one if there is
        one left. Drops what it returns."""
        cdef size_t total = len(begin)
        cdef size_t end = self.at
        cdef size_t more
        cdef bytes part
        cdef uint8_t* at
        while end < self.count:
            more = entry_bytes(&self.items[end])
            if end > self.at and total + more > size:
                break
            total += more
            end += 1
        part = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        at = <uint8_t*>PyBytes_AS_STRING(part)
        memcpy(at, PyBytes_AS_STRING(begin), <size_t>len(begin))
        at += len(begin)
        while self.at < end:
            at = put_entry(at, &self.items[self.at], self.ledger.node.steady_ms)
            self.last = self.items[self.at].sequence
            self.drop(self.at)
            self.at += 1
        return part


cdef uint8_t* put_entry(uint8_t* at, const moved_t* item, int64_t now) noexcept:
    cdef uint32_t n = min(item.ids.count, <uint32_t>255) if item.ids != NULL else 0
    cdef uint32_t i
    cdef int64_t left = -1
    if item.msg != NULL and item.msg.body.expires_at:
        left = max(item.msg.body.expires_at - now, <int64_t>0)
    at = put_u64(at, item.sequence)
    at = put_u16(at, item.packet_id)
    at = put_u8(at, item.state)
    at = put_u8(at, item.first)
    at = put_u8(at, item.msg.qos if item.msg != NULL else 0)
    at = put_u8(at, <uint8_t>n)
    at = put_u64(at, <uint64_t>left)
    at = put_u16(at, <uint16_t>item.msg.body.topic_length if item.msg != NULL else 0)
    at = put_u32(at, item.msg.body.properties_length if item.msg != NULL else 0)
    at = put_u32(at, item.msg.body.payload_length if item.msg != NULL else 0)
    for i in range(n):
        at = put_u32(at, item.ids.items[i])
    if item.msg == NULL:
        return at
    memcpy(at, item.msg.body.topic, item.msg.body.topic_length)
    at += item.msg.body.topic_length
    if item.msg.body.properties_length:
        memcpy(at, item.msg.body.properties, item.msg.body.properties_length)
    at += item.msg.body.properties_length
    if item.msg.body.payload_length:
        memcpy(at, item.msg.body.payload, item.msg.body.payload_length)
    return at + item.msg.body.payload_length


def received_of(Session session not None) -> bytes:
    """The inbound QoS 2 identifiers that await their PUBREL, each in two bytes."""
    cdef bytes found = PyBytes_FromStringAndSize(NULL, 2 * session.received_count)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(found)
    cdef uint32_t n
    if session.received_count:
        for n in range(1, 65536):
            if session.has_received(<uint16_t>n):
                at = put_u16(at, <uint16_t>n)
    return found


# ---------------------------------------------------------------- in

cdef bint read_entry(Cursor* c, read_t* out) noexcept:
    """Reads the next entry. 0: the bytes are shorter than it says."""
    cdef uint64_t left
    cdef uint16_t topic_length
    cdef uint64_t rest
    memset(&out.body, 0, sizeof(body_t))
    if not (take_u64(c, &out.sequence) and take_u16(c, &out.packet_id) and take_u8(c, &out.state)
            and take_u8(c, &out.first) and take_u8(c, &out.qos) and take_u8(c, &out.ids_count) and take_u64(c, &left)
            and take_u16(c, &topic_length) and take_u32(c, &out.body.properties_length)
            and take_u32(c, &out.body.payload_length)):
        return 0
    out.left_ms = <int64_t>left
    out.body.topic_length = topic_length
    rest = 4 * <uint64_t>out.ids_count + topic_length + out.body.properties_length + out.body.payload_length
    if <uint64_t>(c.end - c.at) < rest:
        return 0
    out.ids = c.at
    out.body.topic = c.at + 4 * <size_t>out.ids_count
    out.body.properties = out.body.topic + topic_length
    out.body.payload = out.body.properties + out.body.properties_length
    c.at += rest
    return 1


cdef str entry_problem(const read_t* entry, uint64_t before):
    """What is wrong with an entry by itself, apart from its topic and properties; None: nothing."""
    cdef uint8_t qos = entry.first >> 1 & 3
    cdef uint8_t i
    if entry.sequence <= before or entry.sequence >> 63:
        return "is not behind the one in front of it"
    if entry.first >> 4 != PUBLISH or entry.first & 8 or qos not in (1, 2):
        return "does not begin like a PUBLISH of QoS 1 or 2"
    if entry.state > MOVED_RELEASED or (entry.state == MOVED_QUEUED) != (entry.packet_id == 0):
        return "has no such state"
    for i in range(entry.ids_count):
        if not 0 < peek_u32(entry.ids + 4 * i) <= VARINT_MAX and not (
                i + 1 == entry.ids_count and peek_u32(entry.ids + 4 * i) >= <uint32_t>GROUP_MARK):
            return "has a subscription identifier that there is not"
    if entry.state == MOVED_RELEASED:
        if qos != 2 or entry.qos or entry.ids_count or body_bytes(&entry.body) or entry.left_ms != -1:
            return "has a message although it was released"
    elif not qos <= entry.qos <= 2:
        return "has a higher QoS than its message"
    elif not -1 <= entry.left_ms < <int64_t>1 << 56:
        return "expires at no time"
    return None


cdef inline bint same(const uint8_t* a, uint32_t a_length, const uint8_t* b, uint32_t b_length) noexcept nogil:
    return a_length == b_length and b != NULL and memcmp(a, b, a_length) == 0


cdef int check_message(const body_t* body, const body_t* before) except -1:
    """Checks topic and properties as those of a client's PUBLISH; the same as in the message before are checked
    already."""
    if not same(body.topic, body.topic_length, before.topic, before.topic_length) and (
            topic_valid(body.topic, body.topic_length, 0) != TEXT_OK):
        raise ProtocolError(REASON_MALFORMED_PACKET, "a moved message has an invalid topic name")
    if body.properties_length and not same(body.properties, body.properties_length, before.properties,
                                           before.properties_length):
        check_forwarded(body.properties, body.properties_length)
    return 0


cdef int check_forwarded(const uint8_t* at, uint32_t length) except -1:
    cdef publish_props_t found
    cdef uint8_t* scratch = <uint8_t*>malloc(length + 1)
    if scratch == NULL:
        raise MemoryError()
    try:
        memset(&found, 0, sizeof(found))
        if scan_publish_props(at, at + length, &found, scratch) or found.forward_length != length:
            raise ProtocolError(REASON_MALFORMED_PACKET, "a moved message has properties that are not forwarded")
    finally:
        free(scratch)
    return 0


def check_properties(bytes properties not None):
    """Raises ProtocolError unless these are properties of a PUBLISH that are forwarded unchanged."""
    if properties:
        check_forwarded(<const uint8_t*>PyBytes_AS_STRING(properties), <uint32_t>len(properties))


cdef Cursor cursor_at(bytes part, Py_ssize_t begin) noexcept:
    cdef Cursor c
    c.at = <const uint8_t*>PyBytes_AS_STRING(part) + begin
    c.end = <const uint8_t*>PyBytes_AS_STRING(part) + len(part)
    return c


def check_entries(bytes part not None, Py_ssize_t begin, uint64_t after, bint line_only, Session session=None) -> tuple:
    """(number of entries, sequence of the last one) of a part from `begin` on. after: they must be behind this
    sequence; line_only: none may be in flight. session: whose packet identifiers may not be used again. Raises
    ProtocolError."""
    cdef Cursor c = cursor_at(part, begin)
    cdef read_t entry
    cdef body_t before
    cdef uint32_t count = 0
    cdef uint8_t[8192] used
    memset(&before, 0, sizeof(before))
    memset(used, 0, sizeof(used))
    while c.at != c.end:
        if not read_entry(&c, &entry):
            raise ProtocolError(REASON_MALFORMED_PACKET, "a part of a session is shorter than it says")
        problem = entry_problem(&entry, after)
        if problem is None and entry.packet_id:
            if line_only:
                problem = "is in flight, and came later"
            elif used[entry.packet_id >> 3] >> (entry.packet_id & 7) & 1 or (
                    session is not None and session.slot_find(entry.packet_id) != NULL):
                problem = "has the packet identifier of another"
            used[entry.packet_id >> 3] |= <uint8_t>(1 << (entry.packet_id & 7))
        if problem is not None:
            raise ProtocolError(REASON_PROTOCOL_ERROR, f"an entry of a moved session {problem}")
        if entry.state != MOVED_RELEASED:
            check_message(&entry.body, &before)
            before = entry.body
        after = entry.sequence
        count += 1
    return count, after


def without_entries(bytes part not None, Py_ssize_t begin, set sequences not None) -> bytes:
    """A part that was checked, without the entries that have these sequences."""
    cdef Cursor c = cursor_at(part, begin)
    cdef read_t entry
    cdef const uint8_t* at = c.at
    cdef list kept = [part[:begin]]
    while c.at != c.end and read_entry(&c, &entry):
        if entry.sequence not in sequences:
            kept.append(PyBytes_FromStringAndSize(<const char*>at, c.at - at))
        at = c.at
    return b"".join(kept)


cdef msg_t* message_of(read_t* entry, uint64_t number, int64_t now) except NULL:
    cdef msg_t* msg
    if entry.left_ms >= 0:
        entry.body.expires_at = max(now + entry.left_ms, <int64_t>1)
    if entry.body.payload_length >= BLOB_BYTES_MIN:
        entry.body.blob = blob_copy(entry.body.payload, entry.body.payload_length)
        entry.body.payload = entry.body.blob.data
    try:
        msg = msg_new(&entry.body, entry.qos)
    finally:
        blob_drop(entry.body.blob)
    msg.id = number
    return msg


cdef ids_t* ids_of(const read_t* entry) except? NULL:
    cdef uint32_t[255] items
    cdef uint8_t i
    for i in range(entry.ids_count):
        items[i] = peek_u32(entry.ids + 4 * i)
    return ids_new(items, entry.ids_count) if entry.ids_count else NULL


cdef int put_slot(Session session, msg_t* msg, ids_t* ids, uint16_t packet_id, uint8_t first, uint8_t state,
                  uint64_t sequence) except -1:
    """Puts what was in flight into a session without a connection, which takes its own references."""
    cdef slot_t* slot = session.restore_slot(packet_id)
    ids_hold(ids)
    slot.ids = ids
    slot.first = first
    slot.sequence = sequence
    slot.state = (SLOT_RELEASE_HELD if state == MOVED_RELEASED else SLOT_UNSENT if state == MOVED_UNSENT else
                  SLOT_WAITING)
    if msg != NULL:
        msg_hold(msg)
        session.put_message(slot, msg)
    return 0


def restore_entries(Session session not None, bytes part not None, Py_ssize_t begin, uint64_t first_message,
                    int64_t now):
    """Puts the entries of a part that was checked into a session that is arriving. first_message: number of the message
    of the first entry, the next has the following one; 0: none. now: steady clock when the part came."""
    cdef Cursor c = cursor_at(part, begin)
    cdef read_t entry
    cdef msg_t* msg
    cdef ids_t* ids
    while c.at != c.end and read_entry(&c, &entry):
        msg = NULL
        ids = ids_of(&entry)
        try:
            if entry.state != MOVED_RELEASED:
                msg = message_of(&entry, first_message, now)
            if entry.packet_id:
                put_slot(session, msg, ids, entry.packet_id, entry.first, entry.state, entry.sequence)
            else:
                session.push(msg, entry.first, ids, entry.sequence)
        finally:
            if msg != NULL:
                session.ledger.forget(msg)
            ids_drop(ids)
        session.sequence_last = entry.sequence
        first_message += first_message != 0
    session.dirty = 1


cdef int put_line(Session session, uint64_t place, entry_t* entries, uint32_t count) except -1:
    """Session.put_behind; drops the references if it fails, and frees the array."""
    cdef uint32_t i
    try:
        if count:
            session.put_behind(place, entries, count)
            count = 0
    finally:
        for i in range(count):
            session.ledger.forget(entries[i].msg)
            ids_drop(entries[i].ids)
        free(entries)
    return 0


def insert_entries(Session session not None, bytes part not None, Py_ssize_t begin, uint64_t first_message, int64_t now,
                   uint64_t after, uint64_t place) -> int:
    """Puts the entries of a part that was checked behind those of the line that have sequences up to `place`, in front
    of what this node has received for the session. after: those with this sequence or a lower one had come before.
    Returns the new place. first_message, now: see restore_entries."""
    cdef Cursor c = cursor_at(part, begin)
    cdef Cursor walk = c
    cdef read_t entry
    cdef entry_t* entries
    cdef uint32_t room = 0
    cdef uint32_t count = 0
    while walk.at != walk.end and read_entry(&walk, &entry):
        room += entry.sequence > after
    if room == 0:
        return place
    entries = <entry_t*>malloc(room * sizeof(entry_t))
    if entries == NULL:
        raise MemoryError()
    try:
        while c.at != c.end and read_entry(&c, &entry):
            if entry.sequence > after:
                entries[count].ids = ids_of(&entry)
                entries[count].msg = NULL
                count += 1
                entries[count - 1].msg = message_of(&entry, first_message, now)
                entries[count - 1].first = entry.first
            first_message += first_message != 0
    except BaseException:
        while count:
            count -= 1
            if entries[count].msg != NULL:
                session.ledger.forget(entries[count].msg)
            ids_drop(entries[count].ids)
        free(entries)
        raise
    after = session.sequence_last + count
    put_line(session, place, entries, count)
    session.dirty = 1
    return after


def merge_sessions(Session source not None, Session target not None, uint64_t after, bint flights, uint64_t place,
                   bint ahead) -> int:
    """Puts the messages of one session into the line of another, except those with sequence `after` or a lower one:
    ahead of all that is there; or behind those that have sequences up to `place`. flights: it also gets the packet
    identifiers in both directions, because no client has connected to it; else what was in flight goes into the line,
    in front of the rest, and what was released is forgotten. Both keep their own references. Returns the place behind
    what has come from other nodes."""
    cdef Snapshot all = Snapshot(source)
    cdef entry_t* entries = <entry_t*>malloc(max(all.count, <size_t>1) * sizeof(entry_t))
    cdef uint32_t count = 0
    cdef uint32_t others = 0
    cdef size_t i
    cdef int line
    cdef moved_t* item
    if entries == NULL:
        raise MemoryError()
    for line in range(2):
        for i in range(all.count):
            item = &all.items[i]
            if item.sequence <= after or (item.packet_id == 0) != line:
                continue
            if item.packet_id and flights and target.slot_find(item.packet_id) == NULL:
                target.sequence_last += 1
                put_slot(target, item.msg, item.ids, item.packet_id, item.first, item.state, target.sequence_last)
            elif item.msg != NULL:
                msg_hold(item.msg)
                ids_hold(item.ids)
                entries[count] = entry_t(item.msg, item.ids, 0, item.first)
                if item.state == MOVED_SENT and (item.first >> 1 & 3) == 2:
                    entries[count].ids = without_mark(item.ids)
                count += 1
    if flights:
        for i in range(1, 65536):
            if source.has_received(fit_u16(i)):
                target.mark_received(fit_u16(i), True)
        target.packet_id_last = target.packet_id_kept = all.packet_id_last
    target.dropped += source.dropped
    target.dirty = 1
    while ahead and others < target.queued and (
            target.queue[(target.queue_head + others) & target.queue_mask].sequence <= place):
        others += 1                             # they get new sequences too
    after = target.sequence_last + count + others if count else place
    put_line(target, 0 if ahead else place, entries, count)
    return after


cdef ids_t* without_mark(ids_t* ids) except? NULL:
    """Drops a reference, and returns one to the identifiers alone: no other member of a share group may get a message
    of QoS 2 that may have reached the client [MQTT-4.8.2-5]."""
    cdef ids_t* shown = NULL
    if mark_of(ids) == 0:
        return ids
    if ids.shown:
        shown = ids_new(ids.items, ids.shown)
    ids_drop(ids)
    return shown


def sequence_of(Session session not None) -> int:
    """The sequence of the last message that has entered the session."""
    return session.sequence_last


def continue_behind(Session session not None, uint64_t sequence, uint16_t packet_id, uint64_t dropped):
    """Everything of an arriving session is there: its next sequence and packet identifier come behind these; dropped:
    how many messages it has lost so far."""
    session.sequence_last = max(session.sequence_last, sequence)
    session.packet_id_last = session.packet_id_kept = packet_id
    session.dropped = dropped
    session.dirty = 1


def resume(Session session not None):
    """Messages were put into the session's line: drops those for which it has no room, and sends what it may."""
    session.trim()
    session.pump()
