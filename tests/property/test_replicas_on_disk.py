"""Replicas of Raft with real journals: the worlds of kit/raft, in which each replica writes what its state machine
gives out into a store, makes checkpoints, is killed, also in the middle of one, and starts from its directory.

Shown at each start: term and vote are those that were written last, the log is what was written, without what was cut,
from where the copies are on; the members are those as of there. And what must hold at any time in a world holds in
these.
"""
from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from kit.raft import Disk, Members, Replica, World
from kit.sizes import some
from kit.stored_node import StoredNode

from fluxmq._core.raft.machine import Raft, Taken
from fluxmq._core.raft.messages import ENTRY_MEMBERS, ENTRY_RECORDS, Entry, encode_members, members_of
from fluxmq.engine import replicas
from fluxmq.engine.queues.recovery.line import QueueLine

GROUP, INCARNATION = 7, 12345


class Store(StoredNode):
    """A node with a replica of the group, and copies of no queues."""

    def __init__(self, directory: Path, life: int) -> None:
        super().__init__(directory, life)
        assert self.keeper.queues is not None
        self.lines = self.keeper.queues.copies
        if GROUP not in self.lines.lines:
            self.lines.add(QueueLine(self.manager, self.hub.commits.open_line("group 7", GROUP)))
        self.logs = self.keeper.replicas

    @property
    def replica(self) -> replicas.Replica:
        return self.logs.replicas[GROUP]

    def apply(self, index: int) -> None:
        """The copies have what entries up to here did."""
        self.lines.lines[GROUP].apply(b"", position=index)
        self.replica.applied = index

    def checkpoint_that_applies(self, index: int, gathered: bool = False) -> None:
        """More is applied when it has begun."""
        assert self.keeper.queues is not None
        begin = self.keeper.queues.begin_export

        def applies(upto: int) -> Any:
            self.apply(index)
            return begin(upto)

        self.keeper.queues.begin_export = applies  # type: ignore[method-assign]
        try:
            self.checkpoint(gathered)
        finally:
            del self.keeper.queues.begin_export

    def begin_checkpoint(self) -> None:
        """The rest is never done."""
        self.journal.rotate()
        self.logs.record_again()
        self.sync()


class StoredDisk(Disk):
    """Of the model, which writes into the store, too."""

    def __init__(self, members: Members, directory: Path) -> None:
        super().__init__(members)
        self.directory, self.lives = directory, 0
        self.store: Store | None = None

    @property
    def open(self) -> Store:
        assert self.store is not None
        return self.store

    def start(self, number: int) -> replicas.Replica:
        """What a start finds, which is what the model has."""
        self.lives += 1
        self.store = Store(self.directory, self.lives)
        found = self.store.logs.replicas.get(GROUP)
        if found is None:
            assert self.last() == (0, 0) and self.vote == (0, 0)
            found = self.store.logs.add(GROUP, INCARNATION, number, *self.members)
        term, vote = self.vote
        assert found.state.astuple()[:5] == (INCARNATION, number, self.lives - 1, term, vote)
        assert not found.state.damaged and not found.lacks_copy
        log = found.log
        assert (log.base, log.base_term, log.members_at(log.base)) == (self.base, self.base_term, self.members)
        assert log.tail() == self.entries
        self.store.logs.begin_life(found)
        self.store.sync()
        return found

    def write(self, taken: Taken) -> None:
        super().write(taken)
        if taken.entries or taken.vote:
            commit = taken.applied + len(taken.committed) - 1
            self.open.logs.write(self.open.replica, taken.first, taken.entries, taken.vote, commit)
            self.open.sync()


class StoredReplica(Replica):
    world: StoredWorld
    disk: StoredDisk

    def make_disk(self, members: Members) -> Disk:
        return StoredDisk(members, self.world.directory / str(self.number))

    def start(self) -> None:
        found = self.disk.start(self.number)
        world = self.world
        self.raft = Raft(self.number, found.log, world.chance.randrange, term=found.state.term, vote=found.state.vote,
                         commit=found.commit, applied=found.applied, election_ticks=world.election_ticks,
                         heartbeat_ticks=world.heartbeat_ticks, in_sync_min=world.in_sync_min,
                         append_bytes_max=world.append_bytes, flying_bytes_max=5 * world.append_bytes)

    def kill(self) -> None:
        running = self.raft is not None
        # What is recorded again is what the state machine has: here the disk has it, too.
        if running and not self.writes and self.world.chance.random() < 0.5:
            self.disk.open.begin_checkpoint()
            self.world.seen["in a checkpoint"] += 1
        super().kill()
        if running:
            self.disk.open.close()

    def forget(self, index: int) -> None:
        raft, former = self.raft, self.disk.base
        super().forget(index)
        if raft is not None and self.disk.base > former:
            store = self.disk.open
            if self.world.chance.random() < 0.5:
                store.checkpoint_that_applies(self.disk.base)
            else:
                store.apply(self.disk.base)
                store.checkpoint()
            self.world.seen["checkpoints"] += 1

    def copy(self, index: int, term: int, members: Members) -> None:
        while self.writes:
            self.sync()
        raft = self.raft
        if raft is None or index <= raft.commit:
            return
        store = self.disk.open
        store.logs.begin_install(store.replica, index, term, *members)
        store.lines.lines[GROUP].apply(b"", position=index)
        store.checkpoint()
        state = store.replica.state
        state.term, state.vote = raft.term, raft.vote
        super().copy(index, term, members)
        store.logs.installed(store.replica)
        store.sync()


class StoredWorld(World):
    def __init__(self, seed: int, size: int, directory: Path, *, spare: int = 0) -> None:
        self.directory = directory
        super().__init__(seed, size, spare=spare)

    def make(self, number: int, members: Members) -> Replica:
        return StoredReplica(self, number, members)


