"""One member of the simulated etcd: its raft, what it has applied, its lessor. Requests of clients: service.py.

    messages, ticks, proposals ──► raft ──► saved to disk ──► messages of a follower leave, entries are applied

While the disk saves, the raft waits (a leader's messages have left before), and with it everything that has to do with
terms. The lessor does not: a leader whose disk stands still renews leases although it may have been replaced.
"""
from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from simulator.cluster.api import Fault, Status
from simulator.cluster.kv import Kv
from simulator.cluster.lessor import Lessor
from simulator.cluster.machines import Process
from simulator.cluster.raft import CONF, Message, Raft, RaftDisk, RaftOptions, Role
from simulator.cluster.service import Service

if TYPE_CHECKING:
    from simulator.cluster.etcd import SimEtcd

__all__ = ["EtcdOptions", "LeaseChecks", "Member"]

LESSOR_S = 0.5              # between two looks for leases that have ended
REQUEST_S = 7.0             # etcd's own limit for a request
ACTIVE_TICKS = 3
WAITS_MAX = 1000


class LeaseChecks(Enum):
    """Before a leader renews a lease or revokes one that has ended, it makes sure that it leads:

    NEVER       etcd 3.4.23 (issues 12528 and 15247)
    ALWAYS      with a read of its own each time: etcd 3.4.31, 3.5.13
    INACTIVE    only if its last tick is older than three ticks, as when its disk stood still: etcd 3.4.34, 3.5.16, and
                later; so a leader that was paused answers as in 3.4.23, as soon as it has ticked again
    """

    NEVER = "never"
    INACTIVE = "inactive"
    ALWAYS = "always"


@dataclass(frozen=True)
class EtcdOptions:
    """As etcd 3.4.23 unless it says otherwise. sync_ms: how long a write to disk takes, lowest and highest. progress_s:
    after how long without events a watch is told the revision; etcd's 600 would hardly come in a history."""

    raft: RaftOptions = field(default_factory=RaftOptions)
    tick_ms: int = 100
    sync_ms: tuple[int, int] = (0, 2)
    lease_checks: LeaseChecks = LeaseChecks.NEVER
    keep_tombstone: bool = False
    progress_s: float = 10.0

    @property
    def election_ms(self) -> int:
        """An election timeout."""
        return self.tick_ms * self.raft.election_ticks

    def with_raft(self, **changes: Any) -> EtcdOptions:
        """The same with other options of the raft."""
        return replace(self, raft=replace(self.raft, **changes))


