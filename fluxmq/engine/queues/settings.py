"""What a queue's declaration sets in the compiled queue and its groups."""
from __future__ import annotations

import string
from functools import partial
from typing import TYPE_CHECKING, Any

from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import POLICY_AMQP091, QUEUE_CLASSIC, QUEUE_STREAM, Queue
from fluxmq.engine.queues.dead_letters import bury, make_room
from fluxmq.engine.queues.deduplication import is_repeated, with_sequence
from fluxmq.engine.queues.delays import first_delayed, more_is_due
from fluxmq.engine.queues.retry import deliveries_max
from fluxmq.model.queue_arguments import NO_ARGUMENTS, Declared, QueueArguments, spec_of
from fluxmq.model.queues import NAME_BYTES_MAX, name_problem

if TYPE_CHECKING:
    from fluxmq._core.queue.group import Group
    from fluxmq.engine.queues.state import QueueState
    from fluxmq.engine.queues.table import QueueTable
    from fluxmq.model.queues import QueueSpec

__all__ = ["PREFIX", "QueueSettings", "filters_of"]

PREFIX = b"$queue/"
PLAIN = (string.ascii_letters + string.digits + "_-.:").encode()


class QueueSettings:
    """Configures compiled queues and groups. What these call is made once: a method is a new object each time that it
    is named. plain: what all queues are configured like that AMQP declared without arguments; of no use but that."""

    def __init__(self, table: QueueTable) -> None:
        self.table = table
        self.first_delayed = partial(first_delayed, table)
        self.more_is_due = partial(more_is_due, table)
        self.read_on = table.read_on
        self.is_repeated = partial(_is_repeated, table)
        self.produced = partial(_produced, table)
        self.full = partial(_full, table)
        self.dead = partial(_dead, table)
        self.wake_up = table.hub.wake_up
        ledger = table.hub.ledger
        self.plain = Queue(ledger, 0, b"", QUEUE_CLASSIC, [Log(ledger, 0)])
        spec = spec_of(Declared(b"/", b"", True, False, False, {}), NO_ARGUMENTS)
        _configure(self, self.plain, spec, NO_ARGUMENTS)

    def configure(self, state: QueueState) -> None:
        """The queue is from now on as `state` says."""
        queue, spec, arguments = state.queue, state.spec, state.arguments
        if arguments is NO_ARGUMENTS:
            queue.configure_like(self.plain)
        else:
            _configure(self, queue, spec, arguments)
            if (arguments is not None and arguments.overflow == "reject-publish-dlx"
                    and arguments.dead_exchange is not None):
                queue.on_overflow = partial(_overflowed, self.table, state)
        for group in state.groups.values():
            self.configure_group(state, group)

    @staticmethod
    def configure_group(state: QueueState, group: Group) -> None:
        """How often a message is delivered; whether it dies as soon as it may, and whether anybody wants it then."""
        arguments = state.arguments
        if arguments is None:
            group.buries = bool(state.spec.dead_letter_queue)
            group.deliveries_max = deliveries_max(state.effective_retry(group))
        else:
            group.set_policy(POLICY_AMQP091)
            group.buries = arguments.dead_exchange is not None
            group.deliveries_max = max(arguments.delivery_limit + 1, 0) if arguments is not NO_ARGUMENTS else 0


def _is_repeated(table: QueueTable, queue: Queue, producer: bytes, sequence: int) -> bool:
    state = table.states.get(queue)
    return state is not None and is_repeated(state.producers.get(producer), sequence)


def _produced(table: QueueTable, queue: Queue, producer: bytes, sequence: int) -> None:
    state = table.states.get(queue)
    if state is not None:  # else a stale route led to a queue that is no more
        state.note_produced(producer, with_sequence(state.producers.get(producer), sequence))
        table.note_changed(state)


def _full(table: QueueTable, queue: Queue) -> bool:
    return make_room(table, table.states[queue])


def _dead(table: QueueTable, group: Group, log: Log, offset: int, deliveries: int, reason: str) -> None:
    state = table.states.get(group.owner) if isinstance(group.owner, Queue) else None
    if state is not None:
        bury(table, state, log, offset, deliveries, reason, group.name)


def filters_of(spec: QueueSpec) -> list[bytes]:
    """Of the topics that a queue takes. One whose name is no level of a topic has no address there."""
    raw = spec.raw
    own = [PREFIX + raw + b"/#"] if _is_level(raw) else []
    return [*own, *(topic.encode() for topic in spec.topics)] if spec.topics else own


def _is_level(raw: bytes) -> bool:
    odd = raw.translate(None, PLAIN)
    if not odd and len(raw) <= NAME_BYTES_MAX:  # as nearly all are, and a start asks it of each
        return True
    return b"/" not in odd and b"\0" not in odd and not name_problem(raw.decode("utf-8", "replace"))


def _configure(calls: QueueSettings, queue: Queue, spec: QueueSpec, arguments: QueueArguments | None) -> None:
    queue.payload_max = spec.limits.max_message_size
    queue.capture_confirmed = spec.capture == "confirmed"
    # The same objects for all queues, which are given the queue: there may be a hundred thousand of them.
    queue.on_delayed = calls.first_delayed if spec.type != "stream" else None
    queue.wake = calls.wake_up
    queue.on_due = calls.more_is_due
    queue.on_stalled = calls.read_on
    queue.is_repeated = calls.is_repeated
    queue.on_produced = calls.produced
    if arguments is not None and queue.kind != QUEUE_STREAM:
        queue.set_policy(POLICY_AMQP091)
        queue.ready_max = arguments.length_max
        queue.ready_bytes_max = arguments.bytes_max
        queue.drop_head = arguments.overflow == "drop-head"
        queue.ttl_ms = max(arguments.ttl_ms, 0)
        queue.at_once = arguments.ttl_ms == 0
    else:
        queue.messages_max = spec.limits.max_depth
        queue.bytes_max = spec.limits.max_bytes
        queue.ttl_ms = int(spec.limits.message_ttl * 1000)
        queue.drop_head = spec.overflow == "drop-head"
        queue.on_full = calls.full if spec.overflow == "drop-head" or spec.type == "stream" else None


def _overflowed(table: QueueTable, state: QueueState, *message: Any) -> None:
    if table.amqp_dead_letters is not None:
        table.amqp_dead_letters.refused(state, *message)
