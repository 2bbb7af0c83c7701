"""The cold operations of queues: declare, delete, groups, positions, dead letters. Without I/O, without time.

The hot operations (append, claim, settle) are compiled (_core/queue/); this object makes and configures the objects
that they use, and gets callbacks for decisions that they cannot make. Storage: recovery/store.py. Timers: clock.py. It
is one file because every operation changes the same tables: queues, their groups, and changes for the view.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.namespace import ROOT
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.lanes import OFFSET_MASK
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_CLASSIC, QUEUE_EPHEMERAL, QUEUE_STREAM, Queue
from fluxmq._core.queue.session_member import TopicFilter
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.dead_letters import DeadNames, dead_letter_queue
from fluxmq.engine.queues.positions import NOTHING, offset_in, read_position
from fluxmq.engine.queues.records import GroupRecord, record
from fluxmq.engine.queues.retry import UNSPECIFIED, RetryPolicy, backoff_ms
from fluxmq.engine.queues.settings import QueueSettings, filters_of
from fluxmq.engine.queues.state import QueueState
from fluxmq.engine.queues.table import QueueTable
from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec, name_problem

__all__ = ["KINDS", "NOTHING", "QueueManager", "QueueState"]

KINDS = {"classic": QUEUE_CLASSIC, "stream": QUEUE_STREAM, "ephemeral": QUEUE_EPHEMERAL}
FIXED = ("type", "partitions", "max_priority")  # what cannot change while messages are there


class QueueManager(QueueTable):
    """Machine. auto_create: "", or the type of queue that is made when a client publishes or subscribes to an unknown
    name."""

    def __init__(self, hub: Hub, auto_create: str = "",
                 on_log: Callable[[str, str, str, dict[str, Any]], None] | None = None, *, cluster: Cluster) -> None:
        super().__init__(hub, on_log, cluster=cluster)
        self.auto = auto_create
        self.dead_names = DeadNames()
        self.settings = QueueSettings(self)

    # ------------------------------------------------------------------ declare and delete

    def find(self, name: bytes, namespace: bytes = ROOT) -> Queue | None:
        """The queue of this name; made now if it is a dead-letter queue or the configuration says so."""
        state = self.queues.get((namespace, name))
        if state is not None:
            return state.queue
        whose = self.dead_names.find((namespace, name), self.queues)
        if whose is None:
            return self.auto_create(name, namespace)
        try:
            return dead_letter_queue(self, whose)
        except QueueRefused:
            return None

    def auto_create(self, name: bytes, namespace: bytes = ROOT) -> Queue | None:
        """Makes a queue that a client uses without declaring it, if the configuration says so."""
        if (state := self.queues.get((namespace, name))) is not None:
            return state.queue
        text = name.decode("utf-8", "replace")
        if not self.auto or name_problem(text):
            return None
        spec = QueueSpec(name=text, type=self.auto, namespace=namespace.decode())  # type: ignore[arg-type]
        try:
            queue = self.declare(spec)[0]
        except QueueRefused as refused:
            self.log("warning", f"auto_create {refused.kind}", f"queue not made: {refused.text}", {"queue": spec.shown})
            return None
        self.log("info", "", "queue made automatically (queue_manager.auto_create)",
                 {"queue": spec.shown, "type": self.auto})
        return queue

    def declare(self, spec: QueueSpec, line: Line | None = None) -> tuple[Queue, str]:
        """Makes a queue, or changes the one of that name: (queue, "created" | "unchanged" | "changed"). line: see make.

        Raises QueueRefused: conflict, for what cannot change; not_found: there is no such namespace; full: it has as
        many queues as it may.
        """
        state = self.queues.get(spec.address)
        if state is None:
            if line is None:
                self.check_room(spec)
            return self.make(spec, line=line), "created"
        if state.spec == spec:
            return state.queue, "unchanged"
        if state.declared is not None:
            raise QueueRefused("conflict", f"queue {spec.shown} was declared by an AMQP client, and its arguments say "
                                           f"what it is", f"delete it first: fluxmq queue delete {spec.shown}")
        for key in FIXED:
            if getattr(state.spec, key) != getattr(spec, key):
                raise QueueRefused("conflict", f"queue {spec.name} is there with {key} {getattr(state.spec, key)}, "
                                               f"which cannot become {getattr(spec, key)}",
                                   f"use another name, or delete it first: fluxmq queue delete {spec.name}")
        self.change(state, spec)
        self.record_queue(state)
        return state.queue, "changed"

    def change(self, state: QueueState, spec: QueueSpec) -> None:
        """Applies the limits and patterns of `spec`; in FIXED it equals the present settings."""
        former = state.spec.topics
        if state.queue.following:
            state.spec = spec
        else:
            self.dead_names.remove(state)
            state.spec = spec
            self.dead_names.add(state)
        self.settings.configure(state)
        if not state.queue.following:
            self.hub.targets.add_queue(state.queue, filters_of(spec))
            self._announce_topics(state.queue.namespace.name, former, spec.topics)
            state.queue.notify()

    def check_room(self, spec: QueueSpec) -> None:
        """Raises QueueRefused: full, where the namespace of a new queue has as many as it may."""
        namespace = self.hub.namespaces.get(spec.address[0])
        if namespace is not None and namespace.queues_max and namespace.queues >= namespace.queues_max:
            namespace.refused_queues += 1
            raise QueueRefused("full", f"queue limit in vhost '{namespace.text}' ({namespace.queues_max}) is reached",
                               "delete a queue, or raise limits.queues of the namespace")

    def make(self, spec: QueueSpec, declared: Declared | None = None, line: Line | None = None) -> Queue:
        """line: the commit line of the queue; None: the Replicator decides. Raises QueueRefused: unavailable, when
        another node owns the queue or its owner is unknown; not_found, when there is no such namespace."""
        namespace = self.hub.namespaces.get(spec.address[0])
        if namespace is None:
            raise QueueRefused("not_found", f"there is no namespace {spec.namespace}",
                               "fluxmq namespace list names those that are")
        volatile = spec.type == "ephemeral"
        owner = self.directory.claim_queue(*spec.address)
        if owner.node != self.directory.node:
            raise QueueRefused("unavailable", f"queue {spec.shown} belongs to node {owner.node}")
        if line is None:
            line = self.replicator.line_of_queue(*spec.address, not volatile)
        number = self.number(line)
        logs = [Log(self.hub.ledger, self.number(line), lane=lane, volatile=volatile, line=line)
                for _ in range(spec.partitions) for lane in range(spec.lanes)]
        queue = Queue(self.hub.ledger, number, spec.raw, KINDS[spec.type], logs, spec.lanes, namespace)
        state = self.adopt(spec, queue, declared)
        self.record_queue(state)
        return queue

    def adopt(self, spec: QueueSpec, queue: Queue, declared: Declared | None = None) -> QueueState:
        """Activates a queue that is new, or was loaded from disk or from another node; one that follows stays
        passive."""
        state = QueueState(spec, queue, declared)
        if queue.following:
            self.settings.configure(state)
        else:
            self.install(state)
        return state

    def install(self, state: QueueState) -> None:
        """Lets the queue be found by its name."""
        queue, spec = state.queue, state.spec
        state.idle_since_ms = now = self.hub.steady_ms
        # Spreads the checks of streams that were made together over several ticks.
        state.retention_due_ms = now + queue.number * 7919 % 5000
        self.queues[queue.address] = state
        self.states[queue] = state
        queue.namespace.queues += 1
        self.durables += queue.durable
        self.kinds[spec.type] += 1
        if queue.kind == QUEUE_STREAM:
            self.streams[state] = None
        if spec.dlq.topic:
            self.dead_names.add(state)
        self.settings.configure(state)
        self.hub.targets.add_queue(queue, filters_of(spec))
        self._announce_topics(state.queue.namespace.name, (), spec.topics)
        queue.notify()
        for listener in self.listeners:
            listener.queue_added(queue)

    def _announce_topics(self, namespace: bytes, former: Iterable[str], topics: Iterable[str]) -> None:
        """Announces the topics that a queue captures, so that other nodes forward them; its own address is no topic."""
        for topic in set(topics).difference(former):
            self.directory.announce(namespace, topic.encode())
        for topic in set(former).difference(topics):
            self.directory.withdraw(namespace, topic.encode())

    def delete(self, address: tuple[bytes, bytes]) -> int:
        """Deletes a queue with its groups and messages. Returns how many messages it had."""
        state = self.queues[address]
        queue = state.queue
        depth = queue.depth
        members = self.members_of(state)
        for group in state.groups.values():
            group.on_dead = None  # messages deleted with their queue are no dead letters
            group.end()
        for log in state.logs:
            log.trim(log.next)
        self.forget(state)
        if queue.durable:
            record(self.hub.ledger, RecordKind.QUEUE_END, queue.number, line=queue.line)
        for listener in self.listeners:
            listener.queue_deleted(queue, members)
        state.owner = None  # cached routes may keep the queue for a while, but must not keep its connection
        return depth

    def forget(self, state: QueueState) -> None:
        """Removes the queue from the tables, and from the view at the next checkpoint."""
        self.queues.pop(state.queue.address, None)
        if self.states.pop(state.queue, None) is not None:
            state.queue.namespace.queues -= 1
            self.durables -= state.queue.durable
            self.kinds[state.spec.type] -= 1
            self.streams.pop(state, None)
            self.sums.forget(state.queue)
            self.dead_names.remove(state)
        self.changed.discard(state)
        self.hub.targets.remove_queue(state.queue)
        self._announce_topics(state.queue.namespace.name, state.spec.topics, ())
        self.directory.release_queue(*state.queue.address)
        for listener in self.listeners:
            listener.queue_removed(state.queue)
        groups, logs, delays = [*state.groups.values()], state.logs, state.queue.delays
        if delays is not None:
            groups.append(delays.group)
            state.queue.delays = None  # so that a running read finds no delays to continue with
        if state.queue.line.number:
            return  # the view does not contain it
        self.ended += [("q", state.queue.number), *([("d", state.queue.number)] if state.producers else ()),
                       *(("g", group.number) for group in groups), *(("l", log.number) for log in logs),
                       *(("k", log.number) for log in logs if log.kept_upto != NOTHING)]

    def drop_quietly(self, state: QueueState, key: tuple[bytes, bytes]) -> Group:
        """Removes a group without recording it: at recovery its end was found later in the journal."""
        group = state.groups.pop(key)
        state.note_retry_policy(group, None)
        if state.queue.kind != QUEUE_STREAM:
            state.queue.remove_group(group)
        if group.line.number == 0:
            self.ended.append(("g", group.number))
        return group

    def purge(self, state: QueueState) -> int:
        """Removes all messages for every group, also delayed ones. Returns how many."""
        depth, delays = state.queue.depth, state.queue.delays
        for log in state.queue.logs:
            self.trim(state, log, log.next)
        if delays is not None:
            depth += len(delays)
            self.trim(state, delays.log, delays.log.next)
            delays.forget()
        return depth

    # ------------------------------------------------------------------ groups

    def group(self, queue: Queue, name: bytes, pattern: bytes = b"", position: str = "", exclusive: bool = False,
              mode: str = "", retry_policy: RetryPolicy = UNSPECIFIED) -> Group:
        """The group of this name. If it does not exist, it is made with this retry policy; in a classic queue it begins
        at the oldest message. Its first member decides how members share."""
        state = self.states[queue]
        key = (name, pattern)
        group = state.groups.get(key)
        single = state.arguments is not None and state.arguments.single
        mode = "single" if single else mode or ("exclusive" if exclusive else "shared")
        if group is not None and not group.members and group.mode != mode:
            group.set_mode(mode)
            self._record_group(state, group, pattern)
        elif group is None:
            group = self.adopt_group(state, self.number(queue.line),
                                     GroupRecord(queue.number, name, mode, pattern, retry_policy))
            self._record_group(state, group, pattern)
            # Its start is recorded after the group: at recovery the log may reach further, or have messages that are
            # gone now.
            for log in queue.logs:
                if position:
                    by_offset.seek(group, log.number, self.offset_of(state, log, position, group))
                elif queue.kind == QUEUE_STREAM or log.first & OFFSET_MASK:
                    by_offset.seek(group, log.number, log.next if queue.kind == QUEUE_STREAM else log.first)
        return group

    def adopt_group(self, state: QueueState, number: int, record_: GroupRecord) -> Group:
        queue, stream = state.queue, state.queue.kind == QUEUE_STREAM
        group = Group(self.hub.ledger, number, record_.name, mode=record_.mode, volatile=not queue.durable,
                      line=queue.line)
        group.home = queue
        if record_.retry_policy == UNSPECIFIED:
            self.settings.configure_group(state, group)
        else:
            self.set_retry_policy(state, group, record_.retry_policy)
        group.add_cursors(queue.logs, queue.lanes, stream)
        group.on_dead = self.settings.dead
        if record_.pattern:
            group.filter = self.filter(queue, record_.pattern)
        state.groups[record_.name, record_.pattern] = group
        if not stream:
            queue.add_group(group)
        return group

    @staticmethod
    def group_record(state: QueueState, group: Group, pattern: bytes) -> GroupRecord:
        return GroupRecord(state.queue.number, group.name, group.mode, pattern,
                           state.retry_policies.get(group, UNSPECIFIED))

    def _record_group(self, state: QueueState, group: Group, pattern: bytes) -> None:
        if state.queue.durable:
            record(self.hub.ledger, RecordKind.GROUP, group.number, self.group_record(state, group, pattern),
                   group.line)

    def update_retry_policy(self, queue: Queue, name: bytes, pattern: bytes, policy: RetryPolicy) -> None:
        """Changes the retry policy of a group, because a consumer set one."""
        state = self.states[queue]
        group = state.groups[name, pattern]
        known = state.retry_policies.get(group, UNSPECIFIED)
        wanted = known.updated(policy)
        if wanted != known:
            self.set_retry_policy(state, group, wanted)
            self._record_group(state, group, pattern)
            queue.notify()  # with fewer retries some messages may be dead now

    def set_retry_policy(self, state: QueueState, group: Group, policy: RetryPolicy) -> None:
        """Replaces the retry policy of a group."""
        if policy != state.retry_policies.get(group, UNSPECIFIED):
            state.note_retry_policy(group, policy)
            self.note_changed(state)  # so that the next checkpoint writes it to the view
        self.settings.configure_group(state, group)

    def drop_group(self, state: QueueState, key: tuple[bytes, bytes]) -> None:
        """Deletes a group; messages that only it had not settled are removed."""
        group = self.drop_quietly(state, key)
        if state.queue.durable:
            for log in state.queue.logs if not state.groups else ():
                # Messages settled by all groups were removed without a record, and must not reappear for a later group.
                record(self.hub.ledger, RecordKind.TRIM, log.number, log.first.to_bytes(8, "big"), log.line)
            record(self.hub.ledger, RecordKind.GROUP_END, group.number, line=group.line)
        state.queue.notify()

    @staticmethod
    def filter(queue: Queue, pattern: bytes) -> Any:
        """The filter of a subscription below `$queue/<name>/`; None: it matches everything."""
        return TopicFilter(queue, pattern) if pattern not in (b"", b"#") else None

    def backoff_ms(self, queue: Queue, group: Group, deliveries: int) -> int:
        """The backoff of a message in this group after this number of deliveries."""
        return backoff_ms(self.states[queue].effective_retry(group), deliveries)

    def left(self, queue: Queue, group: Group | None) -> None:
        """Called when a consumer has left."""
        if (state := self.states.get(queue)) is not None:
            state.idle_since_ms = self.hub.steady_ms
            queue.notify()

    # ------------------------------------------------------------------ positions

    def position(self, queue: Queue, log: Log, text: str, group: Group | None) -> int:
        """Where a stream's new reader begins: at the position it asks for, else at its group's, else at the next
        message."""
        return self.offset_of(self.states[queue], log, text or ("resume" if group is not None else "next"), group)

    def offset_of(self, state: QueueState, log: Log, text: str, group: Group | None) -> int:
        """The present offset of a position in a log. Raises QueueRefused: invalid."""
        try:
            position = read_position(text)
        except ValueError as error:
            raise QueueRefused("invalid", str(error)) from None
        if position.kind == "timestamp":
            return self.disk.offset_at_time(log, position.value)
        return offset_in(log, position, group)
