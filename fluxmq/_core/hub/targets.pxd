"""What the index of topics leads to beside sessions and share groups: queues, bound exchanges, other nodes.

The index has pointers: what is here is alive while the index knows it. Of a queue it has one entry for each filter,
whether the queue itself or bindings of amq.topic want it.
"""
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.pubsub.topics cimport Topics
from fluxmq._core.pubsub.trie cimport Trie
from fluxmq._core.queue.queue cimport Queue

cdef class ExchangeHop:
    """Bindings of amq.topic to other exchanges: it takes publishes of MQTT clients further."""
    cdef readonly Namespace namespace
    cdef int forward(self, pub_t* pub) except -1

cdef class PeerHop:
    """Another node where somebody wants a topic: it forwards what it is given, once however many filters match."""
    # pub.body and what it points to are good for this call: who keeps it makes it his own (pub_own). With QoS 1 and 2
    # it gives what it took to the peer's commit line (Commits.give), so that the publisher's answer waits for that; QoS
    # 0 has no ticket. Of a publish by AMQP the body is the translation, pub.amqp what was published. What it raises
    # ends the publisher's connection: a peer that cannot take it gives the position up. It may change subscriptions.
    cdef int forward(self, pub_t* pub) except -1

cdef inline Trie trie_of(Namespace namespace):
    return (<Topics>namespace.topics).trie

cdef class Targets:
    cdef Ledger ledger
    cdef readonly dict queues       # Queue -> its filters
    cdef dict bindings              # Queue -> filter -> [bindings that it is, those that it is wider than]
    cdef dict exchanges             # ExchangeHop -> filter -> bindings
    cdef dict peers                 # PeerHop -> its set of (Namespace, filter)

    cdef int index_queue(self, Queue queue, bytes filter) except -1
