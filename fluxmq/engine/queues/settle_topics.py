"""Commands of consumers about messages they hold: `$ack`, `$nack`, `$reject`, `$extend`, `$commit`.

A command names a message of a queue (user property `message-id`, or `partition` and `offset`) and applies to the
client's claim on it. A client may consume a queue several times, in several groups or with several filters: the command
applies to the subscription that holds the message; `group-id` is needed only if that is ambiguous.
"""
from __future__ import annotations

from typing import Any

import msgspec

from fluxmq._core.peer.parts import Parts
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.lanes import LANE_SHIFT
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq.engine.ports.queues import CommandRefused
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.mqtt import ReasonCode

__all__ = ["BACKOFF_DEFAULT", "Consumer", "NotHeld", "settle"]

BACKOFF_DEFAULT = -1  # as a delay: what the owner of the queue says (queue/relay.pxd)
VERBS = ("$ack", "$nack", "$reject", "$extend", "$commit")
DELAY_MS_MAX = 366 * 24 * 3600 * 1000
LEASE_MS_MAX = 7 * 24 * 3600 * 1000
REASON_LENGTH_MAX = 1000


class Consumer(msgspec.Struct):
    """A subscription to a queue while its client is connected. group: None for a stream without `consumer-group`.
    members: one, or for a stream a reader for each partition; none while it is opened at another node. reading: what
    StreamReads.open has returned."""

    queue: Queue
    group: Any
    members: list[Any]
    reading: Any = None


class NotHeld(Exception):
    """The client does not hold the message here, and another node has the queue: that one decides."""


def settle(manager: QueueManager, queue: Queue, consumers: list[Consumer], verb: str,
           properties: dict[str, str]) -> None:
    """Executes a command, or raises CommandRefused; NotHeld for a queue of another node. consumers: the client's
    consumers of this queue. properties: the user properties of the PUBLISH.

    Everything is recorded when this returns, so that the acknowledgement waits for it.
    """
    if verb not in VERBS:
        raise CommandRefused(f"there is no {verb}; there are {', '.join(VERBS)}", ReasonCode.TOPIC_NAME_INVALID)
    if (verb == "$commit") != (queue.kind == QUEUE_STREAM):
        raise CommandRefused(f"{verb} is not for a stream, which has $commit" if verb != "$commit" else
                             "$commit is for streams: here each message is settled by $ack, $nack or $reject",
                             ReasonCode.TOPIC_NAME_INVALID)
    if properties.get("group-id"):
        name = properties["group-id"].encode()
        consumers = [one for one in consumers if one.group is not None and one.group.name == name]
    if not consumers:
        group = f" in the group {properties['group-id']}" if properties.get("group-id") else ""
        raise CommandRefused(f"this client does not consume the queue{group}")
    log, offset = _message(queue, properties)
    if isinstance(queue.relay, QueueRelay) and not queue.relay.reachable:
        raise CommandRefused(f"the queue is at node {queue.relay.owner}, which is away", ReasonCode.UNSPECIFIED_ERROR)
    if verb == "$commit":
        _commit(manager, queue, consumers, log, offset)
        return
    act = _action(manager, queue, verb, properties)
    done: list[tuple[Any, list[int]]] = []  # members, and offsets of what they held
    if _boolean(properties, "upto"):
        for one in consumers:
            for member in one.members:
                done.append((member, by_offset.held_upto(one.group, log.number, offset, member)))
                for at in done[-1][1]:
                    claim = by_offset.claim_of(one.group, log.number, at)
                    assert claim is not None
                    act(one.group, log.number, at, claim[0])
    else:
        done += _one(queue, consumers, log, offset, verb, act)
    for one in consumers:
        one.group.flush_records()
    if isinstance(queue.relay, QueueRelay | Parts):
        for member, offsets in done:
            queue.relay.await_owner(member, queue.logs.index(log), offsets)


