"""The cyclic collector may take a session, a group or a connection with everything it refers to, in any order. It takes
a broker that has stopped: a node of a cluster that has lost its lease begins its next life in the same process."""
from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.amqp_wire import Wire
from kit.client import KEPT, Client
from kit.node import Node
from kit.python import environment
from oracle.mqtt import Publish, Pubrec

from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller
from fluxmq._core.pubsub.share_group import ShareGroup
from fluxmq._core.testing.commits_probe import WaitingLink, end_turn
from fluxmq._core.testing.probes import live_objects
from fluxmq.app.config import load
from fluxmq.app.server import Server
from fluxmq.engine.queues.admin import QueueAdmin

pytestmark = pytest.mark.usefixtures("few_to_collect")
BEGIN = """
import gc
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller
from fluxmq._core.pubsub.share_group import ShareGroup

def make():
    hub = Hub(None, 64)
    session = hub.new_session(b"s", 0)
    session.data = [session, hub, hub.ledger]       # as the engine does it: the session's state knows its session
    hub.subscribe(session, b"a", 1, 5)
    for _ in range(20):
        hub.publish_message(b"a", b"x" * 5000, 1)
    assert session.queued == 20
    group = ShareGroup(b"g", b"b")
    group.join(session, 1, 7)
    hub.add_group(group)
    session.data.append(group)
"""


@pytest.mark.parametrize("end", ["make(); gc.collect()", "gc.disable(); make()", "gc.disable(); kept = make; make()"],
                         ids=["collected", "at-exit", "at-exit-of-module"])
def test_a_session_in_a_cycle_goes_quietly(end: str) -> None:
    # A process of its own: what is wrong here ends it.
    result = subprocess.run([sys.executable, "-P", "-c", f"{BEGIN}\n{end}"], capture_output=True, text=True, timeout=60,
                            env=environment(PYTHONFAULTHANDLER="1"))
    assert (result.returncode, result.stderr) == (0, "")


class Owner:
    """What a broker's objects refer to, and what refers to them."""

    kept: object = None

    def call(self) -> None:
        """Never called."""


def collected(make: Callable[[Owner], None]) -> bool:
    """Whether an owner is collected, of which `make` has made a cycle."""
    owner = Owner()
    make(owner)
    found = weakref.ref(owner)
    del owner
    gc.collect()
    return found() is None


def test_cached_routes_go_with_their_queues() -> None:
    """Also those that are stale: the queue was deleted."""
    def make(owner: Owner) -> None:
        owner.kept = exchanges = Exchanges(16)
        exchanges.declare(b"", b"direct")
        for number in range(100):
            exchanges.add_queue(b"q%d" % number, owner)
            assert exchanges.lookup(b"", b"q%d" % number).queues == [owner]
        exchanges.remove_queue(b"q1")
    assert collected(make)


def test_routes_are_kept_no_longer_than_they_are_cached() -> None:
    exchanges = Exchanges(16)
    exchanges.declare(b"", b"direct")
    owners = [Owner() for _ in range(1000)]
    for number, owner in enumerate(owners):
        exchanges.add_queue(b"q%d" % number, owner)
        exchanges.lookup(b"", b"q%d" % number)
    found = [weakref.ref(owner) for owner in owners]
    for number in range(1000):
        exchanges.remove_queue(b"q%d" % number)
    del owner, owners
    assert 0 < sum(one() is not None for one in found) <= 64        # the sets are 16 of four
    exchanges.let_go()
    assert all(one() is None for one in found)


def test_waits_go_with_a_hub_that_has_ended() -> None:
    """Calls for one line and for more; answers in the rings, and in a link's own queue."""
    gc.collect()
    before = live_objects()

    def make(owner: Owner) -> None:
        hub, links = Hub(None), []
        lines = [hub.commits.open_line(name) for name in ("one", "two", "three")]
        for several in ([0], [0, 1], [0, 1, 2], [2]):
            since = hub.commits.mark
            for number in several:
                lines[number].give()
            links.append(WaitingLink(hub))
            for link in links:
                assert link.answer(1, since)
            assert not hub.when_durable(owner.call, since)
            assert not hub.when_durable(owner.call, since, lambda why: owner.call())
            assert not hub.when_all_durable(owner.call)
            assert not hub.when_gathered(owner.call, lines[several[0]])
            end_turn(hub)
            for number in several:
                lines[number].submit()
        lines[2].commit(1)
        assert hub.commits.waiting == 26
        hub.end()
        assert hub.commits.waiting == 0
        assert [link.waiting for link in links] == [0, 0, 0, 0]
        owner.kept = [hub, lines, links]
    assert collected(make)
    assert live_objects() == before


def test_a_group_frees_the_identifiers_of_its_members() -> None:
    gc.collect()
    before = live_objects()

    def make(owner: Owner) -> None:
        hub = Hub(None, 64)
        session = hub.new_session(b"s", 0)
        group = ShareGroup(b"g", b"a")
        group.join(session, 1, 7)
        session.data = owner.kept = [group, session, owner]
    assert collected(make)
    assert live_objects() == before


def test_a_hub_that_has_ended_asks_for_no_turn() -> None:
    asked: list[None] = []
    hub = Hub(None, 64)
    hub.wake = lambda: asked.append(None)
    hub.wake_up()
    assert asked == [None]
    Poller(hub).turn()
    hub.wake_up()
    assert asked == [None, None]
    Poller(hub).turn()
    hub.end()
    hub.wake_up()
    assert asked == [None, None]


# ── a whole broker ───────────────────────────────────────────────────────────────────────────────────────────


def brokers() -> int:
    gc.collect()
    return sum(type(one) is Server for one in gc.get_objects())


