# cython: language_level=3
# pubsub/retained.pxd: values by topic name, looked up by topic filter: the trie's question the other way round.
#
# `topics` answers an exact filter with one lookup. The tree of levels is what a wildcard descends: `+` looks at the
# children of a node, a literal level at one of them, and only what `#` takes in is visited whole. Values are held by
# the nodes, so a match never goes back to `topics`.
#
# A RetainedCursor is such a walk that may stop anywhere and go on later, whatever has changed meanwhile. It visits the
# children of a node in the order in which they were made, and remembers the number (`order`) of the last one instead of
# a position: what was removed is passed over, what was added has a higher number and is still to come. So a value that
# is there all the time is met exactly once.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.message cimport msg_t
from fluxmq._core.memory.node cimport node_t


cdef class Retained:
    """Value. One retained message."""
    cdef msg_t* msg
    cdef node_t* node
    cdef readonly bint volatile         # $SYS: not written to the journal
    cdef readonly bint unstored         # its payload is another node's: it is not on this disk
    cdef readonly bint absent           # only another node has its payload: RetainedTree.fetch
    # In a cluster: of the change (hub/retained_store.pxd); 0: of a node that was alone, or of an earlier version.
    cdef public uint64_t version
    cdef public uint64_t life


# One level of one or more topics. Invariant: every node but the root has a value or a child.
@cython.final
cdef class RetainedNode:
    cdef dict children          # level (bytes) -> RetainedNode; None while there is none: most nodes are leaves
    cdef list listed            # the children by `order`, including removed ones; None while there are few
    cdef object value           # None = no topic ends here
    cdef uint64_t order         # when it was made: RetainedTree.stamp
    cdef uint64_t stamp         # when its value was set, from the same counter
    cdef uint32_t holes         # removed ones in `listed`
    cdef bint removed           # removed from the tree
    cdef bint hidden            # a first level that begins with `$` [MQTT-4.7.2-1]

    cdef RetainedNode after(self, uint64_t order, Py_ssize_t* at)
    cdef int add(self, bytes level, RetainedNode child) except -1
    cdef int remove(self, bytes level) except -1


@cython.final
cdef class RetainedTree:
    # Called with (topic, replay, session) when an absent message is to be sent. True: RetainedReplay.resume(session)
    # follows, when the payload is there or cannot be had. False: nobody has it.
    cdef public object fetch
    cdef dict topics            # topic (bytes) -> RetainedNode, for every node with a value
    cdef RetainedNode root
    cdef readonly uint64_t stamp        # grows with every value that is set and every node that is made

    # Topics are valid topic names, filters valid topic filters without `$share/…/`. UsageError if value is None.
    cpdef object set(self, bytes topic, object value)       # the former value, or None
    cpdef object get(self, bytes topic)                     # the value, or None
    cpdef object pop(self, bytes topic)                     # the removed value, or None; prunes the tree
    cpdef list match(self, bytes filter)                    # values, in no particular order

    cdef prune(self, list levels)


# A node whose children a walk is visiting.
@cython.final
cdef class RetainedFrame:
    cdef RetainedNode node
    cdef uint64_t last          # `order` of the child that was visited last; 0: none
    cdef Py_ssize_t at          # its position in `listed`: a hint
    cdef uint32_t level         # index of the filter's level that the children must match
    cdef bint met               # with `#`: the node itself has been visited


@cython.final
cdef class RetainedCursor:
    cdef list levels
    cdef bytes kinds            # of each level: 0 literal, 1 `+`, 2 `#`
    cdef list frames            # the path from the root; empty: the end

    # The next node with a value, or None: at the end (`frames` is empty), or `steps`, which counts down, is 0.
    cdef RetainedNode next(self, int* steps)
