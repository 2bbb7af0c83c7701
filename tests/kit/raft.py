"""Replicas of one group in a world of its own: a network that loses, repeats and overtakes, disks that are slow and
lose what was not synced, processes that end and start, copies instead of a log. Everything comes from one seed.

What must hold at any time (kit/raft_truth) is checked after every step, of every message that leaves and of every
batch that is written.
"""
from __future__ import annotations

from collections import deque
from itertools import accumulate
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
from kit.raft_truth import Truth

__all__ = ["Disk", "Members", "Replica", "World"]

Members = tuple[frozenset[int], frozenset[int]]


class Disk:
    """base, members: of the copy. entries: behind it. vote: (term, vote)."""

    def __init__(self, members: Members) -> None:
        self.base, self.base_term, self.members = 0, 0, members
        self.entries: list[Entry] = []
        self.vote = (0, 0)

    def write(self, taken: Taken) -> None:
        if taken.cut:
            del self.entries[max(taken.cut - self.base - 1, 0):]
        # A copy that has come since has what these begin with.
        entries = taken.entries[max(self.base + 1 - taken.first, 0):]
        if entries:
            assert max(taken.first, self.base + 1) == self.base + len(self.entries) + 1, "a gap on the disk"
            self.entries += entries
        if taken.vote is not None:
            assert taken.vote >= self.vote[:1], "the term goes back"
            self.vote = taken.vote

    def last(self) -> tuple[int, int]:
        """Term and index of the last entry."""
        return (self.entries[-1].term if self.entries else self.base_term), self.base + len(self.entries)

    def has(self, index: int, entry: Entry) -> bool:
        """Whether this is the entry of this index; what is in the copy is not told apart."""
        at = index - self.base - 1
        return at < 0 or (at < len(self.entries) and self.entries[at] == entry)

    def newest_members(self) -> Members:
        for entry in reversed(self.entries):
            if entry.kind == ENTRY_MEMBERS:
                return members_of(entry.data)
        return self.members


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
        world = self.world
        self.raft = Raft(self.number, log, world.chance.randrange, term=disk.vote[0], vote=disk.vote[1],
                         commit=disk.base, election_ticks=world.election_ticks, heartbeat_ticks=world.heartbeat_ticks,
                         in_sync_min=world.in_sync_min, append_bytes_max=world.append_bytes,
                         flying_bytes_max=5 * world.append_bytes)

    def kill(self) -> None:
        """Some of what was not synced is on the disk."""
        self.world.seen["killed"] += self.raft is not None
        for _ in range(self.world.chance.randint(0, len(self.writes))):
            self.disk.write(self.writes.popleft())
        self.writes.clear()
        self.raft = None
        self.world.truth.stays()

    def turn(self) -> None:
        """What a step has left to do."""
        if self.raft is None or not (taken := self.raft.take()):
            return
        self.world.truth.commits(self, taken)
        if taken.cut or any(entry.kind == ENTRY_MEMBERS for entry in taken.entries):
            self.world.truth.follows_its_log(self)
        for message in taken.now:
            self.world.post(message)
        if taken.cut or taken.entries or taken.vote or taken.later or self.writes:
            self.writes.append(taken)
        else:
            self.raft.persisted(taken.number)

    def sync(self) -> None:
        """The disk has written what waits, or some of it."""
        for _ in range(self.world.chance.choice((1, len(self.writes)))):
            if not self.writes:
                return
            taken = self.writes.popleft()
            self.world.seen["cuts"] += taken.cut > 0
            self.disk.write(taken)
            for message in taken.later:
                self.world.post(message)
            if self.raft is not None:
                self.raft.persisted(taken.number)
                self.world.truth.written(self)
            self.turn()

    def copy(self, index: int, term: int, members: Members) -> None:
        """A copy of the queues has come, and is on the disk behind all that was written before."""
        while self.writes:
            self.sync()
        if self.raft is not None and index > self.raft.commit:
            self.world.seen["copied"] += 1
            disk, stays = self.disk, self.raft.installed(index, term, *members)
            self.world.seen["stayed"] += stays
            del disk.entries[:index - disk.base if stays else None]
            disk.base, disk.base_term, disk.members = index, term, members
            disk.vote = self.raft.term, self.raft.vote
            self.world.truth.stays()
            self.turn()

    def forget(self, index: int) -> None:
        """A checkpoint has what the entries up to here did."""
        assert self.raft is not None
        index = min(index, self.raft.applied, self.raft.on_disk)
        if index <= self.disk.base or self.writes:
            return
        members = self.world.truth.members_at(index)
        for entry in self.disk.entries[:index - self.disk.base]:
            self.disk.base_term = entry.term
        del self.disk.entries[:index - self.disk.base]
        self.disk.base, self.disk.members = index, members
        self.raft.forget(index)


