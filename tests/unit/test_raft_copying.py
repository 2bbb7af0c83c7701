"""Copies of a group's queues for a replica that lacks entries (cluster/raft/copying.py), between nodes with disks."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from property.test_copies_on_disk import GROUP
from property.test_raft_groups import Life, World
from unit.test_raft_group import follower, leading, world  # noqa: F401

from fluxmq._core.queue.handover import messages_from
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.ports import CallFailed
from fluxmq.cluster.raft.copying import CopyCall, Copying, Head
from fluxmq.cluster.raft.groups import RaftGroups
from fluxmq.engine.queues.recovery.snapshot import digest

CALL = CopyCall(group=GROUP, incarnation=1, number=1)


class Way:
    """A transport whose calls go to a leader's Copying. change: what a part becomes on its way."""

    def __init__(self, leader: Copying) -> None:
        self.leader = leader
        self.change: Callable[[int, bytes], bytes] = lambda number, part: part
        self.calls = 0

    async def call(self, address: str, method: str, body: bytes, limit_s: float) -> AsyncIterator[bytes]:
        assert (address, method) == ("a leader:1", "replica-copy")
        self.calls += 1
        number = 0
        async for part in self.leader.give(body):
            yield self.change(number, part)
            number += 1


def copying(life: Life, way: Any = None, notes: list[Any] | None = None) -> Copying:
    groups = SimpleNamespace(
        groups={GROUP: life.group}, runs=lambda group: True, node_of=lambda group, number: "a leader",
        note_due=lambda group: None, on_lacking=None)

    async def checkpoint() -> None:
        await life.node.durable()
        task = asyncio.ensure_future(life.node.keeper.checkpoint())
        while not task.done():
            await asyncio.sleep(0.001)
            await life.node.durable()
        await task
    assert life.node.keeper.queues is not None
    return Copying(cast(RaftGroups, groups), life.node.keeper.queues.copies, way, LoopDriver(),
                   address_of=lambda node: f"{node}:1", checkpoint=checkpoint,
                   log=lambda *said: (notes if notes is not None else []).append(said))


async def given(copies: Copying, call: CopyCall = CALL) -> list[bytes]:
    return [part async for part in copies.give(msgspec.msgpack.encode(call))]


def behind(world: World) -> tuple[Life, Life]:  # noqa: F811
    """A leader, and a replica that has not heard of entries that the leader's log has no more."""
    late, led = follower(world), leading(world)
    world.cuts = {pair for life in world.lives.values() for pair in ((life.number, late.number),
                                                                     (late.number, life.number))}
    for _ in range(5):
        led.publish()
        world.settle_those({life.number for life in world.lives.values()} - {late.number})
    led.group.raft.forget(led.group.replica.applied)
    assert led.group.leads and late.group.replica.applied < led.group.replica.applied
    late.group.is_behind = True
    return led, late


async def taken(parts: AsyncIterator[bytes]) -> bytes:
    return await anext(parts)


