"""What is written to the terminal: only what changed, and the same picture as if all were written."""
from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import termios
from random import Random

import pytest

from fluxmq.view.belts import ASCII, UNICODE
from fluxmq.view.picture import Line
from fluxmq.view.screen import ENTER, LEAVE, STYLES, Painter, Terminal, keys_of

CODES = {name: f"\x1b[{number}m" if number else "" for number, name in enumerate(STYLES)}


class Screen:
    """As much of a terminal as Painter needs: cells of (character, style)."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[(" ", "")] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.style = ""
        self.written = 0

    def feed(self, text: str) -> None:
        for sequence, character in re.findall(r"\x1b\[([0-9;?]*[A-Za-z])|(.)", text):
            if character:
                assert self.column < self.columns, "written beyond the edge"
                self.cells[self.row][self.column] = (character, self.style)
                self.column += 1
                self.written += 1
            elif sequence[-1] == "H":
                row, column = sequence[:-1].split(";")
                self.row, self.column = int(row) - 1, int(column) - 1
            elif sequence[-1] == "K":
                self.cells[self.row][self.column:] = [(" ", "")] * (self.columns - self.column)
            elif sequence == "2J":
                self.cells = [[(" ", "")] * self.columns for _ in range(self.rows)]
            elif sequence[-1] == "m":
                self.style = "" if sequence == "0m" else self.style + sequence
            else:
                pytest.fail(f"the terminal of this test has no {sequence}")

    def expect(self, lines: list[Line]) -> None:
        for row, line in enumerate(lines):
            wanted = [(character, CODES[style].removeprefix("\x1b[")) for text, style in line for character in text]
            wanted += [(" ", "")] * (self.columns - len(wanted))
            assert self.cells[row] == wanted, row


def lines_of(random: Random, rows: int = 6) -> list[Line]:
    return [tuple(("".join(random.choices("ab ", k=random.choice((0, 3, 3, 7)))), random.choice(list(STYLES)))
                  for _ in range(random.randrange(5))) for _ in range(rows)]


@pytest.mark.parametrize("seed", range(40))
def test_the_screen_shows_the_last_frame(seed: int) -> None:
    random = Random(seed)
    screen, painter = Screen(40, 6), Painter(CODES)
    lines = lines_of(random)
    for _ in range(60):
        screen.feed(painter.paint(lines))
        screen.expect(lines)
        assert screen.style == ""
        lines = list(lines)
        for at in random.sample(range(6), random.randrange(4)):
            line = lines[at]
            if line and random.random() < 0.7:      # one run, of the same length
                run = random.randrange(len(line))
                text = "".join(random.choices("ab ", k=len(line[run][0])))
                lines[at] = (*line[:run], (text, line[run][1]), *line[run + 1:])
            else:
                lines[at] = lines_of(random, 1)[0]


def test_only_what_changed_is_written() -> None:
    screen, painter = Screen(80, 2), Painter(CODES)
    first: Line = (("name", "strong"), ("a" * 60, "owner1"), ("9/s", "plain"))
    screen.feed(painter.paint([first, first]))
    before = screen.written
    assert painter.paint([first, (("name", "strong"), ("a" * 60, "owner1"), ("9/s", "plain"))]) == ""
    screen.feed(painter.paint([first, (("name", "strong"), ("a" * 29 + "bab" + "a" * 28, "owner1"), ("8/s", "plain"))]))
    assert screen.written - before == 4
    painter.forget()
    assert painter.paint([first, first]).startswith("\x1b[0m\x1b[2J")


@pytest.mark.parametrize(("data", "keys"), [
    (b"q", ["q"]), (b"\t", ["tab"]), (b"\x1b[Z", ["backtab"]), (b" ", ["space"]), (b"[]+-", ["[", "]", "+", "-"]),
    (b"\x1b[A\x1bOB", ["up", "down"]), (b"\x03", ["q"]), (b"\x0c", ["redraw"]), (b"\x1b[15~n", ["n"]),
    (b"\x1b[1;5Ck", ["k"]), (b"\x1b", []), (b"\x1b[", []), (b"\x00\x01\x80\xff", []), (b"", [])])
def test_keys(data: bytes, keys: list[str]) -> None:
    found = keys_of(data)
    assert [key for key in found if key.isascii()] == keys


class Pair:
    """A pseudo-terminal: `read_to` is what a user would see."""

    def __init__(self, columns: int, rows: int) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.out = os.fdopen(os.dup(self.slave), "w", encoding="utf-8")

    def read_to(self, end: str) -> str:
        """All that came, up to this."""
        found = b""
        while not found.endswith(end.encode()):
            assert select.select([self.master], [], [], 20)[0], found
            found += os.read(self.master, 1 << 16)
        return found.decode()

    def close(self) -> None:
        self.out.close()
        os.close(self.slave)
        os.close(self.master)


@pytest.mark.parametrize("fault", ["", "an error"])
def test_the_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    pair = Pair(100, 30)
    before = termios.tcgetattr(pair.slave)
    handlers = {number: signal.getsignal(number) for number in (
        signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)}
    terminal = Terminal(pair.out, pair.slave)
    assert terminal.size == (100, 30)
    try:
        with terminal:
            assert termios.tcgetattr(pair.slave) != before
            os.write(pair.master, b"\tq")
            assert terminal.keys(5.0) == ["tab", "q"]
            signal.raise_signal(signal.SIGWINCH)
            assert terminal.resized
            signal.raise_signal(signal.SIGTERM)
            assert terminal.ended == "SIGTERM"
            assert terminal.keys(1000.0) == []      # it does not wait any more
            if fault:
                raise RuntimeError(fault)
    except RuntimeError as error:
        assert str(error) == fault
    assert pair.read_to(LEAVE).startswith(ENTER)
    assert termios.tcgetattr(pair.slave) == before
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    pair.close()


@pytest.mark.parametrize(("environment", "animated", "colours", "glyphs"), [
    ({"TERM": "xterm-256color"}, True, True, UNICODE),
    ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True, False, UNICODE),
    ({"TERM": "vt100"}, True, False, ASCII), ({"TERM": "dumb"}, False, False, UNICODE)])
def test_what_terminals_can(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], animated: bool, colours: bool,
                            glyphs: object) -> None:
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pair = Pair(80, 24)
    terminal = Terminal(pair.out, pair.slave)
    assert terminal.animated == animated
    assert terminal.glyphs is glyphs
    coloured = {name for name, code in terminal.codes.items() if re.search(r"[\[;](3[0-7]|38|9[0-7])[;m]", code)}
    assert bool(coloured) == colours
    assert "owner0" in coloured or not colours
    if animated:
        assert terminal.codes["focus"]              # bold and reverse are no colours
    pair.close()


def test_a_file_is_no_terminal() -> None:
    with Terminal(io.TextIOWrapper(io.FileIO(os.memfd_create("out"), "w"), encoding="ascii")) as terminal:
        assert not terminal.animated
        assert terminal.glyphs is ASCII
        terminal.write("µ is not to be had\n")
