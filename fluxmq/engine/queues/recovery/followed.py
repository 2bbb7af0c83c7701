"""What the instance that leads next takes of the copy of a queue: its state and messages, which messages with an origin
it has had (QUEUE_ORIGIN), and who holds what was given out (CLAIM)."""
from __future__ import annotations

from collections.abc import Callable, Iterable

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.origins import Origins
from fluxmq._core.memory.commits import Line
from fluxmq._core.queue.delay import Delays
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve, reserve
from fluxmq._core.queue.lend import lend
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.state import holders_of, restore_state, state_of
from fluxmq.engine.queues.delays import DELAY_GROUP
from fluxmq.engine.queues.encoding import mark_of
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.hands import NEXT, Contents, Event, Hands, hand_of
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.records import HAD, Origin, origin_in
from fluxmq.engine.queues.state import QueueState

__all__ = ["CopyOrigins", "expect_hand", "forget_letters", "keep_held", "lent_by"]

RELEASED_MAX = 1000  # of one queue: a message that is published again after that comes twice


class CopyOrigins:
    """Machine. By number of the queue: origins that are not released, and those that are, of which copies may come."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[dict[Origin, None], dict[Origin, None]]] = {}

    def apply(self, number: int, body: bytes) -> None:
        """Applies a QUEUE_ORIGIN record; body: behind the queue's number. Raises CorruptError."""
        origin, what = origin_in(body)
        had, released = self._known.setdefault(number, ({}, {}))
        had.pop(origin, None)
        (had if what == HAD else released)[origin] = None
        if len(released) > RELEASED_MAX:
            del released[next(iter(released))]

    def of(self, number: int) -> tuple[list[Origin], list[Origin]]:
        """Of a queue: those that it has had and are not released; those that are."""
        had, released = self._known.get(number, ({}, {}))
        return list(had), list(released)

    def forget(self, number: int | None = None) -> None:
        """What is known of a queue; None: of all."""
        if number is None:
            self._known.clear()
        else:
            self._known.pop(number, None)

    def hand_over(self, number: int, queue: Queue, origins: Origins) -> None:
        """This node leads the queue from now on. origins: what the node knows."""
        if queue.identity:
            had, released = self._known.get(number, ({}, {}))
            origins.lead(queue, list(had))
            origins.bring_released(mark_of(queue.identity), list(released))


def expect_hand(event: Event, manager: QueueManager, queues: Iterable[QueueState], line: Line) -> None:
    """Raises UsageError where a change of the line's leader cannot change the hand of one of its queues, or of their
    copies."""
    for state in [found for one in queues if (found := manager.queues.get(one.queue.address)) is not None]:
        if (hand_of(state), event) not in NEXT:
            raise UsageError(f"queue {state.spec.shown} is {hand_of(state)} here, which line {line.name!r} does not "
                             f"know: it cannot {event}")


def forget_letters(manager: QueueManager, hands: Hands, queues: Iterable[QueueState]) -> None:
    """This node does not lead these queues any more. Those of them that are under way nobody asks for: a node that does
    not lead has them as copies only."""
    for state in queues:
        if is_under_way(state.queue.name):
            hands.drop_copy(state)
            manager.forget(state, kept=True)


def lent_by(manager: QueueManager, copy: QueueState) -> Contents:
    """What the queue has when this node leads it: the state of its copy, which lends its messages."""
    contents, delays, line = Contents.of(manager, copy), copy.queue.delays, copy.queue.line
    contents.logs = [lend(log) for log in copy.queue.logs]
    if delays is not None:
        group = Group(manager.hub.ledger, delays.group.number, DELAY_GROUP, line=line)
        contents.delays = Delays(lend(delays.log), group)
        restore_state(group, state_of(delays.group))
    return contents


def keep_held(group: Group, copy: Group, here: int, has_ended: Callable[[int], bool]) -> list[tuple[Group, Reserve]]:
    """Keeps what consumers of other nodes hold, and partitions that they own, for them; by the copy of the group, which
    this node leads from now on. here: this node's life; has_ended: as of QueueLine.lead. Returns what keeps it, as
    QueueManager.let_go takes it."""
    kept: dict[int, Reserve] = {}  # by the life of their node
    group.expect_none_of(has_ended)
    if group.expected:
        group.attach(kept.setdefault(0, Reserve()))
    for log, offset, deliveries, life, _ in holders_of(copy):
        if life and (life == here or has_ended(life)):  # this node's hold on what they hold
            continue
        if life not in kept:
            group.attach(kept.setdefault(life, Reserve()))
        reserve(group, kept[life], log, offset, deliveries)
    found = []
    for life, one in kept.items():
        if one.held or (life == 0 and group.expected):
            found.append((group, one))
        else:
            group.leave(one)
    return found
