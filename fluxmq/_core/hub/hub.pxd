"""The crossing of everything hot: publish, retain, release what waited for the disk.

    publish(pub) ─► Routes.find(topic) ─► each hop: Session.deliver, ShareGroup.deliver, Queue.take,
                                          TopicRelay.relay or PeerHop.forward
                 ─► retained tree, when the retain flag is set
                 ─► Ledger: one MESSAGE record with every journalled target

The cold verbs (connect, subscribe, expire …) are in fluxmq/engine and configure this object.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Commits, Waiter, held_t
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport body_t, msg_t, pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.pubsub.retained cimport Retained
from fluxmq._core.pubsub.routes cimport hop_t, route_t
from fluxmq._core.pubsub.session cimport Session
from fluxmq._core.pubsub.topics cimport Topics
from fluxmq._core.queue.queue cimport Queue

cdef class TopicRelay:
    """Whoever takes publishes of MQTT clients further: bindings of amq.topic to other exchanges."""
    cdef readonly Namespace namespace
    cdef int relay(self, pub_t* pub) except -1

cdef class PeerHop:
    """Another node where somebody wants a topic: it forwards what it is given, once however many filters match."""
    # pub.body and what it points to are good for this call: who keeps it makes it his own (pub_own). With QoS 1 and 2
    # it gives what it took to the peer's commit line (Commits.give), so that the publisher's answer waits for that; QoS
    # 0 has no ticket. Of a publish by AMQP the body is the translation, pub.amqp what was published. What it raises
    # ends the publisher's connection: a peer that cannot take it gives the position up. It may change subscriptions.
    cdef int forward(self, pub_t* pub) except -1

cdef class Hub(Waiter):
    cdef readonly Ledger ledger
    cdef readonly Commits commits               # the ledger's: what answers wait for
    cdef readonly dict namespaces               # name -> Namespace
    cdef readonly Namespace root                # "/"
    cdef readonly set namespaces_dirty          # numbers in the journal that the view must hear of
    cdef uint32_t route_entries                 # of each namespace
    cdef uint64_t seed
    cdef readonly uint64_t retained_count       # of all namespaces, without what is the broker's own
    cdef readonly uint64_t retained_bytes
    cdef node_t* node
    # limits, set once from the configuration
    cdef public uint8_t qos_max
    cdef public uint32_t topic_levels_max
    cdef public uint32_t payload_bytes_max
    cdef public uint32_t user_properties_max
    cdef public uint32_t topic_alias_max        # inbound
    cdef public uint32_t topic_alias_out_max
    cdef public uint32_t receive_max            # inbound, per client
    cdef public uint32_t inflight_max           # outbound, per client
    cdef public uint32_t retained_max
    cdef public uint64_t retained_bytes_max
    cdef public uint64_t buffer_high
    cdef public uint64_t buffer_low
    cdef public bint disconnect_on_full
    cdef public uint64_t backlog_max            # bytes not yet on disk from which on nobody is read
    cdef public uint64_t journal_ahead_max      # bytes that no checkpoint has begun with from which on nobody is read
    cdef public uint64_t journal_mark           # what the journal had written when the last one began
    # permissions: nothing is asked while open_publish
    cdef public bint open_publish
    cdef public uint64_t access_generation
    # set by the edge: schedules a turn when bytes were written outside of one
    cdef public object wake
    cdef bint in_turn
    cdef bint woken
    cdef public uint32_t awaited                # results that the event loop waits for: turns do not linger
    cdef bint cold                              # this turn involved the cold half: the event loop may have work
    cdef readonly list resumed                  # connections that go on with what waited in them
    cdef list due                               # sessions to which retained messages are sent next
    cdef readonly list closed                   # connections whose descriptor is closed; dropped at the end of the turn
    cdef readonly dict queues                   # Queue -> its filters: what keeps them alive while the index knows them
    cdef uint64_t passing                       # publishes so far (pub_t.passing)
    cdef dict relays                            # TopicRelay -> filter -> bindings
    cdef dict peers                             # PeerHop -> its set of (Namespace, filter)
    cdef dict bindings                          # Queue -> filter -> [bindings that it is, those that it is wider than]
    cdef list letters                           # calls that publish, when nothing is being published any more
    cdef readonly list throttled                # connections not read because the disk is behind
    cdef readonly uint64_t retained_refused
    cdef list ended_topics                      # Topics of namespaces that ended: what they retained is to be forgotten

    cdef int publish(self, pub_t* pub, route_t* route) except -1
    cdef uint64_t next_passing(self) noexcept
    cdef int deliver_all(self, pub_t* pub, route_t* route) except -1
    cdef int deliver_hop(self, const hop_t* hop, pub_t* pub) except -1
    cdef int deliver_rest(self, pub_t* pub, route_t* route, uint32_t begin) except -1
    cdef int retain(self, pub_t* pub) except -1
    cdef bint namespace_is_full(self, pub_t* pub)
    cdef bint lacks_room(self, const body_t* body, Retained former) noexcept
    cdef Namespace make_namespace(self, bytes name)
    cdef int forget_namespace(self, Namespace namespace) except -1
    cdef int count_retained(self, Topics topics, Retained kept, int64_t sign) except -1
    cdef bint is_ahead(self) noexcept
    cdef bint is_behind(self) noexcept
    cdef bint has_work(self) noexcept
    cdef int replay_retained(self) except -1
    cdef int release(self) except -1
    cdef int refuse(self, held_t* held, str why) except -1
    cdef int pump_queues(self) except -1
    cdef int send_letters(self) except -1
    cdef int index_queue(self, Queue queue, bytes filter) except -1
    cdef void touch(self)
