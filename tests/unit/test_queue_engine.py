"""Queues without I/O under a clock of the test's own: what is deleted, purged, declared again or left alone while
others work with it, and clocks that jump."""
from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import smalldisk
from kit.driver import AtOnce

from fluxmq._core.disk.journal import JOURNAL_FULL, JOURNAL_OK, Journal
from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import pump_queues
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.engine.ports.queues import Publish, QueueRefused
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.disk_full import QueueSpace
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import read_spec
from fluxmq.storage.reserve import Reserve

START_MS = 1_700_000_000_000
DAY_S = 24 * 3600
QUOTA_EXCEEDED = 0x97


class Consumer:
    """A member that keeps what it gets until the test says what becomes of it. got: (payload, delivery count)."""

    def __init__(self, world: World, queue: str, group: str = "g", room: int = 100, lease_s: float = 0,
                 exclusive: bool | None = None) -> None:
        self.world, self.name = world, queue
        self.queue: Queue = world.manager.queues[b"/", queue.encode()].queue
        self.group: Group = world.manager.group(self.queue, group.encode(), exclusive=exclusive)
        self.held: dict[bytes, tuple[int, int]] = {}
        self.got: list[tuple[bytes, int]] = []
        self.lost: list[int] = []
        self.member = PyMember(self._deliver, lambda log, offset, count: self.lost.append(offset), room,
                               int(lease_s * 1000))
        self.group.join(self.member)
        world.turn()

    def _deliver(self, log: int, offset: int, count: int) -> bool:
        found = next(one for one in self.queue.logs if one.number == log).get(offset)
        assert found is not None
        self.held[found.payload] = (log, offset)
        self.got.append((found.payload, count))
        return True

    def take(self) -> list[tuple[bytes, int]]:
        """What has come since the last call."""
        got, self.got = self.got, []
        return got

    def settle(self, *payloads: bytes) -> list[bool]:
        done = [by_offset.settle_at(self.group, *self.held.pop(payload)) for payload in payloads]
        self.world.turn()
        return done

    def give_back(self, payload: bytes, delay_s: float = 0) -> bool:
        done = by_offset.give_back_at(self.group, *self.held.pop(payload), int(delay_s * 1000))
        self.world.turn()
        return done

    def leave(self) -> None:
        self.group.leave(self.member)
        self.world.manager.left(self.queue, self.group)
        self.world.turn()


class World:
    """All queues of a node, and its two clocks."""

    def __init__(self, *specs: dict[str, Any]) -> None:
        self.hub = Hub(None)
        self.wall_ms, self.mono_ms = START_MS, 1000
        self.hub.set_clock(self.wall_ms, self.mono_ms)
        self.log: list[str] = []
        self.manager = QueueManager(self.hub, on_log=lambda level, cause, text, fields: self.log.append(text),
                                    cluster=solo())
        self.clock = QueueClock(self.manager)
        self.admin = QueueAdmin(self.manager)
        for spec in specs:
            assert self.admin.declare(spec) == "created"
        self.after(0)

    def turn(self) -> None:
        pump_queues(self.hub)

    def after(self, seconds: float, jump_s: float = 0) -> None:
        """So much time passes; the wall clock jumps besides."""
        self.mono_ms += int(seconds * 1000)
        self.wall_ms += int((seconds + jump_s) * 1000)
        self.hub.set_clock(self.wall_ms, self.mono_ms)
        self.clock.tick()
        self.turn()

    def put(self, queue: str, *payloads: bytes, **asked: str) -> None:
        for payload in payloads:
            pairs = [(name.replace("_", "-"), value) for name, value in asked.items()]
            self.admin.publish(queue, Publish(payload=payload, user_properties=pairs))
        self.turn()

    def messages(self, queue: str) -> list[bytes]:
        return [message.payload for message in self.admin.browse(queue, "first", 1000, 1 << 30, None).messages]

    def dead(self, queue: str) -> list[tuple[bytes, str]]:
        found = self.admin.dead_browse(queue, "first", 1000, 1 << 30).messages
        return [(message.payload, dict(message.user_properties)["x-death-reason"]) for message in found]


# ---------------------------------------------------------------- deleted


def test_a_queue_that_is_deleted_while_it_is_consumed() -> None:
    world = World({"name": "q"})
    world.put("q", b"1", b"2")
    consumer = Consumer(world, "q", room=1)
    assert consumer.take() == [(b"1", 1)]
    assert world.admin.delete("q", if_unused=False, if_empty=False) == 2
    assert consumer.lost == [0] and consumer.member.group is None
    with pytest.raises(QueueRefused, match="there is no queue q"):
        world.put("q", b"x")
    # What the consumer says of it afterwards means nothing, also when there is a queue of that name again.
    world.admin.declare({"name": "q"})
    world.put("q", b"new")
    world.manager.left(consumer.queue, consumer.group)
    consumer.queue.notify()
    world.after(10)
    assert world.messages("q") == [b"new"] and consumer.take() == []
    assert Consumer(world, "q").take() == [(b"new", 1)]


