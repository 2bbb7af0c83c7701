"""Reading the journal: the files of a directory, the remains of a crash, and what a start repairs.

The format is drawn in `_core/disk/journal_format.pyx`. The policy:

  - The files must continue each other: each begins with the batch after the last of the file before. A hole is
    tolerated only below what the caller needs (`after`), because the view already holds it.
  - In the last file the first batch that does not hold is the end. If nothing behind it proves that it had been synced,
    its write was under way when power went: recovery cuts it off, with what follows, and reports that. If something
    proves it, the medium has changed acknowledged data: CorruptError.
  - Anywhere else a batch that does not hold, or a file header that does not, is damage: CorruptError. (A file gets its
    name only after its header was synced, so a header is never torn.)
  - `journal_repair.py` makes a refused journal readable again.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fluxmq._core.disk.journal_format import (
    FILE_HEADER_SIZE,
    batch_at,
    clean_end,
    decode_file_header,
    file_name,
    file_number,
    proof_of_sync,
    synced_at,
)
from fluxmq._core.errors import CorruptError, StorageError
from fluxmq.storage.files import SYSTEM, FileOps
from fluxmq.storage.reading import close_quietly, read_head, read_whole, write_again

__all__ = ["JournalFile", "Recovery", "check", "read_batches", "recover"]


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One readable file: batches `first` to `last` in its first `end` bytes; `size` is all of it. firm: of the last
    file, how many bytes were known to be on the medium when its last batch was written."""

    number: int
    first: int
    last: int
    end: int
    size: int
    firm: int = 0


@dataclass(slots=True)
class Recovery:
    """What recover() found and did.

    path: the directory. files: oldest first, each with at least one batch. batches: how many they hold in all. first,
    last: the numbers of the first and the last of them (0, 0: none). next_file: the number for the next file.
    truncated_bytes: cut off from offset `truncated_at` of `truncated_file` on, behind its last batch; in a recycled
    file stale bytes are among them.
    """

    path: Path = Path()
    files: list[JournalFile] = field(default_factory=list)
    batches: int = 0
    first: int = 0
    last: int = 0
    next_file: int = 1
    truncated_bytes: int = 0
    truncated_file: str = ""
    truncated_at: int = 0


