"""Fixtures of the unit tests."""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Runs a coroutine to its end on a fresh loop, with a limit so that a hang is a failure."""
    def runner(coroutine: Awaitable[None]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(30):
                await coroutine

        with asyncio.Runner(loop_factory=request.param) as loop:
            loop.run(limited())

    return runner
