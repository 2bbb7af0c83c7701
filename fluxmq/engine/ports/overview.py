"""What operators see of a cluster, as a Protocol: `ClusterOverview`. Health port, admin socket and metrics ask it.

A node without others has `fluxmq.cluster.solo.SoloOverview`. All is called on the loop's thread. What is no coroutine
returns at once, from what the node knows: it answers without quorum too. The structs are what GET /cluster and the
admin socket send as JSON.
"""
from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

__all__ = ["ClusterOverview", "ClusterView", "LeavingView", "NodeView", "PeerView"]


class NodeView(Struct, frozen=True, kw_only=True):
    """A node, this one or another.

    address, port: where the other nodes dial it; "" and 0: unknown, or by itself. pid: its process; 0: unknown.
    epoch: of its present life; 0: it has no lease. leader: whether it is the cluster's. lease_left_ms: how long this
    node may serve without a further renewal; None for the others, who alone know. sessions: that it owns, connected or
    not. adopted: those of them that it has from a node that died, and whose client has not connected since. state:
    joining, serving (also without quorum), leaving, fenced (it has lost its lease), down (it is known from the
    configuration or as a member of etcd, and has no lease); of another node what that one has told this node. etcd:
    whether its member of etcd has a vote, is a learner, or there is none that this node knows of; etcd_healthy: whether
    that member answered when this node last looked; None without one.
    """

    id: str
    address: str = ""
    port: int = 0
    pid: int = 0
    epoch: int = 0
    leader: bool = False
    lease_left_ms: int | None = None
    state: Literal["joining", "serving", "leaving", "fenced", "down"] = "serving"
    version: str = ""
    sessions: int = 0
    adopted: int = 0
    etcd: Literal["voter", "learner", "none"] = "none"
    etcd_healthy: bool | None = None


class PeerView(Struct, frozen=True, kw_only=True):
    """What went between this node and another, since one of the two was started.

    connected: whether the streams of both directions are open. Batches, messages and bytes are those of the streams;
    messages counts publishes. credit_bytes: what may be sent before something is acknowledged. unacknowledged_bytes:
    sent, or waiting to be, and not acknowledged. errors: streams that broke or were refused, and calls that failed;
    last_error: the text of the last one.
    """

    node: str
    connected: bool
    batches_sent: int = 0
    batches_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    credit_bytes: int = 0
    unacknowledged_bytes: int = 0
    errors: int = 0
    last_error: str = ""


class ClusterView(Struct, frozen=True, kw_only=True):
    """A cluster as one of its nodes sees it.

    env: the identity of the cluster, the same on all of its nodes; "" by itself. local: the id of this node, which is
    in `nodes`. leader: the id of the leader; "" if there is none, or it is not known. revision: of etcd, up to which
    the caches of this node are complete. behind: how many revisions etcd was ahead of that when it last answered.
    retained_pending: topics whose retained message etcd does not have yet. retained_left_out: how often a subscriber
    was not sent a retained message, because no node that is there has its payload. share_in_doubt: QoS 2 messages of
    share groups that this node keeps until a node which is away, and may have delivered them, is back. share_repeated:
    those that another member got because that node stayed away. share_unwanted: messages for share groups that this
    node dropped because no member came.

    without_quorum_ms: for how long etcd has not renewed this node's lease, in the state without_quorum; 0 otherwise.
    quorum_lost: how often this node has served on without a quorum of etcd, since it has joined.

    degraded: what of this node does not work although it serves clients, a sentence each.

    state of this node: standalone (it is in no cluster); joining; serving; without_quorum (it serves, and etcd does not
    answer); leaving; fenced (it has lost its lease and serves nobody). reason: why, for the states in which something
    is wrong or going on; "" otherwise.
    """

    env: str
    nodes: tuple[NodeView, ...]
    local: str
    state: Literal["standalone", "joining", "serving", "without_quorum", "leaving", "fenced"]
    reason: str = ""
    leader: str = ""
    revision: int = 0
    behind: int = 0
    retained_pending: int = 0
    retained_left_out: int = 0
    share_in_doubt: int = 0
    share_repeated: int = 0
    share_unwanted: int = 0
    without_quorum_ms: int = 0
    quorum_lost: int = 0
    degraded: tuple[str, ...] = ()
    peers: tuple[PeerView, ...] = ()

    @property
    def own(self) -> NodeView:
        """This node."""
        return next(node for node in self.nodes if node.id == self.local)


class LeavingView(Struct, frozen=True, kw_only=True):
    """How far a node has come that leaves.

    node, state, reason: of this node, as in a ClusterView. sessions: that it still has to hand over. queues: that it
    still has to move. moved: how many have moved. queue, to: the one that is on its way, and its new node; "": none.
    ended: the time is over, or everything is done. stay: then the queues that stay with this node, and why. vote: what
    has become of its vote in etcd; "": it has none, or keeps it.
    """

    node: str
    state: str
    reason: str = ""
    sessions: int = 0
    queues: int = 0
    moved: int = 0
    queue: str = ""
    to: str = ""
    ended: bool = False
    stay: dict[str, str] = {}
    vote: str = ""


class ClusterOverview(Protocol):
    """Shows the cluster, changes who votes in etcd, and takes this node out of it."""

    def snapshot(self) -> ClusterView:
        """How things are now. Nodes and peers in the order of their names."""

    async def add_voter(self, node: str) -> None:
        """Gives a node a vote in etcd, that was there and has lost it; a node that joins does it by itself. Returns
        when it has it. Raises QueueRefused: conflict, it has one, or does not get one now; unavailable, etcd does not
        answer."""

    async def remove_voter(self, node: str) -> None:
        """Takes a node's vote in etcd, and removes its member. Raises QueueRefused: conflict, there is no such member,
        or without it etcd would lose its quorum; unavailable, etcd does not answer."""

    async def leave(self, keep_vote: bool = False) -> None:
        """Begins to leave: sessions are handed to other nodes, clients are told where to go, the node gives its vote in
        etcd back, then the process stops. keep_vote: it comes back, and its vote counts meanwhile. Returns when it has
        begun; snapshots say `leaving` from then on, with the number of sessions that are still here. Does nothing the
        second time.

        Raises QueueRefused: conflict, by itself or not joined, or without it etcd would lose its quorum; unavailable,
        nobody can take the sessions over, or etcd does not answer.
        """

    def leaving(self) -> LeavingView:
        """How far it has come. The process waits a moment until this was asked when it has ended."""
