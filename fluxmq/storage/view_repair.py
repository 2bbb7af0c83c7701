"""A damaged view: all of its damage found, and what can still be read of it saved into a new one.

RocksDB's own repair drops every table in which one block does not hold, and then older values and deleted keys in
other tables come back. So the damaged view is read as it stands, with a search for the next key that can be read behind
each bad block: there the newest value wins as always. Only for keys that lay in such a hole its repair is asked, over
the tables that are whole: a value there may be older than the last checkpoint, which is said, and is better than none.
If the view cannot be opened at all (the manifest, CURRENT, or a whole table is gone), all there is comes that way.

The new view is made as `state.repairing`, becomes `state.repaired` when it is whole, and then `state`; the old one is
kept as `state.damaged`. A repair that was cut short is finished by the next one.
"""
from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rocksdict import AccessType, Rdict, ReadOptions, WriteBatch

from fluxmq._core.errors import StorageError
from fluxmq.engine.stored import shown
from fluxmq.storage import staged
from fluxmq.storage.manifest import ViewDamage, check_manifest, cut_torn
from fluxmq.storage.view import (
    REPAIRED,
    applied_of,
    is_new,
    open_view,
    read_all,
    settle_staged,
    staged_in,
    view_error,
    view_options,
)

__all__ = ["Hole", "ViewReport", "around", "examine", "finish", "readable_copy", "salvage",
           "set_applied", "swap", "write"]

# The search for the next readable key works on numbers of so many bytes, a key's first ones. Longer keys that have all
# of these in common are skipped together; only retained messages have keys of more than 9.
_KEY_BYTES = 64
_PUTS_PER_BATCH = 2000


@dataclass(frozen=True, slots=True)
class Hole:
    """Keys from `begin` up to before `end` cannot be read; end: None if nothing behind can. text: why."""

    begin: bytes
    end: bytes | None
    text: str


@dataclass(slots=True)
class ViewReport:
    """What examine() found. problems: one line each. keys: that can be read. applied: None if it is not known. parts:
    of a checkpoint that was cut short; the next start ends it."""

    problems: list[str] = field(default_factory=list)
    keys: int = 0
    applied: int | None = 0
    parts: int = 0


def around(view: Rdict, begin: bytes = b"") -> Iterator[tuple[bytes, bytes] | Hole]:
    """Every key and value that can be read, in order, and between them the holes."""
    how = ReadOptions()
    how.set_verify_checksums(True)
    how.fill_cache(False)  # type: ignore[call-arg]  # takes a value, whatever its stub says
    while True:
        at = view.iter(how)
        problem = _seek(at, begin)
        while problem is None and at.valid():
            begin = at.key() + b"\0"
            yield at.key(), at.value()
            at.next()
            if not at.valid():
                problem = _status(at)
        if problem is None:
            return
        end = _readable(view, begin, how)
        if end == begin:
            continue                    # the disk has given it back after all
        yield Hole(begin, end, problem)
        if end is None:
            return
        begin = end


def _seek(at: object, key: bytes) -> str | None:
    at.seek(key)  # type: ignore[attr-defined]
    return _status(at)


def _status(at: object) -> str | None:
    try:
        at.status()  # type: ignore[attr-defined]
    except Exception as error:
        return " ".join(str(error).split())
    return None


