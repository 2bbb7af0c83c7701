"""Opening the segments' directories at a start: the order of files, the remains of a crash, damage.

The policy is at the top of `segment_files.py`; here it is applied to whole logs. Only footers are read where there are
any, so that a backlog of millions opens in a moment; batches show what they are worth when they are read (and all at
once by `fluxmq log verify`).
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fluxmq._core.disk.segment_format import HEADER_SIZE, file_first, log_name, log_number
from fluxmq._core.errors import CorruptError
from fluxmq.storage.files import SYSTEM
from fluxmq.storage.reading import close_quietly, read_head, read_whole, write_again
from fluxmq.storage.segment_files import (
    Damage,
    FileOps,
    SegmentFile,
    files_of,
    never_synced,
    no_space,
    read_file,
    read_header,
    unpacked,
)

__all__ = [
    "UNKNOWN",
    "Log",
    "LogFiles",
    "SegmentRecovery",
    "known_logs",
    "logs_in",
    "missing_file",
    "not_all",
    "open_logs",
    "reach_of",
    "read_headers",
    "refusal",
    "seal_on_disk",
]

UNKNOWN = ".unknown"  # suffix of the directory of an unknown log


@dataclass(slots=True)
class SegmentRecovery:
    """What open() or a repair did, one line each.

    truncated: cut off behind the last batch of a log's last file. rebuilt: footers that were made again. dropped: what
    a repair gave up. set_aside: files that it kept under another name. truncated_bytes: of `truncated` in all.
    """

    truncated: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    truncated_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogFiles:
    """What the files of one log hold: messages from offset `first` on, and none at or above `next`."""

    first: int
    next: int
    messages: int
    bytes: int
    files: int


@dataclass(slots=True, eq=False)
class Log:
    """One log's files. `files` is replaced, never changed, so that readers need no lock; `lock` is for writers."""

    number: int
    path: Path
    files: list[SegmentFile] = field(default_factory=list)
    next: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: bool = False
    directory_dirty: bool = False

    def summary(self) -> LogFiles:
        """Totals, as the result of opening the store."""
        return LogFiles(self.files[0].first, self.next, sum(file.messages for file in self.files),
                        sum(file.size for file in self.files), len(self.files))


# Of one log: its number and directory, and the offsets that the state says files have (segment_repair.repair_log).
Repair = Callable[[int, Path, FileOps, SegmentRecovery, range | None], None]


def refusal(base: Path, path: Path, damage: Damage) -> CorruptError:
    """The error that tells a user file, offset and way out. path: of a directory where a file is missing."""
    what = f"{path}: {damage.text}" if damage.missing else f"{path} is damaged at offset {damage.offset}: {damage.text}"
    return CorruptError(f"{what}. Restore {base} from a copy, or stop the broker and run `fluxmq log repair {base}`, "
                        f"which keeps every batch that is whole, sets a damaged file aside and says what is lost")


def logs_in(queues: Path, suffix: str = "", ops: FileOps = SYSTEM) -> list[tuple[int, Path]]:
    """(number, directory) of every log. suffix: also of those whose directories have it behind their number."""
    if not ops.is_directory(queues):
        return []
    logs = [(log_number(name.removesuffix(suffix)), queues / name) for name in ops.names(queues)
             if ops.is_directory(queues / name)]
    return sorted((number, path) for number, path in logs if number is not None)


def known_logs(queues: Path, expect: Mapping[int, range], ops: FileOps = SYSTEM) -> list[tuple[int, Path]]:
    """(number, directory) of every log, also of those expected that have no directory, not even one put aside."""
    logs = dict(logs_in(queues, ops=ops))
    for number in expect:
        path = queues / log_name(number)
        if number not in logs and not ops.is_directory(path.with_name(path.name + UNKNOWN)):
            logs[number] = path
    return sorted(logs.items())


def missing_file(files: Sequence[SegmentFile], expect: range | None) -> Damage | None:
    """What is wrong when files that hold are not all that the state says were synced. expect: these offsets; files are
    removed when the state says that they are not needed, and never before, so what holds any of these has a file."""
    if not expect:
        return None
    begins = files[0].follows if files else expect.stop
    if begins > expect.start:
        return Damage.of_missing(expect.start, begins)
    reach = reach_of(files[-1])
    if reach >= expect.stop:
        return None
    return Damage.of_missing(reach, expect.stop) if files[-1].sealed else not_all(reach, expect, files[-1].end)


def reach_of(file: SegmentFile) -> int:
    """The offset behind what a log has whose last file is this one."""
    return file.reach if file.sealed or file.messages else file.follows     # begun for a batch that never came


def not_all(reach: int, expect: range, at: int) -> Damage:
    """A log's last file ends at `at`, before what had been synced."""
    return Damage(f"messages from offset {reach} on do not hold, though those up to {expect.stop - 1} had been synced",
                  at)


