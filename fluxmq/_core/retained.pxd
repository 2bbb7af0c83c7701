# cython: language_level=3
# retained.pxd: values by topic name, looked up by topic filter: the trie's question the other way round.
#
# `topics` answers an exact filter with one lookup. The tree of levels is what a wildcard descends: `+` looks at the
# children of a node, a literal level at one of them, and only what `#` takes in is visited whole. Values are held by
# the nodes, so a match never goes back to `topics`.
cimport cython


# One level of one or more topics. Invariant: every node but the root has a value or a child.
@cython.final
cdef class RetainedNode:
    cdef dict children          # level (bytes) -> RetainedNode; None while there is none: most nodes are leaves
    cdef object value           # None = no topic ends here


@cython.final
cdef class RetainedTree:
    cdef dict topics            # topic (bytes) -> RetainedNode, for every node with a value
    cdef RetainedNode root

    # Topics are valid topic names, filters valid topic filters without `$share/…/`. UsageError if value is None.
    cpdef object set(self, bytes topic, object value)       # the former value, or None
    cpdef object get(self, bytes topic)                     # the value, or None
    cpdef object pop(self, bytes topic)                     # the value that was there, or None; prunes
    cpdef list match(self, bytes filter)                    # values, in no particular order

    cdef prune(self, list levels)
