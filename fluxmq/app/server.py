"""The composition root: what `fluxmq run` builds, starts and stops, one file from top to bottom.

    initialize   store ─► hub ─► cluster, broker ─► authority ─► listeners (bound, not yet read) ─► health
    start        state from disk, health, event loop readers, timers, admin socket, cluster joined, the start message
    stop         no new connections, goodbyes, last sync
"""
from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from fluxmq import __version__
from fluxmq._core.errors import FencedError, FluxError, ShortageError, StorageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller
from fluxmq.access.authority import Authority
from fluxmq.admin.health import HealthServer
from fluxmq.admin.metrics import Metrics
from fluxmq.admin.routes import AdminRoutes
from fluxmq.admin.socket import SOCKET_PATH_BYTES_MAX, AdminSocket
from fluxmq.app import exit_codes, namespaces, recovered
from fluxmq.app.accounts import Accounts
from fluxmq.app.admission import Admission, admission
from fluxmq.app.amqp091 import Amqp091
from fluxmq.app.broker_notes import Note
from fluxmq.app.certificates import cluster_faults
from fluxmq.app.config import InvalidConfig, Provenance, unread
from fluxmq.app.driver import LoopDriver, until_beat
from fluxmq.app.exit_codes import BindError
from fluxmq.app.heap import HeapKeeper, settle_heap
from fluxmq.app.hub_limits import session_limits, set_limits
from fluxmq.app.listeners import Listeners, Served
from fluxmq.app.logs import Notes, configure
from fluxmq.app.loop_epoll import watch_loop
from fluxmq.app.permissions import Permissions
from fluxmq.app.queue_setup import Queues
from fluxmq.app.recording import Recording
from fluxmq.app.snapshot import Snapshots
from fluxmq.cluster.solo import SoloAccounts, SoloOverview, solo
from fluxmq.edge.mqtt.clients import MqttClients, send_away
from fluxmq.edge.mqtt.connection import Client
from fluxmq.edge.mqtt.tally import Tally
from fluxmq.engine.broker import Broker
from fluxmq.engine.definitions import EngineDefinitions
from fluxmq.engine.durability import Keeper
from fluxmq.engine.exchanges.listing import ExchangeListing
from fluxmq.engine.namespaces import NamespaceAdmin
from fluxmq.engine.ports.accounts import AccountsPort
from fluxmq.engine.ports.clients import ClientsPort
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.ports.overview import ClusterOverview
from fluxmq.engine.ports.store import StateStore
from fluxmq.engine.sys_topics import SysTopics
from fluxmq.model.cluster_addresses import addresses
from fluxmq.model.config import Config
from fluxmq.model.limits import LOG_ETCD_INTERVAL_SECONDS
from fluxmq.model.mqtt import ReasonCode
from fluxmq.storage.memory import MemoryStore
from fluxmq.storage.store import RocksStore

if TYPE_CHECKING:
    from fluxmq.app.cluster import ClusterRuntime
    from fluxmq.cluster.leaving import Leaver
    from fluxmq.cluster.membership import Membership
    from fluxmq.cluster.node import ClusterNode

__all__ = ["Server", "run"]

# Most objects live as long as their client. By default the garbage collector would go through all of them at every
# 700th allocation, which takes a tenth of the time of a connect storm and finds nothing (cycles are broken explicitly).
# The first two numbers bound a collection of the younger generations: 80 000 objects, some 30 ms.
GC_THRESHOLDS = (20_000, 4, 600)
TICK_S = 0.25  # precision of connections' timers: keep alive, time-outs, delayed wills
JOURNAL_END_S = 0.005  # between two looks whether the journal's writer has ended
DROP_LOG_TICKS = 4  # a second between lines about messages dropped for a client
DROP_LINES_MAX = 10
TOLD_S = 2.0  # how long a node that has left waits until its operator knows
RETAINED_SWEEP_TICKS = 40  # expired retained messages are never delivered; the sweep only frees their memory


