"""The cold operations of queues: declare, delete, groups, positions, dead letters. Without I/O, without time.

The hot operations (append, claim, settle) are compiled (_core/queue/); this object makes and configures the objects
that they use, and gets callbacks for decisions that they cannot make. Storage: recovery/store.py. Timers: clock.py. It
is one file because every operation changes the same tables: queues, their groups, and changes for the view.
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.namespace import ROOT, Namespace
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import Reserve, reserve_claimed
from fluxmq._core.queue.lanes import OFFSET_MASK
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_CLASSIC, QUEUE_EPHEMERAL, QUEUE_STREAM, Queue
from fluxmq._core.queue.session_member import TopicFilter
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.away import AwayQueues
from fluxmq.engine.queues.dead_letters import DeadNames, dead_letter_queue, dead_letter_spec
from fluxmq.engine.queues.forwarding import Forwarders, is_under_way
from fluxmq.engine.queues.parts import is_part, part_name, whole_of
from fluxmq.engine.queues.positions import NOTHING, offset_in, read_position
from fluxmq.engine.queues.records import GroupRecord, is_moving, record
from fluxmq.engine.queues.retry import UNSPECIFIED, RetryPolicy, backoff_ms
from fluxmq.engine.queues.settings import QueueSettings, filters_of
from fluxmq.engine.queues.state import QueueState
from fluxmq.engine.queues.streams import StreamReads
from fluxmq.engine.queues.table import QueueTable
from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec, name_problem

__all__ = ["KINDS", "NOTHING", "QueueManager", "QueueState"]

KINDS = {"classic": QUEUE_CLASSIC, "stream": QUEUE_STREAM, "ephemeral": QUEUE_EPHEMERAL}
RELAYS_FROM = 1 << 63  # numbers of queues that other nodes have: never on the disk
FIXED = ("type", "partitions", "max_priority")  # what cannot change while messages are there


def is_hidden(name: bytes) -> bool:
    """Whether a queue of this name is one of the broker's own, which clients cannot name."""
    return name[:1] == b"$" and (is_under_way(name) or is_moving(name) or is_part(name))


def set_part(group: Group, queue: Queue) -> None:
    """Says of the group of a partition's queue which partition that is."""
    if (part := whole_of(queue.name)) is not None:
        group.part, group.parts = part.partition, part.partitions


