"""Two hubs in one process with streams between them. The test carries the frames and plays the turns."""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller
from fluxmq._core.peer.inbox import PeerInbox
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.pubsub.session import Session

__all__ = ["PeerNode", "Wire"]

START_MS = 1_000_000


class PeerNode:
    """A hub without clients, in one life of a node. heard: (sender, what, …) of every call of a handler but on_applied.
    applied: (sender, sequence) of these."""

    def __init__(self, name: str, epoch: int = 1, journal: Journal | None = None, window_bytes: int = 1 << 24) -> None:
        self.name = name
        self.epoch = epoch
        self.journal = journal
        self.window_bytes = window_bytes
        self.now_ms = START_MS
        self.hub = Hub(journal, 64)
        self.poller = Poller(self.hub, clocks=lambda: (self.now_ms, self.now_ms, self.now_ms))
        self.outboxes: dict[str, PeerOutbox] = {}
        self.inboxes: dict[str, PeerInbox] = {}
        self.ears: dict[str, _Ear] = {}                 # their handlers
        self.heard: list[tuple[object, ...]] = []
        self.applied: list[tuple[str, int]] = []
        self.outcomes: dict[int, str | None] = {}       # number of a publish -> None: acknowledged; why it was refused

    def to(self, other: str, *filters: bytes) -> PeerOutbox:
        """Its outbox to another node, which wants these topics."""
        if other not in self.outboxes:
            self.outboxes[other] = PeerOutbox(self.hub, other, self.epoch, self.window_bytes)
        for filter_ in filters:
            self.hub.targets.add_peer(self.outboxes[other], filter_)
        return self.outboxes[other]

    def accept(self, sender: str, epoch: int) -> int:
        """Another node opens a stream: returns the position for the answer."""
        inbox = self.inboxes.get(sender)
        if inbox is None or inbox.epoch != epoch:
            if inbox is not None:
                inbox.close()
            ear = self.ears[sender] = _Ear(self, sender, epoch)
            inbox = self.inboxes[sender] = PeerInbox(self.hub, sender, epoch, self.epoch, ear)
            inbox.outbox = self.to(sender)
        return inbox.position

    def session(self, name: bytes, *filters: bytes, number: int = 0) -> Session:
        """Its client is away, so it keeps everything of QoS 1 and 2. number: of a journalled one."""
        session = self.hub.new_session(name, number)
        session.journalled = bool(number)
        session.queue_max = 1 << 20
        session.queue_bytes_max = 1 << 30
        for filter_ in filters:
            self.hub.subscribe(session, filter_, 2, 0)
        return session

    def publish(self, topic: bytes, payload: bytes, qos: int = 1, number: int = 0, expires_at: int = 0) -> None:
        """As a client would, in the middle of a turn; what becomes of it is in `outcomes`."""
        since = self.hub.commits.mark
        self.hub.publish_message(topic, payload, qos, expires_at=expires_at)
        outcomes = self.outcomes            # what waits must not keep the hub alive
        if number:
            self.hub.when_durable(lambda: outcomes.update({number: None}), since,
                                  lambda why: outcomes.update({number: why}))

    def turn(self, *, journal: bool = True) -> None:
        """journal: it is asked what became durable, if there is one."""
        self.poller.play([], journal and self.journal is not None)


class _Ear:
    """The handler of an inbox. awaited: at each on_applied, whether somebody waits for that."""

    def __init__(self, node: PeerNode, sender: str, epoch: int) -> None:
        self.node, self.sender, self.epoch = node, sender, epoch
        self.then: Callable[[], None] | None = None
        self.awaited: list[bool] = []

    def _hear(self, *what: object) -> None:
        self.node.heard.append((self.sender, *what))

    def on_applied(self, sequence: int) -> None:
        self.node.applied.append((self.sender, sequence))
        self.awaited.append(self.node.inboxes[self.sender].awaited if self.sender in self.node.inboxes else True)
        if self.sender in self.node.outboxes:
            self.node.outboxes[self.sender].ack(self.epoch, sequence)

    def on_interest(self, namespace: bytes, filter_: bytes, group: bytes, count: int, durable: bool) -> None:
        self._hear("interest", namespace, filter_, group, count, *((True,) if durable else ()))

    def on_interest_end(self) -> None:
        self._hear("interest end")

    def on_control(self, data: bytes) -> None:
        self._hear("control", data)
        if data.startswith(b"raise"):
            raise ZeroDivisionError(data)

    def on_group_message(self, *what: object) -> None:
        self._hear("group message", *what)

    def on_refused(self, sequence: int, why: str) -> None:
        self._hear("refused", sequence, why)

    def on_attach(self, number: int, queue: int, data: bytes) -> None:
        self._hear("attach", number, queue, data)

    def on_detach(self, number: int, rests: bool) -> None:
        self._hear("detach", number, rests)

    def on_call(self, number: int, queue: int, data: bytes) -> None:
        self._hear("call", number, queue, data)

    def on_result(self, number: int, data: bytes) -> None:
        self._hear("result", number, data)


class Wire:
    """The stream from one node to another. Frames that were sent wait in `frames` until deliver(). late: those of the
    connection before, which the target may still find in its buffers."""

    def __init__(self, source: PeerNode, target: PeerNode) -> None:
        self.source = source
        self.target = target
        self.frames: list[bytes] = []
        self.late: list[bytes] = []
        self.open = False

    @property
    def outbox(self) -> PeerOutbox:
        return self.source.to(self.target.name)

    @property
    def inbox(self) -> PeerInbox:
        return self.target.inboxes[self.source.name]

    def dial(self) -> Wire:
        """Connects; returns itself."""
        self.frames = []
        self.open = True
        self.outbox.attach(self.frames.append, self.target.epoch, self.target.accept(self.source.name,
                                                                                     self.source.epoch))
        return self

    def lose(self) -> None:
        """The connection breaks, with what it had not delivered."""
        if self.open:
            self.late, self.frames = self.frames, []
            self.open = False
            self.outbox.detach()

    def deliver(self, count: int = 1 << 30) -> int:
        """The target gets so many frames, and what they acknowledge is passed to its outbox. Returns how many there
        were."""
        frames = self.frames[:count]
        del self.frames[:count]
        for frame in frames:
            self.target.to(self.source.name).acknowledged(self.inbox.apply(frame))
        return len(frames)

    def deliver_late(self) -> None:
        """The target reads what had arrived on the connection before; at the first frame that it refuses it closes."""
        late, self.late = self.late, []
        for frame in late:
            try:
                self.target.to(self.source.name).acknowledged(self.inbox.apply(frame))
            except ProtocolError:
                return

    def idle(self) -> None:
        """Everything has left the source."""
        if self.open:
            self.outbox.on_idle()

    def settle(self) -> None:
        """Until nothing moves any more: a turn, and all that was sent is delivered, in this direction."""
        while True:
            self.source.turn()
            self.idle()
            if not self.deliver():
                return
            self.target.turn()