def _one(queue: Queue, consumers: list[Consumer], log: Log, offset: int, verb: str,
         act: Any) -> list[tuple[Any, list[int]]]:
    """Executes a command about a single message. Returns who held it, and its offset; [] if none of them did."""
    free = None
    elsewhere = False
    for one in consumers:
        claim = by_offset.claim_of(one.group, log.number, offset)
        if claim is None:
            continue
        deliveries, holder = claim
        if holder in one.members:
            act(one.group, log.number, offset, deliveries)
            return [(holder, [offset])]
        elsewhere = elsewhere or holder is not None
        if holder is None and verb != "$extend":
            free = free or (one.group, deliveries)
    if queue.relay is not None:
        raise NotHeld
    if free is not None:  # the claim had expired, but no other consumer has claimed the message since
        act(free[0], log.number, offset, free[1])
    elif elsewhere:
        raise CommandRefused("another consumer has this message by now: its visibility timeout had passed")
    elif not all(by_offset.is_settled(one.group, log.number, offset) for one in consumers):
        raise CommandRefused("this client does not have this message to settle")
    elif verb != "$ack":
        raise CommandRefused("this message is settled already")
    return []


def _action(manager: QueueManager, queue: Queue, verb: str, properties: dict[str, str]) -> Any:
    """Returns the function for a command: (group, log number, offset, deliveries) -> result."""
    if verb == "$ack":
        return lambda group, log, offset, deliveries: by_offset.settle_at(group, log, offset)
    if verb == "$nack":
        delay = _number(properties, "delay", DELAY_MS_MAX) if "delay" in properties else None
        if delay is None and queue.relay is not None:
            delay = BACKOFF_DEFAULT
        return lambda group, log, offset, deliveries: by_offset.give_back_at(
            group, log, offset, manager.backoff_ms(queue, group, deliveries) if delay is None else delay, True)
    if verb == "$reject":
        reason = properties.get("reason", "")[:REASON_LENGTH_MAX] or "rejected"
        return lambda group, log, offset, deliveries: by_offset.reject_at(group, log, offset, reason)
    lease = _number(properties, "lease", LEASE_MS_MAX)
    return lambda group, log, offset, deliveries: by_offset.extend(group, log, offset, lease)


def _commit(manager: QueueManager, queue: Queue, consumers: list[Consumer], log: Log, offset: int) -> None:
    if isinstance(queue.relay, Parts):
        partition = queue.logs.index(log) // queue.lanes
        part = queue.relay.queues[partition]
        if part is None or not queue.relay.is_reached(partition):
            node = queue.relay.missing[partition] or "?"
            raise CommandRefused(f"partition {partition} of the queue is at node {node}, which is away",
                                 ReasonCode.UNSPECIFIED_ERROR)
        log = part.logs[0]
    readers = [reader for one in consumers if one.group is not None for reader in one.members if reader.log is log]
    if not readers:
        raise CommandRefused("$commit needs a subscription with consumer-group: there is no position to remember")
    if offset >= log.next:
        raise CommandRefused(f"there is no message {offset}; the next one will be {log.next}")
    manager.reads.commit(readers[0], offset + 1)


def _message(queue: Queue, properties: dict[str, str]) -> tuple[Log, int]:
    """Log and offset from `message-id` as it was delivered, or from `partition` and `offset`."""
    if "message-id" in properties:
        partition, colon, offset = properties["message-id"].partition(":")
        if not colon:
            partition = "?"
    else:
        partition, offset = properties.get("partition", "0"), properties.get("offset", "")
    if not (_is_number(partition) and _is_number(offset)):
        raise CommandRefused("the user property message-id, as it was delivered, must say which message; or partition "
                             "and offset, which are decimal numbers")
    log = queue.log_at(int(partition), int(offset) >> LANE_SHIFT)
    if log is None:
        raise CommandRefused(f"there is no such message: the queue has {queue.partitions} partitions, from 0 on")
    return log, int(offset)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _number(properties: dict[str, str], name: str, maximum: int) -> int:
    text = properties.get(name, "")
    if not _is_number(text) or int(text) > maximum:
        given = f", not {text!r}" if text else ""
        raise CommandRefused(f"{name} is a number of milliseconds up to {maximum}{given}")
    return int(text)


def _boolean(properties: dict[str, str], name: str) -> bool:
    text = properties.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise CommandRefused(f"{name} is true or false, not {text!r}")
    return text in ("true", "1")
