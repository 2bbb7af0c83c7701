"""What the disk has of the replication groups of which this node has a replica: who it is, its term and vote, its log.

    REPLICA 6   ENTRY 7   ENTRY 8   ENTRY 8'   REPLICA 7  │ checkpoint: REPLICA 8   ENTRY 9 …   ENTRY 10
            └ the copies of the group's queues have everything up to 6

All of it is in the journal, what a state machine (_core/raft) gives out in a turn in one batch. An entry of another
term than what stands at its index replaces that and everything behind it, so one that is recorded twice has no effect.

A checkpoint removes files of the journal. What the copies do not have yet of these is recorded again in the turn in
which the next file begins (`record_again`): of each group its state, marked as whole, and what is not committed. What
stands in front of that, of the batch that gathered then, a start passes over that begins with this file. How far the
copies are, the view says (queues/recovery/copies.py): never less than the first whole state behind the checkpoint.

A record that is not what was written (an entry has a checksum of its own) is damage of its replica, which takes no part
in its group then, and says so at each start. The node and its other replicas go on.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.memory.ledger import Ledger
from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.messages import Entry
from fluxmq._core.raft.records import ReplicaState, encode_entry, encode_replica, entry_of, replica_of

__all__ = ["OF_REPLICAS", "Replica", "ReplicaLogs"]

OF_REPLICAS = {RecordKind.REPLICA, RecordKind.REPLICA_END, RecordKind.ENTRY}


class Replica:
    """Of one group. log: its state machine has the same. applied: up to here the copies have everything, as whoever
    applies says. lacks_copy: the copies on the disk are not whole, or behind what the log begins with."""

    def __init__(self, group: int, state: ReplicaState, log: EntryLog) -> None:
        self.group = group
        self.state = state
        self.log = log
        self.applied = log.base
        self.lacks_copy = False
        self.coming: EntryLog | None = None  # begins behind the copy that is about to be installed

    @property
    def commit(self) -> int:
        """Up to here everything is known to be committed, of what the disk has."""
        return max(self.applied, self.log.base, min(self.state.commit, self.log.last_index))


class Positions(Protocol):
    """How far the copies are that the disk has (queues/recovery/copies.py)."""

    def applied(self, group: int) -> int:
        """Up to here the copies of a group have everything; 0: nothing, or they are not whole."""

    def holds(self, group: int) -> bool:
        """Whether it has any, whole or not."""

    def forget(self, group: int) -> None:
        """They are of a replica that has ended."""


class ReplicaLogs:
    """Machine. log: level, cause, text, fields."""

    def __init__(self, ledger: Ledger, log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self.replicas: dict[int, Replica] = {}
        self._ledger = ledger
        self._log = log
        self._damage: dict[int, str] = {}  # by group, of what was read
        self._ended: set[int] = set()  # groups of which a replica has ended, in what was read

    # ------------------------------------------------------------------ at a start

    def replay(self, kind: int, group: int, body: bytes) -> None:
        """Applies a record of the journal; body: what follows the group."""
        try:
            if kind == RecordKind.REPLICA:
                self._replay_state(group, *replica_of(body))
            elif kind == RecordKind.REPLICA_END:
                self._end(group)
            elif (replica := self.replicas.get(group)) is not None:
                _put(replica.log, *entry_of(body))
        except CorruptError as error:
            self._damage.setdefault(group, str(error))

    def _replay_state(self, group: int, state: ReplicaState, empty: EntryLog, coming: bool, whole: bool) -> None:
        replica = self.replicas.get(group)
        if replica is not None and (replica.state.incarnation, replica.state.number) != (state.incarnation,
                                                                                          state.number):
            self._end(group)
            replica = None
        if replica is None:
            # Else it is of a batch that began in the former file: what follows is recorded again behind it.
            if whole:
                self.replicas[group] = Replica(group, state, empty)
                self._damage.pop(group, None)
        elif coming:
            replica.coming = empty
        else:
            replica.state, replica.coming = state, None
            _begin_behind(replica, empty)

    def _end(self, group: int) -> None:
        self.replicas.pop(group, None)
        self._damage.pop(group, None)
        self._ended.add(group)

    def finish(self, copies: Positions) -> dict[str, int]:
        """Everything is read. Returns counts for the log."""
        for group in self._ended:
            replica = self.replicas.get(group)
            if replica is None or replica.coming is None or copies.applied(group) != replica.coming.base:
                copies.forget(group)        # they are of the replica that has ended
        for group, replica in self.replicas.items():
            replica.applied = applied = copies.applied(group)
            replica.lacks_copy = applied < replica.log.base or (applied == 0 and copies.holds(group))
            if replica.coming is not None and applied == replica.coming.base:
                _begin_behind(replica, replica.coming)      # the node ended before it said so
            replica.coming = None
            last = replica.log.last_index
            if applied > last:              # its journal was not synced when power was lost
                self._damage.setdefault(group, f"its copies have entry {applied}, and its log ends with {last}")
            replica.log.forget(min(applied, last))
            if (why := self._damage.get(group, "")) or replica.state.damaged:
                replica.state.damaged = True
                self._log("error", "", "the log of a replica is damaged: it takes no part in its group, all else goes "
                                       f"on{why and f': {why}'}", {"group": group, "last": last})
        self._damage.clear()
        self._ended.clear()
        return {"replicas": len(self.replicas)} if self.replicas else {}

    # ------------------------------------------------------------------ while the node runs

    def add(self, group: int, incarnation: int, number: int, voters: Collection[int],
            learners: Collection[int] = ()) -> Replica:
        """This node gets a replica of a group. Raises UsageError if it has one."""
        if group in self.replicas:
            raise UsageError(f"this node has a replica of group {group} already")
        replica = self.replicas[group] = Replica(group, ReplicaState(incarnation, number), EntryLog(voters, learners))
        self._write_state(replica, whole=True)
        return replica

    def remove(self, group: int) -> None:
        """This node has no replica of it any more. The caller releases its copies (Copies.forget)."""
        if self.replicas.pop(group, None) is not None:
            self._ledger.write(RecordKind.REPLICA_END, group.to_bytes(8, "big"))

    def begin_life(self, replica: Replica) -> None:
        """The replica starts: nothing of it leaves the node before that is durable."""
        replica.state.starts += 1
        self._write_state(replica)

    def write(self, replica: Replica, first: int, entries: list[Entry], vote: tuple[int, int] | None,
              commit: int) -> None:
        """Records what its state machine gave out (Taken), into the batch that gathers. commit: of that machine; it is
        recorded with the next state. Raises StorageError when more waits than a batch may hold."""
        for index, entry in enumerate(entries, first):
            self._write_entry(replica, index, entry)
        replica.state.commit = commit
        if vote is not None:
            replica.state.term, replica.state.vote = vote
            self._write_state(replica)

    def begin_install(self, replica: Replica, index: int, term: int, voters: Collection[int],
                      learners: Collection[int]) -> None:
        """The copies are about to be replaced by some as of this entry. They count at the next start if a checkpoint
        has them with this position; installed() follows, when it has, and after Raft.installed()."""
        replica.coming = EntryLog(voters, learners, index, term)
        self._write_state(replica)

    def cancel_install(self, replica: Replica) -> None:
        """It does not come. What the copies have now, whoever runs the group knows."""
        replica.coming = None
        self._write_state(replica)

    def installed(self, replica: Replica) -> None:
        """The disk has the copies, and a start would find that they count."""
        assert replica.coming is not None
        replica.applied, replica.coming, replica.lacks_copy = replica.coming.base, None, False
        self._write_state(replica)

    def record_again(self) -> int:
        """A file of the journal begins, and those before it will go: in one turn with Journal.rotate(). Returns the
        bytes of what it has recorded."""
        size = 0
        for replica in self.replicas.values():
            size += self._write_state(replica, whole=True)
            log = replica.log
            behind = max(replica.applied, log.base)
            for index, entry in enumerate(log.tail()[behind - log.base:], behind + 1):
                size += self._write_entry(replica, index, entry)
        return size

    def _write_entry(self, replica: Replica, index: int, entry: Entry) -> int:
        return self._write(RecordKind.ENTRY, replica, encode_entry(index, entry))

    def _write_state(self, replica: Replica, whole: bool = False) -> int:
        log, coming = replica.log, replica.coming
        applied = min(max(replica.applied, log.base), log.last_index)
        size = self._write(RecordKind.REPLICA, replica, encode_replica(replica.state, log, applied, whole=whole))
        if coming is not None:
            size += self._write(RecordKind.REPLICA, replica,
                                encode_replica(replica.state, coming, coming.base, coming=True))
        return size

    def _write(self, kind: RecordKind, replica: Replica, body: bytes) -> int:
        body = replica.group.to_bytes(8, "big") + body
        self._ledger.write(kind, body)
        return len(body)


def _begin_behind(replica: Replica, empty: EntryLog) -> None:
    """A copy may have replaced what the log has."""
    if empty.base > replica.log.base and replica.log.term_at(empty.base) != empty.base_term:
        replica.log = empty


def _put(log: EntryLog, index: int, entry: Entry) -> None:
    if index <= log.base or log.term_at(index) == entry.term:
        return
    if index > log.last_index + 1:
        raise CorruptError(f"entry {index} comes behind entry {log.last_index}")
    if entry.term < log.term_at(index - 1):
        raise CorruptError(f"entry {index} has term {entry.term}, the one in front of it {log.term_at(index - 1)}")
    log.cut_from(index)
    log.add(entry)