def play(node: Node) -> list[Client | Wire]:
    """Clients of both protocols, with messages in every state; they stay connected."""
    wire = Wire(node.listens("amqp091.plain")).login()
    for channel in (1, 2):
        wire.open_channel(channel)
    wire.call(1, "confirm.select")
    wire.call(1, "queue.declare", queue="stream", durable=True, arguments={"x-queue-type": "stream"})
    wire.call(1, "exchange.declare", exchange="x", type="topic", durable=True)
    for queue in ("q", "gone"):
        wire.call(1, "queue.declare", queue=queue, durable=True, arguments={"x-dead-letter-exchange": "x"})
        wire.call(1, "queue.bind", queue=queue, exchange="x", routing_key="a.#")
        wire.call(1, "queue.bind", queue=queue, exchange="amq.topic", routing_key="a.#")
    for exchange, key in (("", "q"), ("", "gone"), ("x", "a.b"), ("amq.topic", "a.b"), ("", "stream")):
        wire.publish(1, exchange, key, b"m", {"delivery_mode": 2})
    while not wire.call(1, "queue.declare", queue="stream", passive=True)["message_count"]:
        pass
    wire.call(1, "queue.delete", queue="gone")
    wire.call(1, "basic.qos", prefetch_count=2)
    wire.call(1, "basic.consume", queue="q", consumer_tag="q")
    wire.call(1, "basic.consume", queue="stream", consumer_tag="stream", arguments={"x-stream-offset": "first"})
    wire.call(2, "tx.select")
    wire.publish(2, "x", "a.c", b"m", {"delivery_mode": 2})
    wire.call(2, "tx.commit")
    wire.publish(2, "x", "a.c", b"m", {"delivery_mode": 2})
    subscriber, publisher, away = (Client(node.listens("mqtt.tcp.plain")) for _ in range(3))
    for client, name in ((subscriber, "s"), (publisher, "p"), (away, "away")):
        client.connect(name, **KEPT)
    subscriber.subscribe(("a/#", 2), ("$share/g/a/+", 1))
    away.subscribe(("a/#", 2))
    away.drop()
    for qos in (0, 1, 2):
        publisher.publish("a/b", b"m", qos, retain=qos == 1)
    publisher.send(Publish(topic="a/b", payload=b"m", qos=2, packet_id=1000))
    publisher.answer(Pubrec, packet_id=1000)
    return [wire, subscriber, publisher]


def stall(node: Node, clients: list[Client | Wire]) -> None:
    """Messages have come whose answers wait for the disk when the last turn of the broker has ended."""
    wire, _, publisher = clients
    node.call(lambda server: server.loop.remove_reader(server.poller.fileno()))
    assert isinstance(wire, Wire) and isinstance(publisher, Client)
    wire.publish(1, "", "q", b"m", {"delivery_mode": 2})
    publisher.send(*(Publish(topic="a/b", payload=b"m", qos=qos, packet_id=2000 + qos) for qos in (1, 2)))

    def last_turn(server: Server) -> None:
        held = server.hub.commits.waiting
        deadline = time.monotonic() + 20
        while server.hub.commits.waiting < held + 3 and time.monotonic() < deadline:    # both sockets have been read
            server.poller.turn()
    node.call(last_turn)


@pytest.mark.parametrize("storage", ["memory", "rocksdb"])
@pytest.mark.parametrize("end", ["left", "cut", "connected", "fenced", "stalled"])
def test_a_stopped_broker_is_collected(tmp_path: Path, storage: str, end: str) -> None:
    """end: what its clients have done before, or how it stops."""
    if (storage, end) == ("memory", "stalled"):
        pytest.skip("nothing waits for a disk")
    before = brokers(), live_objects(), len(os.listdir("/proc/self/fd"))
    node = Node(tmp_path, {"server.amqp091.plain.addr": "127.0.0.1:0", "storage.type": storage,
                           "server.shutdown_timeout": "1s"})
    clients: list[Client | Wire] = []
    try:
        clients += play(node)
        if end == "stalled":
            stall(node, clients)
        if end in ("fenced", "stalled"):
            node.call(lambda server: server.on_fenced("its lease has ended"))
        if end in ("left", "cut"):
            for client in clients:
                client.reset() if end == "cut" and isinstance(client, Client) else (
                    client.close() if isinstance(client, Client) else client.drop())
        if end == "left" and storage == "rocksdb":
            node.settle()
    finally:
        node.stop()
        for client in clients:
            client.close() if isinstance(client, Client) else client.drop()
    del node.server, node
    assert (brokers(), live_objects(), len(os.listdir("/proc/self/fd"))) == before


def test_a_fenced_broker_is_collected_while_its_loop_runs(tmp_path: Path) -> None:
    """Its turns fail, and a queue has work that only a turn can do."""
    config, _ = load(sets=[f"storage.dir={tmp_path / 'data'}", "server.health_enabled=false", "server.admin_socket=",
                           "server.mqtt.tcp.plain.addr=127.0.0.1:0", "server.mqtt.websocket.plain.addr=",
                           "server.amqp091.plain.addr="])
    before = brokers()

    async def live() -> None:
        server = Server(config)
        server.initialize()
        await server.start()
        queue = QueueAdmin(server.queues.manager).declare({"name": "q"}) and server.queues.manager.find(b"q")
        server.hub.serve_until(1)
        queue.notify()
        server.on_fenced("its lease has ended")
        await asyncio.sleep(0)
        await server.stop()

    async def run() -> None:
        await live()
        await asyncio.sleep(0)      # what was asked for before the stop
        assert brokers() == before

    asyncio.run(run())
