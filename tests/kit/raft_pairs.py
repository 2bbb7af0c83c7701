"""A group of replicas, each of them twice: once in Raft's state machine (_core/raft), once in etcd/raft. Both get the
same steps, drawn from one seed; after each of them the replica's state must be equal in both.

*A step* is some ticks of one replica, its campaign, a proposal, a change of members, a transfer, a start from its disk
with the commit index or an older one, a compaction, or the delivery of one message, in order or not, once or again.
Messages may be lost. A message is delivered to both: `carries` says whose are on the way, those of ours, those of
etcd/raft, or both. So what one sends is judged by what it makes of the other, and differences in flow control do not
add up.

*Equal* are role, term, vote, leader, commit index, transferee, members, the whole log (terms, kinds and bytes), and of
a leader what it knows of the others: how far their logs agree and whether they were heard. So are the messages of a
step: votes, answers to votes, heartbeats and their answers, leadership that is given away, and answers to APPEND but
for their hints. Across replicas: one leader of a term, and one entry of a committed index.

*Not equal*, and left out:

- Which entries an APPEND has, and when it is sent: both have their own windows and sizes. One of ours must be true of
  its sender's log and commit index instead. Hints of a refusal: ours say a term, those of this etcd/raft do not.
- An APPEND that begins before the commit index: etcd/raft reads nothing of it, ours what is behind. etcd/raft gets it
  without what is committed already. If nothing is left, their answers differ.
- When a COPY is sent instead, and how often.
- The answer to a leader of a former term: either makes it follow.
- Whose time is up: etcd/raft draws its time by chance. Nobody stands by itself here; a campaign is a step.
- The disk: everything that a step leaves is persisted before the next one (kit/raft.py has slow disks).
- When members count: in ours with the entry, in etcd/raft when it is applied. The driver has etcd/raft apply it when
  the entry comes, and take it back when it goes (etcd_raft.go). A leader that is no voter any more goes in ours when
  that is committed; the driver starts that of etcd/raft again then. Until then proposals to it are left out, as is a
  campaign of who is no voter: ours allows both, since others may need its log.
- Answers of who is no member for the receiver: etcd/raft's RawNode drops them unread, here they are lost.
- Copies instead of a log: etcd/raft sends one along with its message, ours announces it; it comes with the message
  here. Those for who is no member of the copy are lost, since etcd/raft takes none.
"""
from __future__ import annotations

from collections import Counter
from random import Random

from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.machine import Raft
from fluxmq._core.raft.messages import ENTRY_MEMBERS, ENTRY_RECORDS, Message, MessageKind, members_of
from kit.etcd_raft import Answer, EtcdRaft
from kit.raft_words import NAMES, entries_text, entry_of, entry_text, members_text, message_of, message_text

__all__ = ["Pairs"]

ELECTION_TICKS, HEARTBEAT_TICKS = 4, 2
NO_END = 1 << 30            # of the time after which a replica would stand by itself
WAITING_MAX = 60            # messages; then some are lost
ANSWERS = (MessageKind.APPENDED, MessageKind.ALIVE, MessageKind.VOTED, MessageKind.PRE_VOTED)


def key(m: Message) -> tuple[object, ...]:
    """What must be equal in both of a message that is no APPEND."""
    return m.kind, m.to, m.term, m.index, m.log_term, m.commit, m.refused, m.forced


