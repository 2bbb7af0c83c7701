"""State of a replayed AMQP channel: publishes that are not confirmed, deliveries that are not acknowledged."""
from __future__ import annotations

from collections import deque
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq.spark.player.amqp_credit import ChannelCredit
from fluxmq.spark.player.amqp_operations import ANSWERED
from fluxmq.spark.player.links import Operation

__all__ = ["AmqpChannel"]


class AmqpChannel:
    """known: whether the channel's beginning is in the recording, so that a recorded tag identifies the n-th delivery.
    Otherwise all deliveries are acknowledged on arrival.

    usable: the server has it open. pending: by number of a publish, its op; returned: by op, the code. got: tags of
    deliveries by rank, None when settled; promised: by rank, what settles it on arrival. setup: methods for a channel
    that replaces it. consumers: by tag, queue and whether deliveries are acknowledged. unnamed: by the awaited answer,
    a request without a name, or None if it has one. credit: since when deliveries were possible; freed: settled ranks
    not yet passed to it.
    """

    def __init__(self, number: int, known: bool) -> None:
        self.number = number
        self.usable = False
        self.releasing = not known
        self.published = 0
        self.confirms = False
        self.pending: dict[int, int] = {}
        self.returned: dict[int, int] = {}
        self.got: list[int | None] = []
        self.promised: dict[int, m.Method | None] = {}
        self.setup: dict[str, m.Method] = {}
        self.consumers: dict[str, tuple[str, bool]] = {}
        self.unnamed: dict[str, deque[Operation | None]] = {name: deque() for name in ANSWERED}
        self.get_acks = True
        self.credit = ChannelCredit()
        self.freed: list[int] = []
        self._floor = 0                                 # all ranks below are settled or promised

    # ── publishes ────────────────────────────────────────────────────────────────────────────────────────────

    def confirmed(self, tag: int, multiple: bool, code: int) -> list[tuple[int, int]]:
        """(number, reason) of the confirmed publishes. tag: 0 with multiple means all."""
        if multiple:
            told = [one for one in self.pending if one <= tag or not tag]
        else:
            told = [tag] if tag in self.pending else []
        return [(one, self.returned.pop(self.pending.pop(one), code)) for one in told]

    # ── deliveries ───────────────────────────────────────────────────────────────────────────────────────────

    def arrived(self, tag: int, acked: bool) -> list[m.Method]:
        """Handles a delivery; returns the methods to send. acked: whether the server waits for an acknowledgement."""
        rank = len(self.got)
        promised = rank in self.promised
        how = self.promised.pop(rank, None)
        self.got.append(tag if acked else None)
        return [self._settled(rank, how)] if acked and (self.releasing or promised) else []

    def settle(self, tag: int, method: str, found: dict[str, Any]) -> list[m.Method]:
        """Handles basic.ack, nack or reject of a recorded tag; found: its detail. Returns the methods to send now."""
        if self.releasing:
            return []
        again, multiple = bool(found.get("requeue")), bool(found.get("multiple"))
        kinds: dict[str, m.Method] = {"basic.nack": m.BasicNack(requeue=again),
                                      "basic.reject": m.BasicReject(requeue=again)}
        how = kinds.get(method)
        last = tag - 1 if tag else len(self.got) - 1
        first = self._floor if multiple else last
        for rank in range(max(first, len(self.got)), last + 1):
            self.promised.setdefault(rank, how)
        there = [rank for rank in range(first, min(last + 1, len(self.got))) if self.got[rank] is not None]
        if multiple:
            self._floor = max(self._floor, last + 1)
        if not there:
            return []
        sent = self._settled(there[-1], how, multiple=len(there) > 1)
        for rank in there:
            self.got[rank] = None
        self.freed += there[:-1]
        return [sent]

    def taken_freed(self) -> list[int]:
        freed, self.freed = self.freed, []
        return freed

    def release(self) -> list[m.Method]:
        """Acknowledges the held deliveries, and from now on each on arrival."""
        self.releasing = True
        return [self._settled(rank, None) for rank, tag in enumerate(self.got) if tag is not None]

    def recovered(self) -> None:
        """The server has requeued all unacknowledged messages: their tags are invalid."""
        self.got = [None] * len(self.got)

    def reopened(self) -> dict[str, m.Method]:
        """A new channel replaces this one; returns its setup. The server has requeued all unacknowledged messages."""
        self.recovered()
        self.credit.reopened()
        self.published, self.confirms = 0, False
        wanted, self.setup = self.setup, {}
        return wanted

    def _settled(self, rank: int, how: m.Method | None, *, multiple: bool = False) -> m.Method:
        tag, self.got[rank] = self.got[rank] or 0, None
        self.freed.append(rank)
        if isinstance(how, m.BasicReject):
            return m.BasicReject(delivery_tag=tag, requeue=how.requeue)
        if isinstance(how, m.BasicNack):
            return m.BasicNack(delivery_tag=tag, requeue=how.requeue, multiple=multiple)
        return m.BasicAck(delivery_tag=tag, multiple=multiple)
