"""Internals of the event loop that a lingering turn needs: the loop's epoll, and the callbacks that are ready to be
called (decision 0009). Neither is public; with a loop that does not have them, turns do not linger."""
from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from typing import Any

from fluxmq._core.net.poller import Poller

__all__ = ["callbacks_of", "epoll_of", "watch_loop"]


def epoll_of(loop: asyncio.AbstractEventLoop) -> int:
    """The epoll's descriptor; -1 if the loop has none. uvloop has a method for its own tests, asyncio's loops a
    selector."""
    inside: Any = loop
    if hasattr(inside, "_get_backend_id"):
        return int(inside._get_backend_id())
    selector: Any = getattr(inside, "_selector", None)
    return int(selector.fileno()) if type(selector).__name__ == "EpollSelector" else -1


def callbacks_of(loop: asyncio.AbstractEventLoop) -> deque[Any] | None:
    """The deque to which call_soon() appends. In asyncio it is `_ready`; in uvloop, whose attributes are hidden, it is
    the deque that contains a callback just scheduled."""
    handle = loop.call_soon(lambda: None)
    try:
        for found in [getattr(loop, "_ready", None), *gc.get_referents(loop)]:
            if isinstance(found, deque) and any(one is handle for one in found):
                return found
        return None
    finally:
        handle.cancel()


def watch_loop(poller: Poller, loop: asyncio.AbstractEventLoop, linger: Callable[[], None]) -> None:
    """Called when the loop watches the poller already: lets turns linger. linger: calls Poller.linger."""
    descriptor, callbacks = epoll_of(loop), callbacks_of(loop)
    if descriptor >= 0 and callbacks is not None:
        poller.watch_loop(descriptor, callbacks, lambda: loop.call_soon(linger))
