"""Whole brokers of a simulated cluster: production code from the bytes of clients to etcd's and the peers' ports.

    brokers = Brokers(seed, ["one", "two", "three"], store_of)
    brokers.start("one")                    # until it serves
    client = brokers.client("one", "c")     # an MQTT client's bytes
    client.connect(); client.subscribe("t", 1); client.publish("t", b"x", 1)
    brokers.run_for(1.0)
    brokers.kill("one"); brokers.pause("two"); brokers.resume("two")
    brokers.processes["one"].hang(); brokers.processes["one"].go_on()      # its disk
"""
from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from oracle.mqtt import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    parse,
)
from simulator.calls import ROOT, SimOps
from simulator.cluster.machines import Machines, Process
from simulator.cluster.network import Network
from simulator.cluster.transport import SimTransport
from simulator.disk import Disk
from simulator.node import Node, Options, Pipe

from fluxmq._core.errors import FencedError, ProtocolError
from fluxmq.cluster.claim import JoinRefused, OldStorage
from fluxmq.cluster.leaderless import LeaderWatch
from fluxmq.cluster.membership import Registration
from fluxmq.cluster.node import ClusterNode
from fluxmq.cluster.ports import CallFailed, MetadataStore, StoreError
from fluxmq.cluster.settings import Phase, Settings
from fluxmq.engine.definitions import EngineDefinitions
from fluxmq.model.replication import ReplicationSettings
from fluxmq.storage.node_identity import NodeIdentity

__all__ = ["BrokerProcess", "Brokers", "Client", "user_properties"]

TICK_S, WRITER_S = 0.25, 0.001
NOT_REPLICATED = ReplicationSettings()
GOODBYE_S = 0.03