def test_what_is_used_or_not_empty_is_not_deleted_if_so_asked() -> None:
    world = World({"name": "q"})
    consumer = Consumer(world, "q")
    with pytest.raises(QueueRefused, match="has 1 consumers"):
        world.admin.delete("q", if_unused=True, if_empty=False)
    consumer.leave()
    world.put("q", b"1")
    with pytest.raises(QueueRefused, match="has 1 messages"):
        world.admin.delete("q", if_unused=True, if_empty=True)
    assert world.admin.delete("q", if_unused=True, if_empty=False) == 1
    world.admin.declare({"name": "q"})
    world.put("q", b"later", x_delay="60000")
    with pytest.raises(QueueRefused, match="has 1 messages"):
        world.admin.delete("q", if_unused=False, if_empty=True)


def test_a_group_that_is_deleted_lets_go_what_only_it_had_not_settled() -> None:
    world = World({"name": "q"})
    quick, slow = Consumer(world, "q", "quick"), Consumer(world, "q", "slow")
    world.put("q", b"1", b"2", b"3")
    quick.settle(b"1", b"2")
    assert world.messages("q") == [b"1", b"2", b"3"]
    with pytest.raises(QueueRefused, match="1 members"):
        world.admin.delete_group("q", "slow")
    slow.leave()
    world.admin.delete_group("q", "slow")
    world.turn()
    assert world.messages("q") == [b"3"]
    # A group of that name is a new one: it begins with what is kept, and counts from one.
    assert Consumer(world, "q", "slow").take() == [(b"3", 1)]


# ---------------------------------------------------------------- purged


def test_a_purge_while_messages_are_in_hand() -> None:
    world = World({"name": "q"})
    consumer = Consumer(world, "q", room=3)
    world.put("q", b"1", b"2", b"3", b"4", b"5")
    assert len(consumer.take()) == 3
    assert world.admin.purge("q", unsettled=True) == 5
    world.turn()
    assert world.messages("q") == []
    # Settled or given back, it is gone: nothing of it comes again, and nothing is counted.
    consumer.settle(b"1")
    consumer.give_back(b"2")
    consumer.give_back(b"3", 5)
    world.after(10)
    assert consumer.take() == []
    assert world.admin.groups("q")[0]["lag"] == 0 and world.admin.list_queues()[0]["messages"] == 0
    world.put("q", b"6")
    assert consumer.take() == [(b"6", 1)]


def test_a_purge_while_nobody_is_there() -> None:
    world = World({"name": "q", "partitions": 3, "max_priority": 2})
    for number in range(30):
        world.put("q", b"%d" % number, priority=str(number % 3))
    Consumer(world, "q", room=5).leave()
    assert world.admin.purge("q") == 30
    world.turn()
    assert world.admin.groups("q")[0]["lag"] == 0
    assert world.admin.purge("q") == 0
    world.put("q", b"new")
    assert Consumer(world, "q").take() == [(b"new", 1)]


def test_the_lag_of_each_partition() -> None:
    """Of a queue what the slowest group has not settled, also out of order; without a group all. Of a stream what the
    slowest group has not read; without one nobody knows."""
    def shown(world: World) -> list[tuple[int, int | None]]:
        [queue] = world.admin.list_queues(partitions=True)
        return [(part["messages"], part["lag"]) for part in queue["partition_list"]]

    world = World({"name": "q", "partitions": 2, "max_priority": 2})
    for number in range(6):
        world.put("q", b"%d" % number, priority=str(number % 3))
    before = shown(world)
    assert before == [(count, count) for count, _ in before] and sum(count for count, _ in before) == 6
    fast, slow = Consumer(world, "q", "fast"), Consumer(world, "q", "slow")
    for payload, _ in fast.take():
        fast.settle(payload)
    for payload in (b"1", b"4"):
        slow.settle(payload)
    world.turn()
    assert sum(lag or 0 for _, lag in shown(world)) == 4
    [queue] = world.admin.list_queues(partitions=True)
    assert [(part["partition"], part["state"], part["epoch"]) for part in queue["partition_list"]] == [
        (0, "running", 0), (1, "running", 0)]
    assert "partition_list" not in world.admin.list_queues()[0]

    world = World({"name": "q"})
    world.put("q", b"1", b"2", b"3", b"4")
    consumer = Consumer(world, "q")
    consumer.take()
    consumer.settle(b"3")
    world.turn()
    assert shown(world) == [(4, 3)]

    world = World({"name": "s", "type": "stream"})
    for number in range(5):
        world.put("s", b"%d" % number)
    assert shown(world) == [(5, None)]
    state = world.manager.queues[b"/", b"s"]
    for name, position in ((b"g", 3), (b"h", 1)):
        group = world.manager.group(state.queue, name)
        by_offset.seek(group, group.cursors[0].log_number, position)
    assert shown(world) == [(5, 4)]


