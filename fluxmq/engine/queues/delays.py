"""Delayed messages: makes a queue's delay log when it is first needed, and continues to move due messages after a turn
has moved its share (Queue.move_due, compiled)."""
from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq._core.queue.delay import Delays
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.lend import retain
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue

if TYPE_CHECKING:
    from fluxmq.engine.queues.state import QueueState
    from fluxmq.engine.queues.table import QueueTable

__all__ = ["DELAY_GROUP", "adopt_delays", "first_delayed", "go_on", "more_is_due"]

DELAY_GROUP = b"$delay"


def adopt_delays(table: QueueTable, state: QueueState, log: Log, group_number: int) -> Delays:
    """Enables a queue to delay messages; log: its delay log, with what is on disk."""
    group = Group(table.hub.ledger, group_number, DELAY_GROUP, volatile=not state.queue.durable,
                  line=state.queue.line)
    group.home = state.queue
    log.count_for(state.queue.namespace)
    delays = state.queue.delays = Delays(log, group)
    return delays


def first_delayed(table: QueueTable, queue: Queue) -> None:
    """Called when the first message of this queue is to be delayed."""
    state = table.states[queue]
    log = Log(table.hub.ledger, table.number(queue.line), volatile=not queue.durable, line=queue.line)
    if queue.logs[0].retains:
        retain(log)
    adopt_delays(table, state, log, table.number(queue.line))
    table.record_queue(state)


def more_is_due(table: QueueTable, queue: Queue) -> None:
    """Called when more messages are due than one turn moves: reads those that are only on disk, or continues when the
    moved ones are durable. So moving is no faster than the disk, and publishers and consumers get turns in between."""
    delays = queue.delays
    assert delays is not None
    if delays.missing():
        table.disk.read_due(queue)
    elif queue.durable:
        delays.busy = True
        table.hub.when_gathered(lambda: go_on(queue), queue.line)
    else:
        queue.notify()


def go_on(queue: Queue) -> None:
    """Continues when the disk is done. Does nothing if the queue has been deleted meanwhile."""
    if queue.delays is not None:
        queue.delays.busy = False
        queue.notify()
