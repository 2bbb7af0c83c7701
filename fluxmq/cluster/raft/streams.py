"""The streams that carry Raft's messages: one to each other node, and the one that it has opened.

    set_nodes ─► Link ─dialled─► open ─► what the node has, frames of messages
                   ▲               │
                   └ after a pause ┴─── refused, broken: what waits is dropped

Nothing is repeated here, since Raft repeats; nothing is held back, but while a frame is being written what comes
meanwhile gathers, so that votes and heartbeats go in front of appends. Neither lease nor etcd is asked: a node that
has lost either still votes.

A message counts only if its stream's node has said that it has the replica which the message is from, of the same life
of the group as this node's own. So what another replica, or this one before its disk was lost, has sent reaches nobody.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from fluxmq._core.errors import CorruptError, ProtocolError, UsageError
from fluxmq._core.raft.messages import Message, MessageKind
from fluxmq._core.raft.wire import decode_frame, encode_frames, encode_replicas, frame_bytes, is_urgent
from fluxmq.cluster.ports import Log, StreamIn, StreamOut, Transport
from fluxmq.cluster.raft.words import (
    VERSIONS,
    OwnReplica,
    RaftAnswer,
    RaftHello,
    encode,
    raft_answer_of,
    raft_hello_of,
    replicas_of,
)
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.malformed import MALFORMED

__all__ = ["BACKLOG_BYTES", "FRAME_BYTES", "RaftStreams"]

REDIAL_FIRST_S, REDIAL_LAST_S = 0.05, 2.0
FRAME_BYTES = 1 << 20  # at most, unless one message is longer: a vote waits for one frame that is being written
HEADS_BYTES = 64  # of a frame and of its heartbeats, at most
BACKLOG_BYTES = 16 << 20  # that gather for a node before its appends are dropped
HELLO_REPLICAS_BYTES = 48 << 10  # a transport takes 64 KiB of a hello or an answer


class RaftStreams:
    """StreamHandler of these streams; has() tells which they are. One per life of a node.

    node: this one's name. disk: identifies its storage directory. life: drawn when the process began. cluster: its
    name; "" while it is not known, which fits all others. replicas: those of this node; announce() when they change.

    on_messages(node, messages): (group, message) of each, for groups of this node; flush() follows sooner or later.
    on_replicas(node, replicas): all that it has, as it says itself. on_lost(node): the stream that it had opened is
    gone, and what was under way may be lost. None of these raises or calls close(), and none comes after that.

    dropped: appends, because too much has gathered for their node. strange: messages that came and do not count.
    """

    def __init__(self, *, node: str, disk: str, life: int, transport: Transport, driver: Driver,
                 cluster: Callable[[], str], replicas: Callable[[], list[OwnReplica]],
                 on_messages: Callable[[str, list[tuple[int, Message]]], None],
                 on_replicas: Callable[[str, list[OwnReplica]], None], on_lost: Callable[[str], None],
                 log: Log) -> None:
        self.node = node
        self.disk = disk
        self.life = life
        self.dropped = 0
        self.strange = 0
        self._transport = transport
        self._driver = driver
        self._cluster = cluster
        self._replicas = replicas
        self._on_messages = on_messages
        self._on_replicas = on_replicas
        self._on_lost = on_lost
        self._log = log
        self._links: dict[str, _Link] = {}
        self._of_stream: dict[StreamOut, _Link] = {}
        self._sources: dict[StreamIn, _Source] = {}
        self._own: dict[int, tuple[int, int]] | None = None  # by group: incarnation and number; None: ask
        self._closed = False

    def has(self, stream: StreamIn | StreamOut) -> bool:
        """Whether it is one of these, and neither over nor closed."""
        return stream in self._sources or stream in self._of_stream

    # ------------------------------------------------------------------ what the node does

    def set_nodes(self, addresses: dict[str, str]) -> None:
        """The nodes to be dialled, and where. To all others nothing is sent any more; the streams that they have opened
        stay while they want. A node whose address has changed is dialled anew. This node itself is left out."""
        if self._closed:
            return
        for name, link in list(self._links.items()):
            if addresses.get(name) != link.address:
                self._hang_up(link)
                del self._links[name]
        for name, address in addresses.items():
            if name != self.node and name not in self._links:
                self._links[name] = _Link(name, address)
                self._dial(self._links[name])

    def send(self, node: str, group: int, messages: list[Message]) -> None:
        """Messages for a node; they leave at flush(), or when the stream becomes idle. Dropped if there is none."""
        link = self._links.get(node)
        if link is not None and link.open:
            for message in messages:
                self.dropped += not link.add(group, message)

    def flush(self) -> None:
        """The end of a turn: what has gathered leaves, to whom nothing is being written."""
        for link in self._links.values():
            self._leave(link)

    def announce(self) -> None:
        """This node has other replicas than before: the others are told, ahead of all messages."""
        self._own = None
        for link in self._links.values():
            link.tells = True
            self._tell(link)

    def close(self, why: str) -> None:
        """Closes all streams; nothing is sent or passed on any more. why: for the other nodes."""
        self._closed = True
        for link in self._links.values():
            self._hang_up(link)
        self._links.clear()
        sources, self._sources = self._sources, {}
        for stream in sources:
            stream.close(why)

    def _ask_own(self) -> list[OwnReplica]:
        replicas = self._replicas()
        self._own = {own.group: (own.incarnation, own.number) for own in replicas}
        return replicas

    def _for_hello(self) -> list[OwnReplica] | None:
        replicas = self._ask_own()
        return replicas if len(encode(replicas)) <= HELLO_REPLICAS_BYTES else None

    # ------------------------------------------------------------------ the stream to a node

    def _dial(self, link: _Link) -> None:
        if self._links.get(link.name) is not link or link.stream is not None:
            return
        replicas = self._for_hello()
        link.tells = replicas is None       # and from now on, what announce() finds
        hello = RaftHello(cluster=self._cluster(), node=self.node, disk=self.disk, life=self.life, replicas=replicas)
        link.stream = self._transport.dial(link.address, encode(hello))
        self._of_stream[link.stream] = link

    def _hang_up(self, link: _Link) -> None:
        if link.stream is not None:
            del self._of_stream[link.stream]
            link.stream.close()
            link.end()

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        """See StreamHandler."""
        link = self._of_stream.get(stream)
        if link is None:
            return
        try:
            agreed = raft_answer_of(answer)
            if agreed.node != link.name:
                raise ProtocolError(0x82, f"node {agreed.node} is at {link.address}, not {link.name}")
            if not VERSIONS[0] <= agreed.version <= VERSIONS[1]:
                raise ProtocolError(0x84, f"node {link.name} has chosen version {agreed.version} of Raft's streams")
        except (*MALFORMED, ProtocolError) as error:
            stream.close()
            self.on_closed(stream, str(error))
            return
        link.redial_s = REDIAL_FIRST_S
        link.open = True
        stream.on_idle = partial(self._leave, link)
        self._tell(link)
        # What the node has said since, in its own stream, is newer than an answer that was on its way.
        if agreed.replicas is not None and not any(source.name == link.name and source.heard
                                                   for source in self._sources.values()):
            self._on_replicas(link.name, agreed.replicas)

    def on_closed(self, stream: StreamOut, why: str) -> None:
        """See StreamHandler."""
        link = self._of_stream.pop(stream, None)
        if link is None:
            return
        link.end()
        self._warn(link, why, "no stream for Raft to a node; trying again")
        self._driver.start(self._redial(link))

    def _warn(self, link: _Link, why: str, text: str) -> None:
        if why != link.last_error:
            self._log("warning", why, text, {"node": link.name, "why": why})
        link.last_error = why

    async def _redial(self, link: _Link) -> None:
        pause, link.redial_s = link.redial_s, min(2 * link.redial_s, REDIAL_LAST_S)
        await self._driver.sleep(pause)
        self._dial(link)

    def _leave(self, link: _Link) -> None:
        self._tell(link)
        while link.idle and (some := link.take()):
            for frame in encode_frames(some, FRAME_BYTES):
                self._send(link, frame)

    def _tell(self, link: _Link) -> None:
        if link.tells and link.idle:
            link.tells = False
            self._send(link, encode_replicas(encode(self._ask_own())))

    def _send(self, link: _Link, frame: bytes) -> None:
        """Whether it left at once is asked of `idle`, which says the same: on_idle comes exactly if it is false now."""
        if link.stream is not None:
            try:
                link.stream.send(frame)
            except UsageError as error:
                self._warn(link, str(error), "what Raft has for a node cannot be sent")

    # ------------------------------------------------------------------ the stream from a node

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        """See StreamHandler."""
        try:
            said = raft_hello_of(hello)
            version = self._check(said)
        except (*MALFORMED, ProtocolError) as error:
            stream.close(str(error))
            return None
        for former, source in list(self._sources.items()):
            if source.name == said.node:
                # The node has dialled again before this end has noticed that the former stream is broken.
                self._end(former, "replaced by a newer stream")
        self._sources[stream] = source = _Source(said.node)
        if said.replicas is not None:
            self._hear(source, said.replicas)
        return encode(RaftAnswer(version=version, node=self.node, disk=self.disk, life=self.life,
                                 replicas=self._for_hello()))

    def _check(self, hello: RaftHello) -> int:
        """The version that both speak. Raises ProtocolError."""
        cluster = self._cluster()
        if self._closed:
            raise ProtocolError(0x88, f"node {self.node} is stopping")
        if hello.node == self.node:
            raise ProtocolError(0x87, f"this is node {self.node}, and so is who dials")
        if hello.cluster and cluster and hello.cluster != cluster:
            raise ProtocolError(0x87, f"node {self.node} is in another cluster ({cluster}, not {hello.cluster})")
        version = min(hello.versions[1], VERSIONS[1])
        if version < max(hello.versions[0], VERSIONS[0]):
            own, its = (f"{lowest} to {highest}" for lowest, highest in (VERSIONS, hello.versions))
            raise ProtocolError(0x84, f"node {self.node} speaks versions {own} of Raft's streams, node {hello.node} "
                                      f"{its}: upgrade the older one")
        return version

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        """See StreamHandler."""
        source = self._sources.get(stream)
        if source is None:
            return
        try:
            messages, body = decode_frame(frame)
            replicas = None if body is None else replicas_of(body)
        except (CorruptError, *MALFORMED) as error:
            why = str(error)
            self._log("error", why, "a stream of Raft's from a node was closed; it dials again",
                      {"node": source.name, "why": why})
            self._end(stream, why)
            return
        if replicas is not None:
            self._hear(source, replicas)
        if messages:
            self._pass_on(source, messages)

    def _hear(self, source: _Source, replicas: list[OwnReplica]) -> None:
        source.heard = True
        source.replicas = {its.group: (its.incarnation, its.number) for its in replicas}
        self._on_replicas(source.name, replicas)

    def _pass_on(self, source: _Source, messages: list[tuple[int, Message]]) -> None:
        if self._own is None:
            self._ask_own()
        own, its = self._own or {}, source.replicas
        known = []
        for group, message in messages:
            here, there = own.get(group), its.get(group)
            if here is not None and there is not None and (here[0], message.sender, message.to) == (*there, here[1]):
                known.append((group, message))
        self.strange += len(messages) - len(known)
        if known:
            self._on_messages(source.name, known)

    def on_end(self, stream: StreamIn) -> None:
        """See StreamHandler."""
        self._end(stream, None)

    def _end(self, stream: StreamIn, why: str | None) -> None:
        """why: it is closed here; None: it has ended."""
        source = self._sources.pop(stream, None)
        if source is not None:
            if why is not None:
                stream.close(why)
            self._on_lost(source.name)


class _Source:
    """A node that has opened a stream. replicas: that it says it has, by group: incarnation and number."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replicas: dict[int, tuple[int, int]] = {}
        self.heard = False  # it has said which


