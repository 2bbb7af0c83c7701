"""A broker under load is killed again and again, or loses power: every acknowledged message reaches every session that
should have it, at QoS 2 once, in the order of its publisher; what is retained is what was acknowledged last."""
from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from crash.actors import Book, Publisher, Subscriber
from crash.process import CrashBroker, PoweredBroker
from kit.client import Client

LOAD_MIN = 50                   # messages for each crash
DRAIN_SECONDS = 30.0            # generous: only a test that fails needs them


async def load(broker: CrashBroker, chance: random.Random,
               kills: int) -> tuple[Book, list[Publisher], list[Subscriber]]:
    """Runs everybody through `kills` crashes, then lets them finish."""
    book = Book()

    def lot() -> random.Random:
        return random.Random(chance.random())

    publishers = [Publisher(book, broker.address, f"p{n}", lot()) for n in range(3)]
    subscribers = [
        Subscriber(book, broker.address, "online1", lot(), filter_="t/#", qos=1),
        Subscriber(book, broker.address, "online2", lot(), filter_="t/#", qos=2),
        Subscriber(book, broker.address, "moving1", lot(), filter_="t/#", qos=1, mode="moving"),
        Subscriber(book, broker.address, "moving2", lot(), filter_="t/#", qos=2, mode="moving"),
        Subscriber(book, broker.address, "away2", lot(), filter_="t/#", qos=2, mode="away"),
        Subscriber(book, broker.address, "fickle1", lot(), filter_="t/p0/#", qos=1, fickle=True),
        Subscriber(book, broker.address, "fickle2", lot(), filter_="t/p1/#", qos=2, mode="moving", fickle=True),
    ]
    everybody = [*publishers, *subscribers]
    tasks = [asyncio.create_task(each.run()) for each in everybody]
    # Before the load: everybody who is to hear all of it has its subscription.
    await until(everybody, lambda: all(s.holds for s in subscribers if not s.fickle), "subscribe")
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.02, 0.5))
        await asyncio.to_thread(broker.crash)
        await asyncio.to_thread(broker.start)
        for each in everybody:
            if each.failure is not None:
                raise each.failure
    await until(everybody, lambda: len(book.messages) > LOAD_MIN * kills and broker.checkpoints() >= kills,
                "do enough to mean anything")
    for publisher in publishers:
        publisher.stopping = True
    await until(everybody, lambda: all(p.done() for p in publishers), "get their acknowledgements")
    for subscriber in subscribers:
        subscriber.come_back()
    await until(everybody, lambda: all(s.connected and s.holds and not s.missing() and not s.released_later
                                       for s in subscribers), "get every message", lambda: verdict(subscribers))
    for each in everybody:
        each.stopping = True
    await asyncio.gather(*tasks)
    return book, publishers, subscribers


def verdict(subscribers: list[Subscriber]) -> str:
    return "; ".join(f"{s.name}: connected {s.connected}, {len(s.missing())} missing {s.missing()[:3]}"
                     for s in subscribers if s.missing() or not s.connected)


async def until(everybody: list, done, what: str, tell=lambda: "") -> None:      # type: ignore[no-untyped-def,type-arg]
    """Fails when nothing has come for anybody for DRAIN_SECONDS."""
    loop = asyncio.get_running_loop()
    came = -1
    while True:
        began = loop.time()
        if done():
            return
        took = loop.time() - began
        for each in everybody:
            if each.failure is not None:
                raise each.failure
        now = sum(each.packets for each in everybody)
        if now != came:
            came, deadline = now, began + DRAIN_SECONDS
        assert began < deadline, f"they do not {what}: {tell()}"
        await asyncio.sleep(max(0.02, 4 * took))


def judge(broker: CrashBroker, book: Book, publishers: list[Publisher], subscribers: list[Subscriber]) -> None:
    assert all(sent.acknowledged is not None for sent in book.messages.values())
    for subscriber in subscribers:
        assert not subscriber.missing(), subscriber.name
        assert not subscriber.doubled(), subscriber.name
        assert not subscriber.disordered(), subscriber.name
    last: dict[str, int] = {}
    for sent in book.messages.values():
        last[sent.topic] = sent.number
    retained = {topic: number for topic, number in last.items() if topic.startswith("r/")}
    reader = Client(broker.address)
    reader.connect("reader")
    reader.subscribe("r/#", qos=2)
    found = {}
    for _ in retained:
        publish = reader.receive()
        found[publish.topic] = int(publish.payload[:8])
    reader.expect_quiet()
    assert found == retained
    reader.close()
    # Nothing is left behind for anybody: the sessions are empty.
    broker.check()


def run(broker: CrashBroker, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    broker.start()
    try:
        book, publishers, subscribers = asyncio.run(load(broker, chance, kills))
        judge(broker, book, publishers, subscribers)
        assert broker.terminate() == 0
        said = broker.stderr_size()
        broker.start()
        recovered = next(line for line in broker.stderr(said).splitlines() if "state recovered" in line)
        assert "journal_batches=0" in recovered, "SIGTERM takes a last checkpoint"
        judge(broker, book, publishers, [])

        assert broker.checkpoints() >= kills and len(book.messages) > LOAD_MIN * kills
    finally:
        broker.stop()


SETTINGS = {"session.max_offline_queue_size": 1_000_000, "session.max_offline_queue_bytes": "1GiB"}


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_under_load(tmp_path: Path, seed: int) -> None:
    run(CrashBroker(tmp_path, dict(SETTINGS)), seed, 6)


@pytest.mark.parametrize("seed", [1])
def test_loss_of_power_under_load(tmp_path: Path, seed: int) -> None:
    broker = PoweredBroker(tmp_path, random.Random(seed))
    broker.settings |= SETTINGS
    run(broker, seed, 6)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_kill_under_load_for_long(tmp_path: Path, seed: int) -> None:
    run(CrashBroker(tmp_path, dict(SETTINGS)), seed, 60)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_loss_of_power_under_load_for_long(tmp_path: Path, seed: int) -> None:
    broker = PoweredBroker(tmp_path, random.Random(seed))
    broker.settings |= SETTINGS
    run(broker, seed, 60)
