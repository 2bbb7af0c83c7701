"""A classic queue, naively: dictionaries of messages, and for each group what it knows of each of them.

Written from docs/queues.md. It decides nothing that the documentation leaves open: it is told what the broker did (who
got what, what died, what went where) and says whether that was allowed; and, when the broker has nothing more to do,
whether anything was left undone. Places are (log, offset); a log is a lane of a partition, as the broker numbers them.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

__all__ = ["Entry", "GroupModel", "MemberModel", "Message", "QueueModel"]

Place = tuple[int, int]


@dataclass
class Message:
    payload: bytes
    expires_at: int = 0


@dataclass
class Entry:
    """What a group knows of one message that it has had. due: the end of the lease or of the wait; 0 = none."""

    state: str                      # held, ready, waiting, dying, settled
    count: int = 0
    due: int = 0
    member: Hashable = None
    why: str = ""                   # it is dying


@dataclass
class MemberModel:
    room: int
    lease_ms: int = 0
    refuses: bool = False           # it takes nothing, although it says that it has room
    missed: int = 0                 # deliveries to others since its last one, while it had credit
    most: int = 1 << 32             # it has no more than that, whatever its room


@dataclass
class GroupModel:
    """start: what is below is not for this group. mode: as the broker's. returned_max: so many may be ready or waiting;
    with these, nothing new is handed out. full: the broker says that there are as many."""

    mode: str
    start: list[int]
    entries: dict[Place, Entry] = field(default_factory=dict)
    members: dict[Hashable, MemberModel] = field(default_factory=dict)
    owners: dict[int, Hashable] = field(default_factory=dict)
    returned_max: int = 1 << 32
    full: bool = False

    def held(self, member: Hashable) -> list[Place]:
        return [place for place, entry in self.entries.items() if entry.state == "held" and entry.member == member]

    def credit(self, member: Hashable) -> int:
        known = self.members[member]
        return max(0, min(known.room, known.most) - len(self.held(member)))


class QueueModel:
    """partitions, lanes: logs[partition * lanes + lane]. deliveries_max: 0 = any number."""

    def __init__(self, partitions: int = 1, lanes: int = 1, deliveries_max: int = 0) -> None:
        self.partitions, self.lanes, self.deliveries_max = partitions, lanes, deliveries_max
        self.now = self.mono = 0
        self.logs: list[dict[int, Message]] = [{} for _ in range(partitions * lanes)]
        self.next = [lane << 56 for _ in range(partitions) for lane in range(lanes)]
        self.gone: set[Place] = set()           # every group has settled it: it may be kept for a while, or not
        self.groups: dict[str, GroupModel] = {}
        self.dead: list[tuple[bytes, str, str, int]] = []
        self.keys: dict[bytes, int] = {}
        self.unread: set[int] = set()           # logs that must be read first: what is less urgent goes on meanwhile

    # ── messages come and go ─────────────────────────────────────────────────────────────────────────────

    def appended(self, log: int, offset: int, payload: bytes, *, priority: int = 0, key: bytes = b"",
                 expires_at: int = 0) -> None:
        """Offsets of a log follow each other; the priority says the lane, a key always the same partition."""
        assert offset == self.next[log]
        assert log % self.lanes == min(priority, self.lanes - 1)
        if key:
            assert self.keys.setdefault(key, log // self.lanes) == log // self.lanes
        self.next[log] = offset + 1
        self.logs[log][offset] = Message(payload, expires_at)

    def depth(self, most: bool = False) -> int:
        """From the oldest message that some group still needs to the newest, of every log. most: if all that may be
        gone is there still, for groups that came or went back after it was settled."""
        return sum(end - min([self.first(log), *self.leftovers(log)] if most else [self.first(log)])
                   for log, end in enumerate(self.next))

    def leftovers(self, log: int) -> list[int]:
        """What may be gone, and what a group would take if it is not."""
        return [offset for at, offset in self.gone if at == log and offset in self.logs[log] and not all(
            self._settled(group, (log, offset)) for group in self.groups.values())]

    def first(self, log: int) -> int:
        """The oldest message of a log that some group still needs; without groups, that is there."""
        needed = [offset for offset in self.logs[log] if (log, offset) not in self.gone]
        return min(needed, default=self.next[log])

    def returned(self, group: GroupModel) -> int:
        """How many the group has that nobody holds; without those that were purged while somebody did."""
        return sum(entry.state in ("ready", "waiting", "dying") and offset in self.logs[log]
                   for (log, offset), entry in group.entries.items())

    def drop(self, log: int, first: int) -> None:
        """Purge, drop-head: what is below is there for nobody; whoever has it in hand may still settle it."""
        for offset in [offset for offset in self.logs[log] if offset < first]:
            del self.logs[log][offset]
            for group in self.groups.values():
                entry = group.entries.get((log, offset))
                if entry is None or entry.state != "held":
                    group.entries[log, offset] = Entry("settled")

    def buried(self, payload: bytes, reason: str, group: str = "", count: int = 0) -> None:
        self.dead.append((payload, reason, group, count))

    def _sweep(self) -> None:
        """A message goes when every group has settled it."""
        for log, messages in enumerate(self.logs):
            for offset in messages:
                if self.groups and all(self._settled(group, (log, offset)) for group in self.groups.values()):
                    self.gone.add((log, offset))

    @staticmethod
    def _settled(group: GroupModel, place: Place) -> bool:
        entry = group.entries.get(place)
        return place[1] < group.start[place[0]] if entry is None else entry.state == "settled"

    # ── groups and members ───────────────────────────────────────────────────────────────────────────────

    def add_group(self, name: str, mode: str, start: list[int]) -> None:
        """A new group begins with the oldest message kept: none that somebody needs is below `start`."""
        assert all(start[log] <= self.first(log) for log in range(len(self.logs)))
        self.groups[name] = GroupModel(mode, start)

    def drop_group(self, name: str) -> None:
        del self.groups[name]
        self._sweep()

    def join(self, group: str, member: Hashable, room: int, lease_ms: int = 0, most: int = 1 << 32) -> None:
        self.groups[group].members[member] = MemberModel(room, lease_ms, most=most)
        self._forgive(group)

    def leave(self, group: str, member: Hashable) -> None:
        """What it had is ready at once, and the delivery counts."""
        known = self.groups[group]
        for place in known.held(member):
            self._ready(known.entries[place])
        del known.members[member]
        self._forgive(group)

    def _forgive(self, group: str) -> None:
        for member in self.groups[group].members.values():
            member.missed = 0

    @staticmethod
    def _ready(entry: Entry, due: int = 0) -> None:
        entry.state, entry.due, entry.member = ("waiting" if due else "ready"), due, None

    def balanced(self, name: str, owners: dict[int, Hashable]) -> None:
        """Exclusive groups: every partition has an owner, evenly, and no more than necessary moved."""
        group = self.groups[name]
        if not group.members:
            assert all(owner is None for owner in owners.values())
        elif group.mode == "single":
            assert set(owners.values()) == {next(iter(group.members))}
        else:
            loads = {member: 0 for member in group.members}
            for owner in owners.values():
                loads[owner] += 1
            assert max(loads.values()) - min(loads.values()) <= 1, loads
            # Who may keep all it had does; who had too many gives up as few as will do.
            for member, load in loads.items():
                mine = {partition for partition, owner in group.owners.items() if owner == member}
                kept = {partition for partition in mine if owners[partition] == member}
                assert len(kept) == min(len(mine), load), (group.owners, owners)
        group.owners = dict(owners)

    # ── what the broker did in a pump ────────────────────────────────────────────────────────────────────

    def eligible(self, name: str, log: int, new: bool = True) -> list[int]:
        """Offsets of a log that may be handed out now, in order; those that must be, and those that may be gone. new:
        also what nobody has had yet."""
        group, found = self.groups[name], []
        for offset, message in sorted(self.logs[log].items()):
            entry = group.entries.get((log, offset))
            if entry is None and (offset < group.start[log] or not new):
                continue
            if (entry is None or entry.state == "ready") and not self.doomed(entry, message):
                found.append(offset)
        return found

    def doomed(self, entry: Entry | None, message: Message) -> str:
        """Why a message that nobody has is a dead letter instead of being handed out; "" for no reason."""
        if entry is not None and self.deliveries_max and entry.count >= self.deliveries_max:
            return "max_retries"
        return "expired" if message.expires_at and message.expires_at <= self.now else ""

    def delivered(self, name: str, member: Hashable, log: int, offset: int, count: int) -> None:
        """Checks that this message was due, to somebody who could take it, with the right count."""
        group = self.groups[name]
        place = (log, offset)
        entry = group.entries.get(place)
        assert entry is None or entry.state == "ready", f"{place} is {entry.state if entry else 'new'}"
        assert offset in self.logs[log] and not self._settled(group, place), f"{place} is settled or gone"
        assert not self.doomed(entry, self.logs[log][offset])
        assert count == (entry.count if entry else 0) + 1
        assert group.credit(member) > 0, "more than its credit"
        assert not group.members[member].refuses
        assert entry is not None or self.returned(group) < group.returned_max, "too many were returned"
        before = [o for o in self.eligible(name, log) if o < offset and (log, o) not in self.gone]
        assert not before, f"{before} go before {offset}"
        self._check_turns(name, member, log)
        for older in [o for o in self.eligible(name, log) if o < offset]:
            group.entries[log, older] = Entry("settled")
        lease = group.members[member].lease_ms
        group.entries[place] = Entry("held", count, self.mono + lease if lease else 0, member)

    def _check_turns(self, name: str, member: Hashable, log: int) -> None:
        group = self.groups[name]
        if group.mode != "shared":
            partition = log // self.lanes
            assert group.owners[partition] == member, "the partition is another's"
            others = {entry.member for place, entry in group.entries.items()
                      if entry.state == "held" and place[0] // self.lanes == partition}
            assert others <= {member}, "two members have messages of one partition"
            return
        for higher in range(len(self.logs)):
            if higher % self.lanes > log % self.lanes and higher not in self.unread:
                new = group.returned_max >= 1 << 32     # else it may have been full just before
                urgent = [o for o in self.eligible(name, higher, new) if (higher, o) not in self.gone]
                assert not urgent, f"{urgent} have a higher priority"
        for other, known in group.members.items():
            known.missed = known.missed + 1 if other != member and not known.refuses and group.credit(other) else 0
            assert known.missed < len(group.members), "a member with credit is passed over"

    def died(self, name: str, log: int, offset: int, reason: str, count: int) -> None:
        """Not handed out any more, or taken out of a hand by `reject`."""
        group = self.groups[name]
        entry = group.entries.get((log, offset))
        assert not self._settled(group, (log, offset))
        if reason in ("max_retries", "expired"):
            assert entry is None or entry.state == "ready"
            assert self.doomed(entry, self.logs[log][offset]) == reason
        if entry is not None and entry.state == "dying":
            assert reason == entry.why
        assert count == (entry.count if entry else 0)
        self.buried(self.logs[log][offset].payload, reason, name, count)
        self._done(group, (log, offset))

    def pumped(self) -> None:
        """Nothing that could be handed out was left; nothing doomed lies where somebody looked."""
        self._sweep()
        for name, group in self.groups.items():
            for place, entry in group.entries.items():
                assert entry.state != "dying" or place[1] not in self.logs[place[0]], f"{place} is dying still"
            for log in range(len(self.logs)):
                waits = [o for o in self.eligible(name, log, not group.full) if (log, o) not in self.gone]
                if not waits:
                    continue
                if group.mode == "shared":
                    takers = [m for m, known in group.members.items() if group.credit(m) and not known.refuses]
                else:
                    partition = log // self.lanes
                    owner = group.owners.get(partition)
                    hands = {entry.member for place, entry in group.entries.items()
                             if entry.state == "held" and place[0] // self.lanes == partition}
                    takers = [m for m, known in group.members.items()
                              if m == owner and group.credit(m) and not known.refuses and hands <= {m}]
                assert not takers, f"{name}: {takers} could have {waits} of log {log}"

    # ── what consumers do ────────────────────────────────────────────────────────────────────────────────

    def _done(self, group: GroupModel, place: Place) -> None:
        entry = group.entries.get(place)
        group.entries[place] = Entry("settled", entry.count if entry else 0)
        self._sweep()

    def settled(self, name: str, places: Iterable[Place]) -> None:
        for place in places:
            self._done(self.groups[name], place)

    def settled_upto(self, name: str, member: Hashable, log: int, offset: int) -> int:
        """All of the member's up to there; how many."""
        group = self.groups[name]
        places = [place for place in group.held(member) if place[0] == log and place[1] <= offset]
        self.settled(name, places)
        return len(places)

    def dying(self, name: str, place: Place, why: str) -> None:
        """It was refused for good, and must be read from disk before it is a dead letter. Whoever refuses it again has
        nothing to add."""
        entry = self.groups[name].entries[place]
        entry.state, entry.due, entry.member, entry.why = "dying", -1, None, why

    def given_back(self, name: str, place: Place, delay_ms: int, counts: bool = True) -> None:
        entry = self.groups[name].entries[place]
        entry.count -= not counts
        self._ready(entry, self.now + delay_ms if delay_ms else 0)

    def extended(self, name: str, place: Place, lease_ms: int) -> None:
        self.groups[name].entries[place].due = self.mono + lease_ms if lease_ms else 0

    def ticked(self) -> list[tuple[str, Hashable, Place]]:
        """Leases and waits that are over; what was taken from whom."""
        lost = []
        for name, group in self.groups.items():
            for place, entry in group.entries.items():
                if entry.state == "held" and entry.due and entry.due <= self.mono:
                    lost.append((name, entry.member, place))
                    self._ready(entry)
                elif entry.state == "waiting" and entry.due <= self.now:
                    self._ready(entry)
        return lost

    def seek(self, name: str, log: int, position: int) -> None:
        """Below all is settled, above nothing is; what nobody needs any more may come, or not."""
        group = self.groups[name]
        assert not any(entry.state == "held" for place, entry in group.entries.items() if place[0] == log)
        group.entries = {place: entry for place, entry in group.entries.items() if place[0] != log}
        group.start[log] = position
        self._sweep()

    # ── what can be seen from outside ────────────────────────────────────────────────────────────────────

    def claims(self, name: str) -> dict[Place, tuple[str, int, int, Hashable]]:
        """Everything that somebody has had and that is not settled; of what is not there any more, what is in hands."""
        return {place: (entry.state, entry.count, entry.due, entry.member)
                for place, entry in self.groups[name].entries.items()
                if entry.state == "held" or (entry.state != "settled" and place[1] in self.logs[place[0]])}

    def unsettled(self, name: str, most: bool = False) -> int:
        """Messages that the group is not done with and that are there. most: and those that may be gone."""
        group = self.groups[name]
        return sum(not self._settled(group, (log, offset)) for log, messages in enumerate(self.logs)
                   for offset in messages if most or (log, offset) not in self.gone)
