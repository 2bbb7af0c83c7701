"""What is defined in a cluster, for this node's engine: `engine.ports.definitions.Stored` over its managers."""
from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq._core.exchange.exchange import Binding, Exchange
from fluxmq.engine.exchanges.manager import PREDECLARED, ExchangeManager
from fluxmq.engine.ports.definitions import BindingDefinition, ExchangeDefinition, Placement, QueueDefinition, Stored
from fluxmq.engine.queues.defined import DefinedQueues
from fluxmq.engine.queues.forwarding import is_under_way

__all__ = ["EngineDefinitions"]


class EngineDefinitions:
    """See the port."""

    def __init__(self, defined: DefinedQueues, exchanges: ExchangeManager) -> None:
        self.defined = defined
        self.queues = defined.manager
        self._exchanges = exchanges
        self.learn_queue = defined.learn
        self.forget_queue = defined.forget
        self.learn_exchange = exchanges.learn_exchange
        self.forget_exchange = exchanges.forget_exchange
        self.learn_binding = exchanges.learn_binding
        self.forget_binding = exchanges.forget_binding
        self.identify_queue = defined.identify
        self.turn_queue = defined.turn
        self.settle_copy = defined.settle_copy
        self.node_appeared = defined.node_appeared

    def set_aside_queue(self, definition: QueueDefinition, why: str) -> None:
        self.defined.set_aside(definition.address, why)

    def leave_queue(self, definition: QueueDefinition, why: str) -> None:
        self.defined.leave(definition.address, why)

    def stored_queues(self) -> list[QueueDefinition]:
        return [QueueDefinition(state.id, state.spec, state.declared, placement=state.placement)
                for state in self.queues.queues.values() if state.queue.durable and not is_under_way(state.queue.name)]

    def has_queue(self, address: tuple[bytes, bytes], identity: int, placement: Placement) -> bool:
        state = self.queues.queues.get(address)
        return state is not None and state.here and (state.id, state.placement) == (identity, placement)

    def stored_exchanges(self) -> list[ExchangeDefinition]:
        return [ExchangeDefinition(data.id, data.vhost, data.name, data.type, True, data.auto_delete, data.internal,
                                   data.arguments)
                for data in (exchange.data for exchanges in self._exchanges.vhosts.values()
                             for exchange in exchanges.exchanges.values() if exchange.number)
                if data.name not in PREDECLARED]

    def stored_bindings(self) -> list[BindingDefinition]:
        return [self._binding(binding) for exchanges in self._exchanges.vhosts.values()
                for exchange in exchanges.exchanges.values() for binding in exchange.outbound if binding.number]

    def _binding(self, binding: Binding) -> BindingDefinition:
        source, end = binding.source.data, binding.destination
        if isinstance(end, Exchange):
            identity = end.data.id
        else:
            identity = self.queues.queues[source.vhost, end.name].id
        return BindingDefinition(source.vhost, source.name, source.id, isinstance(end, Exchange), end.name, identity,
                                 binding.key, binding.arguments)


if TYPE_CHECKING:
    _port: type[Stored] = EngineDefinitions