# ── replicas ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Pair:
    """One replica. theirs: the log of etcd/raft's. sent: what ours has sent in this step.
    cuts: how often its log was cut."""

    def __init__(self, number: int, members: tuple[frozenset[int], frozenset[int]], append_bytes_max: int) -> None:
        self.number, self.append_bytes_max = number, append_bytes_max
        self.theirs, self.cuts = "0.0;-", 0
        self.sent: list[Message] = []
        self.raft = self._new(EntryLog(*members), 0, 0, 0)

    def _new(self, log: EntryLog, term: int, vote: int, commit: int) -> Raft:
        return Raft(self.number, log, lambda _: NO_END, term=term, vote=vote, commit=commit,
                    election_ticks=ELECTION_TICKS, heartbeat_ticks=HEARTBEAT_TICKS,
                    append_bytes_max=self.append_bytes_max)

    def restart(self, commit: int) -> None:
        former = self.raft.log
        log = EntryLog(*former.members_at(former.base), former.base, former.base_term)
        for entry in former.tail():
            log.add(entry)
        self.raft = self._new(log, self.raft.term, self.raft.vote, commit)

    def turn(self) -> None:
        """Everything is persisted, and sent."""
        while taken := self.raft.take():
            self.sent += taken.now
            self.cuts += taken.cut > 0
            self.raft.persisted(taken.number)
            self.sent += taken.later
        self.raft.persisted(taken.number)

    @property
    def votes(self) -> bool:
        """Whether it is a voter, as far as it knows."""
        return self.number in self.raft.voters

    def state(self) -> tuple[str, str, str, str]:
        """As Answer has it: state, members, progress, log."""
        raft = self.raft
        progress = ",".join(f"{one.number}:{one.match}:{one.active:d}"
                            for one in sorted(raft.replicas, key=lambda one: one.number))
        return (f"{raft.state_name} {raft.term} {raft.vote} {raft.leader} {raft.commit} {raft.transferee}",
                members_text(raft.voters, raft.learners), progress,
                f"{raft.log.base}.{raft.log.base_term};{entries_text(raft.log.tail())}")


