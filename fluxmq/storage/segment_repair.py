"""Reading whole segment files, for `fluxmq log verify|dump|repair`.

Repair never touches a file that is whole. A damaged one is written anew with every batch of it that holds, and kept
beside that as `*.damaged`; where a file is missing, an empty one says that this is known. So afterwards the log opens.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fluxmq._core.disk.segment_format import (
    BATCH_HEADER_SIZE,
    HEADER_SIZE,
    TRAILER_SIZE,
    SegmentIndex,
    block_of,
    decode_index,
    decode_trailer,
    due_pairs,
    encode_batch_header,
    encode_header,
    file_first,
    file_name,
    find_batch,
    messages_of,
)
from fluxmq._core.errors import CorruptError
from fluxmq.storage.reading import close_quietly, read_head, read_whole
from fluxmq.storage.segment_files import Block, Damage, FileOps, SegmentFile, read_file, unpack
from fluxmq.storage.segment_recovery import (
    UNKNOWN,
    SegmentRecovery,
    known_logs,
    logs_in,
    missing_file,
    not_all,
    reach_of,
    read_headers,
)

__all__ = ["FileReport", "dump", "repair", "repair_log", "verify"]


@dataclass(slots=True)
class FileReport:
    """One file as verify() finds it. problems: damage, one line each. notes: what a start repairs by itself."""

    log: int
    path: Path
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    block: Block
    stored: bytes
    how: int
    position: int
    synced: int


@dataclass(slots=True)
class _Examined:
    """A file read from end to end. whole: its batches that hold. footer: False where a start cuts or makes one."""

    whole: list[_Batch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    footer: bool = True


def _batches(data: memoryview, file: SegmentFile, limit: int, problems: list[str],
             strict: bool = True) -> Iterator[tuple[int, _Batch]]:
    """(position behind, batch) of every batch that holds before `limit`; what stands between them goes to `problems`.
    strict: the batches are known to reach `limit`."""
    at, above = HEADER_SIZE, 0
    while at < limit:
        try:
            block, end = unpack(data, at, file)
            found = block_of(block[7])
            if found is None or found[:7] != block[:7] or block[0] < above or end > limit:
                raise Damage(f"the batch at offset {at} holds other messages than its header says", at)
        except (Damage, CorruptError) as error:
            following = find_batch(data, at + 1, file.file_id, above, 0)
            if following is None or following >= limit:
                if strict:
                    problems.append(f"{error} (up to the end of the batches at {limit})")
                return
            problems.append(f"{error} (the next that does is at {following})")
            at = following
            continue
        head = bytes(data[at:at + BATCH_HEADER_SIZE])
        batch = _Batch(block, bytes(data[at + BATCH_HEADER_SIZE:end]), int.from_bytes(head[68:72], "little"), at,
                       int.from_bytes(head[48:56], "little"))
        at, above = end, block[1] + 1
        yield end, batch


def _examine(file: SegmentFile, following: int | None, keep: bool) -> _Examined:
    """keep: the batches themselves, for a repair; else they only pass by."""
    result = _Examined()
    limit = -1
    try:
        if read_file(file, following):
            result.footer = False
        limit = file.end
        sealed = file.sealed and file.index is None
    except Damage as damage:
        result.problems.append(str(damage.text))
        sealed = False
    data = read_whole(file.path)
    file.size = len(data)
    trailer = decode_trailer(data[max(0, len(data) - TRAILER_SIZE):], len(data), file.file_id)
    index = SegmentIndex()
    faults: list[str] = []
    reach = limit if limit >= 0 else trailer[0] if trailer else len(data)
    for end, batch in _batches(data, file, reach, faults, limit >= 0 or trailer is not None):
        if keep:
            result.whole.append(batch)
        index.add(batch.block, end)
    if limit >= 0:
        result.problems += faults
    elif keep:
        result.problems += faults[1:]
    if sealed and not result.problems:
        inside = decode_index(data[file.end:len(data) - TRAILER_SIZE], file.end, file.file_id)
        if inside is None or inside[1] is None or not inside[0].same(index):
            result.footer = False
    file.messages, file.raw = index.messages, index.raw
    return result


def verify(base: Path, expect: Mapping[int, range] | None = None) -> Iterator[FileReport]:
    """Read everything, change nothing; also what a start put aside. expect: by log, the offsets that the state says
    files have. Raises OSError."""
    synced = expect or {}
    queues = base / "queues"
    for number, path in sorted({*logs_in(queues, UNKNOWN), *known_logs(queues, synced)}):
        examined_files = read_headers(number, path)
        reports: list[FileReport] = []
        files: list[SegmentFile] = []
        begun = False
        for at, (where, head) in enumerate(examined_files):
            report = FileReport(number, where, bytes=where.stat().st_size)
            reports.append(report)
            if isinstance(head, Damage):
                begun = head.offset < 0 and at + 1 == len(examined_files)
                (report.notes if begun else report.problems).append(head.text)
                continue
            after = next((later for _, later in examined_files[at + 1:]), None)
            last = after is None or (isinstance(after, Damage) and after.offset < 0)
            examined = _examine(head, after.follows if isinstance(after, SegmentFile) else
                                (None if last else _reach_of(head)), False)
            files.append(head)
            report.messages = head.messages
            report.problems += examined.problems
            if not examined.footer:
                report.notes.append("its footer does not hold, or a crash left something behind the last batch; the "
                                    "next start sees to it")
        missing = None if any(report.problems for report in reports) else missing_file(files, synced.get(number))
        if missing is not None and missing.missing and not begun:
            reports.append(FileReport(number, path, problems=[missing.text]))
        elif missing is not None:
            reports[-1].problems.append(missing.text)
        yield from reports


def _reach_of(file: SegmentFile) -> int | None:
    """What a file says of itself, where the next one cannot say what it follows."""
    data = read_whole(file.path)
    trailer = decode_trailer(data[max(0, len(data) - TRAILER_SIZE):], len(data), file.file_id)
    return trailer[1] if trailer is not None else None


def dump(base: Path, number: int | None = None) -> Iterator[tuple[int, tuple[int, int, int, int, int, int, bytes, bytes,
                                                                            bytes]]]:
    """(log, message as `messages_of` gives it) of one log or of all, in order, also of those that a start put aside.
    Raises CorruptError when all that holds has been given, OSError."""
    damaged: list[str] = []
    for log, path in logs_in(base / "queues", UNKNOWN):
        if number is not None and log != number:
            continue
        files = read_headers(log, path)
        for at, (where, head) in enumerate(files):
            after = files[at + 1][1] if at + 1 < len(files) else None
            if isinstance(head, Damage):
                if head.offset < 0:
                    continue
                damaged.append(f"{where}: {head.text}")
                continue
            problems: list[str] = []
            try:
                read_file(head, after.follows if isinstance(after, SegmentFile) else None)
            except Damage as damage:
                problems.append(damage.text)
                head.end = where.stat().st_size
            data = read_whole(where)
            for _, batch in _batches(data, head, head.end, problems, not problems):
                for message in messages_of(batch.block[7]):
                    yield log, message
            damaged += [f"{where}: {problem}" for problem in problems]
    if damaged:
        raise CorruptError("; ".join(damaged))


# ------------------------------------------------------------------------------------------------------------- repair


def repair(base: Path, ops: FileOps | None = None, expect: Mapping[int, range] | None = None) -> SegmentRecovery:
    """Make every log open again. expect: as for verify(). The caller holds the lock on `base`. Raises OSError."""
    report = SegmentRecovery()
    for number, path in known_logs(base / "queues", expect or {}):
        repair_log(number, path, ops or FileOps(), report, (expect or {}).get(number))
    return report


def repair_log(number: int, path: Path, ops: FileOps, report: SegmentRecovery, expect: range | None) -> None:
    """One log; expect: the offsets that the state says files have. What open() does by itself (torn tails, footers) is
    left to it."""
    synced = expect.stop if expect else 0
    log_files = read_headers(number, path)
    if log_files and isinstance(log_files[-1][1], Damage) and log_files[-1][1].offset < 0:
        log_files.pop()
    reached = expect.start if expect else None
    for at, (where, head) in enumerate(log_files):
        after = log_files[at + 1][1] if at + 1 < len(log_files) else None
        file = head if isinstance(head, SegmentFile) else _guess(where, number, reached or 0)
        if at and isinstance(head, SegmentFile) and head.follows < (reached or 0):
            _set_aside(where, ops, report)
            report.dropped.append(f"{where}: the whole file, which repeats what others hold")
            continue
        if reached is not None and isinstance(head, SegmentFile) and head.follows > reached:
            _write_missing(path, number, reached, head.follows, ops, report)
        # Its own word first: where a file is missing behind it, it is not the one that is damaged.
        following = _reach_of(file)
        if following is None and isinstance(after, SegmentFile):
            following = after.follows
        examined = _examine(file, following, True)
        short = (after is None and not examined.problems and not (examined.footer and file.sealed)
                 and reach_of(file) < synced)
        if short:
            examined = _synced(file, synced)
        end = examined.whole[-1].block[1] + 1 if examined.whole else file.first
        if isinstance(head, SegmentFile) and not examined.problems:
            reached = file.reach
            continue
        if after is None and not short:
            examined.whole = _firm(examined.whole)
            end = examined.whole[-1].block[1] + 1 if examined.whole else file.first
        reached = max(end, following or 0, synced if after is None else 0)
        _set_aside_copy(where, ops, report)
        _write(SegmentFile(where, number, file.first, file.follows, _new_id()), examined.whole, reached,
               where.with_suffix(".seg.repaired"), ops)
        damage = "; ".join(([head.text] if isinstance(head, Damage) else []) + examined.problems)
        report.dropped.append(f"{where}: {damage}; {sum(each.block[2] for each in examined.whole)} messages in "
                              f"{len(examined.whole)} batches are kept")
    if reached is not None and reached < synced:
        _write_missing(path, number, reached, synced, ops, report)


def _write_missing(path: Path, number: int, first: int, behind: int, ops: FileOps, report: SegmentRecovery) -> None:
    """A file without messages for one that is missing, and had those from offset `first` up to `behind`."""
    for directory in (path.parent, path):
        if not directory.is_dir():
            ops.mkdir(directory)
            ops.sync_directory(directory.parent)
    empty = path / file_name(first)
    _write(SegmentFile(empty, number, first, first, _new_id()), [], behind, empty, ops)
    report.dropped.append(f"{empty}: missing; offsets {first} to {behind - 1} are given up")


def _synced(file: SegmentFile, synced: int) -> _Examined:
    """Of a log's last file, which is no torn one: every batch that holds and had been synced, wherever it stands."""
    result = _Examined(problems=[not_all(file.reach, range(synced), file.end).text], footer=False)
    data = read_whole(file.path)
    result.whole = [batch for _, batch in _batches(data, file, len(data), result.problems, False)
                    if batch.block[0] < synced]
    return result


