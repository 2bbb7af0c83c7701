"""Tasks of one block: none of them outlives it.

    async with Tasks() as tasks:
        tasks.start(send())
        tasks.start(receive())
        await tasks.first()         # or all(), or anything else
    # what still ran is cancelled, and has ended

asyncio.TaskGroup waits for all of its tasks and raises groups of errors. Here the block decides how long it waits, and
gets the error itself, because it is what a user is told.
"""
from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

__all__ = ["Tasks"]


class Tasks:
    """As on top. An error of a task that nobody waits for is lost with the block."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begins it."""
        self._tasks.append(asyncio.create_task(work))

    async def first(self) -> None:
        """Until one has ended. Raises what that one has raised."""
        await self._until(asyncio.FIRST_COMPLETED)

    async def all(self) -> None:
        """Until all have ended, or one has raised, which this raises."""
        await self._until(asyncio.FIRST_EXCEPTION)

    async def _until(self, when: str) -> None:
        await asyncio.wait(self._tasks, return_when=when)
        for task in self._tasks:        # in their order, so that it is no accident which error is told
            if task.done():
                task.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
