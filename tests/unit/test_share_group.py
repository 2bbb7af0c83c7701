"""Shared subscriptions: each message to one member, in turn, those that can take it first. MQTT 5.0 section 4.8.2."""
from __future__ import annotations

import socket
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.connection import Connection
from fluxmq._core.pubsub.session import Session
from fluxmq._core.pubsub.share_group import ShareGroup
from fluxmq._core.testing.peer_probe import PeerProbe

PACKET_BYTES = 5        # PUBLISH of QoS 0 to topic "t" without payload, MQTT 3.1.1


class Handler:
    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class Group:
    """One group and its members; links are real sockets that nobody reads, so what a member got is what waits in it."""

    def __init__(self) -> None:
        self.hub = Hub(None, 64, 1)
        self.hub.set_clock(1, 1)
        self.group = ShareGroup(b"g", b"t")
        self.hub.add_group(self.group)
        self.links: dict[Session, Connection] = {}
        self.members: list[Session] = []
        self._peers: list[socket.socket] = []

    def join(self, *, connected: bool = True, window: int = 10) -> Session:
        session = self.hub.new_session(b"s%d" % len(self._peers), 0)
        mine, peer = socket.socketpair()
        mine.setblocking(False)
        self._peers.append(peer)
        connection = Connection(self.hub, mine.detach(), -1, Handler())
        connection.set_version(4)
        if connected:
            connection.accept(session, window, 0xFFFFFFFF, 0)
        self.links[session] = connection
        self.members.append(session)
        assert self.group.join(session, 1, 0)
        return session

    def leave(self, session: Session) -> None:
        assert self.group.leave(session)
        self.members.remove(session)

    def publish(self, count: int, qos: int = 0) -> dict[Session, int]:
        """How many of the messages each member got."""
        before = {session: self.got(session) for session in self.members}
        for _ in range(count):
            self.hub.publish_message(b"t", b"", qos)
        return {session: self.got(session) - before[session] for session in self.members}

    def got(self, session: Session) -> int:
        return self.links[session].pending // PACKET_BYTES if not session.inflight and not session.queued else \
            session.inflight + session.queued

    def close(self) -> None:
        for connection in self.links.values():
            connection.abort()
        for peer in self._peers:
            peer.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.just("join"), st.just("away"), st.integers(0, 9)), max_size=12), st.integers(1, 40))
def test_fair_between_any_changes(changes: list[str | int], count: int) -> None:
    """Between two changes no connected member gets two more than another, and the absent get nothing."""
    group = Group()
    try:
        group.join()
        for change in changes:
            if change == "join":
                group.join()
            elif change == "away":
                group.join(connected=False)
            elif isinstance(change, int) and len(group.members) > 1:
                victim = group.members[change % len(group.members)]
                if victim is not group.members[0]:
                    group.leave(victim)
            got = group.publish(count)
            connected = [number for session, number in got.items() if session.connected]
            assert sum(connected) == count
            assert max(connected) - min(connected) <= 1
            assert all(number == 0 for session, number in got.items() if not session.connected)
    finally:
        group.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(0, 50))
def test_the_absent_take_turns_when_nobody_is_there(members: int, count: int) -> None:
    group = Group()
    try:
        for _ in range(members):
            group.join(connected=False)
        got = list(group.publish(count, qos=1).values())
        assert sum(got) == count and max(got) - min(got) <= 1
        assert group.publish(5, qos=0) == dict.fromkeys(group.members, 0)
        assert group.hub.counters()["dropped_no_connection"] == 5
    finally:
        group.close()


def test_one_whose_window_is_full_is_passed_over_until_all_are() -> None:
    group = Group()
    try:
        small, large = group.join(window=2), group.join(window=10)
        assert group.publish(12, qos=1) == {small: 2, large: 10}
        assert small.queued == large.queued == 0
        got = group.publish(10, qos=1)                  # nobody can take it now: in turn, into their lines
        assert got == {small: 5, large: 5} and small.queued == large.queued == 5
    finally:
        group.close()