class _Link:
    """A node that is dialled, at one address, and what gathers for it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.stream: StreamOut | None = None
        self.open = False
        self.tells = False  # it is to be told of this node's replicas
        self.redial_s = REDIAL_FIRST_S
        self.last_error = ""
        self._urgent: list[tuple[int, Message]] = []
        self._rest: deque[tuple[int, Message]] = deque()
        self._bytes = 0  # of the latter

    @property
    def idle(self) -> bool:
        """Whether a frame would leave at once."""
        return self.open and self.stream is not None and self.stream.idle

    def end(self) -> None:
        """Its stream is over."""
        self.stream = None
        self.open = False
        self._urgent.clear()
        self._rest.clear()
        self._bytes = 0

    def add(self, group: int, message: Message) -> bool:
        """Whether it was taken: not if it is an append, and too much waits already. One always is, so that even the
        largest arrives some time."""
        if is_urgent(message):
            self._urgent.append((group, message))
            return True
        if self._bytes >= BACKLOG_BYTES and message.kind == MessageKind.APPEND:
            return False
        self._rest.append((group, message))
        self._bytes += frame_bytes(message)
        return True

    def take(self) -> list[tuple[int, Message]]:
        """What is urgent, and as much of the rest as the frame holds; but at least one, or appends would wait while
        there is always a heartbeat."""
        urgent, self._urgent = self._urgent, []
        rest: list[tuple[int, Message]] = []
        room = FRAME_BYTES - HEADS_BYTES - sum(frame_bytes(message) for _, message in urgent)
        while self._rest and (not rest or frame_bytes(self._rest[0][1]) <= room):
            rest.append(self._rest.popleft())
            room -= frame_bytes(rest[-1][1])
            self._bytes -= frame_bytes(rest[-1][1])
        return urgent + rest