def test_a_purge_takes_what_is_delayed_too() -> None:
    world = World({"name": "q"})
    consumer = Consumer(world, "q")
    for delay in ("1000", "5000", "60000"):
        world.put("q", b"delayed", x_delay=delay)
    assert world.admin.purge("q") == 3
    world.put("q", b"later", x_delay="3000")
    assert world.admin.list_queues()[0]["delayed"] == 1
    world.after(100)
    assert consumer.take() == [(b"later", 1)]
    assert world.admin.list_queues()[0]["delayed"] == 0


# ---------------------------------------------------------------- declared again


def test_what_cannot_change_is_refused_and_changes_nothing() -> None:
    world = World({"name": "q", "partitions": 2, "limits": {"max_depth": 5}})
    for changed in ({"partitions": 3}, {"type": "stream"}, {"partitions": 2, "max_priority": 4}, {"type": "ephemeral"}):
        with pytest.raises(QueueRefused, match="which cannot become"):
            world.admin.declare({"name": "q"} | changed)
    assert world.admin.describe("q")["spec"] == {"name": "q", "partitions": 2, "limits": {"max_depth": 5}}
    assert world.admin.declare({"name": "q", "partitions": 2, "limits": {"max_depth": 5}}) == "unchanged"


def test_a_queue_that_is_declared_otherwise_keeps_its_messages_and_consumers() -> None:
    world = World({"name": "q", "topics": ["old/#"]})
    consumer = Consumer(world, "q", room=1)
    world.put("q", b"1", b"2", b"3")
    assert world.admin.declare({"name": "q", "topics": ["new/#"], "limits": {"max_depth": 2, "message_ttl": "10s"},
                                "retry": {"max_retries": 1}}) == "changed"
    for topic in (b"old/x", b"new/x"):
        world.hub.publish_message(topic, topic)     # a capture that finds no room is lost, and counted
    world.turn()
    assert world.messages("q") == [b"1", b"2", b"3"]
    assert world.admin.describe("q")["counts"]["capture_lost"] == 1
    with pytest.raises(QueueRefused, match="is full"):
        world.put("q", b"4")
    assert consumer.take() == [(b"1", 1)]
    consumer.settle(b"1")
    consumer.settle(b"2")
    world.hub.publish_message(b"new/x", b"captured")
    world.turn()
    assert world.messages("q") == [b"3", b"captured"]
    # The group was there before: two deliveries, no more, from now on.
    consumer.take()
    consumer.give_back(b"3")
    assert consumer.take() == [(b"3", 2)]
    consumer.give_back(b"3")
    assert (b"3", "max_retries") in world.dead("q")
    world.after(11)
    consumer.settle(b"captured")                    # in hand, so it is the consumer's
    world.put("q", b"short")
    consumer.leave()
    world.after(11)
    assert Consumer(world, "q").take() == []
    assert (b"short", "expired") in world.dead("q")


def test_one_that_is_slow_does_not_make_the_queue_full() -> None:
    """limits.max_depth counts what is to be done, not what was done since the oldest that is not."""
    world = World({"name": "q", "limits": {"max_depth": 3}})
    slow, quick = Consumer(world, "q", room=1), Consumer(world, "q", room=1)
    world.put("q", b"stuck")
    assert slow.take() + quick.take() == [(b"stuck", 1)]
    other = quick if b"stuck" in slow.held else slow
    for number in range(20):
        world.put("q", b"%d" % number)
        other.settle(b"%d" % number)
    world.put("q", b"a", b"b")
    with pytest.raises(QueueRefused, match="is full"):
        world.put("q", b"c")


def test_how_a_group_shares_is_up_to_its_first_member() -> None:
    world = World({"name": "q", "partitions": 2})
    shared = Consumer(world, "q")
    assert shared.group.mode == "shared"
    with pytest.raises(UsageError):
        shared.group.set_mode("exclusive")
    shared.leave()
    one, two = Consumer(world, "q", exclusive=True), Consumer(world, "q", exclusive=True)
    assert one.group.mode == "exclusive" and set(one.group.owners().values()) == {one.member, two.member}
    one.leave()
    assert set(two.group.owners().values()) == {two.member}
    two.leave()
    assert Consumer(world, "q", exclusive=False).group.owners() == {0: None, 1: None}


