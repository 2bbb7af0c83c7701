"""A member joins an etcd that is there: as a learner, which gets a vote when it has caught up.

    members found (discovery.py) ─► asked over their client addresses ─► certain that the name is free
      ─► a former self removed ─► learner added ─► (the caller starts the process with what prepare() returned)
      ─► caught up ─► promoted

A member that has lost its data never comes back under its number: others may count on what it has confirmed. So
whatever is there under the node's name or address is removed and a new one added; also an attempt that was broken off.
Nothing is changed in etcd before it is certain that the name is this node's: nobody else has a lease under it, and its
directory is the last that the node had (claim.py), and no process answers in the place of its former member.
Each step is taken only if the quorum bears it (voters.py). What fails is tried again, and `waits` says why.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from fluxmq._core.errors import FluxError
from fluxmq.cluster.claim import JoinRefused, Taken
from fluxmq.cluster.etcd.admin import Member
from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.discovery import NoMembers, find_members
from fluxmq.cluster.etcd.endpoints import Tls
from fluxmq.cluster.etcd.errors import Cause, EtcdError
from fluxmq.cluster.etcd.voters import (
    address_of,
    at_address,
    called,
    former_self,
    in_the_way,
    only_here,
    why_not_remove,
)
from fluxmq.cluster.ports import Log, MetadataStore, StoreError

__all__ = ["Joiner", "NotNow", "answering_members", "has_data", "healthy_members", "set_aside"]

RETRY_S = 1.0
PROMOTE_RETRY_S = 0.25
STATUS_LIMIT_S = 1.0
GOING_S = 5.0       # how long a former member of this node may answer: its process ends with the node's
T = TypeVar("T")


class NotNow(FluxError):
    """The step is not possible at present. The text says what to do."""


def has_data(directory: Path) -> bool:
    """Whether etcd would continue with what is in its data directory: it has a log there."""
    return any((directory / "member" / "wal").glob("*.wal"))


def set_aside(directory: Path) -> str:
    """Renames what a member has left in its directory, which may be a mount point itself. Returns the new path, or ""
    if there is nothing. Raises OSError."""
    old = directory / "member"
    if not old.exists():
        return ""
    number = 1
    while (new := directory / f"member.former-{number}").exists():
        number += 1
    old.rename(new)
    return str(new)


async def healthy_members(store: EtcdStore, members: Sequence[Member], tls: Tls | None) -> set[int]:
    """Numbers of the members that answer, and know a leader. One that listens for clients on loopback of another
    machine is asked at its peer URL, which tells that it runs, and not whether it knows a leader."""
    found = await asyncio.gather(*(_ask(store, member, tls) for member in members))
    return {member.id for member, leader in zip(members, found, strict=True) if leader}


async def answering_members(store: EtcdStore, members: Sequence[Member], tls: Tls | None) -> set[int]:
    """Numbers of the members whose process runs, whether they know a leader or not."""
    found = await asyncio.gather(*(_ask(store, member, tls, always=True) for member in members))
    return {member.id for member, leader in zip(members, found, strict=True) if leader is not None}


async def _ask(store: EtcdStore, member: Member, tls: Tls | None, *, always: bool = False) -> bool | None:
    """Whether a member knows a leader, or may know one; None: it does not answer. always: also ask at its peer URL."""
    for url in member.client_urls:
        try:
            said = await store.status(address_of(url), limit_s=STATUS_LIMIT_S)
        except (StoreError, ValueError):
            continue
        if said.member == member.id:
            return said.leader != 0
    elsewhere = bool(member.client_urls) and only_here(member.client_urls) and not only_here(member.peer_urls)
    if not elsewhere and not always:
        return None
    try:
        await find_members(member.peer_urls, tls, STATUS_LIMIT_S)
    except NoMembers:
        return None
    return True


class Joiner:
    """name, peer_url: of the member. others: peer URLs of members that may be there. waits: why the join does not go
    on; "": it does. claim: raises Taken or another FluxError if the name is not this node's (Claim.look)."""

    def __init__(self, *, name: str, peer_url: str, others: Sequence[str], tls: Tls | None, log: Log) -> None:
        self.name = name
        self.peer_url = peer_url
        self.others = list(others)
        self.waits = ""
        self.claim: Callable[[MetadataStore], Awaitable[object]] | None = None
        self._answered_s: float | None = None   # when a former member of this node was first seen to answer
        self._tls = tls
        self._log = log

    async def prepare(self) -> str:
        """Makes this node a learner. Returns the value of --initial-cluster with which it is to be started, as
        "existing". Does not end before it has succeeded. Raises JoinRefused, OldStorage."""
        return await self._patiently("cannot join etcd", self._add, RETRY_S)

    async def promote(self, own: int) -> bool:
        """Gives the member of this number a vote, as soon as it has caught up. Returns whether it was a learner. Does
        not end before."""
        return await self._patiently("cannot join etcd", lambda: self._promote(own), PROMOTE_RETRY_S)

    async def reach_clients(self) -> list[str]:
        """As clients, but does not end before there are some."""
        return await self._patiently("has no vote in etcd, and cannot use the members of the others", self.clients,
                                     RETRY_S)

    async def clients(self) -> list[str]:
        """host:port where the other members listen for clients. Raises NotNow, NoMembers."""
        found = await find_members(self.others, self._tls)
        started = [member for member in found.members if member.client_urls and member.name != self.name]
        far = not only_here([found.at])
        # Members that listen on loopback are on this machine, or cannot be reached.
        reached = [member for member in started if not (far and only_here(member.client_urls))]
        if not reached:
            raise NotNow(f"the member at {found.at} and the others listen for clients on 127.0.0.1 only: set their "
                         "cluster.etcd.client_addr to an address that this node reaches, and restart them"
                         if started else f"the member at {found.at} has not started yet")
        return [address_of(url) for member in reached for url in member.client_urls]

    async def knows_us(self) -> str:
        """For a member without data that is about to make a new cluster: why it must not, because there is one without
        it; "" if nobody answers, or the others count on it. Waits for one time limit."""
        try:
            found = await find_members(self.others, self._tls)
        except NoMembers:
            return ""
        if at_address(found.members, self.peer_url):
            return ""       # etcd knows by its number whether it has been started
        return (f"the etcd member at {found.at} has a cluster ({', '.join(map(called, found.members))}) of which this "
                f"node, {self.name} at {self.peer_url}, is no member: to join it set cluster.etcd.bootstrap to false")

    async def elsewhere(self) -> str:
        """For a member with data that is about to start: why it must not, because a process answers at another address
        under which the others have this member; "" if nobody does. A copy of a machine is no second member. Waits for
        two time limits."""
        try:
            members = (await find_members(self.others, self._tls)).members
        except NoMembers:
            return ""
        of_others = {url.rstrip("/") for one in members if one.name != self.name for url in one.peer_urls}
        urls = [url for one in members if one.name == self.name for url in one.peer_urls
                if url.rstrip("/") not in {self.peer_url.rstrip("/"), *of_others}]
        try:
            found = await find_members(urls, self._tls)
        except NoMembers:
            return ""
        return (f"the etcd member of node {self.name} runs at {found.at}, and here is a copy of its data, for "
                f"{self.peer_url}: stop that node, if it is to go on here; or give this one another cluster.node_id, "
                "and empty directories")

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _patiently(self, what: str, step: Callable[[], Awaitable[T]], pause_s: float) -> T:
        """what: what the node cannot do while the step is not possible."""
        while True:
            try:
                done = await step()
            except (NotNow, NoMembers, StoreError, Taken) as error:
                text = str(error)
                if text != self.waits:
                    self._log("warning", "", f"this node {what} yet; trying again: {text}", {})
                self.waits = text
                await asyncio.sleep(pause_s)
            else:
                self.waits = ""
                return done

    @asynccontextmanager
    async def _others(self) -> AsyncIterator[EtcdStore]:
        store = EtcdStore(await self.clients(), tls=self._tls)
        try:
            yield store
        finally:
            await store.close()

    async def _add(self) -> str:
        async with self._others() as store:
            members = await store.members()
            for member in members:
                if not only_here([self.peer_url]) and only_here(member.peer_urls):
                    raise NotNow(f"{called(member)} is registered in etcd at {', '.join(member.peer_urls)}, which this "
                                 "node cannot dial: give its cluster.etcd.initial_cluster its own entry with the "
                                 "address that others dial, and restart it")
            await self._be_certain(store, members)
            for former in former_self(members, self.name, self.peer_url):
                if why := why_not_remove(members, await healthy_members(store, members, self._tls), former):
                    raise NotNow(f"the data of this node's member are gone, so it must be removed and added anew, but "
                                 f"not now: {why}")
                await store.member_remove(former.id)
                self._log("warning", "", "this node's former member was removed from etcd: its data are gone, and "
                                             "it is added anew", {"member": f"{former.id:x}"})
            members = await store.members()
            if busy := [called(member) for member in members if member.learner]:
                raise NotNow(f"{', '.join(busy)} is joining, and etcd takes one new member at a time. If it does not "
                             f"come, remove it: fluxmq cluster voters remove {busy[0]}, on a node that serves")
            added = await store.member_add([self.peer_url], learner=True)
            self._log("info", "", "this node is a learner of etcd now", {"member": f"{added.id:x}"})
            # etcd compares the addresses; of the names it needs this member's, and no two alike.
            names = {member.id: called(member) if member.name else f"{member.id:x}" for member in members}
            return ",".join([*(f"{names[member.id]}={url}" for member in members for url in member.peer_urls),
                             f"{self.name}={self.peer_url}"])

    async def _be_certain(self, store: EtcdStore, members: Sequence[Member]) -> None:
        """That the name is this node's. Raises NotNow, Taken, JoinRefused, OldStorage."""
        if self.claim is not None:
            await self.claim(store)
        if other := in_the_way(members, self.name, self.peer_url):
            raise NotNow(f"etcd has another member, {other.name}, at the address of this node, {self.peer_url}: write "
                         "this node's own address into its entry of cluster.etcd.initial_cluster; or, if that node is "
                         f"gone for good, on a node that serves: fluxmq cluster voters remove {other.name}")
        former = former_self(members, self.name, self.peer_url)
        if not await answering_members(store, former, self._tls):
            self._answered_s = None
            return
        now = time.monotonic()
        self._answered_s = now if self._answered_s is None else self._answered_s
        text = (f"a member of etcd answers as node {self.name}, at "
                f"{', '.join(url for one in former for url in one.peer_urls)}")
        if now - self._answered_s < GOING_S:
            raise NotNow(f"{text}: waits {GOING_S:g} s for its end")
        raise JoinRefused(f"{text}: another process runs as this node, and its vote is not taken from it. Give this "
                          "one another cluster.node_id, or stop that one")

    async def _promote(self, own: int) -> bool:
        async with self._others() as store:
            while True:
                member = next((one for one in await store.members() if one.id == own), None)
                if member is None:
                    raise NotNow("this node's member is not in the list of the others")
                if not member.learner:
                    return False
                try:
                    await store.member_promote(own)
                except EtcdError as error:
                    if error.cause is not Cause.UNHEALTHY:
                        raise
                    await asyncio.sleep(PROMOTE_RETRY_S)        # it has not caught up
                else:
                    self._log("info", "", "this node's member of etcd has caught up, and has a vote now", {})
                    return True
