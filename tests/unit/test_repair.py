"""A damaged storage directory: `verify` sees it, a start refuses, `repair` loses what stood on the damaged bytes and
nothing else, and then a start has everything that is left."""
from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.carrier import Carrier
from kit.stored_node import StoredNode

from fluxmq._core.disk.journal_format import file_number
from fluxmq._core.errors import CorruptError, StorageError
from fluxmq.model.queues import QueueSpec
from fluxmq.storage import repair as repair_module
from fluxmq.storage import view_repair
from fluxmq.storage.repair import RepairReport, dump, repair, synced_offsets, verify_state
from fluxmq.storage.segment_repair import verify
from fluxmq.storage.segments import SegmentStore

QUEUES = 60
SESSIONS = 60
EACH = 5        # messages of each queue in segments, and as many of each in the journal
QUEUED = 3      # messages of each session in the view


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, and what came after them in the journal."""
    directory = tmp_path_factory.mktemp("whole")
    node = StoredNode(directory)
    chance = random.Random(4)
    for number in range(SESSIONS):
        connection = Carrier(stays=True)
        name = b"client-%d" % number
        node.broker.connect(name, version=5, clean_start=False, expiry_s=1 << 20, keep_alive_s=0, will=None,
                            username=None, connection=connection)
        session = node.broker.sessions[b"/", name]
        node.broker.subscribe(session, b"s/%d" % number, 1, 0)
        node.broker.disconnect(session, connection, publish_will=False)
        for _ in range(QUEUED):
            node.hub.publish_message(b"s/%d" % number, chance.randbytes(60), 1)
    queues = [node.manager.declare(QueueSpec(name=f"q{number}"))[0] for number in range(QUEUES)]
    for part in range(2):
        for queue in queues[:: 2 - part]:
            for _ in range(EACH if part else 1):
                queue.append_message(b"t", chance.randbytes(100))
        if part:
            for queue in queues:
                queue.append_message(b"t", chance.randbytes(100))
        node.checkpoint()
    for queue in queues:
        for _ in range(EACH):
            queue.append_message(b"t", b"in the journal " + chance.randbytes(20))
        node.sync()
    (directory / "expected").write_text(f"{node.kept} {node.queued}")
    node.close()
    return directory


@pytest.fixture()
def directory(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "data"))


def expected(directory: Path) -> tuple[int, int]:
    kept, queued = (directory / "expected").read_text().split()
    return int(kept), int(queued)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))


def tables(directory: Path) -> list[Path]:
    return sorted((directory / "state").glob("*.sst"))


def manifest(directory: Path) -> Path:
    return next((directory / "state").glob("MANIFEST-*"))


def good(directory: Path) -> bool:
    found = verify_state(directory)
    files = verify(directory, synced_offsets(directory))
    return not found.state and not found.journal and not any(report.problems for report in files)


def opened(directory: Path) -> tuple[int, int]:
    """(kept, queued) after a start, and after one more."""
    numbers = []
    for identity in (50, 51):
        node = StoredNode(directory, identity)
        numbers.append((node.kept, node.queued))
        if identity == 50:
            node.checkpoint()
        node.close()
    assert numbers[0] == numbers[1]
    return numbers[0]


def test_nothing_is_damaged(directory: Path) -> None:
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert good(directory)
    assert not repair(directory).anything
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    assert opened(directory) == expected(directory)


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("part", range(8))
def test_a_bad_block_costs_what_stood_there(directory: Path, which: int, part: int) -> None:
    """Messages of queues are in segments and journal: not one is lost. Of sessions as many as a block holds."""
    table = tables(directory)[which]
    flip(table, int(table.stat().st_size * (part + 0.5) / 8))
    assert not good(directory)
    with pytest.raises(CorruptError, match="fluxmq log repair"):
        StoredNode(directory, 2)
    report = repair(directory)
    assert report.given_up and str(directory / "state.damaged") in report.kept_aside
    assert good(directory)
    kept, queued = opened(directory)
    wanted = expected(directory)
    assert kept >= wanted[0]
    if queued < wanted[1]:
        assert any("session" in line or "message" in line for line in report.given_up)
    assert not repair(directory).anything


@pytest.mark.parametrize("which", [0, -1])
def test_a_bad_block_at_the_very_beginning(directory: Path, which: int) -> None:
    """Where the state says which batch it reaches: the journal is applied from its beginning, which does no harm."""
    flip(tables(directory)[which], 5)
    assert not good(directory)
    assert repair(directory).given_up
    assert good(directory)
    assert opened(directory)[0] >= expected(directory)[0]


@pytest.mark.parametrize("at", [48 + 80 + 40, -10])
def test_a_bad_batch_in_the_last_file_of_a_log(tmp_path: Path, at: int) -> None:
    """Nothing in the file tells it from a torn one; the state does. What stands behind it is kept."""
    node = StoredNode(tmp_path)
    queue = node.manager.declare(QueueSpec(name="q"))[0]
    for _ in range(40):
        queue.append_message(b"t", random.Random(5).randbytes(9000))
    node.checkpoint()
    log = queue.logs[0].number
    node.close()
    [path] = (tmp_path / "queues").rglob("*.seg")
    flip(path, at % path.stat().st_size)
    assert [report for report in verify(tmp_path, synced_offsets(tmp_path)) if report.problems]
    stopped = StoredNode(tmp_path, 2)
    assert "fluxmq log repair" in str(stopped.manager.queues[b"/", b"q"].queue.damage)
    stopped.close()
    report = repair(tmp_path)
    assert len(report.given_up) == 1 and not report.cut_off
    kept = [message for number, message in dump(tmp_path, log)]
    assert 40 > len(kept) >= 32
    assert good(tmp_path)
    opened(tmp_path)
    assert not repair(tmp_path).anything


@pytest.mark.parametrize("how", ["CURRENT empty", "CURRENT gone", "manifest", "manifest gone"])
def test_the_tables_are_enough(directory: Path, how: str) -> None:
    if how == "CURRENT empty":
        (directory / "state" / "CURRENT").write_bytes(b"")
    elif how == "CURRENT gone":
        (directory / "state" / "CURRENT").unlink()
    elif how == "manifest":
        flip(manifest(directory), manifest(directory).stat().st_size // 2)
    else:
        manifest(directory).unlink()
    assert not good(directory)
    with pytest.raises(CorruptError, match="fluxmq log repair"):
        StoredNode(directory, 2)
    assert repair(directory).given_up
    assert good(directory)
    assert opened(directory) == expected(directory)


@pytest.mark.parametrize("how", ["newest gone", "oldest gone", "oldest cut", "all gone", "state gone", "state emptied"])
def test_what_is_gone_is_made_up_from_segments_and_journal(directory: Path, how: str) -> None:
    state = directory / "state"
    if how == "newest gone":
        tables(directory)[-1].unlink()
    elif how == "oldest gone":
        tables(directory)[0].unlink()
    elif how == "oldest cut":
        os.truncate(tables(directory)[0], 1000)
    elif how == "all gone":
        for path in tables(directory):
            path.unlink()
    else:
        shutil.rmtree(state)
        if how == "state emptied":
            state.mkdir()
    assert not good(directory)
    with pytest.raises(CorruptError, match="fluxmq log repair"):
        StoredNode(directory, 2)
    report = repair(directory)
    assert report.given_up
    assert good(directory)
    assert opened(directory)[0] >= expected(directory)[0]


def test_a_start_repairs_if_it_is_told_to(directory: Path) -> None:
    table = tables(directory)[0]
    flip(table, table.stat().st_size // 2)
    node = StoredNode(directory, 2, recover=True)
    assert node.kept >= expected(directory)[0]
    assert node.store.repaired is not None and node.store.repaired.given_up
    node.close()
    assert good(directory)


def test_a_log_that_nobody_knows_gets_a_queue(directory: Path) -> None:
    log = sorted((directory / "queues").iterdir())[0]
    number = 0xABCDEF
    other = SegmentStore(directory)
    other.open()
    _, _, blocks = other.read(int(log.name, 16), 0)
    other.close()
    assert blocks
    stranger = directory / "queues" / f"{number:016x}"
    node = StoredNode(directory, 2)
    queue = node.manager.declare(QueueSpec(name="stranger"))[0]
    for _ in range(7):
        queue.append_message(b"t", b"x")
    node.checkpoint()
    mine = queue.logs[0].number
    wanted = node.kept
    _forget(node, queue.number, mine)
    node.close()
    assert not stranger.exists()
    found = verify_state(directory)
    assert [line for line in found.state if f"{mine:016x}" in line]
    assert len([message for _, message in dump(directory, mine)]) == 7
    # A start puts it aside; the repair finds it there, too.
    node = StoredNode(directory, 3)
    assert node.kept == wanted - 7
    node.close()
    assert (directory / "queues" / f"{mine:016x}.unknown").is_dir()
    assert len([message for _, message in dump(directory, mine)]) == 7
    report = repair(directory)
    assert any("recovered-" in line for line in report.given_up)
    assert good(directory)
    assert opened(directory)[0] == wanted


def _forget(node: StoredNode, queue: int, log: int) -> None:
    """As if the view had lost these keys."""
    keys = [kind + number.to_bytes(8, "big") for kind, number in ((b"q", queue), (b"d", queue), (b"l", log))]
    asyncio.run(node.store.checkpoint((), keys, node.store.applied))


@pytest.mark.parametrize("damage", ["table", "manifest"])
def test_a_repair_that_is_cut_short_can_be_run_again(whole: Path, tmp_path: Path, damage: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each change of a name. A start between the two refuses."""
    wanted = expected(whole)
    for at in range(100):
        directory = Path(shutil.copytree(whole, tmp_path / f"{damage}{at}"))
        path = tables(directory)[0] if damage == "table" else manifest(directory)
        flip(path, path.stat().st_size // 2)
        calls = 0

        def stop(real: Callable[..., object]) -> Callable[..., object]:
            def called(*arguments: object, **more: object) -> object:
                nonlocal calls
                calls += 1
                if calls > at:      # noqa: B023  # it is used up within the turn
                    raise KeyboardInterrupt
                return real(*arguments, **more)
            return called

        with monkeypatch.context() as patch:
            for module, name in ((os, "rename"), (view_repair, "_sync"), (repair_module, "write")):
                patch.setattr(module, name, stop(getattr(module, name)))
            try:
                report: RepairReport | None = repair(directory)
            except KeyboardInterrupt:
                report = None
        if report is None:
            if not good(directory):         # else it was cut short when everything was in its place
                with pytest.raises(CorruptError, match="repair"):
                    StoredNode(directory, 2)
            repair(directory)
        assert good(directory)
        kept, queued = opened(directory)
        assert kept >= wanted[0] and (damage == "table" or queued == wanted[1])
        if report is not None:
            break
    assert calls >= 4


def test_journal_files_that_are_gone(directory: Path) -> None:
    for path in (directory / "journal").iterdir():
        if file_number(path.name) is not None:
            path.unlink()
    assert not good(directory)
    with pytest.raises(CorruptError, match="no journal file"):
        StoredNode(directory, 2)
    assert repair(directory).given_up
    assert good(directory)
    kept, queued = opened(directory)
    assert (kept, queued) == (expected(directory)[0] - QUEUES * EACH, expected(directory)[1])


def test_an_empty_view_beside_segments_that_its_first_checkpoint_wrote(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the first checkpoint was in the view: the journal has everything, from batch 1 on."""
    node = StoredNode(tmp_path)
    queue = node.manager.declare(QueueSpec(name="q"))[0]
    for number in range(10):
        queue.append_message(b"t", b"%d" % number)

    async def cut(*_: object) -> None:
        raise StorageError("cut short")

    monkeypatch.setattr(node.store, "checkpoint", cut)
    with pytest.raises(StorageError, match="cut short"):
        node.checkpoint()
    node.close()
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "state")
    assert list((tmp_path / "queues").rglob("*.seg"))
    assert good(tmp_path)
    assert opened(tmp_path)[0] == 10