def _readable(view: Rdict, begin: bytes, how: ReadOptions) -> bytes | None:
    """The first key from `begin` on from which on reading works again; None: nowhere."""
    def works(place: int) -> bool:
        return _seek(view.iter(how), place.to_bytes(_KEY_BYTES, "big")) is None

    bad = int.from_bytes(begin[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0"), "big")
    if _seek(view.iter(how), begin) is None:
        return begin
    top = (1 << 8 * _KEY_BYTES) - 1
    step = 1
    while not works(good := min(bad + step, top)):
        if good == top:
            return None
        bad, step = good, step * 2
    while good - bad > 1:
        middle = (good + bad) // 2
        bad, good = (bad, middle) if works(middle) else (middle, good)
    at = view.iter(how)
    at.seek(good.to_bytes(_KEY_BYTES, "big"))
    return at.key() if at.valid() else None


@contextmanager
def readable_copy(state: Path) -> Iterator[Path]:
    """A directory of links to the view's files, but for those that RocksDB would write or the binding stumble over: so
    nothing is changed, and no more is needed than to read."""
    with tempfile.TemporaryDirectory(prefix="fluxmq-state-") as where:
        for path in state.iterdir():
            if path.name.startswith("MANIFEST-"):
                cut_torn(Path(shutil.copyfile(path, Path(where) / path.name)))     # small, and changed by a start
            elif path.is_file() and not path.name.startswith(("OPTIONS", "LOG", "LOCK")):
                (Path(where) / path.name).symlink_to(path.resolve())
        yield Path(where)


def examine(state: Path) -> ViewReport:
    """Read everything, change nothing. Raises OSError, StorageError."""
    report = ViewReport()
    if is_new(state):
        return report
    try:
        check_manifest(state)
        with readable_copy(state) as copy:
            try:
                view = open_view(copy, AccessType.read_only(False))
                try:
                    report.applied = applied_of(view, copy)
                except ViewDamage:
                    report.applied = None
                for item in around(view):
                    if isinstance(item, Hole):
                        report.problems.append(f"{_between(item)}: {item.text.replace(str(copy), str(state))}")
                    elif not item[0].startswith((staged.PART, staged.READY)):
                        report.keys += 1
                if not report.problems:
                    report.parts = sum(1 for _ in staged_in(view, copy))
            except (ViewDamage, StorageError) as error:
                report.problems.append(str(error).replace(str(copy), str(state)))
                report.applied = None
    except ViewDamage as damage:
        report.problems.append(damage.text)
        report.applied = None
    return report


def _between(hole: Hole) -> str:
    return (f"what stands between {shown(hole.begin.removesuffix(bytes(1))) if hole.begin else 'the beginning'} and "
            f"{shown(hole.end) if hole.end is not None else 'the end'} cannot be read")


# ------------------------------------------------------------------------------------------------------------- repair


def salvage(base: Path, lines: list[str]) -> Path:
    """Makes `state.repairing` of all that can be read, and says in `lines` what may be missing. The caller holds the
    lock, and ends with swap(). Raises OSError, StorageError."""
    state, target, scratch = base / "state", base / "state.repairing", base / "state.scratch"
    for left in (target, scratch):
        shutil.rmtree(left, ignore_errors=True)
    target.mkdir()
    holes: list[Hole] = []
    new = open_view(target)
    try:
        try:
            check_manifest(state)
            with readable_copy(state) as copy:
                try:
                    view = open_view(copy, AccessType.read_only(False))
                except ViewDamage as damage:
                    raise ViewDamage(damage.text.replace(str(copy), str(state))) from None
                write(new, _but_for_holes(view, holes))
                lines += [f"{state}: {_between(hole)}: {hole.text.replace(str(copy), str(state))}" for hole in holes]
        except ViewDamage as damage:
            holes = [Hole(b"", None, damage.text)]
            lines.append(f"{state}: {damage.text}")
        if holes:
            _older(state, scratch, new, holes, lines)
        _settle(new, state, lines)
    finally:
        new.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _settle(new: Rdict, state: Path, lines: list[str]) -> None:
    """A checkpoint that was cut short is ended with what is left of it."""
    missing: list[int] = []
    try:
        settle_staged(new, state, missing)
    except ViewDamage as damage:
        lines.append(damage.text)
        write(new, [], [key for key, _ in read_all(new, state, staged.PART) if key[:1] == b"\0"])
    if missing:
        lines.append(f"{state}: {len(missing)} parts of the last checkpoint cannot be read; what they changed may be "
                     f"older")


def _but_for_holes(view: Rdict, holes: list[Hole]) -> Iterator[tuple[bytes, bytes]]:
    for item in around(view):
        if isinstance(item, Hole):
            holes.append(item)
        else:
            yield item


def _older(state: Path, scratch: Path, new: Rdict, holes: list[Hole], lines: list[str]) -> None:
    """What tables that are whole have of the keys in the holes."""
    scratch.mkdir()
    tables = sorted(state.glob("*.sst"))
    for path in tables:
        try:
            os.link(path, scratch / path.name)
        except OSError:
            shutil.copyfile(path, scratch / path.name)
    if not tables:
        lines.append(f"{state}: it has no tables; nothing of it is left")
        return
    try:
        Rdict.repair(str(scratch), view_options())
        view = open_view(scratch, AccessType.read_only(False))
    except ViewDamage as damage:
        lines.append(f"{state}: no table of it can be read: {damage.text}")
        return
    except Exception as error:
        raise view_error(state, error) from error
    bad = sorted(path.name for path in scratch.glob("lost/*.sst"))
    lines += [f"{state / name}: damaged; as a whole it is not used where it is asked for older values" for name in bad]
    for hole in holes:
        kept = _Counted(key_value for key_value in _range(view, state, hole))
        write(new, kept)
        if kept.count:
            lines.append(f"{state}: {kept.count} keys were read from the tables that are whole"
                         + (", and may be older than the last checkpoint" if hole.begin or bad else ""))


class _Counted:
    """An iterable that knows how many it gave."""

    def __init__(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        self._items = items
        self.count = 0

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for item in self._items:
            self.count += 1
            yield item


def _range(view: Rdict, state: Path, hole: Hole) -> Iterator[tuple[bytes, bytes]]:
    for key, value in read_all(view, state, hole.begin):
        if hole.end is not None and key >= hole.end:
            return
        yield key, value


def write(view: Rdict, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
    """Durably; in several steps, so not for a view that is in use. Raises StorageError."""
    how = staged.unsynced()
    batch = WriteBatch(raw_mode=True)
    try:
        for key, value in puts:
            batch.put(key, value)
            if len(batch) >= _PUTS_PER_BATCH:
                view.write(batch, how)
                batch = WriteBatch(raw_mode=True)
        for key in deletes:
            batch.delete(key)
        view.write(batch, how)
        view.flush(wait=True)
    except (ViewDamage, StorageError):
        raise
    except Exception as error:
        raise StorageError(f"cannot write the repaired state: {error}") from error


def swap(base: Path) -> Path:
    """`state.repairing` becomes `state`. Returns where the old one is kept. Raises OSError."""
    state, repaired = base / "state", base / REPAIRED
    shutil.rmtree(repaired, ignore_errors=True)
    (base / "state.repairing").rename(repaired)
    _sync(base)
    kept = next(path for number in range(1, 1 << 20)
                if not (path := base / f"state.damaged{f'.{number}' if number > 1 else ''}").exists())
    state.rename(kept)
    _sync(base)
    repaired.rename(state)
    _sync(base)
    return kept


def finish(base: Path) -> bool:
    """Ends a swap() that was cut short. Returns whether there was one. Raises OSError."""
    state, repaired = base / "state", base / REPAIRED
    if not repaired.is_dir():
        return False
    if not is_new(state):
        shutil.rmtree(repaired)         # cut short before anything was moved
        return False
    shutil.rmtree(state, ignore_errors=True)
    repaired.rename(state)
    _sync(base)
    return True


def set_applied(view: Rdict, batch: int) -> None:
    """The view is taken to reach this batch. Raises StorageError."""
    write(view, [(staged.APPLIED_KEY, batch.to_bytes(8, "little"))])


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
