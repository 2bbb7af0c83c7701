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
    """Memory limit for incomplete contents of all connections of a node.

    message_max: maximum bytes of one body. held_max: total above which every further growth calls the handler's
    on_bodies(). held: bytes in use now."""
    cdef public uint64_t message_max
    cdef public uint64_t held_max
    cdef readonly uint64_t held

cdef class Spread:
    """A publish to thousands of queues, of which some have it. The frame that completes it stays in front of its
    connection's input (MORE), and the others get it in later rounds."""
    cdef Route route
    cdef list topics                    # addresses of its copies that are topics of MQTT, too
    cdef Py_ssize_t at                  # of route.queues: the first that has not got it
    cdef list others                    # of those before: queues of another line than the journal, or of another node
    cdef bint recorded                  # for one of those before, so its batch must be awaited
    cdef bint refused                   # by one of those before

cdef class Content:
    """The content that a channel is publishing: method received, header or body incomplete."""
    cdef Channel channel
    cdef Bodies bodies
    cdef uint8_t expects                # EXPECT_*
    cdef bint mandatory
    cdef bint immediate
    cdef bint kept                      # properties were copied out of the read buffer
    cdef uint32_t topic_length
    cdef uint8_t[512] topic             # encoded as in FORMAT_AMQP091
    cdef const uint8_t* properties
    cdef uint32_t properties_length
    cdef uint8_t* own_properties
    cdef uint32_t own_properties_room
    cdef uint64_t body_size
    cdef uint64_t body_have
    cdef uint8_t* own_body              # a body that arrives in several frames
    cdef uint64_t own_body_room
    cdef Spread spread                  # it is in some of its queues; None: in none

    cdef int keep(self) except -1
    cdef int add(self, const uint8_t* data, uint32_t n) except -1
    cdef void done(self, uint64_t share) noexcept
    cdef void drop(self) noexcept

cdef class UnroutedReply:
    """A mandatory direct reply that is on its way to the requester's node."""
    cdef Channel channel
    cdef bytes topic
    cdef bytes properties
    cdef bytes payload

cdef class AmqpConnection(Transport):
    cdef public uint32_t frame_max
    cdef public uint32_t channel_max
    cdef readonly int heartbeat_s
    cdef readonly bint greeted          # a valid protocol header was received
    cdef readonly Exchanges exchanges   # of its virtual host; None until Connection.Open
    cdef readonly Namespace namespace   # of its virtual host; None until Connection.Open
    cdef readonly dict channels         # number -> Channel
    cdef readonly bint published        # has begun a publish, so it is not only a consumer
    cdef readonly str vhost
    cdef readonly uint32_t method       # class << 16 | method of the one that ended the connection; 0: none did
    cdef public Bodies bodies           # the node's; None: its own
    cdef public bint favoured           # may go on publishing although Bodies.held_max is exceeded
    cdef public bytes user              # the only value allowed in the property user-id; None: any
    cdef dict contents                  # number -> Content
    cdef Content last                   # content of the previous frame
    cdef list unfinished                # contents incomplete at the end of a read
    cdef list answering                 # channels whose confirms are written at the end of this read
    cdef bint recorded
    cdef uint64_t sent_bytes            # heartbeats: the node's counter at the last tick
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
    cdef int publish(self, Channel channel, const body_t* body, bint mandatory, Content content) except -1
    cdef int put_all(self, const body_t* body, Route route, Content content, bint* refused) except -1
    cdef int check_owners(self, Channel channel) except -1
    cdef int add_owners(self, set owners, const body_t* body) except -1
    cdef bint reply_elsewhere(self, Channel channel, const body_t* body, bint mandatory) except? 0
    cdef Route route_of(self, const body_t* body, const amqp_properties_t* properties)
    cdef bint publish_topic(self, const body_t* body, list queues, bint* refused) except? 0
    cdef int publish_copies(self, const body_t* body, Route route, Content content, bint* refused) except -1
    cdef int check_end(self, const uint8_t* at, uint32_t size) except -1
    cdef int check_access(self, const body_t* body) except -1
    cdef object decide(self, bytes topic)
    cdef dict decide_all(self, list publishes)
    cdef int commit_all(self, Channel channel) except -1
    cdef int call_on_method(self, uint16_t number, const uint8_t* at, size_t size) except -1
    cdef bint answers_pile_up(self) noexcept
    cdef int end_read(self) except -1
