"""amq.topic of a virtual host is the space of MQTT topics of that namespace: what is published to it by AMQP 0-9-1 goes
to MQTT too.

The other way is Targets.bind_queue: what MQTT clients publish reaches the queues bound to amq.topic, in the form of
MQTT; `to_amqp` of bridge/translate is for whoever hands it to an AMQP consumer.
"""
from libc.stdint cimport uint8_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.memory.namespace cimport Namespace

# amqp: FORMAT_AMQP091, published to amq.topic or come there by bindings between exchanges. taken: queues that have got
# it already, by other exchanges or by amq.topic itself, and do not get it again; or None. refused[0]: 0, or the MQTT 5
# reason code with which a queue refused it.
#
# Queues bound to amq.topic and those that capture its topic keep `amqp`; sessions get the translation, which is made
# only if there are any. It is retained when the header x-mqtt-retain is true. No MQTT client hears of a routing key
# that is no topic, or begins with `$`: these topics are the broker's own.
#
# Returns how many subscriptions and queues it matched.
cdef int hub_publish_amqp(Hub hub, Namespace namespace, const body_t* amqp, list taken,
                          uint8_t* refused) except -1
