"""Retained messages of the whole cluster: what clients of this node retain goes to the metadata store, and what the
store has is known here.

    a client's message ─► journal, acknowledged ─► pending ─► under way ─► the store has it: a revision
                                                     ▲           │
                                                     └───────────┘ somebody else was first: again, with that revision
    the store's ─► not pending here: kept here, recorded with its revision
                   pending here: its revision is noted; ours is newer, and will replace it

The newest revision wins on every node. A value that is pending from a former life of this node may be old, so it gives
way to whatever the store has that this node did not know, except what this node wrote itself: its former life died
before it heard of that.

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
from fluxmq._core.pubsub.retained import Retained
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import RETAINED_DATA, RETAINED_INDEX, Name, topic_key
from fluxmq.cluster.payloads import Payloads
from fluxmq.cluster.ports import (
    Change,
    Compare,
    Event,
    Item,
    Log,
    MetadataStore,
    StoreError,
    StoreFull,
    TransactionResult,
    Transport,
)
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.retained_revisions import Known, RetainedRevisions, Topic
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


class Value(msgspec.Struct, array_like=True, frozen=True):
    """A retained message in the store. node: who wrote it, and has the payload. payload: b"" in the index, and so are
    its properties. size: of the payload. expires_ms: wall clock; 0: never."""

    node: str
    qos: int
    size: int
    expires_ms: int = 0
    properties: bytes = b""
    payload: bytes = b""


class _Seen(msgspec.Struct, frozen=True):
    """A change by somebody else. value None: cleared."""

    revision: int
    whole: bool
    value: Value | None


class _Write(msgspec.Struct):
    """A topic under way. number: of the change (RetainedRevisions.pending). seen: the newest that the feed has shown
    meanwhile. dropped: the store's value has won."""

    number: int
    seen: _Seen | None = None
    dropped: bool = False


def _differs(kept: Retained, value: Value) -> bool:
    return ((kept.payload, kept.properties, kept.qos, kept.expires_at != 0)
            != (value.payload, value.properties, value.qos, value.expires_ms != 0))


_value = msgspec.msgpack.Decoder(Value).decode
_encode = msgspec.msgpack.encode


