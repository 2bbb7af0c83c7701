"""Applies the settings of a queue's declaration to the compiled queue and its groups."""
from __future__ import annotations

import string
from typing import TYPE_CHECKING

from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import POLICY_AMQP091, QUEUE_CLASSIC, QUEUE_STREAM, Queue
from fluxmq._core.wire.queue_address import QUEUE_PREFIX
from fluxmq.engine.queues.events import QueueEvents
from fluxmq.engine.queues.retry import deliveries_max
from fluxmq.model.queue_arguments import NO_ARGUMENTS, Declared, QueueArguments, spec_of
from fluxmq.model.queues import NAME_BYTES_MAX, name_problem

if TYPE_CHECKING:
    from fluxmq._core.queue.group import Group
    from fluxmq.engine.queues.state import QueueState
    from fluxmq.engine.queues.table import QueueTable
    from fluxmq.model.queues import QueueSpec

__all__ = ["QueueSettings", "filters_of"]

PLAIN = (string.ascii_letters + string.digits + "_-.:").encode()


class QueueSettings:
    """Configures compiled queues and groups. dead: kept because each access to a method makes a new object. plain: the
    configuration shared by all queues that AMQP declared without arguments, to save memory."""

    def __init__(self, table: QueueTable) -> None:
        self.events = QueueEvents(table)
        self.dead = self.events.dead
        self.wake_up = table.hub.wake_up
        ledger = table.hub.ledger
        self.plain = Queue(ledger, 0, b"", QUEUE_CLASSIC, [Log(ledger, 0)])
        spec = spec_of(Declared(b"/", b"", True, False, False, {}), NO_ARGUMENTS)
        self._configure(self.plain, spec, NO_ARGUMENTS)

    def configure(self, state: QueueState) -> None:
        """Applies the settings in `state` to the queue."""
        queue, spec, arguments = state.queue, state.spec, state.arguments
        if arguments is NO_ARGUMENTS:
            queue.configure_like(self.plain)
        else:
            self._configure(queue, spec, arguments)
        for group in state.groups.values():
            self.configure_group(state, group)

    def _configure(self, queue: Queue, spec: QueueSpec, arguments: QueueArguments | None) -> None:
        queue.events, queue.wake = self.events, self.wake_up
        limits, captures = spec.limits, spec.capture == "confirmed"
        if arguments is not None and queue.kind != QUEUE_STREAM:
            queue.set_policy(POLICY_AMQP091)
            queue.set_limits(
                payload_max=limits.max_message_size, capture_confirmed=captures, ttl_ms=max(arguments.ttl_ms, 0),
                at_once=arguments.ttl_ms == 0, ready_max=arguments.length_max, ready_bytes_max=arguments.bytes_max,
                drop_head=arguments.overflow == "drop-head", dead_letter_refused=(
                    arguments.overflow == "reject-publish-dlx" and arguments.dead_exchange is not None))
        else:
            queue.set_limits(
                payload_max=limits.max_message_size, capture_confirmed=captures, messages_max=limits.max_depth,
                bytes_max=limits.max_bytes, ttl_ms=int(limits.message_ttl * 1000),
                drop_head=spec.overflow == "drop-head")

    @staticmethod
    def configure_group(state: QueueState, group: Group) -> None:
        """Sets how often a message is delivered, whether it dies as soon as the limit is reached, and whether
        dead messages are kept as dead letters."""
        arguments = state.arguments
        if arguments is None:
            group.reads_dead = bool(state.spec.dead_letter_queue)
            group.deliveries_max = deliveries_max(state.effective_retry(group))
        else:
            group.set_policy(POLICY_AMQP091)
            group.reads_dead = arguments.dead_exchange is not None
            group.deliveries_max = max(arguments.delivery_limit + 1, 0) if arguments is not NO_ARGUMENTS else 0


def filters_of(spec: QueueSpec) -> list[bytes]:
    """Filters of the topics that a queue captures. A queue whose name cannot be a topic level has no address there."""
    raw = spec.raw
    own = [QUEUE_PREFIX + raw + b"/#"] if _is_level(raw) else []
    return [*own, *(topic.encode() for topic in spec.topics)] if spec.topics else own


def _is_level(raw: bytes) -> bool:
    odd = raw.translate(None, PLAIN)
    if not odd and len(raw) <= NAME_BYTES_MAX:  # true for nearly all, and a start checks each
        return True
    return b"/" not in odd and b"\0" not in odd and not name_problem(raw.decode("utf-8", "replace"))
