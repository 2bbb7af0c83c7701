"""Repair of a damaged journal: every batch that holds is kept, those behind the damage too.

A batch that does not hold is replaced by an empty one of its number, so that the numbers still have no hole. What comes
behind it was confirmed like what comes before, and records can be applied without earlier ones: they say what a
thing is now, and a record about an unknown session, queue or group changes nothing. (So what the lost batches made
or ended may be missing or still be there, and a message whose settling was lost is delivered again.)

A damaged file is written anew beside itself and then takes its own place; what it was is kept as `*.log.damaged`. The
tail of the last file that was not provably synced stays as it is: the next start cuts it off.
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fluxmq._core.disk.journal_format import (
    FILE_HEADER_SIZE,
    batch_at,
    decode_file_header,
    encode_batch,
    encode_header,
    file_name,
    file_number,
    find_batch,
    proof_of_sync,
)
from fluxmq._core.errors import CorruptError
from fluxmq.storage.reading import read_whole

__all__ = ["JournalRepair", "repair_journal", "replace_file"]

# Of empty batches made at once, when a whole file is missing.
_PIECE = 10_000


@dataclass(slots=True)
class JournalRepair:
    """What repair_journal() did, one line each. first: the first batch that the journal has now, 0 if it has none.
    last: the last one."""

    dropped: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    first: int = 0
    last: int = 0


@dataclass(slots=True)
class _File:
    """A file and its batches that hold: (number, begin, end). stop: behind the last of them. damaged: its header, or
    something between its batches."""

    number: int
    path: Path
    file_id: int
    first: int
    batches: list[tuple[int, int, int]]
    stop: int
    damaged: str = ""

    @property
    def last(self) -> int:
        return self.batches[-1][0] if self.batches else self.first - 1


def repair_journal(directory: Path) -> JournalRepair:
    """Make the journal readable from its first batch to its last. The caller holds the lock; may be called again when
    it was cut short. Raises OSError, CorruptError for a file that a newer version wrote."""
    report = JournalRepair()
    for left in directory.glob("*.log.repaired"):
        left.unlink()
    numbers = sorted(number for entry in os.listdir(directory) if (number := file_number(entry)) is not None)
    before: _File | None = None
    for at, number in enumerate(numbers):
        path = directory / file_name(number)
        data = read_whole(path)
        file = _examine(data, number, path, before.last if before is not None else None, at + 1 == len(numbers))
        if file is None:
            _set_aside(path, report)
            report.dropped.append(f"{path}: the whole file; not one batch in it holds")
            continue
        if before is not None and file.first > before.last + 1:
            report.dropped.append(f"{before.path}: batches {before.last + 1} to {file.first - 1}, which follow in no "
                                  f"file; a journal file is missing")
            _fill(before, file.first)
        if file.damaged:
            _rewrite(file, data, report)
        if file.batches or before is None or file.first > before.last:
            before = file
        report.first = report.first or file.first
    report.last = before.last if before is not None else 0
    if before is None:
        report.first = 0
    _sync(directory)
    return report


def _examine(data: memoryview, number: int, path: Path, reached: int | None, newest: bool) -> _File | None:
    """None: nothing of it can be used. newest: the last file, which may be torn."""
    problem = ""
    try:
        number_in_header, first, file_id = decode_file_header(data)
        if number_in_header != number:
            return None                 # another file under this name
    except CorruptError as error:
        if "version" in str(error):
            raise CorruptError(f"{path}: {error}. Use the program that wrote it") from None
        problem = str(error)
        file_id = int.from_bytes(data[24:32], "little")
        begin = find_batch(data, min(FILE_HEADER_SIZE, len(data)), file_id, reached or 0)
        if begin is None:
            return None
        first = reached + 1 if reached is not None else int.from_bytes(data[begin:begin + 8], "little")
    file = _File(number, path, file_id, first, [], FILE_HEADER_SIZE, problem)
    while True:
        due = file.last + 1
        decoded = batch_at(data, file.stop, file_id, due)
        if decoded is not None:
            file.batches.append((due, file.stop, decoded[1]))
            file.stop = decoded[1]
            continue
        if newest and not file.damaged and proof_of_sync(data, file.stop, file_id, due) is None:
            return file                 # torn, or its end
        behind = _next_whole(data, file.stop, file_id, due - 1)
        if behind is None:
            return file                 # the next file's first batch tells the caller that batches are missing
        n, begin, end = behind
        file.damaged += f"{'; ' if file.damaged else ''}what stands from offset {file.stop} to {begin} does not hold"
        file.batches.append((n, begin, end))
        file.stop = end


def _next_whole(data: memoryview, at: int, file_id: int, above: int) -> tuple[int, int, int] | None:
    """(number, begin, end) of the next batch that holds as a whole and comes later than `above`."""
    while True:
        begin = find_batch(data, at, file_id, above)
        if begin is None:
            return None
        number = int.from_bytes(data[begin:begin + 8], "little")
        decoded = batch_at(data, begin, file_id, number)
        if decoded is not None:
            return number, begin, decoded[1]
        at = begin + 1


def _empty(first: int, end: int, file_id: int) -> Iterator[bytes]:
    """Batches `first` to `end - 1` without records, in pieces."""
    for begin in range(first, end, _PIECE):
        yield b"".join(encode_batch(number, 0, [], file_id) for number in range(begin, min(begin + _PIECE, end)))


def _fill(file: _File, end: int) -> None:
    """Empty batches behind the last of a file, up to before `end`, where nothing that holds stands."""
    at, first = file.stop, file.last + 1
    with file.path.open("r+b") as raw:
        raw.truncate(at)
        raw.seek(at)
        for piece in _empty(first, end, file.file_id):
            raw.write(piece)
            at += len(piece)
        raw.flush()
        os.fsync(raw.fileno())
    file.batches.append((end - 1, at, at))
    file.stop = at


def _rewrite(file: _File, data: memoryview, report: JournalRepair) -> None:
    gone: list[str] = []

    def pieces() -> Iterator[bytes | memoryview]:
        reached = file.first - 1
        yield encode_header(file.number, file.first, file.file_id)
        for number, begin, end in file.batches:
            if number > reached + 1:
                gone.append(f"{reached + 1} to {number - 1}" if number > reached + 2 else f"{number - 1}")
                yield from _empty(reached + 1, number, file.file_id)
            yield data[begin:end]
            reached = number

    report.set_aside.append(str(replace_file(file.path, pieces())))
    file.stop = file.path.stat().st_size
    report.dropped.append(f"{file.path}: {file.damaged}" + (f"; lost of its batches: {', '.join(gone)}" if gone
                                                            else "; no batch is lost"))


def replace_file(path: Path, pieces: Iterable[bytes | memoryview], keep: bool = True) -> Path:
    """Writes a journal file anew; it takes its place when it is whole. keep: the former, at the path that is
    returned. Raises OSError."""
    through, aside = path.with_suffix(".log.repaired"), path.with_suffix(".log.damaged")
    with through.open("wb") as raw:
        for piece in pieces:
            raw.write(piece)
        raw.flush()
        os.fsync(raw.fileno())
    if keep:
        aside.unlink(missing_ok=True)
        os.link(path, aside)
    through.rename(path)
    _sync(path.parent)
    return aside


def _set_aside(path: Path, report: JournalRepair) -> None:
    aside = path.with_suffix(".log.damaged")
    aside.unlink(missing_ok=True)
    path.rename(aside)
    report.set_aside.append(str(aside))


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
