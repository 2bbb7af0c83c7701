"""Queues as the admin ring asks for them: `engine.ports.queues.QueuesPort` over a QueueManager.

It is one file because the port is one; most of its methods are a few lines.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fluxmq._core.errors import StorageError
from fluxmq._core.memory.namespace import ROOT
from fluxmq._core.peer.parts import Parts
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.amqp_head import purge_ready
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.lanes import LANE_SHIFT
from fluxmq._core.queue.log import Record
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.wire.queue_address import QUEUE_PREFIX
from fluxmq.engine.ports.queues import (
    Browsed,
    Moved,
    Page,
    Publish,
    QueueDivided,
    QueueElsewhere,
    QueueMessage,
    QueueName,
    QueueRefused,
    QueuesPort,
)
from fluxmq.engine.queues.amqp.admin import declared_of, named
from fluxmq.engine.queues.dead_letters import dead_letter_state
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.manager import NOTHING, QueueManager, QueueState
from fluxmq.engine.queues.pages import logs_of, page_of
from fluxmq.engine.queues.parts import is_part, part_identity, part_name, whole_of
from fluxmq.engine.queues.properties import encode_users
from fluxmq.engine.queues.records import is_moving
from fluxmq.engine.queues.replay import Replay, comes_from, is_kept
from fluxmq.engine.queues.retry import UNSPECIFIED
from fluxmq.engine.queues.statistics import counts_of, numbers_of, partitions_of
from fluxmq.model.mqtt import ReasonCode
from fluxmq.model.queues import Retry, read_spec, write_spec
from fluxmq.model.units import format_duration

__all__ = ["QueueAdmin"]

FORMAT_MQTT = 0  # of properties (memory/message.pxd)
LOOK_STEP = 5000  # messages examined in one call of browse
CONTENT_TYPE = 0x03
DEAD_NUMBERS = ("messages", "bytes", "oldest_ms", "newest_ms")
REFUSALS: dict[int, tuple[Literal["full", "invalid"], str]] = {
    ReasonCode.QUOTA_EXCEEDED: ("full", "the queue is full"),
    ReasonCode.PACKET_TOO_LARGE: ("invalid", "the message is larger than limits.max_message_size of the queue"),
}


class QueueAdmin:
    """Machine. See the port."""

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        self.hub = manager.hub
        self._replay = Replay(manager)

    def _state(self, name: str) -> QueueState:
        state = named(self.manager, name)
        if state is None:
            self._check_joined()
            raise QueueRefused("not_found", f"there is no queue {name}", "fluxmq queue list names those that are")
        return state

    def _check_joined(self) -> None:
        """Raises QueueRefused where the queues of the cluster are not known yet: nothing that is promised would hold,
        and nobody knows what there is."""
        if self.manager.definer is not None:
            self.manager.definer.check()

    def _to_change(self, name: str) -> QueueState:
        """As _here(), of a queue that is to be changed."""
        self._check_joined()
        return self._here(name)

    def _here(self, name: str) -> QueueState:
        """A queue of which this node has the messages. Raises QueueElsewhere for another one."""
        return self._served(self._state(name))

    @staticmethod
    def _served(state: QueueState) -> QueueState:
        relay = state.queue.relay
        if isinstance(relay, Parts):
            raise _divided(state, relay)
        if isinstance(relay, QueueRelay):
            if relay.replication_group and not relay.reachable:
                raise QueueRefused("unavailable", f"replication group {relay.replication_group} has the data of queue "
                                                  f"{state.spec.shown}, and no node serves it")
            if relay.reachable:
                raise QueueElsewhere(relay.owner, f"queue {state.spec.shown} is at node {relay.owner}, and only that "
                                                  f"one can do this", f"ask node {relay.owner}")
            raise QueueElsewhere(relay.owner, f"queue {state.spec.shown} is at node {relay.owner}, which is away",
                                 f"start node {relay.owner}, and try again when it serves", away=True)
        return state

    # ------------------------------------------------------------------ queues

    def list_queues(self, *, partitions: bool = False) -> list[dict[str, Any]]:
        """The queues of "/" first, then those of each other namespace."""
        states = [self.manager.queues[address]
                  for address in sorted(self.manager.queues, key=lambda address: (address[0] != ROOT, address))]
        return [self._short(state) | ({"partition_list": self._partitions(state)} if partitions else {})
                for state in states]

    def _partitions(self, state: QueueState) -> list[dict[str, Any]]:
        if state.here:
            return [self._owned(state) | numbers for numbers in partitions_of(state)]
        unknown = {"messages": None, "bytes": None, "lag": None}
        if not isinstance(state.queue.relay, Parts):
            return [self._owned(state) | {"partition": at} | unknown for at in range(state.queue.partitions)]
        found = []
        for at in range(state.queue.partitions):
            part = self.manager.part_state(state.queue.address, at)
            owned = {"node": "", "state": "away", "epoch": 0} if part is None else self._owned(part)
            found.append(owned | {"partition": at} | unknown)
        return found

    def _owned(self, state: QueueState) -> dict[str, Any]:
        """Who has it, and since which claim."""
        definer = self.manager.definer
        return {**self._place(state), "epoch": 0 if definer is None else definer.epoch_of(state.queue.address)}

    def _short(self, state: QueueState) -> dict[str, Any]:
        dead = dead_letter_state(self.manager, state.spec)
        waiting = (dead.queue.waiting if dead.here else None) if dead is not None else (
            0 if state.here or isinstance(state.queue.relay, Parts) else None)
        return {"name": state.spec.shown, "namespace": state.spec.namespace, "type": state.spec.type,
                "partitions": state.queue.partitions,
                # What another node has only that one knows.
                **(numbers_of(state) if state.here else dict.fromkeys(numbers_of(state))),
                **self._place(state), **_place_in_whole(state), **_whose(state), "damage": state.queue.damage or "",
                "dead_letters": waiting}

    def _place(self, state: QueueState) -> dict[str, Any]:
        """Who has the messages of a queue, and whether it serves it."""
        relay = state.queue.relay
        if isinstance(relay, Parts):
            me = self.manager.directory.node
            return {"node": ", ".join(sorted({owner or me for owner in relay.owners})),
                    "state": "partly away" if relay.missing else "divided"}
        if isinstance(relay, QueueRelay):
            place = {"node": relay.owner, "state": "elsewhere" if relay.reachable else "away"}
            return place | ({"replication_group": relay.replication_group} if relay.replication_group else {})
        return {"node": self.manager.directory.node,
                "state": "running" if state.queue.damage is None else "damaged"}

    def when_durable(self, then: Callable[[Exception | None], None]) -> None:
        journal = self.hub.ledger.journal
        if journal is None:
            then(None)
            return
        try:
            self.hub.when_all_durable(lambda: then(None), lambda why: then(StorageError(why)))
            self.hub.wake_up()
        except StorageError as error:
            then(error)

    def describe(self, name: str) -> dict[str, Any]:
        state = self._state(name)
        queue = state.queue
        parts: list[dict[str, Any]] = []
        for partition in range(queue.partitions):
            logs = queue.logs_of(partition)
            parts.append({"partition": partition, "first": logs[0].first, "next": logs[0].next,
                          "messages": sum(log.next - log.first for log in logs),
                          "bytes": sum(log.kept_bytes for log in logs)})
        if isinstance(queue.relay, Parts):
            parts = [{**dict.fromkeys(parts[0]), "partition": at, **self._place_of_part(state, at)}
                     for at in range(queue.partitions)]
        elif not state.here:  # its node is away: nobody knows
            parts = [{**dict.fromkeys(parts[0]), "partition": at} for at in range(queue.partitions)]
        return self._short(state) | declared_of(state) | {
            "spec": write_spec(state.spec) | {"name": state.spec.shown}, "partition_list": parts,
            "group_list": self.groups(name) if state.here else [],
            "dead_letter_queue": state.spec.dead_letter_queue, "counts": counts_of(state) if state.here else None}

    def _place_of_part(self, state: QueueState, partition: int) -> dict[str, Any]:
        part = self.manager.part_state(state.queue.address, partition)
        return self._place(part) if part is not None else {"node": "", "state": "away"}

    def divided(self, name: str) -> QueueDivided | None:
        state = self._state(name)
        return _divided(state, state.queue.relay) if isinstance(state.queue.relay, Parts) else None

    def partition_for(self, name: str, message: Publish) -> int:
        state = self._state(name)
        assert isinstance(state.queue.relay, Parts)
        queue = state.queue.relay.part_of(b"", encode_users(message.user_properties), FORMAT_MQTT)
        part = whole_of(queue.name) if queue is not None else None
        if part is None:
            raise QueueRefused("unavailable", "no node has the partition of this message at present")
        return part.partition

    def declare(self, spec: dict[str, Any]) -> Literal["created", "unchanged", "changed"]:
        try:
            wanted = read_spec(spec)
        except ValueError as error:
            raise QueueRefused("invalid", str(error)) from None
        return self.manager.declare(wanted)[1]  # type: ignore[return-value]

    def delete(self, name: str, *, if_unused: bool, if_empty: bool) -> int:
        state = self._here(name) if if_unused or if_empty else self._state(name)
        numbers = numbers_of(state)
        if if_unused and numbers["consumers"]:
            raise QueueRefused("conflict", f"queue {name} has {numbers['consumers']} consumers")
        waiting = state.queue.waiting + numbers["delayed"]
        if if_empty and waiting:
            raise QueueRefused("conflict", f"queue {name} has {waiting} messages")
        if state.configured:
            raise QueueRefused("conflict", f"queue {name} is in the configuration, and would be made again",
                               "take it out of `queues:` and restart, or purge it")
        return self.manager.delete_for(state.queue.address, state.queue.depth)

    async def move(self, name: str, node: str, partition: int | None) -> bool:
        state = self._state(name)
        if self.manager.mover is None:
            raise QueueRefused("conflict", "this broker is not in a cluster")
        if not isinstance(state.queue.relay, Parts):
            if partition is not None:
                raise QueueRefused("conflict", f"all partitions of queue {name} are at one node, and move together")
            return await self.manager.mover(state.queue.address, node)
        if partition is not None and not 0 <= partition < state.queue.partitions:
            raise QueueRefused("not_found", f"queue {name} has {state.queue.partitions} partitions, from 0 on")
        there = True
        for at in range(state.queue.partitions) if partition is None else (partition,):
            there &= await self.manager.mover(
                (state.queue.address[0], part_name(state.queue.address[1], at, state.queue.partitions)), node)
        return there

    def purge(self, name: str, *, unsettled: bool = False) -> int:
        state = self._to_change(name)
        queue = state.queue
        if queue.kind == QUEUE_STREAM:
            return self.manager.purge(state)
        waiting, delayed = queue.waiting, 0 if queue.delays is None else len(queue.delays)
        if unsettled or not self.unsettled(name):
            self.manager.purge(state)
            return waiting + delayed
        queue.pump_now()
        for group in state.groups.values():
            self.hub.spend(purge_ready(group))
        if queue.delays is not None:
            self.manager.trim(state, queue.delays.log, queue.delays.log.next)
            queue.delays.forget()
        queue.notify()
        return waiting - queue.waiting + delayed

    def unsettled(self, name: str) -> int:
        return numbers_of(self._here(name))["unsettled"]

    def publish(self, name: str, message: Publish) -> dict[str, Any]:
        state = self._to_change(name)
        queue = state.queue
        part = whole_of(queue.name)
        address = queue.name if part is None else part.whole
        topic = QUEUE_PREFIX + address + (b"/" + message.key.encode() if message.key else b"")
        properties = encode_users(message.user_properties)
        if message.content_type:
            raw = message.content_type.encode()
            properties = bytes((CONTENT_TYPE,)) + len(raw).to_bytes(2, "big") + raw + properties
        before = [log.next for log in queue.logs]
        delayed = queue.delays.log.next if queue.delays is not None else 0
        expires_at = self.hub.steady_ms + message.expiry_s * 1000 if message.expiry_s is not None else 0
        reason = queue.publish(topic, message.payload, properties, 1, expires_at)
        if reason == ReasonCode.QUOTA_EXCEEDED and self.hub.ledger.full:
            raise QueueRefused("full", self.hub.ledger.full_why or "the disk is full",
                               "make room; what is in the queues can be consumed")
        if queue.damage is not None:
            raise QueueRefused("unavailable", f"queue {name} is stopped: {queue.damage}")
        if reason:
            kind, text = REFUSALS.get(reason, ("invalid", "a user property of it makes no sense to the queue"))
            raise QueueRefused(kind, text)
        for at, log in enumerate(queue.logs):
            if log.next != before[at]:
                return {"partition": queue.partition_at(at), "offset": log.next - 1}
        if queue.delays is not None and queue.delays.log.next > delayed:
            return {"due_ms": self.hub.wall_of(queue.delays.newest_due)}
        return {"duplicate": True}

    # ------------------------------------------------------------------ looking in

    def browse(self, name: str, position: str, count: int, bytes_max: int, partition: int | None) -> Browsed:
        return self._browse(self._here(name), position, count, bytes_max, partition, "")

    def _browse(self, state: QueueState, position: str, count: int, bytes_max: int, partition: int | None,
                origin: str) -> Browsed:
        """next: `at:<offset>,<offset>,…`, one per log. origin: only dead letters of this queue."""
        logs = state.queue.logs
        if partition is not None:
            if not 0 <= partition < state.queue.partitions:
                raise QueueRefused("not_found", f"queue {state.spec.name} has {state.queue.partitions} "
                                                f"partitions, from 0 on")
            logs = state.queue.logs_of(partition)
        if position.startswith("at:"):
            at = [int(text) for text in position[3:].split(",") if text.isdigit()]
            if len(at) != len(logs):
                raise QueueRefused("invalid", "this position is of another browse")
        else:
            at = [self.manager.offset_of(state, log, position, None) for log in logs]
        found: list[QueueMessage] = []
        size = looked = 0
        loading = False
        for number, log in enumerate(logs):
            where = partition if partition is not None else state.queue.partition_at(number)
            while at[number] < log.next and len(found) < count and (not found or size < bytes_max):
                if looked == LOOK_STEP:
                    return Browsed(found, "at:" + ",".join(map(str, at)), not found)
                record = log.at_or_above(at[number])
                if record is None:
                    loading = log.wanted != NOTHING
                    if not loading:
                        at[number] = log.next
                    break
                at[number] = record.offset + 1
                looked += 1
                if is_kept(state, log, record.offset) and (not origin or comes_from(record, origin)):
                    found.append(message_of(record, where, self.hub.wall_of(record.expires_at)))
                    size += len(record.payload)
        if loading:
            self.manager.read_on(state.queue)
        return Browsed(found, "at:" + ",".join(map(str, at)), loading and not found)

    def logs(self, name: str, position: str | None) -> tuple[str, list[dict[str, Any]]]:
        state = self._here(name)
        return state.spec.type, logs_of(self.manager, state, position)

    def identity(self, name: str) -> str:
        state = self._here(name)
        if not state.id:
            return ""
        # One that is not durable is made anew, with its identity, when its node is gone.
        return f"{state.id:016x}" if state.queue.durable else f"{state.id:016x}@{self.manager.directory.node}"

    def page(self, name: str, partition: int, lane: int, start: int, stop: int, bytes_max: int) -> Page:
        return page_of(self.manager, self._here(name), partition, lane, start, stop, bytes_max)

    # ------------------------------------------------------------------ groups

    def groups(self, name: str) -> list[dict[str, Any]]:
        state = self._here(name)
        return [self._group(state, group, pattern) for (_, pattern), group in sorted(state.groups.items())]

    def _group(self, state: QueueState, group: Group, pattern: bytes) -> dict[str, Any]:
        members = [{"client": member.client or "", "held": member.held, "limited": member.limited,
                    "oldest_s": group.held_longest(member)} for member in group.members]
        stream = state.queue.kind == QUEUE_STREAM
        if stream:      # its claims are of places, and nothing goes back
            members = [{"client": reader.client or "", "held": reader.held, "limited": reader.limited, "oldest_s": None}
                       for reader in state.queue.readers if reader.group is group]
        lag = sum(max(cursor.log.next - max(cursor.next, cursor.log.first), 0) for cursor in group.cursors)
        retry = {} if stream else {"retry": retry_of(state.effective_retry(group)),
                                   "contract": list(state.retry_policies.get(group, UNSPECIFIED).specified())}
        return {"name": group.name.decode(), "filter": pattern.decode(), "mode": group.mode, "members": members,
                **retry, "claimed": group.claims, "unsettled": group.held, "returned": group.claims - group.held,
                "lag": lag if stream else group.lag,
                "positions": [{"partition": cursor.partition, "priority": cursor.next >> LANE_SHIFT,
                               "next": cursor.next, "settled": cursor.floor} for cursor in group.cursors]}

    def _find_group(self, state: QueueState, group: str) -> tuple[tuple[bytes, bytes], Group]:
        """Finds a group by its name; if several have one name, by name/filter, as they are listed."""
        named = [(key, known) for key, known in state.groups.items()
                 if group.encode() in (key[0], key[0] + b"/" + key[1])]
        whole = [one for one in named if not one[0][1]] or named
        if not whole:
            raise QueueRefused("not_found", f"queue {state.spec.name} has no group {group}",
                               f"fluxmq queue groups {state.spec.name} names those that are")
        if len(whole) > 1:
            names = ", ".join(sorted(f"{key[0].decode()}/{key[1].decode()}" for key, _ in whole))
            raise QueueRefused("conflict", f"queue {state.spec.name} has several groups {group}", f"say which: {names}")
        return whole[0]

    def seek(self, name: str, group: str, position: str, partition: int | None) -> list[dict[str, Any]]:
        state = self._to_change(name)
        _, found = self._find_group(state, group)
        if partition is not None and partition >= state.queue.partitions:
            raise QueueRefused("not_found", f"queue {name} has {state.queue.partitions} partitions, from 0 on")
        if any(cursor.held for cursor in found.cursors):
            raise QueueRefused("conflict", f"consumers of group {group} have messages in hand", "stop them first")
        if any(reader.group is found for reader in state.queue.readers):
            raise QueueRefused("conflict", f"group {group} has readers, which would not notice the change",
                               "stop them first")
        wanted = [cursor for cursor in found.cursors if partition is None or cursor.partition == partition]
        # all positions are parsed before the first group is moved, so that an invalid one moves none
        for cursor, offset in [(cursor, self.manager.offset_of(state, cursor.log, position, found))
                               for cursor in wanted]:
            by_offset.seek(found, cursor.log_number, offset)
        state.queue.notify()
        return list(self._group(state, found, b"")["positions"])

    def delete_group(self, name: str, group: str) -> None:
        state = self._to_change(name)
        key, found = self._find_group(state, group)
        members = len(self._group(state, found, key[1])["members"])
        if members:
            raise QueueRefused("conflict", f"group {group} has {members} members", "stop them first")
        self.manager.drop_group(state, key)

    # ------------------------------------------------------------------ dead letters

    def _dead(self, name: str, partition: int | None) -> QueueState | None:
        """The queue with its dead letters, or this partition of it if that is divided; None: it has had none yet.
        Raises QueueElsewhere, QueueDivided."""
        state = self._state(name)
        if not state.spec.dead_letter_queue:
            raise QueueRefused("not_found", f"queue {name} keeps no dead letters", "dlq.enabled says that it does")
        dead = dead_letter_state(self.manager, state.spec)
        if dead is None:
            if not isinstance(state.queue.relay, Parts):  # of which it was defined with the queue
                self._served(state)  # its node may have made one that this node does not know yet
            return None
        if partition is not None and isinstance(dead.queue.relay, Parts):
            part = self.manager.part_state(dead.queue.address, partition)
            if part is None:
                raise QueueRefused("not_found", f"queue {dead.spec.shown} has no partition {partition}")
            dead = part
        return self._served(dead)

    def dead_list(self) -> list[dict[str, Any]]:
        found = []
        for state in self.manager.queues.values():
            dead = dead_letter_state(self.manager, state.spec)
            if dead is None or is_part(state.queue.name):
                continue
            found.append({"queue": state.spec.shown, "namespace": state.spec.namespace,
                          "dead_letter_queue": dead.spec.shown, **self._place(dead),
                          **(self._dead_numbers(dead.queue) if dead.here else dict.fromkeys(DEAD_NUMBERS))})
        return found

    @staticmethod
    def _dead_numbers(queue: Queue) -> dict[str, int]:
        ends = [record.time_ms for log in queue.logs if log.next > log.first
                for record in (log.at_or_above(log.first), log.get(log.next - 1)) if record is not None]
        return dict(zip(DEAD_NUMBERS, (queue.waiting, sum(log.kept_bytes for log in queue.logs),
                                       min(ends, default=0), max(ends, default=0)), strict=True))

    def dead_browse(self, name: str, position: str, count: int, bytes_max: int,
                    partition: int | None = None) -> Browsed:
        dead = self._dead(name, partition)
        return Browsed([], position) if dead is None else self._browse(dead, position, count, bytes_max, None,
                                                                             self._state(name).spec.name)

    def dead_replay(self, name: str, selected: Sequence[tuple[int, int]] | None, count: int,
                    partition: int | None = None) -> Moved:
        self._check_joined()
        dead = self._dead(name, partition)
        return Moved(0) if dead is None else self._replay.step(self._state(name), dead, selected, count)

    def dead_purge(self, name: str, partition: int | None = None) -> int:
        self._check_joined()
        dead = self._dead(name, partition)
        if dead is None:
            return 0
        own = self._state(name).spec
        others = sorted(state.spec.shown for state in self.manager.queues.values()
                        if state.spec.dead_letter_queue == own.dead_letter_queue
                        and state.spec.namespace == own.namespace and state is not self._state(name)
                        and not is_part(state.queue.name))
        if others:
            shown = msgspec.structs.replace(own, name=own.dead_letter_queue).shown
            raise QueueRefused("conflict", f"the dead letters of {', '.join(others)} are in {shown} too",
                               f"fluxmq queue purge {shown} throws away all of them")
        waiting = dead.queue.waiting
        self.manager.purge(dead)
        return waiting


def _divided(state: QueueState, relay: Parts) -> QueueDivided:
    spec, count = state.spec, state.queue.partitions
    namespace = spec.namespace
    parts = [QueueName(namespace, part_name(spec.raw, at, count).decode("utf-8", "surrogateescape"))
             for at in range(count)]
    return QueueDivided(QueueName(namespace, spec.name), f"{state.id:016x}", parts,
                        [f"{part_identity(state.id, at):016x}" for at in range(count)], state.queue.lanes,
                        relay.missing)


def _whose(state: QueueState) -> dict[str, Any]:
    """Of the broker's own queues, that it is one."""
    name = state.queue.name
    return {"internal": True} if is_under_way(name) or is_moving(name) else {}


def _place_in_whole(state: QueueState) -> dict[str, Any]:
    """Of which queue it is a partition."""
    part = whole_of(state.queue.name)
    return {} if part is None else {"whole": msgspec.structs.replace(
        state.spec, name=part.whole.decode("utf-8", "surrogateescape")).shown, "partition": part.partition}


def retry_of(retry: Retry) -> dict[str, Any]:
    """As a user would write it."""
    return {"max_retries": retry.max_retries, "initial_backoff": format_duration(retry.initial_backoff),
            "max_backoff": format_duration(retry.max_backoff), "multiplier": retry.multiplier}


def message_of(record: Record, partition: int, expires_at: int) -> QueueMessage:
    """A message of a log for the port. expires_at: by the wall clock."""
    envelope = record.envelope
    users = [(name.decode("utf-8", "backslashreplace"), value.decode("utf-8", "backslashreplace"))
             for name, value in envelope.headers()]
    return QueueMessage(
        partition=partition, offset=record.offset, topic=envelope.topic_name().decode(), payload=record.payload,
        time_ms=record.time_ms, expires_at=expires_at, priority=record.priority, properties=envelope.named(),
        user_properties=users)


if TYPE_CHECKING:
    _port: type[QueuesPort] = QueueAdmin
