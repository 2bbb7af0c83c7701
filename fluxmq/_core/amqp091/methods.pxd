# cython: language_level=3
"""The methods of AMQP 0-9-1 as values: one class for each, its fields with the specification's names, `_` for `-`.

For what is cold, tests and clients; publish, deliver and acknowledgements are read and written in place where they
are hot. Reserved fields are not shown; `global`, which is a word of Python's, is global_.
Made by proto/amqp091/generate.py from the table beside it: change that, not this.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.amqp091.fields cimport writer_t
from fluxmq._core.wire.primitives cimport Cursor


cdef class Method:
    """Root of all methods."""
    cdef uint32_t code(self) except? 0          # class << 16 | method, as in amqp091_consts
    cdef tuple values(self)                     # the fields, in the order of the constructor
    cdef int read(self, Cursor* c) except -1    # the arguments; the cursor stands where they end
    cdef int write(self, writer_t* w) except -1

# decode_method without a bytes object: at..end is the payload of a method frame.
cdef Method method_read(const uint8_t* at, const uint8_t* end)


cdef class ConnectionStart(Method):
    cdef readonly uint8_t version_major
    cdef readonly uint8_t version_minor
    cdef readonly dict server_properties
    cdef readonly str mechanisms
    cdef readonly str locales


cdef class ConnectionStartOk(Method):
    cdef readonly dict client_properties
    cdef readonly str mechanism
    cdef readonly bytes response
    cdef readonly str locale


cdef class ConnectionSecure(Method):
    cdef readonly bytes challenge


cdef class ConnectionSecureOk(Method):
    cdef readonly bytes response


cdef class ConnectionTune(Method):
    cdef readonly uint16_t channel_max
    cdef readonly uint32_t frame_max
    cdef readonly uint16_t heartbeat


cdef class ConnectionTuneOk(Method):
    cdef readonly uint16_t channel_max
    cdef readonly uint32_t frame_max
    cdef readonly uint16_t heartbeat


cdef class ConnectionOpen(Method):
    cdef readonly str virtual_host


cdef class ConnectionOpenOk(Method):
    pass


cdef class ConnectionClose(Method):
    cdef readonly uint16_t reply_code
    cdef readonly str reply_text
    cdef readonly uint16_t class_id
    cdef readonly uint16_t method_id


cdef class ConnectionCloseOk(Method):
    pass


cdef class ConnectionBlocked(Method):
    cdef readonly str reason


cdef class ConnectionUnblocked(Method):
    pass


cdef class ConnectionUpdateSecret(Method):
    cdef readonly bytes new_secret
    cdef readonly str reason


cdef class ConnectionUpdateSecretOk(Method):
    pass


cdef class ChannelOpen(Method):
    pass


cdef class ChannelOpenOk(Method):
    pass


cdef class ChannelFlow(Method):
    cdef readonly bint active


cdef class ChannelFlowOk(Method):
    cdef readonly bint active


cdef class ChannelClose(Method):
    cdef readonly uint16_t reply_code
    cdef readonly str reply_text
    cdef readonly uint16_t class_id
    cdef readonly uint16_t method_id


cdef class ChannelCloseOk(Method):
    pass


cdef class ExchangeDeclare(Method):
    cdef readonly str exchange
    cdef readonly str type
    cdef readonly bint passive
    cdef readonly bint durable
    cdef readonly bint auto_delete
    cdef readonly bint internal
    cdef readonly bint no_wait
    cdef readonly dict arguments


cdef class ExchangeDeclareOk(Method):
    pass


cdef class ExchangeDelete(Method):
    cdef readonly str exchange
    cdef readonly bint if_unused
    cdef readonly bint no_wait


cdef class ExchangeDeleteOk(Method):
    pass


cdef class ExchangeBind(Method):
    cdef readonly str destination
    cdef readonly str source
    cdef readonly str routing_key
    cdef readonly bint no_wait
    cdef readonly dict arguments


cdef class ExchangeBindOk(Method):
    pass


cdef class ExchangeUnbind(Method):
    cdef readonly str destination
    cdef readonly str source
    cdef readonly str routing_key
    cdef readonly bint no_wait
    cdef readonly dict arguments


cdef class ExchangeUnbindOk(Method):
    pass


cdef class QueueDeclare(Method):
    cdef readonly str queue
    cdef readonly bint passive
    cdef readonly bint durable
    cdef readonly bint exclusive
    cdef readonly bint auto_delete
    cdef readonly bint no_wait
    cdef readonly dict arguments


cdef class QueueDeclareOk(Method):
    cdef readonly str queue
    cdef readonly uint32_t message_count
    cdef readonly uint32_t consumer_count


cdef class QueueBind(Method):
    cdef readonly str queue
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly bint no_wait
    cdef readonly dict arguments


cdef class QueueBindOk(Method):
    pass


cdef class QueuePurge(Method):
    cdef readonly str queue
    cdef readonly bint no_wait


cdef class QueuePurgeOk(Method):
    cdef readonly uint32_t message_count


cdef class QueueDelete(Method):
    cdef readonly str queue
    cdef readonly bint if_unused
    cdef readonly bint if_empty
    cdef readonly bint no_wait


cdef class QueueDeleteOk(Method):
    cdef readonly uint32_t message_count


cdef class QueueUnbind(Method):
    cdef readonly str queue
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly dict arguments


cdef class QueueUnbindOk(Method):
    pass


cdef class BasicQos(Method):
    cdef readonly uint32_t prefetch_size
    cdef readonly uint16_t prefetch_count
    cdef readonly bint global_


cdef class BasicQosOk(Method):
    pass


cdef class BasicConsume(Method):
    cdef readonly str queue
    cdef readonly str consumer_tag
    cdef readonly bint no_local
    cdef readonly bint no_ack
    cdef readonly bint exclusive
    cdef readonly bint no_wait
    cdef readonly dict arguments


cdef class BasicConsumeOk(Method):
    cdef readonly str consumer_tag


cdef class BasicCancel(Method):
    cdef readonly str consumer_tag
    cdef readonly bint no_wait


cdef class BasicCancelOk(Method):
    cdef readonly str consumer_tag


cdef class BasicPublish(Method):
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly bint mandatory
    cdef readonly bint immediate


cdef class BasicReturn(Method):
    cdef readonly uint16_t reply_code
    cdef readonly str reply_text
    cdef readonly str exchange
    cdef readonly str routing_key


cdef class BasicDeliver(Method):
    cdef readonly str consumer_tag
    cdef readonly uint64_t delivery_tag
    cdef readonly bint redelivered
    cdef readonly str exchange
    cdef readonly str routing_key


cdef class BasicGet(Method):
    cdef readonly str queue
    cdef readonly bint no_ack


cdef class BasicGetOk(Method):
    cdef readonly uint64_t delivery_tag
    cdef readonly bint redelivered
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly uint32_t message_count


cdef class BasicGetEmpty(Method):
    pass


cdef class BasicAck(Method):
    cdef readonly uint64_t delivery_tag
    cdef readonly bint multiple


cdef class BasicReject(Method):
    cdef readonly uint64_t delivery_tag
    cdef readonly bint requeue


cdef class BasicRecoverAsync(Method):
    cdef readonly bint requeue


cdef class BasicRecover(Method):
    cdef readonly bint requeue


cdef class BasicRecoverOk(Method):
    pass


cdef class BasicNack(Method):
    cdef readonly uint64_t delivery_tag
    cdef readonly bint multiple
    cdef readonly bint requeue


cdef class ConfirmSelect(Method):
    cdef readonly bint no_wait


cdef class ConfirmSelectOk(Method):
    pass


cdef class TxSelect(Method):
    pass


cdef class TxSelectOk(Method):
    pass


cdef class TxCommit(Method):
    pass


cdef class TxCommitOk(Method):
    pass


cdef class TxRollback(Method):
    pass


cdef class TxRollbackOk(Method):
    pass
