"""What the admin ring asks of the queues, as a Protocol: `QueuesPort`. `engine.queues.admin.QueueAdmin` is one.

Everything here happens on the loop's thread and returns at once: nothing waits for the disk. If something must be read
from disk first, the answer is `loading`, and the caller asks again; answers that must wait until something is on disk
wait by `when_durable`. Names of queues and groups are text as a user wrote it: of a queue outside "/"
<namespace>/<name>, or a QueueName; positions are text as in `$queue` subscriptions: first, last, next, N, -N, offset=N,
timestamp=<ms or ISO 8601>. What is described comes as plain dicts that go out as JSON as they are, so a key may be
added without a change here.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from fluxmq._core.errors import FluxError
from fluxmq.model.mqtt import ReasonCode

__all__ = ["Browsed", "CommandRefused", "Moved", "Page", "Publish", "QueueDivided", "QueueElsewhere", "QueueMessage",
           "QueueName", "QueueRefused", "QueuesPort"]

Refusal = Literal["not_found", "conflict", "invalid", "full", "unavailable"]


class CommandRefused(FluxError):
    """A command of a consumer (`$ack` and the others) was refused.

    reason: the MQTT 5 reason code for PUBACK. text: one sentence for the client."""

    def __init__(self, text: str, reason: int = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR) -> None:
        super().__init__(text)
        self.text = text
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (self.text, self.reason)


class QueueRefused(FluxError):
    """An operation on queues was refused, for a reason that the user should see.

    kind: not_found, the queue, group or message does not exist; conflict, it exists with other settings, or is in use;
    invalid, the request makes no sense; full, a limit of the queue or of the node is reached; unavailable, not possible
    at present. text: one sentence. hint: what to do about it, or "".
    """

    def __init__(self, kind: Refusal, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.text, self.hint)


class QueueElsewhere(QueueRefused):
    """unavailable, because another node has the messages of the queue. node: its name. away: it is not there, or does
    not answer; else it can do what this node refused."""

    def __init__(self, node: str, text: str, hint: str = "", *, away: bool = False) -> None:
        super().__init__("unavailable", text, hint)
        self.node = node
        self.away = away

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), away=self.away), (self.node, self.text, self.hint)


class QueueDivided(QueueRefused):
    """unavailable, because the queue's partitions are queues of their own, at several nodes: each is to be asked.

    whole: the queue's name; identity: its identity, as QueuesPort.identity says it. parts, identities: the same of each
    partition, in order. lanes: logs of each partition. missing: partitions that are away, and their nodes."""

    def __init__(self, whole: QueueName, identity: str, parts: list[QueueName], identities: list[str], lanes: int,
                 missing: dict[int, str]) -> None:
        super().__init__("unavailable", f"the partitions of queue {whole} are at several nodes, and this is for a "
                                        f"queue of one node")
        self.whole, self.identity, self.parts, self.identities = whole, identity, parts, identities
        self.lanes, self.missing = lanes, missing

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.whole, self.identity, self.parts, self.identities, self.lanes, self.missing)


class QueueName(str):
    """A queue's displayed name, with its namespace and its name in it: a name may contain a '/', so that two queues can
    have the same displayed name.

    namespace, own: as a user wrote them.
    """

    namespace: str
    own: str

    def __new__(cls, namespace: str, own: str) -> QueueName:
        made = super().__new__(cls, own if namespace == "/" else f"{namespace}/{own}")
        made.namespace, made.own = namespace, own
        return made


class QueueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a partition. Times are wall clock in ms, 0 = none.

    properties: those of MQTT 5 that are forwarded, with their names in the specification in lower case with dashes
    (content-type, response-topic, …), values of JSON. user_properties: in order, names may repeat; a dead letter's
    include reason, origin, count and times. For a message from AMQP the topic is derived from its routing key, "" if
    that is impossible; properties are `exchange`, `routing-key` and AMQP's own, user_properties its headers.
    """

    partition: int
    offset: int
    topic: str
    payload: bytes
    time_ms: int = 0
    expires_at: int = 0
    priority: int = 0
    properties: dict[str, Any] = {}
    user_properties: list[tuple[str, str]] = []


