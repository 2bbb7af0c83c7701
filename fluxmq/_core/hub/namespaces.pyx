# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See hub/namespaces.pxd."""
cimport cython

from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.disk.record_kinds cimport RECORD_NAMESPACE
from fluxmq._core.pubsub.topics cimport Topics, topics_of
from fluxmq._core.wire.sizes cimport fit_u32

from fluxmq._core.memory.namespace import ENDED, read_namespace

__all__ = ["Namespaces"]


@cython.final
cdef class Namespaces(dict):
    """Machine. name -> Namespace; contains "/" from the start. ledger, retained: the node's. route_entries, seed: as
    for Hub."""

    def __cinit__(self, Ledger ledger not None, RetainedStore retained not None, uint32_t route_entries, uint64_t seed):
        cdef Namespace root = ledger.commits.root
        self.ledger = ledger
        self.retained = retained
        self.route_entries = route_entries
        self.seed = seed
        self.changed = set()
        self.ended_topics = []
        root.topics = Topics(root, route_entries, seed)
        self[root.name] = root

    def __init__(self, *_):
        """Keeps the arguments of __cinit__ away from dict.__init__."""

    def add(self, bytes name not None, bint kept=False) -> Namespace:
        """Opens and returns the namespace with this name; creates and records it if needed. name: UTF-8, at most 255
        bytes. kept: an operator creates it."""
        cdef Namespace made = self.get(name)
        if made is not None:
            if kept and not made.kept:
                made.kept = True
                self.changed.add(made.number)
                if self.ledger.active():
                    self.ledger.write(RECORD_NAMESPACE, made.number.to_bytes(8, "big") + made.record)
        else:
            made = self.make(name)
            made.kept = kept
            made.number = fit_u32(self.ledger.namespace_number(self.ledger.commits.local, made))
            self.changed.add(made.number)
        made.open = True
        return made

    cdef Namespace make(self, bytes name):
        cdef Namespace made = Namespace(name)
        made.topics = Topics(made, self.route_entries, self.seed)
        self[name] = made
        return made

    def end(self, Namespace namespace not None):
        """Ends a namespace, and records that. The caller has ended its sessions, groups, queues and exchanges before.
        Its retained messages are removed here."""
        self.forget(namespace)
        self.ledger.commits.local.name_namespace(namespace.number, None)
        self.changed.add(namespace.number)
        if self.ledger.active():
            self.ledger.write(RECORD_NAMESPACE, namespace.number.to_bytes(8, "big") + ENDED)

    cdef int forget(self, Namespace namespace) except -1:
        """Removes it from the index; the next checkpoint deletes its retained messages from the view."""
        cdef Topics topics = <Topics>topics_of(namespace)
        self.retained.forget_all(topics)
        self.ended_topics.append(topics)
        del self[namespace.name]
        return 0

    def learn(self, Line line not None, uint64_t number, bytes record not None):
        """Applies a record or a row of the view that defines a namespace number of a line (Namespace.record). For the
        journal the namespace is created or removed, without a new record; unless an operator created it, it stays
        closed until the configuration names it. Raises CorruptError."""
        cdef Namespace known
        cdef bytes name
        name, kept = read_namespace(record)
        if name is None:
            known = line.namespaces.get(number)
            if known is not None and line.number == 0:
                self.forget(known)
            line.name_namespace(number, None)
        elif number in line.namespaces:             # known, or ended by a later record
            known = line.namespaces[number]
            if known is not None and known.name != name:
                raise CorruptError(f"namespace {number} has two names: {known.text!r} and "
                                   f"{name.decode('utf-8', 'replace')!r}")
        else:
            known = self.get(name)
            if known is None:
                known = self.make(name) if line.number == 0 else self.add(name)
            if line.number == 0:
                known.number = fit_u32(number)
                known.open = False
            line.name_namespace(number, known)
        if line.number == 0:
            self.changed.add(number)
            known = line.namespaces[number]
            if known is not None and kept:
                known.kept = known.open = True

    def take_changes(self) -> dict:
        """number -> Namespace.record, or ENDED, of namespaces changed since the last call: for a checkpoint."""
        cdef Line line = self.ledger.commits.local
        changed, self.changed = self.changed, set()
        found = {number: line.namespaces[number] for number in changed}
        return {number: ENDED if known is None else known.record for number, known in found.items()}

    def take_retained(self) -> list:
        """[(Topics, topics)] whose retained messages changed since the last call: for a checkpoint."""
        cdef Topics topics
        cdef list found = []
        spaces = [namespace.topics for namespace in self.values()] + self.ended_topics
        self.ended_topics = []
        for topics in spaces:
            if topics.retained_dirty:
                found.append((topics, topics.retained_dirty))
                topics.retained_dirty = set()
        return found

    def expire_retained(self) -> int:
        """Removes expired retained messages; returns how many."""
        cdef Namespace namespace
        return sum([self.retained.expire(namespace.topics) for namespace in self.values()])