class BrokerClock:
    """Clock of a simulator Node, from the clock of its process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def mono_ms(self) -> int:
        return self._process.now_ms()

    def read(self) -> tuple[int, int, int]:
        now = self._process.now_ms()
        return 1_700_000_000_000 + now, now, now


class BrokerProcess:
    """One broker and its lives, on a machine of its own: "" for one that is called as the node. node, cluster: of the
    present life."""

    node: Node
    cluster: ClusterNode

    def __init__(self, brokers: Brokers, name: str, machine: str = "") -> None:
        self.brokers = brokers
        self.name = name
        self.machine = machine = machine or name
        self.process = brokers.world.processes.get(machine) or brokers.world.process(machine)
        self.disk = Disk(random.Random(brokers.world.chance.getrandbits(64)))
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        self.started: Any = None
        self.fences = 0
        self.paused_s: float | None = None      # the deadline at which turns paused, as of Server
        self.pauses = 0
        self.hangs = False      # its disk
        self.directories = 0  # that it has had, for their identities

    def _new_identity(self) -> str:
        self.directories += 1
        return f"disk {self.directories} of {self.machine}"

    def start(self) -> None:
        """Begins a life; `serving` is true some time later."""
        process, brokers = self.process, self.brokers
        self.paused_s = None
        if not process.alive:
            process.start()
        driver = process.driver
        self.cluster = ClusterNode(
            Settings(self.name, ttl_s=brokers.ttl_s, shared=brokers.shared, disk_s=brokers.disk_s,
                     replication=brokers.raft),
            brokers.store_of(process), SimTransport(process, brokers.network, f"{self.machine}:7948"), driver,
            storage=NodeIdentity(ROOT, SimOps(self.disk), self._new_identity), clock_s=process.now,
            on_fenced=self._fenced, log=self._note, watch=brokers.watch_of(process),
            new_name=lambda: f"cluster that {self.name} has named",
            draw=lambda: 1 + brokers.drawn.getrandbits(62))
        self.node = Node(self.disk, BrokerClock(process), Options(),  # type: ignore[arg-type]
                         random.Random(brokers.world.chance.getrandbits(64)),
                         lambda level, text, fields: self.log.append((level, text, fields)), driver,
                         self.cluster.services)
        self.node.woken = True
        self.node.on_broker = self.cluster.attach
        self.node.before_recovery = self._attach
        self.node.start()
        self.cluster.stalled_s = lambda: self.node.keeper.stalls.seconds
        self.node.hub.wake = lambda: driver.soon(self.turn)
        driver.look(lambda: brokers.writer_s, self._write)
        driver.start(self._tick())
        self.started = driver.start(self.cluster.start(Registration(
            address=f"{self.machine}:7948", clients={"mqtt": f"{self.machine}:1883"})))

    def _attach(self) -> None:
        self.cluster.attach_stored(EngineDefinitions(self.node.broker.consumers.defined, self.node.exchanges))
        assert self.node.keeper.queues is not None
        self.cluster.attach_replicas(self.node.keeper.replicas, self.node.keeper.queues.copies,
                                     self.node.broker.consumers.hands, self.node.keeper.checkpoint_now)

    @property
    def serving(self) -> bool:
        return self.process.alive and self.cluster.phase is Phase.SERVING

    def turn(self) -> None:
        """What the loop does when something is ready."""
        if self.cluster.phase in (Phase.FENCED, Phase.STOPPED) or self._pauses():
            return
        try:
            self.node.turn()
        except FencedError as error:
            self._must_not_serve(error)

    def _must_not_serve(self, error: FencedError) -> None:
        member = self.cluster.membership
        if member.may_return:
            self.paused_s = member.deadline_s
            self.pauses += 1
        else:
            member.fence(str(error))

    def _pauses(self) -> bool:
        member = self.cluster.membership
        if self.paused_s is not None and not (member.may_return and member.deadline_s == self.paused_s):
            self.paused_s = None
        return self.paused_s is not None

    async def stop(self) -> None:
        """As SIGTERM (`Server.stop`): hands sessions over, says goodbye to the other clients, leaves the cluster. What
        was recorded is on the disk then, and the process has ended."""
        cluster, node, life = self.cluster, self.node, self.process.life
        await cluster.holdings.leaver.leave(lambda client, name: client.send_away(0x9C, f"{name}:1883"))
        node.broker.stopping = True
        for connection in list(node.poller.connections):
            if connection.state is not None:
                connection.state.send_away(0x9C, "")
            connection.end()
        self.turn()
        await self.process.driver.sleep(GOODBYE_S)
        for connection in list(node.poller.connections):
            connection.abort()
        await cluster.stop()
        await self.process.driver.sleep(GOODBYE_S)
        self.brokers.world.events.soon(partial(self._end_life, life))

    def _end_life(self, life: int) -> None:
        """As ClusterRuntime.end_life, and the turns after it in which the disk gets what is still to be written."""
        if self.process.life == life:
            self.process.driver.cancel_all()
            with contextlib.suppress(FencedError):      # as Server: the lease has ended, so no turn begins
                while not self.hangs and self.node.write_journal():
                    self.node.turn()
            self.process.kill()

    def _write(self) -> bool:
        """The journal's writer, once. Whether it did something, or what is there has to wait."""
        if self.hangs:
            return False
        if self.node.write_journal():
            self.turn()
            return True
        journal = self.node.journal
        return bool(journal.backlog()) or journal.firm != journal.durable

    def hang(self) -> None:
        """No call of the disk returns from now on: the journal's writer stands still, and so do other threads."""
        self.hangs = self.process.driver.held = True

    def go_on(self) -> None:
        """The calls return. Of a life that has lost its lease meanwhile the writer may have written what was gathered,
        before it was noticed that the disk goes on."""
        self.hangs = self.process.driver.held = False
        if self.cluster.phase is Phase.FENCED and self.brokers.world.chance.random() < 0.5:
            while self.node.journal.work():
                pass

    async def _tick(self) -> None:
        driver = self.process.driver
        while self.cluster.phase not in (Phase.FENCED, Phase.STOPPED):
            await driver.sleep(TICK_S)
            if self._pauses():
                continue
            try:
                self.node.tick()
            except FencedError as error:
                self._must_not_serve(error)

    def _note(self, level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        self.log.append((level, text, {"cause": cause, **fields}))

    def _fenced(self, why: str) -> None:
        """As Server: the connections are closed without a word, and the broker is built anew from its disk."""
        self.fences += 1
        self.brokers.ending(self)
        self.log.append(("critical", "fenced", {"why": why}))
        for pipe in self.node.pipes.values():
            pipe.broker_closed = True
        self.brokers.world.events.soon(self._again)

    def _again(self) -> None:
        if self.hangs:          # what a start would read and write is not to be had
            self.brokers.world.events.later(TICK_S, self._again)
        elif self.process.alive:
            self.node.hub.ledger.submit()
            while self.node.write_journal():        # as Server closes its disk: what was recorded is on it
                pass
            self.process.kill()
            self.start()


def user_properties(users: dict[str, str]) -> list[tuple[str, Any]]:
    """users: with _ for -."""
    return [("user_property", (name.replace("_", "-"), value)) for name, value in users.items()]


class Client:
    """An MQTT client: its bytes, and what it got. It acknowledges what it receives."""

    def __init__(self, brokers: Brokers, at: str, name: str) -> None:
        self.brokers = brokers
        self.at = at
        self.name = name
        self.pipe: Pipe | None = None
        self.life = 0
        self.got: list[Packet] = []
        self.messages: list[tuple[str, bytes]] = []
        self.packet_id = 0
        self.connacks: list[Connack] = []  # of all connections
        self.acks = True  # whether it acknowledges
        self.refuses = 0  # the reason code with which it does
        self.unreleased: set[int] = set()  # packet identifiers of QoS 2 messages that it has received

    def connect(self, *, clean_start: bool = True, expiry_s: int = 0, at: str | None = None,
                will: Will | None = None, receive_maximum: int = 0, keep_alive: int = 60) -> None:
        self.at = at or self.at
        broker = self.brokers.processes[self.at]
        if not broker.process.alive or broker.cluster.phase is not Phase.SERVING:
            self.pipe = None
            return
        self.pipe, self.life = broker.node.accept_mqtt(), broker.process.life
        self.got = [packet for packet in self.got if not isinstance(packet, Connack)]
        properties: list[tuple[str, Any]] = [("session_expiry_interval", expiry_s)] if expiry_s else []
        if receive_maximum:
            properties.append(("receive_maximum", receive_maximum))
        self.send(Connect(client_id=self.name, clean_start=clean_start, will=will, properties=properties,
                          keep_alive=keep_alive))

    def leave(self) -> None:
        """Breaks the connection."""
        assert self.pipe is not None
        self.pipe.client_closed = self.pipe.reset = True
        self.brokers.processes[self.at].process.driver.soon(self.brokers.processes[self.at].turn)

    @property
    def open(self) -> bool:
        broker = self.brokers.processes[self.at]
        return (self.pipe is not None and not self.pipe.broker_closed and not self.pipe.client_closed
                and broker.process.alive
                and broker.process.life == self.life)

    def send(self, packet: Packet) -> None:
        if self.pipe is not None and self.open:
            self.pipe.to_broker += packet.encode(V5)
            self.brokers.processes[self.at].process.driver.soon(self.brokers.processes[self.at].turn)

    def subscribe(self, filter_: str, qos: int = 0, **users: str) -> int:
        """users: user properties, with _ for -."""
        self.packet_id += 1
        self.send(Subscribe(packet_id=self.packet_id, filters=[(filter_, qos)], properties=user_properties(users)))
        return self.packet_id

    def unsubscribe(self, filter_: str) -> int:
        self.packet_id += 1
        self.send(Unsubscribe(packet_id=self.packet_id, filters=[filter_]))
        return self.packet_id

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, **users: str) -> int:
        """users: user properties, with _ for -."""
        if qos:
            self.packet_id += 1
        self.send(Publish(topic=topic, payload=payload, qos=qos, packet_id=self.packet_id if qos else None,
                          retain=retain, properties=user_properties(users)))
        return self.packet_id

    def read(self) -> None:
        """Takes what the broker has sent."""
        if self.pipe is None or not self.pipe.to_client:
            return
        while True:
            found = parse(bytes(self.pipe.to_client), V5)
            if found is None:
                return
            packet, rest = found
            self.pipe.to_client[:] = rest
            self.got.append(packet)
            if isinstance(packet, Connack):
                self.connacks.append(packet)
                if not packet.session_present:
                    self.unreleased.clear()
            if isinstance(packet, Publish):
                if packet.packet_id is None or packet.packet_id not in self.unreleased:
                    self.messages.append((packet.topic, packet.payload))
                if packet.qos == 2 and packet.packet_id is not None:
                    self.unreleased.add(packet.packet_id)
                if packet.qos == 1 and self.acks:
                    self.send(Puback(packet_id=packet.packet_id, reason=self.refuses))
                elif packet.qos == 2 and self.acks:
                    self.send(Pubrec(packet_id=packet.packet_id, reason=self.refuses))
            elif isinstance(packet, Pubrec):
                self.send(Pubrel(packet_id=packet.packet_id))
            elif isinstance(packet, Pubrel):
                self.unreleased.discard(packet.packet_id)
                self.send(Pubcomp(packet_id=packet.packet_id))

    def of(self, kind: type[Packet]) -> list[Any]:
        """What it got of a kind."""
        return [packet for packet in self.got if isinstance(packet, kind)]

    def acknowledged(self, packet_id: int) -> bool:
        """Whether the broker has answered this packet."""
        return any(isinstance(packet, Puback | Pubcomp | Suback | Unsuback) and packet.packet_id == packet_id
                   for packet in self.got)

    @property
    def connected(self) -> bool:
        return self.open and any(isinstance(packet, Connack) and packet.reason == 0 for packet in self.got)

    @property
    def ended(self) -> list[int]:
        """Reasons of DISCONNECT packets."""
        return [packet.reason for packet in self.of(Disconnect)]


