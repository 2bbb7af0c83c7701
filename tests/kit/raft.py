"""Replicas of one group in a world of its own: a network that loses, repeats and overtakes, disks that are slow and
lose what was not synced, processes that end and start, copies instead of a log. Everything comes from one seed.

What holds at any time is checked after every step (`World.check`): one leader of a term, one entry of a committed
index, a leader has all that is committed, and nothing counts as on the disk that is not.
"""
from __future__ import annotations

from collections import Counter, deque
from random import Random

from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.machine import Raft, Taken
from fluxmq._core.raft.messages import (
    ENTRY_MEMBERS,
    ENTRY_NOTHING,
    ENTRY_RECORDS,
    Entry,
    Message,
    MessageKind,
    decode_message,
    encode_message,
    members_of,
)

__all__ = ["Disk", "Members", "Replica", "World"]

ELECTION_TICKS, HEARTBEAT_TICKS = 10, 3
Members = tuple[frozenset[int], frozenset[int]]


class Disk:
    """base, members: of the copy. entries: behind it. vote: (term, vote)."""

    def __init__(self, members: Members) -> None:
        self.base, self.base_term, self.members = 0, 0, members
        self.entries: list[Entry] = []
        self.vote = (0, 0)

    def write(self, taken: Taken) -> None:
        if taken.cut > self.base:
            del self.entries[taken.cut - self.base - 1:]
        if taken.entries:
            assert taken.first == self.base + len(self.entries) + 1, "a gap on the disk"
            self.entries += taken.entries
        if taken.vote is not None:
            assert taken.vote >= self.vote[:1], "the term goes back"
            self.vote = taken.vote

    def last(self) -> tuple[int, int]:
        """Term and index of the last entry."""
        return (self.entries[-1].term if self.entries else self.base_term), self.base + len(self.entries)


class Replica:
    def __init__(self, world: World, number: int, members: Members) -> None:
        self.world, self.number = world, number
        self.disk = self.make_disk(members)
        self.writes: deque[Taken] = deque()     # not synced
        self.raft: Raft | None = None
        self.start()

    def make_disk(self, members: Members) -> Disk:
        """As it is before the first start."""
        return Disk(members)

    def start(self) -> None:
        disk, log = self.disk, EntryLog(*self.disk.members, self.disk.base, self.disk.base_term)
        for entry in disk.entries:
            log.add(entry)
        self.raft = Raft(self.number, log, self.world.chance.randrange, term=disk.vote[0], vote=disk.vote[1],
                         commit=disk.base, election_ticks=ELECTION_TICKS,
                         heartbeat_ticks=HEARTBEAT_TICKS, in_sync_min=self.world.in_sync_min, append_bytes_max=200,
                         flying_bytes_max=1000)

    def kill(self) -> None:
        """Some of what was not synced is on the disk."""
        self.world.seen["killed"] += self.raft is not None
        for _ in range(self.world.chance.randint(0, len(self.writes))):
            self.disk.write(self.writes.popleft())
        self.writes.clear()
        self.raft = None

    def turn(self) -> None:
        """What a step has left to do."""
        if self.raft is None or not (taken := self.raft.take()):
            return
        for message in taken.now:
            self.world.post(message)
        for index, entry in enumerate(taken.committed, taken.applied):
            self.world.committed_is(self, index, entry)
        if taken.cut or taken.entries or taken.vote or taken.later or self.writes:
            self.writes.append(taken)
        else:
            self.raft.persisted(taken.number)

    def sync(self) -> None:
        """The disk has written one batch more."""
        if self.writes:
            taken = self.writes.popleft()
            self.world.seen["cuts"] += taken.cut > 0
            self.disk.write(taken)
            for message in taken.later:
                self.world.post(message)
            if self.raft is not None:
                self.raft.persisted(taken.number)
            self.turn()

    def copy(self, index: int, term: int, members: Members) -> None:
        """A copy of the queues has come, and is on the disk."""
        if self.raft is not None and index > self.raft.commit:
            self.world.seen["copied"] += 1
            self.writes.clear()
            disk = self.disk
            disk.base, disk.base_term, disk.members, disk.entries = index, term, members, []
            disk.vote = self.raft.term, self.raft.vote
            self.raft.installed(index, term, *members)
            self.turn()

    def forget(self, index: int) -> None:
        """A checkpoint has what the entries up to here did."""
        assert self.raft is not None
        index = min(index, self.raft.applied, self.raft.on_disk)
        if index <= self.disk.base or self.writes:
            return
        members = self.world.members_at(index)
        for entry in self.disk.entries[:index - self.disk.base]:
            self.disk.base_term = entry.term
        del self.disk.entries[:index - self.disk.base]
        self.disk.base, self.disk.members = index, members
        self.raft.forget(index)