class RetainedMessages:
    """One per life of a node.

    node: its name. threshold: payloads of this size or more are not written to the store. is_leader: whether this node
    deletes what has expired. sources: see Payloads.
    """

    payloads: Payloads

    def __init__(self, node: str, store: MetadataStore, feed: Feed, transport: Transport, driver: Driver, *,
                 threshold: int, is_leader: Callable[[], bool], sources: Callable[[str], list[str]],
                 log: Log) -> None:
        self._node = node
        self._transport = transport
        self._sources = sources
        self._feed = feed
        self._driver = driver
        self._threshold = threshold
        self._is_leader = is_leader
        self._log = log
        self._writer = Writer(store, driver, transactions_max=TRANSACTIONS_MAX)
        self._hub: Hub
        self._revisions: RetainedRevisions
        self._under_way: dict[Topic, _Write] = {}
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
        revisions.follow()
        self.payloads = Payloads(hub, revisions, self._transport, self._driver, sources=self._sources, log=self._log)

    def begin(self) -> None:
        """Everything is loaded from the disk, and the feed will report what the store has."""
        self._revisions.begin()

    def loaded(self) -> None:
        """The feed has reported all that the store has: what this node knew of and is not there was cleared. Begins to
        write."""
        for topic, known in list(self._revisions.known.items()):
            if not self._feed.has(topic_key(RETAINED_DATA if known.whole else RETAINED_INDEX, *topic)):
                self._gone(topic, self._feed.revision)
        self._loading = False
        self._hub.retained.on_changed = self._wake
        self._driver.start(self._sweep())
        self._wake()

    def close(self, why: str) -> None:
        """Nothing is written any more."""
        self._closed = True
        self._writer.close(why)
        if hasattr(self, "_hub"):
            self.payloads.close()

    @property
    def waiting(self) -> int:
        """Topics whose value here the store does not have."""
        self._revisions.collect()
        return len(self._revisions.pending)

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
            if topic in self._recent:
                continue
            if size > ROUND_BYTES_MAX or len(topics) >= ROUND_TOPICS_MAX:
                break
            kept = self._kept(topic)
            size += kept.size if kept is not None and self._is_whole(kept) else 0
            topics.append(topic)
        return topics

    def _begin(self, topic: Topic) -> bool:
        """Whether it is still to be written."""
        number = self._revisions.pending.get(topic)
        if number is None:
            return False
        self._under_way[topic] = _Write(number)
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
            pending[topic] = pending.pop(topic)
            cleared = self._kept(topic) is None
            if (cleared or not tries) and len(topics) < ROUND_TOPICS_MAX:
                tries = tries or not cleared
                topics.append(topic)
        return topics

    async def _write_one(self, topic: Topic) -> None:
        if self._under_way[topic].dropped:
            del self._under_way[topic]
            return
        known, kept = self._revisions.known.get(topic), self._kept(topic)
        data, index = topic_key(RETAINED_DATA, *topic), topic_key(RETAINED_INDEX, *topic)
        compares = [Compare(data, known.revision if known is not None and known.whole else 0),
                    Compare(index, known.revision if known is not None and not known.whole else 0)]
        whole = kept is not None and self._is_whole(kept)
        changes = []
        if kept is not None:
            changes.append(Change(data if whole else index, _encode(self._value_of(kept, whole))))
        if known is not None and (kept is None or known.whole != whole):
            changes.append(Change(data if known.whole else index, None))
        try:
            if not changes:
                self._settled(topic, None, 0)
                return
            if kept is None and known is not None:
                self._record(topic, known._replace(clearing=True))
            result = await self._writer.change(compares, changes, wait_for_space=False)
        except StoreFull as error:
            del self._under_way[topic]
            if not self._full and not self._closed:
                self._log("error", str(error), "retained messages wait until etcd has space",
                          {"why": str(error)})
            self._full, self._trouble = True, str(error)
            return
        except StoreError as error:
            del self._under_way[topic]
            if not self._trouble and not self._closed:
                self._log("error", str(error), "retained messages cannot be written to etcd; trying again",
                          {"why": str(error)})
            self._trouble = str(error)
            return
        if self._closed:
            return                          # the hub may not be this node's any more
        self._full = self._full and kept is None
        if result.done:
            if kept is not None and kept.expires_at:
                self._expiries[topic] = self._hub.wall_of(kept.expires_at)
            for key in (data, index):
                self._feed.note(key, result.revision)
            self._settled(topic, Known(result.revision, whole) if kept is not None else None, result.revision)
        else:
            self._failed(topic, result)

    def _settled(self, topic: Topic, known: Known | None, revision: int) -> None:
        """The store has what was under way, at this revision."""
        write = self._under_way.pop(topic)
        if write.dropped:
            return
        self._revisions.collect()
        pending, seen = self._revisions.pending, write.seen
        if pending[topic] == write.number:
            del pending[topic]
        if seen is None or seen.revision <= revision:
            self.payloads.forget(topic)
            self._record(topic, known)
        elif topic not in pending:          # somebody has changed it since
            self._apply(topic, seen, pending_before=True)

    def _failed(self, topic: Topic, result: TransactionResult) -> None:
        """The store has another value than this node knew."""
        data, index = result.found
        if data is not None or index is not None:
            self._show(topic, data or index, data is not None)
        else:
            self._gone(topic, result.revision)
        del self._under_way[topic]

    def _show(self, topic: Topic, item: Item | None, whole: bool) -> None:
        if item is not None and (value := self._read(item.key, item.value)) is not None:
            self._present(topic, _Seen(item.revision, whole, value))

    def _value_of(self, kept: Retained, whole: bool) -> Value:
        expires = self._hub.wall_of(kept.expires_at)
        size = len(kept.payload)
        if not whole:
            return Value(self._node, kept.qos, size, expires)
        return Value(self._node, kept.qos, size, expires, kept.properties, kept.payload)

    def _is_whole(self, kept: Retained) -> bool:
        return len(kept.payload) < self._threshold and len(kept.properties) <= PROPERTIES_MAX

    def _kept(self, topic: Topic) -> Retained | None:
        namespace = self._hub.namespaces.get(topic[0])
        kept: Retained | None = None if namespace is None else namespace.topics.retained.get(topic[1])
        return kept

    # ------------------------------------------------------------------ from the store

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a key of retained messages that this node has not made, or does not know of yet."""
        topic, whole = (name.namespace, name.name), name.kind == RETAINED_DATA
        self._revisions.collect()
        if event.value is None:
            known = self._revisions.known.get(topic)
            if known is not None and known.whole == whole:      # otherwise it has the other form now
                self._gone(topic, event.revision)
        elif (value := self._read(event.key, event.value)) is not None:
            self._present(topic, _Seen(event.revision, whole, value))

    def _read(self, key: bytes, value: bytes) -> Value | None:
        try:
            return _value(value)
        except MALFORMED as error:
            self._log("error", str(error), "etcd has a retained message that this version cannot read",
                      {"key": key.decode("utf-8", "replace")})
            return None

    def _present(self, topic: Topic, seen: _Seen) -> None:
        known = self._revisions.known.get(topic)
        if known is not None and (known.revision > seen.revision or
                                  (known.revision == seen.revision and not self._loading)):
            return
        value = seen.value
        assert value is not None
        write = self._under_way.get(topic)
        number = self._revisions.pending.get(topic)
        expected = known is not None and known.revision == seen.revision
        if number is None or (number == 0 and not expected and value.node != self._node):
            self._lose(topic)
            self._apply(topic, seen, pending_before=number is not None)
            return
        if write is not None:
            write.seen = seen
        if not expected:
            self._record(topic, Known(seen.revision, seen.whole))

    def _gone(self, topic: Topic, revision: int) -> None:
        """The store has no value of this topic."""
        known = self._revisions.known.get(topic)
        if known is None or known.revision >= revision:
            return
        write = self._under_way.get(topic)
        number = self._revisions.pending.get(topic)
        seen = _Seen(revision, True, None)
        if number is None or (number == 0 and not known.clearing):
            self._lose(topic)
            self._apply(topic, seen, pending_before=number is not None)
            return
        if write is not None:
            write.seen = seen
        self._record(topic, None)

    def _lose(self, topic: Topic) -> None:
        self._revisions.pending.pop(topic, None)
        write = self._under_way.get(topic)
        if write is not None:
            write.dropped = True

    def _apply(self, topic: Topic, seen: _Seen, pending_before: bool = False) -> None:
        """Keeps what the store has. pending_before: the disk knows the topic as pending."""
        value, hub, now = seen.value, self._hub, self._kept(topic)
        was = self._revisions.known.get(topic)
        same = was is not None and was.revision == seen.revision and not pending_before
        self._expiries.pop(topic, None)
        if value is not None and value.expires_ms:
            self._expiries[topic] = value.expires_ms
            if value.expires_ms <= hub.now_ms:
                value = None
        absent = value is not None and not seen.whole
        if absent and same and now is not None:
            return                          # this node has its payload
        if not same:
            self.payloads.forget(topic)
        expires = 0 if value is None or not value.expires_ms else max(1, value.expires_ms - hub.wall_lead_ms)
        changed = pending_before
        try:
            if value is None:
                if now is not None:
                    changed = True
                    hub.retained.learn(hub.namespaces[topic[0]].topics, topic[1], b"")
            elif absent or now is None or now.absent or _differs(now, value):
                changed = True
                hub.retained.learn(hub.namespaces.add(topic[0]).topics, topic[1], value.payload, value.qos,
                                   value.properties, expires, absent)
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
                if known is None or topic in self._revisions.pending or topic in self._under_way:
                    continue
                key = topic_key(RETAINED_DATA if known.whole else RETAINED_INDEX, *topic)
                try:
                    await self._writer.change([Compare(key, known.revision)], [Change(key, None)])
                except StoreError:
                    break
