"""Two tenants with the same names for everything never meet: each sees in the company of the other exactly what it sees
alone, and nothing that the other has published.

A history of operations of both protocols is drawn for each tenant, played by each alone on a node of its own (that is
its oracle), and by both together on one node, mixed at random. All payloads begin with their tenant. After each
operation everything has come to rest and is noted: what each client received, what answers said, what the operator's
lists say. A crash is a kill of the process in both plays, before the same operation of each tenant.
"""
from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crash.process import CrashBroker
from kit.amqp_wire import Content, Refused, Wire
from kit.client import Client, Closed
from kit.node import Node
from oracle.mqtt import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
    Will,
)

from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.app.server import Server
from fluxmq.engine.broker import Broker
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.sessions.line import SessionLine

TENANTS = {"a": "tenant-a", "b": "tenant-b"}
CLIENTS = ("c0", "c1", "c2")
TOPICS = ("t/1", "t/2", "u/1")
FILTERS = ("t/#", "t/1", "+/1", "#", "$share/g/t/+", "$share/g/u/1", "$share/h/t/+")
QUEUES = ("q", "s")
QUEUE_FILTERS = ("$queue/q", "$queue/q.dlq", "$queue/s", "$share/workers/$queue/q")
KEYS = ("k.1", "k.2", "t.1")
QUEUED = '[{"name": "q", "namespace": "%s"}, {"name": "s", "namespace": "%s", "type": "stream"}]'
CONFIGURATION: dict[str, object] = {
    "namespaces": '["tenant-a", "tenant-b"]', "server.amqp091.plain.addr": "127.0.0.1:0",
    "queues": ("[" + ", ".join((QUEUED % (name, name))[1:-1] for name in TENANTS.values()) + "]")}
Operation = tuple[str, tuple[Any, ...]]


# ---------------------------------------------------------------- what is played

def draw(chance: random.Random, count: int) -> list[Operation]:
    """The history of one tenant."""
    pick = chance.choice
    kinds: dict[str, Callable[[], tuple[Any, ...]]] = {
        "connect": lambda: (pick(CLIENTS), chance.random() < 0.3, pick([None, "t/1", "u/1"])),
        "leave": lambda: (pick(CLIENTS), chance.random() < 0.5),
        "subscribe": lambda: (pick(CLIENTS), pick(FILTERS), pick([0, 1, 2])),
        "consume": lambda: (pick(CLIENTS), pick(QUEUE_FILTERS)),
        "unsubscribe": lambda: (pick(CLIENTS), pick(FILTERS + QUEUE_FILTERS)),
        "publish": lambda: (pick(CLIENTS), pick(TOPICS), pick([0, 1, 2]), chance.random() < 0.3),
        "clear": lambda: (pick(CLIENTS), pick(TOPICS)),
        "enqueue": lambda: (pick(CLIENTS), pick(QUEUES), chance.random() < 0.2),
        "reject": lambda: (),
        "declare": lambda: (pick(["direct", "topic"]),),
        "bind": lambda: (pick(["x", "amq.topic"]), pick(["k.*", "t.*", "t.1", "#"]), chance.random() < 0.7),
        "bind_exchange": lambda: (pick(["t.#", "k.1"]),),
        "amqp_publish": lambda: (pick(["x", "amq.topic", ""]), pick(KEYS)),
        "get": lambda: (),
        "purge": lambda: (pick((*QUEUES, "w")),),
        "kick": lambda: (pick(CLIENTS),),
        "look": lambda: (),
    }
    weights = [3 if kind in ("publish", "subscribe", "enqueue", "consume", "amqp_publish") else 1 for kind in kinds]
    found = chance.choices(list(kinds), weights, k=count)
    return [(kind, kinds[kind]()) for kind in found]


class World:
    """Where it is played: a broker in this process, or one that can be killed."""

    def __init__(self, directory: Path, *, process: bool) -> None:
        self.directory = directory
        self.broker: CrashBroker | None = None
        self.node: Node | None = None
        if process:
            self.broker = CrashBroker(directory, {"server.mqtt.websocket.plain.addr": "", **CONFIGURATION})
            self.broker.start()
        else:
            self.node = Node(directory, CONFIGURATION)
        self.socket = directory / "data" / "admin.sock"

    def address(self, slot: str) -> tuple[str, int]:
        if self.node is not None:
            return self.node.listens(slot)
        assert self.broker is not None
        return self.broker.addresses[slot.replace(".", "/")]

    def crash(self) -> None:
        if self.broker is not None:
            self.broker.crash()
            self.broker.start()
        elif self.node is not None:
            self.node.stop()
            self.node = Node(self.directory, CONFIGURATION)

    def stop(self) -> None:
        for one in (self.node, self.broker):
            if one is not None:
                one.stop()


