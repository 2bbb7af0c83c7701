"""A node that is back gives what it has stored of sessions to the nodes that have adopted them meanwhile.

    this node, for each stored session                    the session's owner
    nobody has it, the store knows it: adopted (adoption.py)
    it has ended: dropped
    call "return" ──────────────────────────────────────► its session, and is it the same one?
                      ◄── call "stored" ───────────────── fetches the parts: on its disk
    dropped           ◄── merged, or ended ────────────── ahead of all that it has not sent

Nothing is dropped before the other node has it on its disk. An answer that is lost leads to a second call, of which the
owner takes nothing twice (`Moved.origins`).
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.pubsub.session import Session as HeldSession
from fluxmq.cluster.kept import KeptSessions
from fluxmq.cluster.messages import ReturnCall, encode, return_of
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.peers import Peer, Peers
from fluxmq.cluster.ports import CallFailed, Log, Transport
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.sessions.transfer import Arrival, Departure
from fluxmq.model.malformed import MALFORMED

__all__ = ["RETURN", "STORED", "Returns"]

RETURN, STORED = "return", "stored"  # methods of Transport.call
MERGED, ENDED = b"merged", b"ended"  # answers to RETURN
CALL_S = 30.0
PERIOD_S = 0.25
CALLS_MAX = 16  # under way at once


class Returns:
    """Both sides, of one life of a node. durable: returns when what was recorded so far is on disk. is_taking: whether
    this node is making a session its own. changed: called when stored sessions are fewer."""

    def __init__(self, *, broker: Broker, owners: Owners, kept: KeptSessions, peers: Peers,
                 transport: Transport, driver: Driver, durable: Callable[[], Any],
                 is_taking: Callable[[Session], bool], changed: Callable[[], None],
                 log: Log) -> None:
        self._broker = broker
        self._owners = owners
        self._kept = kept
        self._peers = peers
        self._transport = transport
        self._driver = driver
        self._durable = durable
        self._is_taking = is_taking
        self._changed = changed
        self._log = log
        self._calling: set[Session] = set()
        self._closed = False

    # ------------------------------------------------------------------ the node that is back

    def close(self) -> None:
        """No other call begins."""
        self._closed = True

    async def keep(self) -> None:
        """Until close(): sessions may be stored away later, too."""
        while not self._closed:
            for session, held in list(self._broker.stored.items()):
                if len(self._calling) >= CALLS_MAX:
                    break
                if session not in self._calling and not self._is_taking(session):
                    self._look(session, held)
            await self._driver.pace(PERIOD_S)

    def _look(self, session: Session, held: HeldSession) -> None:
        owner, data, identity = self._owners.owner(session), self._kept.data(session), held.data.identity
        if data is None and owner is None:
            if identity:
                self._drop(session, held, True)     # else it was made before this node was in a cluster, and stays
        elif data is not None and identity and data.identity != identity:
            self._drop(session, held, True)
        elif owner is not None:
            self._calling.add(session)
            self._driver.start(self._return(session, held, owner.node))

    def _drop(self, session: Session, held: HeldSession, ended: bool) -> None:
        if self._broker.stored.get(session) is held:
            self._broker.drop_stored(held, ended=ended)
            self._broker.hub.wake_up()
        self._changed()

    async def _return(self, session: Session, held: HeldSession, node: str) -> None:
        peer = self._peers.peers.get(node)
        answer = b""
        try:
            if peer is None:
                return
            async for part in self._transport.call(peer.address, RETURN, encode(self._call(
                    peer, session, held.data.identity)), CALL_S):
                answer += part
        except CallFailed as error:
            self._log("debug", str(error), "a stored session could not be handed over; trying again",
                      {"client_id": session[1].decode(errors="replace"), "node": node})
        finally:
            self._calling.discard(session)
        if answer in (MERGED, ENDED):
            self._drop(session, held, answer == ENDED)

    def _call(self, peer: Peer, session: Session, identity: str) -> ReturnCall:
        return ReturnCall(**self._peers.call_to(peer, session), identity=identity)

    async def give(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "stored": the parts of a stored session. Raises CallFailed."""
        call, _ = self._check(body)
        session = call.namespace, call.client_id
        held = self._broker.stored.get(session)
        if held is None or held.data.identity != call.identity or self._is_taking(session):
            raise CallFailed("there is no such session", reached=False)
        if not held.data.frozen:
            self._broker.freeze(held)
        for part in Departure(self._broker, held).parts():
            yield part

    # ------------------------------------------------------------------ the owner

    async def take_back(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "return": MERGED, when everything is on disk here, or ENDED. Raises CallFailed."""
        call, caller = self._check(body)
        session = call.namespace, call.client_id
        held = self._mine(session)
        if not held.data.durable or (call.identity and held.data.identity != call.identity):
            yield ENDED
            return
        arrival = Arrival(self._broker, held.namespace, session[1])
        try:
            async for part in self._transport.call(caller.address, STORED, encode(self._call(
                    caller, session, call.identity)), CALL_S):
                arrival.feed(part)
            arrival.finish()
            await self._durable()
            if self._mine(session) is not held:
                raise CallFailed("the session has ended meanwhile")
            arrival.merge(held)
            await self._durable()
        except (ProtocolError, UsageError) as error:
            raise CallFailed(str(error)) from None
        finally:
            if not arrival.ended:
                arrival.abandon()
        yield MERGED

    def _mine(self, session: Session) -> HeldSession:
        held = self._broker.sessions.get(session)
        if held is None or held.data.frozen or session not in self._owners.owned or self._is_taking(session):
            raise CallFailed("this node does not have the session, or not yet, or hands it over", reached=False)
        return held

    def _check(self, body: bytes) -> tuple[ReturnCall, Peer]:
        try:
            call = return_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not a return: {error}", reached=False) from None
        return call, self._peers.caller_of(call)
