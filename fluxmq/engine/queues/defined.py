"""The queues that a cluster has defined, as this node's manager gets them. Without a cluster nothing is defined, and
whoever declares a queue makes it (QueueManager.declare).

    defined, of this node    ─► a queue that is led here
    defined, of another node ─► a relay
    defined in partitions    ─► a whole, whose partitions are queues of their own
"""
from __future__ import annotations

from fluxmq._core.errors import UsageError
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.manager import KINDS, QueueManager
from fluxmq.engine.queues.records import is_moving
from fluxmq.engine.queues.wholes import Wholes

__all__ = ["DefinedQueues"]


class DefinedQueues:
    """What `engine.ports.definitions.Learner` and Stored tell of queues."""

    def __init__(self, manager: QueueManager, hands: Hands, wholes: Wholes) -> None:
        self.manager = manager
        self._hands = hands
        self._wholes = wholes

    def learn(self, definition: QueueDefinition, owner: str | None) -> None:
        """A queue is defined, of this node or another; or its settings or its owner have changed. See Learner. Raises
        UsageError if this node has another queue of this name."""
        state = self.manager.queues.get(definition.address)
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
                self.manager.set_owner(state, owner)

    def turn(self, definition: QueueDefinition, owner: str | None) -> bool:
        """See Learner."""
        state = self.manager.queues.get(definition.address)
        if state is None or state.id != definition.id:
            return False
        if owner == self.manager.directory.node:
            arrival = self.manager.arrivals.get(state.id)
            if not state.here and arrival is not None and arrival.whole:
                del self.manager.arrivals[state.id]
                self.manager.on_came(state.queue, arrival.adopt(state))
            elif not state.here and state.spec.type == "ephemeral":
                self._hands.make_anew(state)  # its owner is gone, and so is what a copy of it was worth
            else:
                return False
        elif state.moving is None or not state.moving.is_relay:
            return False
        else:
            state.moving.done()
        return True

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

    def _make_defined(self, definition: QueueDefinition, owner: str | None) -> None:
        self.manager.hub.namespaces.add(definition.address[0])
        if definition.divided:
            self._make_whole(definition)
        elif owner == self.manager.directory.node:
            self.manager.make(definition.spec, definition.declared, identity=definition.id)
        else:
            self.manager.set_owner(self.manager.make_relay(definition.spec, definition.declared, definition.id), owner)

    def _make_whole(self, definition: QueueDefinition) -> None:
        """A queue whose partitions are queues of their own."""
        spec = definition.spec
        number, logs = self.manager.relay_logs(spec)
        queue = Queue(self.manager.hub.ledger, number, spec.raw, KINDS[spec.type], logs, spec.lanes,
                      self.manager.namespace_of(spec), elsewhere=True)
        self._wholes.make(queue)
        self.manager.adopt(spec, queue, None, definition.id, here=False)
