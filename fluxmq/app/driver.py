"""The engine's long steps on the running event loop: its tasks, timers and executor (engine/ports/driver.py)."""
from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from fluxmq.engine.ports.driver import Promise, Work

__all__ = ["LoopDriver", "until_beat"]

T = TypeVar("T")


def until_beat(period_s: float, now_s: float) -> float:
    """Seconds until the beat that Driver.pace() waits for, at a time of any clock that all beats are taken from."""
    return (math.floor(now_s / period_s + 0.5) + 1) * period_s - now_s


class LoopDriver:
    """Driver. loop: None means the loop that is running when an operation begins."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._given = loop
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._given if self._given is not None else asyncio.get_running_loop()

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Work[T]:
        """Starts a task."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        return task

    def cancel(self) -> None:
        """Cancels the tasks that have not ended: whoever started them has."""
        for task in list(self._tasks):
            task.cancel()

    async def ended(self, limit_s: float) -> None:
        """Until no task runs any more, for at most so many seconds."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=limit_s)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """asyncio.sleep()."""
        return asyncio.sleep(seconds)

    def pace(self, period_s: float) -> Awaitable[None]:
        """On the monotonic clock."""
        return asyncio.sleep(until_beat(period_s, time.monotonic()))

    def promise(self) -> Promise[Any]:
        """A future of the loop."""
        return self._loop.create_future()

    def blocking(self, step: Callable[..., T], *what: Any) -> Work[T]:
        """Runs the step in the loop's executor."""
        return self._loop.run_in_executor(None, step, *what)

    def result_of(self, work: Work[T]) -> Awaitable[T]:
        """Waits with asyncio.shield()."""
        return asyncio.shield(cast("asyncio.Future[T]", work))

    def end_of(self, work: Work[Any]) -> Awaitable[object]:
        """Waits with asyncio.wait(), which cancels nothing."""
        return asyncio.wait({cast("asyncio.Future[Any]", work)})
