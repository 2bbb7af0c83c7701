"""Raft's state machine (_core/raft) among replicas that end, disks that lose what was not synced, and a network that
loses, repeats and overtakes. What must hold is checked after every step (kit/raft); in the end everything works again,
and everybody gets everything."""
from __future__ import annotations

from collections import Counter

import pytest
from kit.raft import World
from kit.sizes import some

from fluxmq._core.errors import UsageError
from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.machine import Raft
from fluxmq._core.raft.messages import ENTRY_MEMBERS, ENTRY_RECORDS, Entry, Message, MessageKind

SIZES = (3, 5, 3, 2, 1)
STEPS = 5000


def play(seed: int) -> World:
    world = World(seed, SIZES[seed % len(SIZES)], spare=seed % 3)
    for _ in range(STEPS):
        world.step(changes=seed % 2 == 0)
    world.settle()
    return world


@pytest.mark.parametrize("part", some(12, range(500)))
def test_what_is_committed_stays(part: int) -> None:
    """Forty worlds each: a failure names its seed."""
    seen: Counter[str] = Counter()
    for seed in range(40 * part, 40 * part + 40):
        try:
            seen += play(seed).seen
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    # Otherwise the worlds would be too quiet to prove anything.
    assert min(seen[what] for what in ("terms", "killed", "copied", "members", "transfers", "cuts")) >= 3, seen


def alone() -> Raft:
    """The leader of a group of one, with an entry of its term committed."""
    raft = Raft(1, EntryLog({1}), lambda n: 0)
    raft.campaign()
    for _ in range(3):
        raft.persisted(raft.take().number)
    assert raft.leads and raft.commit == raft.log.last_index == 1
    return raft


@pytest.mark.parametrize(("voters", "learners"), [
    ({1, 2}, set()), ({1}, {2, 3}), (set(), set()), ({1}, set()), ({1}, {1}), ({2}, set())],
    ids=["a voter that was no learner", "two at a time", "nobody", "no change", "both", "another one"])
def test_what_is_no_change_of_one_replica(voters: set[int], learners: set[int]) -> None:
    raft = alone()
    with pytest.raises(UsageError, match="is no change of one replica"):
        raft.change_members(voters, learners)
    assert raft.log.last_index == 1
    assert raft.change_members({1}, {2}) == 2 and raft.learners == {2}
    assert raft.change_members({1, 2}, set()) == 0      # the first one is not committed


def test_members_are_no_proposal() -> None:
    raft = alone()
    with pytest.raises(UsageError, match="change_members"):
        raft.propose([(ENTRY_RECORDS, b"x"), (ENTRY_MEMBERS, b"")])
    assert raft.log.last_index == 1


def test_its_own_vote_counts_when_it_is_on_the_disk() -> None:
    """Otherwise it led a term that it would not know after a loss of power."""
    raft = Raft(1, EntryLog({1}), lambda n: 0)
    raft.campaign()
    taken = raft.take()
    assert taken.vote == (1, 1) and raft.state_name == "CANDIDATE"
    raft.persisted(taken.number)
    assert raft.leads


def test_a_copy_that_comes_late_takes_nothing_back() -> None:
    """It was sent when this replica lacked what it has acknowledged meanwhile."""
    raft = Raft(2, EntryLog({1, 2, 3}), lambda n: 0)
    entries = [Entry(1, ENTRY_RECORDS, b"%d" % index) for index in range(5)]
    raft.step(Message(MessageKind.APPEND, 2, 1, sender=1, entries=entries, commit=2))
    taken = raft.take()
    raft.persisted(taken.number)
    raft.step(Message(MessageKind.COPY, 2, 1, sender=1, index=4, log_term=1, commit=4))
    [answer] = raft.take().later
    assert (answer.kind, answer.index, answer.refused) == (MessageKind.APPENDED, 4, False)
    raft.installed(4, 1, {1, 2, 3}, ())
    assert (raft.log.base, raft.log.last_index, raft.on_disk, raft.applied) == (4, 5, 5, 4)
    raft.installed(6, 2, {1, 2}, ())
    assert (raft.log.base, raft.log.last_index, raft.on_disk, raft.voters) == (6, 6, 6, {1, 2})
