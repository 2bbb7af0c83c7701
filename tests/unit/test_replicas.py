"""What a node's disk has of its replicas, where something is wrong with it: one replica stops, all else goes on."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.stored_node import StoredNode

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.messages import ENTRY_RECORDS, Entry
from fluxmq._core.raft.records import ReplicaState, encode_entry, encode_replica, entry_of, replica_of
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.replicas import Replica, ReplicaLogs
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.repair import repair

GROUP, OTHER = 7, 8


class Lives:
    """A directory, and the node that has it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.count = directory, 0
        self.start()

    def start(self) -> None:
        self.count += 1
        self.node = StoredNode(self.directory, self.count)
        self.logs = self.node.keeper.replicas

    def again(self) -> None:
        self.node.sync()
        self.node.close()
        self.start()

    def write(self, group: int, kind: RecordKind, body: bytes) -> None:
        self.node.hub.ledger.write(kind, group.to_bytes(8, "big") + body)

    def append(self, replica: Replica, entries: list[Entry], vote: tuple[int, int] | None = None) -> None:
        """As what its state machine gives out."""
        first = replica.log.last_index + 1
        for entry in entries:
            replica.log.add(entry)
        self.logs.write(replica, first, entries, vote, 0)

    def told(self) -> list[int]:
        """The groups whose damage the start has told."""
        return [fields["group"] for level, text, fields in self.node.notes if level == "error" and "damaged" in text]


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    for group in (GROUP, OTHER):
        replica = lives.logs.add(group, 1, 2, {1, 2, 3})
        lives.append(replica, [Entry(1, ENTRY_RECORDS, b"one"), Entry(1, ENTRY_RECORDS, b"two")], (1, 3))
    lives.node.manager.declare(QueueSpec(name="q"))[0].append_message(b"t", b"kept")
    yield lives
    lives.node.close()


def flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


WRONG = {"an entry": (RecordKind.ENTRY, flipped(encode_entry(3, Entry(1, ENTRY_RECORDS, b"three")))),
         "an entry that is cut": (RecordKind.ENTRY, encode_entry(3, Entry(1, ENTRY_RECORDS, b"three"))[:-1]),
         "an entry too far": (RecordKind.ENTRY, encode_entry(4, Entry(1, ENTRY_RECORDS, b"four"))),
         "an entry of a term that was over": (RecordKind.ENTRY, encode_entry(3, Entry(0, ENTRY_RECORDS, b"three"))),
         "a state": (RecordKind.REPLICA, encode_replica(ReplicaState(1, 2), EntryLog({1, 2, 3}), 0)[:-3])}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_record_that_is_not_what_was_written(lives: Lives, wrong: str) -> None:
    kind, body = WRONG[wrong]
    lives.write(GROUP, kind, body)
    for _ in range(2):
        lives.again()
        assert lives.logs.replicas[GROUP].state.damaged and lives.told() == [GROUP]
        other = lives.logs.replicas[OTHER]
        assert not other.state.damaged and other.state.term == 1 and other.log.last_index == 2
        assert lives.node.kept == 1
    lives.node.checkpoint()                 # the record has gone
    lives.again()
    assert lives.logs.replicas[GROUP].state.damaged and lives.logs.replicas[GROUP].log.last_index == 2
    assert lives.told() == [GROUP]
    lives.logs.remove(GROUP)
    replica = lives.logs.add(GROUP, 1, 4, {1, 3}, {4})
    assert not replica.state.damaged
    lives.again()
    assert lives.logs.replicas[GROUP].state.astuple() == (1, 4, 0, 0, 0, 0, False)


def test_a_repair_keeps_what_is_damaged(lives: Lives) -> None:
    """Without the record nobody would know that there was one, and it may have been acknowledged."""
    lives.write(GROUP, *WRONG["an entry"])
    lives.node.sync()
    lives.node.close()
    assert not repair(lives.directory).given_up
    lives.start()
    assert lives.logs.replicas[GROUP].state.damaged


def test_copies_that_are_ahead_of_the_log(lives: Lives) -> None:
    """Power was lost while the journal is synced now and then, and the view has been synced."""
    stored_copies(lives, 3)
    lives.again()
    assert lives.logs.replicas[GROUP].state.damaged and not lives.logs.replicas[OTHER].state.damaged


def test_copies_that_are_behind_the_log(lives: Lives) -> None:
    """They were being replaced: the log votes, and they are not led before another copy has come."""
    log = EntryLog({1, 2, 3}, (), 5, 1)
    lives.write(GROUP, RecordKind.REPLICA, encode_replica(ReplicaState(1, 2, term=1), log, 5, whole=True))
    lives.again()
    replica = lives.logs.replicas[GROUP]
    assert replica.lacks_copy and not replica.state.damaged and (replica.log.base, replica.commit) == (5, 5)
    assert not lives.logs.replicas[OTHER].lacks_copy


def stored_copies(lives: Lives, position: int) -> None:
    """The disk has copies of the group, up to there."""
    assert lives.node.keeper.queues is not None
    line = QueueLine(lives.node.manager, lives.node.hub.commits.open_line("group 7", GROUP))
    lives.node.keeper.queues.copies.add(line)
    line.apply(b"", position=position)
    lives.logs.replicas[GROUP].applied = position
    lives.node.checkpoint()


