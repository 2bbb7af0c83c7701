"""The other nodes: for each a stream to it, the stream that it has opened, and what waits for either.

    a node appears ─► Peer: our interest goes into its outbox ─► dialled ─► attached ─► frames flow
                                                       ▲                    │   │
                                                       └─── after a pause ◄─┴───┘ refused, broken
    it disappears ─► both streams closed, its interest forgotten, its frames dropped: the Peer ends; or it is parked
                     until its persistent sessions are adopted (adoption.py). A node with a new epoch is a new Peer

It is one file because a peer's two streams, its interest and its end share one state.

A peer is `known` when it has told all of its interest and has applied all of ours. A node serves clients when every
peer with a lease is known.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from fluxmq._core.errors import ProtocolError, StorageError, UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.peer.inbox import PeerInbox
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.cluster.interest import AWAY, Interest
from fluxmq.cluster.lost import Doubts, Parked, give_up
from fluxmq.cluster.membership import Membership, Node, dial_address
from fluxmq.cluster.messages import (
    VERSIONS,
    Answer,
    Control,
    Hello,
    NodeCall,
    answer_of,
    control_of,
    encode,
    hello_of,
)
from fluxmq.cluster.ports import CallFailed, Log, StreamHandler, StreamIn, StreamOut, Transport
from fluxmq.cluster.raft.words import is_raft
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.malformed import MALFORMED

__all__ = ["OWN_CLIENTS", "SLOTS", "Handlers", "Peer", "Peers"]

REDIAL_FIRST_S, REDIAL_LAST_S = 0.05, 2.0
# Of frames for which nobody waits: the sender needs to know only to forget them.
ACK_DELAY_S = 0.005
VERSION_AWAITED = 6  # of streams: before, a frame did not say whether somebody waits for it
SLOTS = 256  # of sources of messages: this node, and its peers
OWN_CLIENTS = 0  # the slot of what this node's own clients publish
LIMIT_PERIOD_S = 1.0  # how exactly route_publish_timeout is kept
Handlers = dict[type[Control], Callable[["Peer", Any], None]]  # what a message of a peer is given to


class Peer:
    """One other node. Also the inbox's handler: gets what frames hold besides messages."""

    def __init__(self, peers: Peers, node: Node, slot: int) -> None:
        self._peers = peers
        self.slot = slot  # not 0, and of no other peer
        self.name = node.name
        self.node = node
        self.address = dial_address(node, peers.configured)  # where this node dials it
        self.outbox = PeerOutbox(peers.hub, node.name, peers.epoch, peers.window_bytes)
        self.outbox.life = node.epoch
        self.inbox = PeerInbox(peers.hub, node.name, node.epoch, peers.epoch, self, slot)
        self.inbox.outbox = self.outbox
        self.stream: StreamOut | None = None
        self.incoming: StreamIn | None = None
        self.version = 0  # of the stream that it has opened last
        self.told = False  # all of its interest
        self.told_at = 0  # the frame with the last change of our interest that an answer waits for
        self.whole_at = 0  # the frame with the end of our interest
        self.errors = 0
        self.last_error = ""
        self.redial_s = REDIAL_FIRST_S
        self.broken_at: float | None = peers.driver.now()  # since when one of the streams is missing
        self.broken_long = False  # what its consumers held here was given back
        self.cuts: deque[tuple[float, int]] = deque()  # a time, and the first frame that was made after it
        self.ack_begun = False
        self.announced = False  # that it is known
        self.wanted: dict[tuple[bytes, bytes], bool] = {}  # filters -> whether one of its persistent sessions has it
        self.durable_groups: set[tuple[bytes, bytes, bytes]] = set()  # share groups with one: namespace, filter, name

    @property
    def known(self) -> bool:
        """See the top of the file."""
        return self.told and self.outbox.acknowledged_upto >= self.whole_at > 0

    # ------------------------------------------------------------------ interest.Sender

    def interest(self, namespace: bytes, filter_: bytes, group: bytes, count: int, durable: bool, ticket: bool) -> None:
        """See Sender."""
        self.outbox.interest(namespace, filter_, group, count, ticket, durable)
        if ticket:
            self.told_at = self.outbox.newest_sequence + 1

    def barrier(self) -> None:
        """See Sender."""
        if self.outbox.acknowledged_upto < self.told_at:
            self.outbox.barrier()

    # ------------------------------------------------------------------ PeerInbox's handler

    def on_interest(self, namespace: bytes, filter_: bytes, group: bytes, count: int, durable: bool) -> None:
        """How many subscriptions the node has with a filter, and whether one is of a session that outlives it."""
        if group:
            members = (0, count & ~AWAY) if count & AWAY else (count, 0)
            if durable:
                self.durable_groups.add((namespace, filter_, group))
            else:
                self.durable_groups.discard((namespace, filter_, group))
            self._peers.broker.share_groups.learn(self.name, namespace, filter_, group, *members)
        else:
            if count:
                self.wanted[namespace, filter_] = durable
            else:
                self.wanted.pop((namespace, filter_), None)
            self._peers.broker.learn(self.name, namespace, filter_, count > 0)

    def on_interest_end(self) -> None:
        """What was told is all of the node's interest."""
        self.told = True

    def on_group_message(self, namespace: bytes, group: bytes, filter_: bytes, topic: bytes, payload: bytes,
                         properties: bytes, qos: int, retain: bool, expires_at: int) -> None:
        """A message for one member of a share group that has none on this node any more."""
        self._peers.broker.share_groups.give_on(
            namespace, group, filter_, (topic, payload, properties, qos, retain, expires_at))

    def on_attach(self, number: int, queue: int, data: bytes) -> None:
        """A consumer of the node for a queue of this one; so are the next three."""
        self._peers.broker.hosts.on_attach(self.outbox, number, queue, data)

    def on_detach(self, number: int, rests: bool) -> None:
        self._peers.broker.hosts.on_detach(self.outbox, number, rests)

    def on_call(self, number: int, queue: int, data: bytes) -> None:
        self._peers.broker.hosts.on_call(self.outbox, number, queue, data, self.inbox.asked)

    def on_result(self, number: int, data: bytes) -> None:
        self._peers.broker.relays.on_result(self.outbox, number, data)

    def on_refused(self, sequence: int, why: str) -> None:
        """What a frame has caused cannot be committed here: the node must not take it for done."""
        if self.incoming is not None:
            self._peers.refuse(self, f"frame {sequence} could not be committed: {why}")

    def on_control(self, body: bytes) -> None:
        """A message of this ring. Raises ProtocolError for one that it does not know."""
        try:
            message = control_of(body)
        except MALFORMED as error:
            raise ProtocolError(0x82, f"node {self.name} sent a message that this version does not know: {error}") \
                from None
        self._peers.handlers[type(message)](self, message)

    def on_applied(self, sequence: int) -> None:
        """Everything that the node's frames caused up to this one is committed."""
        awaited = self.inbox.awaited or self.version < VERSION_AWAITED
        self.outbox.ack(self.inbox.epoch, sequence, awaited)
        if not awaited and not self.ack_begun:
            self.ack_begun = True
            self._peers.driver.start(self._send_ack_later())

    async def _send_ack_later(self) -> None:
        """Unless one has left meanwhile, with a frame or alone."""
        await self._peers.driver.sleep(ACK_DELAY_S)
        self.ack_begun = False
        self.outbox.send_ack()


