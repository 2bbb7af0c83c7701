"""Payloads of retained messages that are not in the metadata store: each is on the node that retained it, and on those
that have fetched it.

    index event ─► absent ──in the background, while there is room──► filled ─► (cleared, replaced, evicted: absent)
                     │                                                  ▲
                     └── a subscriber needs it: its replay waits ───────┘
                                                 └── nobody has it: left out, counted, logged

What was fetched is in memory only. CACHE_BYTES_MAX limits it; what was filled first makes room for what a subscriber
needs now.

A call `retained` has the namespace, the topic and the version; the answer is Part messages, none if the node does not
have that version.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec

from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.retained import Retained
from fluxmq._core.pubsub.retained_replay import RetainedReplay
from fluxmq._core.pubsub.session import Session
from fluxmq.cluster.ports import CallFailed, Log, Transport
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.retained_revisions import NONE, Known, RetainedRevisions, Topic, Version
from fluxmq.model.malformed import MALFORMED

__all__ = ["Payloads"]

CACHE_BYTES_MAX = 256 << 20
FETCHES_MAX = 4  # under way at once
PART_BYTES = 256 << 10
CALL_S = 10.0  # time limit of a call
TRIES, RETRY_S = 3, 0.2  # its node may not have heard yet that the store has what it wrote
AGAIN_S = 5.0  # a payload that nobody had is asked for again after this


class Request(msgspec.Struct, array_like=True, frozen=True):
    """What a call asks for. revision: of the store's value, if that has no version (0, 0)."""

    namespace: bytes
    topic: bytes
    revision: int
    version: int = 0
    life: int = 0


class Part(msgspec.Struct, array_like=True, frozen=True):
    """size: of the payload. properties: in the first part."""

    size: int
    payload: bytes
    properties: bytes = b""


_request = msgspec.msgpack.Decoder(Request).decode
_part = msgspec.msgpack.Decoder(Part).decode
_encode = msgspec.msgpack.encode


