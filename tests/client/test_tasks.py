"""Tasks of one block: how long it waits, what it raises, and that nothing of it goes on behind it."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.client.tasks import Tasks

Run = Callable[[Any], Any]


class Told:
    """What tasks say of themselves."""

    def __init__(self) -> None:
        self.words: list[str] = []

    async def ends(self, name: str, turns: int = 0) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.words.append(name)

    async def fails(self, name: str, turns: int = 0) -> None:
        await self.ends(name, turns)
        raise OSError(name)

    async def stays(self, name: str) -> None:
        """Until it is cancelled, and then a few turns more."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.ends(name, 3)


def test_the_first_ends_the_others(run: Run) -> None:
    async def body() -> None:
        told = Told()
        async with Tasks() as tasks:
            tasks.start(told.stays("other"))
            tasks.start(told.ends("first", 2))
            await tasks.first()
            assert told.words == ["first"]
        assert told.words == ["first", "other"]

    run(body())


def test_all_are_waited_for(run: Run) -> None:
    async def body() -> None:
        told = Told()
        async with Tasks() as tasks:
            tasks.start(told.ends("late", 5))
            tasks.start(told.ends("early"))
            await tasks.all()
        assert told.words == ["early", "late"]

    run(body())


@pytest.mark.parametrize("wait", [Tasks.first, Tasks.all])
def test_an_error_comes_out_as_it_is(run: Run, wait: Any) -> None:
    async def body() -> None:
        told = Told()
        with pytest.raises(OSError, match="broken"):
            async with Tasks() as tasks:
                tasks.start(told.stays("other"))
                tasks.start(told.fails("broken", 2))
                await wait(tasks)
        assert told.words == ["broken", "other"]

    run(body())


def test_of_two_errors_the_one_that_began_first_comes_out(run: Run) -> None:
    async def body() -> None:
        told = Told()
        for _ in range(20):         # in a set the order of tasks would be that of their addresses
            with pytest.raises(OSError, match="one"):
                async with Tasks() as tasks:
                    for name in ("one", "two", "three"):
                        tasks.start(told.fails(name))
                    await tasks.all()

    run(body())


def test_an_error_of_the_block_ends_them(run: Run) -> None:
    async def body() -> None:
        told = Told()
        with pytest.raises(ValueError, match="before the wait"):
            async with Tasks() as tasks:
                tasks.start(told.stays("one"))
                tasks.start(told.fails("two"))
                await asyncio.sleep(0)
                raise ValueError("before the wait")
        assert told.words == ["two", "one"]

    run(body())


def test_a_block_that_is_cancelled_ends_them(run: Run) -> None:
    async def body() -> None:
        told = Told()

        async def block() -> None:
            async with Tasks() as tasks:
                tasks.start(told.stays("one"))
                tasks.start(told.stays("two"))
                await tasks.first()

        task = asyncio.ensure_future(block())
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told.words == ["one", "two"]

    run(body())


def test_a_block_without_tasks(run: Run) -> None:
    async def body() -> None:
        async with Tasks():
            pass

    run(body())