# ---------------------------------------------------------------- other nodes

class Spread(Group):
    """A group that other nodes have members of, as they say."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = [PeerProbe(self.hub) for _ in range(nodes)]

    def tell(self, node: int, connected: int, away: int = 0) -> None:
        self.group.tell(self.nodes[node], connected, away)
        self.hub.add_group(self.group)

    def here(self, connected: int, away: int = 0) -> None:
        while self.members:
            self.leave(self.members[-1])
        for number in range(connected + away):
            self.join(connected=number < connected, window=1000)
        self.group.connected = connected

    def spread(self, count: int, qos: int = 1) -> list[int]:
        """How many of the messages this node got, and each other one."""
        before = [len(node.grouped) for node in self.nodes]
        got = sum(self.publish(count, qos).values())
        return [got, *(len(node.grouped) - former for node, former in zip(self.nodes, before, strict=True))]


WEIGHTS = st.lists(st.integers(0, 5), min_size=2, max_size=5)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(WEIGHTS, st.integers(0, 20)), min_size=1, max_size=4), st.integers(0, 2))
def test_each_node_gets_its_share_whatever_the_weights_were_before(changes: list[tuple[list[int], int]],
                                                                   qos: int) -> None:
    group = Spread(4)
    try:
        for weights, count in changes:
            weights = [*weights, *[0] * (5 - len(weights))]
            group.here(weights[0])
            for node, weight in enumerate(weights[1:]):
                group.tell(node, weight)
            total = sum(weights)
            group.spread(count, qos)                    # wherever in its turn it stands then
            got = group.spread(total * 10, qos)
            assert sum(got) == total * 10
            for share, weight in zip(got, weights, strict=True):
                assert (share == 0) == (weight == 0) and abs(share - 10 * weight) <= 25     # of what was owed before
            assert group.spread(total * 10, qos) == [10 * weight for weight in weights]
    finally:
        group.close()


@settings(max_examples=40, deadline=None)
@given(WEIGHTS, st.integers(0, 4))
def test_the_absent_of_all_nodes_take_turns_when_nobody_is_there(weights: list[int], at: int) -> None:
    group = Spread(4)
    try:
        group.here(0, weights[0])
        for node, weight in enumerate(weights[1:]):
            group.tell(node, 0, weight)
        total = sum(weights)
        assert group.spread(total * 10)[:len(weights)] == [10 * weight for weight in weights]
        assert sum(group.spread(10, 0)) == 0
        if at:
            group.tell(at - 1, 1)                       # somebody comes: nobody else gets anything
            assert group.spread(10) == [10 * (node == at) for node in range(5)]
    finally:
        group.close()


def test_a_message_for_another_node_names_the_group() -> None:
    group = Spread(1)
    try:
        group.tell(0, 1)
        group.hub.publish_message(b"t", b"x", 2)
        assert group.nodes[0].grouped == [(b"g", b"t", b"x", 2)]
        assert group.group.told() == [(group.nodes[0], 1, 0)]
        group.tell(0, 0)
        assert group.group.told() == []
        group.hub.publish_message(b"t", b"y", 2)
        assert len(group.nodes[0].grouped) == 1
    finally:
        group.close()


def test_what_another_node_forwards_goes_to_no_group() -> None:
    group = Spread(1)
    try:
        group.here(1)
        group.tell(0, 1)
        group.hub.publish_message(b"t", b"x", 1, from_peer=True)
        assert group.nodes[0].grouped == [] and not group.members[0].inflight
    finally:
        group.close()


def test_a_publish_to_an_empty_group_is_dropped() -> None:
    group = Group()
    try:
        group.leave(group.join())
        group.hub.publish_message(b"t", b"", 1)
        assert group.hub.counters()["queued"] == group.hub.counters()["inflight"] == 0
    finally:
        group.close()