@pytest.mark.parametrize("seed", some(8, range(400)))
def test_worlds_on_disks(seed: int, tmp_path: Path) -> None:
    world = StoredWorld(seed, 1 + seed % 3, tmp_path, spare=seed % 2)
    try:
        for _ in range(400):
            world.step(changes=True)
        world.settle()
        for replica in world.replicas.values():
            replica.kill()
            replica.start()
        world.truth.check()
    finally:
        for replica in world.replicas.values():
            replica.kill()


class History:
    """One replica, to which happens what may happen to one: leaders come and replace what was not committed, far more
    often than in a world. entries, by index: what was written and not replaced. applied: what the copies have;
    stored: as of the last checkpoint."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = Random(seed)
        self.directory, self.lives = directory, 1
        self.entries: dict[int, Entry] = {}
        self.members: dict[int, Members] = {0: (frozenset({1, 2, 3}), frozenset())}
        self.base = 0                       # of what is known of entries
        self.applied = self.stored = 0
        self.term, self.vote = 0, 0
        self.store = Store(directory, 1)
        self.log = self.store.logs.add(GROUP, INCARNATION, 2, *self.members[0]).log
        self.store.logs.begin_life(self.store.replica)
        self.votes()
        self.acts = [self.append] * 4 + [self.replace, self.replace, self.votes, self.applies, self.applies,
                                         self.forget, self.checkpoint, self.checkpoint, self.dies, self.install]

    @property
    def last(self) -> int:
        return max(self.entries, default=self.base)

    def write(self, first: int, entries: list[Entry]) -> None:
        """As what a state machine gives out."""
        for index, entry in enumerate(entries, first):
            self.log.add(entry)
            self.entries[index] = entry
            if entry.kind == ENTRY_MEMBERS:
                self.members[index] = members_of(entry.data)
        self.store.logs.write(self.store.replica, first, entries, None, self.applied)

    def some_entries(self) -> list[Entry]:
        def one() -> Entry:
            if self.chance.random() < 0.2:
                return Entry(self.term, ENTRY_MEMBERS, encode_members({2, self.chance.randrange(3, 9)}, {1}))
            return Entry(self.term, ENTRY_RECORDS, self.chance.randbytes(self.chance.choice((0, 5, 900))))
        return [one() for _ in range(self.chance.randint(1, 4))]

    def append(self) -> None:
        self.write(self.last + 1, self.some_entries())

    def replace(self) -> None:
        """Of a leader that lacks some of what this one has."""
        if self.last == self.applied:
            return
        first = self.chance.randint(self.applied + 1, self.last)
        self.votes()
        self.log.cut_from(first)
        for gone in range(first, self.last + 1):
            del self.entries[gone]
            self.members.pop(gone, None)
        self.write(first, self.some_entries())

    def votes(self) -> None:
        self.term += 1
        self.vote = self.chance.randint(0, 3)
        self.store.logs.write(self.store.replica, 0, [], (self.term, self.vote), self.applied)

    def applies(self) -> None:
        self.applied = self.chance.randint(self.applied, self.last)
        self.store.apply(self.applied)

    def forget(self) -> None:
        self.log.forget(self.chance.randint(self.log.base, max(self.applied, self.log.base)))

    def checkpoint(self) -> None:
        self.applied = self.chance.randint(self.applied, self.last)
        self.store.checkpoint_that_applies(self.applied, gathered=self.chance.random() < 0.7)
        self.stored = self.applied

    def install(self) -> None:
        """A copy of everything up to some entry that this one does not have, or has of another term."""
        if self.chance.random() < 0.7:
            return
        self.votes()
        index = self.chance.randint(self.applied + 1, self.last + 3)
        members = frozenset({2, self.chance.randrange(3, 9)}), frozenset[int]()
        self.store.logs.begin_install(self.store.replica, index, self.term, *members)
        if self.chance.random() < 0.3:
            self.dies()                     # what is there stays
            return
        self.store.lines.lines[GROUP].apply(b"", position=index)
        self.store.checkpoint()
        self.entries.clear()
        self.members = {index: members}
        self.base = self.applied = self.stored = index
        self.base_term = self.term
        if self.chance.random() < 0.3:
            self.dies()                     # before it is said
        else:
            self.log.restart(index, self.term, *members)
            self.store.logs.installed(self.store.replica)

    def dies(self) -> None:
        if self.chance.random() < 0.5:
            self.store.begin_checkpoint()
        self.store.sync()
        self.store.close()
        self.lives += 1
        self.store = Store(self.directory, self.lives)
        self.same()
        self.store.logs.begin_life(self.store.replica)

    def same(self) -> None:
        replica, stored = self.store.replica, self.stored
        self.log = log = replica.log
        assert replica.state.astuple()[:5] == (INCARNATION, 2, self.lives - 1, self.term, self.vote)
        assert not replica.state.damaged and not replica.lacks_copy
        assert replica.applied == log.base == stored <= replica.commit <= self.last
        assert log.tail() == [self.entries[index] for index in range(stored + 1, self.last + 1)]
        assert log.base_term == (self.entries[stored].term if stored in self.entries else
                                 self.base_term if stored else 0)
        for index in range(stored, self.last + 1):
            assert log.members_at(index) == self.members[max(at for at in self.members if at <= index)]
        self.applied = stored


@pytest.mark.parametrize("seed", some(24, range(1000)))
def test_what_a_start_finds(seed: int, tmp_path: Path) -> None:
    history = History(seed, tmp_path)
    try:
        for _ in range(80):
            history.chance.choice(history.acts)()
        history.dies()
    finally:
        history.store.close()
