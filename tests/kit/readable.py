"""Waiting for a file descriptor of any number; select() takes none above 1023, and a test process may have more."""
from __future__ import annotations

import select
from typing import Protocol

__all__ = ["is_readable"]


class _File(Protocol):
    def fileno(self) -> int: ...


def is_readable(source: int | _File, seconds: float | None = 0.0) -> bool:
    """Whether there is something to read, or the end, within a time; None: waits for it."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
