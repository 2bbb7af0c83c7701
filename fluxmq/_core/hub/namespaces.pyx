# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See hub/namespaces.pxd."""
cimport cython

from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.disk.record_kinds cimport RECORD_NAMESPACE
from fluxmq._core.pubsub.topics cimport Topics

from fluxmq._core.memory.namespace import ENDED, read_namespace

__all__ = ["Namespaces"]


@cython.final
cdef class Namespaces(dict):
    """Machine. name -> Namespace, and "/" from the beginning. ledger, retained: the node's. route_entries, seed: as of
    the hub."""

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
        """What dict.__init__ would take for entries is for __cinit__."""

    def add(self, bytes name not None, bint kept=False) -> Namespace:
        """The namespace of this name, made and recorded if it is not there, and open. name: UTF-8, at most 255 bytes.
        kept: an operator makes it."""
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
            made.number = <uint32_t>self.ledger.namespace_number(self.ledger.commits.local, made)
            self.changed.add(made.number)
        made.open = True
        return made

    cdef Namespace make(self, bytes name):
        cdef Namespace made = Namespace(name)
        made.topics = Topics(made, self.route_entries, self.seed)
        self[name] = made
        return made

    def end(self, Namespace namespace not None):
        """It is no more, and recorded so. What it had has ended before: its sessions, groups, queues and exchanges are
        their owners' to end. What it retained goes with it."""
        self.forget(namespace)
        self.ledger.commits.local.name_namespace(namespace.number, None)
        self.changed.add(namespace.number)
        if self.ledger.active():
            self.ledger.write(RECORD_NAMESPACE, namespace.number.to_bytes(8, "big") + ENDED)

    cdef int forget(self, Namespace namespace) except -1:
        """Nobody finds it any more, and the view will forget what it retained."""
        cdef Topics topics = <Topics>namespace.topics
        self.retained.forget_all(topics)
        self.ended_topics.append(topics)
        del self[namespace.name]
        return 0

    def learn(self, Line line not None, uint64_t number, bytes record not None):
        """A record or a row of the view says what a number means in a line (Namespace.record). Of the journal: the node
        has it then, or has it no more. Nothing is recorded there, and unless an operator made it, it is not open until
        the configuration says so. Raises CorruptError."""
        cdef Namespace known
        cdef bytes name
        name, kept = read_namespace(record)
        if name is None:
            known = line.namespaces.get(number)
            if known is not None and line.number == 0:
                self.forget(known)
            line.name_namespace(number, None)
        elif number in line.namespaces:             # it is known, or it has ended later
            known = line.namespaces[number]
            if known is not None and known.name != name:
                raise CorruptError(f"namespace {number} has two names: {known.text!r} and "
                                   f"{name.decode('utf-8', 'replace')!r}")
        else:
            known = self.get(name)
            if known is None:
                known = self.make(name) if line.number == 0 else self.add(name)
            if line.number == 0:
                known.number = <uint32_t>number
                known.open = False
            line.name_namespace(number, known)
        if line.number == 0:
            self.changed.add(number)
            known = line.namespaces[number]
            if known is not None and kept:
                known.kept = known.open = True

    def take_changes(self) -> dict:
        """number -> Namespace.record, or ENDED, of those that changed since the last call: for a
        checkpoint."""
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
        """Forgets retained messages whose expiry has passed; returns how many."""
        cdef Namespace namespace
        return sum([self.retained.expire(namespace.topics) for namespace in self.values()])
