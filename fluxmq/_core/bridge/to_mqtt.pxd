# cython: language_level=3
"""Translates messages of AMQP 0-9-1 to MQTT 5. bridge/translate.pxd has the rules."""
from libc.stdint cimport int64_t, uint8_t

from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.memory.message cimport body_t

cdef struct mqtt_hints_t:
    int64_t lifetime_ms         # expiration; -1: none, or no number
    uint8_t qos                 # as of to_mqtt
    uint8_t retain

# format of `amqp`: FORMAT_AMQP091. topic_length of `mqtt` is 0 where no topic can be: the routing key is empty, not
# UTF-8, or has a wildcard in it. qos: 1 of what is persistent, else 0. retain: the header x-mqtt-retain says so.
cdef int to_mqtt(const body_t* amqp, room_t* room, body_t* mqtt, uint8_t* qos, bint* retain) except -1
# What a message of AMQP says for MQTT, without the message.
cdef void read_mqtt_hints(const body_t* amqp, mqtt_hints_t* hints) noexcept nogil
