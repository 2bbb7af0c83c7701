"""A classic queue, driven beside a naive model of it (tests/oracle/queue.py): after every step the same messages are in
the same hands, with the same counts, and nothing is left undone that could be done.

The queue is whole (QueueManager, delays, dead letters, limits), in memory; where its messages are is varied too: any
step may find them on a disk that must be read first.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kit.settling import settle_upto
from oracle.queue import QueueModel
from property.test_queue_log import messages

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import claims_of, pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.positions import NOTHING
from fluxmq.model.queues import QueueLimits, QueueSpec, Retry

QUOTA_EXCEEDED = 0x97
MODES = {"a": "shared", "b": "shared", "c": "exclusive", "d": "single"}
START_MS = 1_000_000

names = st.sampled_from(sorted(MODES))
share = st.floats(0, 0.999)


def touched(claims: dict[Any, Any]) -> dict[Any, Any]:
    """Without those that never reached anybody: that they are ready once more is as if they were new."""
    return {place: claim for place, claim in claims.items() if claim[:2] != ("ready", 0)}


@dataclass(order=True)
class Delayed:
    """A message that waits for its time."""

    due: int
    number: int
    payload: bytes
    priority: int
    key: bytes
    expires_at: int


class QueueMachine(RuleBasedStateMachine):
    """events: deliveries since the last look, as (group, member, log, offset, count). disk: by log number."""

    @initialize(partitions=st.sampled_from([1, 4]), lanes=st.sampled_from([1, 3]),
                retries=st.sampled_from([0, 2]), depth=st.sampled_from([0, 0, 6]), drop=st.booleans(),
                returned=st.sampled_from([0, 0, 3]))
    def make(self, partitions: int, lanes: int, retries: int, depth: int, drop: bool, returned: int) -> None:
        self.hub = Hub(None)
        self.now, self.mono = START_MS, 0
        self.wall = self.now
        self.hub.set_clock(self.wall, self.mono)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.clock = QueueClock(self.manager)
        self.manager.disk.read_for = self.read  # type: ignore[method-assign]
        self.manager.disk.read_due = self.read_due  # type: ignore[method-assign]
        self.depth_max, self.drop_head = depth, drop
        self.queue = self.declare(QueueSpec(
            name="q", partitions=partitions, max_priority=lanes - 1, limits=QueueLimits(max_depth=depth),
            retry=Retry(max_retries=retries), overflow="drop-head" if drop else "reject-publish"))
        self.state = self.manager.states[self.queue]
        self.numbers = {log.number: at for at, log in enumerate(self.queue.logs)}
        self.model = QueueModel(partitions, lanes, retries + 1 if retries else 0)
        self.tell_time()
        self.returned_max = returned
        self.groups: dict[str, Group] = {}
        self.members: dict[int, PyMember] = {}
        self.disk: dict[int, dict[int, bytes]] = {}
        self.events: list[tuple[str, int, int, int, int]] = []
        self.lost: list[tuple[str, int, tuple[int, int]]] = []
        self.delayed: list[Delayed] = []    # in the order in which they are due
        self.dead_next = 0
        self.count = 0
        self.stalled = False

    def declare(self, spec: QueueSpec) -> Queue:
        return self.manager.declare(spec)[0]

    def tell_time(self) -> None:
        self.hub.set_clock(self.wall, self.mono)
        self.model.now, self.model.mono = self.now, self.mono

    # ── what the queue calls ─────────────────────────────────────────────────────────────────────────────

    def member(self, group: str, number: int, room: int, lease_ms: int) -> PyMember:
        def deliver(log: int, offset: int, count: int) -> bool:
            if self.model.groups[group].members[number].refuses:
                return False
            self.events.append((group, number, self.numbers[log], offset, count))
            return True

        def lost(log: int, offset: int, count: int) -> None:
            self.lost.append((group, number, (self.numbers[log], offset)))

        return PyMember(deliver, lost, room, lease_ms)

    def read(self, queue: Queue) -> None:
        """Somebody wants what is on disk only."""
        self.stalled = True
        delay = [self.queue.delays.log] if self.queue.delays is not None else []
        for log in [*queue.logs, *delay]:
            if log.wanted != NOTHING:
                self.model.unread.add(self.numbers.get(log.number, -1))
                first, covers = log.wanted, min(log.wanted + 4, log.flushed)
                kept = self.disk.get(log.number, {})
                log.load(first, covers, [kept[offset] for offset in sorted(kept) if first <= offset < covers])
        queue.notify()

    def read_due(self, queue: Queue) -> None:
        """Delayed messages are due that are on disk only."""
        self.stalled = True
        assert queue.delays is not None
        kept = self.disk.get(queue.delays.log.number, {})
        queue.delays.found({offset: kept.get(offset, b"") for offset in queue.delays.missing()[:3]})
        queue.notify()

    # ── looking at what it did ───────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        for payload, told in self.new_dead():
            partition, _, text = told["x-death-message-id"].partition(":")
            offset = int(text)
            log = int(partition) * self.model.lanes + (offset >> 56)
            reason, group, count = told["x-death-reason"], told["x-death-group"], int(told["x-death-count"])
            assert payload == self.model.logs[log][offset].payload
            if reason == "maxlen":
                assert offset == self.model.first(log) or offset in self.model.leftovers(log)
                self.model.buried(payload, reason)
                self.model.drop(log, offset + 1)
            else:
                self.model.died(group, log, offset, reason, count)
        events, self.events = self.events, []
        for group, number, log, offset, count in events:
            self.model.delivered(group, number, log, offset, count)
        self.model.unread.clear()

    def new_dead(self, keep: bool = False) -> list[tuple[bytes, dict[str, str]]]:
        """Dead letters since the last look. keep: they are still new after this one."""
        state = self.manager.queues.get((self.queue.namespace.name, b"q.dlq"))
        found, offset = [], self.dead_next
        while state is not None and (record := state.queue.logs[0].at_or_above(offset)) is not None:
            offset = record.offset + 1
            told = {name.decode(): value.decode() for name, value in record.envelope.headers()}
            found.append((record.payload, told))
        if not keep:
            self.dead_next = offset
        return found

    def new_messages(self, before: list[int], expected: dict[bytes, tuple[int, bytes, int]]) -> None:
        """What was appended since is what was expected, {payload: (priority, key, expiry)}, wherever it went."""
        found = self.appended(before)
        assert sorted(payload for _, _, payload in found) == sorted(expected)
        for at, offset, payload in found:
            record = self.queue.logs[at].get(offset)
            priority, key, expires_at = expected[payload]
            assert record is None or record.expires_at == expires_at
            self.model.appended(at, offset, payload, priority=priority, key=key, expires_at=expires_at)

    def appended(self, before: list[int]) -> list[tuple[int, int, bytes]]:
        """(log, offset, payload) of what came since; of what is dead already, the dead letter has the payload."""
        dead = {told["x-death-message-id"]: payload for payload, told in self.new_dead(keep=True)}
        found = []
        for at, log in enumerate(self.queue.logs):
            for offset in range(before[at], log.next):
                record = log.get(offset)
                found.append((at, offset, record.payload if record is not None
                              else dead[f"{at // self.model.lanes}:{offset}"]))
        return found

    def pump(self) -> None:
        """A turn ends."""
        self.turns()
        for name, group in self.groups.items():
            self.model.groups[name].full = group.claims - group.held >= group.returned_max
        self.model.pumped()
        self.check_nothing_due()
        # Whoever asked for the disk is asked once more when it is there; so a second pump finds nothing to do.
        self.queue.notify()
        before = self.ends()
        pump_queues(self.hub)
        assert not self.events and self.ends() == before
        if self.groups:
            self.check_trimmed()

    def turns(self) -> None:
        """Until one changes nothing: what one settles makes room for delayed messages, which the next one moves."""
        for _ in range(1000):
            self.stalled = False
            before, dead = self.ends(), len(self.model.dead)
            again = pump_queues(self.hub)
            self.moved(before)
            self.look()
            if not again and not self.stalled and self.ends() == before and len(self.model.dead) == dead:
                break
        assert not self.stalled

    def ends(self) -> list[int]:
        return [log.next for log in self.queue.logs]

    def moved(self, before: list[int]) -> None:
        """Delayed messages whose time has come are in the queue, in that order, as far as there is room: in any turn,
        because those that found none are tried again. Once due is due, although the clock may have gone back since."""
        new = {payload for _, _, payload in self.appended(before)}
        found = [one for one in self.delayed if one.payload in new]
        assert found == [one for one in self.delayed if one.due <= self.now][:len(found)]
        self.new_messages(before, {one.payload: (one.priority, one.key, one.expires_at) for one in found})
        self.delayed = [one for one in self.delayed if one.payload not in new]

    def check_nothing_due(self) -> None:
        """What is due and not moved found no room."""
        if any(one.due <= self.now for one in self.delayed):
            assert self.depth_max and not self.drop_head
            assert self.waiting(most=True) >= self.depth_max

    def check_trimmed(self) -> None:
        for at, log in enumerate(self.queue.logs):
            assert log.first <= self.model.first(at)
            if not self.model.leftovers(at):
                assert log.first == self.model.first(at)

    @invariant()
    def the_same_in_the_same_hands(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.look()
        for name, group in self.groups.items():
            found = {(self.numbers[log], offset): (state, count, due, next(
                (number for number, member in self.members.items() if member is holder), None))
                for (log, offset), (state, count, due, holder) in claims_of(group).items()}
            there = {place: claim for place, claim in found.items()
                     if claim[0] == "held" or place[1] in self.model.logs[place[0]]}
            assert touched(there) == touched(self.model.claims(name))
            assert group.claims == len(found)
            assert group.held == sum(claim[0] == "held" for claim in found.values())
            for number, member in self.members.items():
                if number in self.model.groups[name].members:
                    assert member.held == len(self.model.groups[name].held(number)) <= max(member.room, member.held)
                    assert member.held <= self.model.groups[name].members[number].most
        assert self.hub.counters()["claims"] == sum(group.claims for group in self.groups.values())

    # ── rules ────────────────────────────────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, 4), priority=st.integers(0, 4), key=st.sampled_from([b"", b"", b"x", b"y", b"z"]),
          expiry=st.sampled_from([0, 0, 0, 500, 3000]), delay=st.sampled_from([0, 0, 0, 700, 2500]), turn=st.booleans())
    def publish(self, count: int, priority: int, key: bytes, expiry: int, delay: int, turn: bool) -> None:
        for _ in range(count):
            self.count += 1
            self.publish_one(b"%d" % self.count, priority, key, self.now + expiry if expiry else 0,
                             self.now + delay if delay else 0)
        if turn:
            self.pump()

    def publish_one(self, payload: bytes, priority: int, key: bytes, expires_at: int, due: int) -> None:
        full = bool(self.depth_max) and self.waiting(most=True) >= self.depth_max
        waiting = self.waiting()
        before = self.ends()
        dead = len(self.model.dead)
        self.stalled = False
        properties = b"\x26\x00\x0dpartition-key" + len(key).to_bytes(2, "big") + key if key else b""
        properties += b"\x26\x00\x08priority\x00\x01%d" % priority
        reason = self.queue.append_message(b"$queue/q", payload, priority=priority, properties=properties,
                                           partition_key=key, expires_at=expires_at, not_before=due)
        if full and not self.drop_head:
            assert reason == QUOTA_EXCEEDED or waiting < self.depth_max
        else:
            assert reason == 0
        if reason:
            return
        if due:
            self.delayed.append(Delayed(due, self.count, payload, priority, key, expires_at))
            self.delayed.sort()
        self.new_messages(before, {} if due else {payload: (priority, key, expires_at)})
        self.look()
        assert full or len(self.model.dead) == dead
        if self.depth_max and not self.stalled:     # what must be read before it can be buried goes a little later
            assert self.waiting() <= self.depth_max

    def waiting(self, most: bool = False) -> int:
        """What max_depth counts: messages that the group furthest behind is not done with; without a group, all. most:
        as QueueModel.depth."""
        depth = self.model.depth(most)
        return min(depth, max((self.model.unsettled(name, most) for name in self.groups), default=depth))

    def in_hand(self) -> set[tuple[str, tuple[int, int]]]:
        return {(name, place) for name in self.groups for place, claim in self.model.claims(name).items()
                if claim[0] == "held"}

    @rule(count=st.integers(3, 6))
    def trickle(self, count: int) -> None:
        """Messages come one by one, and are settled at once: nobody is busy, and still each gets its share."""
        for _ in range(count):
            before = self.in_hand()
            self.count += 1
            self.publish_one(b"%d" % self.count, 0, b"", 0, 0)
            self.pump()
            for name, place in sorted(self.in_hand() - before):
                assert by_offset.settle_at(self.groups[name], self.log_of(place).number, place[1])
                self.model.settled(name, [place])
            self.pump()

    @precondition(lambda self: len(self.groups) < 3)
    @rule(name=names)
    def group(self, name: str) -> None:
        if name in self.groups:
            return
        start = [log.first for log in self.queue.logs]
        self.groups[name] = self.manager.group(self.queue, name.encode(), mode=MODES[name])
        self.model.add_group(name, MODES[name], start)
        if self.returned_max:
            self.groups[name].returned_max = self.model.groups[name].returned_max = self.returned_max
        self.balance(name)
        self.pump()

    @rule(name=names, room=st.integers(0, 4), lease=st.sampled_from([0, 0, 1000, 4000]),
          most=st.sampled_from([0, 0, 1, 2]))
    def join(self, name: str, room: int, lease: int, most: int = 0) -> None:
        if name not in self.groups:
            self.group(name)
        number = len(self.members)
        self.model.join(name, number, room, lease, most or 1 << 32)
        self.members[number] = self.member(name, number, room, lease)
        self.members[number].held_max = most
        self.groups[name].join(self.members[number])
        self.balance(name)
        self.pump()

    def balance(self, name: str) -> None:
        if MODES[name] != "shared":
            owners = self.groups[name].owners()
            self.model.balanced(name, {partition: next((n for n, m in self.members.items() if m is owner), None)
                                       for partition, owner in owners.items()})

    def some_member(self, name: str, which: float) -> int | None:
        if name not in self.groups:
            return None
        known = list(self.model.groups[name].members)
        return known[int(which * len(known))] if known else None  # type: ignore[return-value]

    def some_claim(self, name: str, which: float, held: bool = True) -> tuple[int, int] | None:
        if name not in self.groups:
            return None
        places = sorted(place for place, claim in self.model.claims(name).items() if claim[0] == "held" or not held)
        return places[int(which * len(places))] if places else None

    @rule(name=names, which=share, turn=st.booleans())
    def leave(self, name: str, which: float, turn: bool) -> None:
        number = self.some_member(name, which)
        if number is None:
            return
        had = self.model.groups[name].held(number)
        self.groups[name].leave(self.members[number])
        assert sorted(place for _, _, place in self.lost) == sorted(had)
        self.lost.clear()
        self.model.leave(name, number)
        self.balance(name)
        if turn:
            self.pump()

    @rule(name=names, which=share, room=st.integers(0, 5), refuses=st.sampled_from([False, False, True]))
    def change(self, name: str, which: float, room: int, refuses: bool) -> None:
        """A member becomes slow, or quick again, or takes nothing although it says that it has room."""
        number = self.some_member(name, which)
        if number is not None:
            self.members[number].room = self.model.groups[name].members[number].room = room
            self.model.groups[name].members[number].refuses = refuses
            self.queue.notify()
            self.pump()

    def log_of(self, place: tuple[int, int]) -> Log:
        log: Log = self.queue.logs[place[0]]
        return log

    @rule(name=names, which=share, turn=st.booleans(), twice=st.booleans())
    def settle(self, name: str, which: float, turn: bool, twice: bool) -> None:
        place = self.some_claim(name, which)
        if place is None:
            return
        log = self.log_of(place)
        assert by_offset.settle_at(self.groups[name], log.number, place[1])
        self.model.settled(name, [place])
        if twice:
            assert not by_offset.settle_at(self.groups[name], log.number, place[1])
        if turn:
            self.pump()

    @rule(name=names, which=share)
    def settle_all(self, name: str, which: float) -> None:
        """A quick member: everything it has, again and again, until it gets nothing more."""
        number = self.some_member(name, which)
        while number is not None and (places := self.model.groups[name].held(number)):
            for place in places:
                assert by_offset.settle_at(self.groups[name], self.log_of(place).number, place[1])
            self.model.settled(name, places)
            self.pump()

    @rule(name=names, which=share, where=share)
    def settle_upto(self, name: str, which: float, where: float) -> None:
        number = self.some_member(name, which)
        place = self.some_claim(name, where)
        if number is not None and place is not None:
            done = settle_upto(self.groups[name], self.log_of(place).number, place[1], self.members[number])
            assert done == self.model.settled_upto(name, number, *place)
            self.pump()

    @rule(name=names, which=share, delay=st.sampled_from([0, 0, 900]), counts=st.booleans(), turn=st.booleans())
    def give_back(self, name: str, which: float, delay: int, counts: bool, turn: bool) -> None:
        place = self.some_claim(name, which)
        if place is not None:
            assert by_offset.give_back_at(self.groups[name], self.log_of(place).number, place[1], delay, counts)
            self.model.given_back(name, place, delay, counts)
            if turn:
                self.pump()

    @rule(name=names, which=share, held=st.booleans(), turn=st.booleans(),
          reason=st.sampled_from(["rejected", "spoilt"]))
    def reject(self, name: str, which: float, held: bool, turn: bool, reason: str) -> None:
        place = self.some_claim(name, which, held)
        if place is None or place[1] not in self.model.logs[place[0]]:
            return
        dead = len(self.model.dead)
        log = self.log_of(place)
        in_memory = log.get(place[1]) is not None
        assert by_offset.reject_at(self.groups[name], log.number, place[1], reason)
        if not in_memory:               # it must be read first, and goes to nobody meanwhile
            self.model.dying(name, place, reason)
        self.look()
        assert len(self.model.dead) == dead + in_memory
        if turn:
            self.pump()

    @rule(name=names, which=share, lease=st.sampled_from([0, 500, 9000]))
    def extend(self, name: str, which: float, lease: int) -> None:
        place = self.some_claim(name, which)
        if place is not None:
            assert by_offset.extend(self.groups[name], self.log_of(place).number, place[1], lease)
            self.model.extended(name, place, lease)

    @rule(step=st.sampled_from([1, 400, 1000, 5000]), jump=st.sampled_from([0, 0, 0, -3000, 100_000]))
    def time_passes(self, step: int, jump: int) -> None:
        """jump: the wall clock is set, which must not end anything, nor keep it longer."""
        self.mono += step
        self.now += step
        self.wall += step + jump
        self.tell_time()
        self.clock.tick()
        lost = self.model.ticked()
        assert sorted(self.lost) == sorted(lost)
        self.lost.clear()
        self.pump()

    @rule()
    def purge(self) -> None:
        self.manager.purge(self.state)
        self.delayed.clear()
        for at in range(len(self.queue.logs)):
            self.model.drop(at, self.model.next[at])
        assert self.queue.depth == 0
        self.pump()

    @rule(name=names, which=share, where=st.floats(0, 1))
    def seek(self, name: str, which: float, where: float) -> None:
        if name not in self.groups:
            return
        at = int(which * len(self.queue.logs))
        log = self.queue.logs[at]
        position = log.first + round(where * (log.next - log.first))
        if any(claim[0] == "held" and place[0] == at for place, claim in self.model.claims(name).items()):
            with pytest.raises(UsageError):
                by_offset.seek(self.groups[name], log.number, position)
            return
        by_offset.seek(self.groups[name], log.number, position)
        self.model.seek(name, at, position)
        self.pump()

    @rule(name=names)
    def drop_group(self, name: str) -> None:
        if name in self.groups and not self.model.groups[name].members:
            self.manager.drop_group(self.state, (name.encode(), b""))
            del self.groups[name]
            self.model.drop_group(name)
            self.pump()

    @rule(evict=st.booleans())
    def checkpoint(self, evict: bool) -> None:
        """What somebody still needs goes to the disk; and, perhaps, out of memory."""
        delay = [self.queue.delays.log] if self.queue.delays is not None else []
        for log in [*self.queue.logs, *delay]:
            needed = self.queue.needs(log) if log in self.queue.logs else None
            for block in Export(log, 1 << 60, needed):
                self.disk.setdefault(log.number, {}).update(messages(block[7]))
            log.exported()
            if evict:
                log.evict(1 << 30)

    def teardown(self) -> None:
        """In the end all slow ones leave and somebody quick takes everything: nothing is missing in any group."""
        if not hasattr(self, "queue"):
            return
        for name in self.groups:
            while self.some_member(name, 0) is not None:
                self.leave(name, 0, False)
        self.time_passes(10_000, 0)
        for name in self.groups:
            self.join(name, 1000, 0)
            assert all(claim[0] == "held" for claim in self.model.claims(name).values())
            assert self.model.unsettled(name) == sum(
                place[1] in self.model.logs[place[0]] and place not in self.model.gone
                for place in self.model.claims(name))
            self.settle_all(name, 0)
        if self.groups:
            assert self.queue.depth == 0 or self.model.gone


# Shrinking takes minutes, which a run for every change has not got: it says how to get the failure once more
# (@reproduce_failure), and the soak finds and shrinks.
SMOKE = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck),
                 phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True)
SOAK = settings(SMOKE, max_examples=5000, stateful_step_count=120, phases=list(Phase))


def test_a_queue_does_as_its_model() -> None:
    run_state_machine_as_test(QueueMachine, settings=SMOKE)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_queue_does_as_its_model_for_long() -> None:
    run_state_machine_as_test(QueueMachine, settings=SOAK)
