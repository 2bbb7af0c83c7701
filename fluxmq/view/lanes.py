"""Which lanes there are, and which of them a topic or a routing key belongs to.

A queue has a lane for each of its partitions; other topics are grouped by their first levels. Lane 0 is for what
belongs to no topic: pings, refused connections. Numbers of lanes never change: a queue with another number of
partitions gets new ones, and its old ones are gone.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fluxmq._core.record.counts import LANES_MAX
from fluxmq._core.wire.queue_address import split_queue_address

__all__ = ["CONNECTIONS", "OTHERS", "Lane", "Lanes"]

CONNECTIONS, OTHERS = 0, 1
GROUPS_MAX = 64     # groups of topics that get a lane by themselves
PARTITIONS_MAX = 256


@dataclass(slots=True)
class Lane:
    """number: in the counts. name: of the queue or group of topics. partition: -1: it has none. owner: the node that
    has it; "": not known, or there is only one. backlog: messages that wait in it; -1: not known. away: its node is not
    there. moved_at: when it came to its owner from `owner_before`; 0: it has not moved. gone: nothing comes to it any
    more."""

    number: int
    name: str
    kind: str = "topic"     # queue, topic, or other
    partition: int = -1
    owner: str = ""
    owner_before: str = ""
    backlog: int = -1
    away: bool = False
    moved_at: float = 0.0
    used: bool = False
    gone: bool = False

    @property
    def title(self) -> str:
        return self.name if self.partition < 0 else f"{self.name}/{self.partition}"


def _matcher(filter_: str) -> re.Pattern[str]:
    """A topic filter, with `#` anywhere at its end; the name of a queue stands for `$queue/NAME`."""
    parts = []
    for level in filter_.split("/"):
        parts.append("[^/]*" if level == "+" else ".*" if level == "#" else re.escape(level))
    pattern = "/".join(parts)
    return re.compile(pattern[:-3] + "(/.*)?" if pattern.endswith("/.*") else pattern, re.DOTALL)


class Lanes:
    """Machine. levels: of a topic that make a group. wanted: filters of topics and names of queues, each its own lanes,
    in this order; all others share a lane. Empty: every queue has lanes, and every group of topics.

    changes: grows when a name may belong to other lanes than before.
    """

    def __init__(self, wanted: Sequence[str] = (), levels: int = 1) -> None:
        self.levels = max(levels, 1)
        self.changes = 0
        self.lanes = [Lane(CONNECTIONS, "connections", "other"), Lane(OTHERS, "other topics", "other")]
        self.moves: list[tuple[str, str, str]] = []     # (title, from, to), until taken
        self._queues: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, int] = {}
        self._wanted = [(text, _matcher(text)) for text in wanted]
        self._order = {text: at for at, text in enumerate(wanted)}

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────────

    def lane_of(self, topic: bytes, exchange: bytes | None) -> tuple[int, int]:
        """For LaneCounts: the first lane, and how many there are."""
        text = topic.decode("utf-8", "replace")
        if exchange is None:
            address = split_queue_address(topic)
            if address is not None:
                return self._queue(address[0].decode("utf-8", "replace"))
        elif not exchange:
            return self._queue(text)
        elif exchange == b"amq.topic":
            text = text.replace(".", "/")
        else:
            text = exchange.decode("utf-8", "replace") + ":" + text.replace(".", "/")
        return self._group(text)

    def _queue(self, name: str) -> tuple[int, int]:
        known = self._queues.get(name)
        if known is not None:
            return known
        if self._wanted and not self._chosen(name, f"$queue/{name}"):
            return OTHERS, 1
        return self._new_queue(name, 1)

    def _new_queue(self, name: str, partitions: int) -> tuple[int, int]:
        first = len(self.lanes)
        if first + partitions > LANES_MAX or partitions > PARTITIONS_MAX:
            partitions = 1
            if first + 1 > LANES_MAX:
                return OTHERS, 1
        self.lanes += [Lane(first + at, name, "queue", at if partitions > 1 else -1) for at in range(partitions)]
        self._queues[name] = (first, partitions)
        return self._queues[name]

    def _group(self, topic: str) -> tuple[int, int]:
        if self._wanted:
            name = self._chosen(topic)
            if not name:
                return OTHERS, 1
        else:
            levels = topic.split("/")
            name = "/".join(levels[:self.levels]) + ("/…" if len(levels) > self.levels else "")
        known = self._groups.get(name)
        if known is None:
            if len(self.lanes) >= LANES_MAX or (not self._wanted and len(self._groups) >= GROUPS_MAX):
                return OTHERS, 1
            known = self._groups[name] = len(self.lanes)
            self.lanes.append(Lane(known, name))
        return known, 1

    def _chosen(self, *names: str) -> str:
        """The first wish that one of the names matches; "": none."""
        return next((text for text, pattern in self._wanted if any(pattern.fullmatch(name) for name in names)), "")

    # ── what the broker says of queues ───────────────────────────────────────────────────────────────────────

    def learn_queues(self, queues: Iterable[tuple[str, Sequence[tuple[str, int, bool]]]], now: float) -> None:
        """queues: name, and of each partition its owner, backlog (-1: not known), and whether it is away. A queue that
        is not among them is gone."""
        there = set()
        for name, partitions in queues:
            there.add(name)
            if self._wanted and not self._chosen(name, f"$queue/{name}"):
                continue
            first, width = self._queues.get(name) or (0, 0)
            if width != len(partitions) and not (width == 1 and len(partitions) > PARTITIONS_MAX):
                for lane in self.lanes[first:first + width] if width else ():
                    lane.gone = True
                first, width = self._new_queue(name, len(partitions))
                self.changes += 1
            if first == OTHERS:
                continue
            for lane, (owner, backlog, away) in zip(self.lanes[first:first + width], partitions, strict=False):
                self._owned(lane, owner, now)
                lane.backlog, lane.away, lane.used = backlog, away, True
        for name in [name for name in self._queues if name not in there]:
            first, width = self._queues[name]
            if any(lane.backlog >= 0 for lane in self.lanes[first:first + width]):  # it was there
                for lane in self.lanes[first:first + width]:
                    lane.gone = True
                del self._queues[name]
                self.changes += 1

    def _owned(self, lane: Lane, owner: str, now: float) -> None:
        if owner and lane.owner and owner != lane.owner:
            lane.owner_before, lane.moved_at = lane.owner, now
            self.moves.append((lane.title, lane.owner, owner))
        if owner:
            lane.owner = owner

    # ── what is shown ────────────────────────────────────────────────────────────────────────────────────────

    def shown(self) -> list[Lane]:
        """In the order of the screen: as wished, or queues and then topics by name; what belongs nowhere is last."""
        found = [lane for lane in self.lanes if not lane.gone and (lane.kind != "other" or lane.used)]
        places = {"queue": 0, "topic": 1, "other": 2}
        last = len(self._order)
        return sorted(found, key=lambda lane: (
            lane.kind == "other", self._order.get(lane.name, self._order.get(f"$queue/{lane.name}", last)),
            places[lane.kind], lane.name if lane.kind != "other" else "", -lane.number if lane.kind == "other" else 0,
            lane.partition))