class Member:
    """lead: who leads, as its server knows; "" if nobody. term: of the last entry that it has applied, which its
    answers carry."""

    raft: Raft
    kv: Kv
    lessor: Lessor
    service: Service

    def __init__(self, cluster: SimEtcd, process: Process, disk: RaftDisk) -> None:
        self.name = process.name
        self.process = process
        self.cluster = cluster
        self.options = cluster.options
        self.disk = disk
        self.disk_stalled = False
        self.removed = False
        self._chance = random.Random(cluster.network.chance.getrandbits(64))
        self.start()

    def start(self) -> None:
        """Begins with what is on disk; the process has just been started."""
        options, driver = self.options, self.process.driver
        self.raft = Raft(self.name, self.disk, options.raft, self._chance)
        # The least time to live: an election timeout and a half, in whole seconds.
        self.kv = Kv(ttl_min_s=-(-3 * options.election_ms // 2000), keep_tombstone=options.keep_tombstone)
        self.lessor = Lessor(self.process.now_ms, options.election_ms)
        self.service = Service(self)
        self.lead = ""
        self.leader_changes = 0
        self.term = 0
        self.committed = self.raft.commit       # what is committed and saved
        self.ticked_ms = self.process.now_ms()
        self._life = self.process.life
        self._numbers = count(1)
        self._waits: dict[tuple[str, int, int], Callable[[Any], object]] = {}
        self._parked: list[tuple[float, Any]] = []      # proposals without a leader: (until, data)
        self._inputs: deque[Callable[[], object]] = deque()
        self._messages: list[Message] = []
        self._working = self._saving = self._tick_waits = self._applies = False
        driver.later(self._chance.randint(1, options.tick_ms) / 1000, self._tick)
        driver.later(LESSOR_S, self._look_for_ended_leases)
        self._apply_soon()

    @property
    def leads(self) -> bool:
        """As far as it knows."""
        return self.lead == self.name

    @property
    def is_learner(self) -> bool:
        return self.name in self.raft.learners

    def status(self) -> Status:
        """What it says of itself."""
        return Status(self.name, self.lead, self.leader_changes, self.term, self.raft.term, self.kv.revision,
                      self.is_learner)

    # ── the raft ─────────────────────────────────────────────────────────────────────────────────────────

    def input(self, step: Callable[[], object]) -> None:
        """Does something to the raft, now or when the disk has saved."""
        if self.removed:
            return
        self._inputs.append(step)
        self._work()

    def _work(self) -> None:
        if self._working:
            return
        self._working = True
        while self._inputs and not self._saving:
            self._inputs.popleft()()
            self._ready()
        self._working = False

    def receive(self, message: Message) -> None:
        """A message of another member."""
        self.input(partial(self.raft.step, message))

    def _tick(self) -> None:
        self.process.driver.later(self.options.tick_ms / 1000, self._tick)
        if not self._tick_waits:        # as a channel with room for one
            self._tick_waits = True
            self.input(self._ticked)

    def _ticked(self) -> None:
        self._tick_waits = False
        self.ticked_ms = self.process.now_ms()
        self.raft.tick()

    def _ready(self) -> None:
        raft = self.raft
        self._look_at_leader()
        self._messages += raft.messages
        raft.messages = []
        if self.leads:
            self._send()
        if self._parked and raft.lead:
            self._propose_parked()
        if not raft.dirty:
            self._saved()
            return
        self._saving = True
        if not self.disk_stalled:
            self._save_later()

    def _save_later(self) -> None:
        delay_ms = self._chance.randint(*self.options.sync_ms)
        if delay_ms:
            self.process.driver.later(delay_ms / 1000, self._save)
        else:
            self._save()

    def _save(self) -> None:
        if self.disk_stalled:
            return
        self.raft.save()
        self._saving = False
        self._saved()
        self._work()

    def stall_disk(self) -> None:
        """Nothing is saved from now on."""
        self.disk_stalled = True

    def unstall_disk(self) -> None:
        """The disk works again."""
        self.disk_stalled = False
        if self._saving and self.process.alive:
            self.process.driver.soon(self._save)

    def _saved(self) -> None:
        raft = self.raft
        self._send()
        self.committed = max(self.committed, raft.commit)
        if self.committed > raft.applied:
            self._apply_soon()
        states, raft.read_states = raft.read_states, []
        for context, index in states:
            self.service.confirmed(context, index)

    def _send(self) -> None:
        messages, self._messages = self._messages, []
        for message in messages:
            target = self.cluster.members.get(message.target)
            if target is not None:
                self.cluster.network.send(self.process, target.process, partial(target.receive, message))

    def _look_at_leader(self) -> None:
        raft = self.raft
        if raft.role is Role.LEADER:
            self.cluster.check_leader(raft.term, self.name)
        if raft.lead != self.lead:
            self.lead = raft.lead
            if not self.leads:
                self.lessor.demote()
            if self.lead:
                self.leader_changes += 1
                self.service.leader_changed()

    # ── proposals ────────────────────────────────────────────────────────────────────────────────────────

    def propose(self, command: tuple[Any, ...], done: Callable[[Any], object], limit_s: float = REQUEST_S) -> None:
        """Brings a command into the log, if that succeeds; done(result) when it is applied here. A proposal that is
        made while there is no leader waits for one until limit_s is over."""
        number = self.name, self._life, next(self._numbers)
        if len(self._waits) > WAITS_MAX:        # nobody can tell which of them will never be applied
            del self._waits[next(iter(self._waits))]
        self._waits[number] = done
        kind = CONF if command[0] == CONF else "do"
        data = (kind, number, *command[1:]) if kind == CONF else (kind, number, command)
        until = self.process.now() + min(limit_s, REQUEST_S)
        self.input(partial(self._propose, data, until))

    def _propose(self, data: Any, until: float) -> None:
        if not self.raft.propose(data):
            self._parked.append((until, data))

    def _propose_parked(self) -> None:
        parked, self._parked = self._parked, []
        for until, data in parked:
            if until > self.process.now():
                self._inputs.append(partial(self._propose, data, until))

    # ── what is committed ────────────────────────────────────────────────────────────────────────────────

    def _apply_soon(self) -> None:
        if not self._applies:
            self._applies = True
            self.process.driver.soon(self._apply)

    def _apply(self) -> None:
        self._applies = False
        raft = self.raft
        while raft.applied < self.committed and not self.removed:
            entry = raft.log[raft.applied]
            self.cluster.check_entry(raft.applied + 1, entry)
            raft.applied += 1
            result = self._apply_one(entry.data)
            self.term = entry.term
            if entry.data is not None and entry.data[1] in self._waits:
                self._waits.pop(entry.data[1])(result)
        self.service.applied()

    def _apply_one(self, data: Any) -> Any:
        if data is None:
            if self.leads:
                self.lessor.promote()
            return None
        if data[0] == CONF:
            _, _, change, name = data
            self.raft.change_members(change, name)
            if change == "remove" and name == self.name:
                self.removed = True
                self.service.stop()
            return None
        command = data[2]
        if command[0] == "compact":
            self.service.notify()       # of what is about to be forgotten
        result = self.kv.apply(command)
        if command[0] == "grant" and not isinstance(result, Fault):
            self.lessor.granted(command[1], self.kv.leases[command[1]])
        elif command[0] == "revoke":
            self.lessor.revoked(command[1])
        return result

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────

    def _look_for_ended_leases(self) -> None:
        self.process.driver.later(LESSOR_S, self._look_for_ended_leases)
        if self.lessor.primary and not self.removed and (ended := self.lessor.expired()):
            self.process.driver.soon(lambda: self.ensure_leadership(partial(self._revoke, ended)))

    def _revoke(self, ended: list[int], leads: bool) -> None:
        if leads:
            for lease in ended:
                self.process.driver.soon(partial(self.propose, ("revoke", lease), _ignore))

    def ensure_leadership(self, then: Callable[[bool], object]) -> None:
        """then(whether this member leads), as far as LeaseChecks asks for it."""
        checks = self.options.lease_checks
        active = self.process.now_ms() - self.ticked_ms < ACTIVE_TICKS * self.options.tick_ms
        if checks is LeaseChecks.NEVER or (checks is LeaseChecks.INACTIVE and active):
            then(True)
        else:
            self.service.read_index(lambda fault: then(fault is None and self.leads))


def _ignore(_result: Any) -> None:
    pass