class Peers:
    """`engine.ports.cluster.Peers`, and the handler of a transport's streams. One per life of a node; made with it,
    given its broker by attach(), and empty until begin().

    configured: see dial_address. others: gets the streams that are not to a peer, but Raft's. on_known: called when a
    peer has become known, or one that was waited for has gone.
    """

    hub: Hub
    broker: Broker
    on_appeared: Callable[[Peer], None]
    on_gone: Callable[[Peer], None]
    handlers: Handlers

    def __init__(self, *, name: str, membership: Membership, transport: Transport, driver: Driver, interest: Interest,
                 configured: dict[str, str], window_bytes: int, limit_s: float, on_known: Callable[[], None],
                 others: StreamHandler, log: Log) -> None:
        self.name = name
        self.cluster = ""  # identifies the cluster, when this node has joined it
        self.epoch = 0  # of this node then
        self.membership = membership
        self.transport = transport
        self.driver = driver
        self.interest = interest
        self.configured = configured
        self.window_bytes = window_bytes
        self.limit_s = limit_s
        self.on_known = on_known
        self.others = others
        self.log = log
        self.peers: dict[str, Peer] = {}
        self.parked: dict[tuple[str, int], tuple[Peer, Parked]] = {}  # dead nodes whose sessions are being adopted
        self.doubts = Doubts(log)
        self._of_stream: dict[StreamOut, Peer] = {}
        self._of_incoming: dict[StreamIn, Peer] = {}
        self._held: list[tuple[StreamIn, bytes]] = []  # frames that have come while this node was in doubt
        self._closed = False

    def attach(self, broker: Broker, *, on_appeared: Callable[[Peer], None], on_gone: Callable[[Peer], None],
               handlers: Handlers) -> None:
        """broker: before it is loaded from its disk. on_appeared: called when a peer's stream has this node's interest,
        before anything says that this is all. on_gone: called when a peer has no lease any more. handlers: of CONTROL
        records."""
        self.broker, self.hub = broker, broker.hub
        self.on_appeared, self.on_gone, self.handlers = on_appeared, on_gone, handlers

    def begin(self, cluster: str, epoch: int) -> None:
        """This node has joined the cluster, and the feed is to be loaded."""
        self.cluster, self.epoch = cluster, epoch

    # ------------------------------------------------------------------ engine.ports.cluster.Peers

    def hop(self, node: str) -> PeerHop:
        """See the port."""
        peer = self.peers.get(node)
        if peer is None:
            raise UsageError(f"there is no node {node!r} beside {self.name!r}")
        return peer.outbox

    def reference(self, node: str) -> str:
        """See the port."""
        known = self.membership.nodes.get(node)
        clients = known.registration.clients if known is not None else {}
        return next(iter(clients.values()), "")

    def call_to(self, peer: Peer, session: tuple[bytes, bytes]) -> dict[str, Any]:
        """The fields of a SessionCall from this node to a peer."""
        return {**self.asks(peer), "namespace": session[0], "client_id": session[1]}

    def asks(self, peer: Peer) -> dict[str, Any]:
        """The fields of a NodeCall from this node to a peer."""
        return {"cluster": self.cluster, "node": self.name, "epoch": self.epoch, "to_epoch": peer.node.epoch}

    def caller_of(self, call: NodeCall) -> Peer:
        """Who calls this node. Raises CallFailed for one that it does not know in that life, and if this node is not
        the one that is meant, or may not serve."""
        caller = self.peers.get(call.node)
        if caller is None or (call.cluster, call.epoch, call.to_epoch) != (
                self.cluster, caller.node.epoch, self.epoch) or not self.membership.may_serve():
            raise CallFailed(f"node {call.node} (epoch {call.epoch}) is not known here yet, or one of the two has "
                             "restarted or lost its lease", reached=False)
        return caller

    def unknown(self) -> list[str]:
        """The peers with a lease that are not known."""
        return [peer.name for peer in self.peers.values() if not peer.known]

    # ------------------------------------------------------------------ nodes come and go

    def on_node(self, node: Node, appeared: bool) -> None:
        """For Membership. This node itself is not a peer."""
        if node.name == self.name or self._closed:
            return
        peer = self.peers.get(node.name)
        if not appeared:
            if peer is not None:
                self._disappeared(peer)
            return
        slot = min(set(range(1, SLOTS)) - {peer.slot for peer in self.peers.values()}, default=0)
        if not slot:
            self.log("error", "", f"a node is left out: a cluster has at most {SLOTS} nodes", {"node": node.name})
            return
        peer = self.peers[node.name] = Peer(self, node, slot)
        self.interest.add(node.name, peer)
        self.hub.nodes.append(peer.outbox)
        self.on_appeared(peer)
        peer.outbox.interest_end()
        peer.whole_at = peer.outbox.cut() - 1
        self._dial(peer)

    def _disappeared(self, peer: Peer) -> None:
        self.interest.remove(peer.name)
        self.hub.nodes.remove(peer.outbox)
        self._hang_up(peer, "its lease has ended")
        peer.inbox.close()
        peer.inbox.outbox = None
        peer.outbox.give_up_queues(f"node {peer.name} is gone")
        self.broker.hosts.on_gone(peer.outbox)
        self.broker.relays.on_gone(peer.outbox)
        if any(peer.wanted.values()):
            self._park(peer)
        else:
            self._abandon(peer)
        del self.peers[peer.name]
        self.on_gone(peer)
        self.on_known()

    def _park(self, peer: Peer) -> None:
        """Its persistent sessions are going to be adopted: what they want is kept."""
        for (namespace, filter_), durable in peer.wanted.items():
            if not durable and namespace in self.hub.namespaces:
                self.hub.targets.remove_peer(peer.outbox, filter_, self.hub.namespaces[namespace])
        self.broker.share_groups.forget(peer.name, peer.durable_groups, peer.node.epoch)
        self.parked[peer.name, peer.node.epoch] = peer, Parked(peer.outbox, self.broker, self.doubts, self.driver.now())

    def direct(self, peer: Peer, adopters: list[Peer], here: bool) -> None:
        """What was kept for a dead node goes to the sessions that were adopted from it; it is not kept any more."""
        key = peer.name, peer.node.epoch
        _, parked = self.parked[key]
        self.hub.targets.remove_peer(peer.outbox)
        parked.direct(peer.node.epoch, [adopter.outbox for adopter in adopters], here,
                      next((adopter.outbox for adopter in adopters if adopter.name == peer.name), None),
                      lambda: self.parked.pop(key, None))

    def _abandon(self, peer: Peer) -> None:
        self.broker.forget_node(peer.name, peer.durable_groups, peer.node.epoch)
        give_up(peer.outbox, self.broker, self.doubts, self.driver.now())

    def _hang_up(self, peer: Peer, why: str) -> None:
        if peer.stream is not None:
            self._of_stream.pop(peer.stream, None)
            peer.stream.close()
            peer.stream = None
        if peer.incoming is not None:
            self._of_incoming.pop(peer.incoming, None)
            peer.incoming.close(why)
            peer.incoming = None
        peer.outbox.detach()

    def close(self, why: str) -> None:
        """Closes all streams; nothing is sent or applied any more."""
        self._closed = True
        self.hub.nodes.clear()
        for peer in self.peers.values():
            self._hang_up(peer, why)

    async def keep_limits(self) -> None:
        """Gives up what a peer has not acknowledged for limit_s, and gives back what waits for consumers that get
        nothing, until close()."""
        while not self._closed:
            now = self.driver.now()
            for peer in [*self.peers.values(), *(peer for peer, _ in self.parked.values())]:
                peer.cuts.append((now, peer.outbox.cut()))
                while peer.cuts and peer.cuts[0][0] <= now - self.limit_s:
                    upto = peer.cuts.popleft()[1]
                    peer.outbox.give_up_before(upto, f"node {peer.name} did not answer within {self.limit_s:g} s")
                peer.outbox.return_stalled()
            self.broker.relays.expire(int(self.limit_s * 1000))
            self._end_claims()
            self.doubts.expire(now)
            await self.driver.pace(LIMIT_PERIOD_S)

    def _end_claims(self) -> None:
        """What consumers of a node hold that is out of reach for longer than a lease lasts is ready again: they may
        never get it, or never be able to settle it."""
        now = self.driver.now()
        for peer in self.peers.values():
            if peer.broken_at is None or now - peer.broken_at <= self.membership.ttl_s:
                continue
            if not peer.broken_long and peer.outbox.hosted:
                self.log("warning", "", "a node cannot be reached, and keeps its lease: what its consumers hold of "
                                        "queues of this node is ready again", {"node": peer.name})
            peer.broken_long = True
            self.broker.hosts.on_broken(peer.outbox)

    def _look(self, peer: Peer) -> None:
        """A stream was opened, or is missing."""
        if not peer.outbox.attached or peer.incoming is None:
            if peer.broken_at is None:
                peer.broken_at = self.driver.now()
            return
        peer.broken_at = None
        if peer.broken_long:
            peer.broken_long = False
            self.broker.hosts.on_whole(peer.outbox)
            self.hub.wake_up()

    # ------------------------------------------------------------------ the stream to a peer

    def _dial(self, peer: Peer) -> None:
        if self._closed or peer.stream is not None or self.peers.get(peer.name) is not peer:
            return
        hello = Hello(cluster=self.cluster, node=self.name, epoch=self.epoch, to_epoch=peer.node.epoch)
        peer.stream = self.transport.dial(peer.address, encode(hello))
        self._of_stream[peer.stream] = peer

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        """See StreamHandler."""
        peer = self._of_stream.get(stream)
        if peer is None:
            self.others.on_open(stream, answer)
            return
        try:
            agreed = answer_of(answer)
            if agreed.epoch != peer.node.epoch:
                raise ProtocolError(0x82, f"node {peer.name} has restarted meanwhile (epoch {agreed.epoch}, not "
                                          f"{peer.node.epoch})")
            peer.redial_s = REDIAL_FIRST_S
            stream.on_idle = peer.outbox.on_idle
            peer.outbox.attach(stream.send, agreed.epoch, agreed.position, agreed.version)
            self.doubts.on_back(peer.name, peer.outbox.on_disk)
        except (*MALFORMED, ProtocolError) as error:
            stream.close()
            self.on_closed(stream, str(error))
        else:
            self._look(peer)

    def on_closed(self, stream: StreamOut, why: str) -> None:
        """See StreamHandler."""
        peer = self._of_stream.pop(stream, None)
        if peer is None:
            self.others.on_closed(stream, why)
            return
        peer.stream = None
        peer.outbox.detach()
        self._look(peer)
        if why != peer.last_error:
            self.log("warning", why, "no stream to a node; trying again", {"node": peer.name, "why": why})
        peer.errors += 1
        peer.last_error = why
        self.driver.start(self._redial(peer))

    async def _redial(self, peer: Peer) -> None:
        pause, peer.redial_s = peer.redial_s, min(2 * peer.redial_s, REDIAL_LAST_S)
        await self.driver.sleep(pause)
        self._dial(peer)

    # ------------------------------------------------------------------ the stream from a peer

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        """See StreamHandler."""
        if is_raft(hello):
            return self.others.on_stream(stream, hello)
        try:
            peer, version = self._check(hello_of(hello))
        except (*MALFORMED, ProtocolError) as error:
            stream.close(str(error))
            return None
        if peer.incoming is not None:
            # The node has dialled again before this end has noticed that the former stream is broken.
            self._of_incoming.pop(peer.incoming, None)
            peer.incoming.close("replaced by a newer stream")
        peer.incoming, peer.version = stream, version
        self._of_incoming[stream] = peer
        self._look(peer)
        return encode(Answer(epoch=self.epoch, version=version, position=peer.inbox.position))

    def _check(self, hello: Hello) -> tuple[Peer, int]:
        if not self.cluster:
            raise ProtocolError(0x88, f"node {self.name} is joining")
        if self._closed or not self.membership.may_serve():
            raise ProtocolError(0x88, f"node {self.name} is not serving")
        if hello.cluster != self.cluster:
            raise ProtocolError(0x87, f"node {self.name} is in another cluster ({self.cluster}, not {hello.cluster})")
        if hello.to_epoch != self.epoch:
            raise ProtocolError(0x82, f"node {self.name} has epoch {self.epoch}, not {hello.to_epoch}")
        peer = self.peers.get(hello.node)
        if peer is None or peer.node.epoch != hello.epoch:
            raise ProtocolError(0x87, f"node {self.name} does not know node {hello.node} with epoch {hello.epoch}")
        version = min(hello.versions[1], VERSIONS[1])
        if version < max(hello.versions[0], VERSIONS[0]):
            own, its = (f"{lowest} to {highest}" for lowest, highest in (VERSIONS, hello.versions))
            raise ProtocolError(0x84, f"node {self.name} speaks versions {own} of streams, node {hello.node} {its}: "
                                      f"upgrade the older one")
        return peer, version

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        """See StreamHandler."""
        peer = self._of_incoming.get(stream)
        if peer is None:
            self.others.on_frame(stream, frame)
            return
        if not self.membership.may_serve():
            if self.membership.in_doubt:
                self._held.append((stream, frame))      # the sender's window bounds them
            return
        self.hub.refresh_clock()  # messages expire from now on, and frames come between the turns
        try:
            peer.outbox.acknowledged(peer.inbox.apply(frame))
        except (ProtocolError, StorageError, MemoryError) as error:
            # The frame comes again when the node has dialled again, from the record on that failed.
            self.refuse(peer, str(error) or repr(error))
        else:
            if not peer.announced and peer.known:
                peer.announced = True
                self.on_known()

    def go_on(self) -> None:
        """After a doubt: what has come meanwhile counts now, and what was held back leaves."""
        held, self._held = self._held, []
        for stream, frame in held:
            self.on_frame(stream, frame)
        for peer in self.peers.values():
            peer.outbox.go_on()
            peer.outbox.send_ack()

    def refuse(self, peer: Peer, why: str) -> None:
        """Closes the stream that a peer has opened."""
        stream, peer.incoming = peer.incoming, None
        if stream is not None:
            self.log("error", why, "the stream from a node was closed; it dials again", {"node": peer.name, "why": why})
            peer.errors += 1
            peer.last_error = why
            del self._of_incoming[stream]
            stream.close(why)
            self._look(peer)

    def on_end(self, stream: StreamIn) -> None:
        """See StreamHandler."""
        peer = self._of_incoming.pop(stream, None)
        if peer is None:
            self.others.on_end(stream)
        elif peer.incoming is stream:
            peer.incoming = None
            self._look(peer)
