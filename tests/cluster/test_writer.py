"""Changes of the metadata share transactions, keep the order of each key, and are not lost with an answer."""
from __future__ import annotations

import random
from typing import Any

import pytest
from kit.metadata import MetadataInMemory
from simulator.driver import SimDriver

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import Change, Compare, StoreError, StoreFull, TransactionResult
from fluxmq.cluster.writer import CHANGES_MAX, Writer


class World:
    def __init__(self) -> None:
        self.ms = 0
        self.driver = SimDriver(lambda: self.ms)
        self.store = MetadataInMemory(self.driver)
        self.writer = Writer(self.store, self.driver)

    def begin(self, compares: list[Compare], changes: list[Change], limit_s: float | None = None) -> Any:
        return self.driver.start(self.writer.change(compares, changes, limit_s))

    def create(self, key: bytes, value: bytes = b"v") -> Any:
        return self.begin([Compare(key, 0)], [Change(key, value)])

    def run(self, ms: int = 2000) -> None:
        for _ in range(ms // 10):
            for _ in range(10):
                self.driver.run_ready()
            self.ms += 10


def result(work: Any) -> TransactionResult:
    found = work.result()
    assert isinstance(found, TransactionResult)
    return found


@pytest.fixture
def world() -> World:
    return World()


def test_changes_that_come_together_share_transactions(world: World) -> None:
    works = [world.create(b"%d" % number) for number in range(1000)]
    world.run()
    assert all(result(work).done for work in works)
    assert len(world.store.items) == 1000
    assert len(world.store.transactions) <= 12


def test_a_request_has_a_limit_and_two_of_that_size_share_a_transaction(world: World) -> None:
    def changes(count: int, of: int) -> list[Change]:
        return [Change(b"%d/%d" % (of, number), b"v") for number in range(count)]

    works = [world.begin([], changes(CHANGES_MAX, of)) for of in range(2)]
    too_many = (world.begin([], changes(CHANGES_MAX + 1, 2)),
                world.begin([Compare(b"%d" % number, 0) for number in range(CHANGES_MAX + 1)], changes(1, 3)))
    world.run()
    assert all(result(work).done for work in works) and len(world.store.items) == 2 * CHANGES_MAX
    for work in too_many:
        with pytest.raises(UsageError, match=f"at most {CHANGES_MAX}"):
            work.result()


def test_what_fails_alone_does_not_fail_the_others(world: World) -> None:
    world.store.apply([Change(b"taken", b"by another")])
    works = [world.create(key) for key in (b"a", b"taken", b"b")]
    world.run()
    assert [result(work).done for work in works] == [True, False, True]
    (found,) = result(works[1]).found
    assert found is not None and found.value == b"by another"
    assert world.store.items[b"taken"].value == b"by another"


def test_changes_of_one_key_keep_their_order(world: World) -> None:
    works = [world.create(b"k", b"first"), world.create(b"other"), world.create(b"k", b"second")]
    world.run()
    assert [result(work).done for work in works] == [True, True, False]
    assert world.store.items[b"k"].value == b"first"


@pytest.mark.parametrize("value", [b"v", None], ids=["put", "delete"])
def test_a_lost_answer_is_found_out(world: World, value: bytes | None) -> None:
    world.store.apply([Change(b"k", b"before")])
    revision = world.store.items[b"k"].revision
    world.store.counts.lose_answers = 1
    work = world.begin([Compare(b"k", revision)], [Change(b"k", value)])
    world.run()
    assert result(work).done
    assert len(world.store.history) == 2            # it was made once


def test_a_change_that_another_made_before_is_not_taken_for_its_own(world: World) -> None:
    world.store.apply([Change(b"k", b"v")])
    work = world.create(b"k", b"v")
    world.run()
    assert not result(work).done


def test_it_tries_again_until_its_time_limit(world: World) -> None:
    world.store.counts.fail = 1000
    patient, hurried = world.create(b"a"), world.begin([Compare(b"b", 0)], [Change(b"b", b"")], 1.0)
    world.run(1500)
    assert not patient.done()
    with pytest.raises(StoreError):
        hurried.result()
    world.store.counts.fail = 0
    world.run()
    assert result(patient).done and b"b" not in world.store.items
    world.driver.crashed.clear()


def test_closing_fails_what_waits(world: World) -> None:
    world.store.counts.fail = 1000
    work = world.create(b"a")
    world.run(100)
    world.writer.close("the node stops")
    world.run(500)
    for failed in (work, world.create(b"b")):
        world.run(100)
        with pytest.raises(StoreError, match=r"the node stops|does not answer"):
            failed.result()


@pytest.mark.parametrize("seed", range(30))
def test_every_request_is_done_once_or_not_at_all(world: World, seed: int) -> None:
    """Counters: each request replaces a value that it knows by the next; the store loses answers and fails. In the end
    a key's value is the number of requests that were told that they are done."""
    chance = random.Random(seed)
    done = dict.fromkeys((b"a", b"b", b"c", b"d"), 0)

    async def count(key: bytes, times: int, name: int) -> None:
        for attempt in range(times):
            item = world.store.items.get(key)
            value = (item.value.split(b" ")[0] if item else b"0")
            new = b"%d %d %d" % (int(value) + 1, name, attempt)
            answer = await world.writer.change([Compare(key, item.revision if item else 0)], [Change(key, new)])
            done[key] += answer.done

    for name in range(12):
        world.driver.start(count(chance.choice(list(done)), 20, name))
    for _ in range(400):
        world.store.counts.lose_answers += chance.random() < 0.1
        world.store.counts.fail += chance.random() < 0.1
        world.store.counts.exceeds += chance.random() < 0.02
        world.store.counts.full = world.store.counts.full != (chance.random() < 0.1)
        world.run(chance.choice((10, 50, 200)))
    counts = world.store.counts
    counts.full, counts.exceeds, counts.fail, counts.lose_answers = False, 0, 0, 0
    world.run(5000)
    assert not world.driver.crashed
    assert {key: int(item.value.split(b" ")[0]) for key, item in world.store.items.items()} \
        == {key: count for key, count in done.items() if count}
    assert sum(done.values()) > 20


# ── a store without space ────────────────────────────────────────────────────────────────────────────────────


def filled(world: World, *keys: bytes) -> list[int]:
    """The revisions of these keys, of a store that takes no value any more."""
    for key in keys:
        world.store.apply([Change(key, b"v")])
    world.store.counts.full = True
    return [world.store.items[key].revision for key in keys]


def test_without_space_deletions_have_transactions_of_their_own(world: World) -> None:
    one, two, three = filled(world, b"1", b"2", b"3")
    waits = world.create(b"new")
    deleted = [world.begin([Compare(b"1", one)], [Change(b"1", None)]),
               world.begin([Compare(b"2", two)], [Change(b"2", None)])]
    replaced = world.begin([Compare(b"3", three), Compare(b"3b", 0)], [Change(b"3", None), Change(b"3b", b"v")])
    world.run(100)
    assert all(result(work).done for work in deleted)
    assert set(world.store.items) == {b"3"} and not waits.done() and not replaced.done()
    world.run(5000)
    assert not waits.done() and not replaced.done()
    assert all(change.value is None for _, changes in world.store.transactions for change in changes)
    world.store.counts.full = False
    world.run()
    assert result(waits).done and result(replaced).done and set(world.store.items) == {b"new", b"3b"}


def test_without_space_a_deletion_overtakes_a_value_of_its_key(world: World) -> None:
    (revision,) = filled(world, b"k")
    value = world.begin([Compare(b"k", revision)], [Change(b"k", b"new")])
    world.run(100)
    deletion = world.begin([Compare(b"k", revision)], [Change(b"k", None)])
    world.run(100)
    assert result(deletion).done and not value.done()
    world.store.counts.full = False
    world.run()
    assert not result(value).done and not world.store.items


def test_what_does_not_wait_for_space_is_told_whether_it_was_sent(world: World) -> None:
    filled(world)
    works = [world.driver.start(world.writer.change([Compare(b"%d" % number, 0)], [Change(b"%d" % number, b"v")],
                                                    wait_for_space=False)) for number in range(200)]
    world.run(3000)
    failed = [work.exception() for work in works]
    assert all(isinstance(error, StoreFull) for error in failed)
    assert failed[0].sent and not failed[-1].sent
    world.store.counts.full = False
    world.run()
    assert not world.store.items


def test_what_is_overtaken_by_the_end_of_its_session_is_not_done_later(world: World) -> None:
    (revision,) = filled(world, b"owner")
    first = world.create(b"first")
    world.run(100)
    value = world.driver.start(world.writer.change([Compare(b"owner", revision)], [Change(b"data", b"v")],
                                                   wait_for_space=False))
    world.begin([Compare(b"owner", revision)], [Change(b"subscription", None)])
    world.store.counts.full = False
    world.run()
    assert result(first).done and b"data" not in world.store.items
    assert isinstance(value.exception(), StoreFull)


def test_a_change_that_was_done_and_refused_is_found_out(world: World) -> None:
    world.store.counts.exceeds = 1
    work = world.create(b"k")
    world.run()
    assert b"k" in world.store.items and not work.done()
    world.store.counts.full = False
    world.run()
    assert result(work).done and len(world.store.history) == 1
