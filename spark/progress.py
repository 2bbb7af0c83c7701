"""A progress bar on a terminal for what takes longer than two seconds; nothing at all elsewhere."""
from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["bar_text", "shown"]

PATIENCE_S = 2.0
EVERY_S = 0.25
WIDTH = 30


def bar_text(name: str, share: float | None, note: str) -> str:
    """One line. share: 0 to 1, None if unknown."""
    if share is None:
        return f"{name}  {note}"
    full = min(max(int(share * WIDTH), 0), WIDTH)
    return f"{name}  [{'█' * full}{'·' * (WIDTH - full)}] {min(max(share, 0.0), 1.0):4.0%}  {note}"


@contextmanager
def shown(name: str, look: Callable[[], tuple[float | None, str]], stream: TextIO | None = None) -> Iterator[None]:
    """Shows the result of `look` (share, note) while the block runs. It is called in a thread."""
    to = stream or sys.stderr
    if not to.isatty():
        yield
        return
    over = threading.Event()
    begun = time.monotonic()

    def show() -> None:
        wrote = False
        while not over.wait(EVERY_S):
            if time.monotonic() - begun > PATIENCE_S:
                to.write("\r\x1b[K" + bar_text(name, *look()))
                to.flush()
                wrote = True
        if wrote:
            to.write("\r\x1b[K")
            to.flush()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
