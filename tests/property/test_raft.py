"""Raft's state machine (_core/raft) among replicas that end, disks that lose what was not synced, and a network that
loses, repeats and overtakes. What must hold is checked after every step (kit/raft); in the end everything works again,
and everybody gets everything."""
from __future__ import annotations

from collections import Counter

import pytest
from kit.raft import Replica, World
from kit.sizes import some

from fluxmq._core.errors import UsageError
from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.machine import Raft
from fluxmq._core.raft.messages import ENTRY_MEMBERS, ENTRY_RECORDS, Entry, Message, MessageKind

SIZES = (3, 5, 4, 2, 1)
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
    assert min(seen[what] for what in ("killed", "copied", "members", "transfers", "cuts")) >= 3, seen
    assert seen["terms"] >= 100, seen


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


def follower(*terms: int) -> Raft:
    """One of three with entries of these terms on its disk, whose leader is replica 2, in term 9."""
    log = EntryLog({1, 2, 3})
    for term in terms:
        log.add(Entry(term, ENTRY_RECORDS, b""))
    raft = Raft(1, log, lambda n: 0, term=9)
    raft.step(Message(MessageKind.HEARTBEAT, 1, 9, sender=2))
    raft.take()
    return raft


def test_a_copy_of_what_is_there_is_not_needed() -> None:
    raft = follower(4, 4, 9)
    raft.step(Message(MessageKind.COPY, 1, 9, sender=2, index=2, log_term=4))
    assert raft.commit == 2
    assert [(message.kind, message.index) for message in raft.take().later] == [(MessageKind.APPENDED, 2)]


def test_no_more_is_committed_than_an_append_has_shown() -> None:
    """What the follower has behind it may be another leader's."""
    raft = follower(4, 4, 4)
    raft.step(Message(MessageKind.APPEND, 1, 9, sender=2, index=1, log_term=4, commit=3))
    assert raft.commit == 1


def leading(world: World) -> list[Replica]:
    return [replica for replica in world.replicas.values() if replica.raft is not None and replica.raft.leads]


def quiet(size: int) -> World:
    """A world without faults, in which one leads and all have everything."""
    world = World(0, size)
    world.settle()
    assert len(leading(world)) == 1
    return world


def pass_time(world: World, ticks: int) -> None:
    for _ in range(ticks):
        for replica in world.replicas.values():
            assert replica.raft is not None
            replica.raft.tick()
            replica.turn()
        while world.wire or any(replica.writes for replica in world.replicas.values()):
            for replica in world.replicas.values():
                replica.sync()
            world.deliver()
        world.truth.check()


def test_who_does_not_hear_the_leader_deposes_nobody() -> None:
    """Its log is as new as any: but the others hear a leader, and would not vote."""
    world = quiet(3)
    one, = leading(world)
    assert one.raft is not None
    term, deaf = one.raft.term, next(number for number in world.replicas if number != one.number)
    world.cuts.add((one.number, deaf))
    pass_time(world, 20 * world.election_ticks)
    assert leading(world) == [one] and one.raft.term == term
    raft = world.replicas[deaf].raft
    assert raft is not None and raft.leader == 0 and raft.term == term


def test_a_leader_that_hears_no_majority_leads_no_more() -> None:
    world = quiet(3)
    one, = leading(world)
    world.cuts |= {(other, one.number) for other in world.replicas}
    pass_time(world, 2 * world.election_ticks)
    assert one not in leading(world)


