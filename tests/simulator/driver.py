"""Time and the order of things in a simulated node: `SimDriver` is engine.ports.driver.Driver without loop or thread.

A coroutine goes on when somebody calls `run_ready`, a timer fires when the clock has passed it by then, and a blocking
step is done, all of it at once, when `run_thread` chooses it. So who calls these decides how all of it interleaves.
"""
from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

from fluxmq.engine.ports.driver import Promise, Work

__all__ = ["SimDriver", "SimWork"]

T = TypeVar("T")


class SimWork:
    """Work. Awaiting it yields it to the driver, which goes on with whoever waits when it has ended."""

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._retrieved = False     # somebody has seen what it ended with
        self._callbacks: list[Callable[[Any], object]] = []

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self._done:
            yield self
        return self.result()

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return isinstance(self._error, asyncio.CancelledError)

    def cancel(self) -> None:
        """Of a coroutine: it does not go on."""
        if not self._done:
            self._driver.cancel(self)

    def exception(self) -> BaseException | None:
        self._retrieved = True
        return self._error

    def result(self) -> Any:
        self._retrieved = True
        if self._error is not None:
            raise self._error
        return self._result

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        if self._done:
            self._driver.soon(lambda: call(self))
        else:
            self._callbacks.append(call)

    def set_result(self, result: Any, /) -> None:
        assert not self._done
        self.end(result)

    def set_exception(self, error: BaseException, /) -> None:
        assert not self._done
        self.end(None, error)

    def end(self, result: Any, error: BaseException | None = None) -> None:
        self._done, self._result, self._error = True, result, error
        for call in self._callbacks:
            self._driver.soon(lambda call=call: call(self))     # type: ignore[misc]
        self._callbacks.clear()

    def __del__(self) -> None:
        """As asyncio, which then writes "Task exception was never retrieved" and a traceback."""
        if self._error is not None and not self._retrieved and not isinstance(self._error, asyncio.CancelledError):
            self._driver.unretrieved.append(self._error)


class _Shared:
    """What a coroutine waits for and does not cancel when it is cancelled itself."""

    def __init__(self, work: SimWork) -> None:
        self.work = work


class _End:
    """Awaited: until it is done, whatever it ended with. It goes on when who awaits it is cancelled."""

    def __init__(self, work: SimWork) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self._work.done():
            yield _Shared(self._work)


class _Result(_End):
    """The same, then its result."""

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from super().__await__()
        return self._work.result()