class Pairs:
    """seen: how often what happened. steps: the lines of all of them, for a failure."""

    def __init__(self, seed: int, oracle: EtcdRaft) -> None:
        self.chance = Random(seed)
        pick = self.chance.choice
        size, self.oracle = pick((1, 2, 3, 3, 3, 4, 5, 5)), oracle
        members = self.first = (frozenset(range(1, size + 1)), frozenset[int]())
        small = pick((False, False, True))
        spare = pick((0, 1, 2))
        self.pairs = [Pair(number, members, 20 if small else 1 << 20) for number in range(1, size + spare + 1)]
        oracle.group(len(self.pairs), ELECTION_TICKS, HEARTBEAT_TICKS, pick((1, 2, 256)), pick((0, 20, 1 << 20)),
                     members_text(*members))
        self.wire: list[Message] = []
        self.carries = pick(("ours", "theirs", "both"))
        self.loss, self.repeats, self.order = pick((0.0, 0.02, 0.2)), pick((0.0, 0.05)), pick((0.0, 0.2, 1.0))
        self.weights = {"deliver": pick((10, 60)), "run": pick((2, 10)), "tick": pick((3, 8)), "propose": pick((3, 10)),
                        "campaign": pick((2, 5)), "change": pick((0, 2, 5)), "transfer": pick((0, 2)),
                        "restart": pick((0, 0.5, 1)), "part": pick((0, 2, 4)), "heal": pick((2, 4)),
                        "usurp": pick((0, 3, 6)), "lose": pick((0, 1)), "compact": pick((0, 2, 5))}
        self.apart: set[int] = set()        # replicas that reach only each other
        self.committed: dict[int, str] = {}
        self.leaders: dict[int, int] = {}
        self.seen: Counter[str] = Counter()
        self.steps: list[str] = []
        self.proposed = 0

    def play(self, steps: int) -> None:
        self.stand(self.pairs[0])
        for _ in range(steps):
            self.step()

    # ── both ─────────────────────────────────────────────────────────────────────────────────────────────────

    def both(self, pair: Pair, line: str, *, taken: bool = True, same_answers: bool = True) -> None:
        """Ours has done the step; now etcd/raft does it, and both are compared."""
        cuts = pair.cuts
        pair.turn()
        self.seen["cuts"] += (cut := pair.cuts > cuts)
        self.steps.append(line)
        answer = self.oracle.step(line)
        if answer.log is not None:
            self.seen["members cut"] += cut and answer.log.count(":m:") < pair.theirs.count(":m:")
            pair.theirs = answer.log
        ours, theirs = pair.state(), (answer.state, answer.members, answer.progress, pair.theirs)
        assert ours == theirs, f"replica {pair.number} after {line!r}:\nours       {ours}\netcd/raft  {theirs}"
        assert taken == answer.taken, f"replica {pair.number} takes {line!r} in one of them"
        self.check(pair)
        self.post(pair, answer, same_answers)

    def check(self, pair: Pair) -> None:
        raft = pair.raft
        if raft.leads:
            self.seen["terms"] += raft.term not in self.leaders
            assert self.leaders.setdefault(raft.term, pair.number) == pair.number, "two leaders of a term"
        for index, entry in zip(range(raft.log.base + 1, raft.commit + 1), raft.log.tail(), strict=False):
            if index not in self.committed:
                self.seen["committed"] += 1
                self.seen["members"] += entry.kind == ENTRY_MEMBERS
            text = entry_text(entry)
            assert self.committed.setdefault(index, text) == text, f"two entries of committed index {index}"

    def post(self, pair: Pair, answer: Answer, same_answers: bool) -> None:
        ours, theirs = pair.sent, [message_of(text) for text in answer.messages]
        pair.sent = []
        apart = [MessageKind.APPEND, MessageKind.COPY] + [MessageKind.APPENDED] * (not same_answers)
        ours_sent = sorted(key(m) for m in ours if m.kind not in apart)
        theirs_sent = sorted(key(m) for m in theirs if m.kind not in apart)
        assert ours_sent == theirs_sent, f"{self.steps[-1]!r}: sent\nours       {ours_sent}\netcd/raft  {theirs_sent}"
        for message in ours:
            assert self.is_true(pair, message), f"{self.steps[-1]!r}: {message_text(message)}"
        sent = ours if self.carries != "theirs" else theirs
        if self.carries == "both":
            known = {message_text(message) for message in ours}
            sent = ours + [message for message, text in zip(theirs, answer.messages, strict=True) if text not in known]
        self.wire += [message for message in sent if self.chance.random() >= self.loss
                      and (message.to in self.apart) == (message.sender in self.apart)]
        if len(self.wire) > WAITING_MAX:
            self.seen["lost"] += 1
            first = self.chance.randrange(WAITING_MAX // 2)
            del self.wire[first:first + WAITING_MAX // 2]

    def is_true(self, pair: Pair, m: Message) -> bool:
        """Whether the sender of an APPEND or a COPY has what it says."""
        log, known = pair.raft.log, m.index - pair.raft.log.base
        if m.kind == MessageKind.COPY:
            return known <= 0 and self.committed[m.index].startswith(f"{m.log_term}:")
        if m.kind != MessageKind.APPEND:
            return True
        term = log.base_term if known == 0 else log.tail()[known - 1].term
        return known >= 0 and term == m.log_term and m.commit <= pair.raft.commit \
            and log.tail()[known:known + len(m.entries)] == m.entries

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        """At random, and often by who leads."""
        leading = [pair for pair in self.pairs if pair.raft.leads]
        pair = self.chance.choice(leading if leading and self.chance.random() < 0.4 else self.pairs)
        match self.chance.choices(list(self.weights), list(self.weights.values()))[0]:
            case "deliver" if self.wire:
                self.deliver(0 if self.chance.random() >= self.order else self.chance.randrange(len(self.wire)))
            case "run":
                self.run()
            case "tick":
                self.tick(pair, self.chance.choice((1, HEARTBEAT_TICKS, ELECTION_TICKS)))
            case "part":
                self.apart = {pair.number} | {one.number for one in self.pairs if self.chance.random() < 0.2}
            case "heal":
                self.apart = set()
            case "usurp" if pair.votes and pair.raft.leads:
                self.usurp(pair)
            case "propose" if pair.votes or not pair.raft.leads:
                self.propose(pair)
            case "campaign" if pair.votes:
                self.stand(pair)
            case "change":
                self.change(pair)
            case "transfer":
                self.transfer(pair)
            case "restart":
                self.restart(pair)
            case "compact":
                self.compact(pair)
            case "lose" if self.wire:
                del self.wire[self.chance.randrange(len(self.wire)):]

    def run(self) -> None:
        """The network has time."""
        for _ in range(self.chance.choice((0, 5, 40))):
            if self.wire:
                self.deliver(0)

    def tick(self, pair: Pair, count: int) -> None:
        former = pair.raft.leads
        for _ in range(count):
            pair.raft.tick()
        self.both(pair, f"tick {pair.number} {count}")
        self.seen["stepped down"] += former and not pair.raft.leads

    def stand(self, pair: Pair) -> None:
        """Mostly, when the others have not heard their leader for so long that they may vote."""
        if self.chance.random() < 0.7:
            for each in self.pairs:
                if not each.raft.leads:
                    self.tick(each, ELECTION_TICKS)
        pair.raft.campaign()
        self.both(pair, f"campaign {pair.number}")
        self.run()

    def usurp(self, leader: Pair) -> None:
        """It has entries that nobody else gets, or few, and another one leads; perhaps it comes back to that."""
        few = self.chance.sample(self.pairs, self.chance.choice((0, 0, 1)))
        self.apart = {leader.number} | {one.number for one in few}
        self.chance.choice((self.propose, self.change))(leader)
        self.run()
        candidates = [pair for pair in self.pairs if pair.votes and pair.number not in self.apart]
        if candidates:
            self.stand(self.chance.choice(candidates))
        self.apart = self.chance.choice((self.apart, set()))

    def deliver(self, at: int) -> None:
        message = self.wire[at]
        if self.chance.random() >= self.repeats:
            del self.wire[at]
        pair = self.pairs[message.to - 1]
        raft = pair.raft
        if message.kind in ANSWERS and message.sender not in raft.voters | raft.learners:
            return
        if message.kind == MessageKind.CAMPAIGN and not pair.votes:
            return
        self.seen[NAMES[message.kind]] += 1
        end = message.index + len(message.entries)
        if message.kind == MessageKind.COPY:
            self.copy(pair, message)
            return
        theirs, same = message, message.term >= raft.term
        if message.kind == MessageKind.APPEND and raft.log.base <= message.index < raft.commit:
            same = same and end >= raft.commit
            if end > raft.commit:
                known = raft.commit - message.index
                theirs = Message(message.kind, message.to, message.term, sender=message.sender, index=raft.commit,
                                 log_term=message.entries[known - 1].term, commit=message.commit,
                                 entries=message.entries[known:])
        raft.step(message)
        self.both(pair, f"deliver {message_text(theirs)}", same_answers=same)

    def restart(self, pair: Pair) -> None:
        self.seen["restarted"] += 1
        now = pair.raft.commit
        commit = self.chance.choice((now, self.chance.randint(pair.raft.log.base, now)))
        pair.restart(commit)
        self.both(pair, f"restart {pair.number} {commit}")

    def members_at(self, index: int) -> tuple[frozenset[int], frozenset[int]]:
        while index and ":m:" not in self.committed[index]:
            index -= 1
        return members_of(entry_of(self.committed[index]).data) if index else self.first

    def copy(self, pair: Pair, message: Message) -> None:
        raft, members = pair.raft, self.members_at(message.index)
        if pair.number in members[0] | members[1]:
            same = message.term >= raft.term
            raft.step(message)
            if same and message.index > raft.commit:
                self.seen["copied"] += 1
                raft.installed(message.index, message.log_term, *members)
            words = message_text(message).split(" ")[:-1]
            self.both(pair, f"deliver {' '.join(words)} {members_text(*members)}", same_answers=same)

    def compact(self, pair: Pair) -> None:
        index = self.chance.randint(pair.raft.log.base, pair.raft.commit)
        if index > pair.raft.log.base:
            self.seen["compacted"] += 1
            pair.raft.forget(index)
            self.both(pair, f"compact {pair.number} {index}")

    def propose(self, pair: Pair) -> None:
        words = []
        for _ in range(self.chance.randint(1, 3)):
            self.proposed += 1
            words.append(f"{self.proposed}" * self.chance.choice((1, 1, 10)))
        taken = pair.raft.propose([(ENTRY_RECORDS, word.encode()) for word in words]) > 0
        self.both(pair, f"propose {pair.number} {' '.join(words)}", taken=taken)

    def change(self, pair: Pair) -> None:
        """Somebody comes as a learner, gets a vote, loses it, or goes."""
        raft = pair.raft
        voters, learners = raft.voters, raft.learners
        one = self.chance.choice(self.pairs).number
        if one in learners:
            learners -= {one}
            voters |= {one} if self.chance.random() < 0.7 else set()
        elif one in voters:
            voters -= {one}
            learners |= {one} if self.chance.random() < 0.3 else set()
        else:
            learners |= {one}
        if voters and raft.change_members(voters, learners):
            self.seen["changes"] += 1
            self.both(pair, f"change {pair.number} {members_text(voters, learners)}")

    def transfer(self, pair: Pair) -> None:
        """When no members change: etcd/raft would not give it to a voter of an entry that is not committed."""
        raft, to = pair.raft, self.chance.choice(self.pairs).number
        changes = [entry for entry in raft.log.tail()[raft.commit - raft.log.base:] if entry.kind == ENTRY_MEMBERS]
        if not changes and raft.transfer(to):
            self.seen["transfers"] += 1
            self.both(pair, f"transfer {pair.number} {to}")
