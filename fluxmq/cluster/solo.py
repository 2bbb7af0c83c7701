"""A node without others: the ports of `engine/ports/cluster.py` and `overview.py`. This node owns everything at once;
there is nothing to announce or replicate."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.memory.commits import Line
from fluxmq.engine.ports.accounts import Permission, PermissionRule, UserChange, UserInfo
from fluxmq.engine.ports.cluster import Cluster, Owner
from fluxmq.engine.ports.definitions import FIRST, Placement
from fluxmq.engine.ports.overview import ClusterView, LeavingView, NodeView
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.sessions.state import Will

__all__ = ["SoloAccounts", "SoloDirectory", "SoloOverview", "SoloPeers", "SoloReplicator", "solo"]

_SELF = Owner("", 1)  # one object: a claim allocates nothing


class SoloDirectory:
    """A Directory."""

    node = _SELF.node
    definer = None

    def claim_session(self, namespace: bytes, client_id: bytes, clean_start: bool) -> Owner:
        return _SELF

    async def take_session(self, namespace: bytes, client_id: bytes, clean_start: bool, asked_ms: int) -> Owner:
        return _SELF

    def release_session(self, namespace: bytes, client_id: bytes) -> None:
        pass

    def kept_changed(self, namespace: bytes, client_id: bytes, filter_: bytes | None = b"") -> None:
        pass

    def will_changed(self, namespace: bytes, client_id: bytes, will: Will | None, expiry_s: int,
                     since: int) -> None:
        pass

    def place_queue(self, namespace: bytes, name: bytes) -> Placement:
        return FIRST

    def announce(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        pass

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        pass

    def members_connected(self, namespace: bytes, filter_: bytes, group: bytes, change: int) -> None:
        pass


class SoloPeers:
    """Peers."""

    def hop(self, node: str) -> PeerHop:
        raise UsageError(f"there is no node {node!r}: this one is by itself")

    def reference(self, node: str) -> str:
        return ""


class SoloReplicator:
    """A Replicator."""

    def line_of_queue(self, namespace: bytes, name: bytes, durable: bool) -> Line | None:
        return None

    def group_of_queue(self, namespace: bytes, name: bytes) -> int:
        return 0


class SoloOverview:
    """A ClusterOverview of one node. name, version: what to show. sessions: their number, asked for each time."""

    def __init__(self, name: str, pid: int, version: str, sessions: Callable[[], int]) -> None:
        self._name, self._pid, self._version = name, pid, version
        self._sessions = sessions

    def snapshot(self) -> ClusterView:
        node = NodeView(id=self._name, pid=self._pid, version=self._version, sessions=self._sessions())
        return ClusterView(env="", nodes=(node,), local=self._name, state="standalone")

    async def add_voter(self, node: str) -> None:
        raise QueueRefused("conflict", "this broker is by itself: it has no etcd", "cluster.enabled makes it a node")

    async def remove_voter(self, node: str) -> None:
        await self.add_voter(node)

    async def leave(self, keep_vote: bool = False) -> None:
        self.leaving()

    def leaving(self) -> LeavingView:
        raise QueueRefused("conflict", "this broker is by itself: there is no cluster that it could leave",
                           "SIGTERM stops it")


class SoloAccounts:
    """An AccountsPort of a node whose users are in a file."""

    users_used = permissions_used = False

    def users(self) -> Sequence[UserInfo]:
        raise QueueRefused("conflict", "this broker is by itself: its users are those of auth.users_file",
                           "say which file: --file FILE")

    def permissions(self) -> Sequence[Permission]:
        raise QueueRefused("conflict", "this broker is by itself: its permissions are those of auth.acl_file",
                           "edit that file, and send SIGHUP to the broker")

    async def set_permission(self, namespace: str, user: str, rules: Sequence[PermissionRule]) -> dict[str, Any]:
        self.permissions()
        return {}

    async def remove_permission(self, namespace: str, user: str) -> dict[str, Any]:
        self.permissions()
        return {}

    async def put_users(self, changes: Sequence[UserChange]) -> dict[str, Any]:
        self.users()
        return {}

    async def remove_user(self, name: str) -> dict[str, Any]:
        self.users()
        return {}


def solo() -> Cluster:
    """What a standalone node has for a cluster."""
    return Cluster(SoloDirectory(), SoloPeers(), SoloReplicator())