class QueueManager(QueueTable):
    """Machine. auto_create: "", or the type of queue that is made when a client publishes or subscribes to an unknown
    name."""

    def __init__(self, hub: Hub, auto_create: str = "",
                 on_log: Callable[[str, str, str, dict[str, Any]], None] | None = None, *, cluster: Cluster) -> None:
        super().__init__(hub, on_log, cluster=cluster)
        self.auto = auto_create
        self.dead_names = DeadNames()
        self.forwarders = Forwarders(self)
        self._relays = 0  # made so far
        self.away = AwayQueues(hub, self.log)
        self.mover: Callable[[tuple[bytes, bytes], str], Awaitable[bool]] | None = None  # of the cluster
        self.settings = QueueSettings(self)
        self.reads = StreamReads(self)

    # ------------------------------------------------------------------ declare and delete

    def find(self, name: bytes, namespace: bytes = ROOT) -> Queue | None:
        """The queue of this name; made now if it is a dead-letter queue or the configuration says so. Raises Deferred
        in a cluster if it is to be made, or may be about to be deleted."""
        state = self.queues.get((namespace, name))
        if state is not None:
            self.await_end(state)
            return None if is_hidden(name) else state.queue
        whose = self.dead_names.find((namespace, name), self.queues)
        if whose is None:
            return self.auto_create(name, namespace)
        if self.definer is not None:
            raise Deferred(partial(self.definer.define_queue, dead_letter_spec(whose), None, near=whose.address))
        try:
            return dead_letter_queue(self, whose)
        except QueueRefused:
            return None

    def find_now(self, name: bytes, namespace: bytes) -> Queue | None:
        """As find; but nothing can wait, so where the cluster must decide the queue is not made, or found as it is."""
        state = self.queues.get((namespace, name))
        if state is not None and state.queue.ending:
            return state.queue
        try:
            return self.find(name, namespace)
        except Deferred:
            return None

    def auto_create(self, name: bytes, namespace: bytes = ROOT) -> Queue | None:
        """Makes a queue that a client uses without declaring it, if the configuration says so. Raises Deferred."""
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
        many queues as it may. Raises Deferred.
        """
        state = self.queues.get(spec.address)
        if state is None:
            if line is None:
                self.check_room(spec)
            if self.definer is not None:
                self.namespace_of(spec)
                raise Deferred(partial(self.definer.define_queue, spec, None), "created")
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
        if self.definer is not None:
            raise Deferred(partial(self.definer.redefine_queue, spec, state.id), "changed")
        self.change(state, spec)
        self.record_queue(state)
        return state.queue, "changed"

    def change(self, state: QueueState, spec: QueueSpec) -> None:
        """Applies the limits and patterns of `spec`; in FIXED it equals the present settings."""
        if state.queue.following:
            state.spec = spec
        else:
            self.dead_names.remove(state)
            state.spec = spec
            if not is_hidden(state.queue.name):
                self.dead_names.add(state)
        self.settings.configure(state)
        if not state.queue.following:
            self.hub.targets.add_queue(state.queue, [] if is_hidden(state.queue.name) else filters_of(spec))
            state.queue.notify()

    def check_room(self, spec: QueueSpec) -> None:
        """Raises QueueRefused: full, where the namespace of a new queue has as many as it may."""
        namespace = self.hub.namespaces.get(spec.address[0])
        if namespace is not None and namespace.queues_max and namespace.queues >= namespace.queues_max:
            namespace.refused_queues += 1
            raise QueueRefused("full", f"queue limit in vhost '{namespace.text}' ({namespace.queues_max}) is reached",
                               "delete a queue, or raise limits.queues of the namespace")

    def namespace_of(self, spec: QueueSpec) -> Namespace:
        namespace = self.hub.namespaces.get(spec.address[0])
        if namespace is None:
            raise QueueRefused("not_found", f"there is no namespace {spec.namespace}",
                               "fluxmq namespace list names those that are")
        return namespace

    def make(self, spec: QueueSpec, declared: Declared | None = None, line: Line | None = None,
             identity: int = 0) -> Queue:
        """line: the commit line of the queue; None: the Replicator decides. identity: in the cluster; 0: no other node
        knows the queue. Raises QueueRefused: unavailable, when others have the queue's data; not_found, when there is
        no such namespace."""
        namespace = self.namespace_of(spec)
        volatile = spec.type == "ephemeral"
        placement = self.directory.place_queue(*spec.address)
        if line is None:
            line = self.replicator.line_of_queue(*spec.address, not volatile)
        number = self.number(line)
        logs = [Log(self.hub.ledger, self.number(line), lane=lane, volatile=volatile, line=line)
                for _ in range(spec.partitions) for lane in range(spec.lanes)]
        queue = Queue(self.hub.ledger, number, spec.raw, KINDS[spec.type], logs, spec.lanes, namespace)
        state = self.adopt(spec, queue, declared, identity)
        state.placement = placement
        self.record_queue(state)
        for listener in self.listeners:
            listener.queue_made(queue)
        return queue

    def rename(self, former: QueueState, spec: QueueSpec, declared: Declared | None, identity: int,
               following: bool = False) -> QueueState:
        """Another name for a queue that was loaded from the disk; it has no consumers."""
        self.forget(former, kept=True)
        queue = Queue(self.hub.ledger, former.queue.number, spec.raw, KINDS[spec.type], former.queue.logs,
                      former.queue.lanes, former.queue.namespace)
        queue.following = following
        queue.delays = former.queue.delays
        state = self.adopt(spec, queue, declared, identity)
        state.placement = former.placement
        state.retry_policies, state.producers = former.retry_policies, former.producers
        for key, group in former.groups.items():
            group.home = queue
            set_part(group, queue)
            if key[1]:
                group.filter = self.filter(queue, key[1])
            state.groups[key] = group
            self.settings.configure_group(state, group)
            if queue.kind != QUEUE_STREAM:
                queue.add_group(group)
        if queue.delays is not None:
            queue.delays.group.home = queue
        return state

    def count_here(self, state: QueueState, here: bool) -> None:
        """The messages of a queue are here from now on, or not any more."""
        state.here = here
        self.durables += state.queue.durable if here else -state.queue.durable
        self.kinds[state.spec.type] += 1 if here else -1
        if here:
            self.away.discard(state)
            self.index_identity(state)
            if state.queue.kind == QUEUE_STREAM:
                self.streams[state] = None
        else:
            self.streams.pop(state, None)
            self.changed.discard(state)
            self.sums.forget(state.queue)

    def derive(self, state: QueueState) -> None:
        """The state of a queue whose messages have come."""
        delays = state.queue.delays
        if delays is not None:
            delays.restart()
            for pairs in self.disk.due_pairs(delays.log.disk):
                delays.restore_pairs(pairs)
            delays.restored()
        state.queue.restored()
        self.sums.measure(state.queue, state.groups.values())
        state.queue.notify()

    def make_relay(self, spec: QueueSpec, declared: Declared | None, identity: int) -> QueueState:
        """A queue of the cluster whose messages another node has, or nobody yet: DefinedQueues.set_owner says who.
        identity: its number in the cluster. Its namespace exists."""
        ledger = self.hub.ledger
        number, logs = self.relay_logs(spec)
        queue = Queue(ledger, number, spec.raw, KINDS[spec.type], logs, spec.lanes,
                      self.namespace_of(spec), elsewhere=True)
        QueueRelay(queue)
        return self.adopt(spec, queue, declared, identity, here=False)

    def part_state(self, address: tuple[bytes, bytes], partition: int) -> QueueState | None:
        """A partition of the queue of this address, which is a queue of its own; None: this node does not know it."""
        whole = self.queues.get(address)
        return None if whole is None else self.queues.get(
            (address[0], part_name(address[1], partition, whole.spec.partitions)))

    def relay_logs(self, spec: QueueSpec) -> tuple[int, list[Log]]:
        """The number and the logs of a relay."""
        self._relays += 1
        return RELAYS_FROM + self._relays, [Log(self.hub.ledger, at, lane=at % spec.lanes, volatile=True)
                                            for at in range(spec.partitions * spec.lanes)]

    def index_identity(self, state: QueueState) -> None:
        """Lets other nodes name the queue by its identity."""
        state.queue.identity = state.id
        if state.id and state.here and not is_moving(state.queue.name):  # a copy is not the queue before settle_copy
            self.hub.owned[state.id] = state.queue

    def adopt(self, spec: QueueSpec, queue: Queue, declared: Declared | None = None, identity: int = 0, *,
              here: bool = True) -> QueueState:
        """Activates a queue that is new, or was loaded from disk or from another node; one that follows stays
        passive. identity, here: as in QueueState."""
        state = QueueState(spec, queue, declared)
        state.id, state.here = identity, here
        if queue.following:
            self.settings.configure(state)
        else:
            self.install(state)
        return state

    def install(self, state: QueueState) -> None:
        """Lets the queue be found by its name."""
        queue, spec = state.queue, state.spec
        self.index_identity(state)
        state.idle_since_ms = now = self.hub.steady_ms
        # Spreads the checks of streams that were made together over several ticks.
        state.retention_due_ms = now + queue.number * 7919 % 5000
        self.queues[queue.address] = state
        self.states[queue] = state
        hidden = is_hidden(queue.name)
        queue.namespace.queues += not is_part(queue.name)
        if state.here:
            self.durables += queue.durable
            self.kinds[spec.type] += 1
            if queue.kind == QUEUE_STREAM:
                self.streams[state] = None
        if spec.dlq.topic and not hidden:
            self.dead_names.add(state)
        self.settings.configure(state)
        self.hub.targets.add_queue(queue, [] if hidden else filters_of(spec))
        queue.notify()
        for listener in self.listeners:
            listener.queue_added(queue)

    def end(self, address: tuple[bytes, bytes], unused: Callable[[], bool] = lambda: True) -> None:
        """Deletes a queue that is not used any more; nobody waits for it. In a cluster the node that has its messages
        decides. While the definitions may lose the queue, it takes no messages and no consumers; if it is certain that
        they have not, it serves on, and is asked again whether it is `unused`."""
        state = self.queues[address]
        if self.definer is None or not state.id:
            self.delete(address)
        elif state.here:
            self.definer.end_queue(address, state.id, partial(self._ending, state, unused))

    def _ending(self, state: QueueState, unused: Callable[[], bool], ending: bool) -> bool:
        """See Definer.end_queue."""
        queue = state.queue
        if self.states.get(queue) is not state or not state.here or state.moving is not None:
            return False
        queue.ending = ending and unused()
        if ending and not queue.ending:
            queue.notify()  # the clock is to look again
        return queue.ending

    def await_end(self, state: QueueState) -> None:
        """Raises Deferred while it is not certain whether the queue is deleted because nobody used it."""
        if state.queue.ending and self.definer is not None:
            raise Deferred(partial(self.definer.await_end, state.id))

    def delete_for(self, address: tuple[bytes, bytes], answer: int) -> int:
        """Deletes a queue because a client asks for it. answer: what it is told in the end. Raises Deferred."""
        state = self.queues[address]
        if is_hidden(address[1]):
            raise QueueRefused("conflict", f"queue {state.spec.shown} is the broker's own",
                               "it ends with what it is for")
        if self.definer is not None and state.id:
            raise Deferred(partial(self.definer.undefine_queue, address, state.id), answer)
        return self.delete(address)

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

    def forget(self, state: QueueState, *, kept: bool = False) -> None:
        """Removes the queue from the tables, and from the view at the next checkpoint. kept: not from the view."""
        self.queues.pop(state.queue.address, None)
        self.hub.owned.pop(state.queue.identity, None)
        self.away.discard(state)
        if self.states.pop(state.queue, None) is not None:
            state.queue.namespace.queues -= not is_part(state.queue.name)
            if state.here:
                self.durables -= state.queue.durable
                self.kinds[state.spec.type] -= 1
                self.streams.pop(state, None)
                self.sums.forget(state.queue)
            self.dead_names.remove(state)
        self.changed.discard(state)
        self.hub.targets.remove_queue(state.queue)
        for listener in self.listeners:
            listener.queue_removed(state.queue)
        if kept or not state.here:
            return
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

    def group(self, queue: Queue, name: bytes, pattern: bytes = b"", position: str = "",
              exclusive: bool | None = None, mode: str = "", retry_policy: RetryPolicy = UNSPECIFIED) -> Group:
        """The group of this name. If it does not exist, it is made with this retry policy; in a classic queue it begins
        at the oldest message. How members share is up to the first one that says it (exclusive, mode), while the group
        has no members; else it stays as it is on the disk: after a restart members come back in any order."""
        state = self.states[queue]
        key = (name, pattern)
        group = state.groups.get(key)
        if queue.relay is not None:
            return group or self._relay_group(state, name, pattern)
        single = state.arguments is not None and state.arguments.single
        mode = "single" if single else mode or ("" if exclusive is None else "exclusive" if exclusive else "shared")
        if group is not None and not group.members and mode not in ("", group.mode):
            group.set_mode(mode)
            self._record_group(state, group, pattern)
        elif group is None:
            group = self.adopt_group(state, self.number(queue.line),
                                     GroupRecord(queue.number, name, mode or "shared", pattern, retry_policy))
            self._record_group(state, group, pattern)
            # Its start is recorded after the group: at recovery the log may reach further, or have messages that are
            # gone now.
            for log in queue.logs:
                if position:
                    by_offset.seek(group, log.number, self.offset_of(state, log, position, group))
                elif queue.kind == QUEUE_STREAM or log.first & OFFSET_MASK:
                    by_offset.seek(group, log.number, log.next if queue.kind == QUEUE_STREAM else log.first)
        return group

    def _relay_group(self, state: QueueState, name: bytes, pattern: bytes) -> Group:
        """A group of a queue that another node owns: the owner has its settings, and where it is in the queue."""
        single = state.arguments is not None and state.arguments.single
        group = Group(self.hub.ledger, 0, name, mode="single" if single else "shared", volatile=True)
        group.relay = state.queue.relay
        set_part(group, state.queue)
        stream = state.queue.kind == QUEUE_STREAM
        group.add_cursors(state.queue.logs, state.queue.lanes, stream)
        state.groups[name, pattern] = group
        if not stream:
            state.queue.add_group(group)
        return group

    def adopt_group(self, state: QueueState, number: int, record_: GroupRecord) -> Group:
        queue, stream = state.queue, state.queue.kind == QUEUE_STREAM
        group = Group(self.hub.ledger, number, record_.name, mode=record_.mode, volatile=not queue.durable,
                      line=queue.line)
        group.home = queue
        set_part(group, queue)
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

    def filter(self, queue: Queue, pattern: bytes) -> Any:
        """The filter of a subscription below `$queue/<name>/`; None: it matches everything."""
        if (part := whole_of(queue.name)) is not None:  # the messages have the address of the whole queue
            queue = Queue(self.hub.ledger, 0, part.whole, QUEUE_CLASSIC, [Log(self.hub.ledger, 0, volatile=True)])
        return TopicFilter(queue, pattern) if pattern not in (b"", b"#") else None

    def backoff_ms(self, queue: Queue, group: Group, deliveries: int) -> int:
        """The backoff of a message in this group after this number of deliveries."""
        return backoff_ms(self.states[queue].effective_retry(group), deliveries)

    def keep_claims(self) -> list[tuple[Group, Reserve]]:
        """At the start of a node, before others know that it has these queues: what was given out is kept for consumers
        of other nodes, which may hold it. Returns what let_go() takes."""
        kept = [(group, reserve_claimed(group)) for state in self.states.values()
                if state.id and state.here and not state.queue.following and state.queue.kind != QUEUE_STREAM
                for group in state.groups.values()]
        return [(group, one) for group, one in kept if one is not None]

    @staticmethod
    def let_go(kept: list[tuple[Group, Reserve]]) -> None:
        """What is kept for consumers and was not named by them is ready, and so are partitions of those who have not
        come."""
        for group, one in kept:
            if one.group is group:
                group.expect_nobody()
                group.leave(one)
                if isinstance(group.home, Queue):
                    group.home.notify()

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
