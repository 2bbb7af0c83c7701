"""One AMQP 0-9-1 connection: a Transport whose bytes are frames (specification, section 4.2).

    0      1         3             7                  size+7      size+8
    ├──────┼─────────┼─────────────┼──────────────────┼───────────┤
    │ type │ channel │ size        │ payload          │ 0xCE      │
    └──────┴─────────┴─────────────┴──────────────────┴───────────┘

Basic.Publish with its content, Basic.Ack, Nack and Reject are handled here; every other method goes to the edge.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.amqp091.properties cimport amqp_properties_t
from fluxmq._core.exchange.exchange cimport Exchanges, Route
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.net.amqp091_channel cimport Channel
from fluxmq._core.net.transport cimport Transport

cdef enum:
    EXPECT_METHOD = 0
    EXPECT_HEADER = 1
    EXPECT_BODY = 2

cdef class Bodies:
    """What the contents that are not complete yet may take, of all connections of a node together.

    message_max: bytes of one body. most: bytes of all from which on the handler's on_bodies() is told of
    each that grows. held: bytes that they have now."""
    cdef public uint64_t message_max
    cdef public uint64_t most
    cdef readonly uint64_t held

cdef class Content:
    """What one channel is in the middle of publishing."""
    cdef Channel channel
    cdef Bodies bodies
    cdef uint8_t expects                # EXPECT_*
    cdef bint mandatory
    cdef bint immediate
    cdef bint kept                      # properties were copied: they outlive the read buffer
    cdef uint32_t topic_length
    cdef uint8_t[512] topic             # as FORMAT_AMQP091 has it
    cdef const uint8_t* properties
    cdef uint32_t properties_length
    cdef uint8_t* own_properties
    cdef uint32_t own_properties_room
    cdef uint64_t body_size
    cdef uint64_t body_have
    cdef uint8_t* own_body              # of a body that came in several frames
    cdef uint64_t own_body_room

    cdef int keep(self) except -1
    cdef int add(self, const uint8_t* data, uint32_t n) except -1
    cdef void done(self, uint64_t share) noexcept
    cdef void drop(self) noexcept

cdef class AmqpConnection(Transport):
    cdef public uint32_t frame_max
    cdef public uint32_t channel_max
    cdef readonly int heartbeat_s
    cdef readonly bint greeted          # its protocol header was ours
    cdef readonly Exchanges exchanges   # of its virtual host; None until Connection.Open
    cdef readonly Namespace namespace   # the same
    cdef readonly dict channels         # number -> Channel
    cdef readonly bint published        # it has begun to: it is not only a consumer
    cdef readonly str vhost
    cdef readonly uint32_t method       # class << 16 | method of the one that ended the connection; 0: it was none
    cdef public Bodies bodies           # the node's; None: its own
    cdef public bint favoured           # it goes on although the bodies of all are too much
    cdef public bytes user              # user-id may only be this one; None: anybody's
    cdef dict contents                  # number -> Content
    cdef Content last                   # of the frame before
    cdef list unfinished                # contents that a read ended in the middle of
    cdef list answering                 # channels with confirms that leave at the end of this read
    cdef bint recorded
    cdef uint64_t sent_bytes            # heartbeats: of the node's counter when it was looked at last
    cdef int64_t sent_ms
    cdef dict allowed                   # (exchange, routing key) -> bool
    cdef uint64_t allowed_generation
    cdef dict decided                   # (exchange, routing key) -> int, while a transaction is committed

    cdef int on_frame(self, uint8_t kind, uint16_t number, const uint8_t* at, uint32_t size) except -1
    cdef int on_channel_frame(self, uint8_t kind, Content content, const uint8_t* at, uint32_t size) except -1
    cdef Content content_of(self, uint16_t number)
    cdef int on_method(self, Content content, uint32_t method, const uint8_t* at, const uint8_t* end) except -1
    cdef int on_settle(self, Channel channel, uint32_t method, const uint8_t* at, const uint8_t* end) except -1
    cdef int begin(self, Content content, const uint8_t* at, const uint8_t* end) except -1
    cdef int on_header(self, Content content, const uint8_t* at, uint32_t size) except -1
    cdef int on_body(self, Content content, const uint8_t* at, uint32_t size) except -1
    cdef int complete(self, Content content, const uint8_t* payload) except -1
    cdef int keep_publish(self, Channel channel, const body_t* body, const amqp_properties_t* properties,
                          bint mandatory) except -1
    cdef int publish(self, Channel channel, const body_t* body, bint mandatory) except -1
    cdef Route route_of(self, const body_t* body, const amqp_properties_t* properties)
    cdef bint publish_topic(self, const body_t* body, list queues, bint* refused) except? 0
    cdef int publish_copies(self, const body_t* body, Route route, bint* refused) except -1
    cdef int check_end(self, const uint8_t* at, uint32_t size) except -1
    cdef int check_access(self, const body_t* body) except -1
    cdef object decide(self, bytes topic)
    cdef dict decide_all(self, list publishes)
    cdef int commit_all(self, Channel channel) except -1
    cdef int tell_method(self, uint16_t number, const uint8_t* at, size_t size) except -1
    cdef bint answers_pile_up(self) noexcept
    cdef int end_read(self) except -1
