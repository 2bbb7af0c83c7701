"""Queues as the admin ring sees them, naively: lists in memory. Shares nothing with the broker's but the port's words.

Keeps the port's promises to the letter where a caller could forget one: durability comes when the test says so, a
browse may have to wait for the "disk", a replay moves a few at a time.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal
from zlib import crc32

from fluxmq.engine.ports.queues import Browsed, Moved, Publish, QueueDivided, QueueMessage, QueueRefused

__all__ = ["FakeQueues"]

KEYS = {"name", "type", "topics", "partitions", "limits"}


class _Queue:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.partitions: list[list[QueueMessage]] = [[] for _ in range(spec.get("partitions", 1))]
        self.next = [0] * len(self.partitions)
        self.groups: dict[str, list[int]] = {}
        self.consumers = 0
        self.dead: list[QueueMessage] = []
        self.dead_next = 0


class FakeQueues:
    """held: durability waits for `sync()`. fault: what every call raises, and what durability ends with.
    unloaded: how many browses and replays say first that the disk must be read. step: messages a replay moves at most.
    """

    def __init__(self) -> None:
        self.queues: dict[str, _Queue] = {}
        self.held = False
        self.waiting: list[Callable[[Exception | None], None]] = []
        self.fault: Exception | None = None
        self.moved: list[str] = []  # where it was asked to move queues; the second time it is there
        self.sync_fault: Exception | None = None
        self.unloaded = 0
        self.step = 3
        self.capacity = 1 << 30
        self.published: list[Publish] = []

    def sync(self) -> None:
        waiting, self.waiting = self.waiting, []
        for then in waiting:
            then(self.sync_fault)

    def die(self, name: str, payload: bytes, **more: Any) -> None:
        """A dead letter."""
        queue = self.queues[name]
        queue.dead.append(QueueMessage(partition=0, offset=queue.dead_next, topic=f"$queue/{name}", payload=payload,
                                       user_properties=[("x-death-reason", "rejected")], **more))
        queue.dead_next += 1

    def _find(self, name: str) -> _Queue:
        if self.fault is not None:
            raise self.fault
        if name not in self.queues:
            raise QueueRefused("not_found", f"there is no queue {name}", "fluxmq queue list names those that are")
        return self.queues[name]

    def _short(self, name: str) -> dict[str, Any]:
        queue = self.queues[name]
        messages = [message for part in queue.partitions for message in part]
        return {"name": name, "type": queue.spec["type"], "partitions": len(queue.partitions),
                "messages": len(messages), "bytes": sum(len(message.payload) for message in messages),
                "ready": len(messages), "unsettled": 0, "delayed": 0,
                "groups": len(queue.groups), "consumers": queue.consumers, "dead_letters": len(queue.dead)}

    def list_queues(self, *, partitions: bool = False) -> list[dict[str, Any]]:
        if self.fault is not None:
            raise self.fault
        return [self._short(name) | ({"partition_list": self._partitions(name)} if partitions else {})
                for name in sorted(self.queues)]

    def _partitions(self, name: str) -> list[dict[str, Any]]:
        return [{"partition": at, "node": "", "state": "running", "epoch": 0, "messages": len(part), "lag": len(part),
                 "bytes": sum(len(message.payload) for message in part)}
                for at, part in enumerate(self.queues[name].partitions)]

    def when_durable(self, then: Callable[[Exception | None], None]) -> None:
        self.waiting.append(then)
        if not self.held:
            self.sync()

    def describe(self, name: str) -> dict[str, Any]:
        queue = self._find(name)
        places = [{"partition": at, "first": part[0].offset if part else queue.next[at], "next": queue.next[at],
                   "messages": len(part), "bytes": sum(len(message.payload) for message in part)}
                  for at, part in enumerate(queue.partitions)]
        return {**self._short(name), "spec": queue.spec, "partition_list": places, "group_list": self.groups(name),
                "dead_letter_queue": f"{name}.dead"}

    def declare(self, spec: dict[str, Any]) -> Literal["created", "unchanged", "changed"]:
        if self.fault is not None:
            raise self.fault
        if set(spec) - KEYS:
            raise QueueRefused("invalid", f"unknown: {sorted(set(spec) - KEYS)[0]}")
        spec = {"type": "classic", **spec}
        old = self.queues.get(spec["name"])
        if old is None:
            self.queues[spec["name"]] = _Queue(spec)
            return "created"
        if old.spec == spec:
            return "unchanged"
        if old.spec["type"] != spec["type"]:
            raise QueueRefused("conflict", f"{spec['name']} is of type {old.spec['type']}", "delete it first")
        old.spec = spec
        return "changed"

    def delete(self, name: str, *, if_unused: bool, if_empty: bool) -> int:
        queue, messages = self._find(name), self._short(name)["messages"]
        if (if_unused and queue.consumers) or (if_empty and messages):
            raise QueueRefused("conflict", f"{name} is in use or not empty")
        del self.queues[name]
        return int(messages)

    def divided(self, name: str) -> QueueDivided | None:
        return None

    def partition_for(self, name: str, message: Publish) -> int:
        return 0

    async def move(self, name: str, node: str, partition: int | None) -> bool:
        self._find(name)
        self.moved.append(node)
        return len(self.moved) > 1

    def unsettled(self, name: str) -> int:
        self._find(name)
        return 0

    def purge(self, name: str, *, unsettled: bool = False) -> int:
        queue, messages = self._find(name), self._short(name)["messages"]
        for part in queue.partitions:
            part.clear()
        return int(messages)

    def publish(self, name: str, message: Publish) -> dict[str, Any]:
        queue = self._find(name)
        if self._short(name)["messages"] >= self.capacity:
            raise QueueRefused("full", f"{name} is full", "consume from it, or raise its limits")
        self.published.append(message)
        at = crc32(dict(message.user_properties).get("partition-key", "").encode()) % len(queue.partitions)
        topic = f"$queue/{name}/{message.key}" if message.key else f"$queue/{name}"
        queue.partitions[at].append(QueueMessage(
            partition=at, offset=queue.next[at], topic=topic, payload=message.payload, time_ms=1_700_000_000_000,
            properties={"content-type": message.content_type} if message.content_type else {},
            user_properties=message.user_properties))
        queue.next[at] += 1
        return {"partition": at, "offset": queue.next[at] - 1}

    @staticmethod
    def _place(position: str, end: int) -> int:
        if position in ("first", "next"):
            return 0 if position == "first" else end
        text = "-1" if position == "last" else position
        if not text.lstrip("-").isdigit():
            raise QueueRefused("invalid", f"{position!r} is no position")
        return int(text) if int(text) >= 0 else max(0, end + int(text))

    def _browse(self, parts: list[tuple[list[QueueMessage], int]], position: str, count: int,
                bytes_max: int) -> Browsed:
        starts = ([int(text) for text in position[1:].split(",")] if position.startswith("@") else
                  [self._place(position, end) for _, end in parts])
        if self.unloaded:
            self.unloaded -= 1
            return Browsed([], "@" + ",".join(map(str, starts)), loading=True)
        found: list[QueueMessage] = []
        room = bytes_max
        for at, (part, _) in enumerate(parts):
            for message in part:
                if message.offset >= starts[at] and len(found) < count and (room > 0 or not found):
                    found.append(message)
                    room -= len(message.payload)
                    starts[at] = message.offset + 1
        return Browsed(found, "@" + ",".join(map(str, starts)))

    def browse(self, name: str, position: str, count: int, bytes_max: int, partition: int | None) -> Browsed:
        queue = self._find(name)
        parts = list(zip(queue.partitions, queue.next, strict=True))
        if partition is not None:
            if partition >= len(parts):
                raise QueueRefused("not_found", f"{name} has no partition {partition}")
            parts = [parts[partition]]
        return self._browse(parts, position, count, bytes_max)

    def groups(self, name: str) -> list[dict[str, Any]]:
        queue = self._find(name)
        return [{"name": group, "members": [], "claimed": 0, "unsettled": 0, "returned": 0,
                 "lag": sum(queue.next) - sum(places), "positions": self._positions(places)}
                for group, places in sorted(queue.groups.items())]

    @staticmethod
    def _positions(places: list[int]) -> list[dict[str, Any]]:
        return [{"partition": at, "next": place, "settled": place} for at, place in enumerate(places)]

    def _group(self, name: str, group: str) -> list[int]:
        groups = self._find(name).groups
        if group not in groups:
            raise QueueRefused("not_found", f"{name} has no group {group}")
        return groups[group]

    def seek(self, name: str, group: str, position: str, partition: int | None) -> list[dict[str, Any]]:
        places = self._group(name, group)
        for at, end in enumerate(self.queues[name].next):
            if partition in (None, at):
                places[at] = self._place(position, end)
        return self._positions(places)

    def delete_group(self, name: str, group: str) -> None:
        self._group(name, group)
        del self.queues[name].groups[group]

    def dead_list(self) -> list[dict[str, Any]]:
        return [{"queue": name, "dead_letter_queue": f"{name}.dead", "messages": len(queue.dead),
                 "bytes": sum(len(message.payload) for message in queue.dead),
                 "oldest_ms": queue.dead[0].time_ms if queue.dead else 0,
                 "newest_ms": queue.dead[-1].time_ms if queue.dead else 0}
                for name, queue in sorted(self.queues.items())]

    def dead_browse(self, name: str, position: str, count: int, bytes_max: int,
                    partition: int | None = None) -> Browsed:
        queue = self._find(name)
        return self._browse([(queue.dead, queue.dead_next)], position, count, bytes_max)

    def dead_replay(self, name: str, selected: Sequence[tuple[int, int]] | None, count: int,
                    partition: int | None = None) -> Moved:
        queue = self._find(name)
        if self.unloaded:
            self.unloaded -= 1
            return Moved(0, more=True)
        wanted = queue.dead[:count] if selected is None else [
            message for message in queue.dead if (message.partition, message.offset) in selected]
        for message in wanted[:self.step]:
            queue.dead.remove(message)
            self.publish(name, Publish(payload=message.payload))
        return Moved(min(len(wanted), self.step), more=len(wanted) > self.step)

    def dead_purge(self, name: str, partition: int | None = None) -> int:
        queue = self._find(name)
        gone, queue.dead = len(queue.dead), []
        return gone
