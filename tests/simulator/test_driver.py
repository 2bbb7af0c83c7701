"""The driver of simulated processes (simulator/driver.py)."""
from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any

from simulator.driver import SimDriver


async def last() -> None:
    """Never begins."""
    raise AssertionError


def test_what_the_end_of_a_process_starts_does_not_begin() -> None:
    """Neither what its coroutines start as they are closed, nor what is found later; and nobody is warned of it."""
    driver = SimDriver(lambda: 0)
    started: list[Coroutine[Any, Any, None]] = []

    async def first() -> None:
        try:
            await driver.sleep(1.0)
        finally:
            started.append(last())
            driver.start(started[-1])

    driver.start(first())
    driver.run_ready()
    driver.drop()
    started.append(last())
    driver.start(started[-1])
    assert len(started) == 2
    assert {inspect.getcoroutinestate(coroutine) for coroutine in started} == {inspect.CORO_CLOSED}
    driver.run_ready()
    assert not driver.crashed and not driver.busy