class Payloads:
    """One per life of a node. sources: called with the name of the node that wrote a message; the addresses of the
    other nodes, that one's first."""

    def __init__(self, hub: Hub, revisions: RetainedRevisions, transport: Transport, driver: Driver, *,
                 sources: Callable[[str], list[str]], log: Log, cache_bytes: int = CACHE_BYTES_MAX) -> None:
        self._hub = hub
        self._revisions = revisions
        self._transport = transport
        self._driver = driver
        self._sources = sources
        self._log = log
        self._cache_bytes = cache_bytes
        self._absent: dict[Topic, tuple[str, int]] = {}  # not fetched: who wrote it, and its size
        self._filled: dict[Topic, tuple[str, int]] = {}  # fetched, in this order
        self._bytes = 0  # of these
        self._queue: dict[Topic, None] = {}  # to be fetched
        self._fetching: set[Topic] = set()
        self._waiting: dict[Topic, list[tuple[RetainedReplay, Session]]] = {}
        self._failed: dict[Topic, float] = {}  # when nobody had it
        self._closed = False
        self.left_out = 0  # messages that were not sent to a subscriber
        hub.retained.fetcher = lambda namespace: partial(self._want, namespace)

    def close(self) -> None:
        """Nothing is fetched any more."""
        self._closed = True
        self._queue.clear()

    # ------------------------------------------------------------------ what the node keeps

    def add(self, topic: Topic, node: str, size: int) -> None:
        """The store's message of this topic has its payload on this node; here it is absent."""
        self.forget(topic)
        self._absent[topic] = node, size
        self._hub.namespaces[topic[0]].topics.retained.fetch = partial(self._want, topic[0])
        if self._bytes + size <= self._cache_bytes:
            self._push(topic)

    def came(self, topic: Topic, node: str, size: int) -> None:
        """As add(), but the payload has come, for subscribers of this node."""
        self.forget(topic)
        self._make_room(size)
        self._filled[topic] = node, size
        self._bytes += size

    def source(self, topic: Topic) -> tuple[str, int] | None:
        """The node that has the payload of a message which is not on this node's disk, and its size."""
        return self._absent.get(topic) or self._filled.get(topic)

    def retry(self) -> None:
        """A node has come back, which may have what nobody had."""
        self._failed.clear()
        size = self._bytes
        for topic, source in self._absent.items():
            size += source[1]
            if size > self._cache_bytes:
                break
            self._queue[topic] = None
        self._begin()

    def forget(self, topic: Topic) -> None:
        """The store has another message of this topic, or none."""
        self._queue.pop(topic, None)
        self._absent.pop(topic, None)
        self._failed.pop(topic, None)
        if topic in self._filled:
            self._bytes -= self._filled.pop(topic)[1]
        if topic not in self._fetching:
            self._resume(topic)             # nobody is going to fetch it: what waits looks at what there is instead

    def _resume(self, topic: Topic) -> None:
        for replay, session in self._waiting.pop(topic, ()):
            replay.resume(session)
            self._hub.wake_up()

    def _kept(self, topic: Topic) -> Retained | None:
        """What the tree has of a topic that is another node's."""
        namespace = self._hub.namespaces.get(topic[0])
        kept: Retained | None = None if namespace is None else namespace.topics.retained.get(topic[1])
        return kept if kept is not None and kept.unstored else None

    def _make_room(self, size: int) -> None:
        while self._filled and self._bytes + size > self._cache_bytes:
            topic = next(iter(self._filled))
            source = self._filled.pop(topic)
            self._bytes -= source[1]
            kept = self._kept(topic)
            if kept is not None and not kept.absent:
                self._hub.retained.empty(kept, self._hub.namespaces[topic[0]].topics)
                self._absent[topic] = source

    # ------------------------------------------------------------------ a subscriber needs one

    def _want(self, namespace: bytes, name: bytes, replay: RetainedReplay, session: Session) -> bool:
        """RetainedTree.fetch."""
        topic = namespace, name
        self._revisions.collect()           # it may have come a moment ago
        now = self._driver.now()
        if topic not in self._absent or now < self._failed.get(topic, now - AGAIN_S) + AGAIN_S:
            self.left_out += 1
            return False
        waiting = self._waiting.setdefault(topic, [])
        if not any(one[0] is replay for one in waiting):
            waiting.append((replay, session))
        self._push(topic, first=True)
        return True

    def _push(self, topic: Topic, first: bool = False) -> None:
        if self._closed or topic in self._fetching:
            return
        if first:
            self._queue = {topic: None} | self._queue
        else:
            self._queue[topic] = None
        self._begin()

    def _begin(self) -> None:
        while self._queue and len(self._fetching) < FETCHES_MAX:
            topic = next(iter(self._queue))
            del self._queue[topic]
            self._fetching.add(topic)
            self._driver.start(self._fetch(topic))

    # ------------------------------------------------------------------ fetch

    async def _fetch(self, topic: Topic) -> None:
        wanted, source = self._wanted(topic), self._absent.get(topic)
        found = None
        try:
            if source is not None:
                found = await self._ask_all(topic, wanted, source[0])
        finally:
            self._fetching.discard(topic)
        if self._closed:
            return
        kept = self._kept(topic)
        self._revisions.collect()
        if source is not None and self._wanted(topic) == wanted and self._absent.get(topic) is source:
            if found is not None and kept is not None:
                self._make_room(source[1])
                self._hub.retained.fill(kept, self._hub.namespaces[topic[0]].topics, *found)
                del self._absent[topic]
                self._filled[topic] = source
                self._bytes += source[1]
            elif found is None:
                self._failed[topic] = self._driver.now()
                self._log("warning", "no node that is there has it", "the payload of a retained message is missing: it "
                          "is left out", {"topic": topic[1].decode("utf-8", "replace"), "node": source[0]})
        elif topic in self._absent:         # it was replaced meanwhile
            self._push(topic, first=topic in self._waiting)
        if topic not in self._fetching and topic not in self._queue:
            self._resume(topic)
        self._begin()

    def _wanted(self, topic: Topic) -> tuple[Version, Known | None]:
        version = self._revisions.version_of(topic)
        return version, self._revisions.known.get(topic) if version == NONE else None

    async def _ask_all(self, topic: Topic, wanted: tuple[Version, Known | None],
                       node: str) -> tuple[bytes, bytes] | None:
        """(payload, properties), from whoever has it."""
        version, known = wanted
        body = _encode(Request(*topic, 0 if known is None else known.revision, *version))
        for attempt in range(TRIES):
            if attempt:
                await self._driver.sleep(RETRY_S)
            for address in self._sources(node):
                try:
                    found = await self._ask(address, body)
                except (CallFailed, *MALFORMED):
                    continue
                if found is not None or self._wanted(topic) != wanted:
                    return found
        return None

    async def _ask(self, address: str, body: bytes) -> tuple[bytes, bytes] | None:
        payload, properties, size = bytearray(), b"", -1
        async for message in self._transport.call(address, "retained", body, CALL_S):
            part = _part(message)
            properties, size = properties or part.properties, part.size
            payload += part.payload
        return (bytes(payload), properties) if size == len(payload) else None

    # ------------------------------------------------------------------ another node needs one

    async def serve(self, body: bytes) -> AsyncIterator[bytes]:
        """The answer to a call `retained`."""
        try:
            request = _request(body)
        except MALFORMED as error:
            raise CallFailed(f"this version does not understand the request for a retained message: {error}",
                             reached=False) from None
        topic = request.namespace, request.topic
        self._revisions.collect()
        kept, known = self._revisions.kept(topic), self._revisions.known.get(topic)
        if kept is None or kept.absent or (kept.version, kept.life) != (request.version, request.life):
            return
        if not request.version and (known is None or known.revision != request.revision
                                    or topic in self._revisions.pending):
            return
        payload, properties = kept.payload, kept.properties
        for at in range(0, len(payload), PART_BYTES):
            yield _encode(Part(len(payload), payload[at:at + PART_BYTES], b"" if at else properties))
