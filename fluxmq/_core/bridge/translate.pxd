# cython: language_level=3
"""A message of MQTT as one of AMQP 0-9-1, and back: address and properties. The payload is the same bytes.

docs/interop.md has the table; what is behind it:

    an address      exchange and routing key on one side, a topic on the other. Of amq.topic `.` and `/` change places;
                    `$queue/<name>` is the default exchange's key <name>
    a property      that both have goes over; what only one side has becomes a user property (`amqp-…`) or a header
                    (`x-mqtt-…`) of the other, and is on its return what it was
    a header        is a user property of that name. What is no string is followed by the user property
                    `amqp-is:<name>`, a code of amqp091/values
    not to be said  in this way, or with a name that means something here: `amqp-header64`, the entry in base64; longer
                    ones in pieces, all but the last of them called `amqp-header64+`
    user properties that headers cannot hold as they are (a name twice, a name that means something here): the header
                    x-mqtt-user-properties has all of them besides, an array: name, value, name, value
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t

from fluxmq._core.amqp091.topics cimport topic_of
from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.bridge.to_mqtt cimport mqtt_hints_t, read_mqtt_hints, to_mqtt
from fluxmq._core.memory.message cimport body_t

# to_mqtt is cimported from here too. Both leave the payload, its blob and expires_at unchanged; topic and properties
# are in the room until it is written again, and all input bytes are borrowed until then.

# format of `mqtt`: FORMAT_MQTT. qos: 1 and 2 are persistent. now_ms: `expiration` is the time from it to expires_at.
cdef int to_amqp(const body_t* mqtt, uint8_t qos, int64_t now_ms, room_t* room, body_t* amqp) except -1

