"""Consumers of queues through MQTT sessions: clients that subscribed to `$queue/<name>[/<filter>]`.

A subscription is stored with the session like any other. While the client is connected, it is a member of its group (or
a reader of a stream); when the connection ends it leaves, and its unsettled messages are ready for others.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.queue import QUEUE_STREAM
from fluxmq._core.queue.session_member import SessionClaims, SessionMember, SessionReader
from fluxmq._core.wire.queue_address import QUEUE_PREFIX, split_queue_address
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.retry import PROPERTIES, UNSPECIFIED, backoff_problem
from fluxmq.engine.queues.settle_topics import CommandRefused, Consumer, settle
from fluxmq.engine.sessions.state import Consume
from fluxmq.model.mqtt import ReasonCode

__all__ = ["QueueConsumers", "is_order", "is_queue_filter", "split_address"]

SHARE = b"$share/"
GROUP_DEFAULT = b"default"


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


class QueueConsumers:
    """Machine. on_log: as Broker's."""

    def __init__(self, manager: QueueManager, on_log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self.manager = manager
        self._log = on_log

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
        queue = self.manager.find(name, namespace.name)
        if queue is None:
            if self.manager.auto and namespace.queues_max and namespace.queues >= namespace.queues_max:
                return ReasonCode.QUOTA_EXCEEDED, (f"namespace {namespace.text} has {namespace.queues} queues, all "
                                                   f"that it may (limits.queues)")
            return ReasonCode.TOPIC_FILTER_INVALID, f"there is no queue {name.decode('utf-8', 'replace')}"
        if queue.damage is not None:
            return ReasonCode.UNSPECIFIED_ERROR, ("the queue is stopped: a file of it is damaged, as the broker's log "
                                                  "says. `fluxmq log repair` mends it")
        if self.manager.states[queue].owner is not None:
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
        state = self.manager.states[queue]
        group = state.groups.get((share or consume.group or GROUP_DEFAULT, rest))
        if consume.exclusive and group is not None and group.members and group.mode == "shared":
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the group has members that share its partitions"
        problem = backoff_problem(state.effective_retry(group) if group is not None else state.spec.retry,
                                  consume.retry_policy)
        return (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, problem) if problem else (0, "")

    @staticmethod
    def with_share(filter_: bytes, consume: Consume) -> Consume:
        """The options, with the group named by `$share/<group>/…`."""
        return msgspec.structs.replace(consume, group=_without_share(filter_)[0] or consume.group)

    def update_retry_policy(self, namespace: Namespace, filter_: bytes, consume: Consume) -> None:
        """Applies the retry policy of a SUBSCRIBE to its group.

        Not called when a client resumes its session, because others may have changed the policy since.
        """
        address = split_address(filter_)
        queue = self.manager.find(address[0], namespace.name) if address is not None else None
        if address is not None and queue is not None and consume.retry_policy != UNSPECIFIED:
            self.manager.update_retry_policy(queue, consume.group or GROUP_DEFAULT, address[1], consume.retry_policy)

    def make_for(self, topic: bytes, namespace: Namespace) -> bool:
        """Makes the queue of a publish if it does not exist and the configuration says so (`auto_create`)."""
        address = split_address(topic)
        made = address is not None and self.manager.auto_create(address[0], namespace.name) is not None
        self.manager.refused_unknown += not made
        return made

    def attach(self, session: Session, filter_: bytes, options: int, identifier: int, consume: Consume) -> None:
        """Called when the client is connected: its subscription becomes a member, or a reader for each partition."""
        address = split_address(filter_)
        assert address is not None
        name, rest = address
        queue = self.manager.find(name, session.namespace.name)
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
        members: list[Any]
        if queue.kind == QUEUE_STREAM:
            group = self.manager.group(queue, consume.group) if consume.group else None
            members = [SessionReader(session, queue, log, qos, identifier=identifier, group=group,
                                     position=self.manager.position(queue, log, consume.position, group),
                                     filter=self.manager.filter(queue, rest), manual=consume.manual)
                       for log in queue.logs]
            for reader in members:
                reader.client = session.name.decode()
                if group is not None and consume.position:
                    reader.commit(reader.next)  # a later reader resumes from this one's start
                queue.add_reader(reader)
        else:
            group = self.manager.group(queue, consume.group or GROUP_DEFAULT, rest, consume.position, consume.exclusive,
                                       retry_policy=consume.retry_policy)
            member = SessionMember(session, queue, qos, prefetch=consume.prefetch, manual=consume.manual,
                                   identifier=identifier)
            lease_s = self.manager.states[queue].spec.retry.visibility_timeout
            member.lease_ms = int(lease_s * 1000) if consume.lease_ms is None else consume.lease_ms
            member.on_refused = self._refused
            member.client = session.name.decode()
            group.join(member)
            members = [member]
            queue.notify()
        if session.data.consumers is None:
            session.data.consumers = {}
        session.data.consumers[filter_] = Consumer(queue, group, members)

    def detach_one(self, session: Session, filter_: bytes) -> None:
        consumer = session.data.consumers.pop(filter_, None) if session.data.consumers else None
        if consumer is None:
            return
        for member in consumer.members:
            if isinstance(member, SessionReader):
                member.auto_commit()
                member.leave()
                consumer.queue.remove_reader(member)
            else:
                consumer.group.leave(member)
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
        try:
            settle(self.manager, state.queue, consumers, verb.decode("utf-8", "replace"), properties)
        except CommandRefused as refused:
            return refused.reason, refused.text
        state.queue.notify()
        return 0, ""

    def _refused(self, member: SessionMember, log_number: int, offset: int, deliveries: int, reason: int) -> None:
        """Called when the client has answered a delivery with an error: acts like `$nack`."""
        assert member.group is not None
        wait_ms = self.manager.backoff_ms(member.queue, member.group, deliveries)
        by_offset.give_back_at(member.group, log_number, offset, wait_ms, True)
        member.queue.notify()
