"""A checkpoint that goes into the view in parts: all of it or nothing, wherever it is cut off, for whoever reads it."""
from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rocksdict import Rdict, WriteBatch

from fluxmq._core.errors import CorruptError, ShortageError, StorageError
from fluxmq.app.log_commands import log
from fluxmq.storage import staged, view_repair
from fluxmq.storage import view as view_module
from fluxmq.storage.manifest import ViewDamage
from fluxmq.storage.repair import repair, verify_state
from fluxmq.storage.view import View, applied_of, open_view, rows_of

ROWS_AT_ONCE, ROWS_OF_A_PART = 12, 5
Content = dict[bytes, bytes]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "VIEW_WRITE_ROWS_MAX", ROWS_AT_ONCE)
    monkeypatch.setattr(staged, "VIEW_PART_ROWS_MAX", ROWS_OF_A_PART)


class Cut(BaseException):
    """The process ended here."""


class Watched:
    """RocksDB, which counts what is written. cut: the write before which it ends, with all before on the disk, as a
    crash may leave it. full: the write that finds no space, once."""

    def __init__(self, inner: Rdict, cut: int | None = None, full: int | None = None) -> None:
        self.inner, self.cut, self.full = inner, cut, full
        self.sizes: list[int] = []

    def write(self, batch: WriteBatch, how: Any) -> None:
        if len(self.sizes) == self.cut:
            self.inner.flush(wait=True)
            raise Cut
        self.sizes.append(len(batch))
        if len(self.sizes) - 1 == self.full:
            raise OSError(f"IO error: {os.strerror(errno.ENOSPC)}")
        self.inner.write(batch, how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def opened(base: Path, **watch: int | None) -> tuple[View, Watched]:
    view = View(base)
    view.open()
    view.make_writable()
    assert view._writing is not None
    watched = Watched(view._writing, **watch)
    view._writing = watched  # type: ignore[assignment]
    return view, watched


def content(base: Path) -> tuple[int, Content]:
    """As a start finds it, before it has written anything and after."""
    view = View(base)
    applied = view.open()
    rows = list(view.items())
    assert [key for key, _ in rows] == sorted({key for key, _ in rows})
    assert list(view.items()) == rows, "settled, it is what it was before"
    view.close()
    return applied, dict(rows)


def drawn(chance: random.Random, rows: int) -> tuple[Content, set[bytes]]:
    puts = {b"m%03d" % chance.randrange(60): chance.randbytes(chance.randrange(12)) for _ in range(rows)}
    deletes = {key for key in (b"m%03d" % chance.randrange(60) for _ in range(rows)) if key not in puts}
    return puts, deletes


def after(state: Content, puts: Content, deletes: set[bytes]) -> Content:
    return {key: value for key, value in (state | puts).items() if key not in deletes}


@pytest.fixture
def before(tmp_path: Path) -> tuple[Path, Content]:
    """A view after one small checkpoint that reaches batch 7."""
    puts = {b"m%03d" % number: b"old" for number in range(0, 60, 6)}
    base = tmp_path / "good"
    (base / "state").mkdir(parents=True)
    view, watched = opened(base)
    view.write(puts.items(), (), 7)
    view.close()
    assert watched.sizes == [len(puts) + 1], "what is small goes in one piece"
    return base, puts


def cut_views(base: Path, puts: Content, deletes: set[bytes]) -> Iterator[tuple[int, Path]]:
    """The view as each write of a checkpoint would leave it."""
    cut = 0
    while True:
        where = base.with_name("cut")
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(base, where)
        view, watched = opened(where, cut=cut)
        with suppress(Cut):
            view.write(puts.items(), deletes, 8)
        view.close()
        if len(watched.sizes) == cut:
            yield cut, where
            cut += 1
            continue
        assert max(watched.sizes) <= ROWS_OF_A_PART + 2, "no write is larger than a part"
        assert cut > 2 * (len(puts) + len(deletes)) // ROWS_OF_A_PART, "twice for each part, READY, and the end"
        return


def test_wherever_it_is_cut_off_there_is_all_of_it_or_nothing(before: tuple[Path, Content]) -> None:
    base, old = before
    puts, deletes = drawn(random.Random(1), 40)
    new, seen = after(old, puts, deletes), []
    for cut, where in cut_views(base, puts, deletes):
        report = view_repair.examine(where / "state")
        assert not report.problems, f"before write {cut}"
        applied, found = content(where)
        assert (applied, found) in ((7, old), (8, new)), f"before write {cut}"
        assert report.applied == applied
        seen.append(applied)
    assert seen == sorted(seen) and set(seen) == {7, 8}, "from one write on it counts"


def test_the_first_checkpoint_of_all_in_parts(tmp_path: Path) -> None:
    base = tmp_path / "new"
    (base / "state").mkdir(parents=True)
    opened(base)[0].close()
    puts, deletes = drawn(random.Random(2), 40)
    found = [content(where) for _, where in cut_views(base, puts, deletes)]
    assert {applied for applied, _ in found} == {0, 8}
    assert all(rows == (puts if applied else {}) for applied, rows in found)


def test_the_next_checkpoint_after_one_that_was_cut_off(before: tuple[Path, Content]) -> None:
    """Shorter than the one before: no part of that may come back."""
    base, _ = before
    puts, deletes = drawn(random.Random(3), 50)
    more, fewer = drawn(random.Random(4), 16)
    for cut, where in cut_views(base, puts, deletes):
        state = content(where)[1]
        view, _ = opened(where)
        view.write(more.items(), fewer, 9)
        view.close()
        assert content(where) == (9, after(state, more, fewer)), f"before write {cut}"


@pytest.mark.parametrize("seed", range(8))
def test_in_parts_it_is_what_it_is_in_one_piece(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "state").mkdir()
    view, watched = opened(tmp_path)
    state: Content = {}
    for upto in range(1, 12):
        puts, deletes = drawn(chance, chance.choice((0, 1, 5, 6, 12, 13, 60)))
        view.write(iter(puts.items()), iter(deletes), upto)
        state = after(state, puts, deletes)
        assert dict(view.items()) == state
    view.close()
    assert content(tmp_path) == (11, state)
    assert max(watched.sizes) <= ROWS_AT_ONCE + ROWS_OF_A_PART + 1


def test_bytes_bound_a_part_as_rows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "VIEW_PART_BYTES_MAX", 100)
    rows = [(b"m%d" % number, bytes(60)) for number in range(5)]
    assert [flat[::2] for flat, _ in staged.parts_of(rows, ())] == [[b"m0", b"m1"], [b"m2", b"m3"], [b"m4"]]


