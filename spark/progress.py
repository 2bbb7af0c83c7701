"""How far an operation has come that takes longer: a bar on a terminal, after two seconds; a line every ten seconds
elsewhere, so that a log shows that it goes on."""
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
LINE_EVERY_S = 10.0     # where there is no terminal
WIDTH = 30
# How far (0 to 1, None if unknown), and in words.
Look = Callable[[], tuple[float | None, str]]


def bar_text(name: str, share: float | None, note: str) -> str:
    """One line. share: 0 to 1, None if unknown."""
    if share is None:
        return f"{name}  {note}"
    full = min(max(int(share * WIDTH), 0), WIDTH)
    return f"{name}  [{'█' * full}{'·' * (WIDTH - full)}] {min(max(share, 0.0), 1.0):4.0%}  {note}"


@contextmanager
def shown(name: str, look: Look | None = None, stream: TextIO | None = None) -> Iterator[None]:
    """Shows the result of `look` while the block runs; without it, for how long the block has run. It is called in a
    thread."""
    to = stream or sys.stderr
    over = threading.Event()
    begun = time.monotonic()

    def since() -> tuple[float | None, str]:
        return None, f"{time.monotonic() - begun:.0f} s"

    thread = threading.Thread(target=_bar if to.isatty() else _lines, name="progress", daemon=True,
                              args=(to, over, name, look or since))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bar(to: TextIO, over: threading.Event, name: str, look: Look) -> None:
    if over.wait(PATIENCE_S):
        return
    while True:
        to.write("\r\x1b[K" + bar_text(name, *look()))
        to.flush()
        if over.wait(EVERY_S):
            break
    to.write("\r\x1b[K")
    to.flush()


def _lines(to: TextIO, over: threading.Event, name: str, look: Look) -> None:
    while not over.wait(LINE_EVERY_S):
        share, note = look()
        to.write(f"{name}: {note}\n" if share is None else f"{name}: {share:.0%}, {note}\n")
        to.flush()
