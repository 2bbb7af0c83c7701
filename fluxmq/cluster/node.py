"""This node in the cluster: what the engine asks of it (`Directory`, `Peers`), and the order of its life.

    NEW ──start(): register, load, streams to all, own sessions──► SERVING ──stop()──► STOPPED
                                                                     │  └── leave(): hand sessions over ──► LEAVING ──►
                                                                     └── fenced ──► on_fenced, once

One per life: a node that was fenced is built anew, over the same store and transport. What of its broker it shares with
the others is made with the broker: holdings.py. It is one file because every phase of a life decides what the other
methods answer.
"""
from __future__ import annotations

import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

from fluxmq._core.errors import StorageError, UsageError
from fluxmq.cluster import keys
from fluxmq.cluster.bans import Bans
from fluxmq.cluster.claim import PERIOD_S, Claim
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.holdings import Holdings
from fluxmq.cluster.interest import Interest
from fluxmq.cluster.kept_claims import KeptClaims
from fluxmq.cluster.leaderless import LeaderWatch
from fluxmq.cluster.leaving import TAKE, take
from fluxmq.cluster.membership import Membership, Node, Registration, dial_address
from fluxmq.cluster.operations import OPERATION, NodeOperations
from fluxmq.cluster.peers import Peers
from fluxmq.cluster.ports import (
    CallFailed,
    Change,
    Compare,
    Log,
    MetadataStore,
    OwnStorage,
    StoreError,
    StoreFull,
    Transport,
)
from fluxmq.cluster.queue_detours import DETOUR
from fluxmq.cluster.queue_moves import COPY, HERE, MOVE, REST, TAKE_QUEUE
from fluxmq.cluster.quorum import VOTER, Quorum
from fluxmq.cluster.raft.copying import REPLICA_COPY, Copying
from fluxmq.cluster.raft.ending import QUEUE_END
from fluxmq.cluster.raft.groups import RaftGroups
from fluxmq.cluster.raft.streams import RaftStreams
from fluxmq.cluster.raft.table import timing_of
from fluxmq.cluster.replicating import NodeReplicator
from fluxmq.cluster.returns import RETURN, STORED
from fluxmq.cluster.settings import Phase, Settings
from fluxmq.cluster.takeover import TAIL, TAKEOVER
from fluxmq.cluster.votes import VOTE, Votes
from fluxmq.cluster.writer import Writer
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.cluster import Cluster, Owner
from fluxmq.engine.ports.definitions import Definer, Placement, Stored
from fluxmq.engine.ports.driver import Driver, Promise, fulfil
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.recovery.copies import Copies
from fluxmq.engine.replicas import ReplicaLogs
from fluxmq.engine.sessions.state import Will

__all__ = ["ClusterNode"]

T = TypeVar("T")
RETRY_S = 0.5
REPEAT_S = 60.0  # between two lines of the log that say the same
WHO = "who"  # method of Transport.call: which node, with which storage directory, answers there
WHO_S = 2.0
JOINED = Phase.SERVING, Phase.LEAVING
RETURNING = Phase.JOINING, Phase.SERVING  # sessions of a node that is back are given and taken (returns.py)
CLUSTER_KEY = keys.ROOT + b"cluster"  # a name that is drawn once: a stream from another cluster is refused


