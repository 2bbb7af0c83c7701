# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""For benchmarks and tests: a Hub whose subscribers' links lead nowhere, published to from a loop in C."""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.link cimport chunk_t, link_drop, link_new, link_sent, link_t
from fluxmq._core.memory.message cimport pub_t
from fluxmq._core.pubsub.routes cimport route_t
from fluxmq._core.pubsub.session cimport Session
from fluxmq._core.pubsub.topics cimport Topics, topics_of


@cython.final
cdef class HubProbe:
    """Machine. `sessions` connected sessions of one protocol level, none subscribed yet."""

    cdef readonly Hub hub
    cdef readonly list sessions

    def __init__(self, int sessions, int level=4, uint32_t route_entries=65536):
        cdef Session session
        cdef link_t* link
        cdef int i
        self.hub = Hub(None, route_entries, 1)
        self.sessions = []
        for i in range(sessions):
            session = self.hub.new_session(b"s%d" % i, 0)
            link = link_new(self.hub.node, -1)
            link.version = <uint8_t>level
            session.attach(link, 65535)
            link_drop(link)             # the session holds it
            self.sessions.append(session)

    def subscribe(self, int session, bytes filter, int options=0, uint32_t identifier=0) -> bool:
        return self.hub.subscribe(self.sessions[session], filter, options, identifier)

    def route(self, list topics, int rounds) -> int:
        """Looks every topic up `rounds` times; returns how many hops were found in all."""
        cdef Topics root = <Topics>topics_of(self.hub.root)
        cdef bytes topic
        cdef uint64_t found = 0
        cdef int i
        for i in range(rounds):
            for topic in topics:
                found += root.routes.find(<const uint8_t*><const char*>topic, len(topic)).count
        return found

    def publish(self, bytes topic not None, bytes payload not None, int qos, int rounds) -> int:
        """Publishes `rounds` times and throws away what the links were given; QoS 1 is acknowledged at once. Returns
        the bytes that would have been sent."""
        cdef pub_t pub
        cdef route_t* route
        cdef uint64_t sent = 0
        cdef int i
        for i in range(rounds):
            memset(&pub, 0, sizeof(pub))
            pub.body.topic = <const uint8_t*><const char*>topic
            pub.body.topic_length = <uint32_t>len(topic)
            pub.body.payload = <const uint8_t*><const char*>payload
            pub.body.payload_length = <uint32_t>len(payload)
            pub.qos = <uint8_t>qos
            pub.topics = topics_of(self.hub.root)
            route = (<Topics>pub.topics).routes.find(pub.body.topic, pub.body.topic_length)
            self.hub.publish(&pub, route)
            if i & 31 == 31 or i == rounds - 1:
                sent += self.drain(qos)
        return sent

    # ---------------------------------------------------------------- what a poller and a client would do

    def attach(self, int session, int level=4, int window=65535):
        """The client has come back."""
        cdef link_t* link = link_new(self.hub.node, -1)
        link.version = <uint8_t>level
        (<Session>self.sessions[session]).attach(link, <uint32_t>window)
        link_drop(link)

    def detach(self, int session):
        """The client has gone, and its link with what was in there."""
        (<Session>self.sessions[session]).detach()

    def replay(self) -> int:
        """The part of a round that sends what is retained; returns how many sessions had a slice."""
        return self.hub.replay_retained()

    def pending(self, int session) -> int:
        """Bytes that wait in its link."""
        cdef Session found = self.sessions[session]
        return found.link.pending if found.link != NULL else 0

    def take(self, int session) -> bytes:
        """The client reads all that waits in its link."""
        cdef Session found = self.sessions[session]
        cdef chunk_t* chunk
        cdef bytes data = b""
        if found.link == NULL:
            return data
        chunk = found.link.head
        while chunk != NULL:
            data += (<const char*>chunk.data)[chunk.start:chunk.end]
            chunk = chunk.next
        link_sent(found.link, found.link.pending)
        found.pump()                    # as Connection.drained does
        if found.replay is not None:
            found.replay.on_room(found)
        return data

    def puback(self, int session, int packet_id):
        (<Session>self.sessions[session]).on_puback(<uint16_t>packet_id, 0)

    cdef uint64_t drain(self, int qos) except? 0xFFFFFFFF:
        cdef link_t* link
        cdef Session session
        cdef uint64_t sent = 0
        while self.hub.node.dirty != NULL:
            link = <link_t*>self.hub.node.dirty
            self.hub.node.dirty = <void*>link.next_dirty
            link.dirty = 0
            sent += link.pending
            link_sent(link, link.pending)
            link_drop(link)
        if qos == 1:
            for session in self.sessions:
                while session.slots_used:
                    session.on_puback(session.packet_id_last - <uint32_t>session.slots_used + 1, 0)
        return sent
