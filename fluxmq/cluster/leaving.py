"""A node leaves in good order: its sessions and queues go to the others before it stops.

    for each session that outlives its connection (some at a time)
        the client is told where to go ─► call "take" to that node ─► it takes the session over (takeover.py)
    again for those that have come meanwhile ─► wait until nothing of any session is still to be sent
    the queues, one after the other (queue_moves)

Which node gets a session: rendezvous.py. A client that connects elsewhere before its session has been moved takes it
there itself. A node that leaves too, or does not answer, is passed over for the next. What nobody takes stays on this
node's disk.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from fluxmq._core.errors import ProtocolError
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.messages import TakeCall, encode, take_of
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.peers import Peer, Peers
from fluxmq.cluster.ports import CallFailed, Log, Transport
from fluxmq.cluster.queue_moves import QueueMoves
from fluxmq.cluster.rendezvous import ranked
from fluxmq.cluster.takeover import Takeovers
from fluxmq.cluster.takes import NOBODY
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.malformed import MALFORMED

__all__ = ["TAKE", "Leaver", "Leaving", "SendAway", "take"]

TAKE = "take"  # method of Transport.call
CALL_S = 20.0  # of one session, with what was queued meanwhile
AT_ONCE = 64  # sessions on their way
PASSES_MAX = 5  # through those that have come, or have not found a node
PAUSE_S = 0.2
QUORUM_S = 10.0  # how long etcd may be without a leader, as when the last node to leave had it
# A client of this node, and the node that will have its session.
SendAway = Callable[[Any, str], None]


async def take(body: bytes, peers: Peers, owners: Owners) -> AsyncIterator[bytes]:
    """Answers the call "take": nothing, when this node has the session. Raises CallFailed."""
    try:
        call = take_of(body)
    except MALFORMED as error:
        raise CallFailed(f"not a request to take a session: {error}", reached=False) from None
    peers.caller_of(call)
    try:
        await owners.take((call.namespace, call.client_id), False, NOBODY)
    except ProtocolError as error:
        raise CallFailed(str(error)) from None
    return
    yield b""


class Leaving:
    """The leaving node's side; one per life."""

    def __init__(self, *, broker: Broker, owners: Owners, peers: Peers, takeovers: Takeovers, transport: Transport,
                 driver: Driver, send_away: SendAway, log: Log) -> None:
        self._broker = broker
        self._owners = owners
        self._peers = peers
        self._takeovers = takeovers
        self._transport = transport
        self._driver = driver
        self._send_away = send_away
        self._log = log
        self._waiting: list[Session] = []
        self._unwilling: set[str] = set()  # nodes that take nothing: they leave too, or do not answer
        self._given_up = False

    async def run(self) -> int:
        """Returns the number of sessions that nobody has taken."""
        for _ in range(PASSES_MAX):
            self._waiting = self._to_move()
            if not self._waiting or not self._takers() or not await self._decides():
                break
            workers = [self._driver.start(self._work()) for _ in range(min(AT_ONCE, len(self._waiting)))]
            for worker in workers:
                await self._driver.end_of(worker)
        while self._takeovers.under_way and not self._given_up:
            await self._driver.sleep(PAUSE_S)
        return len(self._to_move())

    @property
    def left(self) -> int:
        """Number of sessions that this node has still, also of those that another one is taking."""
        return sum(session.data.expiry_s > 0 and address in self._owners.owned
                   for address, session in self._broker.sessions.items())

    async def _decides(self) -> bool:
        """Waits while etcd does not answer. Returns whether it does in time: without it nothing changes hands."""
        member, ends = self._peers.membership, self._driver.now() + QUORUM_S
        while member.why_late and self._driver.now() < ends and not self._given_up:
            await self._driver.sleep(PAUSE_S)
        return not member.why_late and not self._given_up

    def give_up(self) -> None:
        """Time is over."""
        self._given_up = True

    def _takers(self) -> list[str]:
        return [name for name in self._peers.peers if name not in self._unwilling]

    def _to_move(self) -> list[Session]:
        """Those that outlive their connections, and are not on their way."""
        return [address for address, session in self._broker.sessions.items()
                if session.data.expiry_s and not session.data.frozen and address in self._owners.owned]

    async def _work(self) -> None:
        while self._waiting and not self._given_up and not self._peers.membership.why_late:
            await self._move(self._waiting.pop())

    async def _move(self, session: Session) -> None:
        for name in ranked(self._takers(), session):
            held, peer = self._broker.sessions.get(session), self._peers.peers.get(name)
            if held is None or held.data.frozen or self._given_up:
                return
            if peer is None:
                continue
            if held.data.connection is not None:
                self._send_away(held.data.connection, name)
                held.data.asked_ms = NOBODY  # whoever asks for the session gets it
            try:
                await self._ask(session, peer)
                return
            except CallFailed as error:
                if session not in self._owners.owned:
                    return  # its client has taken it to a node of its own choice meanwhile
                if not error.reached:
                    self._unwilling.add(name)
                self._log("warning", str(error), "a node does not take a session over; asking another",
                          {"node": name, "client_id": session[1].decode(errors="replace"), "why": str(error)})

    async def _ask(self, session: Session, peer: Peer) -> None:
        peers = self._peers
        call = TakeCall(**peers.call_to(peer, session))
        async for _ in self._transport.call(peer.address, TAKE, encode(call), CALL_S):
            pass