def test_a_group_stays_as_it_is_for_members_that_do_not_say_how_it_shares() -> None:
    """After a restart they may be the first that come back."""
    world = World({"name": "q", "partitions": 2})
    assert Consumer(world, "q", group="new").group.mode == "shared"
    first = Consumer(world, "q", exclusive=True)
    first.leave()
    plain = Consumer(world, "q")
    assert plain.group.mode == "exclusive" and set(plain.group.owners().values()) == {plain.member}
    second = Consumer(world, "q", exclusive=True)
    assert set(plain.group.owners().values()) == {plain.member, second.member}


# ---------------------------------------------------------------- ephemeral queues


def test_an_ephemeral_queue_is_gone_some_time_after_its_last_consumer() -> None:
    world = World({"name": "e", "type": "ephemeral", "expires_after": "60s"})
    world.after(59)
    consumer = Consumer(world, "e")
    world.after(1000)
    other = Consumer(world, "e", "another")
    consumer.leave()
    world.after(1000)
    world.put("e", b"x")
    assert other.take() == [(b"x", 1)]
    other.leave()
    world.after(59)
    assert (b"/", b"e") in world.manager.queues
    world.after(2)
    assert (b"/", b"e") not in world.manager.queues
    with pytest.raises(QueueRefused, match="there is no queue e"):
        world.put("e", b"y")


def test_an_ephemeral_queue_of_the_configuration_stays() -> None:
    world = World({"name": "e", "type": "ephemeral", "expires_after": "1s"})
    world.manager.queues[b"/", b"e"].configured = True
    world.after(1000)
    assert (b"/", b"e") in world.manager.queues
    with pytest.raises(QueueRefused, match="is in the configuration"):
        world.admin.delete("e", if_unused=False, if_empty=False)


# ---------------------------------------------------------------- clocks that jump


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_what_waits_for_a_while_waits_that_long_whatever_the_clock_says(jump_s: int) -> None:
    world = World({"name": "q"}, {"name": "e", "type": "ephemeral", "expires_after": "60s"})
    consumer = Consumer(world, "q", lease_s=30)
    world.put("q", b"leased", b"refused")
    assert consumer.take() == [(b"leased", 1), (b"refused", 1)]
    consumer.give_back(b"refused", 10)
    world.after(1, jump_s)
    assert consumer.take() == [] and (b"/", b"e") in world.manager.queues
    world.after(8)
    assert consumer.take() == []
    world.after(2)
    assert consumer.take() == [(b"refused", 2)]
    consumer.settle(b"refused")
    world.after(18)
    assert consumer.take() == []
    world.after(2)
    assert consumer.take() == [(b"leased", 2)]
    assert (b"/", b"e") in world.manager.queues
    world.after(30)
    assert (b"/", b"e") not in world.manager.queues


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_no_jump_makes_a_message_older_or_younger(jump_s: int) -> None:
    world = World({"name": "q", "limits": {"message_ttl": "1h"}})
    world.put("q", b"old")
    world.after(1, jump_s)
    world.put("q", b"new")
    world.after(3598, jump_s)
    assert Consumer(world, "q").take() == [(b"old", 1), (b"new", 1)]
    world.after(1)
    assert Consumer(world, "q", group="later").take() == [(b"new", 1)]
    assert world.dead("q") == [(b"old", "expired")]


def test_a_clock_that_falls_back_lets_nothing_expire_and_loses_nothing() -> None:
    world = World({"name": "q", "limits": {"message_ttl": "1h"}},
                  {"name": "s", "type": "stream", "retention": {"max_age": "1h"}})
    for queue in ("q", "s"):
        world.put(queue, b"before")
    world.after(1, -DAY_S)
    for queue in ("q", "s"):
        world.put(queue, b"after")
    world.after(1800)
    assert Consumer(world, "q").take() == [(b"before", 1), (b"after", 1)]
    assert world.messages("s") == [b"before", b"after"]
    # Retention is looked at as often as before, and by the clock as it is.
    world.after(0, DAY_S)
    world.after(3600)
    assert world.messages("s") == []


def test_retention_by_age_takes_what_is_too_old_and_nothing_else() -> None:
    world = World({"name": "s", "type": "stream", "retention": {"max_age": "1h"}})
    for number in range(5):
        world.put("s", b"%d" % number)
        world.after(1000)
    assert world.messages("s") == [b"2", b"3", b"4"]
    world.after(10_000)
    assert world.messages("s") == []
    world.put("s", b"5")
    assert world.messages("s") == [b"5"]


