# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Publishes of AMQP 0-9-1 to the topics of MQTT. See hub/amqp091_bridge.pxd."""
cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memset

from fluxmq._core.amqp091.names cimport HEADERS, props_read, props_t
from fluxmq._core.amqp091.topics cimport TOPIC_BYTES_MAX
from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.bridge.translate cimport mqtt_hints_t, read_mqtt_hints, to_amqp, to_mqtt, topic_of
from fluxmq._core.exchange.exchange cimport Exchanges, Route
from fluxmq._core.hub.targets cimport ExchangeHop
from fluxmq._core.memory.message cimport FORMAT_AMQP091, FORMAT_MQTT, body_borrow, pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.pubsub.routes cimport HOP_EXCHANGE, HOP_QUEUE, route_t
from fluxmq._core.pubsub.topics cimport Topics, topics_of
from fluxmq._core.queue.queue cimport Queue

from fluxmq._core.amqp091.topics import address_of

__all__ = ["AmqTopicHop", "publish_amqp"]

cdef room_t room                # of the translation, for one publish
cdef room_t way_back            # the same, of an MQTT client's


cdef int hub_publish_amqp(Hub hub, Namespace namespace, const body_t* amqp, list taken,
                          uint8_t* refused) except -1:
    cdef uint8_t[TOPIC_BYTES_MAX] topic
    cdef uint32_t length = topic_of(amqp.topic, amqp.topic_length, topic)
    cdef bint retain = 0
    cdef mqtt_hints_t hints
    cdef body_t timed
    cdef Queue queue
    cdef route_t* route
    cdef pub_t pub
    cdef int matched
    refused[0] = 0
    if length == 0 or topic[0] == 36:
        return 0
    route = (<Topics>topics_of(namespace)).routes.find(topic, length)
    memset(&pub, 0, sizeof(pub))
    pub.topics = topics_of(namespace)
    read_mqtt_hints(amqp, &hints)
    pub.qos = hints.qos
    retain = hints.retain
    if route.count == 0 and not retain:
        return 0
    if not retain and route.kinds & ~(1 << HOP_QUEUE | 1 << HOP_EXCHANGE) == 0:
        pub.body = amqp[0]
        pub.body.format = FORMAT_MQTT
        pub.body.topic = topic
        pub.body.topic_length = length
        pub.body.properties_length = 0
    else:
        timed = amqp[0]
        if timed.expires_at == 0 and hints.lifetime_ms >= 0:
            timed.expires_at = hub.node.steady_ms + max(hints.lifetime_ms, 1)
        to_mqtt(&timed, &room, &pub.body, &pub.qos, &retain)
        pub.retain = retain
    pub.amqp = amqp
    if taken:
        pub.passing = hub.next_passing()
        for queue in taken:
            queue.passed = pub.passing
    matched = hub.publish(&pub, route)
    refused[0] = pub.refused
    return matched


cdef int hub_queues_of_amqp(Namespace namespace, const body_t* amqp, list queues) except -1:
    cdef uint8_t[TOPIC_BYTES_MAX] topic
    cdef uint32_t length = topic_of(amqp.topic, amqp.topic_length, topic)
    cdef route_t* route
    cdef uint32_t at
    if length == 0 or topic[0] == 36:
        return 0
    route = (<Topics>topics_of(namespace)).routes.find(topic, length)
    for at in range(route.count):
        if route.hops[at].kind == HOP_QUEUE:
            queues.append(<Queue>route.hops[at].target)
    return 0


@cython.final
cdef class AmqTopicHop(ExchangeHop):
    """Machine. Forwards MQTT publishes to the exchanges bound to amq.topic, and on to their queues.

    exchanges: of the same namespace. Queues keep the message in MQTT format.
    """
    cdef Hub hub
    cdef Exchanges exchanges

    def __init__(self, Hub hub not None, Exchanges exchanges not None, Namespace namespace not None):
        self.hub = hub
        self.namespace = namespace
        self.exchanges = exchanges

    cdef int forward(self, pub_t* pub) except -1:
        cdef body_t amqp
        cdef props_t props
        cdef Route route
        cdef Queue queue
        cdef uint32_t n
        if pub.amqp != NULL:
            return 0                    # published by AMQP: the exchanges have routed it already
        to_amqp(&pub.body, pub.qos, self.hub.node.steady_ms, &way_back, &amqp)
        props_read(amqp.properties, amqp.properties_length, &props)
        n = amqp.topic[0]
        route = self.exchanges.find(amqp.topic + 1, n, amqp.topic + 1 + n, amqp.topic_length - 1 - n,
                                    props.of[HEADERS].at, props.of[HEADERS].n)
        if route is None:
            return 0
        for queue in route.queues:
            if queue.passed != pub.passing and not self.hub.has_had(pub, queue):
                queue.passed = pub.passing
                queue.put(&pub.body, pub.qos, pub)  # a refusal is counted, but not reported to the publisher
        return 0


def publish_amqp(Hub hub not None, bytes exchange not None, bytes routing_key not None, bytes payload not None,
                 bytes properties=b"", int64_t expires_at=0, list taken=None,
                 Namespace namespace=None) -> tuple[int, int]:
    """hub_publish_amqp for the cold half. Returns (number of matches, reason code of a refusal or 0).

    properties: from the content header, with flags. expires_at: steady clock, ms; 0 = never. namespace: None is "/".
    """
    cdef bytes address = address_of(exchange, routing_key)
    cdef uint8_t refused = 0
    cdef body_t body
    body_borrow(&body, address, properties, payload, expires_at, FORMAT_AMQP091)
    matched = hub_publish_amqp(hub, hub.root if namespace is None else namespace, &body, taken, &refused)
    hub.wake_up()
    return matched, refused
