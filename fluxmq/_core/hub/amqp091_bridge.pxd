"""The exchange amq.topic of a virtual host shares its topics with MQTT: AMQP 0-9-1 publishes to it reach MQTT clients
of the namespace too.

In the other direction, Targets.bind_queue appends MQTT publishes to the queues bound to amq.topic, in MQTT format;
`to_amqp` (bridge/translate) translates them on delivery to an AMQP consumer.
"""
from libc.stdint cimport uint8_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.memory.namespace cimport Namespace

# amqp: FORMAT_AMQP091, published to amq.topic or routed there by bindings between exchanges. taken: queues that have
# the message already, through other exchanges or amq.topic itself, and do not get it again; or None. refused[0]: 0, or
# the MQTT 5 reason code with which a queue refused it.
#
# Queues bound to amq.topic and queues that capture its topic keep `amqp`; sessions get the translation, which is made
# only if a session matches. The message is retained if the header x-mqtt-retain is true. A routing key that is not a
# valid topic, or begins with `$` (reserved for the broker), is not published to MQTT clients.
#
# Returns how many subscriptions and queues it matched.
cdef int hub_publish_amqp(Hub hub, Namespace namespace, const body_t* amqp, list taken,
                          uint8_t* refused) except -1
# Appends the queues to which hub_publish_amqp would give the message.
cdef int hub_queues_of_amqp(Namespace namespace, const body_t* amqp, list queues) except -1
