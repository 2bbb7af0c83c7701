"""Storage of exchanges: their part of recovery and of checkpoints (Keeper in durability.py).

Recovery first reads the view and then the journal into tables by number, and creates objects only at the end. So
records that the view includes already have no effect, and bindings whose source or destination has ended are detected.
"""
from __future__ import annotations

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.exchange.exchange import Destination, Exchange
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.records import BindingRecord, ExchangeRecord, StoredExchange, view_key
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.parts import is_part
from fluxmq.engine.queues.table import QueueListener
from fluxmq.engine.stored import binding_of, exchange_of

__all__ = ["ExchangeKeeper"]


class ExchangeKeeper(QueueListener):
    """Machine. As soon as it is made, the exchanges know all queues of `queues`."""

    def __init__(self, manager: ExchangeManager, queues: QueueManager) -> None:
        self.manager = manager
        self.queues = queues
        self._exchanges: dict[int, StoredExchange] = {}
        self._bindings: dict[int, BindingRecord] = {}
        for state in queues.queues.values():
            if not is_under_way(state.queue.name) and not is_part(state.queue.name):
                manager.queue_added(*state.queue.address, state.queue)
        queues.listeners.append(self)

    def queue_added(self, queue: Queue) -> None:
        """Makes the queue's name a routing key of the default exchange."""
        if not is_under_way(queue.name) and not is_part(queue.name):
            self.manager.queue_added(*queue.address, queue)

    def queue_removed(self, queue: Queue) -> None:
        """Removes the queue's bindings."""
        self.manager.queue_removed(*queue.address)

    # ------------------------------------------------------------------ recovery

    def load(self, kind: bytes, number: int, value: bytes) -> None:
        """Reads one row of the view."""
        self._set(RecordKind.EXCHANGE if kind == b"e" else RecordKind.BIND, number, value)

    def replay(self, kind: int, number: int, body: bytes) -> None:
        """Applies one record of the journal that belongs to exchanges; body: what follows its number."""
        if kind in (RecordKind.EXCHANGE, RecordKind.BIND):
            self._set(kind, number, body)
            self.manager.note(view_key(kind, number), body)
        elif kind in (RecordKind.EXCHANGE_END, RecordKind.UNBIND):
            known: dict[int, StoredExchange] | dict[int, BindingRecord] = (
                self._exchanges if kind == RecordKind.EXCHANGE_END else self._bindings)
            known.pop(number, None)
            self.manager.note(view_key(kind, number), None)
        else:
            raise CorruptError(f"the journal has a record of kind {kind}, which this version does not know")

    def _set(self, kind: int, number: int, value: bytes) -> None:
        self.manager.number_last = max(self.manager.number_last, number)
        if kind == RecordKind.EXCHANGE:
            self._exchanges[number] = exchange_of(value)
        else:
            self._bindings[number] = binding_of(value)

    def finish(self) -> dict[str, int]:
        """Creates the objects when everything is replayed and the queues exist. Returns counts for the log."""
        made: dict[int, Exchange] = {}
        for number in sorted(self._exchanges, reverse=True):
            exchange = self._adopt(number, self._exchanges[number])
            if exchange is None:
                self.manager.note(view_key(RecordKind.EXCHANGE, number), None)
            else:
                made[number] = exchange
        ends = {int(end.queue.number): end for exchanges in self.manager.vhosts.values()
                for end in exchanges.queues.values()} if self._bindings else {}
        bound = 0
        for number, record in sorted(self._bindings.items()):
            source = made.get(record.source)
            end: Destination | None = (made if record.to_exchange else ends).get(record.destination)
            if source is None or end is None or self.manager.adopt_binding(
                    source, end, record.key, record.arguments, number) is None:
                # Its source or destination has ended, which ends the binding without a record; or an equal binding
                # exists, because a crash came between the records of the two.
                self.manager.note(view_key(RecordKind.BIND, number), None)
            else:
                bound += 1
        self._exchanges.clear()
        self._bindings.clear()
        return {"exchanges": len(made), "bindings": bound} if made else {}

    def _adopt(self, number: int, stored: StoredExchange) -> Exchange | None:
        """Activates a stored exchange. None: a newer one has its name, or its namespace has ended."""
        hub = self.manager.hub
        # An earlier version wrote the name of the virtual host.
        namespace = (hub.namespaces.add(stored.namespace) if isinstance(stored.namespace, bytes) else
                     hub.commits.local.namespace(stored.namespace))
        if namespace is None:
            return None
        record = ExchangeRecord(namespace.name, stored.name, stored.type, stored.auto_delete, stored.internal,
                                stored.arguments, stored.id)
        self.manager.add_vhost(namespace.name)
        known = self.manager.vhosts[record.vhost].exchanges.get(record.name)
        if known is None:
            return self.manager.adopt(record, True, number)
        if known.number:
            return None
        known.number = number  # a predefined exchange
        return known

    # ------------------------------------------------------------------ checkpoints

    def export(self) -> tuple[dict[bytes, bytes], set[bytes]]:
        """Returns (puts, deletes): all changes so far."""
        return self.manager.take_changes()
