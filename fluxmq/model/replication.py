"""Which queue is replicated, by which group, and how: what follows from `cluster.raft` and from what a queue says.

`replication_of` answers for a queue, `ReplicationSettings.group` for a group, `group_members` which nodes a new group
begins with. Nothing here knows nodes or groups that are there: all is decided from the arguments.
"""
from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from fluxmq.model.entries import SpecError
from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec
from fluxmq.model.raft import FACTOR_MAX, ClusterRaft, RaftGroup, RaftQueues
from fluxmq.model.units import format_duration

__all__ = ["DEFAULT_GROUP", "GroupSettings", "Replication", "ReplicationSettings", "alone_warning", "group_members",
           "replication_of", "sized_group"]

DEFAULT_GROUP = "default"
HEARTBEAT_MIN_S = 0.1  # a tick
BROKER_NAMED = (b"amq.gen-", b"$", b"amq.rabbitmq.reply-to")
_SIZED = re.compile(rf"{DEFAULT_GROUP}-r([1-9]|{FACTOR_MAX})", re.ASCII)
_SIZE = "x-quorum-initial-group-size"
_FACTOR = "replication.replication_factor"


class GroupSettings(NamedTuple):
    """A group, with all that it inherits. factor: replicas. min_in_sync: of these, that must have an entry. sync:
    confirm when they have it, not when the leader has it. peers: nodes that may have replicas; (): any. shards: Raft
    groups that it consists of. Times in seconds."""

    name: str
    factor: int
    min_in_sync: int
    sync: bool
    ack_timeout_s: float
    heartbeat_s: float
    election_s: float
    peers: tuple[str, ...] = ()
    shards: int = 1


class Replication(NamedTuple):
    """How a queue is replicated. group: its name. shard: which of the group's Raft groups, from 0 on. The others: as in
    GroupSettings, of this queue."""

    group: str
    shard: int
    factor: int
    min_in_sync: int
    sync: bool
    ack_timeout_s: float


class ReplicationSettings(NamedTuple):
    """raft: the section `cluster.raft`. clustered: cluster.enabled."""

    raft: ClusterRaft = ClusterRaft()
    clustered: bool = False

    @property
    def enabled(self) -> bool:
        """Whether this node replicates queues."""
        return self.clustered and self.raft.enabled

    def group(self, name: str = DEFAULT_GROUP) -> GroupSettings:
        """Raises SpecError for a group that there may not be."""
        if sized := _SIZED.fullmatch(name):
            factor = int(sized[1])
            base = self.group()
            return base._replace(name=name, factor=factor, min_in_sync=min(base.min_in_sync, factor))
        said = self.raft.groups.get(name)
        if said is None and name != DEFAULT_GROUP and not self.raft.auto_provision_groups:
            known = ", ".join(sorted({DEFAULT_GROUP, *self.raft.groups}))
            raise SpecError("replication.group", (
                f"there is no replication group {name}, only {known}: add it to cluster.raft.groups, or set "
                "cluster.raft.auto_provision_groups: true"))
        if said is not None and not said.enabled:
            raise SpecError("replication.group", f"the replication group {name} is off: set cluster.raft.groups.{name}."
                                                 "enabled: true, or name another")
        return self._inherited(name, said or RaftGroup())

    def _inherited(self, name: str, said: RaftGroup) -> GroupSettings:
        base = self.raft
        return GroupSettings(
            name, said.replication_factor or base.replication_factor,
            said.min_in_sync_replicas or base.min_in_sync_replicas,
            base.sync_mode if said.sync_mode is None else said.sync_mode, said.ack_timeout or base.ack_timeout,
            said.heartbeat_timeout or base.heartbeat_timeout, said.election_timeout or base.election_timeout,
            said.peers or base.peers, said.shards)

    def problems(self) -> Iterator[tuple[str, str]]:
        """(path of a key of the configuration, what is wrong with it and what to write) of settings that do not fit
        together."""
        yield from _problems("cluster.raft.", self._inherited(DEFAULT_GROUP, RaftGroup()))
        base = {text for _, text in _problems("", self._inherited(DEFAULT_GROUP, RaftGroup()))}
        for name, said in self.raft.groups.items():
            for path, text in _problems(f"cluster.raft.groups.{name}.", self._inherited(name, said)):
                if text not in base:  # otherwise it is inherited, and said there
                    yield path, text
        for at, pattern in enumerate(self.raft.queues):
            try:
                self.group(pattern.group or DEFAULT_GROUP)
            except SpecError as error:
                yield f"cluster.raft.queues[{at}].group", error.text

    def pattern_for(self, spec: QueueSpec) -> RaftQueues | None:
        """The first entry of cluster.raft.queues that matches the queue."""
        for one in self.raft.queues:
            if one.namespace in ("", spec.namespace) and _regular(one.pattern).fullmatch(spec.name):
                return one
        return None


