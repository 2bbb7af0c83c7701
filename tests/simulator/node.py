"""A node as app/server.py builds it, without sockets, threads and clocks: production code from the bytes of connections
down to the calls of the disk.

    node = Node(disk, clock, options)
    node.start()                        # raises what a start raises
    pipe = node.accept_mqtt()           # the client's end of a new connection
    node.turn(); node.write_journal(); node.tick(); node.driver.run_thread()
"""
from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from ssl import SSLWantReadError, SSLWantWriteError
from typing import Any, cast
from weakref import WeakSet

from simulator.calls import ROOT, SimOps, View, journal_calls
from simulator.disk import Disk
from simulator.driver import SimDriver

from fluxmq._core.disk.journal import JOURNAL_FAILED, Journal
from fluxmq._core.errors import FluxError, StorageError
from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.hub.amqp091_bridge import publish_amqp
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.amqp091_connection import AmqpConnection, Bodies
from fluxmq._core.net.connection import Connection
from fluxmq._core.net.poller import Poller
from fluxmq._core.net.transport import Transport
from fluxmq._core.queue.queue import Queue
from fluxmq.access.authority import Authority
from fluxmq.cluster.solo import solo
from fluxmq.edge.amqp091.bodies import BodyTurns
from fluxmq.edge.amqp091.channel import ChannelMethods
from fluxmq.edge.amqp091.clients import Clients
from fluxmq.edge.amqp091.front import Front as AmqpFront
from fluxmq.edge.amqp091.options import FrontOptions as AmqpOptions
from fluxmq.edge.amqp091.tally import Tally as AmqpTally
from fluxmq.edge.asking import Asking
from fluxmq.edge.mqtt.front import Front
from fluxmq.edge.mqtt.options import FrontOptions
from fluxmq.edge.mqtt.tally import Tally
from fluxmq.engine.broker import Broker
from fluxmq.engine.durability import Keeper
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.consumers import QueueConsumers
from fluxmq.engine.queues.disk_full import QueueSpace
from fluxmq.engine.queues.limits import LimitedConsumers
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.store import QueueKeeper
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.lock import StorageLock
from fluxmq.storage.segments import SegmentStore
from fluxmq.storage.store import RocksStore

__all__ = ["Clock", "Node", "Options", "Pipe"]

EPOLLIN, EPOLLOUT, EPOLLHUP = 1, 4, 0x10
TLS_RECORD_BYTES = 16384  # more is never pending, for which the broker has room behind what it reads
_numbers = count(2)


class Clock:
    """The three clocks of a machine. wall: may be set."""

    def __init__(self) -> None:
        self.mono_ms = 1_000_000
        self.wall_ms = 1_700_000_000_000

    def advance(self, ms: int) -> None:
        self.mono_ms += ms
        self.wall_ms += ms

    def read(self) -> tuple[int, int, int]:
        return self.wall_ms, 1_700_000_000_000 + self.mono_ms - 1_000_000, self.mono_ms


@dataclass
class Options:
    """What a configuration says, as far as histories vary it."""

    journal_bytes: int = 4096           # of a file
    checkpoint_bytes: int = 1 << 30     # of the journal until a checkpoint begins by itself
    segment_bytes: int = 1024
    small_bytes: int = 0                # of a log, that stay in the view
    cache_bytes: int = 0
    compression: str = "none"
    durability: str = "fsync"
    virtual_hosts: tuple[str, ...] = ("/", "v")
    queues: list[QueueSpec] = field(default_factory=list)


