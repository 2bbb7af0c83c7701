"""Copies of queues on disk: of lines other than the journal, what is committed (line.py).

    view   f<group u32><queue u64>   [records, {number of a log: its number on this disk}]    the copy without messages
           a<group u64>              the position up to which the line's batches are in these rows, u64; then NAMESPACE
                                     records of the numbers that these name
           l, k, x                   of its logs, as of those of the journal: by the number on this disk

The records are those with which a move and a snapshot begin and end (encoding.py), so a start applies them as a
follower does. What a node that leads has decided and is not committed is in none of these rows: its copies are not
changed by it. Numbers of logs are unique within their line only; on disk they have numbers of the node's journal.

Rows may be newer than the position says, as those of queues of the journal are newer than its files: a batch that is
applied a second time has no effect. Where a copy was replaced by another node's snapshot, or all were dropped, while a
checkpoint ran, the view has no position of that line before the next one: a start begins with a snapshot then.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.commits import Line
from fluxmq._core.queue.lend import divide
from fluxmq._core.queue.log import Log
from fluxmq.engine.queues.encoding import closing, namespaces_of, opening
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.removal import view_key
from fluxmq.engine.stored import WRONG_SHAPE, copied_of, position_of, refused

__all__ = ["COPY", "POSITION", "Copies", "divided_source_of", "source_of"]

COPY, POSITION = "f", "a"
_NUMBER_MASK = (1 << 64) - 1
# Makes a log that has this number in its line and that one on disk.
MakeLog = Callable[[Line, int, int, int], Log]


def source_of(log: Log) -> Log:
    """The log that has the messages of a copy's log: of a queue that this node leads, the one that it serves from."""
    source: Log = log.line.retaining.get(log.number, log)
    return source


def divided_source_of(log: Log) -> Log:
    """As source_of, for an Export: no chunk of it goes beyond what is committed, which the copy's log knows, and begins
    below that. What is divided counts as sealed, so not between an Export and exported()."""
    source = source_of(log)
    divide(source, log.next)
    return source


class Copies:
    """Machine. rows: what the view had, by kind and number, until load(). lines: by group; whoever runs the groups adds
    what is new."""

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        self.rows: dict[int, dict[int, bytes]] = {ord(COPY): {}, ord(POSITION): {}}
        self.lines: dict[int, QueueLine] = {}
        self._stored: dict[int, int] = {}  # by group: its position in the view
        self.logs: dict[int, QueueState] = {}  # by number on disk, until the start is over: whose log it is

    def add(self, copies: QueueLine) -> None:
        """A line whose copies are to be stored."""
        self.lines[copies.line.group] = copies

    # ------------------------------------------------------------------ at a start

    def load(self, directory: Path | None, make_log: MakeLog) -> None:
        """Makes the lines and copies of the view's rows. directory: for error messages. Raises CorruptError."""
        positions, copies = self.rows[ord(POSITION)], self.rows[ord(COPY)]
        for group in sorted({*positions, *(number >> 64 for number in copies)}):
            line = self.manager.hub.commits.open_line(f"group {group}", group)
            found = QueueLine(self.manager, line)
            if group in positions:
                try:
                    found.applied, namespaces = position_of(positions[group])
                    found.apply(namespaces)
                except (CorruptError, *WRONG_SHAPE) as error:
                    raise refused(directory, view_key(POSITION, group), error) from error
                self._stored[group] = found.applied
            self.add(found)
        positions.clear()
        for number in sorted(copies):
            value = copies.pop(number)
            try:
                self._load(self.lines[number >> 64], number & _NUMBER_MASK, *copied_of(value), make_log)
            except (CorruptError, *WRONG_SHAPE) as error:
                raise refused(directory, view_key(COPY, number), error) from error

    def _load(self, copies: QueueLine, number: int, records: bytes, disks: dict[int, int], make_log: MakeLog) -> None:
        self.manager.is_taken(self.manager.hub.commits.local, max(disks.values(), default=0))
        with copies.making_logs(lambda log, lane: make_log(copies.line, log, lane, disks.get(log, 0))):
            copies.apply(records)
        state = copies.queues.get(number)
        if state is None:  # its namespace has ended
            return
        state.queue.as_stored()
        self.logs.update((log.disk, state) for log in state.logs if log.disk)

    def resume(self) -> None:
        """The start is over, and the node has its clock."""
        for copies in self.lines.values():
            copies.resume()
        self.logs.clear()

    def damaged(self, disk: int, damage: CorruptError) -> bool:
        """Files of a log cannot be opened. Returns whether it is a copy's: that one is not led before another node's
        snapshot has replaced it."""
        state = self.logs.get(disk)
        if state is None:
            return False
        state.queue.damage = str(damage)
        self.manager.log("error", "", f"a copy of a queue is damaged, the others go on: {damage}",
                          {"queue": state.spec.shown, "line": state.queue.line.name})
        return True

    # ------------------------------------------------------------------ in a checkpoint

    def find(self, group: int, number: int) -> QueueState | None:
        """The copy of this number in a group's line."""
        copies = self.lines.get(group)
        return copies.queues.get(number) if copies is not None else None

    def applied(self, group: int) -> int:
        """The position up to which the copies of a group have everything; 0: there are none that do."""
        copies = self.lines.get(group)
        if copies is None or any(copy.queue.damage is not None for copy in copies.queues.values()):
            return 0
        return copies.applied

    def holds(self, group: int) -> bool:
        """Whether the disk has any copy of a group, whole or not."""
        copies = self.lines.get(group)
        return copies is not None and len(copies.queues) > 0

    def forget(self, group: int) -> None:
        """The copies of a group are of one that this node has left: the next checkpoint deletes them."""
        if (copies := self.lines.get(group)) is not None:
            copies.clear()

    def positions(self) -> Iterator[tuple[bytes, bytes]]:
        """Rows of positions that have changed. Taken before the copies are, which may be newer then."""
        for group, copies in self.lines.items():
            copies.replaced = False
            if copies.applied != self._stored.get(group, 0):
                self._stored[group] = copies.applied
                yield view_key(POSITION, group), copies.applied.to_bytes(8, "big") + namespaces_of(copies.line)

    def void(self) -> Iterator[bytes]:
        """Keys of positions that count no more, because copies were replaced since positions() was called."""
        for group, copies in self.lines.items():
            if copies.replaced:
                self._stored[group] = 0
                yield view_key(POSITION, group)

    def row(self, state: QueueState) -> tuple[bytes, bytes]:
        """The row of a copy as it is at this instant; its logs get numbers on this disk."""
        queue, manager = state.queue, self.manager
        for log in state.logs:
            if log.disk == 0:
                log.disk = manager.number(manager.hub.commits.local)
            source_of(log).disk = log.disk
        records = b"".join(self.records(state, export=True))
        return (view_key(COPY, queue.line.group << 64 | queue.number),
                msgspec.msgpack.encode((records, {log.number: log.disk for log in state.logs})))

    def records(self, state: QueueState, *, export: bool = False) -> tuple[bytes, bytes]:
        """What a copy is at this instant, without its messages: what is to be known before these, and behind them.
        export: for the view."""
        manager, copies = self.manager, self.lines[state.queue.line.group]
        groups = [(group, manager.group_record(state, group, pattern))
                  for (_, pattern), group in state.groups.items()]
        had, released = copies.origins_of(state.queue.number)
        return opening(manager, state), b"".join(closing(manager, state, groups, had, released, export=export))

