"""State stores: one body over the one on disk and the one in memory, then what only the disk can do."""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from kit.journals import Ops, body_of, commit, wait_event
from kit.killed import cuts_power_and_goes_on, kills_and_goes_on
from kit.watch import wait_until
from oracle import stored

from fluxmq._core.disk.journal import Journal
from fluxmq._core.disk.journal_format import file_name
from fluxmq._core.errors import CorruptError, StorageError, UsageError
from fluxmq.engine.ports.store import StateStore
from fluxmq.storage.memory import MemoryStore
from fluxmq.storage.store import RocksStore

Reopen = Callable[[], StateStore]
NEARLY_NOTHING = 100  # bytes: a journal file's header, and no batch


@pytest.fixture(params=["memory", "fsync", "buffered"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Each call closes the store that the call before opened and opens it again."""
    memory, lives = MemoryStore(), 0
    current: list[StateStore] = []

    def again() -> StateStore:
        nonlocal lives
        lives += 1
        if current:
            current.pop().close()
        store: StateStore = memory
        if request.param != "memory":
            store = RocksStore(tmp_path / "data", identity=lives, durability=request.param)
        store.start()
        current.append(store)
        return store

    yield again
    for store in current:
        store.close()


def is_new_file(journal: Journal) -> bool:
    """Whether the writer has begun the file that rotate() asks for: nothing but a header is in it."""
    journal.poll()
    return journal.file_bytes < NEARLY_NOTHING


def checkpoint(store: StateStore, puts: dict[bytes, bytes], deletes: list[bytes] | None = None) -> int:
    """One batch, so that there is something to reach, then a checkpoint at it."""
    upto = store.applied + 1
    if store.journal is not None:
        commit(store.journal, (1, b"batch"))
        upto = store.journal.rotate()
        wait_until(partial(is_new_file, store.journal))     # until then the old file is not one that can go
    asyncio.run(store.checkpoint(puts.items(), deletes or [], upto))
    return upto


# ------------------------------------------------------------------------------------------ what both must do


def test_empty_store(reopen: Reopen) -> None:
    store = reopen()
    assert (store.applied, list(store.load()), list(store.replay())) == (0, [], [])


def test_checkpoints_are_found_again_in_key_order(reopen: Reopen) -> None:
    store = reopen()
    upto = checkpoint(store, {b"b": b"2", b"a\xff": b"", b"a": b"1", b"\xff": b"\0" * 1000})
    assert store.applied == upto
    expected = [(b"a", b"1"), (b"a\xff", b""), (b"b", b"2"), (b"\xff", b"\0" * 1000)]
    assert list(store.load()) == expected
    store = reopen()
    assert (store.applied, list(store.load())) == (upto, expected)
    upto = checkpoint(store, {b"b": b"3", b"c": b"4"}, [b"a", b"c", b"not there"])
    store = reopen()
    assert (store.applied, list(store.load())) == (upto, [(b"a\xff", b""), (b"b", b"3"), (b"\xff", b"\0" * 1000)])


def test_load_does_not_see_a_later_checkpoint(reopen: Reopen) -> None:
    store = reopen()
    checkpoint(store, {b"%04d" % index: b"old" for index in range(3000)})
    walk = store.load()
    assert next(walk) == (b"0000", b"old")
    checkpoint(store, {b"%04d" % index: b"new" for index in range(3000)})
    assert {value for _, value in walk} == {b"old"}


def test_iterables_are_read_before_the_first_await(reopen: Reopen) -> None:
    store = reopen()
    live = {b"k": b"then"}

    async def change_meanwhile() -> None:
        work = asyncio.ensure_future(store.checkpoint(((k, v) for k, v in live.items()), iter(()), store.applied))
        await asyncio.sleep(0)
        live.clear()
        live[b"k"] = b"later"
        await work

    asyncio.run(change_meanwhile())
    assert list(store.load()) == [(b"k", b"then")]


def test_a_checkpoint_never_goes_back(reopen: Reopen) -> None:
    store = reopen()
    upto = checkpoint(store, {b"a": b"1"})
    with pytest.raises(UsageError, match="fall behind"):
        asyncio.run(store.checkpoint([(b"a", b"2")], (), upto - 1))
    assert list(store.load()) == [(b"a", b"1")]


def test_life(reopen: Reopen) -> None:
    store = reopen()
    with pytest.raises(UsageError, match="open already"):
        store.start()
    store.close()
    store.close()
    for late in (lambda: list(store.load()), lambda: list(store.replay()),
                 lambda: asyncio.run(store.checkpoint((), (), 0))):
        with pytest.raises(UsageError, match=r"call start\(\)"):
            late()
    assert store.journal is None


# ------------------------------------------------------------------------------------------ what only a disk has


def opened(directory: Path, identity: int = 1, **more: object) -> RocksStore:
    store = RocksStore(directory, identity=identity, **more)  # type: ignore[arg-type]
    store.start()
    assert store.journal is not None
    return store


def replayed(store: RocksStore, after: int | None = None) -> list[tuple[int, bytes]]:
    return [(number, body) for number, records in store.replay(after) for _, body in stored.records(records)]


def test_replay_is_what_the_view_lacks(tmp_path: Path) -> None:
    store = opened(tmp_path / "data")
    for index in range(3):
        commit(store.journal, (1, b"%d" % index))  # type: ignore[arg-type]
    assert checkpoint(store, {b"k": b"v"}) == 4
    commit(store.journal, (1, b"later"))  # type: ignore[arg-type]
    store.close()
    store = opened(tmp_path / "data", 2)
    commit(store.journal, (1, b"not in replay"))  # type: ignore[arg-type]
    assert (store.applied, replayed(store), replayed(store, 0), replayed(store, 5)) == (4, [(5, b"later")],
                                                                                      [(5, b"later")], [])
    store.close()
    store = opened(tmp_path / "data", 3)
    assert replayed(store) == [(5, b"later"), (6, b"not in replay")]
    store.close()


def test_old_journal_files_go_and_come_back_as_spare(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(4):
        checkpoint(store, {b"k": b"v"})
        names = {path.name for path in (tmp_path / "journal").iterdir()}
        assert len(names) <= 3
    assert file_name(1) not in names
    store.close()


def test_view_ahead_of_the_journal_uses_no_number_twice(tmp_path: Path) -> None:
    """What a loss of power in buffered mode may leave: the journal's last batches gone, the view synced."""
    store = opened(tmp_path, durability="buffered")
    upto = 0
    for _ in range(3):
        upto = commit(store.journal, (1, b"x"))  # type: ignore[arg-type]
    asyncio.run(store.checkpoint([(b"k", b"v")], (), upto))  # without rotate(): its file stays
    store.close()
    path = tmp_path / "journal" / file_name(1)
    path.write_bytes(path.read_bytes()[:90])
    for life in range(2, 4):
        store = opened(tmp_path, life)
        assert (store.applied, replayed(store)) == (3, [(n, b"y") for n in range(4, life + 2)])
        assert commit(store.journal, (1, b"y")) == life + 2  # type: ignore[arg-type]
        store.close()


def test_second_broker_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StorageError, match="in use by another broker"):
        opened(tmp_path, 2)
    store.close()
    opened(tmp_path, 3).close()


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot use"):
        opened(tmp_path / "file" / "data")


def test_reserved_keys_are_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for key in (b"", b"\0applied"):
        with pytest.raises(UsageError, match="no key of the view"):
            asyncio.run(store.checkpoint([(key, b"")], (), 0))
        with pytest.raises(UsageError, match="no key of the view"):
            asyncio.run(store.checkpoint((), [key], 0))
    asyncio.run(store.checkpoint([(b"k", b"v")], (), 0))  # a refusal leaves nothing locked
    store.close()


def test_checkpoint_ahead_of_the_journal_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(UsageError, match="ahead of the journal"):
        asyncio.run(store.checkpoint((), (), 1))
    store.close()


def test_one_checkpoint_at_a_time_and_cancelling_does_not_tear_it(tmp_path: Path) -> None:
    store = opened(tmp_path)

    async def overlap() -> None:
        first = asyncio.ensure_future(store.checkpoint([(b"k", bytes(100_000))], (), 0))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="under way"):
            await store.checkpoint((), (), 0)
        with pytest.raises(UsageError, match="under way"):
            store.close()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        while store.checkpointing:
            await asyncio.sleep(0.001)
        await store.checkpoint([(b"l", b"")], (), 0)

    asyncio.run(overlap())
    assert [key for key, _ in store.load()] == [b"k", b"l"]
    store.close()