class SimDriver:
    """now_ms: the steady clock of the world."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._ready: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[int, int, Callable[[], object]]] = []
        self._serials = count()
        self.threads: list[tuple[SimWork, Callable[[], Any]]] = []      # begun, and not done yet
        self.held = False       # they wait for a disk that hangs
        self._coroutines: dict[Coroutine[Any, Any, Any], SimWork] = {}  # begun, and not ended
        self._waits: dict[Coroutine[Any, Any, Any], SimWork] = {}       # what they await directly
        self._dropped = False
        self.crashed: list[BaseException] = []      # what tasks ended with that nobody may be waiting for
        self.unretrieved: list[BaseException] = []  # what tasks and promises ended with, and nobody has seen
        self.acts = 0           # what was done since somebody set it to 0, but looks in vain (`look`)
        self.may_find = False   # the next look is to be done: the last one was not in vain, or something was done since
        self._look: Callable[[], object] | None = None      # the call of its timer
        self._look_s: Callable[[], float] = float

    # ── Driver ───────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        return self._now_ms() / 1000

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Work[T]:
        work = SimWork(self)
        if self._dropped:
            coroutine.close()
            return cast("Work[T]", work)
        self._coroutines[coroutine] = work
        self.soon(lambda: self._step(coroutine, work))
        return cast("Work[T]", work)

    def cancel(self, work: SimWork) -> None:
        """Ends a coroutine where it is, in a later turn."""
        for coroutine, its in self._coroutines.items():
            if its is work:
                self.soon(partial(self._close, coroutine))

    def cancel_all(self) -> None:
        """As LoopDriver.cancel(), at the end of a life whose process goes on."""
        self._look = None
        for coroutine in list(self._coroutines):
            self._close(coroutine)

    def _close(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """What it awaits directly is cancelled with it, as by asyncio."""
        work, waited = self._coroutines.pop(coroutine, None), self._waits.pop(coroutine, None)
        if work is not None:
            if waited is not None and not waited.done():
                other = next((other for other, its in self._coroutines.items() if its is waited), None)
                if other is None:
                    waited.end(None, asyncio.CancelledError())
                else:
                    self._close(other)
            coroutine.close()
            if not work.done():
                work.end(None, asyncio.CancelledError())

    def _step(self, coroutine: Coroutine[Any, Any, Any], work: SimWork) -> None:
        if coroutine not in self._coroutines:
            return                          # it was cancelled
        self._waits.pop(coroutine, None)
        try:
            waited: SimWork | _Shared = coroutine.send(None)
        except StopIteration as stop:
            self._coroutines.pop(coroutine, None)
            work.end(stop.value)
        except asyncio.CancelledError as error:     # it awaited what was cancelled
            self._coroutines.pop(coroutine, None)
            work.end(None, error)
        except Exception as error:
            self._coroutines.pop(coroutine, None)
            self.crashed.append(error)
            work.end(None, error)
        else:
            if isinstance(waited, _Shared):
                waited = waited.work
            else:
                self._waits[coroutine] = waited
            waited.add_done_callback(lambda _work: self._step(coroutine, work))

    def sleep(self, seconds: float) -> Awaitable[None]:
        work = SimWork(self)
        self.later(seconds, lambda: work.end(None))
        return cast("Awaitable[None]", work)

    def pace(self, period_s: float) -> Awaitable[None]:
        """Each on beats of its own, so that these meet in every order."""
        return self.sleep(period_s)

    def promise(self) -> Promise[Any]:
        return cast("Promise[Any]", SimWork(self))

    def blocking(self, step: Callable[..., T], *what: Any) -> Work[T]:
        work = SimWork(self)
        self.threads.append((work, lambda: step(*what)))
        return cast("Work[T]", work)

    def result_of(self, work: Work[T]) -> Awaitable[T]:
        return cast("Awaitable[T]", _Result(cast(SimWork, work)))

    def end_of(self, work: Work[Any]) -> Awaitable[object]:
        return _End(cast(SimWork, work))

    def drop(self) -> None:
        """The process is gone; what was under way ends where it is. What that starts, now or when the collector of
        garbage finds it, does not begin."""
        self._dropped = True
        for coroutine in list(self._coroutines):
            with contextlib.suppress(BaseException):
                coroutine.close()
        self._coroutines.clear()
        self._waits.clear()
        self.threads.clear()
        self._ready.clear()
        self._timers.clear()
        self._look = None

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────

    def soon(self, call: Callable[[], object]) -> None:
        """In the next turn."""
        self._ready.append(call)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """As an event loop's call_later."""
        if seconds <= 0:
            self.soon(call)
        else:
            heapq.heappush(self._timers, (self._now_ms() + round(seconds * 1000), next(self._serials), call))

    def look(self, period_s: Callable[[], float], step: Callable[[], object]) -> None:
        """Does step() every period_s(), from the next turn on, as a coroutine that sleeps in between. One that returns
        false has changed nothing, and neither will the next ones until something else is done. One per driver."""
        assert self._look is None

        def again() -> None:
            self.later(period_s(), wake)

        def wake() -> None:
            self.acts -= 1
            self.soon(look)

        def look() -> None:
            if self._look is not wake:
                return                      # it was cancelled
            try:
                self.may_find = bool(step())
            except Exception as error:
                self._look = None
                self.crashed.append(error)
            else:
                self.acts -= not self.may_find
                again()

        self._look, self._look_s = wake, period_s
        self.soon(again)

    @property
    def looks(self) -> bool:
        """Somebody does, every now and then."""
        return self._look is not None

    @property
    def look_ms(self) -> int | None:
        """When the next look is due; None if other timers are due before it."""
        return self._timers[0][0] if self._timers and self._timers[0][2] is self._look else None

    @property
    def look_every_ms(self) -> int:
        return round(self._look_s() * 1000)

    def looked(self, next_ms: int) -> None:
        """Looks before next_ms, when the next one is due, were in vain: they count as done."""
        assert self._look is not None
        heapq.heapreplace(self._timers, (next_ms, next(self._serials), self._look))

    @property
    def busy(self) -> bool:
        """Something can go on without time passing."""
        return bool(self._ready or self.threads)

    @property
    def due(self) -> bool:
        """run_ready would do something."""
        return bool(self._ready or (self.threads and not self.held)
                    or (self._timers and self._timers[0][0] <= self._now_ms()))

    @property
    def next_ms(self) -> int | None:
        """When the next timer is due, by now_ms; None without any."""
        return self._timers[0][0] if self._timers else None

    @property
    def next_but_look_ms(self) -> int | None:
        """The same without looks."""
        timers = self._timers
        if timers and timers[0][2] is self._look:       # a heap: one of the next two is the second
            return min((timer[0] for timer in timers[1:3]), default=None)
        return self.next_ms

    def timers_first(self) -> None:
        """Timers that are due go ahead of what is ready, not behind it."""
        due = []
        while self._timers and self._timers[0][0] <= self._now_ms():
            due.append(heapq.heappop(self._timers)[2])
        self._ready.extendleft(reversed(due))

    def run_ready(self) -> None:
        """Everything that is due now; what these begin is for the next call."""
        while self._timers and self._timers[0][0] <= self._now_ms():
            self._ready.append(heapq.heappop(self._timers)[2])
        self.acts += len(self._ready)
        for _ in range(len(self._ready)):
            self._ready.popleft()()

    def run_thread(self, at: int = 0) -> None:
        """One blocking step, from its beginning to its end."""
        self.acts += 1
        work, step = self.threads.pop(at)
        try:
            result = step()
        except Exception as error:
            if not work.done():             # who awaited it may have been cancelled
                work.end(None, error)
        else:
            if not work.done():
                work.end(result)
