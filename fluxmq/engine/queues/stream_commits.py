"""`$commit` of clients whose stream is at another node: their acknowledgement waits until the owner has the position.

    commit() ─► a position of a line of this node, for which the client waits
      └─► "commit" ─► the owner ─► decided when that has it on its disk, or refused
    the stream moves: what was not answered is asked of the new owner, in the order of the clients; if that is this
    node, it is done here

A position of the owner's own line is given with the record that asks, so it could not be asked again.
"""
from __future__ import annotations

from functools import partial
from typing import Protocol

from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.stream import StreamReader
from fluxmq.engine.open_positions import OpenPositions
from fluxmq.engine.queues.relays import UNKNOWN, Answer, Refusal, Relays, away, moved
from fluxmq.model.mqtt import ReasonCode

__all__ = ["StreamCommits"]

LEFT = Refusal("the consumer has left before the node that has the stream has answered")


class Opened(Protocol):
    """The readers of a subscription (streams.Reading)."""

    readers: list[StreamReader]

    @property
    def queue(self) -> Queue:
        """The stream."""

    @property
    def number(self) -> int:
        """By which the owner knows it."""

    @property
    def known(self) -> bool:
        """Whether the owner has said that it does."""


class _Commit:
    """question: which was asked last; None: none is to be answered. done: it is decided."""

    __slots__ = ("at", "done", "next", "position", "question", "reading", "since_ms")

    def __init__(self, reading: Opened, at: int, next_: int, position: int, since_ms: int) -> None:
        self.reading, self.at, self.next, self.position, self.since_ms = reading, at, next_, position, since_ms
        self.question: object = None
        self.done = False


class _Waiting:
    """Those of a stream. open: not decided, oldest first."""

    def __init__(self, line: Line) -> None:
        self.positions = OpenPositions(line)
        self.open: list[_Commit] = []


class StreamCommits:
    """Machine. Those of this node."""

    def __init__(self, hub: Hub, relays: Relays) -> None:
        self._hub = hub
        self._relays = relays
        self._waiting: dict[Queue, _Waiting] = {}

    def commit(self, reading: Opened, at: int, next_: int) -> None:
        """Moves the group's position in a log of a stream that another node has: next_ is the next one that it gets.
        at: index of the log. The client waits for the ticket that this gives."""
        queue = reading.queue
        if queue not in self._waiting:
            self._waiting[queue] = _Waiting(self._hub.commits.open_line("positions of groups of a stream"))
        waiting = self._waiting[queue]
        one = _Commit(reading, at, next_, waiting.positions.give(), self._hub.mono_ms)
        waiting.open.append(one)
        self._ask(one)

    def _ask(self, one: _Commit) -> None:
        """Unless the owner is to be asked later, when it knows the readers."""
        one.question = None
        relay = one.reading.queue.relay
        if not one.reading.readers:
            self._decide(one, LEFT)
        elif isinstance(relay, QueueRelay) and not relay.reachable:
            self._decide(one, away(relay))
        elif one.reading.known:
            question = one.question = object()
            self._relays.ask(one.reading.queue, "commit", (one.reading.number, one.at, one.next, False),
                             partial(self._answered, one, question))

    def _answered(self, one: _Commit, question: object, answer: Answer) -> None:
        if one.question is not question:
            return  # another owner was asked since
        one.question = None
        if not moved(answer) and answer.refused != UNKNOWN:
            self._decide(one, answer.refused)

    def _decide(self, one: _Commit, refused: Refusal | None = None) -> None:
        queue = one.reading.queue
        if one.done:
            return
        one.done, one.question = True, None
        waiting = self._waiting[queue]
        waiting.open.remove(one)
        if refused is None:
            waiting.positions.decide(one.position)
        else:
            known = ReasonCode.UNSPECIFIED_ERROR <= refused.code <= 0xFF  # else it is of AMQP
            waiting.positions.decide(one.position, refused.text,
                                     refused.code if known else ReasonCode.UNSPECIFIED_ERROR)
        if not waiting.positions:
            del self._waiting[queue]
            waiting.positions.line.retire()

    def _open(self, queue: Queue) -> list[_Commit]:
        return list(self._waiting[queue].open) if queue in self._waiting else []

    def ask_again(self, queue: Queue) -> None:
        """The stream has another owner, or none."""
        for one in self._open(queue):
            self._ask(one)

    def opened(self, reading: Opened) -> None:
        """The owner knows the readers now."""
        for one in self._open(reading.queue):
            if one.reading is reading and one.question is None:
                self._ask(one)

    def came(self, queue: Queue) -> None:
        """The stream is at this node now."""
        for one in self._open(queue):
            one.question = None
            if not one.reading.readers:
                self._decide(one, LEFT)
                continue
            since = self._hub.commits.mark
            one.reading.readers[one.at].commit(one.next)
            self._hub.when_durable(partial(self._decide, one), since,
                                   lambda why, one=one: self._decide(one, Refusal(why)))  # type: ignore[misc]

    def removed(self, queue: Queue) -> None:
        """The stream was deleted."""
        for one in self._open(queue):
            self._decide(one, UNKNOWN)

    def tick(self, limit_ms: int) -> None:
        """Asks again what an owner was asked too early, and refuses what nobody has answered within this time."""
        now = self._hub.mono_ms
        for queue in list(self._waiting):
            for one in self._open(queue):
                if one.since_ms + limit_ms <= now:
                    self._decide(one, Refusal(f"the stream has moved, which was not over within {limit_ms / 1000:g} s"))
                elif one.question is None and queue.relay is not None:
                    self._ask(one)
