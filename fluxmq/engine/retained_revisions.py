"""What a cluster's metadata store has of each retained message, across restarts of this node.

A change of a retained message is acknowledged when it is in the journals of all nodes, and written to the metadata
store afterwards. What was not written when its node died is written by the others, or by that node after its restart:
whatever has the highest version (_core/hub/retained_store.pxd) wins. So the journal has, beside the values
(RETAINED_VERSION), a RETAINED_REVISION record whenever this node learns of a revision: a value behind it in the journal
is one that the store does not have. The view has a row for each topic of which a version or a revision is known:

    'h' u16 length, namespace, topic    u64 revision, u8 flags, [u64 version, u64 life], big-endian

    flags: PENDING 1      this node has a value that the store does not have, or the topic is cleared and there not
           WHOLE 2        the store has the payload too
           CLEARING 4     of an earlier version: this node may have deleted the store's value
           KNOWN 8        the store has a value, of this revision
           VERSION 16     of the last change: the value's, or, if there is none here, the topic was cleared with it
           ABSENT 32      there is a value, but its payload is at another node
"""
from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.retained import Retained

__all__ = ["NONE", "Known", "RetainedRevisions", "Row", "Topic", "Version", "read_revision"]

Topic = tuple[bytes, bytes]  # name of the namespace, topic

Version = tuple[int, int]  # number, life: _core/hub/retained_store.pxd. Later changes have higher ones
NONE: Version = 0, 0

PENDING, WHOLE, CLEARING, KNOWN, VERSION, ABSENT = 1, 2, 4, 8, 16, 32
FLAGS = PENDING | WHOLE | CLEARING | KNOWN | VERSION | ABSENT
_VALUE, _VERSION = struct.Struct(">QB"), struct.Struct(">QQ")
# Of topics that were cleared, versions are kept so that no node brings an older value back that it had not written when
# it died: so many, for so long.
CLEARED_MAX, CLEARED_MS = 65536, 24 * 3600 * 1000
CLOCK_SHIFT = 16  # of the wall clock's ms in a version


class Known(NamedTuple):
    """The store's value. whole: it has the payload. clearing: see CLEARING."""

    revision: int
    whole: bool
    clearing: bool = False


class Row(NamedTuple):
    """What the view says of a topic. pending: see PENDING. absent: see ABSENT."""

    topic: Topic
    known: Known | None
    pending: bool
    version: Version = NONE
    absent: bool = False


def read_revision(name: bytes, value: bytes) -> Row:
    """A row: its key without the first byte, and its value. Raises CorruptError."""
    size = int.from_bytes(name[:2], "big")
    if len(value) < _VALUE.size or len(name) < 3 + size:
        raise CorruptError(f"the revision of a retained message has {len(value)} bytes, its name {len(name)}")
    revision, flags = _VALUE.unpack_from(value)
    if flags & ~FLAGS:
        raise CorruptError(f"the revision of a retained message has unknown flags: {flags}")
    if len(value) != _VALUE.size + (_VERSION.size if flags & VERSION else 0):
        raise CorruptError(f"the revision of a retained message has {len(value)} bytes, which its flags do not say")
    known = Known(revision, bool(flags & WHOLE), bool(flags & CLEARING)) if flags & KNOWN else None
    number, life = _VERSION.unpack_from(value, _VALUE.size) if flags & VERSION else NONE
    return Row((name[2:2 + size], name[2 + size:]), known, bool(flags & PENDING), (number, life), bool(flags & ABSENT))


def _name(topic: Topic) -> bytes:
    return len(topic[0]).to_bytes(2, "big") + topic[0] + topic[1]


def _value(known: Known | None, pending: bool, version: Version = NONE, absent: bool = False) -> bytes:
    flags = PENDING * pending | VERSION * (version != NONE) | ABSENT * absent
    if known is not None:
        flags |= WHOLE * known.whole | CLEARING * known.clearing | KNOWN
    return _VALUE.pack(0 if known is None else known.revision, flags) + (
        b"" if version == NONE else _VERSION.pack(*version))