@pytest.mark.parametrize(("voters", "refuse"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_who_cannot_win_any_more_follows(voters: int, refuse: int) -> None:
    """Found by etcd/raft: with an even number of voters, half of them are enough to refuse."""
    raft = Raft(1, EntryLog(range(1, voters + 1)), lambda n: 0)
    raft.campaign()
    for sender in range(2, 2 + refuse):
        assert raft.state_name == "PRE_CANDIDATE"
        raft.step(Message(MessageKind.PRE_VOTED, 1, sender=sender, refused=True))
    assert raft.state_name == "FOLLOWER"


def settle(raft: Raft) -> list[Message]:
    """Everything is persisted. Returns what is sent."""
    sent: list[Message] = []
    while taken := raft.take():
        sent += taken.now + taken.later
        raft.persisted(taken.number)
    raft.persisted(taken.number)
    return sent


@pytest.mark.parametrize(("term", "last"), [(4, 3), (9, 2)], ids=["the same entry", "another one"])
def test_what_a_copy_replaces(term: int, last: int) -> None:
    """It was made while entries came that were acknowledged, or has another entry there."""
    raft = follower(4, 4, 4)
    assert raft.installed(2, term, {1, 2, 3}, ()) == (last == 3)
    assert (raft.log.base, raft.log.base_term, raft.log.last_index, raft.on_disk) == (2, term, last, last)
    assert (raft.commit, raft.applied) == (2, 2) and not raft.take().committed
    assert raft.installed(1, 1, {1}, ()) and raft.log.base == 2         # an older one


def elected() -> Raft:
    """A leader of three."""
    raft = Raft(1, EntryLog({1, 2, 3}), lambda n: 0)
    raft.campaign()
    for kind in (MessageKind.PRE_VOTED, MessageKind.VOTED):
        settle(raft)
        raft.step(Message(kind, 1, 1, sender=3))
    assert raft.leads
    return raft


def test_members_change_when_an_entry_of_the_term_is_committed() -> None:
    """What a former leader has changed may be committed before, and this one does not know it yet."""
    raft = elected()
    settle(raft)
    assert raft.commit == 0 and raft.change_members({1, 2, 3}, {4}) == 0
    raft.step(Message(MessageKind.APPENDED, 1, 1, sender=3, index=1))
    assert raft.commit == 1 and raft.change_members({1, 2, 3}, {4}) == 2


def copying() -> Raft:
    """A leader of three with five entries, four of them compacted. Replica 2 has nothing, and gets a copy."""
    raft = elected()
    raft.propose([(ENTRY_RECORDS, b"x")] * 4)
    settle(raft)
    raft.step(Message(MessageKind.APPENDED, 1, 1, sender=3, index=4))
    settle(raft)
    raft.forget(3)
    raft.step(Message(MessageKind.ALIVE, 1, 1, sender=2))
    assert [(m.kind, m.to, m.index, m.log_term) for m in settle(raft)] == [(MessageKind.COPY, 2, 3, 1)]
    raft.forget(4)
    return raft


def test_an_acknowledgement_counts_while_a_copy_is_made() -> None:
    """Found by etcd/raft."""
    raft = copying()
    raft.step(Message(MessageKind.APPENDED, 1, 1, sender=2, index=2))
    assert [(one.match, one.pace_name) for one in raft.replicas] == [(2, "COPYING"), (4, "REPLICATE")]
    raft.step(Message(MessageKind.APPENDED, 1, 1, sender=2, index=5))
    assert raft.commit == 5 and raft.replicas[0].pace_name == "REPLICATE"


def test_a_copy_is_offered_again_as_it_is_now() -> None:
    """Its last entry, with that one's term: the log does not know any more what was compacted before."""
    raft = copying()
    raft.step(Message(MessageKind.ALIVE, 1, 1, sender=2))
    assert [(m.kind, m.index, m.log_term) for m in settle(raft)] == [(MessageKind.COPY, 4, 1)]


def test_who_does_not_answer_gets_no_more_than_a_window() -> None:
    """Also when others go on, and what is committed moves."""
    raft = Raft(1, EntryLog({1, 2, 3}), lambda n: 0, append_bytes_max=1000, flying_bytes_max=2000)
    raft.campaign()
    for kind in (MessageKind.PRE_VOTED, MessageKind.VOTED):
        settle(raft)
        raft.step(Message(kind, 1, 1, sender=2))
    sent: list[Message] = []
    for _ in range(200):
        for message in [*settle(raft), *settle(raft)]:
            sent.append(message)
            if message.to == 2 or len(sent) < 4:    # 3 answers once: its pace is that of a replica in step
                raft.step(Message(MessageKind.APPENDED, 1, 1, sender=message.to,
                                  index=message.index + len(message.entries)))
        raft.propose([(ENTRY_RECORDS, bytes(900))])
    flying = sum(len(entry.data) for message in sent[4:] if message.to == 3 for entry in message.entries)
    assert raft.commit > 190 and 0 < flying <= 2000 + 900