async def each(parts: list[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def digests(*lives: Life) -> set[str]:
    return {digest(life.node.manager, copy, 0) for life in lives for copy in life.copies.queues.values()}


async def fetched(copies: Copying) -> None:
    copies.begin(GROUP)
    while copies._coming:
        await asyncio.sleep(0.01)


def test_who_lacks_entries_gets_what_the_leader_has(world: World) -> None:  # noqa: F811
    led, late = behind(world)
    way = Way(copying(led))
    asyncio.run(fetched(copying(late, way)))
    assert way.calls == 1 and late.group.replica.applied == led.group.replica.applied == late.group.raft.commit
    assert len(digests(led, late)) == 1 and not late.group.wants_copy and not late.group.lacks_copy
    world.dies(late.number)
    world.starts(late.number)
    assert world.lives[late.number].group.replica.applied == led.group.replica.applied
    assert len(digests(led, world.lives[late.number])) == 1
    world.settle()
    world.verify(leading(world), list(world.lives.values()))


def test_a_copy_is_of_one_instant(world: World) -> None:  # noqa: F811
    """What is published while it is sent is not in it, also of what is not committed at all."""
    led, late = behind(world)
    end, parts = led.queue.logs[0].next, copying(led).give(msgspec.msgpack.encode(CALL))
    with asyncio.Runner() as loop:
        whole = [loop.run(taken(parts))]
        led.publish()
        with suppress(StopAsyncIteration):
            while True:
                whole.append(loop.run(taken(parts)))
    assert led.queue.logs[0].next > end
    way = SimpleNamespace(call=lambda *what: each(whole))
    asyncio.run(fetched(copying(late, way)))
    [copy] = late.copies.queues.values()
    assert copy.queue.logs[0].next == end
    world.settle()


def test_a_checkpoint_of_the_leader_has_what_it_has_sent(world: World) -> None:  # noqa: F811
    led, late = behind(world)
    led.node.checkpoint()
    led.consume()
    led.consume()
    world.settle_those({life.number for life in world.lives.values()} - {late.number})
    before = digests(led)
    asyncio.run(given(copying(led)))
    led.node.checkpoint()
    world.dies(led.number)
    world.starts(led.number)
    assert digests(world.lives[led.number]) == before


def test_the_log_keeps_what_comes_behind_a_copy_that_is_sent(world: World) -> None:  # noqa: F811
    led, late = behind(world)
    parts = copying(led).give(msgspec.msgpack.encode(CALL))
    with asyncio.Runner() as loop:
        head = msgspec.msgpack.decode(loop.run(taken(parts)), type=Head)
        led.publish()
        world.settle_those({life.number for life in world.lives.values()} - {late.number})
        for _ in range(9):
            led.group.forget(0)
        assert led.group.raft.log.base == head.index < led.group.replica.applied
        loop.run(parts.aclose())
    for _ in range(9):
        led.group.forget(0)
    assert led.group.raft.log.base == led.group.replica.applied


@pytest.mark.parametrize("change", [
    lambda number, part: 1 / 0, lambda number, part: part if number < 2 else b"\xff" + part,
    lambda number, part: part if number else b"no head"], ids=["breaks", "is damaged", "has no head"])
def test_a_copy_that_does_not_come_whole_is_asked_for_again(world: World, change: Any) -> None:  # noqa: F811
    led, late = behind(world)
    notes: list[Any] = []
    way = Way(copying(led))

    def once(number: int, part: bytes) -> bytes:
        if way.calls > 1:
            return part
        try:
            return change(number, part)     # type: ignore[no-any-return]
        except ZeroDivisionError:
            raise CallFailed("the way broke") from None
    way.change = once
    asyncio.run(fetched(copying(late, way, notes)))
    assert way.calls == 2 and [level for level, *_ in notes] == ["warning", "info"]
    assert len(digests(led, late)) == 1 and not late.group.lacks_copy


def test_who_does_not_lead_gives_nothing(world: World) -> None:  # noqa: F811
    led, late = behind(world)
    for life, call in ((late, CALL), (led, msgspec.structs.replace(CALL, incarnation=2)),
                       (led, msgspec.structs.replace(CALL, group=8))):
        with pytest.raises(CallFailed, match="not led here"):
            asyncio.run(given(copying(life), call))

    async def nothing() -> None:
        async for _ in copying(led).give(b"\xc1"):
            pass
    with pytest.raises(CallFailed, match="not a request"):
        asyncio.run(nothing())


def test_messages_in_front_of_an_end(world: World) -> None:  # noqa: F811
    led, _ = behind(world)
    [log] = led.queue.logs
    whole, behind_, missing = messages_from(log, 0, 1 << 30)
    assert behind_ == log.next and not missing
    for end in range(log.first + 1, log.next + 2):
        some, at, _ = messages_from(log, 0, 1 << 30, end)
        assert whole.startswith(some) and at == min(end, log.next)
        assert len(some) < len(whole) or end >= log.next
