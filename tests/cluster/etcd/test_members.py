"""EtcdStore with three members, of which one is killed, stands still or comes back: requests go on, watches lose
nothing and repeat nothing, and what may not be done twice is not."""
from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from kit.etcd import EtcdServer, EtcdServers
from kit.loops import run_on

from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.errors import Cause, EtcdError
from fluxmq.cluster.etcd.stubs import rpc
from fluxmq.cluster.ports import Change, Compare, Event, StoreError

Run = Callable[[Any], Any]
on_uvloop = functools.partial(run_on, "uvloop")
LIMIT_S = 1.0


async def refusal_of(ask: Callable[[], Awaitable[object]], said: str) -> EtcdError:
    """The refusal that says so: the last attempt may have had no time for an answer."""
    while True:
        with pytest.raises(EtcdError) as refused:
            await ask()
        if said in str(refused.value):
            return refused.value


@pytest.fixture
def members(three_members: EtcdServers) -> Iterator[EtcdServers]:
    """All run, before and after the test."""
    yield three_members
    three_members.restore()


@asynccontextmanager
async def store_of(addresses: list[str], limit_s: float = LIMIT_S, **options: Any) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(addresses, limit_s=limit_s, **options)
    try:
        yield store
    finally:
        await store.close()


def first(members: EtcdServers, server: EtcdServer) -> list[str]:
    """All addresses, this one's in front."""
    return [server.address, *(other.address for other in members.servers if other is not server)]


async def surely(store: EtcdStore, key: bytes, value: bytes) -> int:
    """Writes, again and again until it is known to be done; how often that took."""
    for attempt in range(100):
        try:
            await store.transact([], [Change(key, value)])
            return attempt + 1
        except StoreError as error:
            assert error.retry, error
    raise AssertionError("never done")


def test_requests_go_on_when_the_leader_is_killed(run: Run, members: EtcdServers, key: bytes) -> None:
    leader = members.leader()

    async def use() -> None:
        async with store_of(first(members, leader)) as store:
            made = await store.transact([], [Change(key, b"before")])
            lease = await store.grant(60)
            leader.kill()
            # What may be repeated is, within the limit or the next one.
            await surely(store, key, b"after")
            read = await store.read(key)
            assert [item.value for item in read.items] == [b"after"] and read.term > made.term
            assert (await store.renew(lease)).ttl_s > 0
            assert [item.value for item in (await store.read(key, local=True)).items] == [b"after"]
            with pytest.raises(EtcdError, match="no connection"):
                await store.status(leader.address)

    run(use())


async def connected(store: EtcdStore, server: EtcdServer) -> None:
    """Until the next request goes to this member, over a connection that works: it may have just come back from
    another test, and what has no connection is sent elsewhere."""
    while True:
        with suppress(EtcdError):
            await store.status(server.address)
            if next(store._endpoints.in_order()).address == server.address:
                return
        await asyncio.sleep(0.05)


def test_a_request_that_did_not_leave_is_repeated_elsewhere(run: Run, members: EtcdServers, key: bytes) -> None:
    """A member that nothing listens for costs a transaction nothing: the next endpoint gets it, once."""
    gone = members.followers()[0]
    gone.kill()

    async def use() -> None:
        async with store_of(first(members, gone)) as store:
            made = await store.transact([Compare(key, 0)], [Change(key, b"1")])
            assert made.done

    run(use())


def test_a_transaction_whose_answer_is_lost_is_not_repeated(run: Run, members: EtcdServers, key: bytes) -> None:
    """A member that stands still may have got it: the caller is told, and the transaction happens at most once."""
    still = members.followers()[0]

    async def use() -> None:
        async with store_of(first(members, still)) as store:
            before = (await store.read(key)).revision
            await connected(store, still)
            with still.paused():
                with pytest.raises(EtcdError) as lost:
                    await store.transact([Compare(key, 0)], [Change(key, b"1")])
                assert lost.value.cause is Cause.LATE and lost.value.retry and lost.value.sent
                assert still.address in str(lost.value) and f"{LIMIT_S:g} s" in str(lost.value)
                # What may be done twice goes to the others: the one is left until it answers a probe.
                assert (await store.read(key)).revision >= before
                other = await store.transact([], [Change(key + b"other", b"2")])
                assert other.done
            await asyncio.sleep(0)
            made = await store.read(key)
            assert len(made.items) in (0, 1)

    run(use())


