# cython: language_level=3
"""Translates messages of AMQP 0-9-1 to MQTT 5. bridge/translate.pxd has the rules."""
from libc.stdint cimport int64_t, uint8_t

from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.memory.message cimport body_t

cdef struct mqtt_hints_t:
    int64_t lifetime_ms         # expiration; -1: none, or not a number
    uint8_t qos                 # see to_mqtt
    uint8_t retain

# format of `amqp`: FORMAT_AMQP091. topic_length of `mqtt` is 0 if no topic is possible: the routing key is empty, not
# UTF-8, or contains a wildcard. qos: 1 for persistent messages, else 0. retain: from the header x-mqtt-retain.
cdef int to_mqtt(const body_t* amqp, room_t* room, body_t* mqtt, uint8_t* qos, bint* retain) except -1
# The MQTT properties of a message from AMQP, without the message.
cdef void read_mqtt_hints(const body_t* amqp, mqtt_hints_t* hints) noexcept nogil
