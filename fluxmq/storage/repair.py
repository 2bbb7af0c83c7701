"""A storage directory as a whole: what is damaged in it, and its repair (`fluxmq log verify|repair`, and a start with
`storage.recover_on_startup`).

    verify    reads everything and changes nothing
    dump      every message of queues that segments or state have
    repair    state: what can be read, into a new one ─► segments: batches that hold ─► journal: batches that hold ─►
              state: queues for logs that no queue has, sessions without what is lost ─► the new one takes its place

What is whole is not touched. What was damaged is kept beside it. A repair that is cut short can be run again.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rocksdict import AccessType, Rdict

from fluxmq._core.disk.journal_format import encode_header, file_name
from fluxmq._core.disk.segment_format import log_name, messages_of
from fluxmq._core.errors import CorruptError, StorageError
from fluxmq.engine.stored import row_problem
from fluxmq.storage import staged
from fluxmq.storage.journal_files import Recovery, check
from fluxmq.storage.journal_repair import repair_journal
from fluxmq.storage.manifest import ViewDamage
from fluxmq.storage.record_repair import drop_records, wrong_records
from fluxmq.storage.segment_recovery import UNKNOWN
from fluxmq.storage.segment_repair import dump as dump_segments
from fluxmq.storage.segment_repair import repair as repair_segments
from fluxmq.storage.segments import SegmentStore
from fluxmq.storage.state_repair import Mending, kept_in, mend, synced_of
from fluxmq.storage.view import REPAIRED, applied_of, is_new, open_view, rows_of, settle_staged, staged_in
from fluxmq.storage.view_repair import (
    Hole,
    ViewReport,
    around,
    examine,
    finish,
    readable_copy,
    salvage,
    set_applied,
    swap,
    write,
)

__all__ = ["BadRow", "RepairReport", "StateReport", "dump", "repair", "synced_offsets", "verify_state"]


@dataclass(slots=True)
class RepairReport:
    """What repair() did, one line each."""

    given_up: list[str] = field(default_factory=list)
    kept_aside: list[str] = field(default_factory=list)
    cut_off: list[str] = field(default_factory=list)
    made_again: list[str] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return any((self.given_up, self.kept_aside, self.cut_off, self.made_again))


@dataclass(slots=True)
class StateReport:
    """State and journal as verify_state() finds them. state, journal: problems, one line each. journal_end:
    where a good journal ends."""

    view: ViewReport
    state: list[str]
    journal: list[str] = field(default_factory=list)
    journal_end: Recovery | None = None


def synced_offsets(base: Path) -> dict[int, range]:
    """By log, the offsets that the state says files have, which had been synced; nothing where the state is damaged.
    Raises OSError, StorageError."""
    return {} if examine(base / "state").problems else _synced(base / "state")


def verify_state(base: Path) -> StateReport:
    """State and journal: what is damaged, and what else a start would refuse or put aside. Raises OSError,
    StorageError."""
    state, journal = base / "state", base / "journal"
    view = examine(state)
    report = StateReport(view, list(view.problems))
    if is_new(state) and (base / REPAIRED).is_dir():
        report.state.append(f"a repair was cut short, and has the state in {base / REPAIRED}")
    if journal.is_dir():
        try:
            report.journal_end = check(journal, view.applied)
        except CorruptError as error:
            report.journal.append(str(error))
    if not report.state and not report.journal:
        report.journal += [told for _, _, told in wrong_records(journal, view.applied or 0)]
    if not report.state and not report.journal:
        with _reading(state) as items:
            try:
                mending = mend(items, base, view.applied or 0, False)
            except CorruptError as error:
                mending = Mending(lines=[str(error)], holes=True)
        report.state += mending.lines
        for log in sorted(mending.unknown) if not mending.holes else ():
            files = any((base / "queues" / (log_name(log) + end)).is_dir() for end in ("", UNKNOWN))
            report.state.append(f"log {log_name(log)}: " + (
                f"neither state nor journal knows it; a start puts its messages aside, as "
                f"queues/{log_name(log)}{UNKNOWN}" if files else "the state has it, and no queue that it belongs to"))
    return report


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row of the state that does not hold, and why."""

    key: bytes
    value: bytes
    problem: str


def dump(base: Path, number: int | None = None) -> Iterator[tuple[int, tuple[int, int, int, int, int, int, bytes, bytes,
                                                                            bytes]] | BadRow]:
    """(log, message as `messages_of` gives it) of one log or of all: what segments have, in the order of logs, then of
    small logs what the state has beyond that, as far as it can be read. Rows of the state that do not hold come as they
    are: of one log its own, else all. Raises CorruptError, OSError, StorageError."""
    reached: dict[int, int] = {}
    for log, message in dump_segments(base, number):
        reached[log] = message[0]
        yield log, message
    state = base / "state"
    if is_new(state):
        return
    with readable_copy(state) as copy:
        try:
            view = open_view(copy, AccessType.read_only(False))
        except ViewDamage as damage:
            raise StorageError(f"the state in {state} is damaged: {damage.text}. Messages that are in it only are not "
                               f"shown") from None
        for key, value in staged.merged((item for item in around(view, b"k" if number is not None else b"\1")
                                         if not isinstance(item, Hole)), staged_in(view, copy)):
            log, problem = int.from_bytes(key[1:9], "big"), ""
            if number is not None and (log != number or key[:1] not in b"kl"):
                continue
            if key[:1] != b"k":
                problem = row_problem(key, value)
            else:
                end, problem = kept_in(value)
                for message in messages_of(value[8:end]):
                    if message[0] > reached.get(log, -1):
                        yield log, message
            if problem:
                yield BadRow(key, value, problem)