def read_headers(number: int, directory: Path, ops: FileOps = SYSTEM) -> list[tuple[Path, SegmentFile | Damage]]:
    """Every file of a log with what its header says; none where there is no directory."""
    files: list[tuple[Path, SegmentFile | Damage]] = []
    if not ops.is_directory(directory):
        return files
    for path in files_of(directory, ops):
        first = file_first(path.name)
        if first is None:
            continue
        data = read_head(path, HEADER_SIZE, ops)
        try:
            files.append((path, read_header(data, path, number, first)))
        except Damage as damage:
            if never_synced(data):
                damage.offset = -1
            files.append((path, damage))
    return files


def open_logs(base: Path, ops: FileOps, expect: Mapping[int, range], repair: Repair | None, report: SegmentRecovery,
              on_damage: Callable[[int, CorruptError], None] | None = None) -> dict[int, Log]:
    """Every log that has files, ready to be written on. expect: by log, the offsets that the state says files have.
    repair: of each log before it is opened; None: it has to be whole. on_damage: is told of one that is damaged, which
    is left as it is; None: the first one is raised. Raises CorruptError, OSError."""
    logs = {}
    for number, path in known_logs(base / "queues", expect, ops):
        if repair is not None:
            repair(number, path, ops, report, expect.get(number))
        try:
            log = open_log(number, path, ops, expect.get(number), report)
        except Damage as damage:
            refused = refusal(base, Path(damage.args[1]), damage)
            if on_damage is None:
                raise refused from None
            on_damage(number, refused)
            continue
        if log.files:
            logs[number] = log
    return logs


def open_log(number: int, path: Path, ops: FileOps, expect: range | None, report: SegmentRecovery) -> Log:
    """One log. Raises Damage, whose second argument is the file, or the directory."""
    examined_files = read_headers(number, path, ops)
    log = Log(number, path, made=True)
    begun = None
    if examined_files and isinstance(examined_files[-1][1], Damage) and examined_files[-1][1].offset < 0:
        begun = examined_files.pop()[0]      # a crash came before anything in it was synced
    files: list[SegmentFile] = []
    surplus: list[int] = []
    for where, head in examined_files:
        if isinstance(head, Damage):
            raise _in(where, Damage(head.text, 0))
        files.append(head)
    for at, file in enumerate(files):
        try:
            surplus.append(read_file(file, files[at + 1].follows if at + 1 < len(files) else None, ops))
        except Damage as damage:
            raise _in(file.path, damage) from None
    reach = reach_of(files[-1]) if files else 0
    missing = missing_file(files, expect)
    if missing is not None:
        if begun is not None and expect and reach < expect.stop:
            raise _in(begun, not_all(reach, expect, 0))
        raise _in(path if missing.missing else files[-1].path, missing)
    if begun is not None:
        report.truncated.append(f"{begun}: begun when power went, and removed")
        report.truncated_bytes += len(read_head(begun, HEADER_SIZE, ops))
        ops.unlink(begun)
    for at, file in enumerate(files):
        if at + 1 < len(files) and file.index is not None:
            try:
                sealed = seal_on_disk(ops, file)
            except Damage as damage:
                raise _in(file.path, damage) from None
            if sealed:
                report.rebuilt.append(f"{file.path}: the footer did not hold and was made again")
            file.index = None
    if files and not files[-1].sealed:
        last = files[-1]
        if reach > (expect.stop if expect else 0):
            _write_again(ops, last)
        if surplus[-1]:
            _cut(ops, last)
            report.truncated.append(f"{last.path}: {surplus[-1]} bytes from offset {last.end} on")
            report.truncated_bytes += surplus[-1]
        if not last.messages:
            ops.unlink(last.path)
            files.pop()
    log.files, log.next, log.directory_dirty = files, reach, True
    return log


def _in(path: Path, damage: Damage) -> Damage:
    damage.args = (damage.text, str(path))
    return damage


def _write_again(ops: FileOps, file: SegmentFile) -> None:
    """Files that may not be on the medium; the next checkpoint syncs them before the view relies on them."""
    data = read_whole(file.path, ops)
    fd = ops.open(file.path, False)
    try:
        write_again(fd, data, file.synced, file.end, ops)
    finally:
        close_quietly(fd, ops)


def _cut(ops: FileOps, file: SegmentFile) -> None:
    """Cut at the end of the batches, for good before anything is written there: old bytes must not come back."""
    fd = ops.open(file.path, False)
    try:
        ops.truncate(fd, file.end)
        ops.fdatasync(fd)
    finally:
        close_quietly(fd, ops)
    file.size = file.synced = file.end


def seal_on_disk(ops: FileOps, file: SegmentFile) -> bool:
    """Write the footer of a file whose batches have just been walked. False: there is no room for it; the file can be
    read all the same. Raises Damage, OSError."""
    assert file.index is not None
    data = read_whole(file.path, ops)
    footer = file.index.footer(unpacked(file, file.index, data), file.reach, file.file_id)
    fd = ops.open(file.path, False)
    try:
        ops.truncate(fd, file.end)
        ops.pwrite(fd, footer, file.end)
        ops.fdatasync(fd)
    except OSError as error:
        if not no_space(error):
            raise
        ops.truncate(fd, file.end)
        file.size = file.end
        return False
    finally:
        close_quietly(fd, ops)
    file.size = file.synced = file.end + len(footer)
    return True
