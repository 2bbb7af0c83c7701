"""What drives the engine's long steps: checkpoints, reads from disk, waits. They are coroutines, and the engine knows
no event loop: what they await comes from here. `fluxmq.app.driver.LoopDriver` is one, over asyncio.
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

__all__ = ["Driver", "Work"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Work(Protocol[T_co]):
    """Something that is under way. Awaiting it directly gives its result, and a cancelled caller cancels it."""

    def __await__(self) -> Generator[Any, Any, T_co]: ...

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""

    def exception(self) -> BaseException | None:
        """What it ended with; None: its result. Only of what is done and not cancelled."""

    def result(self) -> T_co:
        """What it gave. Raises what it ended with. Only of what is done."""

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Calls call(work) on the loop's thread when it has ended, also when it has already."""


class Driver(Protocol):
    """All of it is for the loop's thread."""

    def now(self) -> float:
        """Seconds of a clock that nobody sets, from anywhere."""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Work[T]:
        """Begins it in a later turn of the loop."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """0: everybody else has had a turn."""

    def blocking(self, step: Callable[..., T], *what: Any) -> Work[T]:
        """Begins step(*what) at once, in a thread of its own kind: it may wait for the disk. It cannot be taken back:
        whoever is cancelled while it is under way must see to it that nothing is taken away below it."""

    def result_of(self, work: Work[T]) -> Awaitable[T]:
        """Waits for it; a cancelled caller does not cancel it. Raises what it ended with."""

    def end_of(self, work: Work[Any]) -> Awaitable[object]:
        """Waits until it is done, whatever it ended with; a cancelled caller does not cancel it."""
