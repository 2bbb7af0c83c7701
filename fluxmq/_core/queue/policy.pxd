"""How a queue treats limits and expiry. The declaration sets the policy, because protocols
define these rules differently.

                     POLICY_NATIVE (0)                              POLICY_AMQP091 (1), as RabbitMQ
    limits_ready     length limits count what is kept; drop-head    they count what is ready; drop-head drops at the end
                     makes room before the append                   of a pump
    ttl_from_ready   the time to live begins with the publish       it begins when a delay is over
    drops_heads      an expired message dies when a consumer        it dies at the end of the pump in which it is the
                     comes across it                                head
    grants_instant   a message is dead from the instant in which    one of the same instant may still be delivered: a
                     it expires                                     time to live of 0

A returned message goes back to its place in the order under both.
"""
from libc.stdint cimport uint8_t

cdef enum:
    POLICY_NATIVE = 0
    POLICY_AMQP091 = 1

# Stored in queues and groups by value: the hot path tests a byte of an object that it uses anyway.
cdef struct queue_policy_t:
    uint8_t limits_ready
    uint8_t ttl_from_ready
    uint8_t drops_heads
    uint8_t grants_instant


cdef inline queue_policy_t policy_of(int number) noexcept nogil:
    cdef queue_policy_t policy
    cdef uint8_t amqp = number == POLICY_AMQP091
    policy.limits_ready = policy.ttl_from_ready = policy.drops_heads = policy.grants_instant = amqp
    return policy
