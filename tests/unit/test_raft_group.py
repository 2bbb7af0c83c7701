"""One replication group at a node (cluster/raft/group.py), where worlds of property/test_raft_groups do not come."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from property.test_copies_on_disk import GROUP
from property.test_raft_groups import ELECTION_TICKS, NODES, SPEC, Life, World

from fluxmq._core.errors import UsageError
from fluxmq._core.raft.messages import ENTRY_RECORDS, Entry, Message, MessageKind
from fluxmq.cluster.raft.group import ReplicatedGroup
from fluxmq.engine.queues.hands import Hand, hand_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Without faults; one leads, and all have what it has."""
    world = World(1, tmp_path)
    world.settle()
    yield world
    for number in list(world.lives):
        world.dies(number)


def leading(world: World) -> Life:
    [life] = [life for life in world.lives.values() if life.group.leads]
    return life


def follower(world: World) -> Life:
    return next(life for life in world.lives.values() if not life.group.leads)


def append(life: Life, entry: Entry) -> None:
    """What the leader of its term sends it, behind all that it has."""
    raft = life.group.raft
    index = raft.log.last_index
    life.group.step(Message(MessageKind.APPEND, life.number, raft.term, sender=raft.leader, index=index,
                            log_term=raft.log.term_at(index), commit=index + 1, entries=[entry]))
    life.turn()
    life.sync()


@pytest.mark.parametrize(("kind", "data", "why"), [
    (9, b"of tomorrow", "kind 9, which this version does not know"),
    (ENTRY_RECORDS, bytes(8) + b"\xff\x01\x00\x00\x00x", "cannot be applied"),
    (ENTRY_RECORDS, bytes(8) + b"\x14", "cannot be applied")], ids=["a kind", "records", "half a record"])
def test_an_entry_that_this_version_does_not_know(world: World, kind: int, data: bytes, why: str) -> None:
    """The replica stops, and changes nothing; the others go on. It stops at each start."""
    life = follower(world)
    applied = life.copies.applied
    append(life, Entry(life.group.raft.term, kind, data))
    assert why in life.group.damage and life.group.replica.applied == applied == life.copies.applied
    sent = len(world.wire)
    life.group.tick()
    append(life, Entry(life.group.raft.term, ENTRY_RECORDS, bytes(8)))
    assert len(world.wire) == sent and life.group.raft.log.last_index == applied + 1
    world.dies(life.number)
    world.starts(life.number)
    again = world.lives[life.number]
    assert again.group.replica.log.last_index == applied + 1
    assert not again.group.damage and not again.group.replica.state.damaged     # nobody has said yet that it counts


def test_who_hears_no_majority_serves_nobody(world: World) -> None:
    """Nothing comes that says so, and nothing is written: what it has decided since is given up."""
    life = leading(world)
    world.cuts |= {pair for other in NODES for pair in ((life.number, other), (other, life.number))}
    state = life.node.manager.queues[SPEC.address]
    life.publish()
    assert hand_of(state) is Hand.LEADING and life.notes
    life.sync()
    for _ in range(2 * ELECTION_TICKS):
        life.group.tick()
        life.turn()
    assert not life.group.leads and hand_of(state) is Hand.FOLLOWING
    assert not world.confirmed and not life.notes, "its publisher was told, and not that it is done"


def test_two_leaders_of_a_term(world: World) -> None:
    """That is what no replica says."""
    life = leading(world)
    other = follower(world).number
    life.group.step(Message(MessageKind.HEARTBEAT, life.number, life.group.raft.term, sender=other))
    assert "lead in term" in life.group.damage and not life.group.leads
    assert hand_of(life.node.manager.queues[SPEC.address]) is Hand.FOLLOWING


