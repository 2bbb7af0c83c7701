"""The etcd member of this node, from its first start on: making a cluster or joining one, and the changes of members.

    has data ──────────────────────► started, unless it runs elsewhere; then, if it is a learner, promoted; its peer URL
                                     corrected
    none, bootstrap ───────────────► started as new, unless the others have a cluster without it
    none, and no bootstrap, or ────► added as a learner, started, promoted (joining.py)
    it has known other members
    etcd says: it has no data now ─► removed, and added anew
    etcd says: it was removed ─────► by `voters remove`: the node goes on as a client of the others, without a vote
                                     by somebody else: so it does, and its member joins anew

While it does not answer (it is started again, its disk is full or stands still) the node uses the others, if it reaches
them, so that its lease does not end with a member that the quorum does not need.

All on one event loop.
"""
from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fluxmq._core.errors import ConfigError, FluxError, StorageError
from fluxmq.cluster.claim import JoinRefused, OldStorage
from fluxmq.cluster.etcd.admin import Member
from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.endings import Ending
from fluxmq.cluster.etcd.endpoints import Tls
from fluxmq.cluster.etcd.errors import Cause, EtcdError
from fluxmq.cluster.etcd.joining import Joiner, NotNow, has_data, healthy_members, set_aside
from fluxmq.cluster.etcd.process import EtcdMember, Exit, MemberState
from fluxmq.cluster.etcd.space import Space
from fluxmq.cluster.etcd.voters import (
    address_of,
    called,
    can_be_used,
    only_here,
    quorum_of,
    why_not_pause,
    why_not_remove,
)
from fluxmq.cluster.keys import voteless_key
from fluxmq.cluster.ports import Change, Compare, Log, StoreError

__all__ = ["OwnMember", "Vote"]

LOOK_S = 10.0       # between two looks at the members
RETRY_S = 0.5
ADD_S = 20.0        # how long an operator waits for a vote
REFUSED_S = 30.0    # until a member that must not join tries again
REMOVE_S = 8.0      # how long etcd may refuse a removal because a member has just been away


class Vote(NamedTuple):
    """Of a member: what it is, and whether it answers."""

    kind: Literal["voter", "learner"]
    healthy: bool


