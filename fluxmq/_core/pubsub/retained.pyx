# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True, auto_pickle=False
"""Retained messages by topic name, looked up by topic filter. pubsub/retained.pxd is its description.

Nothing here recurses: clients choose the depth of the tree by their topic names. (Freeing the tree descends through
dicts, whose deallocation is bounded by the interpreter.)
"""
cimport cython

from fluxmq._core.errors import UsageError
from fluxmq._core.memory.message cimport msg_drop

__all__ = ["Retained", "RetainedCursor", "RetainedTree"]

cdef bytes SLASH = b"/"
cdef bytes PLUS = b"+"
cdef bytes REST = b"#"

cdef enum:
    KIND_LITERAL = 0
    KIND_PLUS = 1
    KIND_REST = 2
    LISTED_MIN = 16             # number of children from which a list of them is kept; fewer are all examined


@cython.final
cdef class Retained:
    """Value. One retained message, MQTT 5.0 section 3.3.1.3."""

    def __dealloc__(self):
        if self.msg != NULL:
            msg_drop(self.msg)

    @property
    def topic(self) -> bytes:
        return (<const char*>self.msg.body.topic)[:self.msg.body.topic_length]

    @property
    def payload(self) -> bytes:
        return (<const char*>self.msg.body.payload)[:self.msg.body.payload_length]

    @property
    def size(self) -> int:
        """Bytes of payload and properties."""
        return self.msg.body.payload_length + self.msg.body.properties_length

    @property
    def properties(self) -> bytes:
        """MQTT 5 wire bytes, without message expiry."""
        return (<const char*>self.msg.body.properties)[:self.msg.body.properties_length]

    @property
    def qos(self) -> int:
        return self.msg.qos

    @property
    def expires_at(self) -> int:
        """Steady clock, ms; 0 = never."""
        return self.msg.body.expires_at


@cython.final
@cython.no_gc           # a tree: nodes know their children only, and values know none
@cython.freelist(64)
cdef class RetainedNode:

    cdef RetainedNode after(self, uint64_t order, Py_ssize_t* at):
        """The child with the next higher `order`, or None. at: in: position of the one with `order`; out: of the
        result."""
        cdef RetainedNode child, found = None
        cdef Py_ssize_t low = at[0], high, middle
        if self.children is None:
            return None
        if self.listed is None:
            for child in self.children.values():
                if child.order > order and (found is None or child.order < found.order):
                    found = child
            return found
        high = len(self.listed)
        if low < high and (<RetainedNode>self.listed[low]).order == order:
            low += 1
        else:
            low = 0
            while low < high:
                middle = (low + high) // 2
                if (<RetainedNode>self.listed[middle]).order > order:
                    high = middle
                else:
                    low = middle + 1
            high = len(self.listed)
        while low < high:
            child = <RetainedNode>self.listed[low]
            if not child.removed:
                at[0] = low
                return child
            low += 1
        return None

    cdef int add(self, bytes level, RetainedNode child) except -1:
        """Adds a child that is newer than all others."""
        if self.children is None:
            self.children = {}
        self.children[level] = child
        if self.listed is not None:
            self.listed.append(child)
        elif len(self.children) >= LISTED_MIN:
            self.listed = list(self.children.values())      # a dict keeps the order of insertion
            self.holes = 0
        return 0

    cdef int remove(self, bytes level) except -1:
        cdef RetainedNode child = self.children.pop(level)
        child.removed = True
        if not self.children:
            self.children = None
        if self.listed is not None:
            self.holes += 1
            if self.holes * 2 > len(self.listed):
                self.holes = 0
                self.listed = (None if self.children is None or len(self.children) < LISTED_MIN
                               else list(self.children.values()))
        return 0


@cython.final
@cython.freelist(64)
cdef class RetainedFrame:
    pass


cdef RetainedFrame frame_of(RetainedNode node, uint32_t level):
    cdef RetainedFrame frame = RetainedFrame.__new__(RetainedFrame)
    frame.node = node
    frame.level = level
    return frame


