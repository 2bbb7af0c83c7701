"""The bar of a job: on a terminal, after two seconds, gone at the end."""
from __future__ import annotations

import io
import threading

import pytest

from fluxmq.spark import progress
from fluxmq.spark.progress import bar_text, shown


class Terminal(io.StringIO):
    """Says when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        self.wrote.set()
        return written


def test_a_line() -> None:
    assert bar_text("replaying", 0.5, "5 of 10") == f"replaying  [{'█' * 15}{'·' * 15}]  50%  5 of 10"
    assert bar_text("replaying", 7.0, "") == f"replaying  [{'█' * 30}] 100%  "
    assert bar_text("reading", None, "3 rows") == "reading  3 rows"


def test_what_takes_long_is_shown_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    terminal = Terminal()
    with shown("replaying", lambda: (0.25, "one quarter"), terminal):
        assert terminal.wrote.wait(10)
    assert " 25%  one quarter" in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[K")


def test_what_takes_long_without_a_terminal_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    told = threading.Event()

    class File(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if self.getvalue().count("\n") > 1:
                told.set()
            return written

    for look, said in ((lambda: (0.25, "one quarter"), "replaying: 25%, one quarter"), (None, "replaying: 0 s")):
        file = File()
        told.clear()
        with shown("replaying", look, file):
            assert told.wait(10)
        assert file.getvalue().splitlines()[0] == said and "\x1b" not in file.getvalue()


def test_what_is_quick_and_what_is_no_terminal_shows_nothing() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with shown("replaying", lambda: (0.5, ""), stream):
            pass
        assert stream.getvalue() == ""
