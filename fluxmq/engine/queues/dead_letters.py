"""Dead letters: a message that is rejected, expired, delivered too often or dropped is copied to the dead-letter queue,
in the same batch that ends it in its own queue. If the dead-letter queue is elsewhere, or its records are in another
line, which may commit its batches or not, that batch has the message as a letter that is under way (forwarding.py)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluxmq._core.queue.lanes import OFFSET_MASK
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.wire.queue_address import QUEUE_PREFIX
from fluxmq.engine.queues.parts import whole_of
from fluxmq.engine.queues.positions import NOTHING
from fluxmq.engine.queues.properties import DEATHS, death_properties
from fluxmq.model.queues import DEAD_LETTER_SUFFIX, QueueSpec, new_dead_letter_queue

if TYPE_CHECKING:
    from fluxmq.engine.queues.state import QueueState
    from fluxmq.engine.queues.table import QueueTable

__all__ = ["DeadNames", "bury", "dead_letter_queue", "dead_letter_spec", "dead_letter_state", "in_one_batch",
           "make_room", "note_dead_letter", "note_death"]


def dead_letter_queue(table: QueueTable, spec: QueueSpec) -> Queue:
    """The dead-letter queue of a queue of a single node; made now if it does not exist."""
    state = dead_letter_state(table, spec)
    # The namespace's limit of queues does not count: without this queue the messages would be lost.
    return state.queue if state is not None else table.make(dead_letter_spec(spec))


def dead_letter_spec(spec: QueueSpec) -> QueueSpec:
    """The dead-letter queue of a queue, as new_dead_letter_queue()."""
    return new_dead_letter_queue(spec.namespace, spec.dead_letter_queue)


def dead_letter_state(table: QueueTable, spec: QueueSpec) -> QueueState | None:
    """The dead-letter queue, or None if it does not exist."""
    return table.queues.get((spec.address[0], spec.dead_letter_queue.encode("utf-8", "surrogateescape")))


def in_one_batch(source: Queue, target: Queue) -> bool:
    """Whether what ends in the one queue, which is led here, and begins in the other is committed together."""
    return target.relay is None and target.line is source.line


def note_death(table: QueueTable, state: QueueState, reason: str) -> None:
    """Counts a message that the queue gave up; reason: of DEATHS."""
    state.note_death(reason)
    table.counted[f"died_{reason}"] += 1


def note_dead_letter(table: QueueTable, state: QueueState) -> None:
    """Counts a message that was copied to the dead letters."""
    state.dead_lettered += 1
    table.counted["dead_lettered"] += 1


def make_room(table: QueueTable, state: QueueState) -> bool:
    """Drop-head: removes the oldest message; if dead letters are enabled, copies it there as soon as it is in
    memory."""
    queue = state.queue
    logs = [log for log in queue.logs if log.next > log.first]
    if not logs:
        return False
    log = min(logs, key=lambda one: one.first & OFFSET_MASK)
    first = log.first
    if state.spec.dead_letter_queue and queue.kind != QUEUE_STREAM:
        message = log.at_or_above(first)
        if message is None and log.wanted != NOTHING:
            table.read_on(queue)
            return True
        first = message.offset if message is not None else log.next - 1  # no message below it is kept
        if message is not None and queue.is_needed(log, first):
            bury(table, state, log, first, 0, "maxlen", b"")
    elif queue.kind != QUEUE_STREAM and queue.is_needed(log, first):
        note_death(table, state, "overflow")
    table.trim(state, log, first + 1)
    return True


def bury(table: QueueTable, state: QueueState, log: Log, offset: int, deliveries: int, reason: str,
         group: bytes) -> None:
    """Copies a message, which is in memory, to the dead letters, in spite of their limits: else it would be lost."""
    note_death(table, state, DEATHS.get(reason, "rejected"))
    if state.arguments is not None:  # declared by AMQP: its dead letters go to an exchange, or nowhere
        if table.amqp_dead_letters is not None:
            table.amqp_dead_letters.bury(state, log, offset, reason)
        return
    name = state.spec.dead_letter_queue
    message = log.get(offset)
    part = whole_of(state.queue.name)
    queue = state.spec.name if part is None else part.whole.decode("utf-8", "surrogateescape")
    table.log("info", f"dead {state.spec.name}", "dead letter", {
        "queue": state.spec.shown, "offset": offset, "reason": reason, "deliveries": deliveries, "to": name})
    if not name or message is None or name == state.spec.name:
        return
    at = state.queue.logs.index(log) if log in state.queue.logs else 0
    envelope = message.envelope
    headers = death_properties(queue=queue, partition=state.queue.partition_at(at) if part is None else part.partition,
                               offset=offset,
                               topic=envelope.topic_name(), group=group, deliveries=deliveries, reason=reason,
                               time_ms=message.time_ms, now_ms=table.hub.now_ms)
    address = state.spec.address[0], name.encode("utf-8", "surrogateescape")
    topic, properties = envelope.moved_to(QUEUE_PREFIX + address[1]), envelope.with_headers(headers)
    forwarder = table.forwarders.of(state.queue.line)
    if table.definer is not None and (address not in table.queues or forwarder.awaits(address)):
        forwarder.forward_when_made(address, topic, message.payload, properties, message.qos, message.format)
    elif not in_one_batch(state.queue, target := dead_letter_queue(table, state.spec)):
        forwarder.forward(target, topic, message.payload, properties, message.qos, message.format)
    else:
        target.append_message(topic, message.payload, properties=properties, qos=message.qos, forced=True,
                              format=message.format)
    note_dead_letter(table, state)


class DeadNames:
    """Machine. The explicitly configured names of dead-letter queues, so that a lookup need not go through all
    queues."""

    def __init__(self) -> None:
        # By namespace and name: the queues whose dead letters go there.
        self._by_name: dict[tuple[bytes, bytes], dict[QueueState, None]] = {}

    def add(self, state: QueueState) -> None:
        if state.spec.dlq.enabled and state.spec.dlq.topic:
            self._by_name.setdefault(self._address(state.spec), {})[state] = None

    def remove(self, state: QueueState) -> None:
        known = self._by_name.get(self._address(state.spec))
        if known is not None:
            known.pop(state, None)
            if not known:
                del self._by_name[self._address(state.spec)]

    @staticmethod
    def _address(spec: QueueSpec) -> tuple[bytes, bytes]:
        return spec.address[0], spec.dlq.topic.encode("utf-8", "surrogateescape")

    def find(self, address: tuple[bytes, bytes], queues: Mapping[tuple[bytes, bytes], QueueState]) -> QueueSpec | None:
        """A queue whose dead letters go to the queue of this address; None if there is none."""
        namespace, name = address
        named = self._by_name.get(address)
        state = next(iter(named)) if named else queues.get(
            (namespace, name.removesuffix(DEAD_LETTER_SUFFIX.encode())))
        text = name.decode("utf-8", "surrogateescape")
        return state.spec if state is not None and state.spec.dead_letter_queue == text else None
