"""Properties of a publish that are instructions for the broker: expiration, user-id, reply-to, and the headers CC and
BCC.

A message without them does not pass through this code.
"""
from fluxmq._core.amqp091.consts cimport PROPERTY_EXPIRATION, PROPERTY_REPLY_TO, PROPERTY_USER_ID
from fluxmq._core.amqp091.properties cimport amqp_properties_t
from fluxmq._core.memory.message cimport body_t

cdef enum:
    CHECKED_PROPERTIES = PROPERTY_EXPIRATION | PROPERTY_USER_ID | PROPERTY_REPLY_TO

# Checks CHECKED_PROPERTIES. user: the connected one, None: any. reply_to: the channel's reply queue, None: it has none.
# Returns replacing properties, or None. Raises ProtocolError 406.
cdef bytes check_properties(const body_t* body, const amqp_properties_t* properties, bytes user, bytes reply_to)
# Whether the headers CC or BCC have further routing keys.
cdef bint has_copies(const amqp_properties_t* properties) noexcept
# ([routing key, …], properties without BCC). Raises ProtocolError 406 if they are not lists of strings.
cdef tuple copy_keys(const body_t* body)
cdef str shown(bytes name)      # in readable form
