# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""For tests: a hop to another node that only notes what it was to forward, and does in between what a test asks for."""
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.message cimport pub_t
from fluxmq._core.pubsub.session cimport Session

__all__ = ["PeerProbe"]


cdef class PeerProbe(PeerHop):
    """Machine. line: where it gives what it took of QoS 1 and 2; None: nowhere.

    forwarded: of each message (topic, payload, qos, retain, properties, expires_at, the publisher's client identifier
    or None, whether it was published by AMQP). then: called for each, with the topic, after it was noted.
    """
    cdef readonly Hub hub
    cdef readonly Line line
    cdef readonly list forwarded
    cdef public object then

    def __init__(self, Hub hub not None, Line line=None):
        self.hub = hub
        self.line = line
        self.forwarded = []

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
