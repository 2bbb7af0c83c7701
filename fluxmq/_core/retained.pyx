# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True, auto_pickle=False
"""Values by topic name, looked up by topic filter. retained.pxd is its description.

Nothing here recurses: the depth of the tree is chosen by whoever names topics. (Freeing the tree descends through
dicts, whose deallocation the interpreter bounds by itself.)
"""
cimport cython

from fluxmq._core.errors import UsageError

__all__ = ["RetainedTree"]

cdef bytes SLASH = b"/"
cdef bytes PLUS = b"+"
cdef bytes REST = b"#"


@cython.final
@cython.freelist(64)
cdef class RetainedNode:
    pass


# The values of a node and of all below it.
cdef gather(RetainedNode node, list values):
    cdef RetainedNode child
    cdef list waiting = []
    if node.value is not None:
        values.append(node.value)
    while node is not None:
        if node.children is not None:
            for child in node.children.values():
                if child.value is not None:
                    values.append(child.value)
                if child.children is not None:
                    waiting.append(child)
        node = <RetainedNode>waiting.pop() if waiting else None


# The root's children but those that a leading wildcard must not see [MQTT-4.7.2-1].
cdef list visible(RetainedNode root):
    cdef bytes level
    return [node for level, node in root.children.items() if not level.startswith(b"$")]


@cython.final
cdef class RetainedTree:
    """Machine. Values (any object but None) by topic name, matched by topic filter (MQTT 5.0 section 4.7).

    Topics and filters are UTF-8 bytes that were checked before. Iterating gives (topic, value) in order of first
    setting and, like a dict, does not allow for changes meanwhile (RuntimeError).
    """

    def __cinit__(self):
        self.topics = {}
        self.root = RetainedNode.__new__(RetainedNode)

    def __len__(self) -> int:
        return len(self.topics)

    def __contains__(self, topic) -> bool:
        return topic in self.topics

    def __iter__(self):
        cdef RetainedNode node
        for topic, node in self.topics.items():
            yield topic, node.value

    cpdef object set(self, bytes topic, object value):
        """Keep `value` under `topic`; return the value it takes the place of, or None.

        Raises UsageError when value is None: to remove is `pop`.
        """
        cdef RetainedNode node, child
        cdef object former
        cdef bytes level
        if value is None:
            raise UsageError("a retained value is not None; use pop() to remove one")
        node = self.topics.get(topic)
        if node is not None:
            former = node.value
            node.value = value
            return former
        node = self.root
        for level in topic.split(SLASH):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = RetainedNode.__new__(RetainedNode)
                node.children[level] = child
            node = child
        self.topics[topic] = node
        node.value = value
        return None

    cpdef object get(self, bytes topic):
        """The value under `topic`, or None."""
        cdef RetainedNode node = self.topics.get(topic)
        return None if node is None else node.value

    cpdef object pop(self, bytes topic):
        """Remove the value under `topic` and return it, or None."""
        cdef RetainedNode node = self.topics.pop(topic, None)
        cdef object former
        if node is None:
            return None
        former = node.value
        node.value = None
        if node.children is None:
            self.prune(topic.split(SLASH))
        return former

    # Nodes know no parent (that would be a cycle each, for the collector to find), so the path is walked again; what
    # goes is the branch below the last node that has another reason to be.
    cdef prune(self, list levels):
        cdef RetainedNode node = self.root, keeper = self.root
        cdef bytes level, branch = levels[0]
        for level in levels:
            if node.value is not None or len(node.children) > 1:
                keeper = node
                branch = level
            node = node.children[level]
        del keeper.children[branch]
        if not keeper.children:
            keeper.children = None

    cpdef list match(self, bytes filter):
        """The values of all topics that `filter` matches, in no particular order."""
        cdef RetainedNode node
        cdef list values = [], levels, nodes, below
        cdef bytes level
        if PLUS not in filter and REST not in filter:
            node = self.topics.get(filter)
            return values if node is None else [node.value]
        if filter == REST:
            # What most who ask for everything ask: no need of the tree, and in the order of memory.
            return [node.value for topic, node in self.topics.items() if not (<bytes>topic).startswith(b"$")]
        levels = filter.split(SLASH)
        nodes = [self.root]
        for level in levels:
            below = []
            if level == REST:
                # The parent level itself is among what `#` matches.
                for node in nodes:
                    gather(node, values)
                return values
            for node in nodes:
                if node.children is None:
                    continue
                if level == PLUS:
                    below.extend(visible(node) if node is self.root else node.children.values())
                else:
                    node = node.children.get(level)
                    if node is not None:
                        below.append(node)
            if not below:
                return values
            nodes = below
        return [node.value for node in nodes if node.value is not None]