class ClusterNode:
    """A Directory; `services` has it with Peers and Replicator.

    storage: this node's directory. clock_s: CLOCK_BOOTTIME in seconds, read at the call. on_fenced: called with the
    reason when this node must stop at once. log: as Broker's on_log. watch: of this node's member of etcd; None: it has
    none. new_name: for a cluster that has none yet; of no other one. draw: a number at random, 1 ≤ draw() < 2**63.
    """

    _asking = b""  # which node answers somewhere: this question is its own

    def __init__(self, settings: Settings, store: MetadataStore, transport: Transport, driver: Driver, *,
                 storage: OwnStorage, clock_s: Callable[[], float], on_fenced: Callable[[str], None], log: Log,
                 watch: LeaderWatch | None = None, new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
                 draw: Callable[[], int] = lambda: 1 + secrets.randbits(62)) -> None:
        self.phase = Phase.NEW
        self.settings = settings
        self.interest = Interest()
        self.members_connected = self.interest.members_connected  # see the port
        self.cluster = ""  # its name, when this node has joined
        self.waits = ""  # why etcd does not let it join; "": it does
        self.why_fenced = ""
        self.log = log
        self._store = store
        self.transport, self.driver = transport, driver
        self._on_fenced = on_fenced
        self._new_name = new_name
        self._has_member = watch is not None
        self._holdings: Holdings | None = None
        self._answers: dict[str, tuple[Sequence[Phase], Callable[[bytes], AsyncIterator[bytes]]]] = {}
        self._all_known: Promise[None] = driver.promise()
        self.writer = Writer(store, driver)
        self.claim = Claim(settings.name, storage, settings.ttl_s, driver, self._runs)
        self.membership = Membership(
            settings.name, store, driver, settings.ttl_s, claim=self.claim, clock_s=clock_s,
            on_deadline=self._on_deadline, on_fenced=self._fenced,
            on_node=self._on_node, unfit=self._unfit, on_resumed=self._resumed)
        self.feed = Feed(store, driver, self.membership)
        self.quorum = Quorum(self.membership, watch, transport, driver, clock_s=clock_s,
                             configured=settings.configured, log=log)
        self.bans = Bans(settings.name, store, self.feed, driver, log=log)
        self.feed.listen((keys.BAN_ADDRESS, keys.BAN_USER), self.bans.on_event)
        self.votes = Votes(self.membership, transport, settings.configured, lambda: self.cluster)
        self._draw = draw
        self.raft_streams = RaftStreams(
            node=settings.name, disk=storage.identity, life=draw(), transport=transport, driver=driver,
            cluster=lambda: self.cluster, replicas=lambda: self.groups.replicas(),
            on_messages=lambda node, messages: self.groups.on_messages(node, messages),
            on_replicas=lambda node, replicas: self.groups.on_replicas(node, replicas),
            on_lost=lambda node: self.groups.on_lost(node), log=log)
        self.groups = RaftGroups(
            settings.name, self.raft_streams, driver, reserved_s=settings.ttl_s, draw=Random(draw()).randrange,
            has_ended=self._has_ended, may_lead=self._may_lead, on_role=self._on_role, log=log)
        self.peers = Peers(
            name=settings.name, membership=self.membership, transport=transport, driver=driver, interest=self.interest,
            configured=settings.configured, window_bytes=settings.window_bytes, limit_s=settings.limit_s,
            on_known=self._on_known, others=self.raft_streams, log=log)
        self._addresses = dict(settings.configured)  # of nodes that have, or had, a lease in this life of the node
        self.services = Cluster(self, self.peers, NodeReplicator(self._group_of, self.groups.line))
        self.operations = NodeOperations(settings.name, transport, self.peers)
        self.stalled_s: Callable[[], float] = float     # for how long the journal has waited for the disk
        self.disk_hangs = False                         # that has ended its lease

    def attach(self, broker: Broker) -> None:
        """The broker that has `services`; before it is loaded from its disk."""
        self._holdings = Holdings(
            broker, settings=self.settings, membership=self.membership, feed=self.feed, writer=self.writer,
            store=self._store, transport=self.transport, driver=self.driver, peers=self.peers,
            phase=lambda: self.phase, begin_leaving=self.begin_leaving, groups=self.groups,
            address_of=self._addresses.__getitem__, draw=self._draw, log=self.log)
        self._answers = self._calls(self._holdings)

    def attach_stored(self, stored: Stored) -> None:
        """The queues and exchanges of the broker; before it is loaded from its disk. Its queues give nothing out before
        this node knows which ones others have."""
        self.holdings.attach_stored(stored)

    def attach_replicas(self, logs: ReplicaLogs, copies: Copies, hands: Hands,
                        checkpoint: Callable[[], Awaitable[None]]) -> None:
        """What it has of replication groups; before it is loaded from its disk. checkpoint: as Copying's."""
        self.groups.attach(self.holdings.broker.hub, logs, copies, hands)
        copying = Copying(self.groups, copies, self.transport, self.driver, address_of=self._addresses.__getitem__,
                          checkpoint=checkpoint, log=self.log)
        self._answers[REPLICA_COPY] = JOINED, copying.give

    @property
    def holdings(self) -> Holdings:
        """Raises UsageError before attach()."""
        if self._holdings is None:
            raise UsageError("the cluster has no broker yet")
        return self._holdings

    # ------------------------------------------------------------------ life

    async def start(self, registration: Registration) -> None:
        """Joins the cluster. registration: what the others are told of this node. When it returns, this node knows what
        all others want, they know what it wants, and it owns those of its stored sessions that no other node has. Turns
        must run meanwhile. Raises JoinRefused, OldStorage, StorageError, BindFailed, StoreError."""
        held, broker = self.holdings, self.holdings.broker
        self.phase = Phase.JOINING
        # Others may ask of this node's etcd before it has joined, and its replicas follow and vote.
        await self.transport.start(self, self.peers)
        if self.settings.replication.enabled:
            self.groups.begin(timing_of(self.settings.replication))
            self.raft_streams.set_nodes(self._addresses)
        await self._patiently(lambda: self.membership.join(registration))
        broker.hub.begin_identities(self.membership.epoch)
        self.cluster = await self._patiently(self._name)
        self.peers.begin(self.cluster, self.membership.epoch)
        kept = None
        if held.queue_owners is not None and held.stored is not None:      # queues are claimed from the load on
            kept = KeptClaims(held.stored.queues, self.driver,
                              lambda: self.phase in (Phase.JOINING, Phase.SERVING, Phase.LEAVING))
        held.retained.begin(self.membership.epoch)
        await self._patiently(self.feed.load)
        held.retained.loaded()
        for task in (self.feed.follow(), self.membership.keep(), self.quorum.keep(), self.peers.keep_limits()):
            self.driver.start(task)
        self._on_known()
        await self._all_known
        held.retained.told()
        for arrived in list(broker.arrivals.values()):
            broker.drop_arrival(arrived)    # its owner has not changed, or has changed back: the other node has it
        for session in await held.owners.reclaim(list(broker.sessions)):
            broker.surrender(*session)
        if held.queue_owners is not None and held.stored is not None:
            await held.queue_owners.begin(held.stored)
            for queue in broker.hub.ledger.let_queues_go():
                queue.notify()
            if kept is not None:
                kept.claimed(held.reaching, self.feed.revision, bool(self.peers.peers))
            for task in (held.queue_owners.keep(), held.definitions.keep(lambda: self.membership.is_leader)):
                self.driver.start(task)
        self.driver.start(held.returns.keep())
        await held.adoption.begin()
        if self.phase is Phase.JOINING:
            held.wills.begin()
            held.kept.begin()
            self.driver.start(held.sweep.keep())
            self.driver.start(held.origins.sweep(broker.hub))
            self.driver.start(self._keep_claim())
            if self.settings.replication.enabled:
                self.driver.start(held.growing.keep())
            self.phase = Phase.SERVING
            held.adoption.serving()

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
        while self.phase in JOINED:
            await self.driver.sleep(PERIOD_S)
            if self.phase not in JOINED:
                return
            try:
                await self.claim.renew(self._store, self.membership.epoch)
            except StoreError:
                continue        # the next time
            except StorageError as error:
                self.log("warning", str(error), "the generation of the storage directory cannot be written: an old "
                                                "copy of it might not be told from it", {"why": str(error)})

    def _on_known(self) -> None:
        if not self.peers.unknown():
            fulfil(self._all_known, None)

    def begin_leaving(self) -> bool:
        """From now on the node takes no session. Returns whether it leaves: it serves, or has begun to leave."""
        if self.phase is Phase.SERVING:
            self.phase = Phase.LEAVING
            self.holdings.adoption.serving(False)
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
        self.holdings.go_on()

    def _fenced(self, why: str) -> None:
        self.phase, self.why_fenced = Phase.FENCED, why
        self._close(why)
        self._on_fenced(why)

    def _close(self, why: str) -> None:
        self.groups.close()
        self.raft_streams.close(why)
        self.feed.close()
        self.writer.close(why)
        self.bans.close(why)
        if self._holdings is not None:
            self.peers.close(why)
            self._holdings.close(why)

    # ------------------------------------------------------------------ what the membership reports

    def _on_node(self, node: Node, appeared: bool) -> None:
        if node.name != self.settings.name:
            if appeared and self.settings.replication.enabled:
                self._addresses[node.name] = dial_address(node, self.settings.configured)
                self.raft_streams.set_nodes(self._addresses)
            about = {"node": node.name, "epoch": node.epoch, "address": node.registration.address}
            if appeared:
                self.log("info", "", "a node has joined", about)
            elif self._holdings is not None and self._holdings.adoption.state_of(node.name) == "leaving":
                self.log("info", "", "a node has left", about)
            else:
                self.log("warning", "", "a node's lease has ended", about)
            if appeared and self._holdings is not None:
                self._holdings.retained.payloads.retry()
        self.peers.on_node(node, appeared)

    def _on_deadline(self, at_s: float) -> None:
        self.holdings.broker.hub.serve_until(int(at_s * 1000))

    # ------------------------------------------------------------------ Directory

    @property
    def node(self) -> str:
        """See the port."""
        return self.settings.name

    @property
    def definer(self) -> Definer | None:
        """See the port."""
        return self.holdings.defining if self.settings.shared else None

    def claim_session(self, namespace: bytes, client_id: bytes, clean_start: bool) -> Owner | None:
        """See the port."""
        return self.holdings.owners.claim((namespace, client_id), clean_start)

    async def take_session(self, namespace: bytes, client_id: bytes, clean_start: bool, asked_ms: int) -> Owner:
        """See the port."""
        return await self.holdings.owners.take((namespace, client_id), clean_start, asked_ms)

    def release_session(self, namespace: bytes, client_id: bytes) -> None:
        """See the port."""
        self.holdings.adoption.ended((namespace, client_id))
        self.holdings.takeovers.ended((namespace, client_id))
        self.holdings.owners.release((namespace, client_id))

    def kept_changed(self, namespace: bytes, client_id: bytes, filter_: bytes | None = b"") -> None:
        """See the port."""
        self.holdings.kept.changed((namespace, client_id), filter_)

    def will_changed(self, namespace: bytes, client_id: bytes, will: Will | None, expiry_s: int,
                     since: int) -> None:
        """See the port."""
        self.holdings.wills.changed((namespace, client_id), will, expiry_s, since)

    def _has_ended(self, epoch: int) -> bool:
        """Whether a life of a node has lost its lease."""
        return all(node.epoch != epoch for node in self.membership.nodes.values())

    def _may_lead(self) -> bool:
        """A replica of this node stands only while this node may serve what it would lead."""
        return self.phase is Phase.SERVING and self.membership.may_serve()

    def _on_role(self, group: int) -> None:
        self.holdings.definitions.on_leader(group)
        self.holdings.ending.look(group)

    def _group_of(self, namespace: bytes, name: bytes) -> int:
        return self.holdings.definitions.group_of((namespace, name))

    def place_queue(self, namespace: bytes, name: bytes) -> Placement:
        """See the port."""
        return self.holdings.definitions.place_queue((namespace, name))

    def announce(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        """See the port."""
        self.interest.announce(namespace, filter_, group, durable)

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        """See the port."""
        self.interest.withdraw(namespace, filter_, group, durable)

    # ------------------------------------------------------------------ CallHandler

    def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        """See CallHandler."""
        if method == VOTER:
            return self.quorum.answer()
        if method == WHO:
            return self._answer_who(body)
        if method == VOTE:
            return self.votes.answer(body)
        if method == "retained" and self._holdings is not None:
            return self._holdings.retained.payloads.serve(body)
        if method == OPERATION and self.phase in JOINED:
            return self.operations.answer(body)
        phases, answer = self._answers.get(method, ((), None))
        return answer(body) if answer is not None and self.phase in phases else self._refused(method)

    def _calls(self, held: Holdings) -> dict[str, tuple[Sequence[Phase], Callable[[bytes], AsyncIterator[bytes]]]]:
        """Methods of Transport.call that a node with a broker answers, and when."""
        moves = held.queue_moves
        return {
            TAKEOVER: (JOINED, held.takeovers.hand_over), TAIL: (JOINED, held.takeovers.take_tail),
            TAKE: ((Phase.SERVING,), lambda body: take(body, self.peers, held.owners)),
            STORED: (RETURNING, held.returns.give), RETURN: (RETURNING, held.returns.take_back),
            COPY: (JOINED, moves.copy), REST: (JOINED, moves.rest), MOVE: (JOINED, moves.ordered),
            HERE: (JOINED, moves.here), DETOUR: (JOINED, moves.detours.answer),
            TAKE_QUEUE: ((Phase.SERVING,), moves.take), QUEUE_END: (JOINED, held.ending.answer)}

    async def _refused(self, method: str) -> AsyncIterator[bytes]:
        if method in ("retained", OPERATION) or method in self._answers:
            why = f"is {self.phase.value}: try again when it serves"
        else:
            why = f"knows no call {method!r}: its version may be another one"
        raise CallFailed(f"node {self.settings.name} {why}", reached=False)
        yield b""