def test_a_disk_that_is_full_at_any_write(before: tuple[Path, Content]) -> None:
    """The checkpoint is tried again, with what happened meanwhile in addition."""
    base, old = before
    puts, deletes = drawn(random.Random(5), 40)
    more, fewer = drawn(random.Random(6), 3)
    whole = after({}, puts, set()) | more
    gone = (deletes - more.keys()) | fewer
    for full in range(100):
        where = base.with_name("full")
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(base, where)
        view, watched = opened(where, full=full)
        try:
            view.write(puts.items(), deletes, 8)
        except ShortageError:
            view.write({key: value for key, value in whole.items() if key not in fewer}.items(), gone, 9)
            assert dict(view.items()) == after(after(old, puts, deletes), more, fewer), f"write {full}"
            view.close()
            continue
        view.close()
        assert full == len(watched.sizes)
        return
    pytest.fail("it never came to an end")


def ready_view(base: Path, puts: Content, deletes: set[bytes]) -> Path:
    """A view whose checkpoint counts, with none of its rows in their places."""
    for cut, where in cut_views(base, puts, deletes):
        if content_of_ready(where):
            shutil.rmtree(keep := base.with_name("ready"), ignore_errors=True)
            return Path(shutil.copytree(where, keep))
        assert cut < 100
    raise AssertionError("it was never ready")


def content_of_ready(where: Path) -> bool:
    with view_repair.readable_copy(where / "state") as copy:
        return applied_of(open_view(copy), copy) == 8


def test_a_part_that_is_missing_is_damage_and_a_repair_keeps_the_others(before: tuple[Path, Content]) -> None:
    base, _ = before
    puts = {b"r\0\0%03d" % number: b"\1" + bytes(19) for number in range(30)}  # what a repair keeps: messages, empty
    where = ready_view(base, puts, set())
    writable = open_view(where / "state")
    writable.delete(staged.PART + (1).to_bytes(4, "big"))
    writable.close()
    with pytest.raises(CorruptError, match=r"part 1 of 6 of a checkpoint is missing.*fluxmq log repair"):
        content(where)
    assert "part 1 of 6" in str(verify_state(where).state)
    (where / "journal").mkdir()
    done = repair(where)
    assert any("1 parts of the last checkpoint cannot be read" in line for line in done.given_up)
    lost = {b"r\0\0%03d" % number for number in range(5, 10)}
    writable = open_view(where / "state")
    rows = dict(rows_of(writable, where / "state"))
    assert rows.keys() & puts.keys() == puts.keys() - lost
    assert applied_of(writable, where / "state") == 8
    writable.close()


def test_a_ready_that_makes_no_sense_is_damage(before: tuple[Path, Content]) -> None:
    where = ready_view(before[0], *drawn(random.Random(7), 40))
    writable = open_view(where / "state")
    writable.put(staged.READY, b"short")
    with pytest.raises(ViewDamage, match="not a number"):
        applied_of(writable, where / "state")
    writable.close()
    with pytest.raises(CorruptError, match="not a number"):
        content(where)


def test_verify_says_that_the_next_start_ends_it_and_repair_ends_it(before: tuple[Path, Content]) -> None:
    base, _ = before
    where = ready_view(base, {b"r\0\0%03d" % number: b"new" for number in range(30)}, {b"m000"})
    (where / "journal").mkdir()
    report = view_repair.examine(where / "state")
    assert (report.parts, report.applied, report.problems) == (7, 8, [])
    shown = CliRunner().invoke(log, ["verify", str(where)])
    assert "reaches batch 8; its last checkpoint was cut short, and the next start ends it" in shown.output
    assert any("cut short" in line for line in repair(where).made_again)
    assert view_repair.examine(where / "state").parts == 0


def test_a_start_that_cannot_end_it_gives_the_lock_back(before: tuple[Path, Content],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start finds it as it was, while the error of the first is still held."""
    base, old = before
    puts, deletes = drawn(random.Random(8), 40)
    where = ready_view(base, puts, deletes)
    view = View(where)
    assert view.open() == 8
    parts = view_module._parts

    def failing(*args: Any) -> Iterator[Any]:
        yield next(parts(*args))
        raise OSError("IO error: Input/output error")
    monkeypatch.setattr(view_module, "_parts", failing)
    with pytest.raises(StorageError, match="Input/output error") as caught:
        view.make_writable()
    view.close()
    monkeypatch.undo()
    assert content(where) == (8, after(old, puts, deletes))
    assert caught.value
