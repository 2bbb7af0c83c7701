"""A coroutine of a test on either event loop: asyncio's own and uvloop's."""
from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop

__all__ = ["LOOPS", "run_on"]

LOOPS = ("asyncio", "uvloop")
SECONDS = 60.0      # what only a failing test needs
GRACE_S = 5.0


def run_on(loop: str, coroutine: Coroutine[Any, Any, Any], seconds: float = SECONDS) -> Any:
    """Run it to its end on a new loop. No task may be left behind, and nothing reported to the loop's handler."""
    complaints: list[str] = []
    left: list[str] = []

    def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not _of_an_earlier_loop(text := str(context)):
            complaints.append(text)

    async def bounded() -> Any:
        asyncio.get_running_loop().set_exception_handler(complain)
        async with asyncio.timeout(seconds):
            found = await coroutine
        # Those of gRPC end by themselves, a moment after what they belong to.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            left.extend(map(str, (await asyncio.wait(others, timeout=GRACE_S))[1]))
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        found = runner.run(bounded())
    assert not complaints, complaints
    assert not left, left
    return found


def _of_an_earlier_loop(complaint: str) -> bool:
    """gRPC has one queue of completions for all loops of a process. What was cancelled at the end of one loop may come
    out of it in the next, which then finds the first closed."""
    return "PollerCompletionQueue" in complaint and "Event loop is closed" in complaint