class Pipe:
    """The bytes between one client and the broker. It stands where the TLS layer does, so that it takes the place of
    the socket too. room: bytes that the client's side takes until it reads; None: any number."""

    def __init__(self) -> None:
        self.to_broker = bytearray()
        self.to_client = bytearray()
        self.room: int | None = None
        self.client_closed = False
        self.reset = False          # a broker that does not read notices it too
        self.broker_closed = False

    # ── the broker's end, as an ssl.SSLSocket ────────────────────────────────────────────────────────────

    def do_handshake(self) -> None:
        pass

    def read(self, size: int, into: memoryview) -> int:
        if not self.to_broker:
            if self.client_closed:
                return 0
            raise SSLWantReadError
        part = bytes(self.to_broker[:size])
        del self.to_broker[:size]
        into[:len(part)] = part
        return len(part)

    def send(self, data: memoryview) -> int:
        if self.client_closed:
            raise ConnectionResetError
        size = len(data) if self.room is None else min(len(data), self.room - len(self.to_client))
        if size <= 0:
            raise SSLWantWriteError
        self.to_client += data[:size]
        return size

    def pending(self) -> int:
        return min(len(self.to_broker), TLS_RECORD_BYTES)

    def getpeercert(self) -> None:
        return None

    def unwrap(self) -> None:
        self.broker_closed = True

    def close(self) -> None:
        self.broker_closed = True


class SimStore(RocksStore):
    """The store, but for the lock, RocksDB and the writer's thread."""

    def __init__(self, disk: Disk, driver: SimDriver, identity: int, options: Options) -> None:
        super().__init__(ROOT, identity=identity, durability=options.durability, file_bytes=options.journal_bytes,
                         lock=StorageLock(ROOT), file_ops=journal_calls(disk), ops=SimOps(disk))
        self.disk, self.driver = disk, driver

    def start(self) -> None:
        ops = SimOps(self.disk)
        for name in ("journal", "state"):
            if not ops.exists(ROOT / name):
                ops.mkdir(ROOT / name)
        ops.sync_directory(ROOT)
        super().start()

    def _open_view(self) -> Any:
        return View(self.disk)

    def _start_writer(self, journal: Journal) -> threading.Thread | None:
        return None

    async def _in_thread(self, step: Callable[[], None]) -> None:
        work = self.driver.blocking(step)
        work.add_done_callback(self._checkpoint_ended)
        await self.driver.result_of(work)


LIVES: WeakSet[Node] = WeakSet()    # whoever has no more use for them ends their hubs: see Hub.end


