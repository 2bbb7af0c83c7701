"""The raft of one member of the simulated etcd, after etcd's own (raft 3.4): messages and ticks in; messages, a longer
log and a higher commit index out. Whoever drives it (member.py) saves the log before it sends and applies.

    FOLLOWER ──no leader for a while──► CANDIDATE ──votes of a majority──► LEADER
        ▲  └──the same, pre-vote──► PRE_CANDIDATE ──promises of a majority──┘ (becomes a CANDIDATE)
        └── a higher term, or (leader, check-quorum) no majority has answered for an election timeout

Members are told apart by their names. The log begins at index 1 and is never shortened, so there are no snapshots. One
entry at a time may change the members.
"""
from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

__all__ = ["CONF", "Entry", "Message", "Raft", "RaftDisk", "RaftOptions", "Role"]

ENTRIES_MAX = 64        # of one message
CONF = "conf"           # first of the data of an entry that changes the members: (CONF, number, "voter", name)


class Role(Enum):
    """See the drawing above."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Entry(NamedTuple):
    """data None: the empty entry with which a leader begins its term."""

    term: int
    data: Any


class Message(NamedTuple):
    """kind: append, appended, heartbeat, alive, vote, voted, prevote, prevoted, propose, read, read_at, campaign."""

    kind: str
    source: str
    target: str
    term: int
    log_index: int = 0
    log_term: int = 0
    entries: tuple[Entry, ...] = ()
    commit: int = 0
    reject: bool = False
    context: Any = None
    data: Any = None


@dataclass(frozen=True)
class RaftOptions:
    """election_ticks: a follower waits for so long up to twice as long. postpone_reads: a leader that has committed
    nothing in its term answers reads when it has, instead of never (etcd 3.4.20)."""

    election_ticks: int = 10
    pre_vote: bool = False
    check_quorum: bool = True
    postpone_reads: bool = True


@dataclass
class RaftDisk:
    """What survives a crash. voters, learners: at the beginning of the log."""

    voters: frozenset[str]
    learners: frozenset[str] = frozenset()
    term: int = 0
    vote: str = ""
    commit: int = 0
    log: list[Entry] = field(default_factory=list)


class _Progress:
    """What a leader knows of another member: which index it has for certain, and which one it gets next."""

    __slots__ = ("active", "match", "next")

    def __init__(self, next_: int) -> None:
        self.match = 0
        self.next = next_
        self.active = False


class _Read:
    """A read that waits until a majority has confirmed the leader. index: of the commit when it was asked for."""

    __slots__ = ("acks", "context", "index", "source")

    def __init__(self, context: Any, index: int, source: str, own: str) -> None:
        self.context, self.index, self.source = context, index, source
        self.acks = {own}


class Raft:
    """lead: the leader of this term, "" if unknown. messages: to be sent. read_states: (context, index) of reads that
    are confirmed: whoever has applied the index may answer them. dirty: something must be saved before messages of a
    follower leave, and before anything is applied."""

    def __init__(self, name: str, disk: RaftDisk, options: RaftOptions, chance: random.Random) -> None:
        self.name = name
        self.options = options
        self.term, self.vote = disk.term, disk.vote
        self.log = list(disk.log)
        self.commit = disk.commit
        self.applied = 0
        self.voters, self.learners = set(disk.voters), set(disk.learners)
        self.role = Role.FOLLOWER
        self.lead = ""
        self.messages: list[Message] = []
        self.read_states: list[tuple[Any, int]] = []
        self.dirty = False
        self._chance = chance
        self._disk = disk
        self._changed_from = len(self.log) + 1      # first index that is not on disk
        self._elapsed = self._timeout = 0
        self._votes: dict[str, bool] = {}
        self._others: dict[str, _Progress] = {}
        self._reads: list[_Read] = []
        self._postponed: list[Message] = []
        self._pending_conf = 0
        self._transferee = ""
        self._reset(self.term)

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return len(self.log)

    def term_at(self, index: int) -> int:
        """The term of an entry; 0 before the first, -1 behind the last."""
        if index == 0:
            return 0
        return self.log[index - 1].term if index <= len(self.log) else -1

    def save(self) -> None:
        """Writes to disk what has changed."""
        disk, first = self._disk, self._changed_from
        disk.log[first - 1:] = self.log[first - 1:]
        disk.term, disk.vote, disk.commit = self.term, self.vote, self.commit
        self._changed_from = self.last + 1
        self.dirty = False

    def _append(self, after: int, entries: Iterable[Entry]) -> None:
        assert after >= self.commit, f"{self.name} drops entries that are committed"
        del self.log[after:]
        self.log.extend(entries)
        self._changed_from = min(self._changed_from, after + 1)
        self.dirty = True

    def _commit_to(self, index: int) -> None:
        if index > self.commit:
            assert index <= self.last, f"{self.name} commits what it does not have"
            self.commit = index

    # ── roles ────────────────────────────────────────────────────────────────────────────────────────────

    def _quorum(self, names: Iterable[str]) -> bool:
        return 2 * len(self.voters.intersection(names)) > len(self.voters)

    @property
    def _promotable(self) -> bool:
        return self.name in self.voters

    def _set(self, term: int, vote: str) -> None:
        if (term, vote) != (self.term, self.vote):
            self.term, self.vote = term, vote
            self.dirty = True

    def _reset(self, term: int) -> None:
        if term != self.term:
            self._set(term, "")
        self.lead = ""
        self._elapsed = 0
        self._timeout = self.options.election_ticks + self._chance.randrange(self.options.election_ticks)
        self._votes = {}
        self._reads, self._postponed = [], []
        self._transferee = ""
        self._pending_conf = 0
        self._others = {name: _Progress(self.last + 1) for name in self.voters | self.learners if name != self.name}

    def _become_follower(self, term: int, lead: str) -> None:
        self._reset(term)
        self.role, self.lead = Role.FOLLOWER, lead

    def _become_leader(self) -> None:
        self._reset(self.term)
        self.role, self.lead = Role.LEADER, self.name
        self._pending_conf = self.last
        self._append(self.last, [Entry(self.term, None)])
        self._maybe_commit()
        self._send_appends()

    def _campaign(self, *, force: bool = False) -> None:
        """force: the leader has asked for it, so no pre-vote, and votes although there is a leader."""
        pending = any(_is_conf(entry) for entry in self.log[self.applied:self.commit])
        if not self._promotable or pending or self.role is Role.LEADER:
            return
        if self.options.pre_vote and not force:
            self._votes, self.role, self.lead = {}, Role.PRE_CANDIDATE, ""
            self._ask("prevote", self.term + 1)
        else:
            self._stand(force=force)

    def _stand(self, *, force: bool = False) -> None:
        self._reset(self.term + 1)
        self._set(self.term, self.name)
        self.role = Role.CANDIDATE
        self._ask("vote", self.term, "force" if force else None)

    def _ask(self, kind: str, term: int, context: Any = None) -> None:
        if not self._count(self.name, True):
            last = self.last, self.term_at(self.last)
            for name in sorted(self.voters - {self.name}):
                self._send(kind, name, term=term, log_index=last[0], log_term=last[1], context=context)

    def _count(self, name: str, granted: bool) -> bool:
        """A vote, or a promise of one. Whether this has decided it."""
        self._votes.setdefault(name, granted)
        if self._quorum(one for one, yes in self._votes.items() if yes):
            if self.role is Role.PRE_CANDIDATE:
                self._stand()
            else:
                self._become_leader()
            return True
        if self._quorum(one for one, yes in self._votes.items() if not yes):
            self._become_follower(self.term, "")
            return True
        return False

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """A heartbeat's time has passed."""
        self._elapsed += 1
        if self.role is not Role.LEADER:
            alone = self.voters == {self.name}
            if self._promotable and (alone or self._elapsed >= self._timeout):
                self._elapsed = 0
                self._campaign()
            return
        if self._elapsed >= self.options.election_ticks:
            self._elapsed = 0
            self._transferee = ""
            if self.options.check_quorum and not self._quorum(
                    [self.name, *(name for name, other in self._others.items() if other.active)]):
                self._become_follower(self.term, "")
                return
            for other in self._others.values():
                other.active = False
        self._send_heartbeats(self._reads[-1].context if self._reads else None)

    # ── what its member asks for ─────────────────────────────────────────────────────────────────────────

    def propose(self, data: Any) -> bool:
        """Appends to the log, here or at the leader. False: not known to whom."""
        if not self.lead:
            return False
        self.step(Message("propose", self.name, self.name, 0, data=data))
        return True

    def read(self, context: Any) -> None:
        """A read is to be confirmed; read_states tells when it is. Without a leader nothing happens."""
        self.step(Message("read", self.name, self.name, 0, context=context))

    def transfer(self, name: str) -> None:
        """The leader hands its office to this member, if it can."""
        if self.role is Role.LEADER and name in self.voters and name != self.name:
            self._transferee, self._elapsed = name, 0
            if self._others[name].match == self.last:
                self._send("campaign", name)
            else:
                self._send_append(name)

    def change_members(self, change: str, name: str) -> None:
        """An entry that changes the members is applied. change: voter, learner, remove."""
        self.voters.discard(name)
        self.learners.discard(name)
        if change == "voter":
            self.voters.add(name)
        elif change == "learner":
            self.learners.add(name)
        if change == "remove":
            self._others.pop(name, None)
            if self.role is Role.LEADER and self.voters:
                self._maybe_commit()
        elif name != self.name and name not in self._others:
            self._others[name] = _Progress(self.last + 1)
            self._others[name].active = True
        if self.role is Role.LEADER and name == self.name and change == "remove":
            self._become_follower(self.term, "")

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, kind: str, target: str, *, term: int | None = None, **fields: Any) -> None:
        self.messages.append(Message(kind, self.name, target, self.term if term is None else term, **fields))

    def _send_appends(self) -> None:
        for name in sorted(self._others):
            self._send_append(name)

    def _send_append(self, name: str) -> None:
        other = self._others[name]
        first = other.next
        entries = tuple(self.log[first - 1:first - 1 + ENTRIES_MAX])
        self._send("append", name, log_index=first - 1, log_term=self.term_at(first - 1), entries=entries,
                   commit=self.commit)
        other.next += len(entries)

    def _send_heartbeats(self, context: Any) -> None:
        for name in sorted(self._others):
            self._send("heartbeat", name, commit=min(self._others[name].match, self.commit), context=context)

    def step(self, message: Message) -> None:
        """A message has come."""
        kind, term = message.kind, message.term
        if term > self.term:
            if kind in ("vote", "prevote"):
                heard = self.options.check_quorum and self.lead and self._elapsed < self.options.election_ticks
                if heard and message.context != "force":
                    return
            if not (kind == "prevote" or (kind == "prevoted" and not message.reject)):
                self._become_follower(term, message.source if kind in ("append", "heartbeat") else "")
        elif 0 < term < self.term:
            if kind in ("append", "heartbeat") and (self.options.check_quorum or self.options.pre_vote):
                self._send("appended", message.source)      # so a leader of an old term sees that it is none
            elif kind == "prevote":
                self._send("prevoted", message.source, reject=True)
            return
        getattr(self, f"_on_{kind}")(message)

    def _on_vote(self, message: Message) -> None:
        pre = message.kind == "prevote"
        free = (self.vote == message.source or (not self.vote and not self.lead)
                or (pre and message.term > self.term))
        last = self.term_at(self.last)
        fresh = message.log_term > last or (message.log_term == last and message.log_index >= self.last)
        answer = "prevoted" if pre else "voted"
        if free and fresh:
            self._send(answer, message.source, term=message.term)
            if not pre:
                self._elapsed = 0
                self._set(self.term, message.source)
        else:
            self._send(answer, message.source, reject=True)

    _on_prevote = _on_vote

    def _on_voted(self, message: Message) -> None:
        if self.role is Role.CANDIDATE:
            self._count(message.source, not message.reject)

    def _on_prevoted(self, message: Message) -> None:
        if self.role is Role.PRE_CANDIDATE:
            self._count(message.source, not message.reject)

    def _follow(self, message: Message) -> None:
        """The message is of the leader of this term."""
        assert self.role is not Role.LEADER, f"two leaders in term {self.term}: {self.name}, {message.source}"
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, message.source)
        self.lead, self._elapsed = message.source, 0

    def _on_append(self, message: Message) -> None:
        self._follow(message)
        if message.log_index < self.commit:
            self._send("appended", message.source, log_index=self.commit)
        elif self.term_at(message.log_index) != message.log_term:
            self._send("appended", message.source, log_index=message.log_index, reject=True, commit=self.last)
        else:
            for at, entry in enumerate(message.entries, message.log_index):
                if self.term_at(at + 1) != entry.term:
                    self._append(at, message.entries[at - message.log_index:])
                    break
            newest = message.log_index + len(message.entries)
            self._commit_to(min(message.commit, newest))
            self._send("appended", message.source, log_index=newest)

    def _on_heartbeat(self, message: Message) -> None:
        self._follow(message)
        self._commit_to(message.commit)
        self._send("alive", message.source, context=message.context)

    def _on_appended(self, message: Message) -> None:
        other = self._others.get(message.source)
        if self.role is not Role.LEADER or other is None:
            return
        other.active = True
        if message.reject:
            if message.log_index > other.match:
                other.next = max(other.match + 1, min(message.log_index, message.commit + 1))
                self._send_append(message.source)
        elif message.log_index > other.match:
            other.match = message.log_index
            other.next = max(other.next, message.log_index + 1)
            if self._maybe_commit():
                self._send_appends()
            elif other.next <= self.last:
                self._send_append(message.source)
            if message.source == self._transferee and other.match == self.last:
                self._send("campaign", message.source)

    def _on_alive(self, message: Message) -> None:
        other = self._others.get(message.source)
        if self.role is not Role.LEADER or other is None:
            return
        other.active = True
        if other.match < self.last:
            self._send_append(message.source)
        self._confirm(message.context, message.source)

    def _on_campaign(self, _message: Message) -> None:
        self._campaign(force=True)

    def _on_propose(self, message: Message) -> None:
        if self.role is Role.LEADER:
            if not self._promotable or self._transferee:
                return
            data = message.data
            if _is_conf(Entry(0, data)):
                if self._pending_conf > self.applied:
                    data = None
                else:
                    self._pending_conf = self.last + 1
            self._append(self.last, [Entry(self.term, data)])
            self._maybe_commit()
            self._send_appends()
        elif self.lead and self.role is Role.FOLLOWER:
            self._send("propose", self.lead, term=0, data=message.data)

    def _maybe_commit(self) -> bool:
        """Commits what a majority has, up to an entry of this term."""
        matches = sorted((self.last if name == self.name else self._others[name].match for name in self.voters),
                         reverse=True)
        index = matches[len(matches) // 2]
        if index <= self.commit or self.term_at(index) != self.term:
            return False
        self._commit_to(index)
        postponed, self._postponed = self._postponed, []
        for message in postponed:
            self._on_read(message)
        return True

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────

    def _on_read(self, message: Message) -> None:
        if self.role is not Role.LEADER:
            if self.lead and message.source == self.name:
                self._send("read", self.lead, term=0, context=message.context)
            return
        if self.term_at(self.commit) != self.term:
            if self.options.postpone_reads:
                self._postponed.append(message)
        else:
            self._reads.append(_Read(message.context, self.commit, message.source, self.name))
            if self._quorum({self.name}):
                self._confirm(message.context, self.name)
            else:
                self._send_heartbeats(message.context)

    def _confirm(self, context: Any, name: str) -> None:
        """This member was with the leader after the read was asked for: and so for those that were asked for before."""
        for at, read in enumerate(self._reads):
            if read.context == context:
                read.acks.add(name)
                if self._quorum(read.acks):
                    done, self._reads = self._reads[:at + 1], self._reads[at + 1:]
                    for one in done:
                        self._answer_read(one)
                return

    def _answer_read(self, read: _Read) -> None:
        if read.source == self.name:
            self.read_states.append((read.context, read.index))
        else:
            self._send("read_at", read.source, log_index=read.index, context=read.context)

    def _on_read_at(self, message: Message) -> None:
        self.read_states.append((message.context, message.log_index))


def _is_conf(entry: Entry) -> bool:
    return isinstance(entry.data, tuple) and entry.data[0] == CONF
