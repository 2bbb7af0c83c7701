"""A terminal as the place of the picture: colours, keys, and its state before and after.

rich says what colours the terminal has, and how a style is written; the frames are compared here, and only the cells
that changed are written. (Measured, for a frame of 80 × 24: Textual with its Line API 4.0 ms, rich's Live 2.9 ms; of
200 × 50 Live 8.8 ms. This: bench/micro/bench_view.py.) Whatever ends the program, the terminal is as it was.
"""
from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from itertools import compress, count
from operator import ne
from typing import Any, TextIO

from rich.console import Console
from rich.style import Style

from fluxmq.view.belts import ASCII, UNICODE, Glyphs
from fluxmq.view.picture import Line

__all__ = ["STYLES", "Painter", "Terminal", "keys_of"]

STYLES = {
    "plain": "", "strong": "bold", "dim": "dim", "bar": "reverse", "focus": "reverse bold", "error": "bold red",
    "warning": "yellow", "moved": "bold reverse", "away": "dim strike", "owner0": "cyan", "owner1": "green",
    "owner2": "magenta", "owner3": "yellow", "owner4": "bright_blue", "owner5": "bright_red",
}
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
PLAIN_ENTER, PLAIN_LEAVE = "\x1b[2J\x1b[H", "\x1b[0m\x1b[2J\x1b[H"     # of terminals that know no second screen
NO_SECOND_SCREEN = ("vt100", "vt52", "vt102", "ansi")
ESCAPES = {b"\x1b[Z": "backtab", b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}
NAMES = {"\t": "tab", " ": "space", "\x03": "q", "\x04": "q", "\x0c": "redraw", "\r": "enter", "\n": "enter"}


def keys_of(data: bytes) -> list[str]:
    """The keys of what was read: characters, or names of the others. Unknown sequences are no keys."""
    found = []
    while data:
        if data[:1] == b"\x1b":
            size = next((len(escape) for escape in ESCAPES if data.startswith(escape)), 0)
            if size:
                found.append(ESCAPES[data[:size]])
            else:
                size = 1
                if data[1:2] in (b"[", b"O"):       # to the letter that ends it
                    size = next((at + 1 for at in range(2, len(data)) if 0x40 <= data[at] <= 0x7E), len(data))
            data = data[size:]
            continue
        character = chr(data[0])
        found.append(NAMES.get(character, character))
        data = data[1:]
    return [key for key in found if len(key) > 1 or key.isprintable()]


class Painter:
    """Machine. Frames → what a terminal must be sent. codes: how each style begins; "": as all else."""

    def __init__(self, codes: dict[str, str]) -> None:
        self._codes = codes
        self._shown: list[Line] = []

    def forget(self) -> None:
        """The screen shows something else: the next frame is written whole."""
        self._shown = []

    def paint(self, lines: list[Line]) -> str:
        """Only what differs from the last frame."""
        out: list[str] = []
        style = ""
        before = self._shown
        if not before:
            out.append("\x1b[0m\x1b[2J")
        for row, line in enumerate(lines):
            known = before[row] if row < len(before) else ()
            if line is known or line == known:
                continue
            style = self._line(out, row, line, known, style)
        if style:
            out.append("\x1b[0m")
        self._shown = list(lines)
        return "".join(out)

    def _line(self, out: list[str], row: int, line: Line, known: Line, style: str) -> str:
        same = len(line) == len(known) and all(len(a[0]) == len(b[0]) for a, b in zip(line, known, strict=True))
        column = 1
        if not same:
            out.append(f"\x1b[{row + 1};1H")
            for text, name in line:
                style = self._write(out, text, name, style)
            if known and sum(len(text) for text, _ in known) > sum(len(text) for text, _ in line):
                style = self._write(out, "", "plain", style)
                out.append("\x1b[K")
            return style
        for (text, name), (text_known, name_known) in zip(line, known, strict=True):
            if name != name_known:
                out.append(f"\x1b[{row + 1};{column}H")
                style = self._write(out, text, name, style)
            elif text != text_known:
                first = next(compress(count(), map(ne, text, text_known)))
                last = len(text) - next(compress(count(), map(ne, reversed(text), reversed(text_known))))
                out.append(f"\x1b[{row + 1};{column + first}H")
                style = self._write(out, text[first:last], name, style)
            column += len(text)
        return style

    def _write(self, out: list[str], text: str, name: str, style: str) -> str:
        code = self._codes.get(name, "")
        if code != style:
            out.append("\x1b[0m" + code if style else code)
        out.append(text)
        return code