@contextmanager
def _reading(state: Path) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """Keys and values of a good view; nothing for a new one."""
    if is_new(state):
        yield iter(())
        return
    with readable_copy(state) as copy:
        try:
            yield rows_of(open_view(copy, AccessType.read_only(False)), copy)
        except ViewDamage as damage:
            raise StorageError(f"{state} was good a moment ago: {damage.text}") from None


# ------------------------------------------------------------------------------------------------------------- repair


def repair(base: Path) -> RepairReport:
    """Make the directory usable. The caller holds its lock. Raises OSError, StorageError; CorruptError for what a newer
    version wrote."""
    report = RepairReport()
    state = base / "state"
    if finish(base):
        report.made_again.append(f"{state}: a repair that was cut short is finished")
    view = examine(state)
    target = state
    if view.problems:
        target = salvage(base, report.given_up)
    elif view.parts:
        with _writing(state) as opened:
            settle_staged(opened, state)
        report.made_again.append(f"{state}: a checkpoint that was cut short is finished")
    _segments(base, _synced(target), report)
    known = view.applied if target == state else _applied(target)
    applied = _journal(base, known, report)
    damaged = bool(view.problems) or applied != known
    if drop_records(base / "journal", applied, report.given_up, report.kept_aside):
        damaged = True
    if applied != known:
        with _writing(target) as opened:
            set_applied(opened, applied)
    _mend(base, target, applied, damaged, report)
    if target != state:
        report.kept_aside.append(str(swap(base)))
    return report


def _segments(base: Path, synced: dict[int, range], report: RepairReport) -> None:
    done = repair_segments(base, expect=synced)
    report.given_up += done.dropped
    report.kept_aside += done.set_aside
    store = SegmentStore(base)
    store.open(synced)
    store.close()
    report.cut_off += store.recovery.truncated
    report.made_again += store.recovery.rebuilt


def _applied(state: Path) -> int | None:
    """None: that was lost, too."""
    with readable_copy(state) as copy:
        try:
            return applied_of(open_view(copy, AccessType.read_only(False)), copy)
        except ViewDamage:
            return None


def _synced(state: Path) -> dict[int, range]:
    """By log, the offsets that the state says files have."""
    with _reading(state) as items:
        return synced_of(items)


def _journal(base: Path, known: int | None, report: RepairReport) -> int:
    """Makes it readable behind batch `known`, which the state reaches, if it says so; else all of it, since a batch may
    be applied again. Returns the batch that the state must be said to reach: a higher one, where what was between is
    lost."""
    applied = known or 0
    journal = base / "journal"
    journal.mkdir(exist_ok=True)
    try:
        check(journal, applied)
        return applied
    except CorruptError as error:
        problem = str(error)
    done = repair_journal(journal)
    report.given_up += done.dropped
    report.kept_aside += done.set_aside
    if not done.last and applied:
        _begin_journal(journal, applied + 1)
        report.given_up.append(f"{journal}: it had no file, or none that holds; what came behind batch {applied}, "
                               f"which the state reaches, is lost")
    if done.first > applied + 1 and known is None:
        return done.first - 1
    if done.first > applied + 1:
        report.given_up.append(f"batches {applied + 1} to {done.first - 1}: the state reaches batch {applied}, the "
                               f"journal begins with {done.first}; what changed between is lost")
        return done.first - 1
    if not report.anything:
        raise StorageError(f"nothing was found to repair, though a start would refuse: {problem}")
    return applied


def _begin_journal(journal: Path, first: int) -> None:
    path = journal / file_name(1)
    fd = os.open(path.with_suffix(".next"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        os.write(fd, encode_header(1, first, int.from_bytes(os.urandom(8), "little")))
        os.fsync(fd)
    finally:
        os.close(fd)
    path.with_suffix(".next").rename(path)


@contextmanager
def _writing(state: Path) -> Iterator[Rdict]:
    view = open_view(state)
    try:
        yield view
    finally:
        view.close()


def _mend(base: Path, target: Path, applied: int, damaged: bool, report: RepairReport) -> None:
    with _reading(target) as items:
        mending = mend(items, base, applied, damaged)
    _take_back(base / "queues", mending)
    if mending.puts or mending.deletes:
        with _writing(target) as view:
            write(view, mending.puts, mending.deletes)
    report.given_up += mending.lines
    report.given_up += [f"log {log_name(log)}: the queue that had it is lost, what it was called and declared as; its "
                        f"messages are kept, in the new queue {name}" for log, name in sorted(mending.unknown.items())]


def _take_back(queues: Path, mending: Mending) -> None:
    """Directories of logs that get a queue again get their names again."""
    for number in mending.unknown:
        aside = queues / (log_name(number) + UNKNOWN)
        if aside.is_dir() and not (queues / log_name(number)).exists():
            aside.rename(queues / log_name(number))
