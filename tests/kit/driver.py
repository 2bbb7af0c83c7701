"""A driver of the engine's long steps without an event loop."""
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from fluxmq.app.driver import LoopDriver
from fluxmq.engine.ports.driver import Work

__all__ = ["AtOnce"]

T = TypeVar("T")


class AtOnce(LoopDriver):
    """What belongs into a thread is done at once, here."""

    def blocking(self, step: Callable[..., T], *what: Any) -> Work[T]:
        """It is done when this returns."""
        ended: Future[T] = Future()
        try:
            ended.set_result(step(*what))
        except Exception as error:
            ended.set_exception(error)
        return cast(Work[T], ended)
