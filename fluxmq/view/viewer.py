"""The loop of the view: a frame, what was pressed, and again.

    Feed.take ─► Picture.step, frame ─► Painter ─► terminal, and the file of --record
"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from fluxmq.view.cast import Cast
from fluxmq.view.feed import Feed
from fluxmq.view.keys import Keys, Steering, seen_by_tryout
from fluxmq.view.lanes import Lanes
from fluxmq.view.picture import Picture
from fluxmq.view.screen import Painter, Terminal
from fluxmq.view.words import amount, took

__all__ = ["Viewer"]

NUMBERS_S = 0.25
LINE_S = 1.0        # between two lines of a terminal that shows no picture
LATE_FRAMES = 4     # so many frames late the picture goes on from now, instead of catching up


class Viewer:
    """Machine. fps: frames per second. seconds: it ends by itself; 0: it does not. record: the asciinema file."""

    def __init__(self, feed: Feed, lanes: Lanes, terminal: Terminal, *, fps: float = 30.0, seconds: float = 0.0,
                 record: Path | None = None, steering: Steering | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        columns, rows = terminal.size
        self.picture = Picture(lanes, columns, rows, terminal.glyphs)
        self.keys = Keys(self.picture, steering)
        self.frames = 0
        self.busy_s = 0.0       # processor time of frames
        self._feed, self._terminal, self._steering, self._clock = feed, terminal, steering, clock
        self._fps, self._seconds = fps, seconds
        self._painter = Painter(terminal.codes)
        self._cast = Cast(record, columns, rows) if record is not None else None
        self._old_s = 0.0       # age of the numbers

    def run(self) -> str:
        """Until q, a signal, or the end of the time. Returns what ended it: "" or the name of a signal."""
        try:
            if self._cast is not None:
                self._terminal.on_write = self._cast.output
            with self._terminal:
                if self._terminal.animated:
                    self._animate()
                else:
                    self._lines()
        finally:
            if self._cast is not None:
                self._terminal.on_write = None
                self._cast.close()
        return self._terminal.ended

    @property
    def record_error(self) -> str:
        """Why the file of --record is not whole; "": it is."""
        return self._cast.error if self._cast is not None else ""

    def _over(self, since: float) -> bool:
        return bool(self.keys.quit or self._terminal.ended
                    or (self._seconds and self._clock() - since >= self._seconds))

    def _animate(self) -> None:
        since = last = due = self._clock()
        while True:
            now = self._clock()
            begun = time.thread_time()
            self._frame(now - last)
            self.busy_s += time.thread_time() - begun
            last = now
            due += 1 / self._fps
            if self._clock() - due > LATE_FRAMES / self._fps:
                due = self._clock()
            while True:
                for key in self._terminal.keys(due - self._clock()):
                    self.keys.press(key)
                if self._over(since):
                    return
                if self._clock() >= due:
                    break

    def _frame(self, passed_s: float) -> None:
        picture, terminal = self.picture, self._terminal
        if terminal.resized:
            terminal.resized = False
            columns, rows = terminal.size
            picture.resize(columns, rows)
            self._painter.forget()
            if self._cast is not None:
                self._cast.resized(columns, rows)
        if self.keys.redraw:
            self.keys.redraw = False
            self._painter.forget()
        counts = self._feed.take(picture.time)
        if not self.keys.frozen:
            picture.step(passed_s, counts)
        self._old_s += passed_s
        if self.frames == 0 or self._old_s >= NUMBERS_S:
            self._old_s = 0.0
            self._update()
        self.frames += 1
        terminal.write(self._painter.paint(picture.frame()))

    def _update(self) -> None:
        picture, steering = self.picture, self._steering
        numbers = self._feed.numbers(picture.time)
        numbers.frozen = self.keys.frozen
        if steering is not None:
            numbers.clients, numbers.traffic = list(steering.clients), steering.traffic
            numbers.nodes = seen_by_tryout(numbers.nodes, steering.nodes)
            if said := steering.said():
                picture.status = said
        picture.numbers = numbers
        moves, picture.lanes.moves = picture.lanes.moves, []
        for title, before, after in moves:
            picture.status = f"{title} moved from {before} to {after}"

    def _lines(self) -> None:
        """A terminal that cannot move its cursor, or none at all: a line of text each second."""
        since = last = self._clock()
        while not self._over(since):
            left = since + self._seconds - self._clock() if self._seconds else LINE_S
            self._terminal.keys(min(LINE_S, max(left, 0.0)))
            now = self._clock()
            self.picture.step(now - last, self._feed.take(self.picture.time))
            last = now
            self.frames += 1
            numbers = self._feed.numbers(self.picture.time)
            received = amount(numbers.received) if numbers.received is not None else "?"
            sent = amount(numbers.sent) if numbers.sent is not None else "?"
            self._terminal.write(
                f"in {received}/s out {sent}/s confirm p50 {took(numbers.confirm[0])} p99 {took(numbers.confirm[1])} "
                f"ack p50 {took(numbers.ack[0])} p99 {took(numbers.ack[1])} backlog {numbers.backlog} "
                f"errors {numbers.errors}" + (f" ({numbers.trouble})" if numbers.trouble else "") + "\n")
        sys.stdout.flush()
