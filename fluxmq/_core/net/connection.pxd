"""One MQTT connection: a Transport whose bytes are MQTT packets."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.flag cimport flag_t
from fluxmq._core.memory.message cimport blob_t, pub_t
from fluxmq._core.net.transport cimport Transport
from fluxmq._core.pubsub.routes cimport route_t
from fluxmq._core.pubsub.session cimport Session
from fluxmq._core.pubsub.topics cimport Topics

cdef class ClientFacts:
    # As C values, because an idle client holds little else: a field of a Python class takes eight bytes.
    cdef public uint32_t packet_size_max        # the client's Maximum Packet Size, MQTT 5.0 section 3.1.2.11.4
    cdef public uint8_t version                 # the protocol level of its CONNECT
    cdef public flag_t problem_information      # Request Problem Information, MQTT 5.0 section 3.1.2.11.7
    cdef public flag_t publish_will             # when the connection ends
    cdef public flag_t clean_start
    cdef public flag_t taken                    # CONNACK with success was written
    cdef public flag_t present                  # CONNACK said that there was a session

cdef class Connection(Transport):
    cdef readonly Session session       # from CONNACK on
    cdef Topics topics                  # of its namespace
    # cache for a publisher that repeats its last topic
    cdef route_t* last_route            # counted
    cdef uint8_t* last_properties       # last valid properties that are forwarded unchanged, wire bytes; owned
    cdef uint32_t last_properties_length
    cdef uint32_t last_properties_room
    cdef uint64_t last_access           # access generation at which last_route's topic was allowed
    cdef dict allowed                   # topic -> bool, answers of the Authority
    cdef list aliases                   # inbound: alias - 1 -> topic bytes or None
    cdef uint32_t alias_bytes           # of those topics
    cdef uint16_t learning              # the alias that the current packet assigns to its topic; 0: none
    cdef public uint8_t counted         # this node knows how often its packet identifiers were used
    cdef public uint64_t incarnation    # of the session, by which other nodes know its QoS 2 messages; 0: they need not
    cdef public int64_t keep_alive_ms   # 1.5 x keep alive, 0 = off, [MQTT-3.1.2-22]
    cdef const uint8_t* read_properties(self, pub_t* pub, const uint8_t* at, const uint8_t* end) except NULL
    cdef int learn_alias(self, const pub_t* pub) except -1
    cdef int remember_properties(self, const uint8_t* at, uint32_t length) except -1
    cdef route_t* route_of(self, pub_t* pub) except NULL
    cdef route_t* remember(self, route_t* route) noexcept
    cdef size_t pass_on(self, const uint8_t* begin, const uint8_t* end) except? 0
    cdef uint32_t run_of(self, const uint8_t* at, const uint8_t* end, const route_t* route,
                         const uint8_t** run_end) noexcept
    cdef int publish_once(self, pub_t* pub, route_t* route, uint16_t packet_id, uint8_t first) except -1
    cdef int answer_again(self, pub_t* pub, route_t* route, uint16_t packet_id) except -1
    cdef int refuse_for_queue(self, pub_t* pub, uint16_t packet_id) except -1
    cdef int complete(self, uint16_t packet_id) except -1
    cdef int check_ack_properties(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1
    cdef int dispatch(self, uint8_t first, const uint8_t* body, const uint8_t* end, blob_t* blob) except -1
    cdef int on_publish(self, uint8_t first, const uint8_t* at, const uint8_t* end, blob_t* blob) except -1
    cdef int on_ack(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1
    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason, uint64_t since) except -1
    cdef int publish_and_answer(self, pub_t* pub, route_t* route, uint16_t packet_id, uint8_t first) except -1
    cdef int permit(self, pub_t* pub, route_t* route, uint16_t packet_id) except -1
    cdef int may_publish(self, route_t* route) except -1
    cdef route_t* queue_route(self, pub_t* pub, route_t* route, uint16_t packet_id, int* result) except? NULL
    cdef int refuse_publish(self, uint8_t qos, uint16_t packet_id, uint8_t reason, str text) except -1
