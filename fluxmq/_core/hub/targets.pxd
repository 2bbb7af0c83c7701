"""Targets in the topic index besides sessions and share groups: queues, bound exchanges, other nodes.

The index stores borrowed pointers, so Targets keeps each target alive while it is indexed. A queue has one index entry
per filter, whether the filter is the queue's own or comes from bindings of amq.topic.
"""
from libc.stdint cimport uint16_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.pubsub.share_group cimport GroupTaker
from fluxmq._core.pubsub.topics cimport Topics, topics_of
from fluxmq._core.pubsub.trie cimport Trie
from fluxmq._core.queue.queue cimport Queue

cdef class ExchangeHop:
    """Bindings of amq.topic to other exchanges: forwards publishes of MQTT clients to them."""
    cdef readonly Namespace namespace
    cdef int forward(self, pub_t* pub) except -1

cdef class PeerHop(GroupTaker):
    """Another node with subscribers to a topic: forwards each message once, however many filters match; and those for
    one member of a share group (forward_group)."""
    cdef readonly dict paused       # connections that are not read because of it: Transport.yield_to_peer; None: none
    # pub.body and what it points to are valid during this call; to keep them use pub_own. For QoS 1 and 2 forward()
    # calls Commits.give for the peer's commit line, so that the publisher's answer waits for it; QoS 0 gets no ticket.
    # For an AMQP publish, body is the translation and pub.amqp the original. An exception ends the publisher's
    # connection, so a peer that cannot take the message gives up the position instead. May change subscriptions.
    cdef int forward(self, pub_t* pub) except -1
    # A change of a retained message (RetainedStore.spreading), for a node without subscribers; otherwise as forward().
    cdef int retain(self, pub_t* pub) except -1
    # Tells the other node that an origin is over (hub/origins.pxd), and gives a ticket, as forward() does.
    cdef int release(self, uint64_t name, uint16_t packet_id, uint64_t use) except -1
    # The end of a turn in which it put itself into Hub.unsealed.
    cdef int end_turn(self) except -1

cdef inline Trie trie_of(Namespace namespace):
    return (<Topics>topics_of(namespace)).trie

cdef class Targets:
    cdef Ledger ledger
    cdef readonly dict queues       # Queue -> its filters
    cdef dict bindings              # Queue -> filter -> [bindings equal to the filter, bindings narrower than it]
    cdef dict exchanges             # ExchangeHop -> filter -> bindings
    cdef dict peers                 # PeerHop -> its set of (Namespace, filter)

    cdef int index_queue(self, Queue queue, bytes filter) except -1