@cython.final
cdef class RetainedCursor:
    """Machine. A walk over the topics in a tree that match a filter; see pubsub/retained.pxd."""

    def __cinit__(self, RetainedTree tree not None, bytes filter not None):
        self.levels = filter.split(SLASH)
        self.kinds = bytes([KIND_PLUS if level == PLUS else KIND_REST if level == REST else KIND_LITERAL
                            for level in self.levels])
        self.frames = [frame_of(tree.root, 0)]

    def step(self, int steps):
        """The next value, or None: at the end, or after `steps` steps, at least one."""
        cdef RetainedNode node = self.next(&steps)
        return None if node is None else node.value

    @property
    def ended(self) -> bool:
        return not self.frames

    cdef RetainedNode next(self, int* steps):
        cdef RetainedFrame frame
        cdef RetainedNode node, child
        cdef uint32_t count = <uint32_t>len(self.levels)
        cdef uint8_t kind
        while self.frames:
            if steps[0] <= 0:
                return None
            steps[0] -= 1
            frame = <RetainedFrame>self.frames[len(self.frames) - 1]
            node = frame.node
            if frame.level == count:
                self.frames.pop()
                if node.value is not None:
                    return node
                continue
            kind = (<const uint8_t*><const char*>self.kinds)[frame.level]
            if kind == KIND_LITERAL:
                self.frames.pop()
                child = None if node.children is None else node.children.get(self.levels[frame.level])
                if child is not None:
                    self.frames.append(frame_of(child, frame.level + 1))
                continue
            if kind == KIND_REST and not frame.met:
                frame.met = True            # `#` matches the parent level too
                if node.value is not None:
                    return node
            child = node.after(frame.last, &frame.at)
            if child is None:
                self.frames.pop()
                continue
            frame.last = child.order
            if child.hidden:
                continue
            if kind == KIND_REST:
                if child.children is not None:
                    self.frames.append(frame_of(child, frame.level))
                elif child.value is not None:
                    return child
            elif frame.level + 1 < count:
                if child.children is not None or (
                        <const uint8_t*><const char*>self.kinds)[frame.level + 1] == KIND_REST:
                    self.frames.append(frame_of(child, frame.level + 1))
            elif child.value is not None:
                return child
        return None


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
        """Sets the value of `topic`; returns the former one, or None.

        Raises UsageError if value is None: use `pop` to remove it.
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
            self.stamp += 1
            node.stamp = self.stamp
            return former
        node = self.root
        for level in topic.split(SLASH):
            child = None if node.children is None else node.children.get(level)
            if child is None:
                child = RetainedNode.__new__(RetainedNode)
                self.stamp += 1
                child.order = self.stamp
                child.hidden = node is self.root and level.startswith(b"$")
                node.add(level, child)
            node = child
        self.topics[topic] = node
        node.value = value
        self.stamp += 1
        node.stamp = self.stamp
        return None

    cpdef object get(self, bytes topic):
        """The value under `topic`, or None."""
        cdef RetainedNode node = self.topics.get(topic)
        return None if node is None else node.value

    cpdef object pop(self, bytes topic):
        """Removes the value of `topic` and returns it, or None."""
        cdef RetainedNode node = self.topics.pop(topic, None)
        cdef object former
        if node is None:
            return None
        former = node.value
        node.value = None
        if node.children is None:
            self.prune(topic.split(SLASH))
        return former

    # Nodes have no pointer to their parent, which would make reference cycles, so the path is walked again. The branch
    # below the last node that is needed otherwise is removed.
    cdef prune(self, list levels):
        cdef RetainedNode node = self.root, keeper = self.root
        cdef bytes level, branch = levels[0]
        for level in levels:
            if node.value is not None or len(node.children) > 1:
                keeper = node
                branch = level
            node = node.children[level]
        keeper.remove(branch)

    cpdef list match(self, bytes filter):
        """The values of all topics that `filter` matches, in no particular order."""
        cdef RetainedCursor cursor = RetainedCursor(self, filter)
        cdef RetainedNode node
        cdef list values = []
        cdef int steps
        while cursor.frames:
            steps = 1 << 20
            node = cursor.next(&steps)
            if node is not None:
                values.append(node.value)
        return values
