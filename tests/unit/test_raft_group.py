"""One replication group at a node (cluster/raft/group.py), where worlds of property/test_raft_groups do not come."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from property.test_raft_groups import ELECTION_TICKS, NODES, SPEC, Life, World

from fluxmq._core.raft.messages import ENTRY_RECORDS, Entry, Message, MessageKind
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
