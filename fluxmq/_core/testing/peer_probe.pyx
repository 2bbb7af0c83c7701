# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""For tests: a hop to another node that only notes what it was to forward, and does in between what a test asks for;
what waits in a session; messages given to an outbox, and packets to a connection, from a loop in C."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.link cimport link_sent
from fluxmq._core.memory.message cimport pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.net.connection cimport Connection
from fluxmq._core.peer.outbox cimport PeerOutbox
from fluxmq._core.pubsub.session cimport Session, entry_t
from fluxmq._core.pubsub.topics cimport topics_of

__all__ = ["PeerProbe", "forward_many", "open_connection", "parse_many", "queued", "release_all"]


def queued(Session session not None) -> list:
    """[(topic, payload, QoS, properties, expires_at)] of what waits in a session."""
    cdef entry_t* entry
    cdef uint32_t i
    found = []
    for i in range(session.queued):
        entry = &session.queue[(session.queue_head + i) & session.queue_mask]
        found.append((
            (<const char*>entry.msg.body.topic)[:entry.msg.body.topic_length],
            (<const char*>entry.msg.body.payload)[:entry.msg.body.payload_length], entry.first >> 1 & 3,
            (<const char*>entry.msg.body.properties)[:entry.msg.body.properties_length], entry.msg.body.expires_at))
    return found


def forward_many(PeerOutbox outbox not None, bytes topic not None, bytes payload not None, int qos, uint32_t times,
                 bytes group=None, bytes filter=None, Namespace namespace=None, int64_t expires_at=0):
    """Gives the outbox a message so many times; for a share group if that is named."""
    cdef pub_t pub
    cdef uint32_t i
    memset(&pub, 0, sizeof(pub))
    pub.body.topic = <const uint8_t*><const char*>topic
    pub.body.topic_length = <uint32_t>len(topic)
    pub.body.payload = <const uint8_t*><const char*>payload
    pub.body.payload_length = <uint32_t>len(payload)
    pub.body.expires_at = expires_at
    pub.topics = topics_of(outbox.hub.root if namespace is None else namespace)
    pub.qos = <uint8_t>qos
    for i in range(times):
        if group is None:
            outbox.forward(&pub)
        else:
            outbox.forward_group(&pub, group, filter)
    outbox.hub.touch()


class NoHandler:
    """Of a connection that gets nothing but publishes."""

    def on_end(self, connection):
        pass


def release_all(Hub hub not None, uint64_t name, uint16_t first, uint16_t last):
    """As if RELEASE had come of these packet identifiers of a publisher, each of any use."""
    cdef uint32_t packet_id
    for packet_id in range(first, <uint32_t>last + 1):
        hub.origins.end(name, <uint16_t>packet_id, 0)       # fits: below last


def open_connection(Hub hub not None, int fd) -> Connection:
    """A connection of MQTT 3.1.1 that is open, over a connected socket, which it owns; no poller reads it."""
    cdef Connection connection = Connection(hub, fd, -1, NoHandler())
    connection.set_version(4)
    connection.accept(hub.new_session(b"publisher", 0), 100, 0xFFFFFFFF, 0)
    return connection


def parse_many(Connection connection not None, bytes data not None, uint32_t times, Session reader=None):
    """The connection parses these whole packets so many times, as after a read; `reader` sends what it gets, and the
    connection its answers, after each."""
    cdef uint32_t i
    for i in range(times):
        connection.work_end = <uint64_t>-1
        connection.parse(<uint8_t*><const char*>data, <size_t>len(data))
        if reader is not None:
            link_sent(reader.link, reader.link.pending)
        link_sent(connection.link, connection.link.pending)


cdef class PeerProbe(PeerHop):
    """Machine. line: where it gives what it took of QoS 1 and 2; None: nowhere.

    forwarded: of each message (topic, payload, qos, retain, properties, expires_at, the publisher's client identifier
    or None, whether it was published by AMQP). grouped: of each for a share group (group, filter, payload, qos). then:
    called for each, with the topic, after it was noted.
    """
    cdef readonly Hub hub
    cdef readonly Line line
    cdef readonly list forwarded
    cdef readonly list grouped
    cdef public object then

    def __init__(self, Hub hub not None, Line line=None):
        self.hub = hub
        self.line = line
        self.forwarded = []
        self.grouped = []

    cdef int forward_group(self, pub_t* pub, bytes group, bytes filter) except -1:
        self.grouped.append((group, filter, (<const char*>pub.body.payload)[:pub.body.payload_length], pub.qos))
        return 0

    cdef int forward(self, pub_t* pub) except -1:
        cdef bytes topic = (<const char*>pub.body.topic)[:pub.body.topic_length]
        self.forwarded.append((
            topic, (<const char*>pub.body.payload)[:pub.body.payload_length], pub.qos, bool(pub.retain),
            (<const char*>pub.body.properties)[:pub.body.properties_length], pub.body.expires_at,
            (<Session>pub.source).name if pub.source != NULL else None, pub.amqp != NULL))
        if self.line is not None and pub.qos:
            self.hub.commits.give(self.line)
        if self.then is not None:
            self.then(topic)
        return 0
