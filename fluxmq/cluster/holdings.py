"""What a node has for its clients, and shares with the other nodes: sessions, wills, retained messages, definitions,
queues. Made with the broker that has them; the node (node.py) has the rest, and the order of its life.

    sessions      kept ─► owners ─► wills, sweep
                            └─► adoption ─► takeovers ─► returns
    messages      retained; origins, by which copies are known
    definitions   reaching ─► definitions ─► defining ─► queue owners;  queue moves;  documents
    at the end    leaver: takeovers, queue moves

Each is made with what it needs. Where an earlier one needs a later one, too (`former`, `unowned`, `handovers` of the
owners; `lives` of the kept sessions; `tails` of the adoption), the later one sets that when it is made; the owners of
the kept sessions are set here.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable

from fluxmq._core.errors import StorageError
from fluxmq.cluster import keys
from fluxmq.cluster.adoption import Adoption
from fluxmq.cluster.defining import Defining
from fluxmq.cluster.definitions import KINDS, Definitions
from fluxmq.cluster.documents import Documents
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.kept import KeptSessions
from fluxmq.cluster.leaving import Leaver
from fluxmq.cluster.left_sessions import LeftSessions
from fluxmq.cluster.membership import Membership, dial_address
from fluxmq.cluster.messages import (
    Adopted,
    Adopting,
    Control,
    Cut,
    Has,
    LifeCut,
    Reach,
    Reached,
    Serving,
    Switch,
    Unreleased,
    WhoHas,
    encode,
)
from fluxmq.cluster.origins import Origins
from fluxmq.cluster.owners import Owners
from fluxmq.cluster.peers import Handlers, Peer, Peers
from fluxmq.cluster.ports import Log, MetadataStore, Transport
from fluxmq.cluster.queue_moves import QueueMoves
from fluxmq.cluster.queue_owners import QueueOwners
from fluxmq.cluster.raft.ending import Ending
from fluxmq.cluster.raft.groups import RaftGroups
from fluxmq.cluster.raft.growing import Growing
from fluxmq.cluster.raft.table import GroupTable
from fluxmq.cluster.reaching import Reaching
from fluxmq.cluster.retained import RetainedMessages
from fluxmq.cluster.returns import Returns
from fluxmq.cluster.settings import Phase, Settings
from fluxmq.cluster.sweep import Sweep
from fluxmq.cluster.takeover import Takeovers
from fluxmq.cluster.wills import Wills
from fluxmq.cluster.writer import Writer
from fluxmq.engine.broker import Broker
from fluxmq.engine.exchanges.manager import PREDECLARED
from fluxmq.engine.ports.definitions import Stored
from fluxmq.engine.ports.driver import Driver

__all__ = ["Holdings"]


class Holdings:
    """Of one life of a node. broker: before it is loaded from its disk. peers: get it, too. phase: of the node.
    begin_leaving: see Leaver. groups: of which it has replicas. address_of: see Ending. draw: see
    GroupTable."""

    def __init__(self, broker: Broker, *, settings: Settings, membership: Membership, feed: Feed, writer: Writer,
                 store: MetadataStore, transport: Transport, driver: Driver, peers: Peers,
                 phase: Callable[[], Phase], begin_leaving: Callable[[], bool], groups: RaftGroups,
                 address_of: Callable[[str], str], draw: Callable[[], int], log: Log) -> None:
        name, limit_s = settings.name, settings.limit_s
        self.broker = broker
        self.stored: Stored | None = None
        self._settings = settings
        self._membership = membership
        self._peers = peers
        self._driver = driver
        self._phase = phase
        # Sessions.
        self.kept = KeptSessions(membership, store, feed, writer, driver, broker=broker, limit_s=limit_s)
        self.owners = self.kept.owners = Owners(
            membership, feed, writer, driver, is_here=broker.sessions.__contains__, keys=self.kept, limit_s=limit_s)
        self.sweep = Sweep(feed, self.owners, self.kept, writer, driver, membership)
        self.wills = Wills(membership, self.owners, feed, writer, driver, broker=broker, limit_s=limit_s, log=log)
        self.origins = Origins(driver, feed, peers, self._is_used, broker)
        left = LeftSessions(broker, self.owners.end_handover)
        self.adoption = Adoption(
            broker=broker, membership=membership, feed=feed, owners=self.owners, kept=self.kept, peers=peers,
            driver=driver, serves=self._serves, left=left, log=log)
        self.takeovers = Takeovers(
            broker=broker, owners=self.owners, adoption=self.adoption, peers=peers, transport=transport, left=left,
            driver=driver, limit_s=limit_s, log=log)
        self.returns = Returns(
            broker=broker, owners=self.owners, kept=self.kept, peers=peers, transport=transport, driver=driver,
            durable=self.takeovers.durable, is_taking=self.adoption.is_taking, changed=self.adoption.look, log=log)
        # Retained messages.
        self.retained = RetainedMessages(
            name, store, feed, transport, driver, sources=self.sources, node_of=self._node_of, log=log,
            threshold=settings.retained_bytes, is_leader=self._leads, lives=self._lives)
        self.retained.attach(broker.hub, broker.revisions)
        # Definitions, queues, documents.
        self.reaching = Reaching(driver, feed, self._epochs, self._tell, self._when_durable)
        self.definitions = Definitions(
            name, writer, driver, self.reaching, predeclared=PREDECLARED, without_quorum=self._without_quorum,
            leader=groups.leader, limit_s=limit_s, log=log)
        self.groups = groups
        self.group_table = GroupTable(
            name, settings.replication, groups, membership, writer, driver, serving=self._serving, draw=draw,
            limit_s=limit_s, log=log)
        self.growing = Growing(groups, self.group_table, membership, writer, driver, serving=self._serving, log=log)
        self.ending = Ending(name, groups, self.definitions, transport, driver, address_of=address_of, limit_s=limit_s,
                             log=log)
        self.definitions.lost = self.ending.lost
        self.defining = Defining(
            self.definitions, membership, driver, serving=self._serving, next_identity=broker.hub.next_identity,
            table=self.group_table, end=self.ending.end, limit_s=limit_s)
        self.queue_owners: QueueOwners | None = None
        if settings.shared:
            self.queue_owners = QueueOwners(
                self.definitions, self.defining, membership, feed, writer, driver,
                next_identity=broker.hub.next_identity, log=log)
        self.queue_moves = QueueMoves(
            definitions=self.definitions, membership=membership, peers=peers, writer=writer, transport=transport,
            driver=driver, serving=self._serving, next_identity=broker.hub.next_identity, broker=broker,
            cut_by=self.adoption.cut_by, log=log)
        self.documents = Documents(
            writer, driver, self.reaching, joined=self._has_joined, without_quorum=self._without_quorum)
        self._listen(feed)
        peers.attach(broker, on_appeared=self.on_appeared, on_gone=self.on_gone, handlers=self._handlers())
        self.leaver = Leaver(
            broker=broker, membership=membership, owners=self.owners, peers=peers, takeovers=self.takeovers,
            moves=self.queue_moves, transport=transport, driver=driver, begin=begin_leaving, log=log)

    def attach_stored(self, stored: Stored) -> None:
        """See ClusterNode.attach_stored."""
        self.stored = stored
        self.queue_moves.attach(stored.defined)
        self.ending.attach(stored.queues)
        if self.queue_owners is not None:
            self.queue_owners.attach(stored)
            self.broker.hub.ledger.hold_queues()

    def go_on(self) -> None:
        """After a doubt (Membership.in_doubt): what was held up meanwhile goes on."""
        self._peers.go_on()
        self.adoption.look()
        if self.broker.hub.wake is not None:
            self.broker.hub.wake()

    def close(self, why: str) -> None:
        """Nothing is begun any more, and who waits is told why."""
        self.retained.close(why)
        self.wills.close()
        self.origins.close()
        self.definitions.close()
        self.group_table.close()
        self.ending.close()
        self.growing.close()
        self.defining.close()
        if self.queue_owners is not None:
            self.queue_owners.close()
        self.queue_moves.close()
        self.documents.close()
        self.reaching.close(why)
        self.kept.close()
        self.sweep.close()
        self.adoption.close()
        self.returns.close()

    # ------------------------------------------------------------------ what the feed and the streams report

    def _listen(self, feed: Feed) -> None:
        for kinds, on_event in (
                ((keys.OWNER,), self.owners.on_event), ((keys.DATA,), self.kept.on_event),
                ((keys.RETAINED_DATA, keys.RETAINED_INDEX), self.retained.on_event),
                ((keys.WILL_DATA,), self.wills.table.on_event), (KINDS, self.definitions.on_event),
                ((keys.GROUP,), self.group_table.on_event), (keys.DOCUMENTS, self.documents.on_event)):
            feed.listen(kinds, on_event)
        feed.at_end = [self.group_table, self.definitions, self.documents, self.adoption, self.origins, self.reaching]

    def _handlers(self) -> Handlers:
        return {
            Switch: self.takeovers.on_switch, Cut: self.takeovers.on_cut, Adopting: self.adoption.on_adopting,
            Adopted: self.adoption.on_adopted, LifeCut: self.adoption.on_cut, Serving: self.adoption.on_serving,
            Unreleased: self.origins.on_unreleased, WhoHas: self.origins.on_who_has, Has: self.origins.on_has,
            Reach: self._on_reaching, Reached: self._on_reaching}

    def _on_reaching(self, peer: Peer, message: Reach | Reached) -> None:
        self.reaching.on_message(peer.name, message)

    def on_appeared(self, peer: Peer) -> None:
        """This node has a peer from now on."""
        self.retained.greet(peer.outbox, peer.node.epoch)
        self.takeovers.greet(peer)
        self.origins.greet(peer.outbox, self.broker)
        self.adoption.on_appeared(peer)
        if self.stored is not None:
            self.stored.node_appeared(peer.name)

    def on_gone(self, peer: Peer) -> None:
        """The life of a peer has ended."""
        self.retained.on_gone(peer.node.epoch)
        self.origins.on_gone(peer)
        self.reaching.on_batch()
        self.takeovers.on_gone(peer)
        self.queue_moves.on_gone(peer)
        # In the middle of a batch of the feed, of which the engine is told as a whole.
        self._driver.start(self._gone_from_groups(peer.name))
        self.adoption.on_gone(peer)

    async def _gone_from_groups(self, node: str) -> None:
        self.groups.on_gone(node)

    # ------------------------------------------------------------------ what the parts ask

    def sources(self, first: str) -> list[str]:
        """Addresses of the transports of the other nodes; that of one of them first."""
        nodes = [node for node in self._membership.nodes.values() if node.name != self._settings.name]
        return [dial_address(node, self._settings.configured)
                for node in sorted(nodes, key=lambda node: node.name != first)]

    def _serves(self) -> bool:
        return self._phase() is Phase.SERVING

    def _has_joined(self) -> bool:
        return self._phase() in (Phase.SERVING, Phase.LEAVING)

    def _leads(self) -> bool:
        return self._membership.is_leader

    def _without_quorum(self) -> bool:
        return self._membership.without_quorum

    def _is_used(self, name: int) -> bool:
        """Whether the store has a session or will of this name."""
        return self.wills.has(name) or self.kept.has(name)

    def _epochs(self) -> dict[str, int]:
        """Of the other nodes with a lease."""
        return {name: peer.node.epoch for name, peer in self._peers.peers.items()}

    def _serving(self) -> list[str]:
        """Nodes that serve clients, as far as this one knows; itself."""
        return [name for name in self._membership.nodes
                if name == self._settings.name or self.adoption.state_of(name) == "serving"]

    def _lives(self, epoch: int) -> bool:
        return any(node.epoch == epoch for node in self._membership.nodes.values())

    def _node_of(self, slot: int) -> str:
        return next((peer.name for peer in self._peers.peers.values() if peer.slot == slot), "")

    def _tell(self, name: str, message: Control) -> None:
        if (peer := self._peers.peers.get(name)) is not None:
            peer.outbox.control(encode(message))

    def _when_durable(self, then: Callable[[], None]) -> None:
        with contextlib.suppress(StorageError):         # then it ends
            self.broker.hub.when_all_durable(then, lambda why: None)
            self.broker.hub.wake_up()