class Leaver:
    """How a node leaves. on_leave: called when an operator wants the node to leave, and its process to stop, with
    whether it keeps its vote in etcd. ended: nothing is handed over any more; told: an operator has been told so. vote:
    what has become of it, a sentence. begin: from then on the node takes no session; returns whether it leaves."""

    def __init__(self, *, broker: Broker, membership: Membership, owners: Owners, peers: Peers,
                 takeovers: Takeovers, moves: QueueMoves, transport: Transport, driver: Driver,
                 begin: Callable[[], bool], log: Log) -> None:
        self.on_leave: Callable[[bool], None] | None = None
        self.ended = self.told = False
        self.vote = ""
        self._broker = broker
        self._membership = membership
        self._owners = owners
        self._peers = peers
        self._takeovers = takeovers
        self._moves = moves
        self._transport = transport
        self._driver = driver
        self._begin = begin
        self._log = log
        self._leaving: Leaving | None = None

    @property
    def others(self) -> list[str]:
        """Names of the nodes that might take sessions over."""
        return [peer.name for peer in self._peers.peers.values() if peer.known]

    def successor(self, session: Session) -> str:
        """Which of `others`, of which there is one at least, is to have a session of this node."""
        return ranked(self.others, session)[0]

    def listeners_of(self, name: str) -> dict[str, str]:
        """host:port for clients of a node, by listener."""
        known = self._membership.nodes.get(name)
        return known.registration.clients if known is not None else {}

    async def leave(self, send_away: SendAway) -> int:
        """Hands the sessions over to the other nodes, then moves the queues; ClusterNode.stop() is to follow.
        send_away: called with the connection of a client and the node that will have its session, before that is asked
        to take it. Returns the number of sessions that nobody has taken. Does nothing unless the node serves, with
        others."""
        if not self._begin() or not self.others:
            return 0
        self._leaving = Leaving(broker=self._broker, owners=self._owners, peers=self._peers, takeovers=self._takeovers,
                                transport=self._transport, driver=self._driver, send_away=send_away, log=self._log)
        left = await self._leaving.run()
        await self._moves.move_all()
        return left

    @property
    def left(self) -> int:
        """Number of sessions that leave() has not handed over so far."""
        return 0 if self._leaving is None else self._leaving.left

    @property
    def queues_left(self) -> dict[str, str]:
        """Queues that leave() has not moved so far, and why."""
        return self._moves.left()

    def give_up(self) -> None:
        """Time is over."""
        if self._leaving is not None:
            self._leaving.give_up()