def test_damage_is_reported_and_repaired_on_request(tmp_path: Path) -> None:
    store = opened(tmp_path)
    sessions = [number.to_bytes(8) for number in range(1_000, 1_005)]
    for session in sessions:
        commit(store.journal, (2, session))  # type: ignore[arg-type]   # its end
    store.close()
    path = tmp_path / "journal" / file_name(1)
    raw = bytearray(path.read_bytes())
    raw[raw.index(sessions[1])] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match=r"storage\.recover_on_startup"):
        opened(tmp_path, 2)
    store = opened(tmp_path, 3, recover_on_startup=True)  # and the refusal has let go of the lock
    assert [number for number, _ in replayed(store)] == [1, 3, 4, 5]
    assert store.repaired is not None
    assert len(store.repaired.given_up) == len(store.repaired.kept_aside) == 1
    store.close()


def test_damaged_view_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    checkpoint(store, {b"%d" % index: bytes(100) for index in range(1000)})
    store.close()
    for path in (tmp_path / "state").glob("MANIFEST-*"):
        path.write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(StorageError, match="the state in"):
        opened(tmp_path, 2)


def test_failed_journal_stops_the_store_but_not_its_closing(tmp_path: Path) -> None:
    ops = Ops()
    store = opened(tmp_path, file_ops=ops.address)
    journal = store.journal
    assert journal is not None

    def broken(fd: int) -> None:
        raise OSError(5, "")

    ops.fdatasync = broken
    journal.append(1, b"x")
    journal.submit()
    wait_event(journal)
    with pytest.raises(StorageError):
        journal.poll()
    with pytest.raises(StorageError):
        store.close()
    opened(tmp_path, 2).close()


# ------------------------------------------------------------------------------------------ crashes


def assert_holds(directory: Path, said: int) -> int:
    """View and replay together are the state after some batch, no earlier than `said`."""
    store = opened(directory, 1 << 60)
    state = dict(store.load())
    last = store.applied
    for number, body in replayed(store):
        assert number == last + 1
        last = number
        state[body[:4]] = body[4:]
    store.close()
    assert last >= said
    assert state == {b"k%03d" % (number * 7 % 300): body_of(number) for number in range(1, last + 1)}
    return last


def test_kill_loses_nothing_durable(tmp_path: Path) -> None:
    kills_and_goes_on(tmp_path / "data", 4, 200, assert_holds, 3, what="store")


def test_power_loss_loses_nothing_durable(tmp_path: Path) -> None:
    """Over journal files that are recycled and RocksDB's files."""
    cuts_power_and_goes_on(tmp_path, 4, 150, assert_holds, 5, 4, "store")
