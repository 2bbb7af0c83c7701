"""The engine among other nodes: what it asks and tells them, and what it does with their answers."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kit.carrier import Carrier
from kit.nodes import HERE, Nodes

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.session import Session
from fluxmq._core.testing.peer_probe import PeerProbe
from fluxmq.cluster.solo import solo
from fluxmq.engine.broker import Broker, Limits
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.ports.cluster import Directory, OwnedElsewhere, Owner, Peers, Replicator, Unclaimed
from fluxmq.engine.ports.definitions import Placement
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.sessions.state import Will
from fluxmq.model.amqp import AmqpRefused
from fluxmq.model.queues import QueueSpec

THERE = Owner("there", 8)


class World:
    def __init__(self, **limits: Any) -> None:
        self.nodes = Nodes()
        self.directory = self.nodes.directory
        self.hub = Hub(None, 64)
        self.hub.set_clock(1_000_000, 1_000)
        self.broker = Broker(self.hub, Limits(**limits), cluster=self.nodes.cluster)
        self.queues = QueueManager(self.hub, "classic", cluster=self.nodes.cluster)
        self.exchanges = ExchangeManager(self.hub, cluster=self.nodes.cluster)
        ExchangeKeeper(self.exchanges, self.queues)

    def connect(self, name: bytes = b"c", *, clean_start: bool = False, expiry_s: int = 100,
                will: Will | None = None) -> Session:
        self.peer = Carrier()
        return self.broker.connect(name, version=5, clean_start=clean_start, expiry_s=expiry_s, keep_alive_s=0,
                                   will=will, username=None, connection=self.peer)[0]  # type: ignore[arg-type]

    def told(self) -> list[tuple[object, ...]]:
        """What was claimed and released since the last call."""
        found = [(what[0], what[2]) for what in self.directory.told if what[0] not in ("announce", "withdraw")]
        self.directory.told.clear()
        return found


@pytest.fixture
def world() -> World:
    return World()


# ---------------------------------------------------------------- who owns a session

def test_each_connect_asks_first_and_each_end_tells(world: World) -> None:
    session = world.connect()
    assert world.directory.told == [("claim", b"/", b"c", False)]
    world.told()
    world.connect()
    world.connect(clean_start=True)
    assert world.told() == [("claim", b"c")] * 2            # what replaces a session keeps its name here
    session = world.broker.sessions[b"/", b"c"]
    world.broker.disconnect(session, world.peer, publish_will=True)  # type: ignore[arg-type]
    assert world.told() == []
    world.broker.end_session(session)
    assert world.told() == [("release", b"c")]


def test_a_takeover_of_what_ends_with_its_connection_releases_nothing(world: World) -> None:
    world.connect(expiry_s=0)
    session = world.connect(expiry_s=0)
    assert world.told() == [("claim", b"c")] * 2
    world.broker.disconnect(session, world.peer, publish_will=True)  # type: ignore[arg-type]
    assert world.told() == [("release", b"c")]


def test_a_session_that_is_elsewhere_is_not_made(world: World) -> None:
    world.directory.owners[b"c"] = THERE
    with pytest.raises(OwnedElsewhere) as refused:
        world.connect()
    assert (refused.value.reason, refused.value.reference) == (0x9C, "there.example:1883")
    assert not world.broker.sessions and world.broker.connected == 0


def test_nothing_is_done_until_somebody_was_asked(world: World) -> None:
    session = world.connect()
    world.directory.owners[b"c"] = None
    with pytest.raises(Unclaimed) as question:
        world.connect(clean_start=True)
    assert world.broker.sessions == {(b"/", b"c"): session} and session.data.connection is not None

    async def ask() -> Owner:
        asked = asyncio.ensure_future(question.value.take())
        await asyncio.sleep(0)
        world.directory.asking[b"c"][0].set_result(HERE)
        return await asked

    assert asyncio.run(ask()) == HERE
    assert world.connect(clean_start=True) is not session


def test_what_finds_no_room_is_released() -> None:
    world = World(sessions_max=1)
    world.connect(b"a")
    world.told()
    with pytest.raises(ProtocolError):
        world.connect(b"b")
    assert world.told() == [("claim", b"b"), ("release", b"b")]


# ---------------------------------------------------------------- who wants a topic

def test_each_new_subscription_is_announced_once(world: World) -> None:
    session = world.connect()
    for filter_ in (b"a/#", b"a/#", b"$share/g/b"):
        world.broker.subscribe(session, filter_, 1, 0)
    world.broker.subscribe(session, b"$share/g/b", 0, 3)
    assert world.directory.interest() == [("announce", b"a/#", b""), ("announce", b"b", b"g")]
    world.broker.unsubscribe(session, b"a/#")
    world.broker.unsubscribe(session, b"a/#")
    world.broker.end_session(session)
    assert world.directory.interest() == [("withdraw", b"a/#", b""), ("withdraw", b"b", b"g")]


def test_it_is_in_the_index_when_it_is_announced(world: World) -> None:
    session, seen = world.connect(), []
    world.directory.on_announce = lambda filter_: seen.append(world.hub.publish_message(b"a", b""))
    world.broker.subscribe(session, b"a", 1, 0)
    world.broker.subscribe(session, b"$share/g/a", 1, 0)
    assert seen == [1, 2]


def test_queues_and_bindings_announce_nothing(world: World) -> None:
    """Each node knows all queues, and sends them what they capture itself."""
    world.queues.declare(QueueSpec(name="q", topics=["a/#", "b"]))
    world.exchanges.declare(b"/", b"x", b"topic")
    world.exchanges.bind(b"/", b"amq.topic", b"q", b"a.*")
    world.exchanges.bind(b"/", b"amq.topic", b"x", b"c.#", to_exchange=True)
    world.exchanges.unbind(b"/", b"amq.topic", b"x", b"c.#", to_exchange=True)
    world.queues.delete((b"/", b"q"))
    assert world.directory.interest() == []


def test_what_other_nodes_want_is_forwarded_to_them(world: World) -> None:
    peer = world.nodes.peers.hops["there"] = PeerProbe(world.hub)
    for _ in range(2):
        world.broker.learn("there", b"/", b"a/#", True)
    world.broker.learn("there", b"/", b"b", True)
    world.hub.publish_message(b"a/b", b"x", 1)
    world.broker.learn("there", b"/", b"a/#", False)
    world.hub.publish_message(b"a/b", b"x", 1)
    world.hub.publish_message(b"b", b"x", 1)
    world.broker.forget_node("there")
    world.hub.publish_message(b"b", b"x", 1)
    assert [message[0] for message in peer.forwarded] == [b"a/b", b"b"]
    with pytest.raises(UsageError):
        world.broker.learn("nowhere", b"/", b"a", True)


# ---------------------------------------------------------------- queues

def test_a_queue_is_placed_and_has_the_line_that_it_is_given(world: World) -> None:
    line = world.nodes.replicator.lines[b"far"] = world.hub.commits.open_line("group 7")
    world.directory.placements[b"far"] = Placement(3)
    far = world.queues.declare(QueueSpec(name="far"))[0]
    near = world.queues.declare(QueueSpec(name="near", type="ephemeral"))[0]
    assert (far.line, near.line.number) == (line, 0)
    assert world.nodes.replicator.asked == [(b"/", b"far", True), (b"/", b"near", False)]
    assert world.told() == [("place queue", b"far"), ("place queue", b"near")]
    assert [world.queues.states[queue].placement for queue in (far, near)] == [(3, 0), (1, 0)]
    world.queues.delete((b"/", b"far"))
    assert world.told() == []


def test_a_queue_of_another_node_is_not_made(world: World) -> None:
    world.directory.elsewhere = {b"q", b"r"}
    amqp = AmqpQueues(world.queues, lambda size: bytes(size), lambda *address: [])
    for name in ("q", "r"):
        with pytest.raises(QueueRefused) as refused:
            world.queues.declare(QueueSpec(name=name))
        assert refused.value.kind == "unavailable"
        assert world.queues.find(name.encode()) is None     # not by auto_create either
        with pytest.raises(AmqpRefused) as told:
            amqp.declare(b"/", name.encode())
        assert told.value.reason == 404
    assert not world.queues.queues and not world.queues.numbers


# ---------------------------------------------------------------- nobody else

def test_solo_is_what_the_ports_ask_for() -> None:
    directory: Directory
    peers: Peers
    replicator: Replicator
    directory, peers, replicator = solo()
    mine = directory.claim_session(b"/", b"c", False)
    assert mine is not None and mine.node == directory.node
    assert directory.claim_session(b"v", b"d", True) is mine
    assert directory.place_queue(b"/", b"q") == Placement() == (1, 0)
    assert asyncio.run(directory.take_session(b"/", b"c", False, 0)) is mine
    assert replicator.line_of_queue(b"/", b"q", True) is None
    assert peers.reference("") == ""
    with pytest.raises(UsageError):
        peers.hop("there")
