"""What drives the engine's long steps: checkpoints, reads from disk, waits. They are coroutines, and the engine knows
no event loop: what they await comes from here. `fluxmq.app.driver.LoopDriver` is one, over asyncio.
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

__all__ = ["Driver", "Promise", "Work", "fulfil"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Work(Protocol[T_co]):
    """A running operation. Awaiting it directly returns its result; cancelling the caller then cancels the
    operation."""

    def __await__(self) -> Generator[Any, Any, T_co]: ...

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""

    def exception(self) -> BaseException | None:
        """The exception that it ended with, or None. Only if it is done and not cancelled."""

    def result(self) -> T_co:
        """Its result. Raises the exception that it ended with. Only if it is done."""

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Calls call(work) on the loop's thread when it has ended, also if it has ended already."""


class Promise(Work[T], Protocol[T]):
    """A result that somebody else delivers: Driver.promise makes it, one of the two ends it, once."""

    def set_result(self, result: T, /) -> None:
        """Its result. Raises an exception if it is done."""

    def set_exception(self, error: BaseException, /) -> None:
        """Who awaits it gets this exception. Raises an exception if it is done."""


def fulfil(promise: Promise[T], result: T) -> None:
    """Ends a promise that may be done: who awaited it directly has been cancelled, or somebody else was faster."""
    if not promise.done():
        promise.set_result(result)


class Driver(Protocol):
    """All methods are for the loop's thread."""

    def now(self) -> float:
        """Seconds of a monotonic clock with an arbitrary start."""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Work[T]:
        """Starts the coroutine in a later turn of the loop."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Waits; with 0 it lets other tasks take their turns."""

    def pace(self, period_s: float) -> Awaitable[None]:
        """Waits for the next beat of a period, which is the same for all that name it: what looks around regularly
        wakes up together. At least half the period from now, at most one and a half; one period from beat to beat."""

    def promise(self) -> Promise[Any]:
        """A result to be delivered later. If who awaits it directly is cancelled, it is done: deliver it by fulfil(),
        and where several wait for it, let them do so by result_of() or end_of()."""

    def blocking(self, step: Callable[..., T], *what: Any) -> Work[T]:
        """Starts step(*what) at once in a thread that may wait for the disk. It cannot be stopped: if the caller is
        cancelled meanwhile, it must keep everything open that the step uses."""

    def result_of(self, work: Work[T]) -> Awaitable[T]:
        """Waits for the result; cancelling the caller does not cancel the operation. Raises its exception."""

    def end_of(self, work: Work[Any]) -> Awaitable[object]:
        """Waits until the operation has ended, in whatever way; cancelling the caller does not cancel it."""
