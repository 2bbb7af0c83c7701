"""What a turn that lingers must see of the event loop: the epoll in which the loop waits, and the callbacks that wait
to be called (decision 0009). Neither is public; a loop that does not show them has turns that do not linger."""
from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from typing import Any

from fluxmq._core.net.poller import Poller

__all__ = ["callbacks_of", "epoll_of", "watch_loop"]


def epoll_of(loop: asyncio.AbstractEventLoop) -> int:
    """Its descriptor; -1: this loop does not say. uvloop has a method for its own tests, asyncio's loops a selector."""
    inside: Any = loop
    if hasattr(inside, "_get_backend_id"):
        return int(inside._get_backend_id())
    selector: Any = getattr(inside, "_selector", None)
    return int(selector.fileno()) if type(selector).__name__ == "EpollSelector" else -1


def callbacks_of(loop: asyncio.AbstractEventLoop) -> deque[Any] | None:
    """Where call_soon() puts what it is given. asyncio has it as `_ready`; of uvloop, whose attributes are hidden, it
    is the deque that a callback is found in."""
    handle = loop.call_soon(lambda: None)
    try:
        for found in [getattr(loop, "_ready", None), *gc.get_referents(loop)]:
            if isinstance(found, deque) and any(one is handle for one in found):
                return found
        return None
    finally:
        handle.cancel()


def watch_loop(poller: Poller, loop: asyncio.AbstractEventLoop, linger: Callable[[], None]) -> None:
    """After the loop has begun to watch the poller: its turns may linger. linger: calls Poller.linger."""
    descriptor, callbacks = epoll_of(loop), callbacks_of(loop)
    if descriptor >= 0 and callbacks is not None:
        poller.watch_loop(descriptor, callbacks, lambda: loop.call_soon(linger))