class Browsed(msgspec.Struct, frozen=True):
    """The result of a browse. next: an opaque position from which the next browse continues.

    loading: further messages must be read from disk first; ask again from `next` a little later. With neither messages
    nor loading, there are no more for now.
    """

    messages: list[QueueMessage]
    next: str
    loading: bool = False


class Page(msgspec.Struct, frozen=True):
    """Messages as bytes. content: in the format of `_core/queue/page.pyx`. next: the offset from which the next page
    continues. loading: nothing yet, because it must be read from disk first; ask again a little later."""

    content: bytes
    next: int
    loading: bool = False


class Moved(msgspec.Struct, frozen=True):
    """Progress of a replay. more: it has not finished (steps are bounded, or the disk must be read); call again."""

    moved: int
    more: bool = False


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a queue, as if a client had published it to `$queue/<name>[/<key>]`.

    user_properties: may contain every option that a client can set in them (partition-key, priority, x-delay,
    producer-id and producer-sequence, …). expiry_s: Message Expiry Interval.
    """

    payload: bytes
    key: str = ""
    content_type: str = ""
    expiry_s: int | None = None
    user_properties: list[tuple[str, str]] = []


class QueuesPort(Protocol):
    """The queues of a node. All but the first two methods raise QueueRefused, and StorageError when the disk fails.

    What needs messages or groups of a queue that another node has raises QueueElsewhere before it has any effect, and
    QueueDivided for one whose partitions are queues of their own: all but list_queues, describe, declare, move,
    dead_list, and delete without conditions. Operations on dead letters are for the node that has the dead-letter
    queue.
    """

    def list_queues(self, *, partitions: bool = False) -> list[dict[str, Any]]:
        """Each queue in short, those of "/" first, by name: name, namespace, type (classic | stream | ephemeral),
        partitions (how many), messages, bytes, ready, unsettled and delayed (messages), groups and consumers (how
        many), dead_letters (how many), node (that has the messages; "": there is no cluster), state (running; damaged;
        elsewhere, another node has it; away, and that one is not there; divided, its partitions are queues of their
        own, which are listed, too, with whole (its name) and partition; partly away, some of them are). Numbers of a
        queue of another node, and of one that is divided, are None; so is dead_letters if another node has the
        dead-letter queue. partitions: also partition_list, of dicts: partition, node, state, epoch (grows each time
        that a node begins to serve it; 0: nobody does, or there is no cluster), messages, bytes, lag (messages that the
        slowest group has not settled, or of a stream not read; None: not known)."""

    def divided(self, name: str) -> QueueDivided | None:
        """What is to be asked of each partition is said by this; None: the queue is not divided."""

    def partition_for(self, name: str, message: Publish) -> int:
        """The partition of a message of a queue that is divided; without a key, the next one."""

    def when_durable(self, then: Callable[[Exception | None], None]) -> None:
        """Calls `then` once: with None as soon as all changes before this call are as durable as the configuration
        promises (at once if nothing is durable), or with the StorageError that prevents it. Ensures that a batch is
        submitted, also outside of a turn."""

    def describe(self, name: str) -> dict[str, Any]:
        """As list_queues(), and: spec (the queue as under `queues:`), partition_list (of dicts: partition, first, next,
        messages, bytes; of one that is divided node and state, and no numbers), group_list (as groups()),
        dead_letter_queue (its name, or ""), counts (events by name: appended, delivered, settled, …)."""

    def declare(self, spec: dict[str, Any]) -> Literal["created", "unchanged", "changed"]:
        """Makes a queue, described as under `queues:` (name, type, topics, …), or changes the settings of an existing
        one that may be changed. Refused as invalid (which key, and what is allowed) or as conflict (which key may not
        change)."""

    def delete(self, name: str, *, if_unused: bool, if_empty: bool) -> int:
        """Deletes the queue with its groups. Returns how many messages it had. conflict: it is used (has consumers), is
        not empty, or is in the configuration."""

    async def move(self, name: str, node: str, partition: int | None) -> bool:
        """Moves the queue to a node; partition: only this one, of a queue that is divided. Returns whether that node
        serves it; False: it takes longer, ask again. conflict: it cannot be moved; unavailable: it was not moved, or
        nobody knows."""

    def purge(self, name: str, *, unsettled: bool = False) -> int:
        """Removes all messages, for every group, but those that consumers hold, which settle them or give them back
        (as AMQP 0-9-1 queue.purge); unsettled: those, too, as always of a stream. Returns how many."""

    def unsettled(self, name: str) -> int:
        """How many messages consumers hold."""

    def publish(self, name: str, message: Publish) -> dict[str, Any]:
        """Appends a message. Returns partition and offset, due_ms if it is delayed, or duplicate=True if its producer
        and sequence were seen before. It is durable when `when_durable` says so. full: the limit of the queue or of the
        disk is reached."""

    def browse(self, name: str, position: str, count: int, bytes_max: int, partition: int | None) -> Browsed:
        """Returns messages without claiming or settling them: at most `count`, with about bytes_max of payload, but at
        least one. partition: only that one; None means all, each in order of offset. position: a position, or
        `Browsed.next` (with the same partition argument); with several partitions it applies to each."""

    def logs(self, name: str, position: str | None) -> tuple[str, list[dict[str, Any]]]:
        """(type of the queue, its logs): of each partition, lane, log (its number in hex), first, next (what is below
        is durable), bytes; and offset, where `position` is in it, if that is given."""

    def identity(self, name: str) -> str:
        """Of the queue, as text: no other queue of its cluster ever has it, and it keeps it on whatever node it is; one
        that is not durable while it is on one node. "": it has none, because there is no cluster; then the numbers of
        its logs tell it from others."""

    def page(self, name: str, partition: int, lane: int, start: int, stop: int, bytes_max: int) -> Page:
        """As browse(), of the offsets [start, stop) of one lane, as bytes, and only what is durable: what a reader has
        seen under an offset is never another message after a crash."""

    def groups(self, name: str) -> list[dict[str, Any]]:
        """Each group: name, members (list of dicts: client, held (messages), limited, oldest_s (for how long it has
        held its oldest one)), unsettled (messages that consumers hold), returned (that wait to be delivered again),
        claimed (both), lag (messages not settled), positions (list of dicts: partition, priority, next, settled). Not
        for a stream: retry (dict of the effective settings, as in a queue's configuration), contract (those of them
        that its consumers set)."""

    def seek(self, name: str, group: str, position: str, partition: int | None) -> list[dict[str, Any]]:
        """Moves the group to a position: everything below counts as settled, nothing above. Returns its positions.
        conflict: its members have claims."""

    def delete_group(self, name: str, group: str) -> None:
        """Deletes a group. conflict: it has members."""

    def dead_list(self) -> list[dict[str, Any]]:
        """Each queue with a dead-letter queue: queue, namespace, dead_letter_queue, node (that has it; "": there is no
        cluster), state (of the dead-letter queue, as in list_queues), messages, bytes, oldest_ms, newest_ms. The
        numbers are None if another node has it."""

    def dead_browse(self, name: str, position: str, count: int, bytes_max: int,
                    partition: int | None = None) -> Browsed:
        """As browse(), of the dead letters of queue `name`; their partition and offset name them for dead_replay.
        partition: of a dead-letter queue that is divided; so of the next two."""

    def dead_replay(self, name: str, selected: Sequence[tuple[int, int]] | None, count: int,
                    partition: int | None = None) -> Moved:
        """Moves dead letters back to the queue they came from, as new messages. Each is settled there and appended here
        in one batch. selected: (partition, offset) of those to move; missing ones are skipped. None: the oldest, at
        most `count`. A call is a bounded step: while `more`, the caller calls again a little later, with the same
        selection or the rest of its count."""

    def dead_purge(self, name: str, partition: int | None = None) -> int:
        """Removes all dead letters of queue `name`. Returns how many."""
