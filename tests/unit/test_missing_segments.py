"""A segment file that is not there although the state says that it was synced: damage, for a start, `log verify` and
`log repair` alike, whichever file of its log it is."""
from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from kit.segments import blocks_of, plain, read_all
from oracle import stored

from fluxmq._core.disk.segment_format import file_first, log_name
from fluxmq._core.errors import CorruptError
from fluxmq.storage.segment_repair import repair, verify
from fluxmq.storage.segments import SegmentStore

MESSAGES = 100
HERE, OTHER = 1, 2      # logs: one that is damaged, and a bystander


def made(base: Path, *, trimmed: int = 0) -> list[Path]:
    """The files of HERE: five or more, and without those that lie below offset `trimmed`."""
    store = SegmentStore(base, segment_bytes=1200, compression="none")
    store.open()
    for number in (HERE, OTHER):
        for at in range(0, MESSAGES, 2):
            store.write(number, blocks_of(plain(range(at, at + 2)), 2))
            store.sync([number])
        store.trim(number, trimmed)
    store.close()
    paths = sorted((base / "queues" / log_name(HERE)).glob("*.seg"))
    assert len(paths) >= 5
    return paths


def ranges(paths: list[Path]) -> list[range]:
    """The offsets that each of these files has."""
    firsts = [first for path in paths if (first := file_first(path.name)) is not None]
    return [range(*pair) for pair in zip(firsts, [*firsts[1:], MESSAGES], strict=True)]


def offsets(store: SegmentStore, number: int) -> list[int]:
    return stored.offsets(read_all(store, number))


def told(base: Path, expect: dict[int, range]) -> tuple[dict[int, list[str]], dict[int, str]]:
    """By log, the problems that verify finds and what a start says."""
    problems: dict[int, list[str]] = {}
    for report in verify(base, expect):
        problems.setdefault(report.log, []).extend(report.problems)
    refused: dict[int, str] = {}
    store = SegmentStore(base)
    store.open(expect, on_damage=lambda number, error: refused.__setitem__(number, str(error)))
    assert offsets(store, OTHER) == list(range(expect[OTHER].start, MESSAGES))
    store.close()
    return {number: found for number, found in problems.items() if found}, refused


@pytest.mark.parametrize("gone", [[0], [1], [-1], [-2, -1], [0, 2, -1], None, "directory"], ids=str)
def test_which_ever_it_is(tmp_path: Path, gone: list[int] | str | None) -> None:
    paths = made(tmp_path)
    lie = ranges(paths)
    lost: Iterable[int] = range(MESSAGES)
    if isinstance(gone, list):
        lost = [each for which in gone for each in lie[which]]
        for which in gone:
            paths[which].unlink()
    elif gone is None:
        for path in paths:
            path.unlink()
    else:
        shutil.rmtree(paths[0].parent)
    expect = {HERE: range(MESSAGES), OTHER: range(MESSAGES)}
    problems, refused = told(tmp_path, expect)
    assert list(problems) == list(refused) == [HERE]
    assert any("missing" in each for each in problems[HERE]) and "missing" in refused[HERE]
    assert log_name(HERE) in refused[HERE] and f"fluxmq log repair {tmp_path}" in refused[HERE]
    store = SegmentStore(tmp_path)
    with pytest.raises(CorruptError, match="missing"):
        store.open(expect)

    assert repair(tmp_path, expect=expect).dropped
    assert told(tmp_path, expect) == ({}, {})
    again = repair(tmp_path, expect=expect)
    assert (again.dropped, again.set_aside) == ([], [])
    found = store.open(expect)
    assert found[HERE].next == MESSAGES, "offsets are never given out twice"
    assert offsets(store, HERE) == [each for each in range(MESSAGES) if each not in lost]
    store.write(HERE, blocks_of(plain(range(MESSAGES - 10, MESSAGES + 10))))
    store.sync([HERE])
    assert offsets(store, HERE) == [each for each in range(MESSAGES + 10) if each not in lost]
    store.close()


def test_the_whole_directory_of_queues(tmp_path: Path) -> None:
    made(tmp_path)
    shutil.rmtree(tmp_path / "queues")
    expect = {HERE: range(5, MESSAGES)}
    assert [report.problems for report in verify(tmp_path, expect)] == [
        [f"the file with the messages from offset 5 to {MESSAGES - 1}, which had been synced, is missing"]]
    assert repair(tmp_path, expect=expect).dropped
    store = SegmentStore(tmp_path)
    assert store.open(expect)[HERE].next == MESSAGES
    store.close()


def test_repair_while_it_opens(tmp_path: Path) -> None:
    paths = made(tmp_path)
    kept = ranges(paths)[-1].start
    paths[-1].unlink()
    store = SegmentStore(tmp_path, recover=True)
    assert store.open({HERE: range(MESSAGES)})[HERE].next == MESSAGES
    assert offsets(store, HERE) == list(range(kept)) and len(store.recovery.dropped) == 1
    store.close()


def test_what_nobody_needs_may_be_gone(tmp_path: Path) -> None:
    """The state says first what is not needed, then the files go; a crash may leave them."""
    lie = ranges(made(tmp_path, trimmed=50))
    for first in range(50, MESSAGES):
        assert told(tmp_path, {HERE: range(first, MESSAGES), OTHER: range(lie[0].start, MESSAGES)}) == ({}, {})
    problems, refused = told(tmp_path, {HERE: range(lie[0].start - 1, MESSAGES), OTHER: range(lie[0].start, MESSAGES)})
    assert list(problems) == list(refused) == [HERE]
    for path in (tmp_path / "queues" / log_name(HERE)).iterdir():
        path.unlink()
    assert told(tmp_path, {OTHER: range(lie[0].start, MESSAGES)}) == ({}, {}), "nothing is expected of it"


@pytest.mark.parametrize("left", ["batches", "header", "nothing", "part of the header"])
def test_a_last_file_that_ends_early(tmp_path: Path, left: str) -> None:
    """Cut where a batch ends, or where a header does: nothing in it looks wrong."""
    path = made(tmp_path)[-1]
    first = ranges([path])[0].start
    store = SegmentStore(tmp_path)
    store.open()
    file = store._logs[HERE].files[-1]
    assert file.index is not None and not file.sealed and file.first == first
    path_size = {"batches": file.index.span(1, 0)[1], "header": file.index.span(0, 0)[1], "nothing": 0,
                 "part of the header": 20}[left]
    store.close()
    content = path.read_bytes()[:path_size]
    path.write_bytes(content)
    expect = {HERE: range(MESSAGES), OTHER: range(MESSAGES)}
    problems, refused = told(tmp_path, expect)
    assert list(problems) == list(refused) == [HERE]
    assert "had been synced" in problems[HERE][0] and "had been synced" in refused[HERE]
    assert path.read_bytes() == content
    assert repair(tmp_path, expect=expect).dropped
    assert told(tmp_path, expect) == ({}, {})
    store.open(expect)
    kept = first + 2 if left == "batches" else first
    assert offsets(store, HERE) == list(range(kept))
    store.write(HERE, blocks_of(plain(range(MESSAGES, MESSAGES + 4))))
    assert offsets(store, HERE) == [*range(kept), *range(MESSAGES, MESSAGES + 4)]
    store.close()