def _firm(whole: list[_Batch]) -> list[_Batch]:
    """Of the last file's batches those before the first gap that no header says was synced. What belongs there is still
    in the journal, and is only written again if nothing behind it is kept."""
    synced = max((batch.synced for batch in whole), default=0)
    end = HEADER_SIZE
    for number, batch in enumerate(whole):
        if batch.position != end and end >= synced:
            return whole[:number]
        end = batch.position + BATCH_HEADER_SIZE + len(batch.stored)
    return whole


def _new_id() -> int:
    return int.from_bytes(os.urandom(8), "little")


def _guess(path: Path, number: int, follows: int) -> SegmentFile:
    """A file whose header does not hold. Its id may still be right: then its batches do hold."""
    data = bytes(read_head(path, HEADER_SIZE)).ljust(HEADER_SIZE, b"\0")
    return SegmentFile(path, number, file_first(path.name) or 0, follows, int.from_bytes(data[32:40], "little"))


def _set_aside(path: Path, ops: FileOps, report: SegmentRecovery) -> None:
    aside = path.with_suffix(".seg.damaged")
    ops.rename(path, aside)
    ops.sync_directory(path.parent)
    report.set_aside.append(str(aside))


def _set_aside_copy(path: Path, ops: FileOps, report: SegmentRecovery) -> None:
    """A second name for it; the first one is taken over by the repaired file, at once."""
    aside = path.with_suffix(".seg.damaged")
    if aside.exists():
        ops.unlink(aside)
    ops.link(path, aside)
    ops.sync_directory(path.parent)
    report.set_aside.append(str(aside))


def _write(file: SegmentFile, batches: list[_Batch], reach: int, through: Path, ops: FileOps) -> None:
    """A sealed file of these batches, under its name only when it is whole."""
    if through != file.path and through.exists():
        ops.unlink(through)
    if through == file.path:
        through = file.path.with_suffix(".seg.repaired")
    if through.exists():
        ops.unlink(through)
    fd = ops.open(through, True)
    try:
        index = SegmentIndex()
        pairs = bytearray()
        ops.pwrite(fd, encode_header(file.log, file.first, file.follows, file.file_id), 0)
        for batch in batches:
            header = encode_batch_header(batch.block, batch.stored, batch.how, 0, file.file_id)
            ops.pwrite(fd, header + batch.stored, index.end)
            if batch.block[6]:
                pairs += due_pairs(batch.block[7])
            index.add(batch.block, index.end + len(header) + len(batch.stored))
        ops.pwrite(fd, index.footer(pairs, reach, file.file_id), index.end)
        ops.fdatasync(fd)
    finally:
        close_quietly(fd)
    ops.rename(through, file.path)
    ops.sync_directory(file.path.parent)
