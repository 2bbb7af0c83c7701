"""One node asks another to get a vote in etcd: the call "vote". How it gets one: etcd/own_member.py."""
from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from fluxmq._core.errors import FluxError
from fluxmq.cluster.membership import Membership, dial_address
from fluxmq.cluster.ports import CallFailed, Transport

__all__ = ["VOTE", "Votes"]

VOTE = "vote"  # method of Transport.call; its body is the name of the cluster
CALL_S = 25.0  # longer than the other node tries


class Votes:
    """Both sides. on_asked: gets a vote for this node, and returns when it has it; None: it has no member of etcd.
    configured: see dial_address. cluster: its name, when this node has joined."""

    def __init__(self, membership: Membership, transport: Transport, configured: dict[str, str],
                 cluster: Callable[[], str]) -> None:
        self.on_asked: Callable[[], Awaitable[None]] | None = None
        self._membership = membership
        self._transport = transport
        self._configured = configured
        self._cluster = cluster

    async def ask(self, name: str) -> None:
        """Returns when that node has a vote. Raises CallFailed if it does not get one now."""
        node = self._membership.nodes.get(name)
        if node is None or name == self._membership.name:
            raise CallFailed(f"there is no node {name} with a lease in the cluster: start it first", reached=False)
        async for _ in self._transport.call(dial_address(node, self._configured), VOTE, self._cluster().encode(),
                                             CALL_S):
            pass

    async def answer(self, body: bytes) -> AsyncIterator[bytes]:
        """Of the call. Raises CallFailed."""
        name = self._membership.name
        if self.on_asked is None or body != self._cluster().encode():
            raise CallFailed(f"node {name} has no etcd member of its own (cluster.etcd.endpoints), or is in another "
                             "cluster", reached=False)
        try:
            await self.on_asked()
        except FluxError as error:
            raise CallFailed(str(error)) from None
        return
        yield b""
