"""A node's member of etcd on its way into a cluster: broken off, restarted, at the same time as another."""
from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.broker import free_port
from kit.etcd import QUICK, EtcdServers, etcd_binary
from kit.loops import run_on

from fluxmq._core.errors import FluxError
from fluxmq.cluster.claim import JoinRefused, Taken
from fluxmq.cluster.etcd.admin import Member
from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.joining import Joiner, NotNow
from fluxmq.cluster.etcd.own_member import OwnMember
from fluxmq.cluster.etcd.process import EtcdMember, EtcdOptions, MemberState
from fluxmq.cluster.ports import MetadataStore

PATIENCE_S = 60.0
run = functools.partial(run_on, "uvloop", seconds=2 * PATIENCE_S)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[EtcdServers]:
    """A cluster of one member, of which the joining node knows the peer URL."""
    servers = EtcdServers(tmp_path / "there")
    yield servers
    servers.end()


class Newcomer:
    """What a node that joins has. Made anew for each start, on the same directory."""

    def __init__(self, folder: Path, name: str, there: EtcdServers) -> None:
        self.folder, self.name = folder, name
        self.others = [server.peer_url for server in there.servers]
        self.peer, self.client = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.said: list[str] = []
        self.failures: list[FluxError] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OwnMember]:
        store = EtcdStore([self.client])
        options = EtcdOptions(
            name=self.name, data_dir=self.folder / self.name, listen_peer=self.peer, advertise_peer=self.peer,
            listen_client=self.client, advertise_client=self.client, initial_cluster=f"{self.name}={self.peer}",
            flags=[flag for flag in QUICK if "no-fsync" in flag])

        def log(level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
            self.said.append(text)

        joiner = Joiner(name=self.name, peer_url=self.peer, others=self.others, tls=None, log=log)
        member = EtcdMember(etcd_binary(), options, on_log=log, on_line=log, on_exit=lambda ended: own.on_exit(ended))
        own = OwnMember(member, store, joiner, bootstrap=False, memory=self.folder / f"{self.name}-members", tls=None,
                        log=log, on_failed=self.failures.append)
        own.start()
        try:
            yield own
        finally:
            await store.close()
            await own.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


async def members(there: EtcdServers) -> dict[str, Member]:
    """By name; those that have not started by their address."""
    store = EtcdStore(there.addresses)
    try:
        return {member.name or member.peer_urls[0]: member for member in await store.members()}
    finally:
        await store.close()


def test_a_learner_that_is_started_again_gets_its_vote(tmp_path: Path, there: EtcdServers) -> None:
    newcomer = Newcomer(tmp_path, "late", there)

    async def test() -> None:
        async with newcomer.running() as own:
            # It is stopped when it has the log and no vote.
            async def never(number: int) -> bool:
                await asyncio.Event().wait()
                return False

            own.joiner.promote = never  # type: ignore[method-assign]
            entering = asyncio.ensure_future(own.enter())
            await until(lambda: any("published local member" in line or "ready to serve" in line
                                    for line in newcomer.said))
            entering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await entering
        first = (await members(there))["late"]
        assert first.learner
        async with newcomer.running():
            await until(lambda: any("has a vote now" in line for line in newcomer.said))
        assert (await members(there))["late"] == first._replace(learner=False)

    run(test())


def test_an_attempt_that_was_broken_off_is_begun_anew(tmp_path: Path, there: EtcdServers) -> None:
    """The learner was added, and the node died before its process had any data."""
    newcomer = Newcomer(tmp_path, "late", there)

    async def test() -> None:
        async with newcomer.running() as own:
            await own.joiner.prepare()
        former = (await members(there))[newcomer.peer]
        assert former.learner and not former.name
        async with newcomer.running() as own:
            await own.enter()
            now = await members(there)
        assert now["late"].id != former.id and not now["late"].learner and newcomer.peer not in now

    run(test())


def test_two_that_join_at_once_come_one_after_the_other(tmp_path: Path, there: EtcdServers) -> None:
    newcomers = [Newcomer(tmp_path, name, there) for name in ("left", "right")]

    async def test() -> None:
        async with newcomers[0].running() as one, newcomers[1].running() as other:
            await asyncio.wait_for(asyncio.gather(one.enter(), other.enter()), PATIENCE_S)
            found = await members(there)
            assert set(found) == {"etcd-1", "left", "right"} and not any(one.learner for one in found.values())
            await until(lambda: set(one.votes) == set(found) and all(vote.healthy for vote in one.votes.values()))
            # What was seen outlives the member's data.
            assert set((tmp_path / "left-members").read_text().split()) == {*newcomers[0].others, newcomers[1].peer}

    run(test())


def test_a_member_that_is_needed_is_not_removed(tmp_path: Path, there: EtcdServers) -> None:
    newcomer = Newcomer(tmp_path, "late", there)

    async def test() -> None:
        async with newcomer.running() as own:
            await own.enter()
            with pytest.raises(NotNow, match="no member nobody"):
                await own.remove("nobody")
            with pytest.raises(NotNow, match="has a member of etcd already"):
                await own.add()
            await own.remove("late")
            await until(lambda: own.without_vote and own._store.endpoints == there.addresses)
            with pytest.raises(NotNow, match="only member of etcd with a vote"):
                await own.remove("etcd-1")
            assert not newcomer.failures

    run(test())


def test_a_removed_member_that_cannot_reach_the_others_waits_for_them(tmp_path: Path, there: EtcdServers) -> None:
    newcomer = Newcomer(tmp_path, "late", there)

    async def test() -> None:
        async with newcomer.running() as own:
            await own.enter()
            await own.remove("late")
            await until(lambda: own.without_vote)
        there.end()
        # Whether its own data say that it was removed depends on whether the others told it before they forgot it. If
        # they do not, the member starts, and is told when it finds the others.
        async with newcomer.running() as own:
            await until(lambda: own.joiner.waits or own.member.state is MemberState.RUNNING)
            there.restore()
            await until(lambda: own._store.endpoints == there.addresses)
            assert own.without_vote and set(await members(there)) == {"etcd-1"}
        assert not newcomer.failures

    run(test())


def test_a_copy_of_a_machine_does_not_start_its_member(tmp_path: Path, there: EtcdServers) -> None:
    """With the data of a member that runs, at another address: nothing of that one changes."""
    first = Newcomer(tmp_path, "late", there)

    async def test() -> None:
        async with first.running() as own:
            await own.enter()
            before = await members(there)
            copy = Newcomer(tmp_path / "copy", "late", there)
            shutil.copytree(tmp_path / "late" / "member", tmp_path / "copy" / "late" / "member")
            async with copy.running() as other:
                with pytest.raises(JoinRefused, match=f"of node late runs at {first.peer}, and here is a copy"):
                    await other.enter()
                assert not other.member.starts
            assert await members(there) == before and own.member.state is MemberState.RUNNING
        # When that one is gone, the member may have moved.
        async with copy.running() as other:
            await other.enter()
            await until(lambda: "the address of this node's member has changed for the other members" in copy.said)
        assert not copy.failures

    run(test())


def test_a_vote_that_nobody_has_taken_is_got_again(tmp_path: Path, there: EtcdServers) -> None:
    newcomer = Newcomer(tmp_path, "late", there)

    async def test() -> None:
        async with newcomer.running() as own:
            await own.enter()
            first = (await members(there))["late"]
            await own._surely_remove(first.id)      # etcd refuses it for 5 s after the member has come
            await until(lambda: any("not by fluxmq cluster voters remove" in line for line in newcomer.said))
            await until(lambda: any("has a vote in etcd again" in line for line in newcomer.said))
            now = (await members(there))["late"]
            assert now.id != first.id and not now.learner and not own.lost and not own.without_vote
            # Given back for good it is not got again, and the one that remains is the quorum.
            assert await own.why_not_leave(True) and not await own.why_not_leave(False)
            assert await own.give_back() == (
                "late has given back its vote in etcd: etcd has 1 member with a vote now, and needs 1 of it")
            await until(lambda: own.without_vote)
            assert set(await members(there)) == {"etcd-1"} and not own.lost and await own.give_back() == ""
        assert not newcomer.failures

    run(test())


def test_the_claim_to_the_name_comes_before_any_change(tmp_path: Path, there: EtcdServers) -> None:
    newcomer = Newcomer(tmp_path, "late", there)

    async def test() -> None:
        before = await members(there)
        async with newcomer.running() as own:
            answers: list[Exception] = [Taken("its lease may end"), JoinRefused("somebody else has it")]

            async def claim(store: MetadataStore) -> None:
                raise answers.pop(0)

            own.joiner.claim = claim
            with pytest.raises(JoinRefused, match="somebody else"):
                await own.enter()
            assert any("yet; trying again: its lease may end" in line for line in newcomer.said)
        assert await members(there) == before

    run(test())
