"""The section `cluster.raft` of the configuration, and `replication` of a queue, as a user writes them.

What follows from both for a queue is in replication.py. Keys that other versions have and that mean nothing here are
taken, so that a file of theirs is read as it stands: WITHOUT_EFFECT says why, and a start warns of those that are set.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from fluxmq.model.entries import SpecError, read_list, read_struct, write_struct
from fluxmq.model.listeners import Seconds

__all__ = [
    "FACTOR_MAX", "GROUP_NAME", "NODE_NAME", "QUEUE_KEYS_REFUSED", "WITHOUT_EFFECT", "ClusterRaft", "QueueReplication",
    "RaftGroup", "RaftQueues", "group_name_problem", "read_groups", "read_patterns", "read_peers", "write_groups",
    "write_patterns",
]

FACTOR_MAX = 10  # replicas of a group
GROUP_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
NODE_NAME = GROUP_NAME
SIZED = re.compile(r"default-r[0-9]+", re.ASCII)

# Key, of cluster.raft and of a group → why it has no effect.
WITHOUT_EFFECT: Mapping[str, str] = {
    "bind_addr": "all groups share the transport of the nodes, cluster.transport.bind_addr",
    "data_dir": "the log of every group is in the node's one journal, in storage.dir",
    "snapshot_interval": "a checkpoint bounds the log of every group, as it bounds the journal: "
                         "storage.journal_file_size",
    "snapshot_threshold": "a checkpoint bounds the log of every group, as it bounds the journal: "
                          "storage.journal_file_size",
}
_TIMING = "belongs to the queue's group: set it in cluster.raft.groups.<group>, or in cluster.raft for all groups"
QUEUE_KEYS_REFUSED: Mapping[str, str] = {
    "replication.heartbeat_timeout": _TIMING, "replication.election_timeout": _TIMING,
    **{f"replication.{name}": f"has no effect: {WITHOUT_EFFECT[name]}. Leave it out"
       for name in ("snapshot_interval", "snapshot_threshold")},
}

_INHERITS = " 0: as in cluster.raft."
_NO_EFFECT = "Taken, and without effect: "
_ADDRESS = Annotated[str, Meta(max_length=4096, description=f"{_NO_EFFECT}{WITHOUT_EFFECT['bind_addr']}.")]
_DIRECTORY = Annotated[str, Meta(max_length=4096, description=f"{_NO_EFFECT}{WITHOUT_EFFECT['data_dir']}.")]
_INTERVAL = Annotated[Seconds, Meta(description=f"{_NO_EFFECT}{WITHOUT_EFFECT['snapshot_interval']}.")]
_THRESHOLD = Annotated[int, Meta(ge=0, le=1 << 53, description=(
    f"{_NO_EFFECT}{WITHOUT_EFFECT['snapshot_threshold']}."))]
_PEERS = Meta(extra={"kind": "nodes", "allowed": "names of nodes, as a list or as {name: address}; only names count"},
              description=(
    "The nodes that may have replicas, by cluster.node_id. Name all of them, this one too; the nodes find each other's "
    "addresses themselves. Empty: any node"))


class RaftGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replication group: its own leader, its own log. What it leaves out, or has as 0, is as in cluster.raft."""

    enabled: Annotated[bool, Meta(description=(
        "false: a queue that names this group is refused. The group default is always on."))] = True
    shards: Annotated[int, Meta(ge=1, le=64, description=(
        "Raft groups that it consists of; its queues are divided over them by name. Each has a leader, which is "
        "one node's core: more shards, more nodes that work. Cannot be changed."))] = 1
    replication_factor: Annotated[int, Meta(ge=0, le=FACTOR_MAX, description=(
        f"Replicas, on as many nodes.{_INHERITS}"))] = 0
    min_in_sync_replicas: Annotated[int, Meta(ge=0, le=FACTOR_MAX, description=(
        f"Replicas that must have a message on their disks before it is confirmed, if that is more than a majority."
        f"{_INHERITS}"))] = 0
    sync_mode: Annotated[bool | None, Meta(description=(
        "true: confirmed when the replicas have it; false: when the leader has it. Unset: as in cluster.raft."
    ))] = None
    ack_timeout: Annotated[Seconds, Meta(le=3600, description=(
        f"How long a publish waits for its confirmation; then it is refused as unknown.{_INHERITS}"))] = 0.0
    heartbeat_timeout: Annotated[Seconds, Meta(le=60, description=f"Between two heartbeats.{_INHERITS}")] = 0.0
    election_timeout: Annotated[Seconds, Meta(le=600, description=(
        f"Without a heartbeat for this time a replica stands for election.{_INHERITS}"))] = 0.0
    peers: Annotated[tuple[str, ...], Meta(
        extra=_PEERS.extra, description=f"{_PEERS.description}; but cluster.raft.peers count.")] = ()
    bind_addr: _ADDRESS = ""
    data_dir: _DIRECTORY = ""
    snapshot_interval: _INTERVAL = 0.0
    snapshot_threshold: _THRESHOLD = 0