class Brokers:
    """shared: as Settings'. store_of: makes the metadata store of a process, for each of its lives. watch_of: the watch
    of its member of etcd, which runs. raft: of replication groups. writer_s: how often a journal is written; rarely
    makes a long history fast."""

    def __init__(self, seed: int, names: list[str], store_of: Callable[[Process], MetadataStore], *, ttl_s: int = 10,
                 world: Machines | None = None, network: Network | None = None,
                 watch_of: Callable[[Process], LeaderWatch | None] = lambda process: None,
                 writer_s: float = WRITER_S, shared: bool = True,
                 raft: ReplicationSettings = NOT_REPLICATED) -> None:
        self.shared = shared
        self.raft = raft
        self.drawn = random.Random(seed)  # what nodes draw beside the world's chance
        self.world = world or Machines(seed)
        self.network = network or Network(self.world)
        self.store_of = store_of
        self.watch_of = watch_of
        self.writer_s = writer_s
        self.store: Any = None  # for tests that look into it
        self.ttl_s = ttl_s
        self.disk_s = Settings("").disk_s
        self.processes = {name: BrokerProcess(self, name) for name in names}
        self.clients: list[Client] = []
        self.ending: Callable[[BrokerProcess], object] = lambda broker: None    # called before a life ends
        self.world.checks.append(self._read)

    def _read(self) -> None:
        for client in self.clients:
            client.read()
        for broker in self.processes.values():
            for error in broker.process.driver.crashed:
                assert isinstance(error, ProtocolError | StoreError | CallFailed | JoinRefused | OldStorage
                                  | asyncio.CancelledError), repr(error)
            for error in broker.process.driver.unretrieved:
                raise AssertionError("a task has failed, and nobody looks at it") from error
            assert not (hasattr(broker, "node") and broker.node.crashes), broker.node.crashes

    def start(self, *names: str) -> None:
        """Starts these, or all, and waits until they serve."""
        for name in names or self.processes:
            self.processes[name].start()
        self.world.run_until(lambda: all(self.processes[name].serving for name in names or self.processes), 60.0)

    def client(self, at: str, name: str) -> Client:
        client = Client(self, at, name)
        self.clients.append(client)
        return client

    def end_lease_of(self, name: str) -> None:
        """For a store whose leases end only when a test says so."""
        raise NotImplementedError

    def break_streams(self) -> None:
        """Each connection between nodes breaks at both sides."""
        for connection in list(self.network.connections):
            for side in connection.sides:
                side.give_up()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.ending(self.processes[name])
        self.processes[name].process.kill()

    def run_for(self, seconds: float) -> None:
        self.world.run_for(seconds)

    def run_until(self, condition: Callable[[], object], limit_s: float = 30.0) -> None:
        self.world.run_until(condition, limit_s)
