"""The picture as data: dots that move along lanes, and the numbers above them. No terminal here, and no clock.

     orders/2     n3 ├●  ·● ○   ┤   120 ├◆ ◆  ◇   ┤  1.2k/s
                     clients ─►  broker   ─► clients

A half of a lane has two belts, which share its columns: what goes to the right is in the even ones, what comes back in
the odd ones. A place on a belt is what happened within the time of one step: nothing, one, several, many. So a picture
costs the same whatever the traffic, and says no more than was seen.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluxmq.view.belts import ASCII, DELIVERED, PLAIN, SENT, UNICODE, Belts, Glyphs, help_lines
from fluxmq.view.lanes import Lane, Lanes
from fluxmq.view.words import amount, fitted, plain_text, took

__all__ = ["Line", "Numbers", "Picture", "Run"]

CROSSING_S = 1.0        # the way of a dot across its half
MOVED_S = 2.5           # for so long a lane shows that it has moved
NUMBERS_S = 0.25        # between two changes of numbers that are read
SAID_S = 5.0            # for so long what a key has done covers what is wrong
COLUMNS_MIN, ROWS_MIN = 40, 8
HALF_MIN = 8
TITLE, OWNER, BACKLOG, RATE = 18, 7, 8, 9

Run = tuple[str, str]       # text, name of its style
Line = tuple[Run, ...]


@dataclass
class Numbers:
    """What the head-up display says. Rates are per second; exact ones come from brokers' own counters, None until they
    are known. confirm, ack: p50 and p99 in µs, -1: none. shown: share of what happened that was seen, 1.0: all. nodes:
    (name, state, sessions, owner's number or -1, whether it is watched); clients: (name, state). trouble: why nothing
    comes, if so."""

    name: str = "broker"
    received: float | None = None
    sent: float | None = None
    confirm: tuple[float, float] = (-1.0, -1.0)
    ack: tuple[float, float] = (-1.0, -1.0)
    backlog: int = -1
    connections: int = 0
    pings: float = 0.0
    errors: int = 0
    shown: float = 1.0
    nodes: Sequence[tuple[str, str, int]] = ()
    clients: Sequence[tuple[str, str]] = ()
    trouble: str = ""
    frozen: bool = False
    traffic: str = ""


class Picture:
    """Machine. lanes: which there are. Size and glyphs are the screen's.

    focus: title of what has the focus: ("lane", title), ("node", name), ("client", name), or None.
    """

    def __init__(self, lanes: Lanes, columns: int = 80, rows: int = 24, glyphs: Glyphs = UNICODE) -> None:
        self.lanes = lanes
        self.glyphs = glyphs
        self.numbers = Numbers()
        self.focus: tuple[str, str] | None = None
        self._status, self._said_at = "", 0.0
        self.help = False
        self.owners: dict[str, int] = {}    # style of each owner, in the order in which they were seen
        self._belts: dict[int, Belts] = {}
        self._time = 0.0
        self._part = 0.0        # of a step that has passed
        self._top = 0           # first lane on the screen
        self._lines: dict[int, tuple[object, Line]] = {}
        self._owned = False     # some lane has an owner: there is a column for them
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        self._screen = columns, rows
        self.columns, self.rows = max(columns, COLUMNS_MIN), max(rows, ROWS_MIN)
        # Narrow screens leave out what can be left out.
        self.owner_width = OWNER if self.columns >= 70 and self._owned else 0
        self.title_width = TITLE if self.columns >= 60 else 10
        if self.columns >= 140:
            self.title_width += (self.columns - 120) // 6
        free = self.columns - self.title_width - self.owner_width - BACKLOG - RATE - 4
        self.slots = max(free // 4, HALF_MIN // 4)
        self._lines.clear()
        for belts in self._belts.values():
            belts.resize(self.slots)

    @property
    def status(self) -> str:
        """What was done last, for the line at the bottom."""
        return self._status

    @status.setter
    def status(self, text: str) -> None:
        self._status, self._said_at = text, self._time

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, passed_s: float, counts: Mapping[int, Sequence[int]]) -> None:
        """A frame. counts: of each lane, what happened since the last one, by kind."""
        self._time += passed_s
        for number, kinds in counts.items():
            belts = self._of(number)
            self.lanes.lanes[number].used = True
            for kind, count in enumerate(kinds):
                belts.waiting[kind] += count
        if passed_s > 0:
            self._measure(passed_s, counts)
        self._part += passed_s * self.slots / CROSSING_S
        steps = min(int(self._part), self.slots)
        self._part -= int(self._part)
        if not steps:
            return
        for number, belts in self._belts.items():
            if belts.step(steps):
                self._lines.pop(number, None)

    def _measure(self, passed_s: float, counts: Mapping[int, Sequence[int]]) -> None:
        weight = min(passed_s, 1.0)
        said = int(self._time / NUMBERS_S) != int((self._time - passed_s) / NUMBERS_S)
        for number, belts in self._belts.items():
            kinds = counts.get(number)
            now = (kinds[SENT] + kinds[DELIVERED]) / passed_s if kinds is not None else 0.0
            belts.rate += (now - belts.rate) * weight
            if belts.rate < 0.05:
                belts.rate = 0.0
            if said:
                belts.said = f"{amount(belts.rate)}/s" if belts.rate else ""

    def _of(self, number: int) -> Belts:
        belts = self._belts.get(number)
        if belts is None:
            belts = self._belts[number] = Belts(self.slots)
        return belts

    @property
    def time(self) -> float:
        """Seconds that have passed in it."""
        return self._time

    def rate(self, number: int) -> float:
        """Publishes and deliveries per second that were seen on a lane."""
        belts = self._belts.get(number)
        return belts.rate if belts is not None else 0.0

    # ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────

    def frame(self) -> list[Line]:
        """As many lines as the screen has rows."""
        if self._screen[0] < COLUMNS_MIN or self._screen[1] < ROWS_MIN:
            return self._too_small(*self._screen)
        if self.help:
            return self._fill([self._spelled(((text, "plain"),)) for text in help_lines(self.glyphs)])
        head = [self._spelled(line) for line in self._head()]
        room = self.rows - len(head) - 1
        shown = self.lanes.shown()
        if any(lane.owner for lane in shown) != self._owned:
            self._owned = not self._owned
            self.resize(self.columns, self.rows)
        self._scroll(shown, room)
        body = [self._lane(lane) for lane in shown[self._top:self._top + room]]
        if not shown:
            body = [(("   nothing has happened yet: no queue, and no publish", "dim"),)]
        lines = head + body
        lines += [((" ", "plain"),)] * (self.rows - 1 - len(lines))
        return self._fill([*lines, self._spelled(self._foot(len(shown), room))])

    @staticmethod
    def _too_small(columns: int, rows: int) -> list[Line]:
        text = f"too small: {COLUMNS_MIN} x {ROWS_MIN} is the least; q quits"
        pieces = [text[at:at + columns] for at in range(0, len(text), columns)][:rows]
        return [((piece, "plain"),) for piece in pieces + [" "] * (rows - len(pieces))]

    def _spelled(self, line: Line) -> Line:
        """In ASCII, where the terminal has nothing else."""
        if self.glyphs is not ASCII or all(text.isascii() for text, _ in line):
            return line
        return tuple((text.translate(PLAIN).encode("ascii", "replace").decode(), style) for text, style in line)

    def _fill(self, lines: list[Line]) -> list[Line]:
        cut = [self._cut(line) for line in lines[:self.rows]]
        return cut + [((" ", "plain"),)] * (self.rows - len(cut))

    def _cut(self, line: Line) -> Line:
        left = self.columns
        if sum(len(text) for text, _ in line) <= left:
            return line
        runs: list[Run] = []
        for text, style in line:
            if left > 0:
                runs.append((text[:left], style))
            left -= len(text)
        return tuple(runs)

    def _scroll(self, shown: Sequence[Lane], room: int) -> None:
        """The lane with the focus is on the screen."""
        self._top = max(min(self._top, len(shown) - room), 0)
        if self.focus is not None and self.focus[0] == "lane":
            at = next((at for at, lane in enumerate(shown) if lane.title == self.focus[1]), self._top)
            if not self._top <= at < self._top + room:
                self._top = max(at - room // 2, 0)

    def owner_style(self, owner: str) -> str:
        if not owner:
            return "owner0"
        return f"owner{self.owners.setdefault(owner, len(self.owners)) % 6}"

    def _head(self) -> list[Line]:
        numbers = self.numbers
        state = "FROZEN  " if numbers.frozen else ""
        first = f" FluxMQ  {plain_text(numbers.name)}  {len(numbers.nodes) or 1} node{'s' * (len(numbers.nodes) > 1)}"
        right = f"{state}? help  q quit "
        lines: list[Line] = [((first.ljust(self.columns - len(right))[:self.columns - len(right)] + right, "bar"),)]
        received = amount(numbers.received) if numbers.received is not None else "?"
        sent = amount(numbers.sent) if numbers.sent is not None else "?"
        about = "~" if numbers.shown < 0.995 else ""
        lines.append(((f" in {received:>5}/s  out {sent:>5}/s", "strong"), (
            f"  confirm p50 {about}{took(numbers.confirm[0])} p99 {about}{took(numbers.confirm[1])}"
            f"  ack p50 {about}{took(numbers.ack[0])} p99 {about}{took(numbers.ack[1])}", "plain")))
        backlog = amount(numbers.backlog) if numbers.backlog >= 0 else "?"
        third: list[Run] = [(f" backlog {backlog:>5}  clients {amount(numbers.connections)}"
                             f"  pings {amount(numbers.pings)}/s", "plain"),
                            (f"  errors {numbers.errors}", "error" if numbers.errors else "plain")]
        if about:
            share = f"1 of {max(1 / numbers.shown, 1.1):.3g}" if numbers.shown > 0.001 else "below 0.1 %"
            third.append((f"  sampled: {share} shown", "warning"))
        lines.append(tuple(third))
        if len(numbers.nodes) > 1:
            lines.append(self._nodes())
        if numbers.clients:
            lines.append(self._clients())
        return lines

    def _nodes(self) -> Line:
        parts = []
        for name, state, sessions in self.numbers.nodes:
            good = state == "serving"
            mark = self.glyphs.up if good else self.glyphs.down
            parts.append((f"{mark} {plain_text(name)} {f'{sessions} sessions' if good else state}",
                          self.owner_style(name) if good else "error", self.focus == ("node", name)))
        return self._row(parts, " ")

    def _clients(self) -> Line:
        parts = []
        for name, state in self.numbers.clients:
            running = state == "running"
            parts.append((plain_text(name) + ("" if running else f" {state}"), "dim" if running else "warning",
                          self.focus == ("client", name)))
        runs = self._row(parts, "")
        return (*runs, (f"  {self.numbers.traffic}", "dim")) if self.numbers.traffic else runs

    def _row(self, parts: Sequence[tuple[str, str, bool]], between: str) -> Line:
        """Texts with their styles, of which one may have the focus: what stands before it gives way to it."""
        first, width = 0, 1
        for at, (text, _, focused) in enumerate(parts):
            width += len(text) + 2 + len(between)
            if focused:
                while width > self.columns and first < at:
                    width -= len(parts[first][0]) + 2 + len(between)
                    first += 1
                break
        runs: list[Run] = [("<" if first else " ", "plain")]
        for text, style, focused in parts[first:]:
            runs += [(f"[{text}]", "focus") if focused else (f" {text} ", style)]
            if between:
                runs.append((between, "plain"))
        return tuple(runs)

    def _lane(self, lane: Lane) -> Line:
        belts = self._of(lane.number)
        focused = self.focus == ("lane", lane.title)
        moved = lane.moved_at > 0 and self._time - lane.moved_at < MOVED_S
        key = (focused, moved, lane.owner, lane.backlog, lane.away, belts.said)
        known = self._lines.get(lane.number)
        if known is not None and known[0] == key:
            return known[1]
        glyphs, owner = self.glyphs, self.owner_style(lane.owner)
        style = "away" if lane.away else owner
        title = fitted(f"{'>' if focused else ' '}{lane.title}", self.title_width)
        runs: list[Run] = [(title, "focus" if focused else style)]
        if self.owner_width:
            name = f"{lane.owner_before}{glyphs.moved}{lane.owner}" if moved else "away" if lane.away else lane.owner
            runs.append((fitted(f" {name}", self.owner_width), "moved" if moved else style))
        left, right = belts.halves()
        backlog = amount(lane.backlog) if lane.backlog >= 0 else ""
        runs += [(glyphs.edge[0], style), *self._half(left, style), (glyphs.edge[1], style),
                 (backlog.center(BACKLOG), "moved" if moved else "strong"),
                 (glyphs.edge[0], style), *self._half(right, style), (glyphs.edge[1], style)]
        runs.append((belts.said.rjust(RATE - 1), "plain"))
        line = self._spelled(tuple(runs))
        self._lines[lane.number] = (key, line)
        return line

    def _half(self, letters: str, style: str) -> list[Run]:
        """Errors and what is given back have a style of their own."""
        shown = letters.translate(self.glyphs.belt)
        if "x" not in letters and "n" not in letters:
            return [(shown, style)]
        runs: list[Run] = []
        start = 0
        for at, letter in enumerate(letters):
            if letter in "xn":
                if at > start:
                    runs.append((shown[start:at], style))
                runs.append((shown[at], "error" if letter == "x" else "warning"))
                start = at + 1
        if start < len(letters):
            runs.append((shown[start:], style))
        return runs

    def _foot(self, lanes: int, room: int) -> Line:
        fresh = self._status and self._time - self._said_at < SAID_S
        if self.numbers.trouble and not fresh:
            return ((" " + plain_text(self.numbers.trouble), "error"),)
        hidden = f"  {lanes - room} more lanes: Tab" if lanes > room else ""
        return ((" " + plain_text(self.status) + hidden, "dim" if not self.status else "strong"),)