def run(config: Config, read_again: Callable[[], tuple[Config, Provenance]], note: Note) -> int:
    """Runs the broker until a signal ends it. read_again: where the configuration comes from, as of now. note: what
    commands hear as long as the admin socket does not answer. Returns the exit status; raises FluxError before it has
    started."""
    for fault in cluster_faults(config):
        raise fault
    configure(config.log.level, config.log.format)
    settle_heap()
    try:
        return uvloop.run(_main(config, read_again, note))
    except (BindError, StorageError) as error:
        from fluxmq.app.clashes import tell_clashes  # most starts have no use for it

        tell_clashes(config, error)
        raise


async def _main(config: Config, read_again: Callable[[], tuple[Config, Provenance]], note: Note) -> int:
    signals = _Signals(asyncio.get_running_loop(), read_again)
    if not config.cluster.enabled:
        return (await _serve(config, signals, note)).status
    from fluxmq.app.cluster import ClusterRuntime  # its packages are those of the extra [cluster]
    from fluxmq.cluster.claim import OldStorage
    notes = Notes("fluxmq.cluster", time.monotonic)
    # The etcd member repeats itself several times a second as long as something is wrong.
    etcd_notes = Notes("fluxmq.etcd", time.monotonic, LOG_ETCD_INTERVAL_SECONDS)
    runtime = ClusterRuntime(config, notes.say, etcd_notes.say)
    flushing = asyncio.ensure_future(_keep_flushing(notes, etcd_notes))
    try:
        note.starts("it starts its member of etcd" if runtime.addresses.member is not None else "")
        runtime.start()
        while True:
            try:
                server = await _serve(config, signals, note, runtime)
                if not server.again or server.status:
                    return server.status
                del server
            except OldStorage as old:
                if config.cluster.old_storage != "set_aside":
                    raise
                runtime.set_storage_aside(old)
            await runtime.life_ended()
            gc.unfreeze()
            gc.collect()  # what it was made of refers to itself, and the next life makes as much
    finally:
        note.stops("it ends its member of etcd" if runtime.own is not None else "")
        await runtime.stop()
        flushing.cancel()
        notes.close()
        etcd_notes.close()


async def _keep_flushing(*several: Notes) -> None:
    """Of the cluster, whose notes outlive the server that flushes its own."""
    while True:
        await asyncio.sleep(until_beat(TICK_S, time.monotonic()))
        for notes in several:
            notes.flush()


