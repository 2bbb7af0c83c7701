"""Forgets where messages came from (`_core/hub/origins.pxd`) when they cannot come again: their publisher's session, or
the will, is not in the store any more.

A message may be faster than the watch, so a name is forgotten when the store has not had it in two rounds.

A node that was away does not know what was released meanwhile. So each node tells one that appears which messages of
its sessions are not released (Unreleased).

A PUBLISH that a client sends again may have been given to a member of a share group, on whatever node, by a node that
has died. So the other nodes are asked (WhoHas), and the message is kept until then (engine/sessions/parked.py).
"""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.hub.hub import Hub
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.messages import Has, Origin, Unreleased, WhoHas, encode
from fluxmq.cluster.peers import Peer, Peers
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver

__all__ = ["Origins"]

PERIOD_S = 30.0
ROUNDS = 2
ROUNDS_PARKED = 120  # an hour: as long as messages wait for a member, so that a node that was away finds them
ORIGINS_MAX = 10_000  # in one message


class Origins:
    """One per life of a node. is_used: whether the store has a session or will of this name."""

    def __init__(self, driver: Driver, feed: Feed, peers: Peers,
                 is_used: Callable[[int], bool], broker: Broker) -> None:
        """broker: that asks; before it is loaded from its disk."""
        self._driver = driver
        self._feed = feed
        self._peers = peers
        self._is_used = is_used
        self._unused: dict[int, int] = {}  # name -> rounds in which the store did not have it
        self._asked: dict[int, tuple[set[str], Callable[[bool], None]]] = {}  # number -> nodes that have not answered
        self._number = 0
        self._early: list[tuple[str, WhoHas]] = []  # questions that this node cannot answer yet
        self.pending = False  # see AtEnd
        self._closed = False
        self._hub = broker.hub
        broker.share_groups.ask_with(self.ask)

    def ask(self, origin: Origin, group: int, decided: Callable[[bool], None]) -> None:
        """See engine.sessions.parked.WhoHas."""
        peers = self._peers.peers
        self._number += 1
        question = WhoHas(number=self._number, origin=origin, group=group, revision=self._feed.revision)
        self._asked[self._number] = set(peers), decided
        for peer in peers.values():
            peer.outbox.control(encode(question))
        if not self._asked[self._number][0]:
            self._driver.start(self._look_soon())

    def on_who_has(self, peer: Peer, question: WhoHas) -> None:
        """Yes is said at once; no only when frames of nodes that have died for the asking node cannot come any more."""
        has = self._hub.origins.took(*question.origin, question.group)
        if not has and self._feed.revision < question.revision:
            self._early.append((peer.name, question))
            self.pending = True
        else:
            peer.outbox.control(encode(Has(number=question.number, has=has)))

    def on_batch(self) -> None:
        """See AtEnd: some questions can be answered now."""
        self.pending = False
        early, self._early = self._early, []
        for name, question in early:
            if (peer := self._peers.peers.get(name)) is not None:
                self.on_who_has(peer, question)

    def on_has(self, peer: Peer, answer: Has) -> None:
        """A node has answered."""
        if answer.number in self._asked:
            waits, decided = self._asked[answer.number]
            waits.discard(peer.name)
            if answer.has:
                del self._asked[answer.number]
                decided(True)
        self._look()

    def on_gone(self, peer: Peer) -> None:
        """A node has no lease any more: what it had is with its members, or lost."""
        for waits, _ in self._asked.values():
            waits.discard(peer.name)
        self._look()

    async def _look_soon(self) -> None:
        await self._driver.sleep(0)
        self._look()

    def _look(self) -> None:
        for number in [number for number, (waits, _) in self._asked.items() if not waits]:
            _, decided = self._asked.pop(number)
            decided(False)

    async def sweep(self, hub: Hub) -> None:
        """Until close(). To be begun when the feed has reported everything that the store has."""
        while not self._closed:
            await self._driver.sleep(PERIOD_S)
            if self._closed:
                break
            self._unused = {name: self._unused.get(name, 0) + 1 for name in hub.origins.known()
                            if not self._is_used(name)}
            for name, rounds in list(self._unused.items()):
                if rounds >= (ROUNDS_PARKED if self._is_parked(hub, name) else ROUNDS):
                    hub.origins.forget(name)
                    del self._unused[name]
            hub.wake_up()

    @staticmethod
    def greet(outbox: PeerOutbox, broker: Broker) -> None:
        """A node has appeared: it is told what the sessions of this node have published and not released."""
        origins = broker.hub.origins
        if not origins.known():
            return
        found = [(incarnation, packet_id, use) for session in broker.sessions.values()
                 if session.received_count and not session.data.frozen and (incarnation := session.data.incarnation)
                 for packet_id, use in origins.own(incarnation) if use]
        for begin in range(0, len(found), ORIGINS_MAX):
            outbox.control(encode(Unreleased(origins=found[begin:begin + ORIGINS_MAX])))

    def on_unreleased(self, peer: Peer, message: Unreleased) -> None:
        """What this node has of these from a former life is as good as new."""
        for origin in message.origins:
            self._hub.origins.confirm(*origin)

    @staticmethod
    def _is_parked(hub: Hub, name: int) -> bool:
        """Whether it is of messages that a node keeps for a share group: the store does not know of these."""
        uses = hub.origins.uses(name)
        return list(uses) == [0] and uses[0] != [1]

    def close(self) -> None:
        """Nothing is forgotten any more."""
        self._closed = True
        self._asked.clear()
