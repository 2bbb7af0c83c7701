"""Fixtures of the transport's tests: both event loops, and nothing left behind."""
from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from kit.loops import LOOPS, run_on

Run = Callable[[Coroutine[Any, Any, Any]], Any]
PATIENCE_S = 10.0


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end, on each loop; no task may be left, and nothing reported to the loop's handler."""
    return functools.partial(run_on, request.param)


def sockets() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if link.startswith("socket:"):
            found.add(link)
    return found


@pytest.fixture
def no_socket_is_left() -> Iterator[None]:
    """Threads of gRPC close sockets some time after the transport has stopped, the last of them when its objects are
    collected. What was there before is not looked at, because other tests may have left many objects."""
    gc.freeze()
    before = sockets()
    yield
    deadline = time.monotonic() + PATIENCE_S
    while sockets() - before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    gc.unfreeze()
    assert sockets() - before == set()
