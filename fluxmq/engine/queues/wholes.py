"""Queues whose partitions are queues of their own (peer/parts.pxd): consumers and questions, for all partitions.

    attach() ─► the partitions, one after the other as attaching.py says ─► then()
    ask()    ─► every partition, of this node or another ─► one answer: sums, or the first refusal

A partition of this node is asked as its owner asks itself for the consumers of other nodes (relays.Hosts), the others
by their relays. Consumers of partitions that are away are attached when these are back, as those of any queue.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec

from fluxmq._core.errors import StorageError, UsageError
from fluxmq._core.peer.parts import PartMember, Parts, WholeMember
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.amqp_head import PULL_EMPTY, PULL_GIVEN
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.queues import CommandRefused, QueueRefused
from fluxmq.engine.queues.attaching import Attaching
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.parts import part_name, whole_of
from fluxmq.engine.queues.relays import Answer, Attach, Hosts, Refusal, Relays, Then, refusal_of
from fluxmq.engine.queues.table import QueueListener
from fluxmq.model.amqp import AmqpRefused

__all__ = ["Wholes"]

GROUP_DEFAULT = b"default"  # of AMQP's consumers that name none
REFUSALS = (QueueRefused, AmqpRefused, CommandRefused, StorageError, UsageError)


class _Gathering:
    """Answers of all partitions, in their order. together: makes one value of theirs."""

    def __init__(self, count: int, together: Callable[[list[Any]], Any], then: Then) -> None:
        self.values: list[Any] = [None] * count
        self.left = count
        self.together, self.then = together, then
        self.refused: Refusal | None = None

    def take(self, at: int, answer: Answer) -> None:
        self.left -= 1
        self.refused = self.refused or answer.refused
        self.values[at] = answer.value
        if not self.left:
            self.then(Answer(refused=self.refused) if self.refused is not None else
                      Answer(value=self.together(self.values)))


def _counts(values: list[Any]) -> tuple[int, int, int]:
    """Ready, claimed, consumers: each of these is one of all partitions."""
    return (sum(value[0] for value in values), sum(value[1] for value in values),
            max((value[2] for value in values), default=0))


# What is made of the answers of all partitions, by question.
TOGETHER: dict[str, Callable[[list[Any]], Any]] = {
    "counts": _counts, "deletable": sum, "purge": sum,
}


class Wholes(QueueListener):
    """Machine. A listener of the manager's queues, before Relays and Hosts."""

    def __init__(self, manager: QueueManager, relays: Relays, hosts: Hosts) -> None:
        self.manager = manager
        self.relays = relays
        self.hosts = hosts
        relays.wholes = self
        relays.on_refused.append(self._refused)
        relays.on_attached.append(self._attached)
        relays.ticks.append(self._tick)
        self._made: WeakSet[Parts] = WeakSet()

    def make(self, queue: Queue) -> Parts:
        """The relay of a whole queue."""
        relay = Parts(queue, self.manager.hub)
        self._made.add(relay)
        relay.on_leave, relay.on_rest, relay.backoff = self._leave, self._rest, self._backoff_ms
        for partition in range(queue.partitions):   # it may be learned behind them
            state = self.manager.queues.get((queue.address[0], part_name(queue.name, partition, queue.partitions)))
            if state is not None:
                relay.bind(partition, state.queue)
        return relay

    def _tick(self, limit_ms: int) -> None:
        for relay in self._made:
            relay.share_again()

    def _parts(self, queue: Queue) -> tuple[Parts, int] | None:
        """The whole queue of a partition that this node knows, and which one it is."""
        found = whole_of(queue.name)
        state = self.manager.queues.get((queue.address[0], found.whole)) if found is not None else None
        if found is None or state is None or not isinstance(state.queue.relay, Parts):
            return None
        return state.queue.relay, found.partition

    def _refused(self, queue: Queue, member: Member, why: str) -> None:
        """See Relays.on_refused: the consumer of the whole queue is meant."""
        if isinstance(member, PartMember):
            for tell in self.relays.on_refused:
                tell(member.whole.relay.queue, member.whole.member, why)

    def _attached(self, queue: Queue, member: Member, value: Any) -> None:
        """See Relays.on_attached: the consumer of the whole queue is meant."""
        if isinstance(member, PartMember):
            for tell in self.relays.on_attached:
                tell(member.whole.relay.queue, member.whole.member, value)

    # ------------------------------------------------------------------ partitions that come and go

    def queue_added(self, queue: Queue) -> None:
        """See QueueListener: a partition is there; its consumers join it."""
        found = self._parts(queue)
        if found is None:
            return
        relay, partition = found
        relay.bind(partition, queue)
        for whole in relay.consumers:
            if whole.asked is not None and whole.opened and not whole.pulls:
                self._join(whole, partition, lambda answer: None)

    def queue_removed(self, queue: Queue) -> None:
        """See QueueListener."""
        found = self._parts(queue)
        if found is None or found[0].queues[found[1]] is not queue:
            return
        relay, partition = found
        relay.bind(partition, None)
        for whole in relay.consumers:
            one = whole.parts[partition]
            if one is not None and one.group is not None:
                one.group.leave(one)
            whole.drop(partition)

    # ------------------------------------------------------------------ consumers

    def attach(self, queue: Queue, member: Member, asked: Attach, then: Then) -> None:
        """As Relays.attach."""
        relay = queue.relay
        assert isinstance(relay, Parts)
        whole = relay.of(member)
        whole.asked = msgspec.structs.replace(asked, mark=member.mark, pulls=whole.pulls)

        def answered(answer: Answer) -> None:
            if answer.refused is None:
                whole.asked = msgspec.structs.replace(whole.asked, fresh=False)
            then(answer)
            if whole.member.group is not None:
                whole.open()

        Attaching(relay, partial(self._join, whole), lambda: whole.member.group is None, answered).begin()

    def _join(self, whole: WholeMember, partition: int, then: Then) -> None:
        """Has a consumer join the group of a partition."""
        queue, asked = whole.relay.queues[partition], whole.asked
        if queue is None:
            then(Answer(refused=Refusal(f"no node has partition {partition} of the queue at present", away=True)))
            return
        one = whole.part(partition)
        if one.group is not None:
            then(Answer())
            return
        if queue.relay is not None:
            group = self.manager.group(queue, asked.group or GROUP_DEFAULT, asked.pattern)
            if asked.pulls:
                group.attach(one)
            else:
                group.join(one)
            self.relays.attach(queue, one, asked, then)
            return
        try:
            value = self.hosts.protocols[asked.protocol].attach_member(queue, one, asked)
        except REFUSALS as refused:
            then(Answer(refused=refusal_of(refused)))
        else:
            then(Answer(value=value))

    def _leave(self, one: PartMember) -> None:
        """A consumer leaves a partition."""
        group, queue = one.group, one.whole.relay.queues[one.partition]
        group.leave(one)
        asked = one.whole.asked
        if queue is not None and queue.relay is None and asked is not None:
            self.hosts.protocols[asked.protocol].leave(queue, one)
        if queue is not None:
            queue.notify()

    def _rest(self, one: PartMember) -> None:
        """A consumer gets nothing more, and settles what it holds."""
        queue, asked = one.whole.relay.queues[one.partition], one.whole.asked
        if queue is not None and queue.relay is None and asked is not None:
            self.hosts.protocols[asked.protocol].rest(queue, one)
        else:
            one.group.rest(one)

    def _backoff_ms(self, one: PartMember, deliveries: int) -> int:
        queue = one.whole.relay.queues[one.partition]
        return self.manager.backoff_ms(queue, one.group, deliveries) if queue is not None else 0

    # ------------------------------------------------------------------ questions

    def ask(self, queue: Queue, verb: str, arguments: Any, then: Then, member: Member | None = None) -> None:
        """As Relays.ask."""
        relay = queue.relay
        assert isinstance(relay, Parts)
        if verb == "get":
            assert member is not None
            self._get(queue, relay, relay.of(member), then)
            return
        if verb != "counts" and (missing := self._missing(relay)) is not None:
            then(Answer(refused=missing))
            return
        if verb == "deletable" and self.manager.states[queue].configured:
            then(Answer(refused=Refusal(f"queue {self.manager.states[queue].spec.shown} is in the configuration, and "
                                        f"would be made again", code=406)))
            return
        self._ask_all(relay, verb, arguments, TOGETHER[verb], then)

    def _missing(self, relay: Parts) -> Refusal | None:
        """The refusal of what all partitions must do."""
        for partition, node in relay.missing.items():
            return Refusal(f"partition {partition} of the queue is at node {node}, which is away" if node else
                           f"no node has partition {partition} of the queue at present", away=True)
        return None

    def _ask_all(self, relay: Parts, verb: str, arguments: Any, together: Callable[[list[Any]], Any],
                 then: Then) -> None:
        """Partitions that are away are left out, unless all are."""
        there = [at for at in range(len(relay.queues)) if relay.is_reached(at)]
        if not there:
            then(Answer(refused=self._missing(relay)))
            return
        gathering = _Gathering(len(there), together, then)
        for at, partition in enumerate(there):
            self._ask_one(relay, partition, verb, arguments, partial(gathering.take, at))

    def _ask_one(self, relay: Parts, partition: int, verb: str, arguments: Any, then: Then,
                 member: PartMember | None = None) -> None:
        queue = relay.queues[partition]
        if queue is None:
            then(Answer(refused=Refusal(f"no node has partition {partition} of the queue at present", away=True)))
        elif queue.relay is not None:
            self.relays.ask(queue, verb, arguments, then, member)
        else:
            try:
                value = self.hosts.calls[verb](queue, member, *arguments)
            except REFUSALS as refused:
                then(Answer(refused=refusal_of(refused)))
            else:
                then(Answer(value=value))

    def _get(self, queue: Queue, relay: Parts, whole: WholeMember, then: Then) -> None:
        """Basic.Get: from the partition with the most ready messages, so that none is forgotten for long."""
        if whole.asked is None:
            whole.asked = Attach(protocol="amqp", client=whole.member.client or "", pulls=True, mark=whole.member.mark)

        def counted(answer: Answer) -> None:
            if answer.refused is not None:
                then(answer)
                return
            ready = dict(zip(there, (value[0] for value in answer.value), strict=True))
            self._get_from(relay, whole, [at for at in sorted(ready, key=lambda at: -ready[at]) if ready[at]],
                           sum(ready.values()), then)

        there = [at for at in range(len(relay.queues)) if relay.is_reached(at)]
        self._ask_all(relay, "counts", (False,), lambda values: values, counted)

    def _get_from(self, relay: Parts, whole: WholeMember, order: list[int], ready: int, then: Then) -> None:
        if not order:
            then(Answer(value=(PULL_EMPTY, 0)))
            return
        partition, rest = order[0], order[1:]

        def got(answer: Answer) -> None:
            if answer.refused is not None or answer.value[0] not in (PULL_EMPTY, PULL_GIVEN):
                then(answer)
            elif answer.value[0] == PULL_EMPTY:
                self._get_from(relay, whole, rest, ready, then)
            else:
                then(Answer(value=(PULL_GIVEN, max(ready - 1, 0))))

        def joined(answer: Answer) -> None:
            if answer.refused is not None:
                then(answer)
            else:
                self._ask_one(relay, partition, "get", (), got, whole.parts[partition])

        queue, one = relay.queues[partition], whole.part(partition)
        if queue is not None and isinstance(queue.relay, QueueRelay) and one.group is not None:
            # It may have a new owner, which does not know the consumer yet.
            self._ask_one(relay, partition, "get", (), got, one)
        else:
            self._join(whole, partition, joined)

    def order(self, queue: Queue, verb: str, arguments: Any) -> None:
        """As Relays.order: a command about a message that the client does not hold."""
        relay = queue.relay
        assert isinstance(relay, Parts) and verb == "settle"
        groups, command, properties = arguments
        partition, given = of_partition(properties)
        part = relay.queues[partition] if partition < len(relay.queues) else None
        if part is None:
            raise QueueRefused("unavailable", f"no node has partition {partition} of the queue at present")
        if part.relay is not None:
            self.relays.order(part, verb, (groups, command, given))
        else:
            self.hosts.calls[verb](part, None, groups, command, given)


def of_partition(properties: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Which partition a command is about, and the command as that partition reads it. properties: which name a message
    of the whole queue."""
    found = dict(properties)
    if "message-id" in found:
        partition, _, offset = found["message-id"].partition(":")
        found["message-id"] = f"0:{offset}"
    else:
        partition, found["partition"] = found.get("partition", "0"), "0"
    return int(partition), found