def _problems(path: str, group: GroupSettings) -> Iterator[tuple[str, str]]:
    if group.min_in_sync > group.factor:
        yield f"{path}min_in_sync_replicas", (
            f"{group.min_in_sync} replicas are to be in sync, and replication_factor is {group.factor}: no publish "
            f"would be confirmed. Set it to {group.factor} at most, or replication_factor to {group.min_in_sync}")
    if group.heartbeat_s < HEARTBEAT_MIN_S:
        yield f"{path}heartbeat_timeout", (
            f"{format_duration(group.heartbeat_s)} is shorter than {format_duration(HEARTBEAT_MIN_S)}, in which groups "
            "count time")
    if group.election_s < 2 * group.heartbeat_s:
        yield f"{path}election_timeout", (
            f"{format_duration(group.election_s)} is less than twice heartbeat_timeout, "
            f"{format_duration(group.heartbeat_s)}: one lost heartbeat would cause an election. Set it to "
            f"{format_duration(2 * group.heartbeat_s)} or more, or heartbeat_timeout to "
            f"{format_duration(group.election_s / 2)} or less")
    if group.peers and len(group.peers) < group.min_in_sync:
        yield f"{path}peers", (
            f"{', '.join(group.peers)}: fewer nodes than min_in_sync_replicas, {group.min_in_sync}. Name more, or set "
            "that lower")


@cache
def _regular(pattern: str) -> re.Pattern[str]:
    """* stands for any characters, ? for any one."""
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern), re.DOTALL)


def sized_group(size: int) -> str:
    """The name of the group for queues that ask for another number of replicas than default has."""
    return f"{DEFAULT_GROUP}-r{size}"


def replication_of(settings: ReplicationSettings, spec: QueueSpec,
                   declared: Declared | None = None) -> Replication | None:
    """How a queue is replicated; None: it is not. spec: of the whole queue, if it is divided. declared: as AMQP
    declared it, with values as read or as kept; None: by the configuration or an operator.

    Raises SpecError, whose text says what is wrong and what to do: it asks for replication and cannot have it."""
    said = spec.replication
    quorum = declared is not None and declared.arguments.get("x-queue-type") in ("quorum", b"quorum")
    asked = bool(said.enabled) or (quorum and settings.enabled)
    if said.enabled is False or not (asked or settings.enabled):
        return None
    unfit, pattern = _unfit(spec, declared), settings.pattern_for(spec)
    if not asked and (unfit or pattern is None):
        return None
    if not settings.enabled:
        key = "cluster.raft.enabled" if settings.clustered else "cluster.enabled and cluster.raft.enabled"
        raise SpecError("replication.enabled", f"nothing is replicated here: set {key} to true, or leave replication "
                                               "out")
    if unfit:
        raise SpecError("x-queue-type" if quorum else "replication.enabled", f"{spec.shown} cannot be replicated: "
                                                                             f"{unfit}")
    return _of_group(settings, spec, declared, said.group or (pattern.group if pattern is not None else ""))


