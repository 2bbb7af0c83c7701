"""Consumers of queues whose carrier is a session: MQTT clients that subscribed to `$queue/<name>[/<filter>]`.

A subscription is remembered with the session like any other. While the client is connected it is a member of its group
(or a reader of a stream); when the connection ends it leaves, and what it had is anybody's again.

    subscribe ──► kept with the session ──► attached: member joins ◄──► detached: member leaves
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fluxmq._core.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue_session import SessionClaims, SessionMember, SessionReader
from fluxmq._core.session import Session
from fluxmq.engine.queues import QueueManager
from fluxmq.engine.sessions import Consume
from fluxmq.model.mqtt import ReasonCode

__all__ = ["QueueConsumers", "split_address"]

PREFIX = b"$queue/"
GROUP_DEFAULT = b"default"


def split_address(filter_: bytes) -> tuple[bytes, bytes] | None:
    """(queue name, filter below it) of `$queue/<name>[/<filter>]`; None for anything else."""
    if not filter_.startswith(PREFIX):
        return None
    name, _, rest = filter_[len(PREFIX):].partition(b"/")
    return name, rest


class _Consumer(msgspec.Struct):
    queue: Queue
    group: Any
    members: list[Any]


class QueueConsumers:
    """Machine. on_log: as Broker's."""

    def __init__(self, manager: QueueManager, on_log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self.manager = manager
        self._log = on_log

    def check(self, filter_: bytes, qos: int, consume: Consume) -> int:
        """Whether such a subscription can be: the reason code to refuse it with, or the QoS to grant.

        A queue that is not there is made where the configuration says so, else refused (0x8F).
        """
        address = split_address(filter_)
        assert address is not None
        name, rest = address
        if rest.startswith(b"$"):
            return ReasonCode.TOPIC_FILTER_INVALID
        queue = self.manager.find(name)
        if queue is None:
            return ReasonCode.TOPIC_FILTER_INVALID
        if queue.kind != QUEUE_STREAM and qos == 0:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # nobody would say what has been settled
        group = self.manager.states[queue].groups.get((consume.group or GROUP_DEFAULT, rest))
        if consume.exclusive and group is not None and group.members and group.mode == "shared":
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # the others would go on taking anything
        return qos

    def make_for(self, topic: bytes) -> bool:
        """A publish to a queue that is not there: makes it where the configuration says so (`auto_create`)."""
        address = split_address(topic)
        return address is not None and self.manager.auto_create(address[0]) is not None

    def attach(self, session: Session, filter_: bytes, options: int, identifier: int, consume: Consume) -> None:
        """The client is connected: its subscription becomes a member, or a reader for each partition."""
        address = split_address(filter_)
        assert address is not None
        name, rest = address
        queue = self.manager.find(name)
        if queue is None:
            self._log("warning", f"queue {name!r}", "a subscription rests: its queue is gone",
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
            group = self.manager.stream_group(queue, consume.group) if consume.group else None
            members = [SessionReader(session, queue, log, qos, identifier=identifier, group=group,
                                     position=self.manager.position(queue, log, consume.position, group),
                                     filter=self.manager.filter(queue, rest), manual=consume.manual)
                       for log in queue.logs]
            for reader in members:
                if group is not None and consume.position:
                    reader.commit(reader.next)  # whoever resumes goes on from where this one began
                queue.add_reader(reader)
        else:
            group = self.manager.group(queue, consume.group or GROUP_DEFAULT, rest, consume.position, consume.exclusive)
            member = SessionMember(session, queue, qos, prefetch=consume.prefetch, manual=consume.manual,
                                   identifier=identifier)
            member.lease_ms = self.manager.lease_ms(queue) if consume.lease_ms is None else consume.lease_ms
            member.on_refused = self._refused
            group.join(member)
            members = [member]
            queue.notify()
        if session.data.consumers is None:
            session.data.consumers = {}
        session.data.consumers[filter_] = _Consumer(queue, group, members)

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
        """The connection has ended: what the client had is anybody's again."""
        for filter_ in list(session.data.consumers or ()):
            self.detach_one(session, filter_)

    # ------------------------------------------------------------------ $ack, $nack, $reject, $commit

    def order(self, session: Session, topic: bytes, asked: dict[str, str]) -> int:
        """A publish to `$queue/<name>/$ack|$nack|$reject|$extend|$commit`. asked: its user properties. Returns 0 or the
        reason code of the refusal."""
        address = split_address(topic)
        assert address is not None
        name, verb = address
        queue = self.manager.find(name)
        if queue is None:
            return ReasonCode.TOPIC_NAME_INVALID
        consumer = self._consumer(session, queue, asked.get("group-id", ""))
        try:
            partition, offset = _message_id(asked)
        except ValueError:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        if consumer is None or partition >= queue.partitions:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        log = queue.logs[partition * queue.lanes + (offset >> 56)] if offset >> 56 < queue.lanes else None
        if log is None:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        if verb == b"$commit":
            return self._commit(consumer, log, offset)
        return self._settle(session, consumer, log, offset, verb, asked)

    def _consumer(self, session: Session, queue: Queue, group: str) -> _Consumer | None:
        found = [consumer for consumer in (session.data.consumers or {}).values() if consumer.queue is queue and (
            not group or (consumer.group is not None and consumer.group.name == group.encode()))]
        return found[0] if found else None

    def _settle(self, session: Session, consumer: _Consumer, log: Any, offset: int, verb: bytes,
                asked: dict[str, str]) -> int:
        group = consumer.group
        if group is None:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        if verb == b"$ack" and asked.get("upto"):
            group.settle_upto(log.number, offset)
            group.flush_records()
            consumer.queue.notify()
            return 0
        claim = group.claim_of(log.number, offset)
        if claim is None:
            # Settled already is what `$ack` wants; the others come too late.
            return 0 if verb == b"$ack" and group.is_settled(log.number, offset) else (
                ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        deliveries, holder = claim
        if holder is not None and holder not in consumer.members:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # its lease ended, and somebody else has it now
        if verb == b"$ack":
            group.settle_at(log.number, offset)
        elif verb == b"$nack":
            group.give_back_at(log.number, offset, self._delay(consumer.queue, deliveries, asked), True)
        elif verb == b"$reject":
            group.reject_at(log.number, offset, asked.get("reason", "rejected"))
        elif verb == b"$extend" and asked.get("lease", "").isdigit():
            group.extend(log.number, offset, int(asked["lease"]))
        else:
            return ReasonCode.TOPIC_NAME_INVALID
        group.flush_records()  # so that the answer waits for it
        consumer.queue.notify()
        return 0

    def _commit(self, consumer: _Consumer, log: Any, offset: int) -> int:
        for reader in consumer.members:
            if isinstance(reader, SessionReader) and reader.log is log and consumer.group is not None:
                reader.commit(offset + 1)
                consumer.queue.notify()
                return 0
        return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR

    def _delay(self, queue: Queue, deliveries: int, asked: dict[str, str]) -> int:
        if asked.get("delay", "").isdigit():
            return int(asked["delay"])
        return self.manager.backoff_ms(queue, deliveries)

    def _refused(self, member: SessionMember, log_number: int, offset: int, deliveries: int, reason: int) -> None:
        """The client answered a delivery with an error: as `$nack`."""
        assert member.group is not None
        member.group.give_back_at(log_number, offset, self.manager.backoff_ms(member.queue, deliveries), True)
        member.queue.notify()


def _message_id(asked: dict[str, str]) -> tuple[int, int]:
    """`message-id` as it was delivered, or `partition` and `offset`. Raises ValueError."""
    if "message-id" in asked:
        partition, _, offset = asked["message-id"].partition(":")
        return int(partition), int(offset)
    return int(asked.get("partition", "0")), int(asked.get("offset", ""))
