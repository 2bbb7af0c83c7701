"""What a cluster's metadata store has of each retained message, across restarts of this node.

A client's retained message is acknowledged when it is in the journal, and written to the metadata store afterwards.
What was not written when the node died is written after its restart, if the store's value is still the one that this
node knew. So the journal has, beside the values (RETAINED), a RETAINED_REVISION record whenever this node learns of a
revision: a value behind it in the journal is newer, and pending. The view has a row for each topic of which a revision
is known; a topic without one was never in the store, as far as this node knows:

    'h' u16 length, namespace, topic    u64 revision, u8 flags, big-endian

    flags: PENDING 1      this node has a newer value, or has cleared the topic, and the store does not know
           WHOLE 2        the store has the payload too
           CLEARING 4     this node may have deleted the store's value
           KNOWN 8        the store has a value, of this revision
"""
from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub

__all__ = ["Known", "RetainedRevisions", "Topic", "read_revision"]

Topic = tuple[bytes, bytes]  # name of the namespace, topic

PENDING, WHOLE, CLEARING, KNOWN = 1, 2, 4, 8
FLAGS = PENDING | WHOLE | CLEARING | KNOWN
_VALUE = struct.Struct(">QB")


class Known(NamedTuple):
    """The store's value. whole: it has the payload. clearing: this node may have deleted it."""

    revision: int
    whole: bool
    clearing: bool = False


def read_revision(name: bytes, value: bytes) -> tuple[Topic, Known | None, bool]:
    """(topic, what is known, whether the topic is pending) of a row: its key without the first byte, and its value.
    Raises CorruptError."""
    size = int.from_bytes(name[:2], "big")
    if len(value) != _VALUE.size or len(name) < 3 + size:
        raise CorruptError(f"the revision of a retained message has {len(value)} bytes, its name {len(name)}")
    revision, flags = _VALUE.unpack(value)
    if flags & ~FLAGS:
        raise CorruptError(f"the revision of a retained message has unknown flags: {flags}")
    known = Known(revision, bool(flags & WHOLE), bool(flags & CLEARING)) if flags & KNOWN else None
    return (name[2:2 + size], name[2 + size:]), known, bool(flags & PENDING)


def _name(topic: Topic) -> bytes:
    return len(topic[0]).to_bytes(2, "big") + topic[0] + topic[1]


def _value(known: Known | None, pending: bool) -> bytes:
    if known is None:
        return _VALUE.pack(0, PENDING if pending else 0)
    return _VALUE.pack(known.revision, PENDING * pending | WHOLE * known.whole | CLEARING * known.clearing | KNOWN)


class RetainedRevisions:
    """Machine. hub: whose retained messages these are.

    known: by topic, what the store has. pending: topics whose value here the store does not have, with the number of
    its last change; 0: the value is from a former life of this node, so it may be old.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.known: dict[Topic, Known] = {}
        self.pending: dict[Topic, int] = {}
        self._changes = 0
        self._dirty: set[Topic] = set()

    # ------------------------------------------------------------------ of a node in a cluster

    def follow(self) -> None:
        """From now on changes are noted; before anything is loaded."""
        self._hub.retained.changed = {}

    def begin(self) -> None:
        """Everything is loaded: what the store does not have yet is pending."""
        self.collect()
        for namespace in self._hub.namespaces.values():
            for topic, kept in namespace.topics.retained:
                if not kept.volatile and (namespace.name, topic) not in self.known:
                    self.pending[namespace.name, topic] = 0
        self.pending = dict.fromkeys(self.pending, 0)

    def collect(self) -> None:
        """Takes what clients have changed since the last call into `pending`."""
        changed = self._hub.retained.changed
        if changed:
            self._hub.retained.changed = {}
            self._changes += 1
            for topic in changed:
                self.pending[topic] = self._changes
            self._dirty.update(changed)

    def note(self, topic: Topic, known: Known | None) -> None:
        """Records what the store has, and whether the value here is newer (`pending`)."""
        if known is None:
            self.known.pop(topic, None)
        else:
            self.known[topic] = known
        self._dirty.add(topic)
        if self._hub.durable:
            value = _value(known, topic in self.pending)
            self._hub.ledger.write(RecordKind.RETAINED_REVISION, value + _name(topic))

    # ------------------------------------------------------------------ the disk

    def load(self, name: bytes, value: bytes) -> None:
        """Reads a row of the view; name: its key without the first byte. Raises CorruptError."""
        self._read(*read_revision(name, value))

    def replay(self, revision: int, body: bytes) -> None:
        """Applies a RETAINED_REVISION record of the journal. Raises CorruptError."""
        topic, known, pending = read_revision(body[1:], revision.to_bytes(8, "big") + body[:1])
        if self._hub.retained.changed is not None:
            self._hub.retained.changed.pop(topic, None)
        self._read(topic, known, pending)
        self._dirty.add(topic)

    def _read(self, topic: Topic, known: Known | None, pending: bool) -> None:
        if known is None:
            self.known.pop(topic, None)
        else:
            self.known[topic] = known
        if pending:
            self.pending[topic] = 0
        else:
            self.pending.pop(topic, None)

    def export(self) -> tuple[Iterable[tuple[bytes, bytes]], Iterable[bytes]]:
        """(puts, deletes) for the view: what changed since the last call."""
        self.collect()
        dirty, self._dirty = self._dirty, set()
        puts, deletes = [], []
        for topic in dirty:
            known, key = self.known.get(topic), b"h" + _name(topic)
            if known is None and topic not in self.pending:
                deletes.append(key)
            else:
                puts.append((key, _value(known, topic in self.pending)))
        return puts, deletes