class RetainedRevisions:
    """Machine. hub: whose retained messages these are.

    known: by topic, what the store has. pending: topics whose value here the store does not have, and that this node is
    to write, with the number of its last change; 0: the value is from a former life of this node. lacking: the same of
    those that another node is to write, as long as it lives. on_own: called with a topic that a client of this node has
    changed. on_learned: called with one that another node has changed, and (slot of the node that has the payload, its
    size), or None if the payload is here.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.known: dict[Topic, Known] = {}
        self.pending: dict[Topic, int] = {}
        self.lacking: set[Topic] = set()
        self.on_own: Callable[[Topic], object] = lambda topic: None
        self.on_learned: Callable[[Topic, tuple[int, int] | None], object] = lambda topic, source: None
        self._changes = 0
        self._dirty: set[Topic] = set()
        self._versions: dict[Topic, Version] = {}  # of the view, until the values are loaded

    # ------------------------------------------------------------------ of a node in a cluster

    def follow(self) -> None:
        """From now on changes are noted; before anything is loaded."""
        self._hub.retained.changed = {}

    def begin(self) -> None:
        """Everything is loaded: what the store does not have yet is pending."""
        self.collect()
        for topic, version in self._versions.items():
            if topic[0] in self._hub.namespaces and self.version_of(topic) == NONE:
                topics = self._hub.namespaces[topic[0]].topics
                self._hub.retained.set_version(topics, topic[1], self.kept(topic), *version)
        self._versions.clear()
        for namespace in self._hub.namespaces.values():
            for topic, kept in namespace.topics.retained:
                if not kept.volatile and (namespace.name, topic) not in self.known:
                    self.pending[namespace.name, topic] = 0
        self.pending = dict.fromkeys(self.pending, 0)

    def collect(self) -> None:
        """Takes what clients, of this node and of others, have changed since the last call into the tables."""
        store = self._hub.retained
        if store.changed:
            changed, store.changed = store.changed, {}
            self._changes += 1
            for topic in changed:
                self.pending[topic] = self._changes
                self.lacking.discard(topic)
                self.on_own(topic)
            self._dirty.update(changed)
        if store.learned:
            learned, store.learned = store.learned, {}
            self._dirty.update(learned)
            for topic, source in learned.items():
                self.pending.pop(topic, None)
                self.lacking.add(topic)
                self.on_learned(topic, source)
        if store.lapsed:
            self._dirty.update(store.lapsed)
            store.lapsed = set()
        self._forget_cleared()

    def _forget_cleared(self) -> None:
        cleared = self._hub.retained.cleared
        since = self._hub.now_ms - CLEARED_MS << CLOCK_SHIFT
        while cleared:
            topic = next(iter(cleared))
            if len(cleared) <= CLEARED_MAX and cleared[topic][0] > since:
                break
            del cleared[topic]
            self._dirty.add(topic)

    def write_again(self, topic: Topic) -> None:
        """The store does not have this node's value, and this node is to write it."""
        self.lacking.discard(topic)
        if topic not in self.pending:
            self._changes += 1
            self.pending[topic] = self._changes

    def has_it(self, topic: Topic) -> None:
        """The store has what this node has."""
        self.pending.pop(topic, None)
        self.lacking.discard(topic)

    def kept(self, topic: Topic) -> Retained | None:
        """What this node has of a topic."""
        namespace = self._hub.namespaces.get(topic[0])
        kept: Retained | None = None if namespace is None else namespace.topics.retained.get(topic[1])
        return kept

    def version_of(self, topic: Topic) -> Version:
        """Of the last change of a topic that this node knows; NONE: of no version."""
        namespace = self._hub.namespaces.get(topic[0])
        return NONE if namespace is None else self._hub.retained.version_of(namespace.topics, topic[1])

    def cleared(self) -> Iterable[tuple[Topic, Version]]:
        """Topics that were cleared, and the versions of that, oldest first."""
        return self._hub.retained.cleared.items()

    def note(self, topic: Topic, known: Known | None) -> None:
        """Records what the store has, and whether the value here is newer (`pending`)."""
        if known is None:
            self.known.pop(topic, None)
        else:
            self.known[topic] = known
        self._dirty.add(topic)
        if self._hub.durable:
            value = _value(known, topic in self.pending or topic in self.lacking)
            self._hub.ledger.write(RecordKind.RETAINED_REVISION, value + _name(topic))

    # ------------------------------------------------------------------ the disk

    def load(self, name: bytes, value: bytes) -> None:
        """Reads a row of the view; name: its key without the first byte. Raises CorruptError."""
        row = read_revision(name, value)
        self._read(row)
        if row.version != NONE and not row.absent:
            self._versions[row.topic] = row.version
        self._hub.retained.clock = max(self._hub.retained.clock, row.version[0])

    def replay(self, revision: int, body: bytes) -> None:
        """Applies a RETAINED_REVISION record of the journal. Raises CorruptError."""
        row = read_revision(body[1:], revision.to_bytes(8, "big") + body[:1])
        if self._hub.retained.changed is not None:
            self._hub.retained.changed.pop(row.topic, None)
        self._read(row)
        self._dirty.add(row.topic)

    def _read(self, row: Row) -> None:
        if row.known is None:
            self.known.pop(row.topic, None)
        else:
            self.known[row.topic] = row.known
        if row.pending:
            self.pending[row.topic] = 0
        else:
            self.pending.pop(row.topic, None)

    def export(self) -> tuple[Iterable[tuple[bytes, bytes]], Iterable[bytes]]:
        """(puts, deletes) for the view: what changed since the last call."""
        self.collect()
        dirty, self._dirty = self._dirty, set()
        puts, deletes = [], []
        for topic in dirty:
            known, key = self.known.get(topic), b"h" + _name(topic)
            pending, version = topic in self.pending or topic in self.lacking, self.version_of(topic)
            if known is None and not pending and version == NONE:
                deletes.append(key)
            else:
                kept = self.kept(topic)
                puts.append((key, _value(known, pending, version, kept is not None and kept.unstored)))
        return puts, deletes
