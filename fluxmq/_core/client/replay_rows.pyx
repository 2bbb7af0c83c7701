# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Events of a replay as columns: a row for each publish, delivery and session operation.

A row is open until its operation is acknowledged; a chunk of rows can be taken when it is full and none of its rows is
open. A row's number is (chunk << CHUNK_BITS) | place.

The first bytes of a replayed payload identify the publish, so that a delivery can be matched with it (big-endian):

    0    run         u32
    4    publisher   u32
    8    op          u64
    16   the recorded payload from its 17th byte, or a pattern of the recorded size

Time is an argument: a callable that gives ns since 1970.
"""
from array import array
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fluxmq._core.client.message cimport Message
from fluxmq._core.errors import NotConnected
from fluxmq._core.wire.primitives cimport peek_u32, put_u32, put_u64
from fluxmq._core.wire.queue_address cimport PREFIX, QUEUE_PREFIX_BYTES
from fluxmq._core.wire.sizes cimport fit_u32

cdef enum:
    CHUNK_BITS = 14
    CHUNK_ROWS = 1 << CHUNK_BITS
    CHUNK_MASK = CHUNK_ROWS - 1
    TRACE = 16
    PING_EVERY = 256            # QoS 0 publishes of a connection between two PINGREQs

cdef int64_t NONE = -0x7FFFFFFFFFFFFFFF - 1
NO_VALUE = NONE
TRACE_BYTES = TRACE

cdef enum:                      # as in fluxmq.spark.result.EVENTS
    PUBLISH = 0
    DELIVERY = 1

cdef bytes QUEUE_PREFIX = PREFIX

cdef bytes PATTERN = bytes(range(32, 127)) * 700        # printable, so that traffic dumps are readable

cdef tuple INT64 = ("client_number", "op", "size", "publisher", "publisher_op", "due", "sent", "acked")
cdef tuple INT32 = ("event", "client", "connection", "topic", "reason")
cdef tuple INT8 = ("qos", "retain", "dup")


@cython.final
cdef class Chunk:
    """At most CHUNK_ROWS rows, as C arrays. columns: by name. details: by place. rows: number of used ones. NO_VALUE,
    or -1 in `topic` and `qos`, means null."""
    cdef readonly dict columns, details
    cdef readonly int rows
    cdef int unfinished
    cdef int64_t[::1] client_number, op, size, publisher, publisher_op, due, sent, acked
    cdef int32_t[::1] event, client, connection, topic, reason
    cdef int8_t[::1] qos, retain, dup

    def __cinit__(self):
        self.columns = {name: array("q", bytes(8 * CHUNK_ROWS)) for name in INT64}
        self.columns.update((name, array("i", bytes(4 * CHUNK_ROWS))) for name in INT32)
        self.columns.update((name, array("b", bytes(CHUNK_ROWS))) for name in INT8)
        self.details = {}
        self.client_number, self.op = self.columns["client_number"], self.columns["op"]
        self.size, self.publisher = self.columns["size"], self.columns["publisher"]
        self.publisher_op, self.due = self.columns["publisher_op"], self.columns["due"]
        self.sent, self.acked = self.columns["sent"], self.columns["acked"]
        self.event, self.client = self.columns["event"], self.columns["client"]
        self.connection, self.topic = self.columns["connection"], self.columns["topic"]
        self.reason = self.columns["reason"]
        self.qos, self.retain, self.dup = self.columns["qos"], self.columns["retain"], self.columns["dup"]


@cython.final
cdef class ReplayRows:
    """All rows of one player. run: identifies the run in payloads. unfinished: rows that are not acknowledged."""
    cdef readonly uint32_t run
    cdef readonly int64_t unfinished, deliveries, publishes, late_max
    cdef readonly list clients, topics          # values by the numbers in the columns `client` and `topic`
    cdef dict topic_numbers, chunks
    cdef list finished, busy, listening
    cdef object clock
    cdef Chunk last
    cdef int64_t last_number

    def __init__(self, uint32_t run, clock):
        self.run = run
        self.clock = clock
        self.clients, self.topics, self.finished, self.busy, self.listening = [], [], [], [], []
        self.topic_numbers, self.chunks = {}, {}
        self.last_number = -1
        self.late_max = 0
        self.turn_over()

    cdef void turn_over(self):
        self.last = Chunk()
        self.last_number += 1
        self.chunks[self.last_number] = self.last

    cdef int32_t topic_number(self, bytes topic):
        known = self.topic_numbers.get(topic)
        if known is not None:
            return known
        cdef int32_t number = len(self.topics)
        self.topic_numbers[topic] = number
        self.topics.append(topic)
        return number

    cdef int64_t add(self, int event, Lane lane, int64_t op, bytes topic, bint unfinished):
        """Adds a row to the last chunk. Returns its number, whose low bits are its place; the caller sets the rest."""
        if self.last.rows == CHUNK_ROWS:
            full = self.last_number
            self.turn_over()
            self.settle(full)
        cdef Chunk chunk = self.last
        cdef int at = chunk.rows
        chunk.rows += 1
        chunk.event[at] = event
        chunk.client[at] = lane.client.index
        chunk.client_number[at] = lane.client.number
        chunk.connection[at] = lane.number
        chunk.op[at] = op
        chunk.topic[at] = -1 if topic is None else self.topic_number(topic)
        chunk.publisher[at] = chunk.publisher_op[at] = chunk.due[at] = chunk.acked[at] = NONE
        if unfinished:
            chunk.unfinished += 1
            self.unfinished += 1
        return self.last_number << CHUNK_BITS | at

    cdef void finish(self, int64_t row, int64_t acked, int reason):
        """acked: NONE: it never will be."""
        cdef Chunk chunk = self.chunks[row >> CHUNK_BITS]
        cdef int at = row & CHUNK_MASK
        chunk.acked[at], chunk.reason[at] = acked, reason
        chunk.unfinished -= 1
        self.unfinished -= 1
        if chunk.unfinished == 0 and chunk.rows == CHUNK_ROWS:
            self.settle(row >> CHUNK_BITS)

    cdef void settle(self, int64_t number):
        cdef Chunk chunk = self.chunks[number]
        if chunk.unfinished == 0 and chunk is not self.last:
            self.finished.append(self.chunks.pop(number))

    def take(self, bint everything=False):
        """Removes and returns chunks whose rows are final. everything: at the end, also the others, with their open
        rows unacknowledged."""
        if everything:
            self.finished.extend(self.chunks.values())
            self.chunks.clear()
            self.unfinished = 0
            self.turn_over()
        taken, self.finished = self.finished, []
        return [chunk for chunk in taken if chunk.rows]

    def prove(self):
        """Sends PINGREQ on each lane with unproven QoS 0 publishes. Returns the lanes with open rows."""
        self.busy = [lane for lane in self.busy if (<Lane>lane).still_busy()]
        for lane in self.busy:
            (<Lane>lane).ping()
        return list(self.busy)

    def take_delivered(self):
        """Lanes that got deliveries since the last call."""
        for lane in self.listening:
            (<Lane>lane).delivered = False
        found, self.listening = self.listening, []
        return found

    def record(self, int event, Lane lane, int64_t op, bytes topic, int64_t sent, *, int64_t due=NONE, int qos=-1,
               bint retain=False, int64_t size=0, int reason=0, bint unfinished=False, str detail=None):
        """Adds a row of a session operation. Returns its number for `acknowledge`. topic: of a subscription, its
        filter."""
        row = self.add(event, lane, op, topic, unfinished)
        cdef Chunk chunk = self.last
        cdef int at = row & CHUNK_MASK
        chunk.qos[at], chunk.retain[at], chunk.dup[at] = qos, retain, False
        chunk.size[at], chunk.due[at], chunk.sent[at], chunk.reason[at] = size, due, sent, reason
        if detail is not None:
            chunk.details[at] = detail
        if due != NONE and sent - due > self.late_max:
            self.late_max = sent - due
        return row

    def acknowledge(self, int64_t row, acked, int reason=0, int qos=-1, str detail=None):
        """Ends a row that `record` left open. acked: None: it was not. qos -1, detail None: unchanged."""
        cdef Chunk chunk = self.chunks.get(row >> CHUNK_BITS)
        if chunk is None:
            return
        cdef int at = row & CHUNK_MASK
        if qos >= 0:
            chunk.qos[at] = qos
        if detail is not None:
            chunk.details[at] = detail
        self.finish(row, NONE if acked is None else <int64_t>acked, reason)


@cython.final
cdef class ReplayClient:
    """One replayed client: its number in payloads and rows, and counts over all of its connections."""
    cdef readonly int64_t number
    cdef readonly int32_t index
    cdef readonly str name
    cdef public int64_t next_op, arrived

    def __init__(self, ReplayRows rows, str name, uint32_t number):
        self.name = name
        self.number = number
        self.index = len(rows.clients)
        rows.clients.append(name)


@cython.final
cdef class QueueCredit:
    """Calculates from when on the broker could have delivered a message to a consumer of a queue: the consumer was
    subscribed and had settled enough messages. ready: time of its SUBACK. prefetch: maximum number of unsettled ones;
    0: any number. automatic: messages are settled on arrival. settled(now): one more message is settled."""
    cdef public int64_t ready, prefetch
    cdef public bint automatic
    cdef int64_t came
    cdef object instants            # of settlements not yet used by a delivery

    def __init__(self, int64_t ready, int64_t prefetch, bint automatic):
        self.ready, self.prefetch, self.automatic = ready, prefetch, automatic
        self.instants = deque()

    def settled(self, now):
        if self.prefetch:
            self.instants.append(now)

    cdef int64_t since(self, int64_t now):
        """When a delivery that arrived now could have arrived earliest."""
        cdef int64_t found = self.ready
        self.came += 1
        if self.prefetch:
            if self.came > self.prefetch and self.instants:
                found = max(found, <int64_t>self.instants.popleft())
            if self.automatic:
                self.instants.append(now)
        return found


@cython.final
cdef class Lane:
    """One network connection of a replayed client: publishes go through it and deliveries arrive.

    wake: called when something is acknowledged after `stalled` was set, which is then cleared. credits: the QueueCredit
    of each queue that it consumes, by name.
    """
    cdef readonly ReplayRows rows
    cdef readonly ReplayClient client
    cdef readonly int32_t number
    cdef readonly int64_t unfinished
    cdef public bint stalled
    cdef bint closed, listed, kept, delivered
    cdef object connection, publish_on, wake, on_done, on_ping, proves
    cdef dict pending               # packet identifier: row
    cdef list unproven              # rows of QoS 0 since the last PINGREQ
    cdef readonly dict credits
    cdef object trips               # lists of rows, one for each PINGREQ without PINGRESP

    def __init__(self, ReplayRows rows, ReplayClient client, int number, wake):
        self.rows, self.client, self.number, self.wake = rows, client, number, wake
        self.pending, self.unproven, self.trips = {}, [], []
        self.credits = {}
        self.on_done, self.on_ping = self.done, self.ping_done
        self.closed = True

    def attach(self, connection):
        """The connection is open. Its `prove()`, if it has one, replaces PINGREQ."""
        self.connection = connection
        self.proves = getattr(connection, "prove", None)
        self.publish_on = connection.publish
        self.closed = False

    def publish(self, bytes topic, int qos, bint retain, int64_t size, bytes recorded, bytes properties, int64_t due,
                str detail=None, int row_qos=-1):
        """Publishes. Returns False if it cannot be sent now: the window or the output buffer is full.

        recorded: the payload; None: only its size is known. properties: as on the wire, or None. due: ns since 1970,
        NO_VALUE: none. row_qos: the QoS in the row; -1: `qos`. Errors of the connection propagate; then nothing was
        sent and there is no row.
        """
        cdef ReplayRows rows = self.rows
        connection = self.connection
        if qos:
            if connection.window <= 0:
                self.stalled = True
                return False
        if not connection.writable:
            self.stalled = True
            return False
        cdef int64_t op = self.client.next_op
        self.client.next_op = op + 1        # counted even if the connection refuses it: the recording counts it too
        payload = self.traced(op, size, recorded)
        cdef int64_t now = rows.clock()
        if qos:
            packet_id = self.publish_on(topic, payload, qos, retain, properties, self.on_done)
        else:
            self.publish_on(topic, payload, 0, retain, properties)
        cdef int64_t row = rows.add(PUBLISH, self, op, topic, True)
        cdef Chunk chunk = rows.last
        cdef int at = row & CHUNK_MASK
        chunk.qos[at], chunk.retain[at], chunk.dup[at] = qos if row_qos < 0 else row_qos, retain, False
        chunk.size[at] = PyBytes_GET_SIZE(payload)
        chunk.due[at], chunk.sent[at], chunk.reason[at] = due, now, 0
        if detail is not None:
            chunk.details[at] = detail
        if due != NONE and now - due > rows.late_max:
            rows.late_max = now - due
        rows.publishes += 1
        self.unfinished += 1
        if not self.listed:
            self.listed = True
            rows.busy.append(self)
        if qos:
            self.pending[packet_id] = row
        else:
            self.unproven.append(row)
            if len(self.unproven) >= PING_EVERY:
                self.ping()
        return True

    cdef bint still_busy(self):
        self.listed = self.unfinished > 0
        return self.listed

    cpdef bytes traced(self, int64_t op, int64_t size, bytes recorded):
        """The payload of a publish. An empty one stays empty."""
        if recorded is not None:
            size = PyBytes_GET_SIZE(recorded)
        if size == 0:
            return b""
        if size < TRACE:
            size = TRACE
        cdef bytes payload = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(payload)
        put_u32(to, self.rows.run)
        put_u32(to + 4, fit_u32(self.client.number))
        put_u64(to + 8, <uint64_t>op)
        cdef int64_t at = TRACE, more
        if recorded is not None and size > TRACE:
            memcpy(to + TRACE, PyBytes_AS_STRING(recorded) + TRACE, size - TRACE)
        elif size > TRACE:
            while at < size:
                more = min(size - at, <int64_t>PyBytes_GET_SIZE(PATTERN))
                memcpy(to + at, PyBytes_AS_STRING(PATTERN), more)
                at += more
        return payload

    def done(self, packet_id, int reason):
        """Called at PUBACK or PUBCOMP."""
        row = self.pending.pop(packet_id, None)
        if row is None:
            return
        if self.kept:
            self.rows.unfinished += 1       # it was subtracted when the connection ended
        else:
            self.unfinished -= 1
        self.rows.finish(row, self.rows.clock() if reason >= 0 else NONE, reason)
        if self.stalled:
            self.stalled = False
            self.wake()

    def ping(self):
        """Sends PINGREQ if there are unproven QoS 0 publishes; its answer proves that the broker has read them."""
        if self.proves is not None and not self.closed:
            self.proves()
        elif self.unproven and not self.closed:
            try:
                self.connection.ping(self.on_ping)
            except NotConnected:
                return                      # close() will be called
            self.trips.append(self.unproven)
            self.unproven = []

    def echo(self, done):
        """Sends a PINGREQ. done(): called when the broker has read everything before it, and what it had to send has
        arrived. Returns False if there is no connection."""
        if self.closed:
            return False
        try:
            self.connection.ping(done)
        except NotConnected:
            return False
        return True

    def ping_done(self):
        """Called at PINGRESP."""
        if not self.trips:
            return
        cdef int64_t now = self.rows.clock()
        cdef list proven = self.trips.pop(0)
        for row in proven:
            self.rows.finish(row, now, 0)
        self.unfinished -= len(proven)
        if self.stalled:
            self.stalled = False
            self.wake()

    def take(self, Message message not None):
        """Adds a row for a delivery."""
        self.take_parts(message.topic, message.payload, message.qos, message.dup, message.retain)

    cpdef take_parts(self, bytes topic, bytes body, int qos, bint dup, bint retain=False, int64_t due=NONE):
        """Adds a row for a delivery of either protocol. due: when it could have arrived earliest, if known."""
        cdef ReplayRows rows = self.rows
        cdef int64_t op = self.client.arrived
        self.client.arrived = op + 1
        cdef int64_t now = rows.clock()
        cdef int at = rows.add(DELIVERY, self, op, topic, False) & CHUNK_MASK
        cdef Chunk chunk = rows.last
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        cdef uint8_t* payload = <uint8_t*>PyBytes_AS_STRING(body)
        chunk.qos[at], chunk.retain[at], chunk.dup[at] = qos, retain, dup
        chunk.size[at], chunk.sent[at], chunk.reason[at] = size, now, 0
        if size >= TRACE and peek_u32(payload) == rows.run:
            chunk.publisher[at] = peek_u32(payload + 4)
            chunk.publisher_op[at] = <int64_t>(<uint64_t>peek_u32(payload + 8) << 32 | peek_u32(payload + 12))
        if self.credits and topic.startswith(QUEUE_PREFIX):
            credit = self.credits.get(topic[QUEUE_PREFIX_BYTES:].partition(b"/")[0])
            if credit is not None:
                due = (<QueueCredit>credit).since(now)
        chunk.due[at] = due
        rows.deliveries += 1
        if not self.delivered:
            self.delivered = True
            rows.listening.append(self)

    def close(self, bint keep=False):
        """The connection has ended. keep: the session continues, so publishes may be acknowledged later. Other open
        rows are ended unacknowledged."""
        self.closed = True
        for proven in [*self.trips, self.unproven]:
            for row in proven:
                self.rows.finish(row, NONE, 0)
        if keep:
            self.rows.unfinished -= len(self.pending)
            self.kept = True
        else:
            for row in self.pending.values():
                self.rows.finish(row, NONE, 0)
            self.pending.clear()
        self.trips, self.unproven = [], []
        self.unfinished = 0
        self.connection = self.publish_on = self.proves = None
