"""Retained messages of the whole cluster: what clients of this node retain goes to the metadata store, and what the
store has is known here.

    a client's message ─► the journals of all nodes ─► pending ─► under way ─► the store has it: a revision
                                                          ▲           │
                                                          └───────────┘ somebody else was first: again, with that
                                                                        revision, if this one is newer
    another node's ─► lacking ─┬─► the store has it
                               └─► its node has lost its lease: pending here

The highest version wins on every node and in the store (_core/hub/retained_store.pxd). Nodes get each other's changes
over their streams, before these are acknowledged; the store has them for nodes that start. A node writes only what is
newer than what the store has. What the store shows and this node has not got yet over the stream of its node, which
lives, is `held` for a moment: a client that subscribes meanwhile would get it now and once more with the stream.

A topic has at most one key: `retained-data` with the payload, or `retained-index` without (`payloads.py` fetches it).
Both are compared whenever one is changed.

A store without space takes no value, and goes on to take deletions: topics that were cleared are written then, and of
the others one in a while.

Writes are coalesced by topic and go in rounds, which become slower as they become larger, through a writer of their
own, so that leases and owners do not wait for them. Topics that change all the time are written less often the more
there are, and do not keep others. It is one file because both directions decide by the same tables
which of two values of a topic is the newer one.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.pubsub.retained import Retained
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import RETAINED_DATA, RETAINED_INDEX, Name, topic_key
from fluxmq.cluster.payloads import Payloads
from fluxmq.cluster.ports import (
    Change,
    Compare,
    Event,
    Log,
    MetadataStore,
    StoreError,
    StoreFull,
    TransactionResult,
    Transport,
)
from fluxmq.cluster.retained_values import Held, Seen, Value
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.retained_revisions import NONE, Known, RetainedRevisions, Topic
from fluxmq.model.malformed import MALFORMED

__all__ = ["RetainedMessages", "Value"]

TRANSACTIONS_MAX = 2  # under way at once
ROUND_TOPICS_MAX = 4096
# A topic that changes all the time is written once in so long: by the number of those that were written since.
AGAIN_PER_TOPIC_S, AGAIN_MAX_S = 0.002, 2.0
LOOK_S = 0.05  # between two looks for others meanwhile
SLICE_TOPICS = 64  # of a round, that are begun at once: some milliseconds of the loop
ROUND_BYTES_MAX = 4 << 20
LOOK_TOPICS_MAX = 16384  # that are looked at for one round
PAUSE_PER_TOPIC_S, PAUSE_MAX_S = 0.001, 0.5  # from the beginning of a round to that of the next
PROPERTIES_MAX = 64 << 10  # bytes, of a message that is in the store whole
SWEEP_S = 30.0
RETRY_S = 1.0


class _Write(msgspec.Struct):
    """A topic under way. seen: the newest that the feed has shown meanwhile."""

    seen: Seen | None = None


_value = msgspec.msgpack.Decoder(Value).decode
_encode = msgspec.msgpack.encode


class RetainedMessages:
    """One per life of a node.

    node: its name. threshold: payloads of this size or more are not written to the store, nor sent to nodes without
    subscribers. is_leader: whether this node deletes what has expired. sources: see Payloads. lives: whether this life
    of another node has a lease. node_of: the name of the node with this slot (Peer.slot).
    """

    payloads: Payloads

    def __init__(self, node: str, store: MetadataStore, feed: Feed, transport: Transport, driver: Driver, *,
                 threshold: int, is_leader: Callable[[], bool], sources: Callable[[str], list[str]],
                 lives: Callable[[int], bool], node_of: Callable[[int], str], log: Log) -> None:
        self._node = node
        self._transport = transport
        self._sources = sources
        self._feed = feed
        self._driver = driver
        self._threshold = threshold
        self._is_leader = is_leader
        self._lives = lives
        self._node_of = node_of
        self._log = log
        self._writer = Writer(store, driver, transactions_max=TRANSACTIONS_MAX)
        self._hub: Hub
        self._revisions: RetainedRevisions
        self._under_way: dict[Topic, _Write] = {}
        self._held = Held(driver, self._release)
        self._told = False  # the other nodes have told what they have
        self._expiries: dict[Topic, int] = {}
        self._recent: set[Topic] = set()  # written since then, and not again before _again_at
        self._recent_since = 0.0
        self._loading = True
        self._writing = False
        self._closed = False
        self._trouble = ""  # why the last round did not end well
        self._full = False  # the store has no space

    # ------------------------------------------------------------------ life

    def attach(self, hub: Hub, revisions: RetainedRevisions) -> None:
        """Before anything is loaded from the disk."""
        self._hub, self._revisions = hub, revisions
        hub.retained.spread_bytes_max = self._threshold
        revisions.follow()
        revisions.on_learned = self._learned
        self.payloads = Payloads(hub, revisions, self._transport, self._driver, sources=self._sources, log=self._log)
        revisions.on_own = self.payloads.forget

    def begin(self, life: int) -> None:
        """Everything is loaded from the disk, and the feed will report what the store has. life: this node's epoch."""
        self._hub.retained.life = life
        self._revisions.begin()

    def loaded(self) -> None:
        """The feed has reported all that the store has: what this node knew of and is not there was cleared, or has
        expired."""
        for topic, known in list(self._revisions.known.items()):
            if not self._feed.has(topic_key(RETAINED_DATA if known.whole else RETAINED_INDEX, *topic)):
                self._gone(topic, self._feed.revision)
        self._loading = False
        self._hub.retained.on_changed = self._wake
        self._driver.start(self._sweep())
        self._wake()

    def told(self) -> None:
        """Every node with a lease has told what it has: what this node has of a former life and is the newest is
        written now."""
        self._told = True
        self._wake()

    def greet(self, outbox: PeerOutbox, epoch: int) -> None:
        """A node has come in this life, ahead of everything that it is told from now on: it gets what the store did not
        have when it came, and what was cleared, which its disk may have."""
        self._revisions.collect()
        known, space = self._revisions.known, self._hub.namespaces
        newer = [topic for topic, each in known.items() if each.revision > epoch]
        for topic in dict.fromkeys([*self._revisions.pending, *self._revisions.lacking, *newer]):
            kept, version = self._revisions.kept(topic), self._revisions.version_of(topic)
            if kept is not None and version != NONE:
                source = self.payloads.source(topic)
                outbox.retained(topic[0], topic[1], kept, *version, len(kept.payload) if source is None else source[1])
        for topic, version in self._revisions.cleared():
            if topic[0] in space:
                outbox.retained(topic[0], topic[1], None, *version)

    def on_gone(self, life: int) -> None:
        """A node has no lease any more, or another life: what it had spread and not written is written by those who
        have it."""
        self._revisions.collect()
        for topic in sorted(self._revisions.lacking):
            if self._revisions.version_of(topic)[1] == life:
                self._revisions.write_again(topic)
        self._wake()

    def close(self, why: str) -> None:
        """Nothing is written any more."""
        self._closed = True
        self._held.close()
        self._writer.close(why)
        if hasattr(self, "_hub"):
            self.payloads.close()

    @property
    def waiting(self) -> int:
        """Topics whose value here the store does not have."""
        self._revisions.collect()
        if self._told:
            return len(self._revisions.pending)
        return sum(1 for number in self._revisions.pending.values() if number)

    # ------------------------------------------------------------------ to the store

    def _wake(self) -> None:
        if not self._writing and not self._closed:
            self._writing = True
            self._driver.start(self._write())

    async def _write(self) -> None:
        """Rounds, until nothing is pending."""
        try:
            while self.waiting and not self._closed:
                begun, self._trouble = self._driver.now(), ""
                topics = self._round()
                pause = min(PAUSE_PER_TOPIC_S * len(topics), PAUSE_MAX_S)
                works = []
                for at in range(0, len(topics), SLICE_TOPICS):
                    if at:                  # clients of this node do not wait for the whole of a round
                        await self._driver.sleep(pause * SLICE_TOPICS / len(topics))
                    if self._trouble or self._closed:
                        break
                    works += [self._driver.start(self._write_one(topic)) for topic in topics[at:at + SLICE_TOPICS]
                              if self._begin(topic)]
                for work in works:
                    await self._driver.end_of(work)
                rest = pause - (self._driver.now() - begun)
                if not topics:
                    rest = min(max(self._again_at - begun, AGAIN_PER_TOPIC_S), LOOK_S)
                await self._driver.sleep(max(rest, 0.0) if not self._trouble else RETRY_S)
        finally:
            self._writing = False
        if self.waiting:
            self._wake()

    def _round(self) -> list[Topic]:
        if self._full:
            return self._round_without_space()
        if (now := self._driver.now()) >= self._again_at:
            self._recent, self._recent_since = set(), now
        topics: list[Topic] = []
        size = 0
        for topic in list(islice(self._revisions.pending, LOOK_TOPICS_MAX)):
            if topic in self._recent or not self._due(topic):
                continue
            if size > ROUND_BYTES_MAX or len(topics) >= ROUND_TOPICS_MAX:
                break
            kept = self._revisions.kept(topic)
            size += kept.size if kept is not None and self._is_whole(kept) else 0
            topics.append(topic)
        return topics

    def _due(self, topic: Topic) -> bool:
        """Whether it may be written now: nodes that live may have something newer than what is of a former life."""
        return self._told or self._revisions.pending[topic] != 0

    def _begin(self, topic: Topic) -> bool:
        """Whether it is still to be written."""
        if topic not in self._revisions.pending:
            return False
        self._under_way[topic] = _Write()
        self._recent.add(topic)
        return True

    @property
    def _again_at(self) -> float:
        return self._recent_since + min(AGAIN_PER_TOPIC_S * len(self._recent), AGAIN_MAX_S)

    def _round_without_space(self) -> list[Topic]:
        """What was cleared, and the first other topic. Those that were looked at come last the next time."""
        topics: list[Topic] = []
        pending, tries = self._revisions.pending, False
        for topic in list(islice(pending, LOOK_TOPICS_MAX)):
            if not self._due(topic):
                continue
            pending[topic] = pending.pop(topic)
            cleared = self._revisions.kept(topic) is None
            if (cleared or not tries) and len(topics) < ROUND_TOPICS_MAX:
                tries = tries or not cleared
                topics.append(topic)
        return topics

    async def _write_one(self, topic: Topic) -> None:
        try:
            await self._write_value(topic)
        finally:
            seen = self._under_way.pop(topic).seen
            if seen is not None and not self._closed:
                self._see(topic, seen)

    async def _write_value(self, topic: Topic) -> None:
        self._revisions.collect()
        if topic not in self._revisions.pending:
            return                          # another node has changed it since, and writes that
        known, kept = self._revisions.known.get(topic), self._revisions.kept(topic)
        version = self._revisions.version_of(topic)
        data, index = topic_key(RETAINED_DATA, *topic), topic_key(RETAINED_INDEX, *topic)
        compares = [Compare(data, known.revision if known is not None and known.whole else 0),
                    Compare(index, known.revision if known is not None and not known.whole else 0)]
        whole = kept is not None and self._is_whole(kept)
        changes = []
        if kept is not None:
            changes.append(Change(data if whole else index, _encode(self._value_of(topic, kept, whole))))
        if known is not None and (kept is None or known.whole != whole):
            changes.append(Change(data if known.whole else index, None))
        if not changes:
            self._revisions.has_it(topic)
            self._record(topic, None)
            return
        try:
            result = await self._writer.change(compares, changes, wait_for_space=False)
        except StoreFull as error:
            if not self._full and not self._closed:
                self._log("error", str(error), "retained messages wait until etcd has space",
                          {"why": str(error)})
            self._full, self._trouble = True, str(error)
            return
        except StoreError as error:
            if not self._trouble and not self._closed:
                self._log("error", str(error), "retained messages cannot be written to etcd; trying again",
                          {"why": str(error)})
            self._trouble = str(error)
            return
        if self._closed:
            return                          # the hub may not be this node's any more
        self._full = self._full and kept is None
        self._revisions.collect()
        if not result.done:
            self._failed(topic, result)
            return
        if kept is not None and kept.expires_at:
            self._expiries[topic] = self._hub.wall_of(kept.expires_at)
        for key in (data, index):
            self._feed.note(key, result.revision)
        same = self._revisions.version_of(topic) == version
        if same:
            self._revisions.has_it(topic)
        self._record(topic, Known(result.revision, whole) if kept is not None else None)
        if not same:
            self._lacks(topic)              # it has changed since

    def _failed(self, topic: Topic, result: TransactionResult) -> None:
        """The store has another value than this node knew."""
        data, index = result.found
        item = data or index
        if item is None:
            self._gone(topic, result.revision)
        elif (value := self._read(item.key, item.value)) is not None:
            self._present(topic, Seen(item.revision, data is not None, value))

    def _value_of(self, topic: Topic, kept: Retained, whole: bool) -> Value:
        expires = self._hub.wall_of(kept.expires_at)
        if whole:
            return Value(self._node, kept.qos, len(kept.payload), expires, kept.properties, kept.payload, kept.version,
                         kept.life)
        node, size = self.payloads.source(topic) or (self._node, len(kept.payload))
        return Value(node, kept.qos, size, expires, version=kept.version, life=kept.life)

    def _is_whole(self, kept: Retained) -> bool:
        return (not kept.unstored and len(kept.payload) < self._threshold
                and len(kept.properties) <= PROPERTIES_MAX)

    # ------------------------------------------------------------------ from the other nodes

    def _learned(self, topic: Topic, source: tuple[int, int] | None) -> None:
        """Another node has changed it, and this one has that."""
        if source is None:
            self.payloads.forget(topic)
        else:
            node, size = self._node_of(source[0]), source[1]
            kept = self._revisions.kept(topic)
            if kept is not None and kept.absent:
                self.payloads.add(topic, node, size)
            else:
                self.payloads.came(topic, node, size)
        self._expiries.pop(topic, None)
        self._lacks(topic)
        held = self._held.pop(topic)
        if held is not None:
            self._see(topic, held)

    def _lacks(self, topic: Topic) -> None:
        """This node has something that the store does not have: who is to write it?"""
        if self._revisions.kept(topic) is None and topic not in self._revisions.known:
            self._revisions.has_it(topic)               # cleared, and the store has nothing
            return
        life = self._revisions.version_of(topic)[1]
        if life != self._hub.retained.life and self._lives(life):
            self._revisions.pending.pop(topic, None)
            self._revisions.lacking.add(topic)
        else:
            self._revisions.write_again(topic)
            self._wake()

    # ------------------------------------------------------------------ from the store

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a key of retained messages that this node has not made, or does not know of yet."""
        topic, whole = (name.namespace, name.name), name.kind == RETAINED_DATA
        self._revisions.collect()
        value = None if event.value is None else self._read(event.key, event.value)
        if event.value is None or value is not None:
            self._see(topic, Seen(event.revision, whole, value))

    def _see(self, topic: Topic, seen: Seen) -> None:
        write = self._under_way.get(topic)
        if write is not None:
            # Its answer says which of the two was first. A deletion is part of a change of the form, or the last word.
            if write.seen is None or (write.seen.revision, write.seen.value is not None) <= (
                    seen.revision, seen.value is not None):
                write.seen = seen
        elif seen.value is not None:
            self._present(topic, seen)
        elif (known := self._revisions.known.get(topic)) is not None and known.whole == seen.whole:
            self._gone(topic, seen.revision)            # otherwise it has the other form now

    def _read(self, key: bytes, value: bytes) -> Value | None:
        try:
            return _value(value)
        except MALFORMED as error:
            self._log("error", str(error), "etcd has a retained message that this version cannot read",
                      {"key": key.decode("utf-8", "replace")})
            return None

    def _present(self, topic: Topic, seen: Seen) -> None:
        known = self._revisions.known.get(topic)
        if known is not None and (known.revision > seen.revision or
                                  (known.revision == seen.revision and not self._loading)):
            return
        value = seen.value
        assert value is not None
        theirs, ours = (value.version, value.life), self._revisions.version_of(topic)
        if theirs == ours == NONE and topic in self._revisions.pending:
            # Of a former life, by a node that gave no versions: what it did not know then is newer than what it had,
            # unless it was itself that wrote it, and died before it heard of that.
            expected = known is not None and known.revision == seen.revision
            newer = expected or value.node == self._node
        else:
            newer = ours > theirs
        if newer:
            self._record(topic, Known(seen.revision, seen.whole))
            self._lacks(topic)
        elif theirs > ours and not self._loading and self._comes_by_stream(topic, seen):
            return
        else:
            pending = topic in self._revisions.pending or topic in self._revisions.lacking
            self._revisions.has_it(topic)
            self._apply(topic, seen, pending_before=pending)

    def _comes_by_stream(self, topic: Topic, seen: Seen) -> bool:
        """Whether it is held; see the top of the file."""
        assert seen.value is not None
        life = seen.value.life
        return life != self._hub.retained.life and self._lives(life) and self._held.hold(topic, seen)

    def _release(self, topic: Topic, seen: Seen) -> None:
        self._revisions.collect()
        self._see(topic, seen)

    def _gone(self, topic: Topic, revision: int) -> None:
        """The store has no value of this topic."""
        known = self._revisions.known.get(topic)
        if not self._held.forget_before(topic, revision) or known is None or known.revision >= revision:
            return                          # it has the other form now, or this node knows something newer
        pending = topic in self._revisions.pending or topic in self._revisions.lacking
        # Of a former life, by a node that gave no versions.
        old = (self._revisions.version_of(topic) == NONE and self._revisions.pending.get(topic) == 0
               and not known.clearing)
        if not pending or old:
            self._revisions.has_it(topic)
            self._apply(topic, Seen(revision, True, None), pending_before=pending)
            return
        self._record(topic, None)
        self._lacks(topic)

    def _apply(self, topic: Topic, seen: Seen, pending_before: bool = False) -> None:
        """Keeps what the store has. pending_before: the disk knows the topic as pending."""
        value, hub, now = seen.value, self._hub, self._revisions.kept(topic)
        was, ours = self._revisions.known.get(topic), self._revisions.version_of(topic)
        theirs = ours if value is None else (value.version, value.life)     # a deletion is of what this node knows
        same = was is not None and was.revision == seen.revision and not pending_before
        same = theirs == ours and (same if ours == NONE else now is not None)
        self._expiries.pop(topic, None)
        if value is not None and value.expires_ms:
            self._expiries[topic] = value.expires_ms
            if value.expires_ms <= hub.now_ms:
                value = None
        absent = value is not None and not seen.whole
        if not same or value is None:
            self.payloads.forget(topic)
        expires = 0 if value is None or not value.expires_ms else max(1, value.expires_ms - hub.wall_lead_ms)
        changed = pending_before
        try:
            if value is None:
                if now is not None:
                    changed = True
                    hub.retained.learn(hub.namespaces[topic[0]].topics, topic[1], b"", version=theirs[0],
                                       life=theirs[1])
            elif same and now is not None and (absent or ours != NONE):
                pass                        # this node has it, perhaps with the payload that the store does not have
            elif absent or now is None or now.absent or theirs != ours or value.differs(now):
                changed = True
                hub.retained.learn(hub.namespaces.add(topic[0]).topics, topic[1], value.payload, value.qos,
                                   value.properties, expires, absent, *theirs)
                if absent:
                    self.payloads.add(topic, value.node, value.size)
        except UsageError as error:
            namespace, name = (each.decode("utf-8", "replace") for each in topic)
            self._log("error", str(error), (
                "a retained message in etcd cannot be used, and is left out: publish it again"),
                {"topic": name, "namespace": namespace, "why": str(error)})
            return
        known = None if seen.value is None else Known(seen.revision, seen.whole)
        if changed or self._revisions.known.get(topic) != known:
            self._record(topic, known)

    def _record(self, topic: Topic, known: Known | None) -> None:
        self._revisions.note(topic, known)
        self._hub.wake_up()

    # ------------------------------------------------------------------ expiry

    async def _sweep(self) -> None:
        """The leader deletes what has expired; every node drops its own copy without being told."""
        while not self._closed:
            await self._driver.sleep(SWEEP_S)
            if not self._is_leader() or self._closed:
                continue
            now = self._hub.now_ms
            for topic in [topic for topic, expires in self._expiries.items() if expires <= now]:
                known = self._revisions.known.get(topic)
                self._revisions.collect()
                if known is None or topic in self._under_way or (
                        topic in self._revisions.pending or topic in self._revisions.lacking):
                    continue
                key = topic_key(RETAINED_DATA if known.whole else RETAINED_INDEX, *topic)
                try:
                    await self._writer.change([Compare(key, known.revision)], [Change(key, None)])
                except StoreError:
                    break
