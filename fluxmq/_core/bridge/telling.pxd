"""Properties of a publish that tell the broker something: expiration, user-id, reply-to, and the headers CC and BCC.

None of it is on the way of a message that has none of them.
"""
from fluxmq._core.amqp091.consts cimport PROPERTY_EXPIRATION, PROPERTY_REPLY_TO, PROPERTY_USER_ID
from fluxmq._core.amqp091.properties cimport amqp_properties_t
from fluxmq._core.memory.message cimport body_t

cdef enum:
    TELLING = PROPERTY_EXPIRATION | PROPERTY_USER_ID | PROPERTY_REPLY_TO

# Judges what `TELLING` names. user: who is connected, None: anybody. reply_to: where the channel's answers go, None:
# nobody waits for any. Returns properties to be taken instead, or None. Raises ProtocolError 406.
cdef bytes judge(const body_t* body, const amqp_properties_t* properties, bytes user, bytes reply_to)
# Whether the headers CC or BCC name further routing keys.
cdef bint has_copies(const amqp_properties_t* properties) noexcept
# ([routing key, …], properties without BCC). Raises ProtocolError 406 where they are no lists of strings.
cdef tuple copies(const body_t* body)
cdef str shown(bytes name)      # for the eyes of people