@pytest.mark.parametrize(("incarnation", "number"), [(1, 4), (2, 2)], ids=["another replica", "another group"])
def test_copies_of_a_replica_that_has_ended(lives: Lives, incarnation: int, number: int) -> None:
    """The node ends before a checkpoint has deleted them: they are not those of the new one."""
    stored_copies(lives, 2)
    lives.logs.remove(GROUP)
    replica = lives.logs.add(GROUP, incarnation, number, {1, 2, 3})
    lives.append(replica, [Entry(1, ENTRY_RECORDS, b"new") for _ in range(3)], (1, 1))
    lives.again()
    replica = lives.logs.replicas[GROUP]
    assert (replica.state.incarnation, replica.state.number) == (incarnation, number)
    assert not replica.state.damaged and not replica.lacks_copy
    assert (replica.applied, replica.log.base, replica.log.last_index) == (0, 0, 3)
    lives.node.checkpoint()
    lives.again()
    assert lives.node.keeper.queues is not None and lives.node.keeper.queues.copies.applied(GROUP) == 0


def test_copies_of_a_group_that_the_node_has_left(lives: Lives) -> None:
    stored_copies(lives, 2)
    lives.logs.remove(GROUP)
    lives.again()
    assert lives.node.keeper.queues is not None
    assert GROUP not in lives.logs.replicas and lives.node.keeper.queues.copies.applied(GROUP) == 0


class Copies:
    """Of which the disk has some, as of no position."""

    def __init__(self, some: bool) -> None:
        self.some = some

    def applied(self, group: int) -> int:
        return 0

    def holds(self, group: int) -> bool:
        return self.some

    def forget(self, group: int) -> None:
        raise AssertionError


@pytest.mark.parametrize("some", [False, True], ids=["none", "some"])
def test_copies_that_were_never_whole(lives: Lives, some: bool) -> None:
    """A copy had begun to come, or there has been no checkpoint yet: then the log has everything."""
    lives.logs.finish(Copies(some))
    assert lives.logs.replicas[GROUP].lacks_copy == some


def test_what_a_batch_has_in_front_of_a_checkpoint(lives: Lives) -> None:
    """A start that begins with its file does not need that, be it damaged or not."""
    logs = ReplicaLogs(lives.node.hub.ledger, lives.node.note)
    for wrong in WRONG:
        kind, body = WRONG[wrong]
        logs.replay(kind, GROUP, body)
    logs.replay(RecordKind.REPLICA, GROUP, encode_replica(ReplicaState(1, 2, term=9), EntryLog({1, 2, 3}, (), 4, 8), 4))
    assert not logs.replicas
    logs.replay(RecordKind.REPLICA, GROUP, encode_replica(ReplicaState(1, 2, term=9), EntryLog({1, 2, 3}, (), 4, 8), 4,
                                                          whole=True))
    logs.finish(Copies(False))
    assert not logs.replicas[GROUP].state.damaged and logs.replicas[GROUP].log.base == 4


def test_what_is_recorded_again_calls_for_no_other_checkpoint(lives: Lives) -> None:
    entries = [Entry(1, ENTRY_RECORDS, bytes(100_000)) for _ in range(5)]
    lives.append(lives.logs.replicas[GROUP], entries)
    lives.node.checkpoint()
    lives.node.sync()
    assert lives.node.journal.bytes_total - lives.node.hub.disk.checkpoint_mark < 10_000


def test_one_replica_of_a_group(lives: Lives) -> None:
    with pytest.raises(UsageError, match="has a replica of group 7 already"):
        lives.logs.add(GROUP, 1, 5, {5})


def test_a_replica_that_has_gone_stays_away(lives: Lives) -> None:
    lives.logs.remove(GROUP)
    lives.write(GROUP, RecordKind.ENTRY, encode_entry(3, Entry(1, ENTRY_RECORDS, b"late")))
    lives.again()
    assert list(lives.logs.replicas) == [OTHER]


def test_a_kind_of_a_newer_version_is_refused(lives: Lives) -> None:
    """Whatever number it has: it is not taken for that of a session that has ended."""
    lives.node.hub.ledger.write(99, bytes(8) + b"of tomorrow")
    lives.node.sync()
    lives.node.close()
    with pytest.raises(CorruptError, match="kind 99"):
        lives.start()


@pytest.mark.parametrize("cut", [0, 20, 52, 54])
def test_a_state_that_is_cut(cut: int) -> None:
    body = encode_replica(ReplicaState(1, 2, starts=3, term=4, vote=5, commit=6), EntryLog({1, 2}, {3}, 6, 4), 6)
    state, log, coming, whole = replica_of(body)
    assert (state.astuple(), log.base, log.base_term) == ((1, 2, 3, 4, 5, 6, False), 6, 4) and not coming | whole
    assert log.members_at(6) == ({1, 2}, {3})
    with pytest.raises(CorruptError):
        replica_of(body[:cut])


def test_an_entry_that_is_longer_than_it_says() -> None:
    body = encode_entry(3, Entry(2, ENTRY_RECORDS, b"data"))
    assert entry_of(body) == (3, Entry(2, ENTRY_RECORDS, b"data"))
    for wrong in (body + b"x", body[:6], bytes(8) + body[8:]):
        with pytest.raises(CorruptError):
            entry_of(wrong)
