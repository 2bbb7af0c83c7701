"""How a consumer is attached to all partitions of a queue, each of which is a queue of its own (parts.py).

    the first partition that has an owner ─► its answer decides ─► the others at once ─► when all have answered: then()

So two consumers that want different things of a new group are judged in one order. Partitions that are away are left
out: the consumer is attached to them when they are back.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fluxmq._core.peer.parts import Parts
from fluxmq.engine.queues.relays import Answer, Refusal, Then

__all__ = ["Attaching"]


class Attaching:
    """Machine. relay: of the whole queue. join: attaches the consumer to a partition, and calls with the answer. gone:
    whether the consumer has left meanwhile. then: called once, with the answer for all."""

    def __init__(self, relay: Parts, join: Callable[[int, Then], None], gone: Callable[[], bool], then: Then) -> None:
        self._relay = relay
        self._join = join
        self._gone = gone
        self._then: Then | None = then
        self._left: set[int] = set()  # partitions that have not answered
        self._decision = Answer()

    def begin(self) -> None:
        """Asks the first partition."""
        relay = self._relay
        self._next(sorted(range(len(relay.queues)), key=lambda at: (not relay.is_reached(at), at)))

    def _next(self, order: list[int]) -> None:
        self._join(order[0], partial(self._decided, order[1:]))

    def _decided(self, rest: list[int], answer: Answer) -> None:
        if self._gone():
            self._end(answer if answer.refused is not None else Answer(refused=Refusal("the consumer has left")))
        elif answer.refused is None:
            self._decision = answer
            self._left = set(rest)
            for partition in rest:
                self._join(partition, partial(self._one_more, partition))
            self._finish()
        elif answer.refused.passes and rest and self._relay.is_reached(rest[0]):
            self._next(rest)
        else:
            if answer.refused.passes:
                # None of them has an owner. All are joined, so that the consumer is attached when these are back.
                for partition in rest:
                    self._join(partition, lambda answer: None)
            self._end(answer)

    def _one_more(self, partition: int, answer: Answer) -> None:
        self._left.discard(partition)
        if answer.refused is not None and not answer.refused.passes:  # else it is attached later
            self._end(answer)
        self._finish()

    def _finish(self) -> None:
        if not self._left:
            self._end(self._decision)

    def _end(self, answer: Answer) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(answer)
