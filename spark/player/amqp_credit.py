"""Since when a broker could have delivered what comes on a replayed AMQP channel.

    basic.deliver   since the consumer was there and had room: below the prefetch that it was made with, and below that
                    of its channel (`global`). What is settled makes room when that is sent, in a transaction with its
                    commit
    basic.get-ok    since it was asked for; a get does not count for prefetch
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.replay_rows import NO_VALUE

__all__ = ["ChannelCredit", "Credit"]


class Credit:
    """How many deliveries may be unsettled, and since when there is room for the next. limit: 0 means any number.

    Room is used in the order in which it was made: the n-th delivery waited for the settlement that made room for it,
    and for no later one. held: unsettled deliveries. Instants: ns since 1970.
    """

    def __init__(self, now: int, limit: int) -> None:
        self.since = now
        self.limit = limit
        self.held = 0
        self._room: deque[tuple[int, int]] = deque()        # since when, for how many
        self._free = 0
        self._adjust(now)

    def _adjust(self, now: int) -> None:
        """Updates the room for a change at `now`."""
        wanted = max(0, self.limit - self.held)
        if wanted > self._free:
            self._room.append((now, wanted - self._free))
        while wanted < self._free:
            when, count = self._room.pop()                  # the limit was lowered: the latest room is removed first
            left = max(0, count - (self._free - wanted))
            self._free -= count - left
            if left:
                self._room.append((when, left))
        self._free = wanted

    def delivered(self) -> int:
        """Handles a delivery. Returns since when there was room for it."""
        self.held += 1
        if not self._room:                                  # without a limit, or over it
            return self.since
        when, count = self._room.popleft()
        self._free -= 1
        if count > 1:
            self._room.appendleft((when, count - 1))
        return when

    def settled(self, now: int) -> None:
        self.held -= 1
        self._adjust(now)

    def change(self, now: int, limit: int) -> None:
        """Sets another limit from now on."""
        self.limit = limit
        self._adjust(now)


class Held(NamedTuple):
    """An unsettled delivery and its consumer. channel: the channel's credit that it uses."""

    consumer: Credit
    channel: Credit


class ChannelCredit:
    """Credits of a channel: its own, and those of its consumers by tag. get_sent: when basic.get was sent."""

    def __init__(self) -> None:
        self.get_sent = 0
        self._consumers: dict[str, Credit] = {}
        self._held: dict[int, Held] = {}
        self._waiting: list[int] | None = None      # ranks settled in a transaction that is not committed
        self.reopened()

    def reopened(self) -> None:
        """Resets to a new channel without prefetch and consumers."""
        self._prefetch = 0
        self._channel = Credit(0, 0)
        self._consumers.clear()
        self._held.clear()
        self._waiting = None

    def learn(self, method: m.Method, now: int) -> None:
        """Applies a method that the broker has just answered."""
        if isinstance(method, m.BasicQos):
            if method.global_:
                self._channel.change(now, method.prefetch_count)
            else:
                self._prefetch = method.prefetch_count
        elif isinstance(method, m.BasicConsume):
            self._consumers[method.consumer_tag] = Credit(now, 0 if method.no_ack else self._prefetch)
        elif isinstance(method, m.BasicCancel):
            self._consumers.pop(method.consumer_tag, None)
        elif isinstance(method, m.TxSelect):
            self._waiting = self._waiting or []
        elif isinstance(method, m.TxRollback):
            self._waiting = []
        elif isinstance(method, m.BasicRecover | m.BasicRecoverAsync):      # the broker has back what is unsettled
            self._free(list(self._held), now)

    def delivered(self, rank: int, method: Any, acked: bool) -> int:
        """Handles the delivery of that rank. Returns since when it was possible; NO_VALUE if unknown. acked: whether
        the broker waits for its acknowledgement."""
        if isinstance(method, m.BasicGetOk):
            return self.get_sent
        consumer = self._consumers.get(method.consumer_tag)
        if consumer is None:
            return NO_VALUE
        if not acked:
            return consumer.since
        self._held[rank] = Held(consumer, self._channel)
        return max(consumer.delivered(), self._channel.delivered())

    def settled(self, ranks: Iterable[int], now: int) -> None:
        """Marks deliveries as settled; in a transaction they count from its commit."""
        if self._waiting is not None:
            self._waiting += ranks
            return
        self._free(ranks, now)

    def commit(self, now: int) -> None:
        """Called when tx.commit is sent."""
        if self._waiting is not None:
            ranks, self._waiting = self._waiting, []
            self._free(ranks, now)

    def _free(self, ranks: Iterable[int], now: int) -> None:
        for rank in ranks:
            held = self._held.pop(rank, None)
            if held is not None:
                held.consumer.settled(now)
                held.channel.settled(now)