def test_small_corrections_of_the_clock_do_not_add_up() -> None:
    world = World({"name": "q"})
    consumer = Consumer(world, "q")
    world.put("q", b"x")
    consumer.give_back(b"x", 100)
    consumer.take()
    for _ in range(50):
        world.after(1, -1)                          # a clock that stands still
    world.after(49)
    assert consumer.take() == []
    world.after(1)
    assert consumer.take() == [(b"x", 2)]


# ---------------------------------------------------------------- a disk that is full


class FakeReserve:
    def __init__(self) -> None:
        self.there, self.held = True, False

    def take(self) -> bool:
        self.held = self.there
        return self.there

    def give(self) -> None:
        self.held = False


class FakeLedger:
    """A ledger whose journal says what the test wants."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.journal = SimpleNamespace(status=JOURNAL_OK, shortage="the disk is full")

    @property
    def full(self) -> bool:
        return self.hub.ledger.full

    @full.setter
    def full(self, value: bool) -> None:
        self.hub.ledger.full = value


def test_queues_refuse_while_there_is_no_reserve(tmp_path: Path) -> None:
    real = Journal(tmp_path, identity=1)
    hub, reserve = Hub(real), FakeReserve()
    manager, ledger = QueueManager(hub, cluster=solo()), FakeLedger(hub)
    journal = ledger.journal
    clock = SimpleNamespace(ledger=ledger, mono_ms=0)
    seen = SimpleNamespace(hub=clock, durables=0)
    space = QueueSpace(seen, reserve, AtOnce(), manager.log)  # type: ignore[arg-type]

    def ticks(count: int = 3) -> bool:
        for _ in range(count):
            clock.mono_ms += 1000
            space.tick()
        return space.full

    def publish(queue: bytes) -> int:
        return manager.queues[b"/", queue].queue.publish(b"$queue/" + queue, b"x")

    journal.status = JOURNAL_FULL
    assert not ticks() and not reserve.held, "a node without queues keeps nothing and refuses nothing"
    journal.status = JOURNAL_OK
    manager.declare(read_spec({"name": "q"}))
    manager.declare(read_spec({"name": "e", "type": "ephemeral"}))
    seen.durables = manager.durables
    assert not ticks() and reserve.held and publish(b"q") == 0
    journal.status, reserve.there = JOURNAL_FULL, False
    assert ticks() and not reserve.held
    assert (publish(b"q"), publish(b"e")) == (QUOTA_EXCEEDED, 0)
    journal.status = JOURNAL_OK                         # on what the reserve gave: still nothing new
    assert ticks() and publish(b"q") == QUOTA_EXCEEDED
    assert manager.queues[b"/", b"q"].queue.append_message(b"$queue/q", b"dead letter") == 0
    reserve.there = True
    assert not ticks() and reserve.held and publish(b"q") == 0
    real.close()


def test_a_stop_waits_for_what_is_being_reserved(tmp_path: Path) -> None:
    """A thread that outlives the broker would find its directory gone, or another broker's, and tell nobody of it."""
    real = Journal(tmp_path, identity=1)
    hub = Hub(real)
    manager = QueueManager(hub, cluster=solo())
    manager.declare(read_spec({"name": "q"}))
    begun, end, accidents = threading.Event(), threading.Event(), []

    class SlowReserve(FakeReserve):
        def take(self) -> bool:
            begun.set()
            end.wait()
            raise FileNotFoundError(2, "the directory is gone")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: accidents.append(context))
        space = QueueSpace(manager, SlowReserve(), LoopDriver(), manager.log)
        space.tick()
        await loop.run_in_executor(None, begun.wait)
        stopping = asyncio.ensure_future(space.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        end.set()
        await stopping

    asyncio.run(run())
    gc.collect()
    assert not accidents
    real.close()


def test_the_reserve_is_space_on_the_disk(tmp_path: Path) -> None:
    with smalldisk.small_disk(tmp_path / "small", "8m") as where:
        reserve = Reserve(where, 2 << 20)
        assert reserve.take() and reserve.take()
        assert reserve.path.stat().st_blocks * 512 >= 2 << 20
        ballast = smalldisk.fill(where, 0)
        assert reserve.take(), "it is ours"
        reserve.give()
        assert not reserve.path.exists()
        (where / "needed").write_bytes(bytes(1 << 20))
        assert not reserve.take() and not reserve.path.exists()
        ballast.unlink()
        assert reserve.take()
