# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See hub/targets.pxd."""
cimport cython
from libc.stdint cimport uint8_t

from fluxmq._core.amqp091.topics import filter_of
from fluxmq._core.errors import UsageError
from fluxmq._core.memory.node cimport WORK_SUBSCRIPTION
from fluxmq._core.pubsub.routes cimport HOP_EXCHANGE, HOP_PEER, HOP_QUEUE
from fluxmq._core.pubsub.trie cimport SUB_KIND_UNIT, SUB_WIDE

__all__ = ["ExchangeHop", "PeerHop", "Targets"]


cdef class ExchangeHop:
    """Machine. A base class."""

    def __cinit__(self, *_):
        self.namespace = None

    cdef int forward(self, pub_t* pub) except -1:
        return 0


cdef class PeerHop(GroupTaker):
    """Machine. A base class."""

    cdef int forward(self, pub_t* pub) except -1:
        return 0

    cdef int retain(self, pub_t* pub) except -1:
        return 0

    cdef int release(self, uint64_t name, uint16_t packet_id, uint64_t use) except -1:
        return 0

    cdef int end_turn(self) except -1:
        return 0


@cython.final
cdef class Targets:
    """Machine. ledger: the node's."""

    def __cinit__(self, Ledger ledger not None):
        self.ledger = ledger
        self.queues = {}
        self.bindings = {}
        self.exchanges = {}
        self.peers = {}

    def add_queue(self, Queue queue not None, filters):
        """Indexes a queue under its filters (bytes, valid): a publish that matches any of them is appended once.

        If the queue is indexed already, these replace its former filters; its bindings stay."""
        cdef tuple former = self.queues.get(queue, ())
        self.queues[queue] = tuple(filters)
        for filter in former:
            self.index_queue(queue, filter)
        for filter in self.queues[queue]:
            self.index_queue(queue, filter)

    def remove_queue(self, Queue queue not None):
        """Removes a queue from the index, with its bindings."""
        cdef tuple filters = self.queues.pop(queue)
        queue.bindings = 0
        queue.patterns = []
        for filter in (*filters, *self.bindings.pop(queue, {})):
            self.index_queue(queue, filter)
        queue.end()

    def bind_queue(self, Queue queue not None, bytes binding_key not None):
        """Binds an added queue to amq.topic: MQTT publishes to a topic that the key matches are appended to it, and
        their acknowledgements wait for that. Bindings are counted: each needs its own unbind_queue."""
        found = filter_of(binding_key)
        queue.bindings += 1
        if found is None:
            return                          # no MQTT topic can match the key
        counts = self.bindings.setdefault(queue, {}).setdefault(found[0], [0, 0])
        counts[found[1] != b""] += 1
        if found[1]:
            queue.patterns = [*queue.patterns, found[1]]
        self.index_queue(queue, found[0])

    def unbind_queue(self, Queue queue not None, bytes binding_key not None):
        """Reverts one bind_queue. Raises UsageError if there was none."""
        found = filter_of(binding_key)
        counts = None if found is None else self.bindings.get(queue, {}).get(found[0])
        if queue.bindings == 0 or (found is not None and (counts is None or not counts[found[1] != b""])):
            raise UsageError(f"queue {queue.name!r} is not bound with {binding_key!r}")
        queue.bindings -= 1
        if found is None:
            return
        counts[found[1] != b""] -= 1
        if found[1]:
            patterns = list(queue.patterns)
            patterns.remove(found[1])
            queue.patterns = patterns
        if counts == [0, 0]:
            del self.bindings[queue][found[0]]
        self.index_queue(queue, found[0])

    cdef int index_queue(self, Queue queue, bytes filter) except -1:
        """Adds one filter of a queue to the trie, or removes it if neither the queue nor a binding uses it any more."""
        self.ledger.node.work += WORK_SUBSCRIPTION
        cdef list counts = (<dict>self.bindings.get(queue, {})).get(filter, [0, 0])
        cdef const uint8_t* at = <const uint8_t*><const char*>filter
        cdef bint exact = counts[0] != 0 or filter in self.queues.get(queue, ())
        if exact or counts[1]:
            trie_of(queue.namespace).add(at, len(filter), <void*>queue, 0,
                                         HOP_QUEUE * SUB_KIND_UNIT | (0 if exact else SUB_WIDE))
        else:
            trie_of(queue.namespace).remove(at, len(filter), <void*>queue)
        return 0

    def bind_exchange(self, ExchangeHop hop not None, bytes binding_key not None):
        """Sends MQTT publishes whose topic may match the key to the hop too, which checks whether it does. Bindings are
        counted: each needs its own unbind_exchange."""
        cdef dict counts = self.exchanges.setdefault(hop, {})
        cdef bytes filter
        found = filter_of(binding_key)
        if found is None:
            return
        filter = found[0]
        counts[filter] = counts.get(filter, 0) + 1
        trie_of(hop.namespace).add(<const uint8_t*><const char*>filter, len(filter), <void*>hop, 0,
                                     HOP_EXCHANGE * SUB_KIND_UNIT)

    def unbind_exchange(self, ExchangeHop hop not None, bytes binding_key not None):
        """Reverts one bind_exchange."""
        cdef dict counts = self.exchanges[hop]
        cdef bytes filter
        found = filter_of(binding_key)
        if found is None:
            return
        filter = found[0]
        counts[filter] -= 1
        if counts[filter] == 0:
            del counts[filter]
            trie_of(hop.namespace).remove(<const uint8_t*><const char*>filter, len(filter), <void*>hop)

    def add_peer(self, PeerHop peer not None, bytes filter not None, Namespace namespace=None) -> bool:
        """Another node has subscribers to a filter (valid, without `$share/…/`): matching publishes are forwarded to
        the peer. namespace: None is "/". True: the filter is new. The hub keeps the peer alive until its last filter is
        removed."""
        cdef set filters = self.peers.setdefault(peer, set())
        if namespace is None:
            namespace = self.ledger.commits.root
        filters.add((namespace, filter))
        return trie_of(namespace).add(<const uint8_t*><const char*>filter, len(filter), <void*>peer, 0,
                                      HOP_PEER * SUB_KIND_UNIT) == 1

    def remove_peer(self, PeerHop peer not None, bytes filter=None, Namespace namespace=None) -> bool:
        """The other node has no subscribers to the filter any more (filter None: to any). True: one was removed."""
        cdef set filters = self.peers.get(peer, set())
        cdef bytes each
        cdef tuple wanted = (self.ledger.commits.root if namespace is None else namespace, filter)
        cdef list gone = list(filters) if filter is None else [wanted] if wanted in filters else []
        for one in gone:
            filters.remove(one)
            each = one[1]
            trie_of(<Namespace?>one[0]).remove(<const uint8_t*><const char*>each, len(each), <void*>peer)
        if not filters:
            self.peers.pop(peer, None)
        return len(gone) != 0
