"""What comes by the former owner of a queue that has moved: publishes of a node that did not know of the move yet, or
whose way to that owner stands still. docs/internals/cluster-queues.md, "Moves".

    publisher's node ─── PUBLISH ───► former owner ───► new owner       perhaps long after its publisher gave it up
           └── the same, sent again; RELEASE ──────────►

A message of QoS 2 may have been sent again, taken and released before its first copy comes. So the new owner remembers
what is released (Origins.expect_forwarded) until what it had sent to other nodes is acknowledged, and each node has
said so, by the call "queue-detour", of what it had sent when it heard of the new owner. A former owner acknowledges
what it has forwarded when the new owner has it, or when it has waited for that too long: so all are asked a second
time, and by then all of it is at nodes that know the new owner, and send nothing elsewhere. What a node that has died
had sent is there when all others have ended its life.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING

from fluxmq.cluster.definitions import Definitions
from fluxmq.cluster.messages import QueueCall, encode, queue_call_of
from fluxmq.cluster.peers import Peer, Peers
from fluxmq.cluster.ports import CallFailed, Transport
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.malformed import MALFORMED

if TYPE_CHECKING:
    from fluxmq._core.queue.queue import Queue
    from fluxmq.engine.queues.manager import QueueManager

__all__ = ["DETOUR", "Detours"]

DETOUR = "queue-detour"     # method of Transport.call
ANSWER_S = 5.0              # how long a node waits before it says that something is still on its way
CALL_S = 2 * ANSWER_S
RETRY_S = 0.5
LOOK_S = 0.01


class Detours:
    """Both sides, of one life of a node. cut_by: the nodes that have sent what they kept for a life that has ended."""

    def __init__(self, *, definitions: Definitions, peers: Peers, transport: Transport,
                 driver: Driver, cut_by: Callable[[int], Collection[str]]) -> None:
        self._definitions = definitions
        self._peers = peers
        self._transport = transport
        self._driver = driver
        self._cut_by = cut_by
        self._closed = False
        self._manager: QueueManager | None = None

    def attach(self, manager: QueueManager) -> None:
        """The engine's queues."""
        self._manager = manager

    def close(self) -> None:
        """Nothing is asked again."""
        self._closed = True

    # ------------------------------------------------------------------ the new owner

    async def expect(self, queue: Queue, identity: int) -> None:
        """Returns when nothing of a queue that has just come here can come by a former owner any more."""
        manager = self._manager
        if manager is None:     # this life has ended meanwhile
            return
        others = list(self._peers.peers.values())
        for _ in range(2):
            arrived = self._sent()     # to a former owner, which sends it back now
            while not self._closed and not arrived():
                await self._driver.sleep(LOOK_S)
            for peer in others:
                while not self._closed and not await self._has_none(peer, others, queue, identity):
                    await self._driver.sleep(RETRY_S)
        if not self._closed:
            manager.hub.origins.expect_forwarded(False)

    async def _has_none(self, peer: Peer, others: list[Peer], queue: Queue, identity: int) -> bool:
        peers = self._peers
        if peers.peers.get(peer.name) is not peer:
            cut = self._cut_by(peer.node.epoch)
            return all(other.name in cut or peers.peers.get(other.name) is not other for other in others)
        data = self._definitions.data.get(queue.address)
        if data is None:        # it was deleted
            return True
        call = QueueCall(**peers.call_to(peer, queue.address), identity=identity, revision=data.revision)
        try:
            async for _ in self._transport.call(peer.address, DETOUR, encode(call), CALL_S):
                pass
        except CallFailed:
            return False
        return True

    # ------------------------------------------------------------------ the others

    async def answer(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "queue-detour": nothing, when all that this node had sent to other nodes is acknowledged.
        Raises CallFailed if it takes longer."""
        try:
            call = queue_call_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not a call about a queue: {error}", reached=False) from None
        self._peers.caller_of(call)
        until = self._driver.now() + ANSWER_S
        await self._until(lambda: self._knows(call), until, "this node has not heard of the move yet")
        await self._until(self._sent(), until, "a node has not acknowledged what it was sent")
        return
        yield b""

    def _knows(self, call: QueueCall) -> bool:
        """Whether this node sends what is published to the queue to the caller, or to a later owner, or to none."""
        owner = self._definitions.owners.get((call.namespace, call.client_id))
        return owner is None or owner.value.id != call.identity or owner.revision > call.revision

    def _sent(self) -> Callable[[], bool]:
        """What says whether all other nodes that are still there have acknowledged what they were sent up to now."""
        peers = self._peers
        sent = [(peer, peer.outbox.cut() - 1) for peer in peers.peers.values()]
        return lambda: all(peer.outbox.acknowledged_upto >= upto or peers.peers.get(peer.name) is not peer
                           for peer, upto in sent)

    async def _until(self, holds: Callable[[], bool], until: float, why: str) -> None:
        while not holds():
            if self._driver.now() > until or self._closed:
                raise CallFailed(why)
            await self._driver.sleep(LOOK_S)
