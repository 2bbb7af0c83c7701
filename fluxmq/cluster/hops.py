"""The streams to the other nodes as the engine sees them: `engine.ports.cluster.Peers`."""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.targets import PeerHop
from fluxmq.cluster.peers import Peers

__all__ = ["Hops"]


class Hops:
    """peers: what a node has when it has joined."""

    def __init__(self, peers: Callable[[], Peers | None]) -> None:
        self._peers = peers

    def hop(self, node: str) -> PeerHop:
        """See the port."""
        peers = self._peers()
        if peers is None:
            raise UsageError(f"there is no node {node!r} before this one has joined")
        return peers.hop(node)

    def reference(self, node: str) -> str:
        """See the port."""
        peers = self._peers()
        return "" if peers is None else peers.reference(node)
