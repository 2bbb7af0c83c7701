"""Consumers of queues through MQTT sessions: clients that subscribed to `$queue/<name>[/<filter>]`.

A subscription is stored with the session like any other. While the client is connected, it is a member of its group (or
a reader of a stream); when the connection ends it leaves, and its unsettled messages are ready for others.

It is one file because attaching, on whichever node the queue is, and leaving change the same consumers.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.peer.parts import PartMember, Parts
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.pubsub.session import Session
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue.session_member import SessionClaims, SessionMember, SessionReader
from fluxmq._core.wire.queue_address import QUEUE_PREFIX, split_queue_address
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.queues import CommandRefused, QueueRefused
from fluxmq.engine.queues.defined import DefinedQueues
from fluxmq.engine.queues.hands import Hands
from fluxmq.engine.queues.late import settle_late
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.parts import partition_in_whole
from fluxmq.engine.queues.relays import Answer, Attach, Hosts, Relays, away, suback_reason
from fluxmq.engine.queues.retry import PROPERTIES, UNSPECIFIED, RetryPolicy, backoff_problem
from fluxmq.engine.queues.settle_topics import BACKOFF_DEFAULT, Consumer, NotHeld, settle
from fluxmq.engine.queues.state import QueueState
from fluxmq.engine.queues.whole_streams import WholeStreams
from fluxmq.engine.queues.wholes import Wholes
from fluxmq.engine.sessions.state import Consume
from fluxmq.model.mqtt import ReasonCode

__all__ = ["QueueConsumers", "is_order", "is_queue_filter", "split_address"]

SHARE = b"$share/"
GROUP_DEFAULT = b"default"
SHARED = "the group has members that share its partitions"
STOPPED = "the queue is stopped: a file of it is damaged, as the broker's log says. `fluxmq log repair` mends it"
Then = Callable[[int, str], None]


def _without_share(filter_: bytes) -> tuple[bytes, bytes]:
    """(ShareName or b"", the filter behind it)."""
    if not filter_.startswith(SHARE):
        return b"", filter_
    name, _, rest = filter_[len(SHARE):].partition(b"/")
    return name, rest


def is_queue_filter(filter_: bytes) -> bool:
    """Whether a subscription to it consumes a queue: `$queue/…`, `$share/<group>/$queue/…`."""
    return _without_share(filter_)[1].startswith(QUEUE_PREFIX)


def is_order(topic: bytes) -> bool:
    """Whether a publish to this topic is a command about a message, like `$queue/<name>/$ack`."""
    address = split_address(topic)
    return address is not None and address[1].startswith(b"$")


def split_address(filter_: bytes) -> tuple[bytes, bytes] | None:
    """(queue name, filter below it) of `[$share/<group>/]$queue/<name>[/<filter>]`; None for anything else."""
    return split_queue_address(_without_share(filter_)[1])


def _policy_problem(state: QueueState, group: Group | None, policy: RetryPolicy) -> str:
    """Why a SUBSCRIBE cannot give a group this policy; "" if it can. group: None if it is new."""
    return backoff_problem(state.effective_retry(group) if group is not None else state.spec.retry, policy)


class QueueConsumers:
    """Machine. on_log: as Broker's. relays, hosts: the broker's."""

    def __init__(self, manager: QueueManager, on_log: Callable[[str, str, str, dict[str, Any]], None],
                 relays: Relays, hosts: Hosts) -> None:
        self.manager = manager
        self.relays = relays
        self._log = on_log
        hosts.protocols["mqtt"] = self
        self.hands = Hands(manager, relays, hosts.protocols)
        wholes = Wholes(manager, relays, hosts)
        self.defined = DefinedQueues(manager, self.hands, wholes)
        manager.listeners += [wholes, hosts, relays]
        manager.on_owner.append(relays.owner_changed)
        relays.is_known = manager.states.__contains__
        manager.reads.connect(relays, hosts)
        manager.listeners.append(WholeStreams(manager))
        relays.ticks.append(lambda limit_ms: manager.away.tick())
        relays.on_attached.append(self._attached)
        hosts.calls["settle"] = self._settle_not_held
        hosts.calls["settle_late"] = lambda queue, member, *what: settle_late(manager, queue, *what)

    def look_for(self, namespace: Namespace, filter_: bytes) -> None:
        """Raises Deferred if the queue of a subscription is to be made, and the cluster must know of it."""
        address = split_address(filter_)
        if address is not None and address[0] not in (b"#", b"+"):
            self.manager.find(address[0], namespace.name)

    def refusal(self, namespace: Namespace, filter_: bytes, qos: int, consume: Consume) -> tuple[int, str]:
        """Why a subscription is refused: the reason code of MQTT 5, and a sentence for the client; or (0, "").

        Makes a queue that does not exist if the configuration says so.
        """
        address = split_address(filter_)
        assert address is not None
        name, rest = address
        share = _without_share(filter_)[0]
        if name in (b"#", b"+"):
            return ReasonCode.TOPIC_FILTER_INVALID, "a subscription is to one queue: $queue/<name>"
        if rest.startswith(b"$"):
            return ReasonCode.TOPIC_FILTER_INVALID, "there is nothing to receive at this address of a queue"
        if share and consume.group not in (b"", share):
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "$share and consumer-group name different groups"
        queue = self.manager.find_now(name, namespace.name)
        if queue is None:
            if self.manager.auto and namespace.queues_max and namespace.queues >= namespace.queues_max:
                return ReasonCode.QUOTA_EXCEEDED, (f"namespace {namespace.text} has {namespace.queues} queues, all "
                                                   f"that it may (limits.queues)")
            return ReasonCode.TOPIC_FILTER_INVALID, f"there is no queue {name.decode('utf-8', 'replace')}"
        if isinstance(queue.relay, QueueRelay) and not queue.relay.reachable:
            return ReasonCode.UNSPECIFIED_ERROR, away(queue.relay).text
        if isinstance(queue.relay, Parts) and len(queue.relay.missing) == queue.partitions:
            return ReasonCode.UNSPECIFIED_ERROR, "all nodes that have partitions of the queue are away"
        if queue.ending:
            return ReasonCode.UNSPECIFIED_ERROR, "the queue is being deleted, because nobody used it"
        if queue.damage is not None:
            return ReasonCode.UNSPECIFIED_ERROR, STOPPED
        state = self.manager.states[queue]
        if state.owner is not None or (not state.here and state.declared is not None and state.declared.exclusive):
            return ReasonCode.NOT_AUTHORIZED, "the queue is exclusive to an AMQP connection"
        if queue.kind == QUEUE_STREAM:
            if share:
                return ReasonCode.TOPIC_FILTER_INVALID, "a stream is not shared: each subscriber reads all of it"
            for field in consume.retry_policy.specified():
                return (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
                        f"{PROPERTIES[field]} is not for a stream, which gives nothing a second time")
            return 0, ""
        if qos == 0:  # at QoS 0 the client would settle nothing
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "a queue is consumed with QoS 1 or 2"
        group = state.groups.get((share or consume.group or GROUP_DEFAULT, rest))
        if consume.exclusive and group is not None and group.members and group.mode == "shared":
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, SHARED
        if queue.relay is not None:
            return 0, ""  # its owner knows the policy of the group, and is asked
        problem = _policy_problem(state, group, consume.retry_policy)
        return (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, problem) if problem else (0, "")

    @staticmethod
    def with_share(filter_: bytes, consume: Consume) -> Consume:
        """The options, with the group named by `$share/<group>/…`."""
        return msgspec.structs.replace(consume, group=_without_share(filter_)[0] or consume.group)

    def update_retry_policy(self, namespace: Namespace, filter_: bytes, consume: Consume) -> None:
        """Applies the retry policy of a SUBSCRIBE to its group. The owner of another node's queue has done it
        (Attach.fresh).

        Not called when a client resumes its session, because others may have changed the policy since.
        """
        address = split_address(filter_)
        queue = self.manager.find_now(address[0], namespace.name) if address is not None else None
        if address is not None and queue is not None and queue.relay is None and consume.retry_policy != UNSPECIFIED:
            self.manager.update_retry_policy(queue, consume.group or GROUP_DEFAULT, address[1], consume.retry_policy)

    def make_for(self, topic: bytes, namespace: Namespace) -> bool:
        """Makes the queue of a publish if it does not exist and the configuration says so (`auto_create`). Raises
        Deferred."""
        address = split_address(topic)
        made = address is not None and self.manager.auto_create(address[0], namespace.name) is not None
        self.manager.refused_unknown += not made
        return made

    def make_now(self, topic: bytes, namespace: Namespace) -> bool:
        """As make_for, for a message that cannot wait: where the cluster must decide the queue is not made."""
        try:
            return self.make_for(topic, namespace)
        except Deferred:
            self.manager.refused_unknown += 1
            return False

    def is_elsewhere(self, namespace: Namespace, filter_: bytes) -> bool:
        """Whether this is a subscription to a queue that another node has."""
        address = split_address(filter_)
        queue = self.manager.find_now(address[0], namespace.name) if address is not None else None
        return queue is not None and queue.relay is not None

    def attach(self, session: Session, filter_: bytes, options: int, identifier: int, consume: Consume,
               then: Then | None = None) -> None:
        """Called when the client is connected: its subscription becomes a member, or a reader for each partition.

        then: called with the answer of the node that has the queue: the reason code and text of its refusal, or (0,
        ""). If it refuses, nothing is attached; without then() the subscription waits for an owner that is away."""
        address = split_address(filter_)
        assert address is not None
        name, rest = address
        queue = self.manager.find_now(name, session.namespace.name)
        if queue is None:
            self._log("warning", f"queue {name!r}", "a subscription is suspended: its queue is gone",
                      {"client_id": session.name.decode(), "filter": filter_.decode()})
            return
        self.detach_one(session, filter_)
        claims = session.claim_keeper
        if not isinstance(claims, SessionClaims):
            session.claim_keeper = claims = SessionClaims()
        claims.add(queue)
        qos = options & 3
        if session.data.consumers is None:
            session.data.consumers = {}
        if queue.kind == QUEUE_STREAM:
            self._read(session, filter_, queue, qos, identifier, consume, rest, then)
            return
        group = self.manager.group(queue, consume.group or GROUP_DEFAULT, rest, consume.position, consume.exclusive,
                                   retry_policy=consume.retry_policy)
        member = SessionMember(session, queue, qos, prefetch=consume.prefetch, manual=consume.manual,
                               identifier=identifier)
        member.on_refused = self._refused
        member.client = session.name.decode()
        if queue.relay is None:
            member.lease_ms = self._lease_ms(queue, consume.lease_ms)
        group.join(member)
        queue.notify()
        session.data.consumers[filter_] = Consumer(queue, group, [member])
        if queue.relay is not None:
            self._attach(session, filter_, queue, member, consume, rest, then)

    def _read(self, session: Session, filter_: bytes, queue: Queue, qos: int, identifier: int, consume: Consume,
              pattern: bytes, asked: Then | None) -> None:
        """Attaches a subscription to a stream; to one of another node when that has answered."""
        group = self.manager.group(queue, consume.group) if consume.group else None
        consumer = Consumer(queue, group, [])
        name = session.name.decode()

        def make(part: Queue, group: Group | None, offsets: list[int]) -> list[SessionReader]:
            if session.data.consumers is None or session.data.consumers.get(filter_) is not consumer:
                return []  # unsubscribed, or disconnected
            readers = [SessionReader(session, queue, partition_in_whole(part, at), log, qos, offset, group=group,
                                     identifier=identifier, filter=self.manager.filter(queue, pattern),
                                     manual=consume.manual)
                       for at, (log, offset) in enumerate(zip(part.logs, offsets, strict=True))]
            for reader in readers:
                reader.client = name
            consumer.members += readers
            return readers

        def then(answer: Answer) -> None:
            if asked is not None:
                if answer.refused is not None and (session.data.consumers or {}).get(filter_) is consumer:
                    self.detach_one(session, filter_)
                asked(*suback_reason(answer))
            elif answer.refused is not None:
                self._suspended(session, filter_, queue, answer.refused.text)

        session.data.consumers[filter_] = consumer
        consumer.reading = self.manager.reads.open(queue, group, consume.position, name, make, then,
                                                   waits=asked is None)

    def _suspended(self, session: Session, filter_: bytes, queue: Queue, why: str) -> None:
        self._log("warning", f"queue {queue.name!r} refused", f"a subscription is suspended: {why}",
                  {"client_id": session.name.decode(), "filter": filter_.decode()})

    def _lease_ms(self, queue: Queue, asked_ms: int | None) -> int:
        return int(self.manager.states[queue].spec.retry.visibility_timeout * 1000) if asked_ms is None else asked_ms

    # ------------------------------------------------------------------ queues of other nodes, and their consumers

    def _attach(self, session: Session, filter_: bytes, queue: Queue, member: SessionMember, consume: Consume,
                pattern: bytes, then: Then | None) -> None:
        asked = Attach(protocol="mqtt", client=member.client or "", group=consume.group or GROUP_DEFAULT,
                       pattern=pattern, position=consume.position, exclusive=consume.exclusive,
                       lease_ms=consume.lease_ms, retry_policy=consume.retry_policy, fresh=then is not None)

        def answered(answer: Answer) -> None:
            if answer.refused is not None and member.group is not None:
                if then is not None or not answer.refused.passes:
                    self.detach_one(session, filter_)
                if then is None:
                    self._suspended(session, filter_, queue, answer.refused.text)
            elif answer.refused is None:
                self._attached(queue, member, answer.value)
            if then is not None:
                then(*suback_reason(answer))

        self.relays.attach(queue, member, asked, answered)

    def _attached(self, queue: Queue, member: Member, value: Any) -> None:
        """The owner has taken a consumer; value: of attach_member. See Relays.on_attached, too."""
        if (isinstance(member, SessionMember) and isinstance(member.group, Group) and value is not None
                and queue.relay is not None):  # else the queue has come here meanwhile
            mode, policy = value
            member.group.set_mode(mode)
            self._note_policy(queue, member.group, msgspec.convert(policy, RetryPolicy))

    def _note_policy(self, queue: Queue, group: Group, policy: RetryPolicy) -> None:
        """The retry policy of a group of another node's queue, as it was at the last SUBSCRIBE here. It counts if this
        node makes the queue anew, because it is not durable and its owner is gone."""
        state = self.manager.states.get(queue)
        if state is not None and group in state.groups.values():
            state.note_retry_policy(group, policy)

    def attach_member(self, queue: Queue, member: PeerMember | PartMember, asked: Attach) -> tuple[str, RetryPolicy]:
        """See Host. Returns the mode of the group, and its retry policy."""
        if queue.damage is not None and not asked.held:  # what it holds it may settle
            raise QueueRefused("unavailable", STOPPED)
        state = self.manager.states[queue]
        group = state.groups.get((asked.group, asked.pattern))
        if asked.exclusive and group is not None and group.members and group.mode == "shared":
            raise CommandRefused(SHARED)
        problem = _policy_problem(state, group, asked.retry_policy) if asked.fresh else ""
        if problem:
            raise CommandRefused(problem)
        group = self.manager.group(queue, asked.group, asked.pattern, asked.position, asked.exclusive,
                                   retry_policy=asked.retry_policy)
        if asked.fresh:
            self.manager.update_retry_policy(queue, asked.group, asked.pattern, asked.retry_policy)
        member.lease_ms = self._lease_ms(queue, asked.lease_ms)
        if isinstance(member, PeerMember):
            member.backoff = self._backoff_ms
        group.join(member)
        queue.notify()
        return group.mode, state.retry_policies.get(group, UNSPECIFIED)

    def adopt_member(self, queue: Queue, member: Member, asked: Attach) -> None:
        """See Host."""
        member.lease_ms = self._lease_ms(queue, asked.lease_ms)

    def leads(self, queue: Queue, member: Member) -> bool:
        """See Host."""
        return isinstance(member.group, Group) and member.group.mode == "exclusive"

    def leave(self, queue: Queue, member: PeerMember | PartMember) -> None:
        """See Host."""
        self.manager.left(queue, None)

    def rest(self, queue: Queue, member: PeerMember | PartMember) -> None:
        """See Host."""
        if member.group is not None:
            member.group.rest(member)

    def _backoff_ms(self, member: PeerMember, deliveries: int) -> int:
        return self.manager.backoff_ms(member.queue, member.group, deliveries)

    def _settle_not_held(self, queue: Queue, member: PeerMember | None, groups: list[tuple[bytes, bytes]], verb: str,
                         properties: dict[str, str]) -> None:
        """A command of a client of another node about a message that it does not hold."""
        state = self.manager.states[queue]
        found = [Consumer(queue, group, []) for name, pattern in groups
                 if (group := state.groups.get((name, pattern))) is not None]
        settle(self.manager, queue, found, verb, properties)
        queue.notify()

    # ------------------------------------------------------------------ consumers that leave

    def detach_one(self, session: Session, filter_: bytes) -> None:
        consumer = session.data.consumers.pop(filter_, None) if session.data.consumers else None
        if consumer is None:
            return
        for member in consumer.members:
            if isinstance(member, SessionReader):
                self.manager.reads.leave(member)
            else:
                consumer.group.leave(member)
        if consumer.reading is not None:
            self.manager.reads.cancel(consumer.reading)
        if isinstance(session.claim_keeper, SessionClaims):
            session.claim_keeper.remove(consumer.queue)
        consumer.queue.notify()
        self.manager.left(consumer.queue, consumer.group)

    def detach(self, session: Session) -> None:
        """Called when the connection has ended: the client's claimed messages are ready for others again."""
        for filter_ in list(session.data.consumers or ()):
            self.detach_one(session, filter_)

    def settle(self, session: Session, topic: bytes, properties: dict[str, str]) -> tuple[int, str]:
        """Handles a publish to `$queue/<name>/$ack|$nack|$reject|$extend|$commit`. properties: its user properties.
        Returns (0, ""), or the reason code of the refusal and a sentence for the client."""
        address = split_address(topic)
        assert address is not None
        name, verb = address
        state = self.manager.queues.get((session.namespace.name, name))
        if state is None:
            return ReasonCode.TOPIC_NAME_INVALID, "there is no such queue"
        consumers = [consumer for consumer in (session.data.consumers or {}).values() if consumer.queue is state.queue]
        text = verb.decode("utf-8", "replace")
        try:
            try:
                settle(self.manager, state.queue, consumers, text, properties)
            except NotHeld:
                groups = [(consumer.group.name, split_address(filter_)[1])  # type: ignore[index]
                          for filter_, consumer in session.data.consumers.items() if consumer in consumers]
                self.relays.order(state.queue, "settle", (groups, text, properties))
        except CommandRefused as refused:
            return refused.reason, refused.text
        except QueueRefused as refused:
            return ReasonCode.UNSPECIFIED_ERROR, refused.text
        state.queue.notify()
        return 0, ""

    def _refused(self, member: SessionMember, log_number: int, offset: int, deliveries: int, reason: int) -> None:
        """Called when the client has answered a delivery with an error: acts like `$nack`."""
        assert member.group is not None
        wait_ms = (BACKOFF_DEFAULT if member.queue.relay is not None
                   else self.manager.backoff_ms(member.queue, member.group, deliveries))
        by_offset.give_back_at(member.group, log_number, offset, wait_ms, True)
        member.queue.notify()
