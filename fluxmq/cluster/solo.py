"""A node without others: the ports of `engine/ports/cluster.py`. This node owns everything at once; there is nothing to
announce or replicate."""
from __future__ import annotations

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.memory.commits import Line
from fluxmq.engine.ports.cluster import Cluster, Owner

__all__ = ["SoloDirectory", "SoloPeers", "SoloReplicator", "solo"]

_SELF = Owner("", 1)  # one object: a claim allocates nothing


class SoloDirectory:
    """A Directory."""

    node = _SELF.node

    def claim_session(self, namespace: bytes, client_id: bytes, clean_start: bool) -> Owner:
        return _SELF

    async def take_session(self, namespace: bytes, client_id: bytes, clean_start: bool) -> Owner:
        return _SELF

    def release_session(self, namespace: bytes, client_id: bytes) -> None:
        pass

    def claim_queue(self, namespace: bytes, name: bytes) -> Owner:
        return _SELF

    def release_queue(self, namespace: bytes, name: bytes) -> None:
        pass

    def announce(self, namespace: bytes, filter_: bytes, group: bytes = b"") -> None:
        pass

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes = b"") -> None:
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


def solo() -> Cluster:
    """What a standalone node has for a cluster."""
    return Cluster(SoloDirectory(), SoloPeers(), SoloReplicator())
