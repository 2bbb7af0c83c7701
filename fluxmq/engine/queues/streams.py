"""Readers of streams, wherever the messages are: those of this node. stream_hosts.py answers those of others.

    a reader of this node, stream elsewhere        the node that has the stream
    ─────────────────────────────────────────────────────────────────────────────────────────────────
    open() ─► "open" ─────────────────────────────► its positions; a reader that delivers nothing stands for it
    it has read all that is here ─► "read" ───────► a PeerFeed answers when there are messages, and committed
    Log.load: cached, as if read from a disk ◄───── a block of messages, for all readers of this node
    its position moves ─► "commit" ───────────────► the group's position
    leave() ─► "close" ───────────────────────────► that reader goes

    the stream moves here: came()                  the stream moves away: goes(), then gone(), or came() if it stays

A node asks for each log of a stream at most twice at a time: for what is new, and for what its slower readers need. It
asks for new messages when its fastest reader has begun with the last block, so readers that are slow stop the stream
and nothing gathers. Questions go with the others (relays.py), so they reach the owner behind what was published before.

A reader has its position and an object for its log. When the stream moves it gets another log, with the same offsets,
and goes on. It is one file because subscriptions, questions and moves change the same tables.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from fluxmq._core.errors import CorruptError
from fluxmq._core.peer.feed import with_expiry
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.parts import Parts
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue.stream import StreamReader
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.positions import NOTHING, position_since
from fluxmq.engine.queues.relays import UNKNOWN, Answer, Hosts, Refusal, Relays, away, moved
from fluxmq.engine.queues.stream_commits import StreamCommits
from fluxmq.engine.queues.stream_hosts import StreamHosts, advance
from fluxmq.engine.queues.table import QueueListener, QueueTable

__all__ = ["Make", "Reading", "StreamReads"]

BLOCK_BYTES = 1 << 20  # of messages in one answer, about
RETRY_MS = 1000  # before what was refused is asked again
LIMIT_MS = 5000  # before the first tick says it

Make = Callable[[Queue, Group | None, list[int]], Sequence[StreamReader]]
Then = Callable[[Answer], None]


class _Opening:
    """The question with which readers were opened at an owner."""

    __slots__ = ("answered", "number", "outbox")

    def __init__(self, outbox: PeerOutbox | None) -> None:
        self.outbox = outbox
        self.number = 0  # by which the owner knows them
        self.answered = False  # it does


class Reading:
    """The readers of one subscription to a stream, one for each of its logs. make: (the stream, or the partition of it;
    its group; offset in each log) -> readers; no readers if its client has gone meanwhile. then: called with the first
    answer, once. waits: see StreamReads.open.
    since_ms: when it was opened."""

    __slots__ = ("client", "group", "make", "opening", "position", "queue", "readers", "since_ms", "then", "waits")

    def __init__(self, queue: Queue, group: Group | None, position: str, client: str, make: Make, then: Then,
                 waits: bool, since_ms: int) -> None:
        self.queue = queue
        self.group = group
        self.position = position
        self.client = client
        self.make = make
        self.then: Then | None = then
        self.waits = waits
        self.since_ms = since_ms
        self.readers: list[StreamReader] = []
        self.opening: _Opening | None = None  # None: the owner does not know it

    @property
    def number(self) -> int:
        """By which the owner knows it; 0: it does not."""
        return self.opening.number if self.opening is not None else 0

    @property
    def known(self) -> bool:
        """Whether the owner has said that it knows it."""
        return self.opening is not None and self.opening.answered


Opened = Reading | Any  # what cancel() takes: the latter of DividedReads


class DividedReads(Protocol):
    """The same of a stream whose partitions are streams of their own (whole_streams.WholeStreams)."""

    def open(self, queue: Queue, group: Group | None, position: str, client: str, make: Make, then: Then, *,
             waits: bool) -> Any:
        """As StreamReads.open."""

    def cancel(self, whole: Any) -> None:
        """As StreamReads.cancel."""


class StreamReads(QueueListener):
    """Machine. The readers of this node. connect() comes before the first one of a stream of another node."""

    def __init__(self, manager: QueueTable) -> None:
        self._manager = manager
        self._relays = Relays()
        self._commits: StreamCommits
        self._readings: dict[Queue, list[Reading]] = {}
        self._of: dict[StreamReader, Reading] = {}
        # Questions that are not answered yet: for new messages, and for others.
        self._polls: dict[Log, object] = {}
        self._loads: dict[Log, object] = {}
        self._last: dict[Log, int] = {}  # start of the last block of new messages
        self._refused: dict[Queue, int] = {}  # when a question was refused
        # Positions that the owner has not taken because the stream moves: (group, index of the log) -> offset.
        self._untold: dict[Queue, dict[tuple[bytes, int], int]] = {}
        self._limit_ms = LIMIT_MS  # how long a client may wait
        self.hosts: StreamHosts | None = None
        self.wholes: DividedReads  # for streams whose partitions are streams of their own

    def connect(self, relays: Relays, hosts: Hosts) -> None:
        """The ways to the other nodes."""
        self._relays = relays
        self._commits = StreamCommits(self._manager.hub, relays)
        relays.ticks.append(self._tick)
        self._manager.listeners.append(self)
        self._manager.on_owner.append(self.owner_changed)
        self.hosts = StreamHosts(self._manager, hosts)

    # ------------------------------------------------------------------ readers come and go

    def open(self, queue: Queue, group: Group | None, position: str, client: str, make: Make, then: Then, *,
             waits: bool = True) -> Opened:
        """Makes readers that begin at a position (positions.py), and adds them to the queue. then: called with the
        answer, for a stream of this node at once. waits: if its node is away, they are made when it is back. Returns
        what cancel() takes. Raises QueueRefused for a stream of this node."""
        relay = queue.relay
        if isinstance(relay, Parts):
            return self.wholes.open(queue, group, position, client, make, then, waits=waits)
        reading = Reading(queue, group, position, client, make, then, waits, self._manager.hub.mono_ms)
        if not isinstance(relay, QueueRelay):
            offsets = self._positions(reading)
            self._readings.setdefault(queue, []).append(reading)
            self._make_here(reading, offsets)
            return reading
        self._readings.setdefault(queue, []).append(reading)
        relay.on_readers = self._wants
        self._open(reading)
        return reading

    def _positions(self, reading: Reading) -> list[int]:
        queue, position, group = reading.queue, reading.position, reading.group
        return [self._manager.position(queue, log, position, group) for log in queue.logs]

    def _make_here(self, reading: Reading, offsets: list[int]) -> None:
        """Its stream is at this node."""
        # a later reader resumes from this one's start
        self._make(reading, offsets, commits=reading.position != "")
        self._answer(reading, Answer())

    def cancel(self, reading: Opened) -> None:
        """Nobody waits any more for readers that may not be made yet; those that are there leave()."""
        if not isinstance(reading, Reading):
            self.wholes.cancel(reading)
        elif not reading.readers:
            reading.then = None
            self._close(reading)

    def leave(self, reader: StreamReader) -> None:
        """A reader leaves; the position of its group is what it has acknowledged, unless only its client moves it."""
        queue = reader.owner
        assert isinstance(queue, Queue)
        self.auto_commit(queue, reader)
        reader.leave()  # type: ignore[attr-defined]  # of the subclasses
        queue.remove_reader(reader)
        reading = self._of.pop(reader, None)
        if reading is not None:
            reading.readers.remove(reader)
            if not reading.readers:
                self._close(reading)
        queue.notify()
        self._manager.left(queue, reader.group)

    def auto_commit(self, queue: Queue, reader: StreamReader) -> bool:
        """Commits what the reader has acknowledged. Returns whether its group's position moved."""
        if not reader.auto_commit():
            return False
        if queue.relay is not None:
            self._tell(queue, reader, reader.acknowledged)
        return True

    def commit(self, reader: StreamReader, next_: int) -> None:
        """Moves the group's position because a client says so. Its acknowledgement waits for the owner. Raises
        QueueRefused if that is away."""
        queue, reading = reader.owner, self._of.get(reader)
        assert isinstance(queue, Queue)
        relay = queue.relay
        if reading is not None and isinstance(relay, QueueRelay):
            if not relay.reachable:
                raise QueueRefused("unavailable", away(relay).text)
            self._commits.commit(reading, queue.logs.index(reader.log), next_)
        reader.commit(next_)

    def _tell(self, queue: Queue, reader: StreamReader, next_: int) -> None:
        reading = self._of.get(reader)
        if reading is not None and reading.number and reading.group is not None:
            at = queue.logs.index(reader.log)
            self._relays.ask(queue, "commit", (reading.number, at, next_, True),
                             partial(self._told, queue, reading.group.name, at, next_))

    def _told(self, queue: Queue, group: bytes, at: int, next_: int, answer: Answer) -> None:
        """The owner has taken a position; or the stream moves, and the reader may have left before it is there."""
        if moved(answer) and queue in self._manager.states:
            untold = self._untold.setdefault(queue, {})
            untold[group, at] = max(untold.get((group, at), 0), next_)
            if queue.relay is None:
                self._tell_untold(queue)

    def _tell_untold(self, queue: Queue) -> None:
        """What the former owner has not taken."""
        relay = queue.relay
        if queue not in self._untold or (isinstance(relay, QueueRelay) and not relay.reachable):
            return
        for (group, at), next_ in self._untold.pop(queue).items():
            if relay is None:
                advance(self._manager, queue, group, at, next_)
            else:
                self._relays.ask(queue, "advance", (group, at, next_), partial(self._told, queue, group, at, next_))

    def _open(self, reading: Reading) -> None:
        relay = reading.queue.relay
        assert isinstance(relay, QueueRelay)
        offsets = [reader.next for reader in reading.readers]
        group = reading.group.name if reading.group is not None else b""
        opening = reading.opening = _Opening(relay.outbox)
        opening.number = self._relays.ask(
            reading.queue, "open", (group, reading.position if not offsets else "", offsets, reading.client),
            partial(self._opened, reading, opening))

    def _opened(self, reading: Reading, opening: _Opening, answer: Answer) -> None:
        queue = reading.queue
        if reading not in self._readings.get(queue, ()):  # it was closed, or the queue deleted
            self._forget_opening(queue, opening)
            self._answer(reading, answer if answer.refused is not None else Answer(refused=UNKNOWN))
        elif reading.opening is not opening:  # it was opened anew, whose answer counts
            self._forget_opening(queue, opening)
        elif moved(answer) and not reading.readers and reading.since_ms + self._limit_ms > self._manager.hub.mono_ms:
            reading.opening = None  # it is opened where the stream has moved to
        elif answer.refused is not None:
            reading.opening = None
            self._forget_opening(queue, opening)  # the owner may not have answered in time
            if not reading.readers and not (reading.waits and answer.refused.passes):
                self._drop(reading)
            self._answer(reading, answer)
        else:
            opening.answered = True
            for log, (first, end, _) in zip(queue.logs, answer.value, strict=True):
                log.mirror(first, end)
            if reading.readers:  # it was opened anew
                for reader in reading.readers:
                    if reader.group is not None and not reader.manual:
                        self._tell(queue, reader, reader.acknowledged)
            else:
                # The owner's position may be below what this node has told, since another client has moved it.
                self._make(reading, [offset for _, _, offset in answer.value], commits=True)
            self._commits.opened(reading)
            self._answer(reading, answer)
            queue.notify()

    def _make(self, reading: Reading, offsets: list[int], *, commits: bool) -> None:
        reading.readers = list(reading.make(reading.queue, reading.group, offsets))
        for reader in reading.readers:
            self._of[reader] = reading
            if reader.group is not None and commits:
                reader.commit(reader.next)
            reading.queue.add_reader(reader)
        if not reading.readers:
            self._close(reading)

    def _answer(self, reading: Reading, answer: Answer) -> None:
        then, reading.then = reading.then, None
        if then is not None:
            if answer.refused is not None:  # if it waits: what comes from now on is new
                reading.position = position_since(reading.position, reading.group, self._manager.hub.now_ms)
            then(answer)
        elif answer.refused is not None and reading in self._readings.get(reading.queue, ()):
            self._manager.log("warning", "stream", f"a reader of a stream gets nothing at present: "
                                                   f"{answer.refused.text}",
                              {"queue": reading.queue.name.decode("utf-8", "replace"), "client_id": reading.client})

    def _forget_opening(self, queue: Queue, opening: _Opening | None) -> None:
        """Tells the owner, if it is the one that was asked, that nobody needs what was opened."""
        relay = queue.relay
        if (opening is not None and opening.number and isinstance(relay, QueueRelay) and relay.reachable
                and relay.outbox is opening.outbox):
            self._relays.ask(queue, "close", (opening.number,), _nothing)

    def _close(self, reading: Reading) -> None:
        self._drop(reading)
        self._forget_opening(reading.queue, reading.opening)
        reading.opening = None

    def _drop(self, reading: Reading) -> None:
        readings = self._readings.get(reading.queue, [])
        if reading in readings:
            readings.remove(reading)
        if not readings:
            self._readings.pop(reading.queue, None)

    # ------------------------------------------------------------------ messages

    def _wants(self, queue: Queue) -> None:
        """Called when the readers of a stream of another node have got what is here."""
        relay = queue.relay
        if not isinstance(relay, QueueRelay) or not relay.reachable or queue in self._refused:
            return
        fronts: dict[Log, int] = {}
        for reader in queue.readers:
            fronts[reader.log] = max(fronts.get(reader.log, 0), reader.next)
        for at, log in enumerate(queue.logs):
            if log.wanted != NOTHING and not log.loading:
                log.loading = True
                self._ask(queue, at, log, log.wanted, self._loads)
            if log in fronts and log not in self._polls and fronts[log] >= self._last.get(log, log.next):
                self._ask(queue, at, log, log.next, self._polls)

    def _ask(self, queue: Queue, at: int, log: Log, offset: int, asked: dict[Log, object]) -> None:
        question = asked[log] = object()
        self._relays.ask(queue, "read", (at, offset, BLOCK_BYTES), partial(self._got, queue, log, asked, question),
                         patient=True)

    def _got(self, queue: Queue, log: Log, asked: dict[Log, object], question: object, answer: Answer) -> None:
        """A block. asked: _polls or _loads, which has the question."""
        if asked.get(log) is not question:
            return  # of a former owner, or of a queue that was deleted
        del asked[log]
        if asked is self._loads:
            log.loading = False
        if answer.refused is None:
            first, end, start, covers, block = answer.value
            if asked is self._polls:
                self._last[log] = start
            log.mirror(first, end)
            try:
                log.load(start, covers, [with_expiry(block, self._manager.hub.steady_ms)])
            except CorruptError as error:
                answer = Answer(refused=Refusal(f"the owner has sent what is no message: {error}"))
            else:
                self._manager.disk.evict()
        if answer.refused is not None and queue in self._manager.states:
            self._refused[queue] = self._manager.hub.mono_ms
            if not answer.refused.away:
                self._manager.log("warning", "stream", f"a stream is not read at present: {answer.refused.text}",
                                  {"queue": queue.name.decode("utf-8", "replace")})
        queue.notify()

    def _tick(self, limit_ms: int) -> None:
        """Once per second or so: commits positions, and asks again."""
        now = self._manager.hub.mono_ms
        self._limit_ms = limit_ms
        for queue, since in list(self._refused.items()):
            if since + RETRY_MS <= now:
                del self._refused[queue]
                queue.notify()
        for queue in list(self._untold):
            self._tell_untold(queue)
        for queue, readings in list(self._readings.items()):
            for reading in list(readings) if queue.relay is not None else ():  # the clock looks at those of this node
                for reader in reading.readers if reading.group is not None else ():
                    self.auto_commit(queue, reader)
                if reading.opening is None and isinstance(queue.relay, QueueRelay) and queue.relay.reachable:
                    self._open(reading)  # the owner had been asked too early
        self._commits.tick(limit_ms)

    # ------------------------------------------------------------------ QueueListener

    def owner_changed(self, queue: Queue) -> None:
        """See QueueTable.on_owner: the readers go on where they are."""
        relay = queue.relay
        if queue.kind != QUEUE_STREAM or not isinstance(relay, QueueRelay):
            return
        relay.on_readers = self._wants
        self._forget_questions(queue, queue.logs)
        for reading in list(self._readings.get(queue, ())):
            self._forget_opening(queue, reading.opening)
            reading.opening = None
            if relay.reachable:
                self._open(reading)
            elif reading.then is not None:
                if not reading.waits:
                    self._drop(reading)
                self._answer(reading, Answer(refused=away(relay)))
        self._commits.ask_again(queue)
        self._tell_untold(queue)

    # ------------------------------------------------------------------ the stream moves (moves.py)

    def goes(self, queue: Queue, former: list[Log]) -> None:
        """The stream is a relay now. former: its logs, which the new owner will have. What its readers ask waits until
        that is so."""
        assert self.hosts is not None
        self.hosts.pause(queue)
        for log, known in zip(queue.logs, former, strict=True):
            log.mirror(known.first, known.next)
        self._go_on(queue, former)
        self.owner_changed(queue)

    def gone(self, queue: Queue) -> None:
        """The new owner has it: what other nodes have asked here they are to ask there."""
        assert self.hosts is not None
        self.hosts.end(queue)

    def came(self, queue: Queue, former: list[Log]) -> None:
        """The relay has become the stream, with all its groups. former: the relay's logs."""
        assert self.hosts is not None
        self._forget_questions(queue, former)
        self._go_on(queue, former)
        self.hosts.go_on(queue)
        self._commits.came(queue)
        self._tell_untold(queue)
        for reading in list(self._readings.get(queue, ())):
            reading.opening = None
            if not reading.readers:
                try:
                    offsets = self._positions(reading)
                except QueueRefused as refused:
                    self._drop(reading)
                    self._answer(reading, Answer(refused=Refusal(refused.text)))
                else:
                    self._make_here(reading, offsets)

    def _go_on(self, queue: Queue, former: list[Log]) -> None:
        for reader in queue.readers:
            reader.go_on_in(queue.logs[former.index(reader.log)])

    def queue_removed(self, queue: Queue) -> None:
        """See QueueListener."""
        self._forget_questions(queue, queue.logs)
        self._untold.pop(queue, None)
        self._commits.removed(queue)
        for reading in self._readings.pop(queue, ()):
            for reader in reading.readers:
                self._of.pop(reader, None)
            if reading.opening is None:  # else it is answered with the question
                self._answer(reading, Answer(refused=UNKNOWN))

    def _forget_questions(self, queue: Queue, logs: list[Log]) -> None:
        self._refused.pop(queue, None)
        for log in logs:
            if queue.relay is not None:
                log.loading = False
            self._polls.pop(log, None)
            self._loads.pop(log, None)
            self._last.pop(log, None)


def _nothing(answer: Answer) -> None:
    """Nobody waits."""
