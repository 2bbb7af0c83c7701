"""Reviews subscriptions in the background after a reload or a start, if the Authority must ask an external service: a
few at a time, each applied as soon as its answer is there."""
from __future__ import annotations

import asyncio
from itertools import islice

from fluxmq._core.pubsub.session import Session
from fluxmq.edge.asking import Asking
from fluxmq.engine.broker import Broker
from fluxmq.engine.review import apply_verdict, review

__all__ = ["Reviewing"]

AT_ONCE = 64  # questions under way


class Reviewing:
    """Machine. A new review cancels the previous one, whose answers were for earlier permissions."""

    def __init__(self, broker: Broker, asking: Asking) -> None:
        self._broker = broker
        self._asking = asking
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Applies decisions that are known at once; other subscriptions stay as they are until their answer is there.
        One without an answer in time is suspended until a further review."""
        self.stop()
        undecided = review(self._broker, self._asking.authority)
        if undecided:
            self._task = asyncio.get_running_loop().create_task(self._go_through(undecided))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _go_through(self, undecided: list[tuple[Session, bytes]]) -> None:
        left = iter(undecided)
        while some := list(islice(left, AT_ONCE)):
            await asyncio.gather(*(self._judge(session, filter_) for session, filter_ in some))

    async def _judge(self, session: Session, filter_: bytes) -> None:
        if session.data is None or filter_ not in session.subscriptions:
            return
        allowed = await self._asking.decide_alone(session.data.username, session.name.decode(), filter_.decode(),
                                                  session.namespace.text)
        apply_verdict(self._broker, session, filter_, allowed)