def test_a_leader_with_a_damaged_queue_steps_down(world: World) -> None:
    """It cannot follow with that queue: it takes no part any more, and others' entries are not applied to what it
    serves from."""
    life = leading(world)
    life.node.manager.queues[SPEC.address].queue.damage = "a block is not what was written"
    applied = life.copies.applied
    world.cuts |= {pair for one in NODES for pair in ((life.number, one), (one, life.number))}
    for _ in range(2 * ELECTION_TICKS):
        life.group.tick()
        life.turn()
    assert not life.group.leads and life.group.damage
    world.cuts.clear()
    world.settle_those({number for number in NODES if number != life.number})
    assert life.copies.applied == applied


def test_a_replica_with_a_damaged_copy_does_not_lead(world: World) -> None:
    """It is elected, since nobody knows, and stops; another one is elected, which can."""
    life = follower(world)
    [copy] = life.copies.queues.values()
    copy.queue.damage = "a block is not what was written"
    assert life.node.keeper.queues is not None and life.node.keeper.queues.copies.applied(GROUP) == 0
    assert leading(world).group.raft.transfer(life.number)
    for _ in range(8):
        for each in world.lives.values():
            each.sync()
        world.deliver(len(world.wire))
    assert "damaged" in life.group.damage and not life.group.leads
    world.settle_those({number for number in NODES if number != life.number})


def test_who_lacks_a_copy_votes_and_does_not_stand(world: World) -> None:
    life = follower(world)
    life.group.replica.lacks_copy = True
    world.dies(life.number)
    world.starts(life.number)
    life = world.lives[life.number]
    life.group.replica.lacks_copy = True
    group = ReplicatedGroup(life.group.replica, life.node.keeper.replicas, life.copies, life.group.raft,
                            gathering=lambda: 0, send=life.send)
    assert not group.raft.may_campaign
    life.group = group
    applied = life.copies.applied
    leading(world).publish()
    for _ in range(4):
        for each in world.lives.values():
            each.sync()
        world.deliver(len(world.wire))
    assert group.raft.commit > applied == life.copies.applied == group.replica.applied
    voters = sum(each.group.raft.on_disk == group.raft.on_disk for each in world.lives.values())
    assert voters == len(NODES), "it acknowledges"


def test_entries_that_are_committed_while_a_copy_comes(world: World) -> None:
    """They are applied behind it, as far as it does not have them."""
    life, led = follower(world), leading(world)
    raft = life.group.raft
    index, term = raft.applied, raft.log.term_at(raft.applied)
    with pytest.raises(UsageError, match="is led here"):
        led.group.begin_install(index, term, set(NODES), ())
    life.group.begin_install(index, term, set(NODES), ())
    led.publish()
    for _ in range(4):
        for each in world.lives.values():
            each.sync()
        world.deliver(len(world.wire))
    assert life.group.raft.commit > index == life.copies.applied and not raft.may_campaign
    life.node.checkpoint()
    life.group.installed()
    assert raft.may_campaign and life.copies.applied == raft.applied == raft.commit
    with pytest.raises(UsageError, match="no copy"):
        life.group.installed()
    world.compare(life)
    world.settle()


def test_a_copy_that_does_not_come_whole(world: World) -> None:
    life = follower(world)
    raft = life.group.raft
    life.group.begin_install(raft.applied, raft.log.term_at(raft.applied), set(NODES), ())
    life.group.cancel_install()
    assert life.group.replica.lacks_copy and life.group.replica.coming is None and not raft.may_campaign


def test_leadership_is_given_away_and_taken_back(world: World) -> None:
    """What is decided meanwhile is proposed when nobody has taken it, in order."""
    led = leading(world)
    target = follower(world).number
    led.sync()
    assert led.group.raft.transfer(target)
    world.cuts |= {(led.number, other) for other in NODES}
    led.turn()
    led.publish()
    led.publish()
    last = led.group.raft.log.last_index
    assert led.group.leads and led.group.raft.transferee == target and not world.confirmed
    world.cuts.clear()
    for _ in range(ELECTION_TICKS):
        for each in world.lives.values():
            each.group.tick()
            each.sync()
        world.deliver(len(world.wire))
    assert led.group.leads and led.group.raft.log.last_index == last + 2
    world.settle()
    assert len(world.confirmed) == world.published