class World:
    """replicas: by number. committed: by index. now and then `count` steps are played."""

    def __init__(self, seed: int, size: int, *, spare: int = 0) -> None:
        self.chance = Random(seed)
        self.first: Members = (frozenset(range(1, size + 1)), frozenset())
        self.in_sync_min = self.chance.choice((0, 0, 2, size))
        self.wire: list[bytes] = []
        self.loss = self.chance.choice((0.0, 0.02, 0.2))
        # How often what happens, beside each other.
        pick = self.chance.choice
        self.weights = {"deliver": 45, "sync": pick((3, 20, 40)), "tick": pick((10, 18, 40)), "propose": pick((1, 10)),
                        "start": pick((3, 10)), "forget": pick((0, 1, 4)), "change": 2, "transfer": pick((0, 2)),
                        "disturb": pick((0.1, 0.5, 1)), "kill": pick((0, 0.1, 0.5))}
        self.cuts: set[tuple[int, int]] = set()
        self.committed: dict[int, Entry] = {}
        self.leaders: dict[int, int] = {}
        self.seen: Counter[str] = Counter()
        self.proposed = 0
        self.replicas = {number: self.make(number, self.first) for number in range(1, size + spare + 1)}

    def make(self, number: int, members: Members) -> Replica:
        """One that is started for the first time."""
        return Replica(self, number, members)

    # ── what is true ─────────────────────────────────────────────────────────────────────────────────────────

    def committed_is(self, replica: Replica, index: int, entry: Entry) -> None:
        if index not in self.committed:
            self.seen["committed"] += 1
            self.seen["members"] += entry.kind == ENTRY_MEMBERS
        known = self.committed.setdefault(index, entry)
        assert known == entry, f"entry {index} of replica {replica.number} is {entry}, and {known} was committed"

    def members_at(self, index: int) -> Members:
        members = self.first
        for at in range(1, index + 1):
            if at in self.committed and self.committed[at].kind == ENTRY_MEMBERS:
                members = members_of(self.committed[at].data)
        return members

    def check(self) -> None:
        for replica in self.replicas.values():
            raft = replica.raft
            if raft is None:
                continue
            if raft.leads:
                self.seen["terms"] += raft.term not in self.leaders
                assert self.leaders.setdefault(raft.term, replica.number) == replica.number, "two leaders of a term"
                for index, entry in self.committed.items():
                    assert index > raft.log.last_index or index <= raft.log.base or raft.term < entry.term \
                        or raft.log.tail()[index - raft.log.base - 1] == entry or raft.commit < index, "a leader lacks"
            on_disk = replica.disk.base + len(replica.disk.entries)
            assert raft.on_disk <= on_disk, "it counts what is not on its disk"

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────

    def post(self, message: Message) -> None:
        if self.chance.random() >= self.loss and (message.sender, message.to) not in self.cuts:
            raw = encode_message(message)
            self.wire.append(raw)
            if self.loss and self.chance.random() < 0.05:
                self.wire.append(raw)

    def deliver(self) -> None:
        if not self.wire:
            return
        at = 0 if self.chance.random() < 0.7 else self.chance.randrange(len(self.wire))
        message = decode_message(self.wire.pop(at))
        target = self.replicas[message.to]
        if target.raft is None or (message.sender, message.to) in self.cuts:
            return
        target.raft.step(message)
        if message.kind == MessageKind.COPY and self.chance.random() < 0.7:
            self.copy(target, message)
        target.turn()

    def copy(self, target: Replica, message: Message) -> None:
        source = self.replicas[message.sender]
        if source.raft is not None and source.disk.base >= message.index:
            target.copy(source.disk.base, source.disk.base_term, source.disk.members)

    def propose(self, replica: Replica) -> None:
        if replica.raft is not None and replica.raft.leads:
            self.proposed += replica.raft.propose([
                (ENTRY_RECORDS, b"%d" % self.proposed * self.chance.choice((1, 1, 100)))
                for _ in range(self.chance.randint(1, 4))]) > 0
            replica.turn()

    def change(self, replica: Replica) -> None:
        """Somebody comes as a learner, gets a vote, or goes."""
        raft = replica.raft
        if raft is None or not raft.leads:
            return
        voters, learners = raft.voters, raft.learners
        one = self.chance.choice(list(self.replicas))
        if one in learners:
            learners = learners - {one}
            if self.chance.random() < 0.7:
                voters = voters | {one}     # in one step: from learner to voter is a change of one replica
        elif one in voters:
            voters = voters - {one}
        else:
            learners = learners | {one}
        if voters:
            raft.change_members(voters, learners)
            replica.turn()

    def disturb(self) -> None:
        one, other = self.some_replica().number, self.some_replica().number
        match self.chance.randrange(7):
            case 0:
                self.cuts.add((one, other))
            case 1:
                for each in self.replicas:
                    self.cuts |= {(one, each), (each, one)}
            case 2 | 3 | 5 | 6:
                self.cuts.clear()
            case 4:
                for each in self.replicas.values():     # all lose power
                    each.kill()

    def some_replica(self) -> Replica:
        return self.chance.choice(list(self.replicas.values()))

    def transfer(self, replica: Replica) -> None:
        if replica.raft is not None:
            self.seen["transfers"] += replica.raft.transfer(self.some_replica().number)
            replica.turn()

    def step(self, *, changes: bool) -> None:
        replica = self.some_replica()
        raft = replica.raft
        match self.chance.choices(list(self.weights), list(self.weights.values()))[0]:
            case "deliver":
                self.deliver()
            case "sync":
                replica.sync()
            case "tick" if raft is not None:
                raft.tick()
                replica.turn()
            case "propose":
                self.propose(replica)
            case "start" if raft is None:
                replica.start()
            case "forget" if raft is not None:
                replica.forget(self.chance.randint(replica.disk.base, raft.applied))
            case "transfer":
                self.transfer(replica)
            case "change" if changes:
                self.change(replica)
            case "disturb":
                self.disturb()
            case "kill":
                replica.kill()
        self.check()

    def settle(self, steps: int = 20_000) -> None:
        """Everything works again: somebody leads, and everybody gets everything."""
        self.loss = 0.0
        self.cuts.clear()
        for replica in self.replicas.values():
            if replica.raft is None:
                replica.start()
        last = 0
        for turn in range(steps):
            for replica in self.replicas.values():
                assert replica.raft is not None
                if turn % 4 == 0:
                    replica.raft.tick()
                    replica.turn()
                replica.sync()
            for _ in range(2 * len(self.wire)):
                self.deliver()
            self.check()
            leading = [replica for replica in self.replicas.values() if replica.raft is not None and replica.raft.leads]
            if leading and not last:
                newest = max(leading, key=lambda replica: replica.raft.term if replica.raft is not None else 0)
                if newest.raft is not None and newest.raft.commit == newest.raft.log.last_index \
                        and newest.raft.log.last_index > 0:
                    last = newest.raft.propose([(ENTRY_NOTHING, b"")])
                    newest.turn()
            if last and leading and all(
                    replica.raft is not None and replica.raft.commit >= last for replica in self.replicas.values()
                    if leading[0].raft is not None
                    and replica.number in leading[0].raft.voters | leading[0].raft.learners):
                return
        rafts = [replica.raft for replica in self.replicas.values() if replica.raft is not None]
        raise AssertionError(f"no end: {[(r.own, r.state_name, r.term, r.commit, r.log.last_index) for r in rafts]}")
