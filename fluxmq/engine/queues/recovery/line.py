"""The records of one commit line, applied to queues: at a start the journal's, while the node runs those of a line that
another instance leads.

    leader   declare, append, claim, settle … ─► records ─► committed ─┐
    follower                                                           └─► QueueLine.apply ─► the same queues
                                                                           lead() ─► it decides itself from now on
                                                                           follow() ─► it applies again

Numbers of queues, logs and groups are unique within their line only. So the numbers in a record are looked up in tables
of its line.

A following queue is a copy, and makes no decisions: it is not in the manager's tables, which have a relay of its name,
so it gets no publishes, timers or checkpoints, and it is never pumped. Messages that consumers of the leader hold are
in the state of returned ones here. When this instance leads, the relay becomes the queue, and the copy stays: it is
what is committed (docs/internals/queues.md, "A second instance").

It is one file because what a record does depends on who leads, and both halves keep the same tables.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.namespace import ROOT, Namespace
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve
from fluxmq._core.queue.lend import give_back, mirror_of, release, retain, undo
from fluxmq._core.queue.line import LineObjects
from fluxmq._core.queue.log import Log, envelope_of
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue.state import restore_state
from fluxmq.engine.queues.deduplication import together, with_sequence
from fluxmq.engine.queues.delays import adopt_delays
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.hands import Event, Hand, Hands, hand_of
from fluxmq.engine.queues.manager import KINDS, NOTHING, QueueManager, QueueState
from fluxmq.engine.queues.records import GroupRecord, Origin, QueueRecord, produced_in
from fluxmq.engine.queues.recovery.followed import CopyOrigins, expect_hand, forget_letters, keep_held, lent_by
from fluxmq.engine.queues.recovery.snapshot import queue_in
from fluxmq.engine.queues.table import QueueListener
from fluxmq.engine.stored import group_of, queue_of
from fluxmq.model.queues import QueueSpec

__all__ = ["QueueLine"]

# Looked up once: a member of an enumeration is found slowly, and a start replays thousands of records.
_QUEUE, _QUEUE_END, _GROUP = RecordKind.QUEUE, RecordKind.QUEUE_END, RecordKind.GROUP


class QueueLine(QueueListener):
    """Machine. make_log: makes a log that a queue's record names; None: one without messages. hands: of a node whose
    queues may be of other nodes; None: of one that leads everything."""

    def __init__(self, manager: QueueManager, line: Line, make_log: Callable[[int, int], Log] | None = None,
                 hands: Hands | None = None) -> None:
        self.manager = manager
        self._hands = hands
        self.line = line
        self.following = line.number != 0
        self.queues: dict[int, QueueState] = {}
        self.objects = LineObjects(self._note_produced)
        self.groups: dict[int, Group] = self.objects.groups
        self.logs: dict[int, tuple[QueueState, Log]] = self.objects.logs
        self.passed_over: set[int] = set()  # logs of queues that had ended before the first record that was read
        self._served: dict[int, QueueState] = {}  # the queue of each copy, while this instance leads
        self._origins = CopyOrigins()
        self._declared: dict[int, QueueState] = {}  # those that it has declared, and that have no copy yet
        self._make_log = make_log or self._new_log
        # The position of the last batch that was applied, if whoever applies says it; 0 after a start: the disk has
        # nothing that can be gone on with, and the group is to send snapshots.
        self.applied = 0
        self.replaced = False  # a snapshot has replaced a copy, or all were dropped, since a checkpoint began
        self._heard: int | None = None  # the line's time on disk, until the node has its own clock
        if line.number:
            manager.listeners.append(self)

    def _new_log(self, number: int, lane: int) -> Log:
        log = Log(self.manager.hub.ledger, number, lane=lane, line=self.line)
        if not self.following:
            mirror_of(log)
        return log

    def connect(self, hands: Hands) -> None:
        """The node is whole: what was loaded may be led here."""
        self._hands = hands

    def resume(self) -> None:
        """Loaded from the disk, and the node has its clock."""
        if self._heard is not None:
            self.line.hear(self._heard, self.manager.hub.steady_ms)
            self._heard = None

    @contextmanager
    def making_logs(self, make_log: Callable[[int, int], Log]) -> Iterator[None]:
        """Logs of queues are made like this meanwhile: they are on disk. The line's time is kept for resume()."""
        former, self._make_log, self._heard = self._make_log, make_log, self._heard or 0
        try:
            yield
        finally:
            self._make_log = former

    def origins_of(self, number: int) -> tuple[list[Origin], list[Origin]]:
        """As CopyOrigins.of."""
        return self._origins.of(number)

    def _log(self, number: int, lane: int) -> Log:
        self.manager.is_taken(self.line, number)
        return self._make_log(number, lane)

    # ------------------------------------------------------------------ what there is

    def place(self, record: QueueRecord, spec: QueueSpec) -> tuple[Namespace | None, QueueSpec]:
        """The queue's namespace, or None if it has ended; and its declaration, which is also put into `record`."""
        hub, declared = self.manager.hub, record.declared
        if record.namespace == 0 and declared is not None and declared.vhost != ROOT:
            # Format of an earlier version, in the journal only.
            namespace: Namespace | None = hub.namespaces.add(declared.vhost)
        else:
            namespace = self.line.namespace(record.namespace)
        if namespace is None or namespace is hub.root:
            return namespace, spec
        if declared is not None:
            record.declared = msgspec.structs.replace(declared, vhost=namespace.name)
        return namespace, msgspec.structs.replace(spec, namespace=namespace.text)

    def adopt(self, number: int, record: QueueRecord, spec: QueueSpec) -> QueueState | None:
        """Makes a queue from a record or a row of the view. None: its namespace has ended."""
        namespace, spec = self.place(record, spec)
        if namespace is None:
            self.passed_over.update((*(one.number for one in record.logs), record.delay))
            return None
        return self._adopt(number, record, spec, namespace)

    def _adopt(self, number: int, record: QueueRecord, spec: QueueSpec, namespace: Namespace) -> QueueState:
        logs = [self._log(one.number, one.lane) for one in record.logs]
        queue = Queue(self.manager.hub.ledger, number, spec.raw, KINDS[spec.type], logs, spec.max_priority + 1,
                      namespace)
        queue.following = self.line.number != 0
        self.manager.is_taken(self.line, number)
        state = self.queues[number] = self.manager.adopt(spec, queue, record.declared, record.identity)
        state.placement = record.placement
        for one, log in zip(record.logs, logs, strict=True):
            self.logs[one.number] = state, log
        self._adopt_delays(state, record)
        return state

    def _adopt_delays(self, state: QueueState, record: QueueRecord) -> None:
        if record.delay and state.queue.delays is None:
            delays = adopt_delays(self.manager, state, self._log(record.delay, 0), record.delay_group)
            self.logs[record.delay] = (state, delays.log)
            self.groups[record.delay_group] = delays.group
            self.manager.is_taken(self.line, record.delay_group)

    def adopt_group(self, number: int, record: GroupRecord) -> Group | None:
        """Makes a group of an existing queue. None: the queue does not exist, because its end comes later."""
        state = self.queues.get(record.queue)
        if state is None:
            return None
        self.manager.is_taken(self.line, number)
        group = self.groups[number] = self.manager.adopt_group(state, number, record)
        return group

    def adopt_copy(self, number: int, record: GroupRecord, copied: bytes) -> None:
        """Makes a group with its state from the view (_core/queue/state). Raises CorruptError."""
        group = self.groups.get(number) or self.adopt_group(number, record)
        if group is not None:
            restore_state(group, copied)

    def restore(self, raw: bytes) -> QueueState:
        """Makes the copy of a queue anew from a snapshot of its leader; records committed later are applied to it.
        Raises CorruptError: without changing anything, if it is no snapshot, else without a copy; UsageError when this
        instance leads."""
        if not self.following:
            raise UsageError(f"line {self.line.name!r} is led here")
        number = queue_in(raw)
        self.replaced = True
        former = self.queues.pop(number, None)
        if former is not None:
            self._forget(former)
            served = self.manager.queues.get(former.queue.address)
            if self._hands is not None and served is not None and served.copy is former:
                self._hands.drop_copy(served)
        try:
            self.apply(raw)
        except BaseException:
            self.replay(_QUEUE_END, number, b"")
            raise
        state = self.queues.get(number)
        if state is None:
            raise CorruptError(f"the namespace of queue {number:016x} has ended")
        served = self.manager.queues.get(state.queue.address)
        if self._hands is not None and served is not None and hand_of(served) is Hand.RELAY:
            self._hands.begin_copy(served, state)
        return state

    def clear(self) -> None:
        """Releases everything: nothing more is applied, and copies end. Raises UsageError when this instance leads."""
        if self.line.number and not self.following:
            raise UsageError(f"line {self.line.name!r} is led here")
        for copy in self.queues.values() if self.line.number else ():
            served = self.manager.queues.get(copy.queue.address)
            if self._hands is not None and served is not None and served.copy is copy:
                self._hands.drop_copy(served)
            self._leave_disk(copy)
            for log in copy.logs:
                log.trim(log.next)  # or its bytes would count until the copy is collected
        self.applied, self.replaced = 0, True
        self.queues.clear()
        self.groups.clear()
        self.logs.clear()
        self.passed_over.clear()
        self._origins.forget()

    # ------------------------------------------------------------------ records

    @property
    def time(self) -> int:
        """The line's clock, ms: whoever leads says it with what it submits, and deadlines in records are in it. It goes
        on wherever the line is led next, and never goes back."""
        return self.manager.hub.steady_ms + self.line.shift_ms

    def apply(self, records: bytes, line_ms: int | None = None, position: int = 0) -> None:
        """Applies the records about queues among records that were committed together (Line.submit): to the copies,
        also of an instance that leads. line_ms: the leader's `time` when they were submitted. position: of this batch
        among those of the line, by which a start knows what its disk has (`applied`); 0: it is not stored. Raises
        CorruptError; UsageError for the journal, whose queues have no copies."""
        if self.line.number == 0:
            raise UsageError(f"line {self.line.name!r} is led here")
        if line_ms is not None:
            self.line.hear(line_ms, self.manager.hub.steady_ms)
        for queue in self.objects.apply(records, self.replay):
            if isinstance(queue, Queue) and queue.kind != QUEUE_STREAM:
                queue.trim_done()
            if isinstance(queue, Queue):
                self._release(queue.number)
        self.applied = position or self.applied

    def _release(self, number: int) -> None:
        """What a copy has trimmed is not kept for it any more."""
        retaining, copy = self.line.retaining, self.queues.get(number)
        for log in copy.logs if retaining and copy is not None else ():
            if (lent := retaining.get(log.number)) is not None:
                release(lent, log.first)

    def replay(self, kind: int, number: int, body: bytes) -> None:
        """Applies one record about queues that is not about messages (LineObjects); body: what follows its number. A
        repeated application has no effect. Raises CorruptError."""
        if kind == _QUEUE:
            self._replay_queue(number, *queue_of(body))
        elif kind == _QUEUE_END:
            state = self.queues.pop(number, None)
            if state is not None:
                if self.line.number and state.id:
                    self.manager.hub.note_ended(state.id)
                self._served.pop(number, None)
                self._forget(state)
        elif kind == _GROUP:
            self._replay_group(number, group_of(body))
        elif kind == RecordKind.GROUP_END:
            self._replay_group_end(number)
        elif kind == RecordKind.NAMESPACE:
            self.manager.hub.namespaces.learn(self.line, number, body)
        elif kind == RecordKind.PRODUCED:
            self._replay_produced(number, body)
        elif kind == RecordKind.QUEUE_ORIGIN and self.line.number:
            if number in self.queues:
                self._origins.apply(number, body)
                self.manager.note_changed(self.queues[number])
        elif kind == RecordKind.CLOCK and self.line.number:
            if self._heard is not None:
                self._heard = max(self._heard, number)
            elif self.following:
                self.line.hear(number, self.manager.hub.steady_ms)
        else:
            raise CorruptError(f"the journal has a record of kind {kind}, which this version does not know")

    def _note_produced(self, state: QueueState, message: bytes) -> None:
        headers = dict(envelope_of(message).headers())
        sequence = headers.get(b"producer-sequence", b"")
        if b"producer-id" in headers and sequence.isdigit():
            producer = headers[b"producer-id"]
            state.note_produced(producer, with_sequence(state.producers.get(producer), int(sequence)))
            self.manager.note_changed(state)

    def _replay_produced(self, number: int, body: bytes) -> None:
        state, (producer, known) = self.queues.get(number), produced_in(body)
        if state is not None:
            state.note_produced(producer, together(state.producers.get(producer), known))
            self.manager.note_changed(state)

    def _replay_queue(self, number: int, record: QueueRecord, spec: QueueSpec) -> None:
        state = self.queues.get(number)
        namespace, spec = self.place(record, spec)
        known = self.manager.queues.get(spec.address) if state is None and self.line.number == 0 else None
        if namespace is None or (known is not None and known.queue.number > number):
            # It has ended, or the view has a newer queue of the same name.
            self.passed_over.update((*(one.number for one in record.logs), record.delay))
            return
        if state is None:
            state = self._adopt(number, record, spec, namespace)
        elif spec.address != state.queue.address:
            state = self._rename(number, state, record, spec)
        else:
            self.manager.change(state, spec)
            state.id, state.placement = record.identity, record.placement
            self._adopt_delays(state, record)
        self.manager.note_changed(state)
        if self.line.number and not self.following:
            served = self.manager.queues.get(spec.address)
            if served is not None and served.queue.number == number:
                self._serves(served, state)

    def _rename(self, number: int, former: QueueState, record: QueueRecord, spec: QueueSpec) -> QueueState:
        """The queue was set aside (DefinedQueues.set_aside): what was loaded of it has another name from here on."""
        state = self.queues[number] = self.manager.rename(former, spec, record.declared, record.identity,
                                                          self.line.number != 0)
        state.placement = record.placement
        for log in state.logs:
            self.logs[log.number] = state, log
        return state

    def _replay_group(self, number: int, record: GroupRecord) -> None:
        state = self.queues.get(record.queue)
        if state is not None and self.line.number:
            self.manager.note_changed(state)
        if number in self.groups:
            self.groups[number].set_mode(record.mode)
            if state is not None:
                self.manager.set_retry_policy(state, self.groups[number], record.retry_policy)
            return
        known = state.groups.get((record.name, record.pattern)) if state is not None else None
        if known is None or known.number < number:  # otherwise the view has it already, or a newer one
            self.adopt_group(number, record)

    def _replay_group_end(self, number: int) -> None:
        group = self.groups.pop(number, None)
        state = self.queues.get(group.home.number) if group is not None and isinstance(group.home, Queue) else None
        if state is not None:
            state.queue.mark_dirty()
            for name in [name for name, known in state.groups.items() if known is group]:
                self.manager.drop_quietly(state, name)
            if state.queue.following and state.queue.kind != QUEUE_STREAM:  # it may have been the slowest
                state.queue.trim_done()
                self._release(state.queue.number)

    def _leave_disk(self, state: QueueState) -> None:
        """The next checkpoint deletes what the disk has of a copy."""
        if self.line.group:
            self.manager.ended += [("f", self.line.group << 64 | state.queue.number),
                                   *(("l", log.disk) for log in state.logs if log.disk),
                                   *(("k", log.disk) for log in state.logs if log.kept_upto != NOTHING)]

    def _forget(self, state: QueueState) -> None:
        self._origins.forget(state.queue.number)
        self._leave_disk(state)
        delays = state.queue.delays
        for log in state.logs:
            self.logs.pop(log.number, None)
            self.line.retaining.pop(log.number, None)
            log.trim(log.next)  # or its bytes would count until the queue, which its groups refer to, is collected
        for group in [*state.groups.values(), *([delays.group] if delays is not None else ())]:
            self.groups.pop(group.number, None)
        if self.line.number == 0:
            self.manager.forget(state)

    # ------------------------------------------------------------------ another leads, this one leads

    def lead(self, has_ended: Callable[[int], bool] = lambda life: False) -> list[tuple[Group, Reserve]]:
        """From now on this instance decides, and records its decisions for the line: the relay of each queue becomes
        the queue, with what its copy has. has_ended: whether a life of a node has, by its epoch: what its consumers
        held is ready. What those of other nodes hold is kept for them: returns what QueueManager.let_go takes. Raises
        UsageError, without changing anything, when a queue of the same name is here already."""
        if self._hands is None or not self.following:
            raise UsageError(f"line {self.line.name!r} is led here")
        copies = [copy for copy in self.queues.values() if self._is_named(copy)]
        for copy in copies:
            if copy.queue.damage is not None:
                raise UsageError(f"the copy of queue {copy.spec.shown} is damaged: {copy.queue.damage}")
        expect_hand(Event.TAKE, self.manager, copies, self.line)
        self.following = False
        self.line.hear(self.time, self.manager.hub.steady_ms)  # its own word from now on: no batch of it sets it back
        kept = []
        # Letters come first: what dies while the others are taken goes there.
        for copy in sorted(copies, key=lambda copy: not is_under_way(copy.queue.name)):
            served = self.manager.queues.get(copy.queue.address)
            if served is None:
                served = self.manager.make_relay(copy.spec, copy.declared, copy.id)
            kept += self._take(self._hands, served, copy, has_ended)
        return kept

    def _is_named(self, copy: QueueState) -> bool:
        """Whether the copy is the queue of its name: another one may be defined, while this one has not ended."""
        served = self.manager.queues.get(copy.queue.address)
        if served is None or served.id == copy.id:
            return True
        self.manager.log("warning", "", "a replicated queue is kept, and not served: another one of its name is "
                                        "defined. Delete that one to have it back", {"queue": copy.spec.shown})
        return False

    def _take(self, hands: Hands, served: QueueState, copy: QueueState,
              has_ended: Callable[[int], bool]) -> list[tuple[Group, Reserve]]:
        contents = lent_by(self.manager, copy)
        # Before its relay gives it what was kept: that may be what the queue has had.
        self._origins.hand_over(copy.queue.number, served.queue, self.manager.hub.origins)
        settled = hands.take(served, contents)
        served.producers = dict(copy.producers)
        self._serves(served, copy)
        hands.settle_kept(served.queue, settled)
        if is_under_way(served.queue.name):  # its only consumer is the Forwarder of whoever leads
            self.manager.forwarders.found(served.queue)
            return []
        here = self.manager.hub.ledger.life
        return [found for key, group in copy.groups.items()
                for found in keep_held(served.groups[key], group, here, has_ended)]

    def queue_made(self, queue: Queue) -> None:
        """See QueueListener."""
        if queue.line is self.line and not self.following:
            self.note(self.manager.states[queue])

    def note(self, state: QueueState) -> None:
        """This instance, which leads, has declared a queue for the line: what it decides of it can be taken back."""
        self._declared[state.queue.number] = state
        for log in state.logs:
            retain(log)

    def _serves(self, served: QueueState, copy: QueueState) -> None:
        served.copy = copy
        self._served[copy.queue.number] = served
        self._declared.pop(copy.queue.number, None)

    def follow(self) -> None:
        """Another instance leads from now on. What was decided here and is not committed has been given up
        (Line.give_up), and is taken back: the queues are relays, and their copies, to which that instance's records are
        applied, have what was committed; a queue whose declaration was not committed is deleted. Raises UsageError,
        without changing anything, if something is undecided, or a queue is about to move, or damaged."""
        manager, hands = self.manager, self._hands
        if hands is None or self.following:
            raise UsageError(f"line {self.line.name!r} is not led here")
        if self.line.undecided:
            raise UsageError(f"line {self.line.name!r} has {self.line.undecided} batches that are not decided")
        # Others were deleted here, and that is not committed.
        served = [state for state in self._served.values() if manager.states.get(state.queue) is state]
        expect_hand(Event.FOLLOW, manager, served, self.line)
        self.following = True
        manager.forwarders.leave(self.line)
        for state in self._declared.values():
            if manager.states.get(state.queue) is state:
                manager.delete(state.queue.address)
        logs = [(log, self.line.retaining[log.number]) for copy in self.queues.values() for log in copy.logs]
        for log, lent in logs:
            undo(lent, log.first, log.next)
        for state in served:
            assert state.copy is not None
            hands.follow(state, state.copy)
        for log, lent in logs:
            give_back(log, lent)
        forget_letters(manager, hands, served)
        self._served.clear()
        self._declared.clear()
        self.line.retaining.clear()
        self.line.give_up("another instance leads")     # what the groups had not recorded yet, and these deletions