class _Signals:
    """SIGTERM, SIGINT and SIGHUP, over all lives of the server: one that comes between two of them is not lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_again: Callable[[], tuple[Config, Provenance]]) -> None:
        self._loop = loop
        self._read_again = read_again
        self._server: Server | None = None
        self._listens = self._told = False

    def attach(self, server: Server) -> None:
        """A life begins; it gets the signals, also while its start waits for other nodes."""
        self._server = server
        if not self._listens:
            self._listens = True
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._end)
            self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        if self._told:
            server.on_signal()

    def detach(self) -> None:
        """The life has ended."""
        self._server = None

    def _end(self) -> None:
        self._told = True
        if self._server is not None:
            self._server.on_signal()

    def _reload(self) -> None:
        if self._server is None:
            return
        self._server.reload()
        log = logging.getLogger("fluxmq.app")
        try:
            for change in unread(self._server.config, *self._read_again()):
                log.warning(f"reload: {change}")
        except InvalidConfig as error:
            for problem in error.problems:
                log.error(f"reload: the broker will not start with this configuration: {problem}")


async def _serve(config: Config, signals: _Signals, note: Note, runtime: ClusterRuntime | None = None) -> Server:
    """One life of the server: until a signal, a failure of the disk, or, in a cluster, the end of its lease."""
    server = Server(config, runtime=runtime, note=note)
    try:
        gc.disable()  # objects loaded from disk stay; collecting while loading finds nothing
        server.initialize()
        signals.attach(server)
        await _unless_stopped(server.start(), server.stopped)
        gc.set_threshold(*GC_THRESHOLDS)
        gc.freeze()
        gc.enable()
        if not server.stopped.is_set():
            server.announce(sys.stdout)
        await server.stopped.wait()
    finally:
        await server.stop()
        signals.detach()
        if not server.again:
            gc.freeze()  # the process ends: a last collection is useless
    return server


async def _unless_stopped(start: Coroutine[Any, Any, None], stopped: asyncio.Event) -> None:
    """Starting may take long (the other nodes of a cluster); a signal ends it."""
    starting, ended = asyncio.ensure_future(start), asyncio.ensure_future(stopped.wait())
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
    elif starting.exception() is not None:
        raise starting.exception()  # type: ignore[misc]


class Server:
    """One node. authority: decides permissions; None: the configured files do. cluster, overview: the other nodes, and
    what operators see of them; None: there are none. runtime: instead of both, what a node of a cluster keeps over the
    lives of its server. note: by which commands find this process, of all lives; None: they do not."""

    # Made by initialize().
    admission: Admission
    store: StateStore
    hub: Hub
    poller: Poller
    broker: Broker
    keeper: Keeper
    queues: Queues
    permissions: Permissions
    amqp091: Amqp091
    recording: Recording
    sys_topics: SysTopics
    snapshots: Snapshots

    def __init__(self, config: Config, authority: Authority | None = None, cluster: Cluster | None = None,
                 overview: ClusterOverview | None = None, runtime: ClusterRuntime | None = None,
                 note: Note | None = None) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self.hurried = asyncio.Event()  # nothing is to be handed over to other nodes (any more)
        self.status = exit_codes.OK
        self.notes = Notes("fluxmq.mqtt", time.monotonic)
        self.cluster = cluster if cluster is not None else solo()
        self.overview: ClusterOverview = overview or SoloOverview(
            config.cluster.node_id or socket.gethostname(), os.getpid(), __version__, lambda: len(self.broker.sessions))
        self.runtime = runtime
        self.node: ClusterNode | None = None  # made by initialize(), of a runtime
        self.accounts: AccountsPort = SoloAccounts()
        self.fenced = False
        self.again = False  # this life has ended by the loss of its lease alone: another one follows
        self.away = ReasonCode.USE_ANOTHER_SERVER  # what clients are told when this node leaves
        self.gives_vote = False  # in etcd: it leaves for good
        self.listeners = Listeners()
        self.tally = Tally()
        self.heap = HeapKeeper()
        self.health: HealthServer | None = None
        self.admin: AdminSocket | None = None
        self.note = note or Note()
        self._authority = authority
        self._closing: list[Callable[[], None]] = []  # opened by initialize(), in the order of closing
        self._ticks = 0
        self._paused_s: float | None = None  # the deadline at which turns paused
        self._timer: asyncio.TimerHandle | None = None
        self._initialized = self._started = self._writing_rest = False

    # ------------------------------------------------------------------ initialize

    def initialize(self) -> None:
        """Builds everything and acquires directory, files and addresses, which may fail. Serves nothing yet."""
        config, notes, later = self.config, self.notes, self.loop.call_later
        self.admission = admission(config, later, notes)
        self.note.starts("it opens its storage")
        self.store = self._store()
        self._closing.append(self.store.close)
        self.store.start()
        self.hub = Hub(self.store.journal, config.broker.route_cache_entries, secrets.randbits(64))
        self._closing.append(self.hub.end)
        set_limits(self.hub, config)
        self.poller = Poller(self.hub)
        if self.runtime is not None:
            self.node = self.runtime.new_node(self.on_fenced)
            self.cluster, self.overview = self.node.services, self.runtime.overview(self.node)
            self.admission.gate.shut = "this node is joining its cluster"
            self.runtime.on_failed = self.fail
            if self.runtime.failed is not None:
                raise self.runtime.failed
        self.broker = Broker(self.hub, session_limits(config), notes.say, cluster=self.cluster)
        if self.node is not None:
            self.node.attach(self.broker)
            self.node.bans.attach(self.admission.guard)
            self.admission.guard.shared = self.node.bans
            self.node.holdings.leaver.on_leave = self.leave
        self.keeper = Keeper(self.broker, self.store, config.storage.journal_file_size, LoopDriver(self.loop))
        if self.node is not None:
            self.node.stalled_s = lambda: self.keeper.stalls.seconds
        self.queues = Queues(self.broker, self.keeper, self.store, config, self.cluster, notes, later)
        self._closing.append(self.queues.close)
        self.permissions = Permissions(self.broker, config.auth, self._authority, notes)
        if self.node is not None:
            self.accounts = Accounts(self.node.holdings.documents, self.permissions.learn, config.auth, notes.say)
        self._closing.append(self.permissions.authority.close)
        asking = self.permissions.asking
        self.amqp091 = Amqp091(self.broker, self.keeper, self.queues, asking, config.amqp091, self.cluster, later)
        self._closing.append(self.amqp091.notes.close)
        if self.node is not None:
            self.node.attach_stored(EngineDefinitions(self.queues.consumers.defined, self.amqp091.exchanges))
            self.node.attach_replicas(self.keeper.replicas, self.queues.copies, self.queues.consumers.hands,
                                      self.keeper.checkpoint_now)
        self.permissions.on_reviewed = lambda: self.amqp091.clients.review(self.permissions.authority.removed)
        self.listeners.open(Served(config, self.poller, self.admission, self.broker, asking, self.tally, notes,
                                   self.amqp091, later))
        self.recording = Recording(self.poller, config, notes, self.overview.snapshot)
        self.sys_topics = SysTopics(self.broker, __version__)
        self.snapshots = Snapshots(
            config=config, journal=self.store.journal, stalls=self.keeper.stalls, stopped=self.stopped,
            broker=self.broker, queues=self.queues, asking=asking, guard=self.admission.guard,
            listeners=self.listeners, tally=self.tally,
            amqp091=self.amqp091, recording=self.recording, cluster=self.overview)
        if config.server.serves_health:
            self.health = HealthServer(config.server.health_addr, self.snapshots.health, self.snapshots.ready,
                                       Metrics(self.snapshots.metrics, queues=self.snapshots.queue_metrics).render,
                                       self.overview.snapshot)
        self._initialized = True

    def _store(self) -> StateStore:
        storage = self.config.storage
        if storage.type == "memory":
            return MemoryStore()
        return RocksStore(Path(storage.dir), identity=secrets.randbits(64), durability=storage.session_durability,
                          interval=storage.sync_interval, file_bytes=storage.journal_file_size,
                          recover_on_startup=storage.recover_on_startup,
                          lock=None if self.runtime is None else self.runtime.lock)

    # ------------------------------------------------------------------ start

    async def start(self) -> None:
        """Loads the state from disk and begins to serve."""
        log = self.notes.log
        self.note.starts("it recovers its state from disk")
        recovered_state = self.keeper.recover()
        recovered.log_recovery(log, self.store, self.queues.segments)
        namespaces.declare(self.config, self.hub, self.notes)
        self.queues.declare()
        self.permissions.start()
        for problem in self.listeners.out_of_date():
            log.warning(problem)
        if self.config.cluster.enabled:
            from fluxmq.app.cluster_checks import cluster_warnings

            for problem in cluster_warnings(self.config):
                log.warning(problem)
        if self.config.cluster.raft.enabled:
            from fluxmq.app.raft_checks import raft_warnings

            for problem in raft_warnings(self.config):
                log.warning(problem)
        if recovered_state:
            log.info("state recovered", extra=recovered_state)
        if self.health is not None:
            try:
                await self.health.start()
            except OSError as error:
                raise BindError("server.health_addr", self.config.server.health_addr, error,
                                "Another program listens there: set server.health_addr to another address, or to \"\""
                                ) from None
        if self.runtime is None:
            await self.recording.start()
        self.hub.wake = self._wake
        self.loop.add_reader(self.poller.fileno(), self._turn)
        watch_loop(self.poller, self.loop, lambda: self._turn(self.poller.linger))
        self._started = True
        self._tick()
        await self._start_admin()  # before the join, which may take hours: `fluxmq cluster status` says why
        if self.runtime is not None and self.node is not None:
            await self.runtime.join(self.node, self.listeners)
            await self.queues.declare_shared()
            await self.recording.start()  # with the name of the cluster; no client is served before
            self.admission.gate.shut = ""

    async def _start_admin(self) -> None:
        """Opens the admin socket. Its requests need running turns and a running journal. Operators of other nodes ask
        about the queues of this one, whether it has a socket or not."""
        operations = None
        if self.node is not None:
            operations = self.node.operations
            operations.answer_by(AdminRoutes(self.queues.admin, on_log=self.notes.say).answer)
        path = self.config.admin_socket_path()
        if path is None:
            return
        if not self.config.server.admin_socket and len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            # it is on by default: a path that is too long for a socket must not prevent the start
            self.notes.log.warning("no admin socket: its path is too long; give server.admin_socket a shorter one",
                                   extra={"path": str(path)})
            self.note.remove()
            return
        clients = MqttClients(self.broker), self.amqp091.clients
        self.admin = AdminSocket(path, self.queues.admin, self.recording.recorder, clients=clients,
                                 bans=self.admission.guard, accounts=self.accounts,
                                 namespaces=self.namespace_admin(clients), cluster=self.overview, operations=operations,
                                 exchanges=ExchangeListing(self.amqp091.exchanges), on_log=self.notes.say)
        try:
            await self.admin.start()
        except OSError as error:
            self.admin = None
            raise BindError("server.admin_socket", str(path), error) from None
        self.note.serves()

    def namespace_admin(self, clients: Sequence[ClientsPort]) -> NamespaceAdmin:
        """For the admin ring. clients: of all protocols."""
        return NamespaceAdmin(self.broker, self.queues.manager, self.amqp091.exchanges, clients,
                              lambda: namespaces.configured(self.config), lambda: self.admission.gate.shut)

    def _wake(self) -> None:
        self.loop.call_soon(self._turn)

    def _turn(self, do: Callable[[], None] | None = None) -> None:
        if self.hub.wake is None:
            return  # asked for before the stop
        if self._paused_s is not None and do is None and not self._goes_on():
            return  # (a turn that lingers ends: it has shut the others' way)
        try:
            (do or self.poller.turn)()
        except StorageError as error:
            self.fail(error)
        except FencedError as error:
            if self.node is not None and not self._pauses(self.node.membership):
                self.node.membership.fence(str(error))

    def _pauses(self, member: Membership) -> bool:
        """The deadline has passed. Whether the node waits (Membership.in_doubt): then there are no turns and no ticks,
        and what is ready stays so."""
        if member.may_return:
            self._paused_s = member.deadline_s
            self.loop.remove_reader(self.poller.fileno())
        return member.may_return

    def _goes_on(self) -> bool:
        """Whether the pause has ended, well or not."""
        member = self.node.membership if self.node is not None else None
        if member is not None and member.may_return and member.deadline_s == self._paused_s:
            return False
        self._paused_s = None
        self.loop.add_reader(self.poller.fileno(), self._turn)
        return True

    def on_fenced(self, why: str) -> None:
        """This node has lost its lease in the cluster: serves nobody from now on, and is built anew (`_main`)."""
        self.notes.log.critical(f"this node stops serving and joins the cluster again: {why}")
        self.fenced, self.again = True, not self.stopped.is_set()
        self.stopped.set()

    def fail(self, error: FluxError) -> None:
        """The disk, or this node's etcd, failed permanently: stops the node, because it cannot keep any promise."""
        if not self.stopped.is_set():
            self.notes.log.critical(f"stopping: {error}")
            self.status = exit_codes.exit_code(error)
            self.stopped.set()

    def _tick(self) -> None:
        self._timer = self.loop.call_later(until_beat(TICK_S, time.monotonic()), self._tick)
        if self._paused_s is not None and not self._goes_on():
            self.notes.flush()
            return
        self._ticks += 1
        try:
            for connection, why in self.poller.sweep():
                connection.handler.on_late(connection, why)
            self.poller.begin_slice()
            self.keeper.clock.tick()
            self.broker.tick()
            self.admission.guard.tick()
            self.queues.tick()
            if self._ticks % RETAINED_SWEEP_TICKS == 0:
                self.hub.namespaces.expire_retained()
            interval = self.config.broker.sys_interval
            if interval:
                self.sys_topics.tick(self.hub.mono_ms, int(interval * 1000))
            self.keeper.tick()
            self.heap.tick(self.keeper.checkpoints)
            if self._ticks % DROP_LOG_TICKS == 0:
                self._log_drops()
            self.amqp091.tick()
            self.recording.tick()
            self.notes.flush()
        except StorageError as error:
            self.fail(error)
        # Sends the output of the timers now, instead of at the next event.
        self._turn()

    def _log_drops(self) -> None:
        """Logs clients for which messages were dropped, at most once a second each; of many only the worst."""
        drops = sorted(self.hub.take_unlogged_drops(), key=lambda each: each[1], reverse=True)
        for session, messages in drops[:DROP_LINES_MAX]:
            self.notes.say("warning", "", "messages dropped: the client does not take them" if session.connected else
                      "messages dropped: the client is away and its queue is full",
                      {"client_id": session.name.decode(), "dropped": messages, "queued": session.queued})
        rest = drops[DROP_LINES_MAX:]
        if rest:
            self.notes.say("warning", "", "messages dropped for further clients",
                      {"clients": len(rest), "dropped": sum(messages for _, messages in rest)})

    # ------------------------------------------------------------------ reload and stop

    def reload(self) -> None:
        """SIGHUP: loads certificates, users and ACL again. Errors are reported, and the earlier ones stay in use."""
        log = logging.getLogger("fluxmq.app")
        problems = self.listeners.reload_certificates() + self.permissions.reload()
        for problem in problems:
            log.error(f"reload: {problem}")
        for problem in self.listeners.out_of_date():
            log.warning(f"reload: {problem}")
        if not problems:
            log.info("reloaded certificates, users and ACL")

    def on_signal(self) -> None:
        """SIGTERM or SIGINT; the second one means that there is no time."""
        self.again = False
        if self.stopped.is_set():
            self.hurried.set()
        self.stopped.set()

    def leave(self, keep_vote: bool) -> None:
        """An operator takes this node out of its cluster: clients are told that it has moved for good."""
        self.away, self.again, self.gives_vote = ReasonCode.SERVER_MOVED, False, not keep_vote
        self.stopped.set()

    async def _hand_over(self, leaver: Leaver) -> None:
        """Gives the sessions to the other nodes of the cluster, as long as there is time."""
        limit_s, sessions = self.config.cluster.leave_timeout, len(self.broker.sessions)
        if not limit_s or not leaver.others:
            return
        self.notes.log.info("handing sessions over", extra={"sessions": sessions, "nodes": ", ".join(leaver.others)})
        work, hurry = asyncio.ensure_future(leaver.leave(self._send_away)), asyncio.ensure_future(self.hurried.wait())
        await asyncio.wait({work, hurry}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        leaver.give_up()
        left = work.result() if work.done() else leaver.left
        if left:
            self.notes.log.warning("not all sessions were handed over: the other nodes adopt the rest, without the "
                                   "messages that only this node has; these come when it is started again",
                                   extra={"sessions": left, "limit_s": limit_s})
        queues = leaver.queues_left
        if queues:
            self.notes.log.warning("not all queues were moved: the rest is away until this node is started again",
                                   extra={"queues": len(queues), "limit_s": limit_s})
        for name, why in queues.items():
            self.notes.log.warning("a queue stays with this node", extra={"queue": name, "why": why})
        work.cancel()

    async def _give_vote_back(self, leaver: Leaver) -> None:
        """In etcd. A node that reaches no other member than its own needs that one until it has given up its lease."""
        own = None if self.runtime is None else self.runtime.own
        if self.gives_vote and own is not None and not own.without_vote:
            if own.can_go_on:
                self.gives_vote = False
                leaver.vote = await own.give_back()
            else:
                leaver.vote = (f"{own.joiner.name} gives its vote in etcd back when it has stopped: fluxmq cluster "
                               "members on another node shows whether it did")

    async def _tell_operator(self, leaver: Leaver) -> None:
        """Who has taken the node out of its cluster looks twice a second, and is to see what came of it."""
        leaver.ended = True
        until = time.monotonic() + TOLD_S
        while self.away is ReasonCode.SERVER_MOVED and not leaver.told and time.monotonic() < until:
            await asyncio.sleep(0.02)

    def _send_away(self, client: Any, node: str) -> None:
        """client: of a session, which goes to that node."""
        if isinstance(client, Client) and self.node is not None:
            send_away(client, self.away, self.node.holdings.leaver.listeners_of(node))

    async def stop(self) -> None:
        """Stops in order: listeners, sessions to other nodes, clients, disk."""
        self.listeners.close()
        if self._initialized:
            await self._end_service()
        with contextlib.ExitStack() as closing:     # all are closed, even if one fails
            for close in reversed((*self._closing, self.notes.close)):
                closing.callback(close)

    async def _end_service(self) -> None:
        if self._started and self.node is not None and not self.fenced and not self.status:
            self.admission.gate.shut = "this node is leaving its cluster"
            await self._hand_over(self.node.holdings.leaver)
            await self._give_vote_back(self.node.holdings.leaver)
            await self._tell_operator(self.node.holdings.leaver)
        self.admission.gate.shut = "this node is stopping"
        self.recording.recorder.stopping = True  # an attached client's recording ends after the last disconnect
        self._tell_end("it ends its clients' connections")
        if self.admin is not None:
            await self.admin.stop()
        if self._started:
            self.permissions.reviewing.stop()
            if self.fenced:
                self._break_off()
            else:
                await self._say_goodbye()
            self.permissions.authority.close()      # no login waits for a password check any more
            self.amqp091.channels.departures.finish()
            if self._timer is not None:
                self._timer.cancel()
            self.loop.remove_reader(self.poller.fileno())
        if self.node is not None and self.runtime is not None:
            await self.node.stop()
            if self.gives_vote and self.runtime.own is not None:
                await self.runtime.own.give_back()  # it could not go on without its member before
            self.runtime.end_life()
        await self.recording.stop()
        await self.queues.stop()
        if self._started:
            self._tell_end("it waits until the disk has all that it is to have")
            await self._end_storage()
        if self.health is not None:     # until here it says what the end waits for
            await self.health.stop()

    def _tell_end(self, doing: str) -> None:
        """What commands hear instead of an answer."""
        (self.note.starts if self.again else self.note.stops)(doing)

    async def _end_storage(self) -> None:
        """Until the disk has what it gets, so that closing the store does not wait for it. A disk that hangs is waited
        for as long as this process is to go on, and then for `shutdown_timeout`."""
        hangs = self.node is not None and self.node.disk_hangs
        ending = asyncio.ensure_future(self._write_rest())
        until: float | None = None
        while not ending.done():
            await asyncio.wait({ending}, timeout=TICK_S)
            if self.again or not (hangs or self._writing_rest):
                continue        # another life needs the disk; or a last checkpoint, which may take its time
            if until is None:
                until = time.monotonic() + self.config.server.shutdown_timeout
            elif time.monotonic() >= until:
                self._end_without_disk()
        ending.result()
        if hangs:
            self.notes.log.info("the disk completes writes again: what is on it counts from here on")
        if self.keeper.failed is not None and not isinstance(self.keeper.failed, ShortageError):
            self.status = self.status or exit_codes.STORAGE

    async def _write_rest(self) -> None:
        await self.keeper.close(0.0 if self.fenced else self.config.server.shutdown_timeout)
        self._writing_rest = True
        while self.store.journal is not None and not self.store.journal.end():
            await asyncio.sleep(JOURNAL_END_S)

    def _end_without_disk(self) -> None:
        """Threads that wait for the disk cannot be ended, so Python cannot end in good order."""
        self.notes.log.critical(
            "stopping: the disk hangs, and is not waited for any more. Nothing was confirmed that is not on it, and "
            "the next start recovers that", extra={"directory": self.config.storage.dir})
        self.notes.close()
        logging.shutdown()
        os._exit(exit_codes.STORAGE)

    def _break_off(self) -> None:
        """Closes all connections without a word: another node may serve these clients already."""
        self.broker.stopping = True
        for connection in list(self.poller.connections):
            connection.abort()

    async def _say_goodbye(self) -> None:
        """Sends DISCONNECT 0x8B or connection.close 320 to every client, and waits for the last bytes to be sent."""
        self.notes.log.info("stopping", extra={"connections": len(self.poller.connections)})
        self.broker.stopping = True
        deadline = time.monotonic() + self.config.server.shutdown_timeout
        leaver = self.node.holdings.leaver if self.node is not None and not self.status else None
        for connection in list(self.poller.connections):
            if leaver is not None and leaver.others and isinstance(connection.state, Client):
                # It has no session that could be handed over: any node will do.
                self._send_away(connection.state, leaver.successor((b"", connection.state.name)))
            elif connection.state is not None:
                connection.state.shut_down()
            connection.end()
            connection.deadline_ms = self.hub.mono_ms + int(self.config.server.shutdown_timeout * 1000)
        while time.monotonic() < deadline and any(c.pending for c in self.poller.connections):
            await asyncio.sleep(0.01)
        for connection in list(self.poller.connections):
            connection.abort()

    # ------------------------------------------------------------------ start message

    def announce(self, out: Any) -> None:
        """Prints listeners and addresses, the data directory, and who may connect."""
        config = self.config
        say: Callable[[str], None] = lambda line: print(line, file=out)  # noqa: E731
        say(f"FluxMQ {__version__}")
        for path, _, bound in self.listeners.opened:
            for host, port in bound:
                shown = f"[{host}]" if ":" in host else host
                say(f"listening  {path.removeprefix('server.').replace('.', '/')}  {shown}:{port}")
        if self.health is not None:
            say(f"listening  health  {self.health.address}")
        if self.admin is not None:
            say(f"listening  admin  {self.admin.path}")
        if config.storage.type == "memory":
            say("data       in memory only: nothing survives a restart")
        else:
            meaning = ("acknowledged means on disk" if config.storage.session_durability == "fsync" else
                       f"acknowledged means written; on disk within {config.storage.sync_interval:g} s")
            say(f"data       {Path(config.storage.dir).resolve()}  ({meaning})")
        if config.cluster.enabled:
            found = addresses(config)
            say(f"cluster    node {config.cluster.node_id}, for other nodes at {found.transport_address}; etcd at "
                f"{', '.join(found.endpoints)}{'' if found.member is None else ', of this node'}")
        say(f"access     {self._access()}")
        say(f"limits     {self.admission.descriptors} open files: {self.admission.connections_max} connections, "
            f"{self.admission.origins.connections_max} of one address")
        say("ready")
        out.flush()

    def _access(self) -> str:
        auth = self.config.auth
        who = (f"users of {auth.users_file}" if auth.users_file else "users of the cluster" if auth.cluster_users else
               "anybody who can reach the addresses above")
        if auth.has_users and auth.allow_anonymous:
            who += ", and anonymous clients"
        slots = [slot for _, slot in self.config.listeners()]
        if not auth.has_users and all(slot.address and slot.address.is_loopback for slot in slots):
            who = "anybody on this machine (loopback only; set auth.users_file to open it to others)"
        permissions = "permissions of the cluster" if auth.cluster_permissions else f"permissions from {auth.acl_file}"
        return f"{who}; {permissions if auth.acl_file or auth.cluster_permissions else 'everything is permitted'}"