class Node:
    """One life of the broker. chance: of what production takes from the system's randomness. told: gets log lines.
    driver: of the process, which others of its parts use too. cluster: the other nodes; None: there are none."""

    def __init__(self, disk: Disk, clock: Clock, options: Options, chance: random.Random,
                 told: Callable[[str, str, dict[str, Any]], None], driver: SimDriver | None = None,
                 cluster: Cluster | None = None) -> None:
        self.disk, self.clock, self.options = disk, clock, options
        self.told = told
        self.failed: FluxError | None = None
        self.crashes: list[BaseException] = []
        self.driver = driver or SimDriver(lambda: clock.mono_ms)
        self.runs_driver = driver is None
        self.cluster = cluster or solo()
        self.on_broker: Callable[[Broker], object] = lambda broker: None
        self.before_recovery: Callable[[], object] = lambda: None
        self.pipes: dict[Transport, Pipe] = {}
        self.journal_speaks = False
        self.woken = False      # the broker asks for a turn
        self._chance = chance
        self._ticks = 0
        LIVES.add(self)
        self.store = SimStore(disk, self.driver, chance.getrandbits(63), options)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Everything from app/server.py's initialize() and start()."""
        options, chance = self.options, self._chance
        self.store.start()
        assert self.store.journal is not None
        self.journal = self.store.journal
        self.hub = hub = Hub(self.journal, 64, chance.getrandbits(64))
        hub.wake = self._wake
        hub.disk.backlog_max, hub.disk.ahead_max = 1 << 24, 1 << 24
        self.poller = Poller(hub, 0, self.clock.read)
        cluster = self.cluster
        self.broker = Broker(hub, None, self.note, cluster=cluster)
        self.on_broker(self.broker)
        self.keeper = Keeper(self.broker, self.store, options.checkpoint_bytes, self.driver)
        # Histories say themselves when a checkpoint is taken, and tests look at what is in memory after minutes.
        self.keeper.quiet_ms = 0
        self.manager = QueueManager(hub, "", self.note, cluster=cluster)
        self.segments = SegmentStore(ROOT, segment_bytes=options.segment_bytes, compression=options.compression,
                                     ops=SimOps(self.disk))
        self.keeper.queues = QueueKeeper(self.manager, self.segments, options.cache_bytes, self.driver,
                                         small_bytes=options.small_bytes)
        self.broker.consumers = QueueConsumers(self.manager, self.note, self.broker.relays, self.broker.hosts)
        self.limited = LimitedConsumers(self.manager)
        self.queue_clock = QueueClock(self.manager, 0, self.keeper.clock.stamp_of_age, self.driver.later)
        self.space = QueueSpace(self.manager, self.disk, self.driver, self.note)
        authority = Authority(None, None, True)
        hub.open_publish, hub.access_generation = authority.open_publish, authority.generation
        asking = Asking(authority, self.note, start=cast(Any, self.driver.start))
        self.exchanges = ExchangeManager(hub, seed=chance.getrandbits(63), cluster=cluster)
        self.amqp_queues = AmqpQueues(self.manager, chance.randbytes, self._route, self.broker.hosts)
        self.amqp_queues.dead.on_published = self._dead_letter
        self.keeper.exchanges = ExchangeKeeper(self.exchanges, self.manager)
        self.channels = ChannelMethods(hub, self.exchanges, self.amqp_queues, asking, self.broker.relays,
                                       later=self.driver.later, consumer_timeout_ms=1 << 40, on_log=self.note)
        self.clients = Clients(BodyTurns(Bodies(1 << 20, 64 << 20), self.note))
        self.mqtt_front = Front(self.broker, authority, FrontOptions(), Tally(), "mqtt", asking=asking,
                                on_log=self.note, log_connections=lambda: False, later=self.driver.later)
        self.amqp_front = AmqpFront(hub, asking, AmqpOptions(heartbeat_s=0), AmqpTally(), self.clients, self.channels,
                                    "amqp", find_virtual_host=self._virtual_host, on_log=self.note,
                                    log_connections=lambda: False)
        self.before_recovery()
        self.found = self.keeper.recover()
        for name in options.virtual_hosts:
            hub.namespaces.add(name.encode())
        for spec in options.queues:
            self.manager.declare(spec)
            self.manager.queues[spec.address].configured = True
        self.turn()

    def _wake(self) -> None:
        self.woken = True

    def note(self, level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        error = fields.get("error")
        if isinstance(error, BaseException) and not isinstance(error, FluxError):
            self.crashes.append(error)
        self.told(level, text, fields)

    def _virtual_host(self, name: str) -> Exchanges | None:
        return self.exchanges.add_vhost(name.encode()) if name in self.options.virtual_hosts else None

    def forget_routes(self) -> None:
        """It is dead. The collector of garbage does not see the routes that exchanges remember, which lead to all else:
        a node would stay in memory for every life of every history."""
        for exchanges in self.exchanges.vhosts.values():
            exchanges.on_mqtt = None
            for name in list(exchanges.exchanges):
                exchanges.delete(name)
            exchanges.let_go()

    def _route(self, vhost: bytes, exchange: bytes, key: bytes, headers: bytes) -> list[Queue]:
        exchanges = self.exchanges.vhosts.get(vhost)
        route = exchanges.lookup(exchange, key, headers) if exchanges is not None else None
        return route.queues if route is not None else []

    def _dead_letter(self, vhost: bytes, exchange: bytes, key: bytes, headers: bytes, properties: bytes,
                     payload: bytes, queues: list[Queue]) -> None:
        exchanges = self.exchanges.vhosts.get(vhost)
        route = exchanges.lookup(exchange, key, headers) if exchanges is not None else None
        if route is not None and route.mqtt:
            self.hub.publish_later(lambda: publish_amqp(
                self.hub, exchange, key, payload, properties, taken=queues, namespace=self.hub.namespaces[vhost]))

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────

    def accept_mqtt(self, *, websocket: bool = False) -> Pipe:
        pipe = Pipe()
        self._adopt(Connection(self.hub, -next(_numbers), -1, self.mqtt_front, cast(Any, pipe), websocket), pipe)
        self.mqtt_front.connections += 1
        return pipe

    def accept_amqp(self) -> Pipe:
        pipe = Pipe()
        self._adopt(AmqpConnection(self.hub, -next(_numbers), -1, self.amqp_front, cast(Any, pipe)), pipe)
        self.amqp_front.connections += 1
        return pipe

    def _adopt(self, connection: Transport, pipe: Pipe) -> None:
        connection.deadline_ms = self.hub.mono_ms + 60_000
        self.poller.adopt(connection)
        self.pipes[connection] = pipe

    # ── what goes on ─────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> None:
        """What is ready is handled, once; then what is due in the loop."""
        if self.failed is not None:
            return
        ready: list[tuple[Transport, int]] = []
        for connection, pipe in list(self.pipes.items()):
            events = EPOLLIN if (pipe.to_broker or pipe.client_closed) and not connection.paused else 0
            if pipe.reset:
                events |= EPOLLHUP
            if connection.pending and (pipe.room is None or len(pipe.to_client) < pipe.room):
                events |= EPOLLOUT
            if events:
                ready.append((connection, events))
        speaks, self.journal_speaks = self.journal_speaks, False
        self.woken = False
        try:
            self.poller.play(ready, speaks)
            if self.runs_driver:
                self.driver.run_ready()
        except StorageError as error:
            self.failed = error
        for connection in [one for one, pipe in self.pipes.items() if pipe.broker_closed and one.phase == 5]:
            del self.pipes[connection]

    def write_journal(self) -> bool:
        """One step of the journal's writer. Whether it did something."""
        did = self.journal.work()
        if did or self.journal.backlog():       # where space is short it says so, and nothing was done
            self.journal_speaks = True
        return did

    @property
    def journal_idle(self) -> bool:
        """Everything recorded is durable and everybody was told."""
        return not self.journal.backlog() and self.journal.durable == self.journal.gathering - 1 \
            and not self.journal_speaks

    def tick(self) -> None:
        """As Server._tick, every quarter of a second."""
        if self.failed is not None:
            return
        self._ticks += 1
        try:
            for connection, why in self.poller.sweep():
                connection.handler.on_late(connection, why)
            self.keeper.clock.tick()
            self.broker.tick()
            if not self.queue_clock.behind:
                self.look()
            self.limited.tick()
            self.space.tick()
            if self._ticks % 40 == 0:
                self.hub.namespaces.expire_retained()
            self.keeper.tick()
            if self._ticks % 4 == 0:
                for client in list(self.clients.open.values()):
                    self.channels.tick(client)
        except StorageError as error:
            self.failed = error
        self.turn()

    def look(self) -> None:
        if self.queue_clock.tick():
            self.driver.later(0, self.look)

    def checkpoint(self) -> None:
        """One begins, unless one is under way."""
        if self.keeper._task is None or self.keeper._task.done():
            self.keeper._task = self.driver.start(self.keeper.checkpoint())

    def stop(self) -> None:
        """As SIGTERM, up to the closing of the store. What is under way goes on as in a quick machine."""
        self.broker.stopping = True
        for connection in list(self.poller.connections):
            if connection.state is not None:
                connection.state.shut_down()
            connection.abort()
        self.channels.departures.finish()
        self._settle(self.driver.start(self.space.stop()))
        self._settle(self.driver.start(self.keeper.close(5.0)))
        self.store.close()
        self.segments.close()

    def _settle(self, work: Any) -> None:
        for _ in range(4000):
            if work.done():
                return
            self.driver.run_ready()
            if self.driver.threads:
                self.driver.run_thread()
            elif self.journal.status != JOURNAL_FAILED:
                while self.journal.work():
                    pass
            self.clock.advance(5)
        raise AssertionError("the broker does not stop")
