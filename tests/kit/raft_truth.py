"""What must hold of the replicas of a group (kit/raft), as it is seen from outside: by what their disks have, what they
send and what they hand out as committed, and not by what they think of each other.

- An entry is committed by a leader, when as many voters as are needed have it on their disks; all replicas hand out the
  same. From then on nobody could be elected who lacks it, also if all lost power at this instant.
- Who leads has all that is committed, alone in its term, and its disk knows that term.
- What a message promises is on its sender's disk: a vote, one in each term; a log that asks for votes; an entry that is
  acknowledged. Leadership is handed to a replica that has everything.
- Members are those of the newest change in the log, and what counts as written is what the disk has.
"""
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fluxmq._core.raft.messages import ENTRY_MEMBERS, Entry, Message, MessageKind, members_of

if TYPE_CHECKING:
    from fluxmq._core.raft.machine import Taken
    from kit.raft import Members, Replica

__all__ = ["Truth"]


class Truth:
    """replicas: by number. committed: by index."""

    def __init__(self, replicas: dict[int, Replica], first: Members, in_sync_min: int) -> None:
        self.replicas, self.first, self.in_sync_min = replicas, first, in_sync_min
        self.committed: dict[int, Entry] = {}
        self.known_in: dict[int, int] = {}              # index -> term of who has committed it
        self.leaders: dict[int, int] = {}               # term -> number
        self.votes: dict[tuple[int, int], int] = {}     # (number, term) -> for whom
        self.seen: Counter[str] = Counter()

    def members_at(self, index: int) -> Members:
        members = self.first
        for at in range(1, index + 1):
            if at in self.committed and self.committed[at].kind == ENTRY_MEMBERS:
                members = members_of(self.committed[at].data)
        return members

    # ── what is committed ────────────────────────────────────────────────────────────────────────────────────

    def commits(self, replica: Replica, taken: Taken) -> None:
        """What a replica hands out as committed."""
        former = len(self.committed)
        for index, entry in enumerate(taken.committed, taken.applied):
            known = self.committed.setdefault(index, entry)
            assert known == entry, f"entry {index} of replica {replica.number} is {entry}, and {known} was committed"
            if index > former:
                self.is_new(replica, index, entry)
        if len(self.committed) > former:
            self.stays()

    def is_new(self, replica: Replica, index: int, entry: Entry) -> None:
        raft = replica.raft
        assert raft is not None
        assert index == len(self.committed), f"entry {index} is committed before those in front of it"
        self.seen["committed"] += 1
        self.seen["members"] += entry.kind == ENTRY_MEMBERS
        self.known_in[index] = raft.term
        # A leader that was removed has gone by now.
        assert raft.leads or raft.own not in raft.voters, f"replica {raft.own} commits entry {index} and does not lead"
        having = sum(self.replicas[number].disk.has(index, entry) for number in raft.voters)
        needed = max(len(raft.voters) // 2 + 1, min(self.in_sync_min, len(raft.voters)))
        assert having >= needed, f"entry {index} is committed, on {having} disks of {len(raft.voters)}"

    def stays(self) -> None:
        """If all lost power now, nobody could be elected who lacks what is committed."""
        index = len(self.committed)
        if index == 0:
            return
        for replica in self.replicas.values():
            disk = replica.disk
            if disk.has(index, self.committed[index]):
                continue
            voters = disk.newest_members()[0]
            votes = sum(self.replicas[number].disk.last() <= disk.last() for number in voters)
            assert replica.number not in voters or votes <= len(voters) // 2, \
                f"replica {replica.number} lacks entry {index}, which is committed, and could lead"

    # ── who leads ────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        for replica in self.replicas.values():
            raft = replica.raft
            if raft is not None and raft.leads and self.leaders.get(raft.term) != replica.number:
                self.leads(replica, raft.term)

    def leads(self, replica: Replica, term: int) -> None:
        """A replica has begun to lead."""
        raft = replica.raft
        assert raft is not None
        self.seen["terms"] += 1
        assert self.leaders.setdefault(term, replica.number) == replica.number, f"two leaders of term {term}"
        assert replica.disk.vote == (term, replica.number), f"the leader of term {term} has not written that it votes"
        log, base = raft.log.tail(), raft.log.base
        for index, entry in self.committed.items():
            # One that leads late, while others have gone on, need not have what they have committed.
            if index > base and self.known_in[index] <= term:
                assert index <= base + len(log) and log[index - base - 1] == entry, \
                    f"the leader of term {term} lacks entry {index}, which is committed"

    # ── what is on the disk ──────────────────────────────────────────────────────────────────────────────────

    def promises(self, message: Message) -> None:
        """A message leaves."""
        disk = self.replicas[message.sender].disk
        match message.kind:
            case MessageKind.VOTE:
                assert (message.log_term, message.index) <= disk.last(), f"{message} names a log that is not written"
                self.votes_for(message.sender, message.term, message.sender)
            case MessageKind.VOTED if not message.refused:
                self.votes_for(message.sender, message.term, message.to)
            case MessageKind.APPENDED if not message.refused:
                assert message.index <= disk.last()[1], f"{message} acknowledges what is not written"
            case MessageKind.CAMPAIGN:
                raft, target = self.replicas[message.sender].raft, self.replicas[message.to].disk
                assert raft is not None
                assert target.vote[0] > message.term or target.last()[1] >= raft.log.last_index, \
                    f"{message}, which lacks entries"

    def votes_for(self, number: int, term: int, candidate: int) -> None:
        vote = self.votes.setdefault((number, term), candidate)
        assert vote == candidate, f"replica {number} votes for {vote} and {candidate} in term {term}"
        assert self.replicas[number].disk.vote == (term, candidate), f"a vote of replica {number} is not written"

    def written(self, replica: Replica) -> None:
        """A batch is on the disk, and the replica knows."""
        raft, disk = replica.raft, replica.disk
        assert raft is not None
        if raft.on_disk > raft.log.base:
            entry = raft.log.tail()[raft.on_disk - raft.log.base - 1]
            assert disk.has(raft.on_disk, entry), f"replica {replica.number} counts what is not on its disk"

    def follows_its_log(self, replica: Replica) -> None:
        """Its log has changed."""
        raft = replica.raft
        assert raft is not None
        members = replica.disk.members
        for entry in raft.log.tail():
            if entry.kind == ENTRY_MEMBERS:
                members = members_of(entry.data)
        assert (raft.voters, raft.learners) == members, f"members of replica {replica.number} are not those of its log"