class _Damage(Exception):
    """What is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _numbers(directory: Path, ops: FileOps) -> list[int]:
    numbers = [file_number(entry) for entry in ops.names(directory)]
    return sorted(number for number in numbers if number is not None)


def _header(data: memoryview, number: int) -> tuple[int, int]:
    """(first batch, file id); raises CorruptError."""
    number_in_header, first, file_id = decode_file_header(data)
    if number_in_header != number:
        raise CorruptError(f"its header says that it is file {number_in_header}: it has been renamed or copied")
    return first, file_id


def _scan(data: memoryview, number: int, last_due: int | None) -> tuple[JournalFile, bool]:
    """Walk one file. `last_due`: the last batch it must hold, None for the last file, which ends where it ends.

    Returns the file and whether it ends cleanly. Raises _Damage.
    """
    try:
        first, file_id = _header(data, number)
    except CorruptError as error:
        raise _Damage(str(error)) from None
    at, due = FILE_HEADER_SIZE, first
    ends = []
    synced = 0
    while last_due is None or due <= last_due:
        decoded = batch_at(data, at, file_id, due)
        if decoded is None:
            break
        synced = synced_at(data, at)
        at, due = decoded[1], due + 1
        ends.append(at)
    firm = ends[synced - first] if first <= synced < due else 0
    file = JournalFile(number, first, due - 1, at, len(data), firm)
    if last_due is not None:
        return file, True
    proof = proof_of_sync(data, at, file_id, due)
    if proof is not None:
        raise _Damage(f"batch {due} at offset {at} does not hold, though the batch at offset {proof} shows that it had "
                      f"been written and synced")
    return file, clean_end(data, at)


def _refuse(directory: Path, number: int, text: str) -> CorruptError:
    return CorruptError(
        f"{directory / file_name(number)} is damaged: {text}. Restore {directory.parent} from a copy; or run `fluxmq "
        f"log repair {directory.parent}`, which keeps every batch that is whole, sets the damaged file aside and says "
        f"what is lost (`storage.recover_on_startup: true` does it at a start)")


def _no_files(where: Path, after: int) -> CorruptError:
    return CorruptError(
        f"{where} holds no journal file, though the state beside it was made with one (batch {after}). "
        f"Restore {where.parent} from a copy, or only these files; or run `fluxmq log repair {where.parent}` to go on "
        f"with what state and segments hold")


def _too_old(where: Path, after: int, first: int) -> CorruptError:
    return CorruptError(
        f"the state in {where.parent / 'state'} reaches batch {after}, but the journal in {where} begins with batch "
        f"{first}: what happened between is in neither. The state was removed, emptied or put back from an older copy, "
        f"or journal files are missing. Nothing was deleted. Put back all of {where.parent} from one copy; or run "
        f"`fluxmq log repair {where.parent}`, which keeps what state, journal and segments still hold and says what is "
        f"lost (`storage.recover_on_startup: true` does it at a start)")


def recover(directory: str | os.PathLike[str], *, after: int = 0, ops: FileOps = SYSTEM) -> Recovery:
    """Check every journal file in `directory`, repair what a crash may leave, and say what there is.

    after: batches up to this one are not needed. The caller holds the lock on the directory; nothing else may write
    there.

    Raises CorruptError (file, offset, what to do) for damage that no crash explains, StorageError if the directory
    cannot be read or repaired.
    """
    where = Path(directory)
    result = Recovery(where)
    try:
        numbers = _numbers(where, ops)
        result.next_file = max(numbers, default=0) + 1
        if not numbers and after > 0:
            raise _no_files(where, after)
        firsts = _read_headers(where, numbers, ops)
        kept = _check_all(where, numbers, firsts, after, result, ops)
        for file in kept:
            path = where / file_name(file.number)
            # An empty file goes, unless there is no other: between this and the next one's name on the disk the
            # directory must never look as if the journal had been removed.
            if file.last < file.first and (result.files or file is not kept[-1]):
                ops.unlink(path)
                continue
            if file is kept[-1]:
                _make_firm(path, file, ops)
            result.files.append(file)
        ops.sync_directory(where)
    except OSError as error:
        raise StorageError(f"cannot read the journal in {where}: {error}") from error
    result.batches = sum(file.last - file.first + 1 for file in result.files)
    if result.files:
        result.first, result.last = result.files[0].first, result.files[-1].last
    return result


def check(directory: str | os.PathLike[str], after: int | None = None, ops: FileOps = SYSTEM) -> Recovery:
    """What recover() would find, without changes. after: None if the state does not say where the journal must
    begin. Raises CorruptError, OSError.
    """
    where = Path(directory)
    result = Recovery(where)
    numbers = _numbers(where, ops)
    if not numbers and after:
        raise _no_files(where, after)
    firsts = _read_headers(where, numbers, ops)
    if after is None:
        first = firsts[numbers[0]] if numbers else 1
        after = first - 1 if isinstance(first, int) else 0
    result.files = [file for file in _check_all(where, numbers, firsts, after, result, ops) if file.last >= file.first]
    if result.files:
        result.first, result.last = result.files[0].first, result.files[-1].last
    return result


def _read_headers(where: Path, numbers: list[int], ops: FileOps) -> dict[int, int | CorruptError]:
    """First batch of each file, or why it is unknown."""
    firsts: dict[int, int | CorruptError] = {}
    for number in numbers:
        data = read_head(where / file_name(number), FILE_HEADER_SIZE, ops)
        try:
            firsts[number] = _header(data, number)[0]
        except CorruptError as error:
            firsts[number] = error
    return firsts


def _check_all(where: Path, numbers: list[int], firsts: dict[int, int | CorruptError], after: int,
               result: Recovery, ops: FileOps) -> list[JournalFile]:
    kept: list[JournalFile] = []
    reached = after
    for index, number in enumerate(numbers):
        following = firsts[numbers[index + 1]] if index + 1 < len(numbers) else None
        try:
            head = firsts[number]
            if isinstance(head, int) and head > reached + 1:
                if not kept:
                    raise _too_old(where, after, head)
                raise _Damage(f"it begins with batch {head}, but the batches from {reached + 1} on, which the state "
                              f"needs, are in no file before it: a journal file is missing")
            last_due = following - 1 if isinstance(following, int) else None
            file, clean = _scan(read_whole(where / file_name(number), ops), number, last_due)
            short = last_due is not None and file.last < last_due
            if short and last_due is not None and last_due > after:
                raise _Damage(f"batch {file.last + 1} at offset {file.end} does not hold, though the next file begins "
                              f"with batch {last_due + 1}")
        except _Damage as damage:
            raise _refuse(where, number, damage.text) from None
        kept.append(file)
        reached = max(reached, file.last, last_due or 0)
        if following is None and not clean:
            result.truncated_bytes = file.size - file.end
            result.truncated_file, result.truncated_at = file_name(number), file.end
    return kept


def _make_firm(path: Path, kept: JournalFile, ops: FileOps) -> None:
    """Cut the last file at its end, write again what nothing in it shows to be on the medium, and sync it: after a
    kill, what was just read may never have reached the medium, and after a failed sync a further one does not bring it
    (reading.py). The file that is begun next will be taken as a proof that it is there."""
    data = read_whole(path, ops)
    fd = ops.open(path, False)
    try:
        if ops.size(fd) > kept.end:
            ops.truncate(fd, kept.end)
        write_again(fd, data, kept.firm, kept.end, ops)
        ops.fsync(fd)
    finally:
        close_quietly(fd, ops)


def read_batches(directory: str | os.PathLike[str], after: int = 0,
                 ops: FileOps = SYSTEM) -> Iterator[tuple[int, bytes]]:
    """(number, records) of every batch above `after`, in order; records for `_core.disk.journal_format.iter_records`.

    For directories that recover() has gone through: it ends at the first batch of the last file that does not hold.

    Raises CorruptError where a file before the last one does not hold.
    """
    where = Path(directory)
    numbers = _numbers(where, ops)
    firsts = _read_headers(where, numbers, ops)
    for index, number in enumerate(numbers):
        head = firsts[number]
        if isinstance(head, CorruptError):
            raise _refuse(where, number, str(head))
        following = firsts[numbers[index + 1]] if index + 1 < len(numbers) else None
        last_due = following - 1 if isinstance(following, int) else None
        if last_due is not None and last_due <= after:
            continue
        data = read_whole(where / file_name(number), ops)
        first, file_id = _header(data, number)
        at, due = FILE_HEADER_SIZE, first
        while last_due is None or due <= last_due:
            decoded = batch_at(data, at, file_id, due)
            if decoded is None:
                break
            if due > after:
                yield due, bytes(data[decoded[0]:decoded[1]])
            at, due = decoded[1], due + 1
        if last_due is not None and due <= last_due:
            raise _refuse(where, number, f"batch {due} at offset {at} does not hold")