class Terminal:
    """Handle. The terminal of this process. Use it as a context: it is entered, and left as it was.

    animated: it can move its cursor; without that there are only lines of text. on_write: told what was written.
    """

    def __init__(self, out: TextIO | None = None, keyboard: int | None = None) -> None:
        self._out = out or sys.stdout
        self._keyboard = keyboard if keyboard is not None else (sys.stdin.fileno() if sys.stdin.isatty() else -1)
        console = Console(file=self._out)
        name = os.environ.get("TERM", "")
        self.animated = self._out.isatty() and name not in ("", "dumb", "unknown")
        colours = None if console.no_color else console.color_system
        if name in NO_SECOND_SCREEN[:3]:
            colours = None
        unicode = "utf" in (self._out.encoding or "").lower() and not name.startswith("vt")
        self.glyphs: Glyphs = UNICODE if unicode else ASCII
        self.codes = {key: _code(Style.parse(text), colours) for key, text in STYLES.items()}
        self._enter, self._leave = (PLAIN_ENTER, PLAIN_LEAVE) if name in NO_SECOND_SCREEN else (ENTER, LEAVE)
        self.on_write: Callable[[str], None] | None = None
        self.resized = False
        self.ended = ""         # the signal that wants the end
        self._saved: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._inside = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._out.fileno())
            if found.columns > 0 and found.lines > 0:
                return found.columns, found.lines
        return 80, 24

    def __enter__(self) -> Terminal:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            self._handlers[number] = signal.signal(number, self._on_end)
        if self.animated:
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._on_size)
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_stop)
            self._handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._on_continue)
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _begin(self) -> None:
        if self._keyboard >= 0:
            self._saved = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard, termios.TCSANOW)
        self._inside = True
        self.write(self._enter)

    def _end(self) -> None:
        if self._inside:
            self._inside = False
            with contextlib.suppress(OSError, ValueError):     # the terminal itself may be gone
                self.write(self._leave)
        if self._saved is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._keyboard, termios.TCSANOW, self._saved)
            self._saved = None

    def _on_end(self, number: int, _: object) -> None:
        self.ended = signal.Signals(number).name

    def _on_size(self, *_: object) -> None:
        self.resized = True

    def _on_stop(self, *_: object) -> None:
        """Ctrl+Z: the shell gets its terminal back."""
        self._end()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)

    def _on_continue(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, self._on_stop)
        if not self._inside:
            self._begin()
        self.resized = True

    def write(self, text: str) -> None:
        """All of it. Raises OSError: the terminal is gone."""
        if not text:
            return
        if self.on_write is not None:
            self.on_write(text)
        data = text.encode(self._out.encoding or "ascii", "replace")
        descriptor = self._out.fileno()
        while data:
            with self._patient():
                data = data[os.write(descriptor, data):]

    @contextlib.contextmanager
    def _patient(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            select.select([], [self._out.fileno()], [], 1.0)

    def keys(self, timeout_s: float) -> list[str]:
        """What was pressed, waiting up to so long; a signal ends the waiting. Without a keyboard it only waits."""
        watched = [self._keyboard] if self._keyboard >= 0 and self._inside else []
        if self.ended or self.resized:
            timeout_s = 0.0
        try:
            ready, _, _ = select.select(watched, [], [], max(timeout_s, 0.0))
            data = os.read(self._keyboard, 1024) if ready else b""
        except InterruptedError:
            return []
        except OSError:
            self.ended = self.ended or "the terminal is gone"
            return []
        if ready and not data:
            self.ended = self.ended or "the terminal is gone"
        return keys_of(data)


def _code(style: Style, colours: str | None) -> str:
    """How a style begins, for a terminal with those colours (of rich's Console.color_system)."""
    from rich.color import ColorSystem

    systems = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR,
               "windows": ColorSystem.WINDOWS}
    if colours is None:
        style = style.without_color
    return style.render("\0", color_system=systems.get(colours or "", ColorSystem.STANDARD)).partition("\0")[0]
