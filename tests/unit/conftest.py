"""Fixtures of the unit tests."""
from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator

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


@pytest.fixture
def nothing_is_left(few_to_collect: None) -> Iterator[None]:
    """What the core allocates by hand is given back."""
    from fluxmq._core.testing.probes import live_objects  # a wheel of the parsers alone does not have it

    def collected() -> dict[str, int]:
        while gc.collect():         # a coroutine that is collected ends then, and leaves more to collect
            pass
        return live_objects()

    before = collected()
    yield
    assert collected() == before
