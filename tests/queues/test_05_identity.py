"""Who was promised what, and what came of it, over crashes, standstills and slow disks: sets of identities.

    confirmed − delivered = ∅         of every group, whoever settles how
    delivered − sent = ∅
    what was settled, and answered, never comes again
    delivery counts only grow, over all members and restarts; a producer that repeats itself appends once

A broker of small journal files, so that checkpoints and segments take part. `tox -e soak` does the same for longer.
"""
from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from crash.process import CrashBroker
from kit import smalldisk
from kit.slowdisk import SlowDisk
from kit.standstill import stand_still
from queues.actors import Book, Sender, Worker
from queues.conftest import admin

QUEUE = {"name": "work", "retry": {"max_retries": 0, "initial_backoff": "10ms", "max_backoff": "20ms"}}
GROUPS = ("manual", "auto")
PREFETCH = 30
LOAD_MIN = 600                      # confirmed messages
CHECKPOINTS_MIN = 2
PATIENCE_SECONDS = 40.0             # without a packet for anybody: only a test that fails needs them

Event = Callable[[CrashBroker, random.Random], Awaitable[None]]


async def kill(broker: CrashBroker, chance: random.Random) -> None:
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


async def pause(broker: CrashBroker, chance: random.Random) -> None:
    assert broker.process is not None
    await asyncio.to_thread(stand_still, broker.process.pid)
    await asyncio.sleep(chance.uniform(0.05, 0.4))
    broker.process.send_signal(signal.SIGCONT)


async def until(everybody: list[Sender | Worker], book: Book, done: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    packets, deadline = -1, 0.0
    while not await asyncio.to_thread(done):
        for each in everybody:
            if each.failure is not None:
                raise each.failure
        if book.packets != packets:
            packets, deadline = book.packets, loop.time() + PATIENCE_SECONDS
        assert loop.time() < deadline, f"they do not {what}: {[len(book.missing(group)) for group in GROUPS]} missing"
        await asyncio.sleep(0.05)


async def load(broker: CrashBroker, book: Book, chance: random.Random, events: list[Event]) -> None:
    """Everybody at work through all that happens, until every group has settled everything."""

    def lot() -> random.Random:
        return random.Random(chance.random())

    senders = [Sender(book, broker.address, f"s{n}", lot(), producer=n != 0) for n in range(3)]
    workers = [Worker(book, broker.address, f"{group}{n}", lot(), group=group, manual=group == "manual",
                      prefetch=PREFETCH)
               for group in GROUPS for n in range(2)]
    everybody: list[Sender | Worker] = [*senders, *workers]
    tasks = [asyncio.create_task(each.run()) for each in everybody]
    try:
        for event in events:
            confirmed = len(book.confirmed)
            await until(everybody, book, lambda seen=confirmed: len(book.confirmed) > seen + 50,    # type: ignore[misc]
                        "publish")
            await asyncio.sleep(chance.uniform(0, 0.4))
            await event(broker, chance)
        await until(everybody, book, lambda: len(book.confirmed) > LOAD_MIN and broker.checkpoints() > CHECKPOINTS_MIN,
                    "publish enough to mean anything")
        for sender in senders:
            sender.finishing = True
        for worker in workers:
            worker.steady = True
        await until(everybody, book, lambda: all(task.done() for task in tasks[:3]), "get their acknowledgements")
        await until(everybody, book, lambda: settled(broker), "settle everything")
    finally:
        for each in everybody:
            each.stopping = True
        await asyncio.gather(*tasks)


def settled(broker: CrashBroker) -> bool:
    groups = admin(broker, "GET", "queues", "work")["group_list"]
    return len(groups) == len(GROUPS) and all(group["lag"] == group["claimed"] == 0 for group in groups)


def judge(broker: CrashBroker, book: Book, crashes: int) -> None:
    """crashes: there were no more of them."""
    assert len(book.confirmed) > LOAD_MIN
    for group in GROUPS:
        assert not book.missing(group)
        assert set(book.delivered[group]) <= book.sent
    # A worker that leaves, or a broker that dies, takes with it answers to what is settled all the same.
    assert len(book.settled["manual"]) >= len(book.confirmed) * 0.9 - crashes * 2 * PREFETCH
    broker.check()
    broker.restart()                # and nothing of it comes back
    assert settled(broker)
    assert admin(broker, "GET", "queues", "work")["messages"] == 0
    assert broker.checkpoints() > CHECKPOINTS_MIN


def run(broker: CrashBroker, seed: int, events: list[Event], partitions: int = 1, book: Book | None = None) -> None:
    chance = random.Random(seed)
    broker.settings["queues"] = json.dumps([QUEUE | {"partitions": partitions}])
    broker.start()
    try:
        book = book or Book("work")
        asyncio.run(load(broker, book, chance, events))
        judge(broker, book, len(events))
    finally:
        broker.stop()


@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), (2, 3)])
def test_kill(tmp_path: Path, seed: int, partitions: int) -> None:
    run(CrashBroker(tmp_path), seed, [kill] * 3, partitions)


def test_pauses(tmp_path: Path) -> None:
    run(CrashBroker(tmp_path), 3, [pause, pause, kill, pause])


def test_a_slow_disk_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync takes its time; killed in the moment in which no sync returns, too."""
    disk = SlowDisk(tmp_path, monkeypatch, 10)

    async def stand_still(broker: CrashBroker, chance: random.Random) -> None:
        with disk.held():
            await asyncio.sleep(chance.uniform(0.1, 0.4))

    async def die_standing(broker: CrashBroker, chance: random.Random) -> None:
        with disk.held():
            await asyncio.sleep(chance.uniform(0.05, 0.2))
            await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)

    run(CrashBroker(tmp_path / "broker"), 4, [stand_still, die_standing, stand_still, kill])


def test_a_disk_that_gets_full(tmp_path: Path) -> None:
    """Publishes are refused and published again, consumers go on; killed while there is no space, too."""
    with smalldisk.small_disk(tmp_path / "small", "40m") as where:
        (where / "data").mkdir()
        (tmp_path / "broker").mkdir()
        (tmp_path / "broker" / "data").symlink_to(where / "data")
        book = Book("work")

        async def fill_up(broker: CrashBroker, chance: random.Random) -> None:
            ballast = smalldisk.fill(where, 200_000)
            refused, deadline = book.refused, asyncio.get_running_loop().time() + PATIENCE_SECONDS
            while book.refused < refused + 20:
                assert asyncio.get_running_loop().time() < deadline, "nothing is refused"
                await asyncio.sleep(0.02)
            if chance.random() < 0.5:
                await kill(broker, chance)
            ballast.unlink()

        run(CrashBroker(tmp_path / "broker"), 6, [fill_up, kill, fill_up, fill_up], book=book)
        assert book.refused


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_everything_for_long(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    run(CrashBroker(tmp_path), seed, [chance.choice((kill, kill, pause)) for _ in range(60)], chance.randrange(1, 5))
