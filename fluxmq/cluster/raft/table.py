"""The replication groups of the cluster, as etcd has them, and which of them this node leads.

    the first queue of a group is declared ─► one transaction: number, incarnation, members ─► each of these nodes has a
                                                                                              replica ─► they elect one

    /mqtt/groups/<name>             JSON: see _Group; written once
    /mqtt/group-numbers/<number>    the name: a number is given to one group, and never again

From then on the group's own log is the truth of its members. Nothing that etcd loses ends a group or its queues: a node
goes on with what it has on its disk.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from fluxmq.cluster import keys
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.ports import Change, Compare, Event, Log, StoreError
from fluxmq.cluster.raft.groups import Leader, RaftGroups, Timing
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.entries import SpecError
from fluxmq.model.malformed import MALFORMED
from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec
from fluxmq.model.replication import (
    DEFAULT_GROUP,
    ReplicationSettings,
    alone_warning,
    group_members,
    replication_of,
)

__all__ = ["GroupTable", "GroupValue", "Member", "timing_of"]

NUMBERS = keys.ROOT + b"group-numbers/"
LOOK_S = 0.02


class Member(msgspec.Struct, frozen=True):
    """number: of its replica. node, disk: where that is, and was from the beginning."""

    number: Annotated[int, Meta(ge=1, lt=1 << 32)]
    node: str
    disk: str


class GroupValue(msgspec.Struct, frozen=True, kw_only=True):
    """number: of the group, in the cluster. incarnation: drawn when it was made. in_sync_min: what is acknowledged is
    on so many disks, or on those of a majority if these are more. members: that it has, or is to have. first: numbers
    of those with which it began; (): all. newest: the highest number that was given since; 0: none was."""

    number: Annotated[int, Meta(ge=1, lt=1 << 32)]
    incarnation: Annotated[int, Meta(ge=1)]
    in_sync_min: Annotated[int, Meta(ge=1)]
    members: tuple[Member, ...]
    first: tuple[int, ...] = ()
    newest: int = 0


def timing_of(settings: ReplicationSettings, name: str = DEFAULT_GROUP) -> Timing:
    """Of a group, as this node's configuration has it; of one that it does not know, as of the default one."""
    try:
        group = settings.group(name)
    except SpecError:
        group = settings.group()
    return Timing(group.heartbeat_s, group.election_s)


_group = msgspec.json.Decoder(GroupValue).decode


class GroupTable:
    """One per life of a node. serving: nodes that serve clients. draw: a number at random, 1 ≤ draw() < 2**63. limit_s:
    how long a new group may take."""

    def __init__(self, node: str, settings: ReplicationSettings, groups: RaftGroups, membership: Membership,
                 writer: Writer, driver: Driver, *, serving: Callable[[], list[str]], draw: Callable[[], int],
                 limit_s: float, log: Log) -> None:
        self.pending = False  # see AtEnd
        self.named: dict[str, GroupValue] = {}
        self.revisions: dict[str, int] = {}  # of their keys
        self.settings = settings
        self._node = node
        self._groups = groups
        self._membership = membership
        self._writer = writer
        self._driver = driver
        self._serving = serving
        self._draw = draw
        self._limit_s = limit_s
        self._log = log
        self._closed = False

    def close(self) -> None:
        """Nothing is tried again."""
        self._closed = True

    # ------------------------------------------------------------------ from the store

    def on_event(self, name: keys.Name, event: Event) -> None:
        """A change of a key of a group. One that is gone changes nothing: what there is, the disks have."""
        if event.value is None:
            return
        text = name.name.decode("utf-8", "replace")
        try:
            self.named[text] = _group(event.value)
        except MALFORMED as error:
            self._log("error", str(error), "a replication group cannot be read by this version: it is left out",
                      {"group": text, "why": str(error)})
            return
        self.revisions[text] = event.revision
        self.pending = True

    def on_batch(self) -> None:
        """See AtEnd."""
        self.pending = False
        if not self.settings.enabled:
            return
        own = self._node, self._membership.registration.identity
        for name, value in self.named.items():
            timing = timing_of(self.settings, name)
            self._groups.configure(value.number, timing, value.in_sync_min)
            number = next((one.number for one in value.members if (one.node, one.disk) == own), 0)
            if number and not self._groups.has(value.number):
                self._groups.add(value.number, value.incarnation, number,
                                 value.first or [one.number for one in value.members], timing, value.in_sync_min)
                self._log("info", "", "this node has a replica of a new group", {
                    "group": name, "nodes": ", ".join(one.node for one in value.members)})

    # ------------------------------------------------------------------ a new queue

    def name_of(self, spec: QueueSpec, declared: Declared | None) -> str:
        """Of the group that is to replicate a new queue; "": none is. Raises QueueRefused (invalid): it asks for what
        it cannot have."""
        try:
            found = replication_of(self.settings, spec, declared)
        except SpecError as error:
            raise QueueRefused("invalid", error.text) from None
        return "" if found is None else found.group

    async def ensure(self, name: str) -> int:
        """The number of a group, which has a leader; made if there is none of this name. Raises QueueRefused
        (unavailable)."""
        until = self._driver.now() + self._limit_s
        if name not in self.named:
            await self._make(name)
        while not self._closed and self._driver.now() < until:
            value = self.named.get(name)
            if value is not None and self._groups.leader(value.number).node:
                return value.number
            await self._driver.sleep(LOOK_S)
        value = self.named.get(name)
        if value is None:
            raise QueueRefused("unavailable", f"replication group {name} is being made, or this version cannot read "
                                              "what etcd has of it", "repeat it; this node's log says why it stays")
        nodes = ", ".join(one.node for one in value.members)
        raise QueueRefused("unavailable", f"replication group {name} has no leader: of its nodes ({nodes}) a majority "
                                          "must be there", "start those that are missing, and repeat it")

    def leader(self, group: int) -> Leader:
        """Who leads a group, as far as this node has heard."""
        return self._groups.leader(group)

    def nodes_of(self, group: int) -> list[str]:
        """The nodes for which a group was made."""
        return [one.node for value in self.named.values() if value.number == group for one in value.members]

    async def _make(self, name: str) -> None:
        known = self._membership.nodes
        serving = sorted(set(self._serving()) & known.keys(), key=lambda node: (node != self._node, node))
        try:
            group = self.settings.group(name)
            chosen = group_members(group.factor, group.min_in_sync, serving, group.peers,
                                   sorted(known.keys() - serving))
        except SpecError as error:
            raise QueueRefused("unavailable", error.text) from None
        if warning := alone_warning(name, group.factor, chosen):
            self._log("warning", "", warning, {"group": name})
        members = tuple(Member(number, node, known[node].registration.identity)
                        for number, node in enumerate(chosen, 1))
        taken = {value.number for value in self.named.values()} | self._groups.numbers()
        key = keys.group_key(name)
        for number in range(max(taken, default=0) + 1, 1 << 32):
            value = GroupValue(number=number, incarnation=self._draw(), members=members,
                               in_sync_min=min(group.min_in_sync, len(members)))
            number_key = NUMBERS + b"%d" % number
            try:
                result = await self._writer.change(
                    [Compare(key, 0), Compare(number_key, 0)],
                    [Change(key, msgspec.json.encode(value)), Change(number_key, name.encode())], self._limit_s)
            except StoreError as error:
                raise QueueRefused("unavailable", f"replication group {name} cannot be made: {error}") from error
            if result.done or result.found[0] is not None:
                return
