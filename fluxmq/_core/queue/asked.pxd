"""What a publisher asks of a queue, in the user properties of its PUBLISH or the headers of its content.

    partition-key       messages of one key are in one partition, in order
    priority            0 to 255; of a queue with fewer levels the highest is the most. AMQP: the property
    expiration          AMQP: milliseconds that it may be in the queue. MQTT has Message Expiry Interval
    x-delay             milliseconds; not before that
    not-before          the same as a point in time, milliseconds since the epoch
    producer-id, producer-sequence      a pair is appended once, however often it is published

An MQTT client that asks for what makes no sense is refused; of AMQP, where others give headers their meaning, such a
header is one like any other.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.message cimport body_t
from fluxmq._core.memory.node cimport node_t

cdef struct asked_t:
    const uint8_t* key          # partition-key; NULL: none
    const uint8_t* producer     # producer-id; NULL: none
    uint64_t sequence           # producer-sequence
    int64_t not_before          # x-delay, not-before: steady clock, ms; 0: at once
    uint32_t key_length
    uint32_t producer_length
    int64_t lifetime_ms         # AMQP's expiration, if has_lifetime: from when it is in the queue
    uint8_t has_lifetime
    uint8_t priority            # 0 … 255
    uint8_t has_sequence
    uint8_t forced              # it must be kept: no limit refuses it

# Borrowed from the body, of either format. 0, or the MQTT 5 reason code to refuse it with. A point in time that
# somebody names is one of the wall clock as it is now: from here on it is a delay like others.
cdef int read_asked(const body_t* body, const node_t* node, asked_t* asked) noexcept nogil