class Tenant:
    """One of them, at a world. noted: what it saw, operation by operation."""

    def __init__(self, world: World, tag: str) -> None:
        self.world, self.tag, self.namespace = world, tag, TENANTS[tag]
        self.clients: dict[str, Client] = {}
        self.noted: list[Any] = []
        self.count = 0
        self.rejecting = False
        self.open()

    # ------------------------------------------------------------------ life

    def open(self) -> None:
        self.admin = AdminClient(self.world.socket)
        self.flusher = self.login("flusher", False, None)
        self.wire = Wire(self.world.address("amqp091.plain")).login(vhost=self.namespace)
        self.wire.open_channel()

    def login(self, client_id: str, clean: bool, will: str | None) -> Client:
        client = Client(self.world.address("mqtt.tcp.plain"))
        client.connect(client_id, username=f"{self.namespace}:user", clean_start=clean,
                       properties={"session_expiry_interval": 600},
                       will=Will(topic=will, payload=self.payload("will"), qos=1) if will else None)
        return client

    def close(self) -> None:
        for client in (*self.clients.values(), self.flusher):
            client.close()
        self.clients.clear()
        with contextlib.suppress(OSError):
            self.wire.socket.close()
        self.admin.close()

    def client(self, name: str) -> Client:
        if name not in self.clients:
            self.clients[name] = self.login(name, False, None)
        return self.clients[name]

    def payload(self, what: str = "") -> bytes:
        self.count += 1
        return f"{self.tag}|{self.count}{what}".encode()

    def mine(self, payload: bytes) -> str:
        """What is behind the tenant's name: nothing of the other ever comes here. What clears a topic has no name."""
        if not payload:
            return ""
        tag, _, rest = payload.decode().partition("|")
        assert tag == self.tag, f"tenant {self.tag} got {payload!r}"
        return rest

    # ------------------------------------------------------------------ an operation, and what it led to

    def do(self, operation: Operation) -> None:
        name, arguments = operation
        said = getattr(self, name)(*arguments)
        self.noted.append((operation, said, self.rest()))

    def rest(self) -> list[Any]:
        """Until nothing comes any more: what came, of each client in its order."""
        found: dict[str, list[Any]] = {}
        while True:
            # what the disk is to know first is answered behind all that was done before
            self.flusher.subscribe("flush", qos=1)
            self.flusher.unsubscribe("flush")
            came = [(name, one) for name, client in sorted(self.clients.items()) for one in self.ping(client)]
            if not came:
                # what matches several subscriptions comes in an order that a secret of the node decides
                return sorted((name, sorted(map(str, all_))) for name, all_ in found.items())
            for name, one in came:
                found.setdefault(name, []).append(one)

    def ping(self, client: Client) -> list[Any]:
        client.send(Pingreq())
        found = []
        while not isinstance(packet := client.recv(), Pingresp):
            if isinstance(packet, Pubrel):
                client.send(Pubcomp(packet_id=packet.packet_id))
                found.append("released")
                continue
            assert isinstance(packet, Publish), packet
            found.append((packet.topic, self.mine(packet.payload), packet.qos, packet.retain))
            self.answer(client, packet)
        return found

    def ended(self, client: Client) -> int:
        """The broker ends the connection: the reason that it says. What comes before, perhaps its own will, is ours."""
        reason = 0
        with contextlib.suppress(Closed):
            while True:
                packet = client.recv()
                if isinstance(packet, Publish):
                    self.mine(packet.payload)
                else:
                    assert isinstance(packet, Disconnect), packet
                    reason = packet.reason
        client.close()
        return reason

    def answer(self, client: Client, packet: Publish) -> None:
        if self.rejecting and packet.topic.startswith("$queue/q"):
            self.rejecting = False
            said = dict(value for name, value in packet.properties if name == "user_property")
            client.publish(f"$queue/{said['queue']}/$reject", b"", 0, properties=[
                ("user_property", (name, said[name])) for name in ("message-id", "group-id")])
        elif packet.qos:
            client.send(Puback(packet_id=packet.packet_id) if packet.qos == 1 else Pubrec(packet_id=packet.packet_id))

    # ------------------------------------------------------------------ MQTT

    def connect(self, name: str, clean: bool, will: str | None) -> object:
        former = self.clients.pop(name, None)
        self.clients[name] = self.login(name, clean, will)
        if former is not None:
            assert self.ended(former) == 0x8E
        connack = self.clients[name].connack
        return connack is not None and connack.session_present

    def leave(self, name: str, politely: bool) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            client.disconnect() if politely else client.drop()

    def subscribe(self, name: str, filter_: str, qos: int) -> object:
        return self.client(name).subscribe(filter_, qos=qos).reasons

    def consume(self, name: str, filter_: str) -> object:
        return self.client(name).subscribe(filter_, qos=1).reasons

    def unsubscribe(self, name: str, filter_: str) -> object:
        client = self.client(name)
        packet_id = client.next_packet_id()
        client.send(Unsubscribe(packet_id=packet_id, filters=[filter_]))
        return client.answer(Unsuback, packet_id=packet_id).reasons

    def publish(self, name: str, topic: str, qos: int, retain: bool) -> None:
        self.client(name).publish(topic, self.payload(), qos, retain=retain)

    def clear(self, name: str, topic: str) -> None:
        self.client(name).publish(topic, b"", 1, retain=True)

    def enqueue(self, name: str, queue: str, delayed: bool) -> None:
        far = [("user_property", ("x-delay", "36000000"))] if delayed and queue == "q" else []
        self.client(name).publish(f"$queue/{queue}", self.payload(), 1, properties=far)

    def reject(self) -> None:
        self.rejecting = True

    # ------------------------------------------------------------------ AMQP

    def call(self, name: str, **arguments: Any) -> object:
        """What a method is answered; a refusal closes the channel, and a new one is opened."""
        try:
            self.wire.call(1, name, **arguments)
            return "ok"
        except Refused as refused:
            self.wire.open_channel()
            return refused.code

    def declare(self, type_: str) -> object:
        return (self.call("exchange.declare", exchange="x", type=type_, durable=True),
                self.call("queue.declare", queue="w", durable=True))

    def bind(self, exchange: str, key: str, there: bool) -> object:
        return self.call("queue.bind" if there else "queue.unbind", queue="w", exchange=exchange, routing_key=key)

    def bind_exchange(self, key: str) -> object:
        return self.call("exchange.bind", destination="x", source="amq.topic", routing_key=key)

    def amqp_publish(self, exchange: str, key: str) -> object:
        self.wire.publish(1, exchange, key if exchange else "w", self.payload("amqp"), {"delivery_mode": 2})
        return self.call("confirm.select") if exchange != "x" else self.call("basic.qos", prefetch_count=0)

    def get(self) -> object:
        self.wire.send(1, "basic.get", queue="w", no_ack=True)
        name, found = self.wire.next(1)
        while name in ("basic.ack", "basic.nack"):
            name, found = self.wire.next(1)
        if isinstance(found, Content):
            return self.mine(found.body), found.arguments["exchange"], found.arguments["message_count"]
        if name == "channel.close":
            self.wire.send(1, "channel.close-ok")
            self.wire.open_channel()
        return name

    # ------------------------------------------------------------------ operators

    def queues(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin.ask("GET", "queues", query={"namespace": self.namespace})["queues"]
        return found

    def purge(self, queue: str) -> object:
        try:
            return self.admin.ask("POST", "queues", queue, "purge", query={"namespace": self.namespace})
        except AdminError as error:
            return error.word

    def kick(self, name: str) -> object:
        try:
            self.admin.ask("DELETE", "clients", name, query={"namespace": self.namespace})
        except AdminError as error:
            return error.word
        return self.ended(self.clients.pop(name))

    def look(self) -> object:
        about = self.admin.ask("GET", "namespaces", self.namespace)
        clients = self.admin.ask("GET", "clients", query={"namespace": self.namespace})["clients"]
        counts = ("messages", "ready", "delayed", "groups", "consumers", "dead_letters")
        return ([about[key] for key in ("connections", "sessions", "queues", "retained", "bytes")],
                [(one["name"].removeprefix(self.namespace), *(one[key] for key in counts)) for one in self.queues()],
                sorted((one["client_id"], one["subscriptions"]) for one in clients
                       if not one["client_id"].startswith("amqp091-")))

    def came_back(self) -> None:
        """The broker was killed: who was connected is so no more."""
        self.rejecting = False
        self.noted.append(("crash", self.look(), self.rest()))


def miscounted(server: Server) -> list[str]:
    """The namespaces whose count of bytes is not the sum of what is there."""
    found = []
    for namespace in server.hub.namespaces.values():
        queues = [queue for queue in server.queues.manager.states if queue.namespace is namespace]
        kept = namespace.topics.retained_bytes + sum(
            session.queued_bytes for session in server.broker.sessions.values() if session.namespace is namespace)
        kept += sum(log.kept_bytes for queue in queues for log in (
            *queue.logs, *([queue.delays.log] if queue.delays is not None else [])))
        if namespace.bytes != kept:
            found.append(f"{namespace.text}: {namespace.bytes} for {kept}")
    return found


def play(directory: Path, histories: dict[str, list[Operation]], chance: random.Random, crash_at: Sequence[int],
         process: bool) -> dict[str, list[Any]]:
    """What each tenant notes. crash_at: when each has done so many operations, which it waits for, there is a crash."""
    world = World(directory, process=process)
    tenants = {tag: Tenant(world, tag) for tag in histories}
    done = dict.fromkeys(histories, 0)
    try:
        for stop in (*crash_at, len(histories[min(histories)])):
            order = [tag for tag in tenants for _ in range(stop - done[tag])]
            chance.shuffle(order)
            for tag in order:
                tenants[tag].do(histories[tag][done[tag]])
                done[tag] += 1
            if stop in crash_at:
                for tenant in tenants.values():
                    tenant.close()
                world.crash()
                for tenant in tenants.values():
                    tenant.open()
                for tenant in tenants.values():
                    tenant.came_back()
        for tenant in tenants.values():
            tenant.do(("look", ()))
        if world.node is not None:
            assert world.node.call(miscounted) == []
        return {tag: tenant.noted for tag, tenant in tenants.items()}
    finally:
        for tenant in tenants.values():
            tenant.close()
        world.stop()


def compare(directory: Path, seed: int, count: int, crash_at: Sequence[int] = (), *, process: bool = False) -> None:
    chance = random.Random(seed)
    histories = {tag: draw(chance, count) for tag in TENANTS}
    alone = {tag: play(directory / tag, {tag: histories[tag]}, chance, crash_at, process)[tag] for tag in TENANTS}
    together = play(directory / "both", histories, chance, crash_at, process)
    for tag in TENANTS:
        for number, (wanted, found) in enumerate(zip(alone[tag], together[tag], strict=True)):
            assert found == wanted, f"seed {seed}, tenant {tag}, operation {number}"


SEEDS = [int(text) for text in os.environ.get("FLUXMQ_TEST_TENANTS", "1 2 3 4 5 6").split()]


@pytest.mark.parametrize("seed", SEEDS)
def test_they_never_meet(tmp_path: Path, seed: int) -> None:
    compare(tmp_path, seed, 60)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_they_never_meet_although_the_broker_is_killed(tmp_path: Path, seed: int) -> None:
    compare(tmp_path, 100 + seed, 45, (15, 30), process=True)


# ---------------------------------------------------------------- planted: what the above must find

def is_found(directory: Path, crash_at: Sequence[int] = ()) -> bool:
    """Whether one of a few histories shows it."""
    for seed in range(1, 6):
        try:
            compare(directory / str(seed), seed, 60, crash_at)
        except AssertionError as error:
            print(f"seed {seed}: {str(error)[:200]}")
            return True
    return False


class Blind(dict[Any, Any]):
    """Share groups by name and filter alone."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key[1:])

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key[1:])


def test_planted_share_groups_without_their_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Broker.__init__

    def blind(self: Broker, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.groups = Blind()

    monkeypatch.setattr(Broker, "__init__", blind)
    assert is_found(tmp_path)


def test_planted_namespaces_that_recovery_mixes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = SessionLine._make

    def mixed_up(self: SessionLine, number: int, head: Any) -> Any:
        other = {1: 2, 2: 1}.get(head.namespace, head.namespace)
        return make(self, number, msgspec.structs.replace(head, namespace=other))

    monkeypatch.setattr(SessionLine, "_make", mixed_up)
    assert is_found(tmp_path, (30,))


def test_planted_queues_found_by_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = QueueManager.find

    def first(self: QueueManager, name: bytes, namespace: bytes = b"/") -> Any:
        return next((state.queue for (_, known), state in self.queues.items() if known == name), None) or find(
            self, name, namespace)

    monkeypatch.setattr(QueueManager, "find", first)
    assert is_found(tmp_path)
