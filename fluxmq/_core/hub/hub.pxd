"""The hot path of a node: publish, retain, release what waited for the disk.

    publish(pub) ─► Routes.find(topic) ─► each hop: Session.deliver, ShareGroup.deliver, Queue.take,
                                          ExchangeHop.forward or PeerHop.forward
                 ─► RetainedStore, when the retain flag is set
                 ─► Ledger: one MESSAGE record with every journalled target

The cold operations (connect, subscribe, expire …) are in fluxmq/engine and configure this object.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.disk_pressure cimport DiskPressure
from fluxmq._core.hub.namespaces cimport Namespaces
from fluxmq._core.hub.origins cimport Origins, Use
from fluxmq._core.hub.retained_store cimport RetainedStore
from fluxmq._core.hub.targets cimport PeerHop, Targets
from fluxmq._core.memory.commits cimport Commits, Waiter, held_t
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport origin_t, pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.pubsub.routes cimport hop_t, route_t
from fluxmq._core.pubsub.session cimport Session
from fluxmq._core.pubsub.share_group cimport ShareGroup
from fluxmq._core.queue.queue cimport Queue

cdef struct limits_t:               # limits for clients, from the configuration: Hub.set_limits
    uint8_t qos_max
    bint disconnect_on_full
    uint32_t topic_levels_max
    uint32_t payload_bytes_max
    uint32_t user_properties_max
    uint32_t topic_alias_max        # inbound
    uint32_t topic_alias_out_max
    uint32_t receive_max            # inbound, per client
    uint64_t buffer_high
    uint64_t buffer_low

cdef class Hub(Waiter):
    cdef readonly Ledger ledger
    cdef readonly Commits commits               # the ledger's: answers wait here until they are committed
    cdef readonly Namespaces namespaces
    cdef readonly Namespace root                # "/"
    cdef readonly RetainedStore retained
    cdef readonly Targets targets
    cdef readonly dict groups                   # (Namespace, name, filter) -> ShareGroup
    cdef readonly DiskPressure disk
    cdef node_t* node
    cdef readonly limits_t limits
    # permissions: while open_publish, publishes need no authorization
    cdef public bint open_publish
    cdef public uint64_t access_generation
    # set by the edge: schedules a turn when bytes were written outside of one
    cdef public object wake
    cdef object clocks                  # of simulated time, as Poller has it; None: the machine's
    cdef bint in_turn
    cdef bint woken
    cdef public uint32_t awaited                # results that the event loop waits for; while not 0, no turn lingers
    cdef bint cold                              # this turn involved the cold half: the event loop may have work
    cdef readonly list resumed                  # connections with unhandled input, served in the next round
    cdef list due                               # sessions that are due to get retained messages
    cdef readonly list closed                   # connections whose descriptor is closed; dropped at the end of the turn
    cdef uint64_t passing                       # number of publishes so far (pub_t.passing)
    cdef list deferred_publishes                # callables that publish; called when no publish is under way
    # other nodes (hub/targets.pxd); all of it stays empty on a node without others
    cdef list unsealed                          # PeerHops to be called at the end of the turn
    cdef list eased                             # connections that were paused because of one and are read again
    cdef PeerHop crowded                        # the last hop that took a message although it has too much
    cdef uint64_t crowded_mark                  # Commits.mark when it did
    # set by the engine: takes a doubtful message for a share group, until the other nodes have said who has it
    cdef public object doubt
    # the same: (virtual host, name of a queue for direct replies, topic, properties, payload, unrouted) -> whether
    # another node that lives is to have it, and a ticket was given. unrouted: called, ahead of that, if the requester
    # turns out to have gone; None: nobody asks
    cdef public object reply
    cdef bint whole                             # a transaction is committed: what it gives a node is one frame
    # set by the cluster: who runs the replication groups of this node, or None. turn(): queues were pumped, and what
    # groups decide is to be in the batch that gathers; durable(): the journal may have written more; flush(): the turn
    # ends, and messages for other replicas leave
    cdef public object replication
    cdef readonly Origins origins
    cdef readonly list nodes                    # PeerHops of the other nodes that live
    cdef readonly dict owned                    # Queue.identity -> Queue: those of the cluster that this node owns
    cdef dict ended                             # identity -> None: queues of the cluster that were deleted, in order
    cdef public uint64_t session_number_last    # of a session in the journal
    cdef readonly dict positions                # node -> (epoch, sequence): frames of it applied here, as recorded
    cdef dict sequences                         # node -> the last frame that was made for it

    # Whether it is certain that the queue with this identity was deleted, so that no node has it, or will have it.
    cdef bint has_ended(self, uint64_t identity) except -1
    cdef int publish(self, pub_t* pub, route_t* route) except -1
    # Only to sessions that were adopted from this life of a node (hub/moving.pxd), and have not had it (None: nobody
    # has). origin: by which they are to know it; NULL: none.
    cdef int publish_to_life(self, pub_t* pub, route_t* route, uint64_t life, Use known, origin_t* origin) except -1
    cdef int spread_all(self, pub_t* pub, route_t* route, uint64_t version) except -1
    cdef int replay_topic(self, route_t* route) except -1
    # A message that may come again with the same origin: who has had it here does not get it again.
    cdef int publish_once(self, pub_t* pub, route_t* route, origin_t* origin) except -1
    # The same for a PUBLISH of QoS 2 of a session with this incarnation. counted: this node knows all uses of its
    # packet identifiers. again: the identifier was received before, by this node or the one that the session came from.
    # dup: the client says that it has sent it before.
    cdef int publish_of_client(self, pub_t* pub, route_t* route, uint64_t incarnation, bint counted, bint again,
                               bint dup, uint16_t packet_id) except -1
    # Of a message that has come again: whether this queue of this node has it.
    cdef bint has_had(self, const pub_t* pub, Queue queue) except -1
    # The identifier may be used for another message. Gives tickets for the other nodes' knowledge of it.
    cdef int release_of_client(self, uint64_t incarnation, uint16_t packet_id) except -1
    cdef int deliver_narrow(self, pub_t* pub, route_t* route) except -1
    cdef bint lacks(self, const pub_t* pub, const hop_t* hop) except -1
    cdef int deliver_to_life(self, pub_t* pub, route_t* route) except -1
    cdef int deliver_to_session(self, Session session, pub_t* pub, const hop_t* hop) except -1
    cdef int deliver_to_moving(self, Session session, pub_t* pub, const hop_t* hop) except -1
    # Delivers a message to one member of a group: of this node, or of any. 0: there is none, or it was dropped.
    cdef int publish_to_group(self, pub_t* pub, ShareGroup group, bint here) except -1
    cdef uint64_t next_passing(self) noexcept
    cdef int deliver_all(self, pub_t* pub, route_t* route) except -1
    cdef int deliver_hop(self, const hop_t* hop, pub_t* pub) except -1
    cdef int deliver_to_group(self, ShareGroup group, pub_t* pub, bint spread) except -1
    cdef int deliver_rest(self, pub_t* pub, route_t* route, uint32_t begin) except -1
    cdef bint has_work(self) noexcept
    cdef int replay_retained(self) except -1
    cdef int release(self) except -1
    cdef int refuse(self, held_t* held, str why) except -1
    cdef int pump_queues(self) except -1
    cdef int publish_deferred(self) except -1
    cdef int end_turn_of_peers(self) except -1
    cdef void touch(self)
