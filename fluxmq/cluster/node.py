"""This node in the cluster: what the engine asks of it (`Directory`, `Peers`), and the order of its life.

    NEW ──start(): register, load, streams to all, own sessions──► SERVING ──stop()──► STOPPED
                                                                     │  └── leave(): hand sessions over ──► LEAVING ──►
                                                                     └── fenced ──► on_fenced, once

One per life: a node that was fenced is built anew, over the same store and transport.
It is one file because every part of the cluster is made here, and joined to the others and to the engine's ports.
"""
from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from fluxmq._core.errors import StorageError, UsageError
from fluxmq.cluster import keys
from fluxmq.cluster.adoption import Adoption
from fluxmq.cluster.bans import Bans
from fluxmq.cluster.claim import PERIOD_S, Claim
from fluxmq.cluster.defining import Defining
from fluxmq.cluster.definitions import KINDS, Definitions
from fluxmq.cluster.documents import Documents
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.hops import Hops
from fluxmq.cluster.interest import Interest
from fluxmq.cluster.kept import KeptSessions
from fluxmq.cluster.kept_claims import KeptClaims
from fluxmq.cluster.leaderless import LeaderWatch
from fluxmq.cluster.leaving import TAKE, Leaver, take
from fluxmq.cluster.left_sessions import LeftSessions
from fluxmq.cluster.membership import Membership, Node, Registration, dial_address
from fluxmq.cluster.messages import (
    Adopted,
    Adopting,
    Control,
    Cut,
    Has,
    LifeCut,
    Reach,
    Reached,
    Switch,
    Unreleased,
    WhoHas,
    encode,
)
from fluxmq.cluster.operations import OPERATION, NodeOperations
from fluxmq.cluster.origins import Origins
from fluxmq.cluster.owners import Handover, Owners, Session
from fluxmq.cluster.peers import Peer, Peers
from fluxmq.cluster.ports import (
    CallFailed,
    Change,
    Compare,
    Event,
    Log,
    MetadataStore,
    OwnStorage,
    StoreError,
    StoreFull,
    StreamIn,
    StreamOut,
    Transport,
)
from fluxmq.cluster.queue_detours import DETOUR
from fluxmq.cluster.queue_moves import COPY, HERE, MOVE, REST, TAKE_QUEUE, QueueMoves
from fluxmq.cluster.queue_owners import QueueOwners
from fluxmq.cluster.quorum import VOTER, Quorum
from fluxmq.cluster.reaching import Reaching
from fluxmq.cluster.retained import RetainedMessages
from fluxmq.cluster.returns import RETURN, STORED, Returns
from fluxmq.cluster.solo import SoloReplicator
from fluxmq.cluster.sweep import Sweep
from fluxmq.cluster.takeover import TAIL, TAKEOVER, Takeovers
from fluxmq.cluster.votes import VOTE, Votes
from fluxmq.cluster.wills import Wills
from fluxmq.cluster.writer import Writer
from fluxmq.engine.broker import Broker
from fluxmq.engine.exchanges.manager import PREDECLARED
from fluxmq.engine.ports.cluster import Cluster, Owner
from fluxmq.engine.ports.definitions import Definer, Stored
from fluxmq.engine.ports.driver import Driver, Promise, fulfil
from fluxmq.engine.sessions.state import Will

__all__ = ["ClusterNode", "Phase", "Settings"]

T = TypeVar("T")
RETRY_S = 0.5
REPEAT_S = 60.0  # between two lines of the log that say the same
WHO = "who"  # method of Transport.call: which node, with which storage directory, answers there
WHO_S = 2.0
CLUSTER_KEY = keys.ROOT + b"cluster"  # a name that is drawn once: a stream from another cluster is refused


class Phase(Enum):
    """See the drawing above."""

    NEW = "new"
    JOINING = "joining"
    SERVING = "serving"
    LEAVING = "leaving"
    FENCED = "fenced"
    STOPPED = "stopped"


class Settings(NamedTuple):
    """name: of this node. configured: see dial_address. ttl_s: of its lease. limit_s: route_publish_timeout.
    window_bytes: not acknowledged, per peer. retained_bytes: retained messages with a payload of this size or more are
    in the store without it. shared: all nodes have the queues, exchanges and bindings of all. disk_s: how long the
    journal may wait for the disk before the node gives its lease up; 0: for ever."""

    name: str
    configured: dict[str, str] = {}
    ttl_s: int = 10
    limit_s: float = 15.0
    window_bytes: int = 16 << 20
    retained_bytes: int = 1024
    shared: bool = True
    disk_s: float = 30.0


