"""The leader of a group brings its replicas to as many as it is to have, one change at a time.

    a node serves that has none ─► a number, in etcd ─► that node has a replica ─► learner ─► in step ─► voter
    a node is back with another disk, or away for long ─► the same ─► its former replica is removed when enough others
                                                                      are there

A number is given once: it is written to etcd before the group hears of it, and it is higher than any that the group has
had. What a member is, the group's log says; etcd has a copy, by which nodes know that they are to have a replica.
"""
from __future__ import annotations

from collections.abc import Callable

import msgspec

from fluxmq.cluster import keys
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.ports import Change, Compare, Log, StoreError
from fluxmq.cluster.raft.group import ReplicatedGroup
from fluxmq.cluster.raft.groups import RaftGroups
from fluxmq.cluster.raft.table import GroupTable, GroupValue, Member
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.entries import SpecError

__all__ = ["Growing"]

PERIOD_S = 1.0
AWAY_S = 600.0  # after which a node is not waited for, where another one can have its replica
STEP_ENTRIES = 100  # a learner that lacks no more of them may vote
LIMIT_S = 5.0


class Growing:
    """Machine. One per life of a node. serving: nodes that serve clients. log: as Broker's on_log."""

    def __init__(self, groups: RaftGroups, table: GroupTable, membership: Membership, writer: Writer, driver: Driver, *,
                 serving: Callable[[], list[str]], log: Log) -> None:
        self._groups = groups
        self._table = table
        self._membership = membership
        self._writer = writer
        self._driver = driver
        self._serving = serving
        self._log = log
        self._away: dict[tuple[int, int], float] = {}  # group and number of a replica: since when its node is
        self._closed = False

    def close(self) -> None:
        """Nothing is changed any more."""
        self._closed = True

    async def keep(self) -> None:
        """Looks at the groups that this node leads, until close()."""
        while not self._closed:
            await self._driver.pace(PERIOD_S)
            for name, value in list(self._table.named.items()):
                group = self._groups.groups.get(value.number)
                if group is not None and group.leads and group.raft.log.members_at(group.raft.commit) == (
                        group.raft.voters, group.raft.learners):
                    await self._look(name, value, group)

    async def _look(self, name: str, value: GroupValue, group: ReplicatedGroup) -> None:
        """One step, when the one before it is committed."""
        raft, lives = group.raft, self._lives(value)
        voters, learners = raft.voters, raft.learners
        try:
            settings = self._table.settings.group(name)
        except SpecError:
            return                      # this node's configuration has it no more: another leader may know what to do
        for replica in raft.replicas:
            if replica.number in learners and replica.number in lives and replica.pace_name == "REPLICATE" \
                    and replica.match + STEP_ENTRIES >= raft.log.last_index:
                self._change(name, group, voters | {replica.number}, learners - {replica.number})
                return
        coming = [number for number in lives - voters - learners if self._groups.node_of(value.number, number)]
        if coming:
            self._change(name, group, voters, learners | {min(coming)})
            return
        lost = {one.number for one in value.members if self._is_lost(value.number, one)}
        nodes = {one.node for one in value.members if one.number not in lost}
        others = [node for node in sorted(self._serving()) if node not in nodes and node in self._membership.nodes
                  and (not settings.peers or node in settings.peers)]
        stale = [one for one in value.members if one.number in lost and one.number not in voters | learners]
        if stale or (others and len(nodes) < settings.factor):
            await self._reserve(name, value, group, others[0] if others and len(nodes) < settings.factor else "", stale,
                                settings.min_in_sync)
            return
        kept = {raft.own, *(one.number for one in value.members if one.number not in lost)}
        gone = sorted((voters | learners) - kept)
        if gone and (gone[0] in learners or len(voters & lives) >= min(settings.factor, len(nodes))):
            self._change(name, group, voters - {gone[0]}, learners - {gone[0]})

    def _lives(self, value: GroupValue) -> frozenset[int]:
        """Replicas whose node has a lease, with the disk on which they are."""
        return frozenset(one.number for one in value.members if self._disk_of(one.node) == one.disk)

    def _is_lost(self, group: int, member: Member) -> bool:
        """Whether its node is there with another disk, or has been away for long."""
        disk, at = self._disk_of(member.node), (group, member.number)
        if disk:
            self._away.pop(at, None)
            return disk != member.disk
        return self._driver.now() - self._away.setdefault(at, self._driver.now()) > AWAY_S

    def _disk_of(self, node: str) -> str:
        known = self._membership.nodes.get(node)
        return known.registration.identity if known is not None else ""

    def _change(self, name: str, group: ReplicatedGroup, voters: frozenset[int], learners: frozenset[int]) -> None:
        if group.raft.change_members(voters, learners):
            self._groups.note_due(group.replica.group)
            self._log("info", "", "the replicas of a group change", {
                "group": name, "voters": sorted(voters), "learners": sorted(learners)})

    async def _reserve(self, name: str, value: GroupValue, group: ReplicatedGroup, node: str, stale: list[Member],
                       in_sync_min: int) -> None:
        """In etcd: a number for a replica at this node, if it is named; without those that have gone."""
        raft, key = group.raft, keys.group_key(name)
        number = max(value.newest, *(one.number for one in value.members), *raft.voters, *raft.learners) + 1
        members = tuple(one for one in value.members if one not in stale)
        if node:
            members += Member(number, node, self._disk_of(node)),
        count = len(raft.voters | {one.number for one in members})
        changed = msgspec.structs.replace(
            value, members=members, newest=number if node else value.newest, first=value.first or tuple(
                one.number for one in value.members), in_sync_min=min(in_sync_min, count))
        try:
            await self._writer.change([Compare(key, self._table.revisions[name])],
                                      [Change(key, msgspec.json.encode(changed))], LIMIT_S)
        except StoreError:
            return                      # the next time