class World:
    """replicas: by number."""

    def __init__(self, seed: int, size: int, *, spare: int = 0) -> None:
        self.chance = Random(seed)
        pick = self.chance.choice
        first: Members = (frozenset(range(1, size + 1)), frozenset())
        self.in_sync_min = pick((0, 0, 2, size))
        self.election_ticks, self.heartbeat_ticks = pick(((10, 3), (6, 1)))
        self.append_bytes = pick((1, 200, 1000))        # 1: each entry comes alone
        self.in_order = pick((0.3, 0.7, 0.95))
        self.wire: list[bytes] = []
        self.loss = pick((0.0, 0.02, 0.2))
        # How often what happens, beside each other.
        weights = {"deliver": pick((20, 45)), "sync": pick((10, 20, 40)), "tick": pick((6, 12, 25)),
                   "propose": pick((1, 10)), "start": pick((5, 15)), "forget": pick((0, 2, 8)),
                   "change": pick((2, 8, 20)), "copy": pick((1, 10)), "transfer": pick((0, 2, 8)),
                   "disturb": pick((0.1, 0.5)), "silence": pick((0.1, 0.5, 2)), "kill": pick((0, 0.1, 0.5)),
                   "heal": 0.4, "power": pick((0, 0.1, 0.5))}
        self.events, self.weights = list(weights), list(accumulate(weights.values()))
        self.copies: list[tuple[Replica, int, int, Members]] = []       # under way
        self.cuts: set[tuple[int, int]] = set()
        self.proposed = 0
        self.replicas: dict[int, Replica] = {}
        self.truth = Truth(self.replicas, first, self.in_sync_min)
        self.seen = self.truth.seen
        for number in range(1, size + spare + 1):
            self.replicas[number] = self.make(number, first)

    def make(self, number: int, members: Members) -> Replica:
        """One that is started for the first time."""
        return Replica(self, number, members)

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────

    def post(self, message: Message) -> None:
        self.truth.promises(message)
        if self.chance.random() >= self.loss and (message.sender, message.to) not in self.cuts:
            raw = encode_message(message)
            self.wire.append(raw)
            if self.loss and self.chance.random() < 0.05:
                self.wire.append(raw)

    def deliver(self) -> None:
        """Some messages come. The more there are the more come: otherwise nobody would be heard in time."""
        for _ in range(min(1 + len(self.wire) // 8, len(self.wire))):
            self.deliver_one()

    def deliver_one(self) -> None:
        at = 0 if self.chance.random() < self.in_order else self.chance.randrange(len(self.wire))
        message = decode_message(self.wire.pop(at))
        target = self.replicas[message.to]
        if target.raft is None or (message.sender, message.to) in self.cuts:
            return
        target.raft.step(message)
        if message.kind == MessageKind.COPY and message.index > target.raft.commit and self.chance.random() < 0.7:
            source = self.replicas[message.sender]
            if source.raft is not None and source.disk.base >= message.index:
                self.copies.append((target, source.disk.base, source.disk.base_term, source.disk.members))
        target.turn()

    def install(self) -> None:
        """A copy has taken its time. What comes meanwhile may be acknowledged."""
        if self.copies:
            target, index, term, members = self.copies.pop(self.chance.randrange(len(self.copies)))
            target.copy(index, term, members)

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
        away = [number for number in self.replicas if number not in voters]
        # Otherwise there would soon be one voter in most worlds.
        one = self.chance.choice(away if away and self.chance.random() < 0.6 else list(self.replicas))
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
            if self.chance.random() < 0.2:
                self.disturb()
                self.silence()

    def disturb(self) -> None:
        """Links are cut."""
        one, other = self.some_leader().number, self.some_replica().number
        match self.chance.randrange(4):
            case 0:
                self.cuts.add((one, other))
            case 1:
                self.cuts.add((other, one))
            case 2:
                side = {each for each in self.replicas if self.chance.random() < 0.5}
                self.cuts |= {(each, away) for each in self.replicas for away in self.replicas
                              if (each in side) != (away in side)}
            case _:
                for each in self.replicas:
                    self.cuts |= {(one, each), (each, one)}

    def silence(self) -> None:
        """Time passes and nothing comes: nobody is sure of a leader any more, and one replica stands first. Who led may
        not know yet."""
        first = self.some_replica()
        for replica in self.replicas.values():
            ticks = 2 * self.election_ticks if replica is first else self.chance.randint(0, self.election_ticks)
            for _ in range(ticks):
                if replica.raft is not None:
                    replica.raft.tick()
                    replica.turn()

    def some_replica(self) -> Replica:
        return self.chance.choice(list(self.replicas.values()))

    def some_leader(self) -> Replica:
        """One that leads, or thinks so; if nobody does, anyone."""
        leading = [replica for replica in self.replicas.values() if replica.raft is not None and replica.raft.leads]
        return self.chance.choice(leading or list(self.replicas.values()))

    def transfer(self, replica: Replica) -> None:
        if replica.raft is not None:
            self.seen["transfers"] += replica.raft.transfer(self.some_replica().number)
            replica.turn()

    def step(self, *, changes: bool) -> None:
        terms = len(self.truth.leaders)
        self.event(changes=changes)
        self.truth.check()
        if changes and len(self.truth.leaders) > terms and self.chance.random() < 0.5:
            self.change(self.some_leader())     # one that has just begun, and must not yet
            self.truth.check()

    def event(self, *, changes: bool) -> None:
        replica = self.some_replica()
        raft = replica.raft
        event = self.chance.choices(self.events, cum_weights=self.weights)[0]
        if event == "deliver" and not self.wire:
            event = "tick"      # while nothing is under way, nothing happens but that time passes
        match event:
            case "deliver":
                self.deliver()
            case "sync":
                replica.sync()
            case "tick" if raft is not None:
                raft.tick()
                replica.turn()
            case "propose":
                self.propose(self.some_leader())
            case "start" if raft is None:
                replica.start()
            case "forget" if raft is not None:
                replica.forget(self.chance.randint(replica.disk.base, raft.applied))
            case "copy":
                self.install()
            case "transfer":
                self.transfer(self.some_leader())
            case "change" if changes:
                self.change(self.some_leader())
            case "disturb":
                self.disturb()
            case "heal":
                self.cuts.clear()
            case "silence":
                self.silence()
            case "kill":
                self.chance.choice((replica, self.some_leader())).kill()
            case "power":
                for each in self.replicas.values():
                    each.kill()

    def settle(self, steps: int = 2_000) -> None:
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
                if self.wire:
                    self.deliver_one()
            self.install()
            self.truth.check()
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