class OwnMember:
    """member: the process; its on_exit is this object's. store: the node's own client of etcd, whose endpoints are this
    member and, behind it, the others; those alone while this node has no vote. memory: a file that outlives the
    member's data, with the peer URLs of the other members, a line each. on_failed: called when the node cannot go on.
    """

    def __init__(self, member: EtcdMember, store: EtcdStore, joiner: Joiner, *, bootstrap: bool, memory: Path,
                 tls: Tls | None, log: Log, on_failed: Callable[[FluxError], None]) -> None:
        self.member = member
        self.joiner = joiner
        self.votes: dict[str, Vote] = {}        # by name, as of the last look
        self.without_vote = False
        self.lost = ""                          # why the node has no vote, while it ought to have one
        self._leaves = False                    # for good: what has happened to the vote is as it should be
        self._starting: asyncio.Task[None] | None = None    # of a member with data
        self._refused: FluxError | None = None              # what became of that
        self._store = store
        self._own = store.endpoints[0]
        self._space = Space(store, self._own, member.options.quota_bytes, log)
        self._others: list[str] = []            # where other members listen for clients
        # A node that has known others has been in their cluster: without data it must not make one of its own.
        self._memory = memory
        self._known = memory.read_text("ascii").split() if memory.exists() else []
        self._bootstrap = bootstrap and not self._known
        joiner.others = list(dict.fromkeys([*joiner.others, *self._known]))
        self._tls = tls
        self._log = log
        self._on_failed = on_failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._entering = False

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Starts the process if that needs nobody else. Raises StorageError."""
        self._begin(self._keep_looking())
        if has_data(self.member.options.data_dir):
            if self.joiner.others:
                self._starting = self._begin(self._start())
            else:
                self.member.start()
                self._begin(self._settle())
        elif self._bootstrap and not self.joiner.others:
            self.member.start()

    async def _start(self) -> None:
        try:
            if why := await self.joiner.elsewhere():
                raise JoinRefused(why)
            self.member.start()
        except FluxError as error:
            self._refused = error
        else:
            self._begin(self._settle())

    async def enter(self) -> None:
        """Makes this node's member one of a cluster, if it is not yet. Raises ConfigError if the configuration says to
        make a cluster where there is one; JoinRefused, OldStorage, StorageError."""
        if self._starting is not None:
            await asyncio.shield(self._starting)
            if self._refused is not None:
                raise self._refused
            return
        if self.member.starts:
            return
        if not self._bootstrap:
            if self._known:
                self._log("info", "", "this node has been in a cluster with other members of etcd, and joins it again; "
                                      "the file that says so may be removed if they are gone for good",
                          {"members": ", ".join(self._known), "file": str(self._memory)})
            await self._join()
        elif why := await self.joiner.knows_us():
            raise ConfigError("cluster.etcd.bootstrap", why)
        else:
            self.member.start()

    async def stop(self) -> None:
        """Ends everything but the store."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.member.stop()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _join(self) -> None:
        """Adds a member for this node, which has no data, and waits until it has a vote."""
        self._entering = True
        try:
            member = self.member
            if aside := set_aside(member.options.data_dir):
                self._log("info", "", "what a former member has left was set aside", {"directory": aside})
            initial = await self.joiner.prepare()
            member.options = replace(member.options, initial_cluster=initial, state="existing")
            member.start()
            await self._settle()
            self.without_vote = False
            self._use(self._others)
            await self._want_vote()
        except OSError as error:
            raise StorageError(f"the data directory of etcd cannot be used: {error} (cluster.etcd.data_dir)") from None
        finally:
            self._entering = False

    async def _settle(self) -> None:
        """Waits until the member answers, has a vote, and is registered at the address of the configuration."""
        while True:
            if self.member.state in (MemberState.FAILED, MemberState.STOPPED, MemberState.STOPPING):
                return
            try:
                said = await self._store.status(self._own)
                if said.learner:
                    await self.joiner.promote(said.member)
                await self._correct_address(said.member)
                return
            except StoreError:
                await asyncio.sleep(RETRY_S)

    async def _correct_address(self, own: int) -> None:
        """A node that was alone may have been registered at an address that nobody else can dial."""
        url = self.joiner.peer_url
        member = next((one for one in await self._store.members(local=True) if one.id == own), None)
        if member is None or tuple(member.peer_urls) == (url,):
            return
        if only_here([url]) and not only_here(member.peer_urls):
            self._log("warning", "", (
                f"the other members of etcd dial this one at {', '.join(member.peer_urls)}, and only this machine can "
                f"dial {url} of the configuration: it stays as it is (cluster.etcd.initial_cluster)"), {})
            return
        await self._store.member_update(own, [url])
        self._log("info", "", "the address of this node's member has changed for the other members",
                  {"from": ", ".join(member.peer_urls), "to": url})

    # ── ends of the process that nobody asked for ────────────────────────────────────────────────────────────

    def on_exit(self, ended: Exit) -> None:
        """For EtcdMember."""
        again = "" if ended.again_s is None else f"; it is started again in {ended.again_s:g} s"
        self._log("info" if self._leaves else "error", "", f"{ended.text}{again}",
                  {"last_lines": " | ".join(ended.lines[-3:])})
        if ended.ending is Ending.WIPED and not self._entering and not has_data(self.member.options.data_dir):
            self._begin(self._failing(self._join()))
        elif ended.ending is Ending.REMOVED:
            self._begin(self._failing(self._go_without_vote()))
        elif ended.again_s is None:
            self._on_failed(FluxError(f"the etcd member of this node cannot run: {ended.text}"))

    async def _failing(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except FluxError as error:
            self._on_failed(error)

    async def _go_without_vote(self) -> None:
        self.without_vote = True
        self._store.set_endpoints(clients := await self.joiner.reach_clients())
        if self._leaves:
            return
        if by := await self._taken_by():
            self._log("warning", "", (
                f"this node has no vote in etcd any more (taken at node {by}), and uses the members of the others. To "
                f"give it one: fluxmq cluster voters add {self.joiner.name}"), {"members": ", ".join(clients)})
            return
        self.lost = ("its member was removed from etcd, and not by fluxmq cluster voters remove: without it the "
                     "cluster bears one loss less. It joins etcd anew")
        self._log("warning", "", f"this node has no vote in etcd: {self.lost}", {"members": ", ".join(clients)})
        while True:
            try:
                await self._join()
            except (JoinRefused, OldStorage) as error:
                self.lost = f"its member was removed from etcd, and must not join anew: {error}"
                self._log("error", str(error), f"this node has no vote in etcd: {self.lost}", {})
                await asyncio.sleep(REFUSED_S)
            else:
                break
        self.lost = ""
        self._log("info", "", "this node has a vote in etcd again", {})

    async def _taken_by(self) -> str:
        """The node at which an operator has taken this one's vote; "": nobody has. Does not end before etcd answers."""
        while True:
            try:
                found = (await self._store.read(voteless_key(self.joiner.name))).items
                return found[0].value.decode("utf-8", "replace") if found else ""
            except StoreError:
                await asyncio.sleep(RETRY_S)

    async def _want_vote(self) -> None:
        """Nobody has taken this node's vote any more."""
        key = voteless_key(self.joiner.name)
        while True:
            try:
                found = (await self._store.read(key)).items
                if not found or (await self._store.transact([Compare(key, found[0].revision)],
                                                            [Change(key, None)])).done:
                    return
            except StoreError:
                await asyncio.sleep(RETRY_S)

    # ── the members ──────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self._look()
                if not self.without_vote:
                    await self._space.look()
            except StoreError:
                pass                # the overview says how old the rest is, too
            except OSError as error:
                self._log("warning", "", f"the members of etcd cannot be noted in {self._memory}: {error}", {})
            await asyncio.sleep(LOOK_S if self.votes else RETRY_S)

    async def _look(self) -> None:
        members = await self._store.members(local=True)
        healthy = await healthy_members(self._store, members, self._tls)
        self.votes = {called(member): Vote("learner" if member.learner else "voter", member.id in healthy)
                      for member in members}
        self._remember([url for member in members if member.name != self.joiner.name for url in member.peer_urls])
        if not self.without_vote and not self._entering:
            self._use([address_of(url) for member in members if member.name != self.joiner.name
                       and can_be_used(member) for url in member.client_urls])
        elif self.without_vote and not self._entering:
            # Members come and go, and this node must not be left with one that is gone.
            with contextlib.suppress(FluxError):
                self._store.set_endpoints(await self.joiner.clients())

    def _use(self, others: list[str]) -> None:
        """This member as long as it answers, then the others."""
        self._others = others
        if self._store.endpoints != (wanted := [self._own, *others]):
            self._store.set_endpoints(wanted)

    def _remember(self, urls: list[str]) -> None:
        self.joiner.others = list(dict.fromkeys([*urls, *self.joiner.others]))
        if urls == self._known:
            return
        draft = self._memory.with_suffix(".new")
        draft.write_text("".join(f"{url}\n" for url in urls), "ascii")
        draft.replace(self._memory)
        self._known = urls

    async def remove(self, name: str) -> None:
        """Takes the vote from a node, and its member out of etcd. Raises NotNow, StoreError."""
        members = await self._store.members()
        target = next((member for member in members if called(member) == name), None)
        if target is None:
            raise NotNow(f"etcd has no member {name}: its members are {', '.join(map(called, members))}")
        healthy = await healthy_members(self._store, members, self._tls)
        if why := why_not_remove(members, healthy, target):
            raise NotNow(why)
        # First, so that its node knows that somebody wants it so, and does not join anew.
        key = voteless_key(name)
        found = (await self._store.read(key)).items
        await self._store.transact([Compare(key, found[0].revision if found else 0)],
                                   [Change(key, self.joiner.name.encode())])
        await self._surely_remove(target.id)
        self._log("warning", "", "a member was removed from etcd", {"node": name, "member": f"{target.id:x}"})
        with contextlib.suppress(StoreError):
            await self._look()

    async def _surely_remove(self, member: int) -> None:
        """etcd refuses changes until all members that count have been connected for 5 s."""
        ends = time.monotonic() + REMOVE_S
        while True:
            try:
                await self._store.member_remove(member)
                return
            except EtcdError as error:
                # The member that answers may be the one that is removed, and end before it has.
                if error.sent and all(other.id != member for other in await self._store.members()):
                    return
                if error.cause is not Cause.UNHEALTHY or time.monotonic() > ends:
                    raise
                await asyncio.sleep(RETRY_S)

    async def why_not_leave(self, keep_vote: bool) -> str:
        """Why this node must not stop now: etcd would have no quorum without its member; "" if it may. keep_vote: the
        member stays one of the voters. Raises StoreError."""
        members = await self._store.members()
        own = self._find_own(members)
        if own is None:
            return ""
        healthy = await healthy_members(self._store, members, self._tls)
        return (why_not_pause if keep_vote else why_not_remove)(members, healthy, own)

    def _find_own(self, members: Sequence[Member]) -> Member | None:
        return None if self.without_vote else next((one for one in members if one.name == self.joiner.name), None)

    @property
    def can_go_on(self) -> bool:
        """Whether the node reaches etcd without its own member."""
        return bool(self._others)

    async def give_back(self) -> str:
        """This node leaves for good: its member is removed, if the quorum bears it. Returns a sentence with what came
        of it. Raises nothing."""
        self._leaves = True
        name = self.joiner.name
        try:
            own = self._find_own(await self._store.members())
            if own is None:
                return ""
            if why := await self.why_not_leave(keep_vote=False):
                raise NotNow(why)
            await self._surely_remove(own.id)
            rest = [member for member in await self._store.members() if member.id != own.id]
            text = f"{name} has given back its vote in etcd: {quorum_of(rest)}"
            self._log("info", "", text, {})
        except FluxError as error:
            self._leaves = False
            text = (f"{name} could not give back its vote in etcd ({error}). If it does not come back, on another "
                    f"node: fluxmq cluster voters remove {name}")
            self._log("warning", "", text, {})
        return text

    async def add(self) -> None:
        """Gives this node a vote. Raises NotNow if it has one, or does not get one soon: it goes on trying then."""
        name = self.joiner.name
        if self._entering:
            raise NotNow(f"node {name} is joining etcd: {self.joiner.waits or 'it has not caught up yet'}")
        if not self.without_vote:
            raise NotNow(f"node {name} has a member of etcd already")
        work = self._begin(self._failing(self._join()))
        await asyncio.wait({work}, timeout=ADD_S)
        if self.without_vote:
            raise NotNow(f"node {name} goes on trying to join etcd: "
                         f"{self.joiner.waits or 'it has not caught up yet'}; fluxmq cluster members shows it")
        with contextlib.suppress(StoreError):
            await self._look()