def _unfit(spec: QueueSpec, declared: Declared | None) -> str:
    """Why a queue can have no replicas; "" if it can."""
    if declared is not None:
        if declared.exclusive:
            return "it is exclusive, and ends with its connection; declare it without exclusive"
        if declared.auto_delete:
            return "it is auto-delete, and ends with its last consumer; declare it without auto-delete"
        if not declared.durable:
            return "it is not durable; declare it durable"
    if spec.type == "ephemeral":
        return "it is ephemeral, in one node's memory; make it classic"
    if spec.raw.startswith(BROKER_NAMED[1:] if declared is None else BROKER_NAMED):
        return "the broker gave it its name, which only one connection knows; declare it with a name"
    return ""


def _of_group(settings: ReplicationSettings, spec: QueueSpec, declared: Declared | None, name: str) -> Replication:
    said = spec.replication
    group = settings.group(name or DEFAULT_GROUP)
    path, size = _size_asked(spec, declared)
    if size is not None and size != group.factor:
        if not 1 <= size <= FACTOR_MAX:
            raise SpecError(path, f"{size} replicas are not possible: from 1 to {FACTOR_MAX}")
        if name not in ("", DEFAULT_GROUP):
            raise SpecError(path, (
                f"{size} replicas, and the replication group {group.name} has {group.factor}: leave the number out, or "
                f"the group, or set cluster.raft.groups.{group.name}.replication_factor"))
        group = settings.group(sized_group(size))
    least = said.min_in_sync_replicas or group.min_in_sync
    if least > group.factor:
        raise SpecError("replication.min_in_sync_replicas", (
            f"{least} is more than the replicas of group {group.name}, {group.factor}: no publish would be confirmed"))
    return Replication(
        group.name, zlib.crc32(b"\0".join(spec.address)) % group.shards, group.factor, least,
        said.mode == "sync" if said.mode else group.sync, said.ack_timeout or group.ack_timeout_s)


def _size_asked(spec: QueueSpec, declared: Declared | None) -> tuple[str, int | None]:
    """(the key that asks, how many replicas); None: it does not say."""
    if declared is not None and isinstance(size := declared.arguments.get(_SIZE), int):
        return _SIZE, size
    return _FACTOR, spec.replication.replication_factor or None


def group_members(factor: int, min_in_sync: int, serving: Sequence[str], peers: Collection[str] = (),
                  away: Collection[str] = ()) -> list[str]:
    """The nodes that a new group begins with: the first `factor` of `serving`, which are in the order in which they are
    to have the group. peers: only these; (): any. away: nodes that are known and do not serve.

    A node that is alone, with nobody away, has the one replica of the group (alone_warning). Raises SpecError, with the
    names of the nodes, for fewer nodes than min_in_sync."""
    may = [name for name in serving if not peers or name in peers]
    members = may[:factor]
    if len(members) >= min_in_sync or (members and len(serving) == 1 and not away):
        return members
    told = [f"serving: {', '.join(may) or 'none'}"]
    if out := [name for name in away if not peers or name in peers]:
        told.append(f"away: {', '.join(out)}")
    if beyond := [name for name in serving if name not in may]:
        told.append(f"not among the peers of the group: {', '.join(beyond)}")
    raise SpecError("replication", (
        f"{min_in_sync} replicas must be in sync, and there are too few nodes for them ({'; '.join(told)}): start more "
        "nodes, or set min_in_sync_replicas lower"))


def alone_warning(group: str, factor: int, members: Sequence[str]) -> str:
    """A line for the log about a group that begins with one replica although it is to have more; "" otherwise."""
    if len(members) != 1 or factor == 1:
        return ""
    return (f"the replication group {group} has one replica of {factor}, at {members[0]}: until other nodes come, what "
            "it confirms is lost with that node's disk")