class RaftQueues(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Queues that are replicated without saying so themselves: those whose name and namespace match. Exclusive,
    auto-delete, non-durable and ephemeral queues and those that the broker names are not among them."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200, description=(
        "Names of queues; * stands for any characters, ? for any one."))] = "*"
    namespace: Annotated[str, Meta(max_length=255, description="The namespace that they are in. Empty: any.")] = ""
    group: Annotated[str, Meta(max_length=64, description="Their replication group. Empty: default.")] = ""


class ClusterRaft(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Queues replicated by Raft groups, and how queues are spread over nodes. What is said here of a group holds for
    all groups that do not say it themselves."""

    enabled: Annotated[bool, Meta(description=(
        "Replicate the queues that say so: by `replication` of the queue, by `x-queue-type: quorum` of AMQP, by "
        "cluster.raft.queues. Needs cluster.enabled. Not in this version yet: a node of a cluster that has it does not "
        "start."))] = False
    auto_provision_groups: Annotated[bool, Meta(description=(
        "Make a group that a queue names and that is not in groups, with the settings here. false: such a queue is "
        "refused."))] = True
    replication_factor: Annotated[int, Meta(ge=1, le=FACTOR_MAX, description=(
        "Replicas of a group, on as many nodes."))] = 3
    sync_mode: Annotated[bool, Meta(description=(
        "true: a publish is confirmed when a majority of the replicas, and at least min_in_sync_replicas, have it on "
        "their disks. false: when the leader has it on its disk; it may be lost with that. Deliveries wait for the "
        "majority in both cases."))] = True
    min_in_sync_replicas: Annotated[int, Meta(ge=1, le=FACTOR_MAX, description=(
        "Replicas that must have a message on their disks before it is confirmed, if that is more than a majority; "
        "with fewer in sync a publish is refused. At most replication_factor."))] = 2
    ack_timeout: Annotated[Seconds, Meta(ge=0.001, le=3600, description=(
        "How long a publish waits for its confirmation; then it is refused as unknown: it may be there, once."))] = 5.0
    write_policy: Annotated[Literal["forward", "local", "reject"], Meta(description=(
        "What a node does with a publish to a queue that another node has, or leads: forward it; reject it with an "
        "error that names that node and its address; local, of a replicated queue: confirm it from this node's own "
        "disk and forward it when possible, so that it is lost with that disk (other queues: as forward). What "
        "captures a topic without holding its publisher up is always forwarded."))] = "forward"
    distribution_mode: Annotated[Literal["forward"], Meta(
        extra={"allowed": "only forward, in this version"},
        description="Who delivers the messages of a replicated queue: forward, the leader of its group.")] = "forward"
    heartbeat_timeout: Annotated[Seconds, Meta(ge=0.1, le=60, description=(
        "Between two heartbeats of a leader. Whole tenths of a second count."))] = 1.0
    election_timeout: Annotated[Seconds, Meta(ge=0.2, le=600, description=(
        "Without a heartbeat for this time a replica stands for election; at least twice heartbeat_timeout. Shorter: "
        "another leader sooner, and more elections when machines stall."))] = 3.0
    peers: Annotated[tuple[str, ...], Meta(extra=_PEERS.extra, description=f"{_PEERS.description}.")] = ()
    groups: Annotated[dict[str, RaftGroup], Meta(extra={"kind": "groups", "allowed": (
        "name: settings of each group, such as {hot: {replication_factor: 5}}")}, description=(
        "Replication groups by name; default is that of queues which name none."))] = {}
    queues: Annotated[tuple[RaftQueues, ...], Meta(extra={"kind": "patterns"}, description=(
        "Queues that are replicated by their name or namespace, unless they say `replication: {enabled: false}`; the "
        "first entry that matches counts."))] = ()
    bind_addr: _ADDRESS = ""
    data_dir: _DIRECTORY = ""
    snapshot_interval: _INTERVAL = 300.0
    snapshot_threshold: _THRESHOLD = 8192


class QueueReplication(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replication of a queue by a group of nodes: what it does not say, its group says."""

    enabled: Annotated[bool | None, Meta(description=(
        "true: replicated, which needs cluster.raft.enabled; false: not. Unset: if cluster.raft.queues says so."
    ))] = None
    group: Annotated[str, Meta(max_length=64, description=(
        "The replication group, of cluster.raft.groups. Empty: as cluster.raft.queues says, or default. Declare "
        "another queue to change it."))] = ""
    replication_factor: Annotated[int, Meta(ge=0, le=FACTOR_MAX, description=(
        "Replicas. 0: as the group has. Another number than that is for queues which name no group: they are in a "
        "group of that size, default-r<number>."))] = 0
    mode: Annotated[Literal["", "sync", "async"], Meta(description=(
        "sync: a publish is confirmed when the replicas have it; async: when the leader has it. Empty: as the group."
    ))] = ""
    min_in_sync_replicas: Annotated[int, Meta(ge=0, le=FACTOR_MAX, description=(
        "Replicas that must have a message before it is confirmed, if that is more than a majority. 0: as the group."
    ))] = 0
    ack_timeout: Annotated[Seconds, Meta(le=3600, description=(
        "How long a publish waits for its confirmation. 0: as the group."))] = 0.0


def group_name_problem(name: str) -> str:
    """What is wrong with the name of a group; "" for nothing."""
    return "" if GROUP_NAME.fullmatch(name) else "has other characters than letters, digits, '.', '_', '-', or not 1 " \
                                                 "to 64 of them"


def read_peers(given: object, path: str = "") -> tuple[str, ...]:
    """Names of nodes, each once, from a list of them or from a map of names to addresses. path: of the key. Raises
    ValueError for what is neither, SpecError for what is no name."""
    names = list(given) if isinstance(given, list | tuple | Mapping) else [] if given is None else None
    if names is None:
        raise ValueError("")
    for at, name in enumerate(names):
        if not isinstance(name, str) or not NODE_NAME.fullmatch(name):
            where = f".{name}" if isinstance(given, Mapping) else f"[{at}]"
            raise SpecError(f"{path}{where}", f"{name!r} is no name of a node: it has letters, digits, '.', '_' and "
                                              "'-', at most 64")
    return tuple(dict.fromkeys(names))


def read_groups(given: object) -> dict[str, RaftGroup]:
    """The map under `cluster.raft.groups`. Raises ValueError for what is no map, SpecError for what is wrong in it."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError("")
    return {str(name): one if isinstance(one, RaftGroup) else _read_group(str(name), one)
            for name, one in given.items()}


def _read_group(name: str, given: object) -> RaftGroup:
    path = f".{name}"
    if problem := group_name_problem(name):
        raise SpecError(path, f"{name!r} {problem}")
    if SIZED.fullmatch(name):
        raise SpecError(path, "the name is that of the group of queues which ask for so many replicas: it is made when "
                              "it is needed, with the settings of default. Take another name")
    entry = {} if given is None else dict(given) if isinstance(given, Mapping) else given
    if isinstance(entry, dict) and "peers" in entry:
        try:
            entry["peers"] = read_peers(entry["peers"], f"{path}.peers")
        except SpecError:
            raise
        except ValueError:
            raise SpecError(f"{path}.peers", "names of nodes are expected, as a list or as {name: address}") from None
    group = read_struct(RaftGroup, entry, f"{path}.", what="group")
    assert isinstance(group, RaftGroup)
    if name == "default" and not group.enabled:
        raise SpecError(f"{path}.enabled", "the group default is always on, for queues that name none: leave it out, "
                                           "or replicate nothing with cluster.raft.enabled: false")
    return group


def read_patterns(given: object) -> tuple[RaftQueues, ...]:
    """The list under `cluster.raft.queues`; an entry may be a pattern alone. Raises ValueError for what is no list,
    SpecError for what is wrong in it."""
    return read_list(given, lambda entry, path: entry if isinstance(entry, RaftQueues) else _read_pattern(entry, path),
                     lambda one: ((one.namespace, one.pattern), one.pattern), key="pattern")


def _read_pattern(given: object, path: str) -> RaftQueues:
    one = read_struct(RaftQueues, {"pattern": given} if isinstance(given, str) else given, path, what="entry")
    assert isinstance(one, RaftQueues)
    if one.group and (problem := group_name_problem(one.group)):
        raise SpecError(f"{path}group", f"{one.group!r} {problem}")
    return one


def write_groups(groups: Mapping[str, RaftGroup]) -> dict[str, Any]:
    """As a user would write them: what differs from the defaults."""
    return {name: write_struct(group, RaftGroup()) for name, group in groups.items()}


def write_patterns(patterns: tuple[RaftQueues, ...]) -> list[dict[str, Any]]:
    """As a user would write them."""
    return [write_struct(one, RaftQueues(), "pattern") for one in patterns]
