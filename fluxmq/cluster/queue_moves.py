"""A queue moves to another node. docs/internals/cluster-queues.md, "Moves".

    old owner                                            new owner
    call "take-queue" ────────────────────────────────►  a copy begins (engine/queues/moves: Arrival)
      "queue-copy": the log, while the queue is served ─► ◄─ call
      "queue-rest": the queue rests, becomes a relay ───► ◄─ call; all of it is on the disk
    ◄─────────────────────────────────────────────────── answer
    one transaction: queue-data names the new owner ──── the feed ──► the relay there becomes the owner, and claims
    call "queue-here" ────────────────────────────────►  the answer: it has become the owner
    the way to it is open again                          what others held is theirs, or free after a while

The transaction decides. It compares that neither node has started again since, so a copy that a start finds is the
queue, or will never be. Until it is sent, either side may give the move up; when it is sent, the old owner waits until
it knows.

It is one file because the two sides are one protocol.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING

from fluxmq._core.errors import FluxError
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq.cluster.definition_values import QueueData, data_of, definition_key, encode_data
from fluxmq.cluster.definitions import Definitions
from fluxmq.cluster.keys import QUEUE_DATA, QUEUE_OWNER, node_key, queue_key
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.messages import MoveRefused, QueueCall, encode, move_refused_of, queue_call_of
from fluxmq.cluster.peers import Peer, Peers
from fluxmq.cluster.ports import CallFailed, Change, Compare, Log, StoreError, Transport
from fluxmq.cluster.queue_detours import Detours
from fluxmq.cluster.recorded import recorded
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.definitions import FIRST, Placement
from fluxmq.engine.ports.driver import Driver, Work
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.moves import Arrival, Departure, why_it_stays
from fluxmq.engine.queues.parts import shown_queue
from fluxmq.model.malformed import MALFORMED

if TYPE_CHECKING:
    from fluxmq._core.hub.hub import Hub
    from fluxmq._core.queue.group import Group
    from fluxmq._core.queue.handover import Reserve
    from fluxmq._core.queue.queue import Queue
    from fluxmq.engine.broker import Broker
    from fluxmq.engine.queues.defined import DefinedQueues
    from fluxmq.engine.queues.hands import Hands
    from fluxmq.engine.queues.manager import QueueManager
    from fluxmq.engine.queues.state import QueueState

__all__ = ["COPY", "HERE", "MOVE", "REST", "TAKE_QUEUE", "QueueMoves"]

Address = tuple[bytes, bytes]
# methods of Transport.call
TAKE_QUEUE, COPY, REST, HERE, MOVE = "take-queue", "queue-copy", "queue-rest", "queue-here", "move-queue"
COPY_S = 24 * 3600.0  # of a whole queue
REST_S = 5.0  # how long a queue may rest before the transaction is sent
KEEP_S = 5.0  # before it rests: until the old owner has what the new one's clients have published
QUIET_S = 1.0  # of it: until the nodes of its consumers have what was sent to them
HERE_S = 5.0
ASK_S = 10.0  # before an operator is told that it takes longer
GONE = "the queue is not at this node any more"  # what a former owner answers, and who has asked looks for
CERTAIN_S = 60.0  # how long an old owner that does not answer may have its lease, before an operator is told so
RETRY_S = 0.2
LOOK_S = 0.002
NO_TIME = "there was no time for it"  # why a queue stays that might have moved
RESERVED_S = 5.0  # how long messages are kept for consumers that held them
DURABLE_BYTES = 4 << 20  # of a copy that are not on the disk yet


class _Going:
    """A queue that leaves; at its old owner. failed: why it was given up before the transaction was sent. sent: it may
    be at the other node; refused: it is certainly not."""

    def __init__(self, state: QueueState, departure: Departure, peer: Peer, number: int,
                 placement: Placement) -> None:
        """placement: what the data will be at the other node."""
        self.state = state
        self.placement = placement
        self.departure = departure
        self.peer = peer
        self.number = number
        self.resting = False
        self.sent = self.refused = False
        self.revision = 0  # of queue-data, which the transaction compares
        self.failed = ""


class QueueMoves:
    """Both sides, of one life of a node. serving: the nodes that serve clients, this one too."""

    def __init__(self, *, definitions: Definitions, membership: Membership, peers: Peers,
                 writer: Writer, transport: Transport, driver: Driver, serving: Callable[[], list[str]],
                 next_identity: Callable[[], int], broker: Broker,
                 cut_by: Callable[[int], Collection[str]], log: Log) -> None:
        self._broker = broker
        self._definitions = definitions
        self.detours = Detours(definitions=definitions, peers=peers, transport=transport, driver=driver, cut_by=cut_by)
        self._membership = membership
        self._peers = peers
        self._writer = writer
        self._transport = transport
        self._driver = driver
        self._serving = serving
        self._next_identity = next_identity
        self._log = log
        self._going: dict[int, _Going] = {}  # by identity
        self._coming: dict[int, tuple[Arrival, str, int]] = {}  # by identity: the copy, its node, the move
        self._asked: dict[tuple[Address, str], Work[QueueRefused | None]] = {}
        self._why_left: dict[QueueState, str] = {}
        self.moved = 0  # by move_all()
        self.under_way: tuple[str, str] | None = None  # of move_all(): the queue that moves, and its new node
        self._closed = False
        self._manager: QueueManager | None = None
        self._arrivals: dict[int, Arrival] = {}  # of the engine

    def attach(self, defined: DefinedQueues) -> None:
        """The engine's queues."""
        manager = self._manager = defined.manager
        defined.on_came, manager.mover = self._on_came, self.ask
        self._arrivals = defined.arrivals
        self.detours.attach(manager)

    def close(self) -> None:
        """Nothing is tried again."""
        self._closed = True
        self.detours.close()

    @property
    def manager(self) -> QueueManager:
        assert self._manager is not None
        return self._manager

    @property
    def _hands(self) -> Hands:
        consumers = self._broker.consumers
        assert consumers is not None
        return consumers.hands

    @property
    def _hub(self) -> Hub:
        return self.manager.hub

    # ------------------------------------------------------------------ an operator

    async def ask(self, address: Address, node: str) -> bool:
        """Moves a queue, or waits for the move that has begun. Returns whether it is there; False: it takes longer, ask
        again. The move goes on if nobody asks any more. Raises as move()."""
        work = self._asked.get((address, node))
        if work is None:
            work = self._asked[address, node] = self._driver.start(self._told(address, node))
        until = self._driver.now() + ASK_S
        while not work.done() and self._driver.now() < until:
            await self._driver.sleep(LOOK_S)
        if not work.done():
            return False
        if self._asked.get((address, node)) is work:
            del self._asked[address, node]
        if (refused := work.result()) is not None:
            raise refused
        return True

    async def _told(self, address: Address, node: str) -> QueueRefused | None:
        try:
            await self.move(address, node)
        except QueueRefused as refused:
            return refused
        return None

    async def move(self, address: Address, node: str) -> None:
        """Moves a queue. Raises QueueRefused: not_found; conflict: it cannot be moved; unavailable: it was not moved,
        or nobody knows yet."""
        state = self.manager.queues.get(address)
        home = self._definitions.home_of(address)
        if state is None or home is None:
            if not self._definitions.begun:
                raise QueueRefused("unavailable", "this node is joining its cluster, or leaves it",
                                   "repeat it when the node serves clients")
            raise QueueRefused("not_found", f"there is no queue {address[1].decode('utf-8', 'replace')}")
        shown = shown_queue(state.spec)
        if home.node == node:
            return
        if home.group:
            raise QueueRefused("conflict", f"queue {shown} cannot be moved: {home.holder} has its data")
        peers = self._peers
        if node not in self._serving() or (node != self._membership.name and node not in peers.peers):
            raise QueueRefused("unavailable", f"node {node} does not serve",
                               "fluxmq cluster status names those that do")
        if state.here or state.moving is not None:
            await self._move_from_here(state, peers.peers[node])
            return
        owner = peers.peers.get(home.node)
        if owner is None:
            raise QueueRefused("unavailable", f"queue {shown} is at node {home.node}, which is away",
                               f"start node {home.node}, and repeat the command when it serves")
        call = QueueCall(**peers.call_to(owner, address), identity=state.id, to=node)
        try:
            async for refusal in self._transport.call(owner.address, MOVE, encode(call), COPY_S):
                said = move_refused_of(refusal)
                raise QueueRefused(said.kind, said.text, said.hint)
        except CallFailed as error:
            if GONE in str(error) and await self._is_elsewhere(address, owner.name):
                await self.move(address, node)
                return
            await self._ask_etcd(address, shown, owner, node, error)
        until = self._driver.now() + HERE_S
        while (home := self._definitions.home_of(address)) is not None and home.node != node \
                and self._driver.now() < until:
            await self._driver.sleep(LOOK_S)

    async def _is_elsewhere(self, address: Address, former: str) -> bool:
        """Its former owner has said so: whether this node hears of the new one in time."""
        until = self._driver.now() + HERE_S
        while (home := self._definitions.home_of(address)) is not None and home.node == former:
            if self._driver.now() > until:
                return False
            await self._driver.sleep(LOOK_S)
        return home is not None

    async def _ask_etcd(self, address: Address, shown: str, owner: Peer, node: str, error: CallFailed) -> None:
        """The old owner has not answered. Returns if the queue has moved even so. Raises QueueRefused otherwise."""
        if not error.reached:
            raise QueueRefused("unavailable", f"queue {shown} stays at node {owner.name}, which was not asked: {error}",
                               "repeat the command when it serves") from None
        until, peers = self._driver.now() + CERTAIN_S, self._peers
        while (home := self._definitions.home_of(address)) is not None and home.node == owner.name:
            if peers.peers.get(owner.name) is not owner:
                # The transaction compares the owner's key, which has gone with the lease: it will never be done.
                raise QueueRefused(
                    "unavailable", f"queue {shown} has not moved to node {node}: node {owner.name}, which has it, has "
                    f"failed meanwhile ({error}). The queue is away, with all that it had, until that node is back",
                    f"start node {owner.name}, and repeat the command when it serves") from None
            if self._driver.now() > until:
                raise QueueRefused(
                    "unavailable", f"it is not known whether queue {shown} moves to node {node}: node {owner.name}, "
                    f"which has it, has not answered ({error})",
                    f"fluxmq queue describe {shown} says where it is; repeat the command if it has not moved") from None
            await self._driver.sleep(RETRY_S)
        if home is None or home.node != node:
            raise QueueRefused("unavailable", f"queue {shown} was deleted, or moved elsewhere, meanwhile") from None

    async def move_all(self) -> None:
        """This node leaves: its queues go to the nodes with the fewest."""
        for state in list(self.manager.queues.values()) if self._manager is not None else ():
            if not state.here or not state.id:
                continue
            others = [name for name in self._serving() if name != self._membership.name]
            why = why_it_stays(state) if others else "no other node serves"
            if not why:
                count = self._definitions.placed
                node = min(others, key=lambda name: (count[name], name))
                self.under_way = shown_queue(state.spec), node
                try:
                    await self.move(state.queue.address, node)
                    self.moved += 1
                except QueueRefused as refused:
                    why = refused.text
                self.under_way = None
            if why:
                self._why_left[state] = why

    def left(self) -> dict[str, str]:
        """Queues that move_all() has not moved so far, and why."""
        return {shown_queue(state.spec): self._why_left.get(state) or why_it_stays(state) or NO_TIME
                for state in (self.manager.queues.values() if self._manager is not None else ())
                if state.here and state.id}

    async def ordered(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "move-queue", when an operator has asked another node: nothing, when the queue is there, or
        why it stays. Raises CallFailed."""
        call, address, _ = self._read(body)
        state = self.manager.queues.get(address)
        if state is None or not state.here or state.id != call.identity:
            raise CallFailed(GONE, reached=False)
        try:
            await self.move(address, call.to)
        except QueueRefused as refused:
            yield encode(MoveRefused(kind=refused.kind, text=refused.text, hint=refused.hint))

    def _read(self, body: bytes) -> tuple[QueueCall, Address, Peer]:
        try:
            call = queue_call_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not a call about a queue: {error}", reached=False) from None
        return call, (call.namespace, call.client_id), self._peers.caller_of(call)

    # ------------------------------------------------------------------ the old owner

    async def _move_from_here(self, state: QueueState, peer: Peer) -> None:
        shown = shown_queue(state.spec)
        why = why_it_stays(state) or ("" if state.id else "it belongs to its node")
        if why:
            raise QueueRefused("conflict", f"queue {shown} cannot be moved: {why}")
        until = self._driver.now() + HERE_S
        while self._definitions.owner_of(state.queue.address) != self._membership.name:     # it has just come
            if not state.here or self._driver.now() > until or self._closed:
                raise QueueRefused("unavailable", f"queue {shown} is not served by this node yet: try again")
            await self._driver.sleep(LOOK_S)
        if why := why_it_stays(state):
            raise QueueRefused("conflict", f"queue {shown} cannot be moved: {why}")
        departure = Departure(self.manager, self._hands, state)
        going = _Going(state, departure, peer, self._next_identity(), state.placement.after_move)
        self._going[state.id] = going
        began = self._driver.now()
        self._log("info", "", "a queue begins to move", {"queue": shown, "node": peer.name})
        try:
            await self._hand_over(going)
        except (CallFailed, QueueRefused) as error:
            going.refused = True
            why = going.failed or (error.text if isinstance(error, QueueRefused) else
                                   f"node {peer.name} has not taken it: {error}")
            self._log("warning", why, "a queue was not moved", {"queue": shown, "node": peer.name, "why": why})
            raise QueueRefused("unavailable", f"queue {shown} stays at node {self._membership.name}: {why}",
                               "fluxmq cluster members says which nodes serve; repeat the command then") from None
        finally:
            if self._going.get(state.id) is going:  # else another move has begun, after _limit
                del self._going[state.id]
            if not self._closed and (not going.sent or going.refused):
                if state.moving is going.departure:  # else _limit has done it
                    going.departure.undo()
                self._driver.start(self._tell(going, kept=True))
        self._log("info", "", "a queue has moved", {"queue": shown, "node": peer.name,
                                                    "seconds": round(self._driver.now() - began, 3)})
        await self._tell(going, kept=False)
        going.departure.resume()

    async def _hand_over(self, going: _Going) -> None:
        """Until it is certain that the queue is at the other node. Raises CallFailed, QueueRefused: it is here."""
        async for _ in self._call(going.peer, TAKE_QUEUE, going.state.queue.address, going.state.id, going.number,
                                  COPY_S, placement=going.placement):
            pass
        if going.failed or going.departure.contents is None:
            raise CallFailed(going.failed or f"node {going.peer.name} has not asked for the queue")
        going.sent = True
        await self._commit(going)
        while going.state.moving is going.departure and not self._closed:
            if self.manager.queues.get(going.state.queue.address) is not going.state:
                return      # it was deleted
            data = self._definitions.data.get(going.state.queue.address)
            if data is not None and data.revision > going.revision and data.value.node == self._membership.name:
                raise QueueRefused("unavailable", f"node {going.peer.name} is gone, and it was placed here anew")
            await self._driver.sleep(LOOK_S)

    def _call(self, peer: Peer, method: str, address: Address, identity: int, number: int, limit_s: float, *,
              kept: bool = False, placement: Placement = FIRST) -> AsyncIterator[bytes]:
        call = QueueCall(**self._peers.call_to(peer, address), identity=identity, move=number, kept=kept,
                         incarnation=placement.incarnation, moved=placement.moved)
        return self._transport.call(peer.address, method, encode(call), limit_s)

    async def _commit(self, going: _Going) -> None:
        """The transaction. Raises QueueRefused when it is certain that it was not done, and never will be."""
        definitions, address, node = self._definitions, going.state.queue.address, going.peer.node
        placed = QueueData(node.name, node.registration.identity, going.state.id, going.placement)
        while not self._closed:
            queue, owner, data = definitions.queues.get(address), definitions.owners.get(address), \
                definitions.data.get(address)
            if queue is None or data is None or owner is None or queue.value.id != going.state.id or (
                    owner.value.node != self._membership.name):
                raise QueueRefused("unavailable", "it was deleted, or is not this node's any more")
            if data.value == placed:
                return
            if data.value.node != self._membership.name or data.value.placement.after_move != going.placement:
                raise QueueRefused("unavailable", f"{data.value.holder} has its data now, or it has begun anew")
            going.revision = data.revision
            try:
                result = await self._writer.change(
                    [Compare(definition_key(address), queue.revision),
                     Compare(queue_key(QUEUE_DATA, *address), data.revision),
                     Compare(queue_key(QUEUE_OWNER, *address), owner.revision),
                     Compare(node_key(node.name), node.epoch)],
                    [Change(queue_key(QUEUE_DATA, *address), encode_data(placed))])
            except StoreError:
                await self._driver.sleep(RETRY_S)   # it may have been done: the same again says so
                continue
            if result.done:
                return
            found = result.found
            if found[1] is not None and data_of(found[1].value) == placed:
                return
            if found[3] is None or found[3].revision != node.epoch:
                raise QueueRefused("unavailable", f"node {node.name} was started again meanwhile")
            if found[2] is None or found[2].revision != owner.revision:
                raise QueueRefused("unavailable", "it is not this node's any more")
            await self._driver.sleep(LOOK_S)        # other settings, perhaps: the feed shows them

    async def _tell(self, going: _Going, *, kept: bool) -> None:
        """Tells the other node what came of the move, until it knows or is gone."""
        peers, address = self._peers, going.state.queue.address
        while not self._closed and peers.peers.get(going.peer.name) is going.peer:
            try:
                async for _ in self._call(going.peer, HERE, address, going.state.id, going.number, HERE_S, kept=kept):
                    pass
                return
            except CallFailed:
                await self._driver.sleep(RETRY_S)

    def _find(self, body: bytes) -> _Going:
        call, _, peer = self._read(body)
        going = self._going.get(call.identity)
        if going is None or going.number != call.move or going.peer is not peer or going.failed:
            raise CallFailed("the queue does not move from here", reached=False)
        return going

    async def copy(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "queue-copy": parts of the queue. Raises CallFailed."""
        going = self._find(body)
        try:
            async for part in going.departure.parts():
                if going.failed:
                    raise CallFailed(going.failed)
                yield part
        except QueueRefused as error:
            raise CallFailed(error.text) from None
        except FluxError as error:
            raise CallFailed(str(error)) from None

    async def rest(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "queue-rest": the rest of the queue, which waits from now on. Raises CallFailed."""
        going = self._find(body)
        if going.resting:
            raise CallFailed("the queue rests already", reached=False)
        going.resting = True
        self._driver.start(self._limit(going))
        queue = going.state.queue
        queue.resting = True
        await self._quiet(queue, going.departure)
        if going.failed or going.state.moving is not going.departure:
            raise CallFailed(going.failed or "the move was given up")
        outbox = going.peer.outbox
        assert isinstance(outbox, PeerOutbox)
        try:
            parts = going.departure.rest(going.peer.name, outbox)
        except QueueRefused as error:
            raise CallFailed(error.text) from None
        for part in parts:
            yield part

    async def _limit(self, going: _Going) -> None:
        await self._driver.sleep(REST_S)
        if not going.sent and going.state.moving is going.departure and not self._closed:
            going.failed = f"node {going.peer.name} has not stored the queue within {REST_S:g} s"
            going.departure.undo()

    async def _quiet(self, queue: Queue, departure: Departure) -> None:
        """Until the nodes of its consumers have what they were given, so that they can say what they hold."""
        until = self._driver.now() + QUIET_S
        await self.durable()
        await self._driver.sleep(LOOK_S)
        outboxes = {member.outbox: member.outbox.cut() - 1 for group in queue.groups
                    for member in [*group.members, *group.pullers] if isinstance(member, PeerMember)}
        while self._driver.now() < until and any(
                outbox.gone is None and outbox.acknowledged_upto < upto for outbox, upto in outboxes.items()):
            await self._driver.sleep(LOOK_S)

    async def durable(self) -> None:
        """Returns when everything that was recorded on this node so far is on its disk."""
        await recorded(self._driver, self._hub)

    # ------------------------------------------------------------------ the new owner

    async def take(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "take-queue": nothing, when the whole queue is on this node's disk. Raises CallFailed."""
        call, address, peer = self._read(body)
        former = self._coming.pop(call.identity, None)
        if former is not None:      # an owner makes one move of a queue at a time
            self._drop(call.identity, former[0])
        arrival = Arrival(self.manager, self._hands, Placement(call.incarnation, call.moved))
        self._coming[call.identity] = arrival, peer.name, call.move
        self._arrivals[call.identity] = arrival
        try:
            for method, limit_s in ((COPY, COPY_S), (REST, REST_S)):
                if method == REST:
                    await self._keep_publishes(call.identity, arrival)
                fed = 0
                async for part in self._call(peer, method, address, call.identity, call.move, limit_s):
                    self._check(call.identity, arrival)
                    arrival.feed(part)
                    self._hub.wake_up()
                    fed += len(part)
                    if fed >= DURABLE_BYTES:
                        fed = 0
                        await self.durable()
                await self.durable()
            self._check(call.identity, arrival)
            if not arrival.whole:
                raise CallFailed("a part of the queue is missing")
        except BaseException as error:
            found = self._coming.get(call.identity)
            if found is not None and found[0] is arrival and not self._closed:
                del self._coming[call.identity]
                self._drop(call.identity, arrival)
            if isinstance(error, QueueRefused):
                raise CallFailed(error.text) from None
            if isinstance(error, FluxError) and not isinstance(error, CallFailed):
                raise CallFailed(str(error)) from None
            raise
        return
        yield b""

    async def _keep_publishes(self, identity: int, arrival: Arrival) -> None:
        """Until what this node's clients have published is at the old owner; what they publish from now on waits."""
        until = self._driver.now() + KEEP_S
        self._check(identity, arrival)      # else nobody would end it
        arrival.keep()
        while arrival.fenced:
            if self._driver.now() > until:
                raise CallFailed(f"what was published before was not stored within {KEEP_S:g} s")
            await self._driver.sleep(LOOK_S)
            self._check(identity, arrival)

    def _check(self, identity: int, arrival: Arrival) -> None:
        found = self._coming.get(identity)
        if found is None or found[0] is not arrival:
            raise CallFailed("the move was given up")

    def _drop(self, identity: int, arrival: Arrival) -> None:
        if self._arrivals.get(identity) is arrival:
            del self._arrivals[identity]
            arrival.abandon()

    async def here(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "queue-here": nothing, when this node serves the queue; or, if it was kept, has forgotten
        its copy. Raises CallFailed."""
        call, address, _ = self._read(body)
        found = self._coming.get(call.identity)
        if found is not None and found[2] == call.move and call.kept:
            del self._coming[call.identity]
            self._drop(call.identity, found[0])
        until = self._driver.now() + HERE_S
        while not call.kept and (state := self.manager.queues.get(address)) is not None \
                and state.id == call.identity and not state.here:
            if self._driver.now() > until or self._closed:
                raise CallFailed("this node has not heard of it yet", reached=False)
            await self._driver.sleep(LOOK_S)
        if not call.kept:
            self._coming.pop(call.identity, None)
        return
        yield b""

    def on_gone(self, peer: Peer) -> None:
        """A node's lease has ended. Copies of its queues that are not this node's by now never will be: its transaction
        compares the owner's key, which had that lease."""
        self._driver.start(self._forget_copies(peer.name))

    async def _forget_copies(self, node: str) -> None:
        await self._driver.sleep(0)     # what the feed has reported with it is known then
        for identity, (arrival, former, _) in list(self._coming.items()):
            if former == node and not self._closed:
                del self._coming[identity]
                self._drop(identity, arrival)

    def _on_came(self, queue: Queue, kept: list[tuple[Group, Reserve]]) -> None:
        self._driver.start(self._let_go(queue, kept))
        self._driver.start(self.detours.expect(queue, self.manager.states[queue].id))

    async def _let_go(self, queue: Queue, kept: list[tuple[Group, Reserve]]) -> None:
        await self._driver.sleep(RESERVED_S)
        if queue.relay is None:
            self.manager.let_go(kept)