def test_a_member_that_comes_back_is_used_again(run: Run, members: EtcdServers, key: bytes) -> None:
    """After a probe; the order of preference then holds as before."""
    preferred = members.followers()[0]
    said: list[tuple[str, str]] = []
    causes: set[str] = set()

    def log(level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        said.append((level, text))
        causes.add(cause)

    async def use() -> None:
        async with store_of(first(members, preferred), on_log=log) as store:
            await store.read(key)
            preferred.kill()
            await store.read(key)
            assert [level for level, text in said if preferred.address in text] == ["warning"]
            assert causes == {f"etcd {preferred.address}"}      # not limited together with others
            preferred.start(members.cluster)
            while not any("answers again" in text for _, text in said):
                await asyncio.sleep(0.05)
            endpoint, _ = await store._endpoints.ask(ask_for_status, repeat=True)
            assert endpoint.address == preferred.address

    run(use())


async def ask_for_status(endpoint: Any, limit_s: float) -> Any:
    return await endpoint.maintenance.Status(rpc.StatusRequest(), timeout=limit_s)


def test_without_a_quorum(members: EtcdServers, key: bytes) -> None:
    """Who is left says that there is no leader; what is local is still read."""
    leader = members.leader()
    left, other = members.followers()

    async def use() -> None:
        async with store_of([left.address]) as store:
            await store.transact([], [Change(key, b"1")])
            assert [item.value for item in (await store.read(key)).items] == [b"1"]
            leader.kill()
            other.kill()
            while (await store.status(left.address)).leader:
                await asyncio.sleep(0.05)
            async with store_of([left.address], 0.3) as hurried:
                for ask in (lambda: hurried.transact([], [Change(key, b"2")]), lambda: hurried.read(key),
                            lambda: hurried.grant(5), lambda: hurried.renew(1)):
                    refused = await refusal_of(ask, "knows no leader")
                    assert refused.cause is Cause.NO_LEADER and refused.retry and not refused.sent
            assert [item.value for item in (await store.read(key, local=True)).items] == [b"1"]
            assert len(await store.members(local=True)) == 3
            status = await store.status(left.address)
            assert any("no leader" in error for error in status.errors)

    on_uvloop(use())


# ── watches ──────────────────────────────────────────────────────────────────────────────────────────────────


class Writers:
    """Tasks that write numbered values under keys of their own, until they are stopped."""

    def __init__(self, store: EtcdStore, key: bytes, count: int = 4) -> None:
        self.store, self.key = store, key
        self.written = [0] * count
        self.stopped = False
        self.tasks = [asyncio.create_task(self._write(number)) for number in range(count)]

    async def _write(self, number: int) -> None:
        while not self.stopped:
            await surely(self.store, self.key + b"%d" % number, b"%d" % (self.written[number] + 1))
            self.written[number] += 1
            await asyncio.sleep(0.001)

    async def more(self, count: int) -> None:
        """Until everybody has written so many further values."""
        aims = [done + count for done in self.written]
        while any(done < aim for done, aim in zip(self.written, aims, strict=True)):
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        self.stopped = True
        await asyncio.gather(*self.tasks)


async def collect(watch: Any, key: bytes, until: bytes) -> list[Event]:
    """Everything that a watch reports, until the key `until` appears."""
    found: list[Event] = []
    last = 0
    while True:
        batch = await watch.next()
        revisions = [event.revision for event in batch.events]
        assert revisions == sorted(revisions) and (not revisions or revisions[0] > last), "out of order, or twice"
        last = batch.revision
        found += batch.events
        if any(event.key == until for event in batch.events):
            return found


async def history(store: EtcdStore, key: bytes, after: int, until: bytes) -> list[Event]:
    """What etcd itself has: a new watch, of a member that was never disturbed, from the beginning."""
    watch = store.watch(key, after)
    try:
        return await collect(watch, key, until)
    finally:
        watch.close()


@pytest.mark.parametrize(("fault", "loop"), [("kill", "asyncio"), ("kill", "uvloop"), ("pause", "uvloop"),
                                             ("kill the leader", "asyncio"), ("kill the leader", "uvloop")])
def test_a_watch_loses_nothing_and_repeats_nothing(members: EtcdServers, key: bytes, fault: str, loop: str) -> None:
    """The member of its stream is killed, or stands still, while others write."""
    victim = members.leader() if fault == "kill the leader" else members.followers()[0]
    witness = next(server for server in members.servers if server is not victim)

    async def use() -> None:
        async with store_of(first(members, victim)) as store, store_of(first(members, witness)) as writing:
            after = (await store.read(key)).revision
            watch = store.watch(key, after)
            collecting = asyncio.create_task(collect(watch, key, key + b"end"))
            writers = Writers(writing, key)
            await writers.more(20)
            assert watch.endpoint == victim.address
            if fault == "pause":
                with victim.paused():
                    while watch.endpoint == victim.address or not watch.endpoint:
                        await asyncio.sleep(0.05)
            else:
                victim.kill()
                while watch.endpoint == victim.address or not watch.endpoint:
                    await asyncio.sleep(0.01)
            await writers.more(20)
            await writers.end()
            await surely(writing, key + b"end", b"")
            found = await collecting
            assert found == await history(writing, key, after, key + b"end")
            for number, count in enumerate(writers.written):
                assert {event.value for event in found if event.key == key + b"%d" % number} == {
                    b"%d" % value for value in range(1, count + 1)}

    run_on(loop, use())


def test_a_watch_survives_every_member_in_turn(members: EtcdServers, key: bytes) -> None:
    async def use() -> None:
        async with store_of(members.addresses) as store, store_of(members.addresses[::-1]) as writing:
            after = (await store.read(key)).revision
            collecting = asyncio.create_task(collect(store.watch(key, after), key, key + b"end"))
            writers = Writers(writing, key, 2)
            for server in members.servers:
                await writers.more(10)
                server.kill()
                await writers.more(10)
                server.start(members.cluster)
                while True:
                    try:
                        if (await writing.status(server.address)).leader:
                            break
                    except StoreError:
                        await asyncio.sleep(0.02)
            await writers.end()
            await surely(writing, key + b"end", b"")
            assert await collecting == await history(writing, key, after, key + b"end")

    on_uvloop(use())


def test_a_watch_leaves_a_member_without_a_leader(run: Run, members: EtcdServers, key: bytes) -> None:
    """All others are gone, then they are back: the watch is where it can be, and reports what was missed."""
    left = members.followers()[0]
    others = [server for server in members.servers if server is not left]

    async def use() -> None:
        async with store_of(first(members, left)) as store:
            watch = store.watch(key, (await store.read(key)).revision)
            for server in others:
                server.kill()
            while watch.endpoint:
                await asyncio.sleep(0.05)
            for server in others:
                server.start(members.cluster)
            async with store_of([others[0].address]) as writing:
                await surely(writing, key, b"1")
            batch = await watch.next()
            assert {event.value for event in batch.events} == {b"1"}
            watch.close()

    run(use())