class ClusterNode:
    """A Directory; `services` has it with Peers and Replicator.

    storage: this node's directory. clock_s: CLOCK_BOOTTIME in seconds, read at the call. on_fenced: called with the
    reason when this node must stop at once. log: as Broker's on_log. watch: of this node's member of etcd; None: it has
    none. new_name: for a cluster that has none yet; of no other one.
    """

    _asking = b""  # which node answers somewhere: this question is its own

    def __init__(self, settings: Settings, store: MetadataStore, transport: Transport, driver: Driver, *,
                 storage: OwnStorage, clock_s: Callable[[], float], on_fenced: Callable[[str], None], log: Log,
                 watch: LeaderWatch | None = None, new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self.phase = Phase.NEW
        self.settings = settings
        self.services = Cluster(self, Hops(lambda: self.peers), SoloReplicator())
        self.interest = Interest()
        self.members_connected = self.interest.members_connected  # see the port
        self.cluster = ""  # its name, when this node has joined
        self.waits = ""  # why etcd does not let it join; "": it does
        self.why_fenced = ""
        self.peers: Peers | None = None
        self.log = log
        self.leaver, self.votes, self.operations = Leaver(self), Votes(self), NodeOperations(self)
        self._store = store
        self.transport, self.driver = transport, driver
        self._on_fenced = on_fenced
        self._new_name = new_name
        self._has_member = watch is not None
        self._broker: Broker | None = None
        self._all_known: Promise[None] = driver.promise()
        self.writer = Writer(store, driver)
        self.feed = Feed(store, driver, self._on_events)
        self.claim = Claim(settings.name, storage, settings.ttl_s, driver, self._runs)
        self.membership = Membership(
            settings.name, store, driver, settings.ttl_s, claim=self.claim, clock_s=clock_s,
            on_deadline=lambda at_s: self.broker.hub.serve_until(int(at_s * 1000)), on_fenced=self._fenced,
            on_node=self._on_node, unfit=self._unfit, on_resumed=self._resumed)
        self.kept = KeptSessions(self.membership, store, self.feed, self.writer, driver, limit_s=settings.limit_s,
                                 lives_of=lambda session: self.adoption.lives_of(session),
                                 on_data=lambda *change: self.adoption.on_data(*change))
        self.quorum = Quorum(self.membership, watch, transport, driver, clock_s=clock_s,
                             configured=settings.configured, log=log)
        self.owners = Owners(self.membership, self.feed, self.writer, driver, fetch=self._fetch,
                             complete=self._complete, on_lost=self._lost, keys=self.kept,
                             is_here=lambda session: session in self.broker.sessions,
                             wait=lambda session: self.adoption.wait(session), limit_s=settings.limit_s,
                             on_entry=lambda *change: self.adoption.on_entry(*change))
        self.kept.owners = self.owners
        self.sweep = Sweep(self.feed, self.owners, self.kept, self.writer, driver, lambda: self.membership.is_leader)
        self.wills = self.owners.former = Wills(
            self.membership, self.owners, self.feed, self.writer, driver, limit_s=settings.limit_s, log=log)
        self.retained = RetainedMessages(
            settings.name, store, self.feed, transport, driver, sources=self.addresses, node_of=self._node_of, log=log,
            threshold=settings.retained_bytes, is_leader=lambda: self.membership.is_leader, lives=self._lives)
        self.bans = Bans(settings.name, store, self.feed, driver, log=log)
        self.origins = Origins(driver, self.feed, lambda: self.peers,
                               lambda name: self.wills.has(name) or self.kept.has(name))
        self.reaching = Reaching(
            driver, lambda: self.feed.revision, self._epochs, lambda name, message: self._tell(name, message),
            self._when_durable)
        self.definitions = Definitions(
            settings.name, self.writer, driver, self.reaching, predeclared=PREDECLARED,
            without_quorum=lambda: self.membership.without_quorum, limit_s=settings.limit_s, log=log)
        self.defining = Defining(
            self.definitions, self.membership, driver, serving=self._serving_nodes, next_identity=self._next_identity,
            limit_s=settings.limit_s)
        self.queue_owners: QueueOwners | None = None
        if settings.shared:
            self.queue_owners = QueueOwners(
                self.definitions, self.defining, self.membership, self.feed, self.writer, driver,
                next_identity=self._next_identity, log=log)
        self.queue_moves = QueueMoves(
            definitions=self.definitions, membership=self.membership, peers=lambda: self.peers, writer=self.writer,
            transport=transport, driver=driver, serving=self._serving_nodes, next_identity=self._next_identity,
            broker=lambda: self.broker, cut_by=lambda life: self.adoption.cut_by(life), log=log)
        self._stored: Stored | None = None
        self.stalled_s: Callable[[], float] = float     # for how long the journal has waited for the disk
        self.disk_hangs = False                         # that has ended its lease
        self.documents = Documents(
            self.writer, driver, self.reaching, joined=lambda: self.phase in (Phase.SERVING, Phase.LEAVING),
            without_quorum=lambda: self.membership.without_quorum)
        self._takeovers: Takeovers | None = None
        self._adoption: Adoption | None = None
        self._returns: Returns | None = None

    def attach(self, broker: Broker) -> None:
        """The broker that has `services`; before it is loaded from its disk."""
        self._broker = broker
        self.retained.attach(broker.hub, broker.revisions)
        self.wills.attach(broker)
        self.kept.attach(broker)
        self.origins.attach(broker)
        left = LeftSessions(broker, lambda session: self.owners.end_handover(session))
        adoption = self._adoption = Adoption(
            broker=broker, membership=self.membership, feed=self.feed, owners=self.owners, kept=self.kept,
            peers=lambda: self.peers, driver=self.driver, serves=lambda: self.phase is Phase.SERVING,
            wants_from=lambda life: takeovers.wants_from(life), left=left, log=self.log)
        takeovers = self._takeovers = Takeovers(
            broker=broker, owners=lambda: self.owners, peers=lambda: self.peers, transport=self.transport,
            wait=adoption.wait, passed=adoption.passed, left=left, driver=self.driver, limit_s=self.settings.limit_s,
            log=self.log)
        self._returns = Returns(
            broker=broker, owners=self.owners, kept=self.kept, peers=lambda: self.peers, transport=self.transport,
            driver=self.driver, durable=takeovers.durable, is_taking=adoption.is_taking, changed=adoption.look,
            log=self.log)

    def attach_stored(self, stored: Stored) -> None:
        """The queues and exchanges of the broker; before it is loaded from its disk. Its queues give nothing out before
        this node knows which ones others have."""
        self._stored = stored
        self.queue_moves.attach(stored.queues)
        if self.queue_owners is not None:
            self.broker.hub.ledger.hold_queues()

    @property
    def takeovers(self) -> Takeovers:
        """Raises UsageError before attach()."""
        if self._takeovers is None:
            raise UsageError("the cluster has no broker yet")
        return self._takeovers

    @property
    def adoption(self) -> Adoption:
        """Raises UsageError before attach()."""
        if self._adoption is None:
            raise UsageError("the cluster has no broker yet")
        return self._adoption

    @property
    def returns(self) -> Returns:
        """Raises UsageError before attach()."""
        if self._returns is None:
            raise UsageError("the cluster has no broker yet")
        return self._returns

    @property
    def broker(self) -> Broker:
        """Raises UsageError before attach()."""
        if self._broker is None:
            raise UsageError("the cluster has no broker yet")
        return self._broker

    # ------------------------------------------------------------------ life

    async def start(self, registration: Registration) -> None:
        """Joins the cluster. registration: what the others are told of this node. When it returns, this node knows what
        all others want, they know what it wants, and it owns those of its stored sessions that no other node has. Turns
        must run meanwhile. Raises JoinRefused, OldStorage, StorageError, BindFailed, StoreError."""
        settings, broker = self.settings, self.broker
        self.phase = Phase.JOINING
        await self.transport.start(self)   # others may ask about this node's member of etcd before it has joined
        await self._patiently(lambda: self.membership.join(registration))
        broker.hub.begin_identities(self.membership.epoch)
        self.cluster = await self._patiently(self._name)
        self.peers = Peers(
            name=settings.name, cluster=self.cluster, epoch=self.membership.epoch, hub=broker.hub, broker=broker,
            membership=self.membership, transport=self.transport, driver=self.driver, interest=self.interest,
            configured=settings.configured, window_bytes=settings.window_bytes, limit_s=settings.limit_s,
            on_known=self._on_known, on_appeared=self._on_appeared, on_gone=self._on_gone, on_message=self._on_message,
            log=self.log)
        kept = None
        if self.queue_owners is not None and self._stored is not None:      # queues are claimed from the load on
            kept = KeptClaims(self._stored.queues, self.driver,
                              lambda: self.phase in (Phase.JOINING, Phase.SERVING, Phase.LEAVING))
        self.retained.begin(self.membership.epoch)
        await self._patiently(self.feed.load)
        self.retained.loaded()
        for task in (self.feed.follow(), self.membership.keep(), self.quorum.keep(), self.peers.keep_limits()):
            self.driver.start(task)
        self._on_known()
        await self._all_known
        self.retained.told()
        for arrived in list(broker.arrivals.values()):
            broker.drop_arrival(arrived)    # its owner has not changed, or has changed back: the other node has it
        for session in await self.owners.reclaim(list(broker.sessions)):
            broker.surrender(*session)
        if self.queue_owners is not None and self._stored is not None:
            await self.queue_owners.begin(self._stored)
            for queue in broker.hub.ledger.let_queues_go():
                queue.notify()
            if kept is not None:
                kept.claimed(self.reaching, self.feed.revision, bool(self.peers.peers))
            for task in (self.queue_owners.keep(), self.definitions.keep(lambda: self.membership.is_leader)):
                self.driver.start(task)
        self.driver.start(self.returns.keep())
        await self.adoption.begin()
        if self.phase is Phase.JOINING:
            self.wills.begin()
            self.kept.begin()
            self.driver.start(self.sweep.keep())
            self.driver.start(self.origins.sweep(broker.hub))
            self.driver.start(self._keep_claim())
            self.phase = Phase.SERVING
            self.adoption.serving()

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Tries again while the store does not answer: its members may be starting, too."""
        told: set[str] = set()
        since = self.driver.now()
        while True:
            try:
                done = await step()
            except StoreError as error:
                if not error.retry or self.phase is not Phase.JOINING:
                    raise
                self.waits = self._why_waiting(error)
                if self.driver.now() - since >= REPEAT_S:
                    told.clear()
                    since = self.driver.now()
                if self.waits not in told:
                    told.add(self.waits)
                    self.log("warning", "", f"this node {self.waits}. It goes on trying{self._way_out(error)}", {})
                await self.driver.sleep(RETRY_S)
            else:
                self.waits = ""
                return done

    @staticmethod
    def _why_waiting(error: StoreError) -> str:
        if isinstance(error, StoreFull):
            return f"cannot register in etcd: {error}"
        return f"waits for etcd, of whose members a majority must run and reach each other: {error}"

    def _way_out(self, error: StoreError) -> str:
        if isinstance(error, StoreFull) or not self._has_member:
            return ""
        return "; start the other nodes, or, if most of them are gone for good, use fluxmq cluster recover"

    async def _name(self) -> str:
        """The cluster's name, drawn by whoever comes first."""
        drawn = self._new_name().encode()
        result = await self._store.transact([Compare(CLUSTER_KEY, 0)], [Change(CLUSTER_KEY, drawn)])
        found = None if result.done else result.found[0]
        return (drawn if found is None else found.value).decode(errors="replace")

    async def _runs(self, address: str) -> bool:
        """Whether another process answers at the address of a transport as this node, with this directory."""
        if not address or address == self.membership.registration.address:
            return False    # that is bound by this process
        self._asking = f"{self.membership.registration.pid} {self.driver.now()!r}".encode()
        try:
            parts = [part async for part in self.transport.call(address, WHO, self._asking, WHO_S)]
        except CallFailed:
            return False
        return b"".join(parts) == self._who()

    def _who(self) -> bytes:
        return f"{self.settings.name} {self.claim.storage.identity}".encode()

    async def _answer_who(self, body: bytes) -> AsyncIterator[bytes]:
        """Not to itself, at an address that it has had before."""
        yield b"" if body == self._asking else self._who()

    async def _keep_claim(self) -> None:
        while self.phase in (Phase.SERVING, Phase.LEAVING):
            await self.driver.sleep(PERIOD_S)
            if self.phase not in (Phase.SERVING, Phase.LEAVING):
                return
            try:
                await self.claim.renew(self._store, self.membership.epoch)
            except StoreError:
                continue        # the next time
            except StorageError as error:
                self.log("warning", str(error), "the generation of the storage directory cannot be written: an old "
                                                "copy of it might not be told from it", {"why": str(error)})

    def _on_known(self) -> None:
        if self.peers is not None and not self.peers.unknown():
            fulfil(self._all_known, None)

    def begin_leaving(self) -> bool:
        """From now on the node takes no session. Returns whether it leaves: it serves, or has begun to leave."""
        if self.phase is Phase.SERVING:
            self.phase = Phase.LEAVING
            self.adoption.serving(False)
        return self.phase is Phase.LEAVING

    async def stop(self) -> None:
        """Leaves the cluster; clients are gone already."""
        former = self.phase
        if former is not Phase.FENCED:      # else operators see why, until another life begins
            self.phase = Phase.STOPPED
        self._close("this node stops")
        await self.transport.stop()
        if former is not Phase.FENCED:
            try:
                await self.membership.leave()
            except StoreError as error:
                self.log("warning", str(error), "could not leave the cluster: others wait until the lease ends",
                         {"why": str(error)})

    def _unfit(self) -> str:
        stalled_s, limit_s = self.stalled_s(), self.settings.disk_s
        if not limit_s or stalled_s < limit_s:
            return ""
        self.disk_hangs = True
        return (f"the disk has not completed a write of the journal for {stalled_s:.0f} s (cluster.disk_timeout). It "
                f"joins again when the disk does")

    def _resumed(self) -> None:
        """After a doubt (Membership.in_doubt): what was held up meanwhile goes on."""
        if self.peers is not None:
            self.peers.go_on()
            self.adoption.look()
        if self.broker.hub.wake is not None:
            self.broker.hub.wake()

    def _fenced(self, why: str) -> None:
        self.phase, self.why_fenced = Phase.FENCED, why
        self._close(why)
        self._on_fenced(why)

    def _close(self, why: str) -> None:
        if self.peers is not None:
            self.peers.close(why)
        self.feed.close()
        self.writer.close(why)
        self.retained.close(why)
        self.bans.close(why)
        self.wills.close()
        self.origins.close()
        self.definitions.close()
        self.defining.close()
        if self.queue_owners is not None:
            self.queue_owners.close()
        self.queue_moves.close()
        self.documents.close()
        self.reaching.close(why)
        self.kept.close()
        self.sweep.close()
        if self._adoption is not None:
            self._adoption.close()
        if self._returns is not None:
            self._returns.close()

    # ------------------------------------------------------------------ what the feed reports

    def _on_events(self, events: Sequence[Event], revision: int) -> None:
        if self.membership.has_ended(events):
            return      # all that hung on the lease is gone with it: what this node has of it is on its disk, and stays
        for event in events:
            name = keys.parse(event.key)
            if name is None:
                self.membership.on_event(event)
            elif name.kind == keys.OWNER:
                self.owners.on_event(name, event)
            elif name.kind == keys.DATA:
                self.kept.on_event(name, event)
            elif name.kind in (keys.RETAINED_DATA, keys.RETAINED_INDEX):
                self.retained.on_event(name, event)
            elif name.kind == keys.WILL_DATA:
                self.wills.on_event(name, event)
            elif name.kind in (keys.BAN_ADDRESS, keys.BAN_USER):
                self.bans.on_event(name, event)
            elif name.kind in KINDS:
                self.definitions.on_event(name, event)
            elif name.kind in keys.DOCUMENTS:
                self.documents.on_event(name, event)
        self.definitions.on_batch()
        self.documents.on_batch()
        if self._adoption is not None:
            self._adoption.on_batch()
        self.origins.on_batch()
        self.reaching.on_batch()
        if not self.membership.leader:
            self.driver.start(self.membership.campaign())

    def _on_node(self, node: Node, appeared: bool) -> None:
        if node.name != self.settings.name:
            about = {"node": node.name, "epoch": node.epoch, "address": node.registration.address}
            if appeared:
                self.log("info", "", "a node has joined", about)
            elif self._adoption is not None and self._adoption.state_of(node.name) == "leaving":
                self.log("info", "", "a node has left", about)
            else:
                self.log("warning", "", "a node's lease has ended", about)
            if appeared and self._broker is not None:
                self.retained.payloads.retry()
        if self.peers is not None:
            self.peers.on_node(node, appeared)

    def _epochs(self) -> dict[str, int]:
        """Of the other nodes with a lease."""
        return {} if self.peers is None else {name: peer.node.epoch for name, peer in self.peers.peers.items()}

    def _serving_nodes(self) -> list[str]:
        """That serve clients, as far as this node knows; itself."""
        return [name for name in self.membership.nodes
                if name == self.settings.name or self.adoption.state_of(name) == "serving"]

    def _lives(self, epoch: int) -> bool:
        return any(node.epoch == epoch for node in self.membership.nodes.values())

    def _node_of(self, slot: int) -> str:
        peers = () if self.peers is None else self.peers.peers.values()
        return next((peer.name for peer in peers if peer.slot == slot), "")

    def _next_identity(self) -> int:
        return self.broker.hub.next_identity()

    def _tell(self, name: str, message: Control) -> None:
        if self.peers is not None and name in self.peers.peers:
            self.peers.peers[name].outbox.control(encode(message))

    def _when_durable(self, then: Callable[[], None]) -> None:
        with contextlib.suppress(StorageError):         # then it ends
            self.broker.hub.when_all_durable(then, lambda why: None)
            self.broker.hub.wake_up()

    def addresses(self, first: str) -> list[str]:
        """Of the transports of the other nodes; that of one of them first."""
        nodes = [node for node in self.membership.nodes.values() if node.name != self.settings.name]
        return [dial_address(node, self.settings.configured)
                for node in sorted(nodes, key=lambda node: node.name != first)]

    # ------------------------------------------------------------------ Directory

    @property
    def node(self) -> str:
        """See the port."""
        return self.settings.name

    @property
    def definer(self) -> Definer | None:
        """See the port."""
        return self.defining if self.settings.shared else None

    def claim_session(self, namespace: bytes, client_id: bytes, clean_start: bool) -> Owner | None:
        """See the port."""
        return self.owners.claim((namespace, client_id), clean_start)

    async def take_session(self, namespace: bytes, client_id: bytes, clean_start: bool, asked_ms: int) -> Owner:
        """See the port."""
        return await self.owners.take((namespace, client_id), clean_start, asked_ms)

    def release_session(self, namespace: bytes, client_id: bytes) -> None:
        """See the port."""
        self.adoption.ended((namespace, client_id))
        self.takeovers.ended((namespace, client_id))
        self.owners.release((namespace, client_id))

    def kept_changed(self, namespace: bytes, client_id: bytes, filter_: bytes | None = b"") -> None:
        """See the port."""
        self.kept.changed((namespace, client_id), filter_)

    def will_changed(self, namespace: bytes, client_id: bytes, will: Will | None, expiry_s: int,
                     since: int) -> None:
        """See the port."""
        self.wills.changed((namespace, client_id), will, expiry_s, since)

    def claim_queue(self, namespace: bytes, name: bytes) -> Owner:
        """Queues are of the node that makes them."""
        return Owner(self.settings.name, 1)

    def release_queue(self, namespace: bytes, name: bytes) -> None:
        """See claim_queue."""

    def announce(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        """See the port."""
        self.interest.announce(namespace, filter_, group, durable)

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        """See the port."""
        self.interest.withdraw(namespace, filter_, group, durable)

    # ------------------------------------------------------------------ sessions that change hands

    async def _fetch(self, session: Session, owner: Owner, clean_start: bool,
                     asked: Callable[[], int]) -> Handover | None:
        return await self.takeovers.fetch(session, owner, clean_start, asked)

    async def _complete(self, session: Session, handover: Any, former: Owner, epoch: int) -> None:
        await self.takeovers.complete(session, handover, former, epoch)

    def _lost(self, session: Session, to: str) -> None:
        self.adoption.ended(session)
        if not self.takeovers.on_owner_changed(session, to):
            self.broker.surrender(*session)

    def _on_appeared(self, peer: Peer) -> None:
        self.retained.greet(peer.outbox, peer.node.epoch)
        self.takeovers.greet(peer)
        self.origins.greet(peer.outbox, self.broker)
        self.adoption.on_appeared(peer)
        if self._stored is not None:
            self._stored.node_appeared(peer.name)

    def _on_gone(self, peer: Peer) -> None:
        self.retained.on_gone(peer.node.epoch)
        self.origins.on_gone(peer)
        self.reaching.on_batch()
        self.takeovers.on_gone(peer)
        self.queue_moves.on_gone(peer)
        self.adoption.on_gone(peer)

    def _on_message(self, peer: Peer, message: Control) -> None:
        if isinstance(message, Switch):
            self.takeovers.on_switch(peer, message)
        elif isinstance(message, Cut):
            self.takeovers.on_cut(peer, message)
        elif isinstance(message, Adopting):
            self.adoption.on_adopting(peer, message)
        elif isinstance(message, Adopted):
            self.adoption.on_adopted(peer, message)
        elif isinstance(message, LifeCut):
            self.adoption.on_cut(peer, message)
        elif isinstance(message, Unreleased):
            self.origins.on_unreleased(message, self.broker.hub)
        elif isinstance(message, WhoHas):
            self.origins.on_who_has(peer, message)
        elif isinstance(message, Has):
            self.origins.on_has(peer, message)
        elif isinstance(message, Reach | Reached):
            self.reaching.on_message(peer.name, message)
        else:
            self.adoption.on_serving(peer, message)

    # ------------------------------------------------------------------ TransportHandler

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        """See TransportHandler; so are the next five."""
        if self.peers is None:
            stream.close(f"node {self.settings.name} is joining")
            return None
        return self.peers.on_stream(stream, hello)

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        if self.peers is not None:
            self.peers.on_frame(stream, frame)

    def on_end(self, stream: StreamIn) -> None:
        if self.peers is not None:
            self.peers.on_end(stream)

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        if self.peers is not None:
            self.peers.on_open(stream, answer)

    def on_idle(self, stream: StreamOut) -> None:
        if self.peers is not None:
            self.peers.on_idle(stream)

    def on_closed(self, stream: StreamOut, why: str) -> None:
        if self.peers is not None:
            self.peers.on_closed(stream, why)

    def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        if method == VOTER:
            return self.quorum.answer()
        if method == WHO:
            return self._answer_who(body)
        if method == "retained" and self._broker is not None:
            return self.retained.payloads.serve(body)
        if method == TAKEOVER and self.phase in (Phase.SERVING, Phase.LEAVING):
            return self.takeovers.hand_over(body)
        if method == TAIL and self.phase in (Phase.SERVING, Phase.LEAVING):
            return self.takeovers.take_tail(body)
        if method == TAKE and self.phase is Phase.SERVING:
            return take(body, self.peers, self.owners)
        if method in (COPY, REST, MOVE) and self.phase in (Phase.SERVING, Phase.LEAVING):
            moves = self.queue_moves
            return {COPY: moves.copy, REST: moves.rest, MOVE: moves.ordered}[method](body)
        if method == HERE and self.phase in (Phase.SERVING, Phase.LEAVING):
            return self.queue_moves.here(body)
        if method == DETOUR and self.phase in (Phase.SERVING, Phase.LEAVING):
            return self.queue_moves.detours.answer(body)
        if method == TAKE_QUEUE and self.phase is Phase.SERVING:
            return self.queue_moves.take(body)
        if method == STORED and self.phase in (Phase.JOINING, Phase.SERVING):
            return self.returns.give(body)
        if method == RETURN and self.phase in (Phase.JOINING, Phase.SERVING):
            return self.returns.take_back(body)
        if method == OPERATION and self.phase in (Phase.SERVING, Phase.LEAVING):
            return self.operations.answer(body)
        if method == VOTE:
            return self.votes.answer(body)
        return self._refused(method)

    async def _refused(self, method: str) -> AsyncIterator[bytes]:
        if method in ("retained", TAKEOVER, TAIL, TAKE, STORED, RETURN, OPERATION, TAKE_QUEUE, COPY, REST, HERE, MOVE,
                      DETOUR):
            why = f"is {self.phase.value}: try again when it serves"
        else:
            why = f"knows no call {method!r}: its version may be another one"
        raise CallFailed(f"node {self.settings.name} {why}", reached=False)
        yield b""
