"""Power goes at every call that changes the disk: what was synced is there afterwards, and nothing strange."""
from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from kit.segments import Disk, Message, PowerGone, blocks_of, plain, raw_of, read_all
from oracle import stored

from fluxmq._core.errors import CorruptError
from fluxmq.storage import segment_writer
from fluxmq.storage.segments import SegmentStore

LOGS = (1, 2, 0x300000000000000)


class Life:
    """Writes to some logs, syncs now and then, trims and removes; knows what must be there and what may be."""

    def __init__(self) -> None:
        self.written: dict[int, list[Message]] = {number: [] for number in LOGS}
        self.safe: dict[int, int] = dict.fromkeys(LOGS, 0)      # messages of `written` that a sync covered
        self.trimmed: dict[int, int] = dict.fromkeys(LOGS, 0)
        self.reach: dict[int, int] = {}     # what the view would say: offsets that a sync covered
        self.removed: set[int] = set()

    def run(self, store: SegmentStore, turns: int, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(turns):
            number = chance.choice([each for each in LOGS if each not in self.removed])
            known = self.written[number]
            fresh = plain(range(len(known) * 2, len(known) * 2 + 2 * chance.randint(1, 12), 2), 60, due=number == 2)
            known += fresh
            store.write(number, blocks_of(fresh, 3))
            action = chance.random()
            if action < 0.4:
                self.sync(store)
            elif action < 0.5:
                self.trimmed[number] = max(self.trimmed[number], chance.randint(0, fresh[0][0]))
                store.trim(number, self.trimmed[number])
            elif action < 0.52 and number != LOGS[0]:
                self.removed.add(number)
                self.reach.pop(number, None)
                store.remove(number)

    def sync(self, store: SegmentStore) -> None:
        counts = {number: len(known) for number, known in self.written.items() if number not in self.removed}
        store.sync(counts)
        self.safe.update(counts)
        self.reach = {number: self.written[number][count - 1][0] + 1 for number, count in counts.items() if count}

    def check(self, directory: Path) -> None:
        store = SegmentStore(directory, segment_bytes=700)
        # The view says that something is not needed before its file goes.
        found = store.open({number: range(self.trimmed[number], reach) for number, reach in self.reach.items()
                            if self.trimmed[number] < reach})
        for number, known in self.written.items():
            if number in self.removed:
                store.remove(number)        # the engine does it again: the journal says so
                continue
            have = stored.messages(read_all(store, number))
            must = [m[0] for m in known[:self.safe[number]] if m[0] >= self.trimmed[number]]
            offsets = [one.offset for one in have]
            assert set(must) <= set(offsets)
            assert offsets == sorted(set(offsets)) and set(offsets) <= {m[0] for m in known}
            by_offset = {m[0]: m for m in known}
            assert all((one.offset, one.time_ms, one.not_before, one.payload) == by_offset[one.offset] for one in have)
            if number in found and found[number].next:
                # no hole among what is there: the next export begins behind it
                kept = [m[0] for m in known if offsets and offsets[0] <= m[0] <= offsets[-1]]
                assert offsets == kept
            # the engine exports again what the view did not have
            rest = known[self.safe[number]:]
            store.write(number, blocks_of(rest, 2))
            again = stored.offsets(read_all(store, number))
            assert set(must) | {m[0] for m in rest if m[0] >= self.trimmed[number]} <= set(again)
        store.sync(LOGS)
        store.close()
        store = SegmentStore(directory, segment_bytes=700)
        store.open()
        assert store.recovery.truncated == []
        store.close()


@pytest.mark.parametrize("torn", [1, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_power_goes_at_every_call(tmp_path: Path, seed: int, many: bool, torn: int,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """many: through the one call for the whole file system. torn: how often chance decides what of the rest is there,
    after each call; of three draws each seed has another."""
    if many:
        monkeypatch.setattr(segment_writer, "_SYNC_EACH_MAX", 0)
    stop = 0
    while True:
        base = tmp_path / f"{stop}"
        live = base / "live"
        live.mkdir(parents=True)
        disk, life = Disk(live, stop, seed), Life()
        store = SegmentStore(live, segment_bytes=700, ops=disk, open_files_max=2)
        try:
            store.open()
            life.run(store, 14, seed)
        except PowerGone:
            pass
        else:
            break
        finally:
            store.close()
        life.check(disk.restore(base / "strict"))
        for attempt in range(seed, seed + torn):
            life.check(disk.restore(base / f"torn{attempt}", random.Random(attempt % 3 * 1000 + stop)))
        shutil.rmtree(base)
        stop += 1
    assert stop > 30


def test_what_a_start_reads_is_on_the_medium_after_the_next_sync(tmp_path: Path) -> None:
    """kill -9 leaves what was written and not synced; the next life finds it, skips it, and then power goes."""
    live = tmp_path / "live"
    live.mkdir()
    disk = Disk(live)
    store = SegmentStore(live, ops=disk)
    store.open()
    store.write(1, blocks_of(plain(range(9))))
    store.close()
    store = SegmentStore(live, ops=disk)
    assert store.open()[1].next == 9
    store.write(1, blocks_of(plain(range(9))))
    store.sync([])
    store.close()
    after = SegmentStore(disk.restore(tmp_path / "after"))
    after.open({1: range(9)})
    assert read_all(after, 1) == raw_of(plain(range(9)))
    after.close()


def test_power_goes_during_recovery(tmp_path: Path) -> None:
    """Cutting a torn tail, making a footer again: each may be interrupted."""
    first = tmp_path / "first"
    store = SegmentStore(_made(first), segment_bytes=500)
    store.open()
    store.write(1, blocks_of(plain(range(40)), 2))
    store.sync([1])
    store.write(1, blocks_of(plain(range(40, 44)), 2))
    store.close()
    paths = sorted(first.glob("queues/*/*.seg"))
    paths[0].write_bytes(paths[0].read_bytes()[:-5])
    paths[-1].write_bytes(paths[-1].read_bytes()[:-5])
    stop = 0
    while True:
        live = tmp_path / f"live{stop}"
        _copy(first, live)
        disk = Disk(live, stop)
        store = SegmentStore(live, ops=disk)
        try:
            store.open()
        except PowerGone:
            store.close()
        else:
            break
        for attempt in range(3):
            after = SegmentStore(disk.restore(tmp_path / f"after{stop}-{attempt}", random.Random(attempt)))
            after.open({1: range(40)})
            assert read_all(after, 1).startswith(raw_of(plain(range(40))))
            after.close()
        stop += 1
    assert stop > 3
    store.close()


def test_power_goes_during_repair(tmp_path: Path) -> None:
    from fluxmq.storage.segment_repair import repair

    first = tmp_path / "first"
    store = SegmentStore(_made(first), segment_bytes=500, compression="none")
    store.open()
    store.write(1, blocks_of(plain(range(40)), 2))
    store.sync([1])
    store.close()
    paths = sorted(first.glob("queues/*/*.seg"))
    content = bytearray(paths[1].read_bytes())
    content[140] ^= 1
    paths[1].write_bytes(content)
    paths[3].unlink()
    stop, expected = 0, None
    while True:
        live = tmp_path / f"live{stop}"
        _copy(first, live)
        disk = Disk(live, stop)
        stopped = False
        try:
            repair(live, disk)
        except PowerGone:
            stopped = True
        for attempt in range(3):
            after = disk.restore(tmp_path / f"after{stop}-{attempt}", random.Random(attempt))
            repair(after)
            store = SegmentStore(after)
            store.open()
            offsets = stored.offsets(read_all(store, 1))
            expected = expected or offsets
            assert offsets == expected and 30 < len(offsets) < 40
            store.close()
        if not stopped:
            break
        stop += 1
    assert stop > 5


def test_a_footer_never_vouches_for_batches_that_are_not_there(tmp_path: Path) -> None:
    """Each sector of an unsynced file may be old or new: a sealed one must have been synced before its footer."""
    for seed in range(40):
        live = _made(tmp_path / f"live{seed}")
        disk = Disk(live, 12 + seed % 6)
        store = SegmentStore(live, segment_bytes=3000, compression="none", ops=disk)
        try:
            store.open()
            for at in range(0, 200, 10):
                store.write(1, blocks_of(plain(range(at, at + 10), 200), 2))
        except PowerGone:
            pass
        after = SegmentStore(disk.restore(tmp_path / f"after{seed}", random.Random(seed)))
        try:
            after.open()
            read_all(after, 1)
        except CorruptError as error:
            pytest.fail(str(error))
        after.close()


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _copy(source: Path, target: Path) -> None:
    for path in [source, *sorted(source.rglob("*"))]:
        where = target / path.relative_to(source)
        if path.is_dir():
            where.mkdir()
        else:
            where.write_bytes(path.read_bytes())
