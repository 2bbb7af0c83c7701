"""The queues that a cluster has defined, as this node's manager gets them. Without a cluster nothing is defined, and
whoever declares a queue makes it (QueueManager.declare).

    defined, of this node    ─► a queue that is led here
    defined, of another node ─► a relay
    defined in partitions    ─► a whole, whose partitions are queues of their own
"""
from __future__ import annotations

from collections.abc import Callable

import msgspec

from fluxmq._core.errors import UsageError
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.definitions import FIRST, Placement, QueueDefinition
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import KINDS, QueueManager
from fluxmq.engine.queues.moves import Arrival
from fluxmq.engine.queues.parts import whole_of
from fluxmq.engine.queues.records import is_moving
from fluxmq.engine.queues.state import QueueState
from fluxmq.engine.queues.table import QueueListener
from fluxmq.engine.queues.wholes import Wholes

__all__ = ["DefinedQueues"]

SET_ASIDE_CHARACTERS = 150  # of the name of a queue that gets another one


class DefinedQueues(QueueListener):
    """What `engine.ports.definitions.Learner` and Stored tell of queues.

    write_policy: "forward", or "reject": what comes to a publish for a queue of another node. arrivals: by identity,
    copies of queues that may come here. on_came: called when one has, with who holds what consumers elsewhere held."""

    def __init__(self, manager: QueueManager, hands: Hands, wholes: Wholes) -> None:
        self.manager = manager
        self.write_policy = "forward"
        self.arrivals: dict[int, Arrival] = {}
        self.on_came: Callable[[Queue, list[tuple[Group, Reserve]]], None] = lambda queue, kept: None
        self._hands = hands
        self._wholes = wholes
        self._unreached: dict[Queue, QueueState] = {}  # queues of nodes to which there is no way yet
        manager.listeners.append(self)

    def queue_removed(self, queue: Queue) -> None:
        """See QueueListener."""
        self._unreached.pop(queue, None)

    def learn(self, definition: QueueDefinition, owner: str | None) -> None:
        """A queue is defined, of this node or another; or its settings or its owner have changed. See Learner. Raises
        UsageError if this node has another queue of this name."""
        state = self.manager.queues.get(definition.spec.address)
        if state is None:
            self._make_defined(definition, owner)
        elif state.id != definition.id:
            raise UsageError(f"this node has another queue {definition.spec.shown}")
        else:
            if state.spec != definition.spec:
                self.manager.change(state, definition.spec)
                if state.here:
                    self.manager.record_queue(state)
            if not state.here and state.moving is None and not definition.divided:
                self.set_owner(state, owner)

    def turn(self, definition: QueueDefinition, owner: str | None) -> bool:
        """See Learner."""
        state = self.manager.queues.get(definition.spec.address)
        if state is None or state.id != definition.id:
            return False
        here = owner == self.manager.directory.node
        arrival = self.arrivals.get(state.id) if here and not state.here else None
        if arrival is not None and arrival.whole:
            del self.arrivals[state.id]
            self.on_came(state.queue, arrival.adopt(state))
            return True
        if not here and state.moving is not None and state.moving.is_relay:
            state.moving.done()
            return True
        group = self.manager.replicator.group_of_queue(*state.queue.address)
        if group and (state.queue.line.group == group if here else not state.here):
            return True  # the change of the group's leader has done it (QueueLine.lead, follow)
        if group and self.manager.hub.is_ended(state.id):
            return True  # its log says so, and its keys are going
        if here and not state.here and (state.spec.type == "ephemeral" or group):
            # Its owner is gone, and so is what a copy of it was worth; or the group has not heard of it.
            self._hands.make_anew(state)
            return True
        return False

    def settle_copy(self, identity: int, definition: QueueDefinition | None) -> None:
        """See Stored."""
        state = next(state for state in self.manager.queues.values()
                     if state.id == identity and is_moving(state.queue.name))
        if definition is None:
            self.manager.delete(state.queue.address)
        else:
            self.manager.rename(state, definition.spec, definition.declared, identity)

    def forget(self, definition: QueueDefinition, *, ended: bool = False) -> None:
        """A queue is deleted here. See Learner."""
        if ended:
            self.manager.hub.note_ended(definition.id)
        state = self.manager.queues.get(definition.address)
        if state is not None and state.id == definition.id:
            self.manager.delete(definition.address)

    def identify(self, address: tuple[bytes, bytes], identity: int, placement: Placement = FIRST) -> None:
        """The queue is defined in the cluster, with this identity, and this is the data of it that is here."""
        state = self.manager.queues[address]
        state.id, state.placement = identity, placement
        self.manager.index_identity(state)
        self.manager.record_queue(state)

    def set_aside(self, address: tuple[bytes, bytes], why: str) -> None:
        """Keeps a queue of this node's disk that is not the one of its name in the cluster: under another name, by
        which it is found from the next start on, and which no other node knows before."""
        state = self.manager.queues[address]
        spec, declared = state.spec, state.declared
        self._put_away(state)
        base = "queue" if is_moving(state.queue.name) else spec.name[:SET_ASIDE_CHARACTERS]
        if (part := whole_of(state.queue.name)) is not None:
            base = f"{part.whole.decode('utf-8', 'surrogateescape')[:SET_ASIDE_CHARACTERS]}.part-{part.partition}"
        name = f"{base}.moved-{state.queue.number}"
        state.id, state.placement, state.spec = 0, FIRST, msgspec.structs.replace(spec, name=name)
        if declared is not None:
            state.declared = msgspec.structs.replace(declared, name=state.spec.raw)
        self.manager.record_queue(state)
        self.manager.log(
            "warning", "", f"a queue was set aside: {why}. Its messages are there again as queue {name} when this node "
                           "is started the next time", {"queue": spec.shown, "as": name, "why": why})

    def _put_away(self, state: QueueState) -> None:
        """It has no name any more, and gives nothing out; checkpoints go on."""
        self.manager.forget(state, kept=True)
        state.queue.resting = True
        self.manager.states[state.queue] = state

    def leave(self, address: tuple[bytes, bytes], why: str) -> None:
        """Keeps a queue of this node's disk as it is, and does not serve it. See Learner."""
        state = self.manager.queues.get(address)
        if state is None:
            return  # its declaration was taken back with its group's leadership
        self._put_away(state)
        self.manager.log("warning", "", f"a queue that is on this node's disk is left there as it is: {why}",
                         {"queue": state.spec.shown, "why": why})

    def set_owner(self, state: QueueState, node: str | None) -> None:
        """Who serves a queue whose messages are not here. None: the node that has them is away. Its consumers are to be
        attached anew."""
        relay = state.queue.relay
        assert isinstance(relay, QueueRelay)
        hop = None
        self._unreached.pop(state.queue, None)
        if node is not None:
            try:
                hop = self.manager.peers.hop(node)
            except UsageError:  # it is not known here yet
                self._unreached[state.queue] = state
        assert hop is None or isinstance(hop, PeerOutbox)
        group = self.manager.replicator.group_of_queue(*state.queue.address)
        if hop is not None and (hop, node, group) == (relay.outbox, relay.owner, relay.replication_group) \
                and relay.reachable:
            return  # only its settings have changed: its consumers are attached
        if node is None and self.manager.definer is not None:
            node = self.manager.definer.home_of(state.queue.address)
        former = relay.outbox
        has_moved = node != relay.owner and relay.reachable and hop is not None
        relay.set_owner(node or ("" if group else relay.owner), hop, group)
        if state.spec.type == "ephemeral" and not has_moved:  # it is made anew elsewhere, empty
            relay.forget_held()
        relay.refuses = self._refusal_of(relay.owner) if self.write_policy == "reject" else None
        if hop is None:
            self.manager.away.add(state, relay.owner, at_once=former is not None)
        else:
            self.manager.away.discard(state)
        for call in self.manager.on_owner:
            call(state.queue)

    def _refusal_of(self, owner: str) -> str:
        """What publishers of a queue of this node are told where they must go there."""
        address = self.manager.peers.reference(owner)
        return (f"the queue is at node {owner}{f' ({address})' if address else ''}: publish there "
                f"(cluster.raft.write_policy is reject)")

    def node_appeared(self, node: str) -> None:
        """There is a way to a node, which may serve queues already."""
        for state in list(self._unreached.values()):
            relay = state.queue.relay
            if isinstance(relay, QueueRelay) and relay.owner == node:
                self.set_owner(state, node)

    def _make_defined(self, definition: QueueDefinition, owner: str | None) -> None:
        self.manager.hub.namespaces.add(definition.address[0])
        if definition.divided:
            self._make_whole(definition)
        elif owner == self.manager.directory.node and not self.manager.hub.is_ended(definition.id):
            self.manager.make(definition.spec, definition.declared, identity=definition.id)
        else:
            relay = self.manager.make_relay(definition.spec, definition.declared, definition.id)
            self.set_owner(relay, None if owner == self.manager.directory.node else owner)  # it has ended in its group

    def _make_whole(self, definition: QueueDefinition) -> None:
        """A queue whose partitions are queues of their own."""
        spec = definition.spec
        number, logs = self.manager.relay_logs(spec)
        queue = Queue(self.manager.hub.ledger, number, spec.raw, KINDS[spec.type], logs, spec.lanes,
                      self.manager.namespace_of(spec), elsewhere=True)
        self._wholes.make(queue)
        self.manager.adopt(spec, queue, None, definition.id, here=False)
