"""Any history of a queue, cut off before any call that changes the disk, by a kill or by a loss of power: what a
restart finds is exactly what the naive model (tests/oracle/queue.py) was after some batch of the journal, and no
earlier one than the last that somebody was told of. So what was confirmed is there once, what was settled does not
come back, a delivery that could be on the wire is counted, groups are where they were, a dead letter is in one place.

Checkpoints take their steps in between, with messages on their way from the journal into segments.
"""
from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crash.history import SMOKE, History, Steps
from crash.queue_node import QueueNode
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kit.film import Cut
from kit.settling import settle_upto
from oracle.queue import QueueModel

from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log, Record
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.stats import queue_counts
from fluxmq._core.testing.probes import claims_of
from fluxmq.engine.queues.manager import QueueState
from fluxmq.engine.queues.positions import NOTHING
from fluxmq.engine.queues.properties import encode_users
from fluxmq.model.queues import QueueLimits, QueueSpec, Retry

HOUR = 3_600_000
MODES = {"a": "shared", "b": "shared", "c": "exclusive"}
SPECS = (
    QueueSpec(name="q", retry=Retry(max_retries=3)),
    QueueSpec(name="q", partitions=2, max_priority=1, retry=Retry(max_retries=0)),
    QueueSpec(name="q", limits=QueueLimits(max_depth=6), overflow="drop-head"),
    QueueSpec(name="q", partitions=2, limits=QueueLimits(max_depth=9)),
)

names = st.sampled_from(sorted(MODES))
share = st.floats(0, 0.999)
padding = st.sampled_from((0, 0, 700))
common = (
    st.tuples(st.just("publish"), st.integers(1, 4), st.integers(0, 1), st.sampled_from(("", "x", "y")),
              st.sampled_from((0, 0, 0, 900)), padding),
    st.tuples(st.just("join"), names, st.integers(1, 4), st.sampled_from((0, 1000))),
    st.tuples(st.just("settle"), names, share),
    st.tuples(st.just("submit")), st.tuples(st.just("sync")), st.tuples(st.just("poll")),
    st.tuples(st.just("checkpoint"), st.integers(1, 5)),
)
step = st.one_of(
    *common, *common,
    st.tuples(st.just("settle_many"), names, share),
    st.tuples(st.just("produce"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("group"), names, st.sampled_from(("", "", "next"))),
    st.tuples(st.just("leave"), names, share),
    st.tuples(st.just("give_back"), names, share, st.sampled_from((0, 900)), st.booleans()),
    st.tuples(st.just("reject"), names, share),
    st.tuples(st.just("time"), st.sampled_from((1, 1000, 5000))),
    st.tuples(st.just("seek"), names, share, share),
    st.tuples(st.just("purge")), st.tuples(st.just("drop_group"), names), st.tuples(st.just("finish")),
    st.tuples(st.just("make_anew")), st.tuples(st.just("change"), st.integers(4, 12)),
    st.tuples(st.just("crash"), share, st.sampled_from(("kill", "power", "torn"))),
)


class Known:
    """What a restart must bring back: the model, and beside it what waits for its time and what was produced."""

    def __init__(self, spec: QueueSpec) -> None:
        retries = spec.retry.max_retries
        self.model = QueueModel(spec.partitions, spec.lanes, retries + 1 if retries else 0)
        self.delayed: dict[bytes, int] = {}
        self.produced: set[int] = set()
        self.declared = False
        self.spec = spec

    def crash(self) -> None:
        """Nobody is connected any more: what was in hands is ready, and the delivery counts."""
        for group in self.model.groups.values():
            for entry in group.entries.values():
                if entry.state == "held" or (entry.state == "waiting" and entry.due <= self.model.now):
                    entry.state, entry.due, entry.member = "ready", 0, None
            group.members.clear()
            group.owners.clear()


def payload_of(number: int, priority: int, key: str, size: int) -> bytes:
    return b"%d|%d|%s|" % (number, priority, key.encode()) + random.Random(number).randbytes(size)


class Watcher:
    """A node beside what is known of it."""

    def __init__(self, node: QueueNode, known: Known) -> None:
        self.node, self.known = node, known
        self.members: dict[int, PyMember] = {}
        self.events: list[tuple[str, int, int, int, int]] = []
        self.dead_seen = len(known.model.dead)

    @property
    def model(self) -> QueueModel:
        return self.known.model

    @property
    def state(self) -> QueueState:
        return self.node.manager.queues[b"/", b"q"]

    def groups(self) -> dict[str, Group]:
        return {name.decode(): group for (name, _), group in self.state.groups.items()}

    def log(self, place: tuple[int, int]) -> Log:
        return self.state.queue.logs[place[0]]

    def join(self, name: str, room: int, lease_ms: int) -> None:
        number = len(self.members)
        places = {log.number: at for at, log in enumerate(self.state.queue.logs)}

        def deliver(log: int, offset: int, count: int) -> None:
            self.events.append((name, number, places[log], offset, count))

        self.members[number] = PyMember(deliver, None, room, lease_ms)
        self.groups()[name].join(self.members[number])
        self.model.join(name, number, room, lease_ms)
        self.owners(name)

    def owners(self, name: str) -> None:
        group = self.groups()[name]
        if group.mode != "shared":
            self.model.groups[name].owners = {
                partition: next((n for n, m in self.members.items() if m is owner), None)
                for partition, owner in group.owners().items()}

    def record(self, log: Log, offset: int) -> Record | None:
        """At or above; from the disk if need be."""
        while (record := log.at_or_above(offset)) is None and log.wanted != NOTHING:
            queue = next(state.queue for state in self.node.manager.queues.values() if log in state.queue.logs)
            self.node.in_turn(lambda queue=queue: self.node.manager.read_on(queue))
            self.node.settle_reads()
        return record

    def dead(self) -> list[tuple[bytes, str, int, int, str, int]]:
        """(payload, reason, log, offset, group, count) of all dead letters."""
        dead, found, offset = self.node.manager.queues.get((b"/", b"q.dlq")), [], 0
        while dead is not None and (record := self.record(dead.queue.logs[0], offset)) is not None:
            told = {name: value.decode() for name, value in record.envelope.headers()}
            partition, _, text = told[b"x-death-message-id"].partition(":")
            log = int(partition) * self.model.lanes + (int(text) >> 56)
            found.append((record.payload, told[b"x-death-reason"], log, int(text), told[b"x-death-group"],
                          int(told[b"x-death-count"])))
            offset = record.offset + 1
        return found

    def look(self) -> None:
        """What has happened since the last look is told to the model, which says whether it may have."""
        dead = self.dead()[self.dead_seen:]
        dropped = {(log, offset): payload for payload, _, log, offset, _, _ in dead}
        for at, log in enumerate(self.state.queue.logs):
            for offset in range(self.model.next[at], log.next):
                record = log.get(offset)
                payload = record.payload if record is not None else dropped[at, offset]
                _, priority, key, _ = payload.split(b"|", 3)
                self.model.appended(at, offset, payload, priority=int(priority), key=key)
                self.known.delayed.pop(payload, None)
        self.dead_seen += len(dead)
        for payload, reason, at, offset, group, count in dead:
            assert self.model.logs[at][offset].payload == payload
            if reason == "maxlen":
                self.model.buried(payload, reason)
                self.model.drop(at, offset + 1)
            else:
                self.model.died(group, at, offset, reason, count)
        unread = {log.number: at for at, log in enumerate(self.state.queue.logs)}
        self.model.unread = {unread[number] for number in self.node.unread if number in unread}
        events, self.events = self.events, []
        for name, number, at, offset, count in events:
            self.model.delivered(name, number, at, offset, count)
        self.node.unread.clear()
        self.model.unread.clear()

    # ── after a crash ────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """What was found is what is known."""
        assert self.known.declared == ((b"/", b"q") in self.node.manager.queues)
        if not self.known.declared:
            return
        model, groups = self.model, self.groups()
        assert self.state.spec == self.known.spec
        assert self.state.queue.limits["messages_max"] == self.known.spec.limits.max_depth
        assert set(groups) == set(model.groups)
        for at, log in enumerate(self.state.queue.logs):
            assert log.next == model.next[at]
            assert log.first <= model.first(at)
        for name, group in groups.items():
            known = model.groups[name]
            assert group.mode == known.mode
            for at, log in enumerate(self.state.queue.logs):
                for offset in model.logs[at]:
                    if (at, offset) not in model.gone:
                        assert by_offset.is_settled(group, log.number, offset) == model._settled(known, (at, offset)), (
                            name, at, offset)
            assert self.claims(group) == {
                place: claim[:3] for place, claim in model.claims(name).items()
                if claim[:2] != ("ready", 0)}, name
        assert sorted((payload, reason, group, count) for payload, reason, _, _, group, count in self.dead()) == sorted(
            model.dead)
        delays = self.state.queue.delays
        assert (len(delays) if delays is not None else 0) == len(self.known.delayed)
        if self.known.delayed:
            assert delays is not None and delays.first_due() == min(self.known.delayed.values())
        for sequence in range(1, 6):
            assert self.state.queue.events.is_repeated(self.state.queue, b"p", sequence) == (
                sequence in self.known.produced)

    def claims(self, group: Group) -> dict[tuple[int, int], tuple[str, int, int]]:
        places, found = {log.number: at for at, log in enumerate(self.state.queue.logs)}, {}
        for (log, offset), (state, count, due, _) in claims_of(group).items():
            if state == "waiting" and due <= self.model.now:
                state, due = "ready", 0
            if offset in self.model.logs[places[log]] and (state, count) != ("ready", 0):
                found[places[log], offset] = state, count, due
        return found

    def drain(self) -> None:
        """Somebody quick takes all, an hour later: every message that somebody needs is there, once, with its bytes."""
        if not self.known.declared:
            return
        node, model = self.node, self.model
        model.now, model.mono = model.now + HOUR, model.mono + HOUR
        node.hub.set_clock(model.now, model.mono)
        quiet = 0
        for _ in range(300):
            before = model.next[:], sum(len(model.claims(name)) for name in model.groups), len(model.dead)
            for _ in range(4):      # what is delayed is read from disk, and looked at by the next tick
                node.in_turn(lambda: node.clock.tick())
                node.settle_reads()
            model.ticked()
            self.look()
            for name in model.groups:
                if not model.groups[name].members:
                    node.in_turn(lambda name=name: self.join(name, 1000, 0))
                    node.settle_reads()
                    self.look()
            after = model.next[:], sum(len(model.claims(name)) for name in model.groups), len(model.dead)
            quiet = quiet + 1 if before == after else 0
            if quiet == 4:          # what must be read first takes a round more
                break
        else:
            pytest.fail("it does not end")
        model.pumped()
        if self.known.delayed:          # all are due: those that are left found no room, as nobody settles anything
            assert self.known.spec.overflow == "reject-publish"
            assert self.state.queue.waiting >= self.known.spec.limits.max_depth > 0
        for at, log in enumerate(self.state.queue.logs):
            for offset, message in model.logs[at].items():
                if any(model.claims(name).get((at, offset)) for name in model.groups):
                    record = self.record(log, offset)
                    assert record is not None and (record.offset, record.payload) == (offset, message.payload)


class QueueHistory(Watcher, History):
    def __init__(self, directory: Path, seed: int, cuts_max: int, spec: QueueSpec) -> None:
        self.spec, self.known, self.count = spec, Known(spec), 0
        self.known.model.now = 1_000_000
        History.__init__(self, directory, seed, cuts_max)
        Watcher.__init__(self, self.node, self.known)
        self.do(self._declare)

    def clock(self) -> tuple[int, int]:
        return self.model.now, self.model.mono

    def state_of(self, node: QueueNode) -> Known:
        return copy.deepcopy(self.known)

    def _declare(self) -> None:
        self.node.manager.declare(self.spec)
        self.known.declared = True

    def do(self, what: Any) -> None:
        """One turn, and what is known after its batch."""
        number = self.node.in_turn(what)
        if self.known.declared:
            self.look()
        self.snapshots[number] = self.state_of(self.node)

    def run(self, what: str, *arguments: Any) -> None:
        if not self.known.declared and what not in ("crash", "submit", "sync", "poll", "checkpoint", "finish"):
            self.do(self._declare)
        super().run(what, *arguments)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────

    def do_publish(self, count: int, priority: int, key: str, delay: int, size: int) -> None:
        def publish() -> None:
            for _ in range(count):
                self.count += 1
                payload = payload_of(self.count, priority, key, size)
                due = self.model.now + delay if delay else 0
                told = [("priority", str(priority)), *([("partition-key", key)] if key else [])]
                reason = self.state.queue.append_message(
                    b"$queue/q", payload, priority=priority, partition_key=key.encode(), not_before=due,
                    properties=encode_users(told))
                if due and reason == 0:
                    self.known.delayed[payload] = due
        self.do(publish)

    def taken(self) -> int:
        """Messages so far, delayed ones included."""
        delays = self.state.queue.delays
        return queue_counts(self.state.queue)["appended"] + (len(delays) if delays is not None else 0)

    def do_produce(self, sequence: int, delayed: bool) -> None:
        def publish() -> None:
            self.count += 1
            payload = payload_of(self.count, 0, "", 0)
            told = [("producer-id", "p"), ("producer-sequence", str(sequence))]
            told += [("x-delay", "900")] if delayed else []
            before = self.taken()
            reason = self.state.queue.publish(b"$queue/q", payload, encode_users(told))
            assert reason or (self.taken() > before) == (sequence not in self.known.produced)
            if reason == 0 and sequence not in self.known.produced:
                self.known.produced.add(sequence)
                if delayed:
                    self.known.delayed[payload] = self.model.now + 900
        self.do(publish)

    def do_group(self, name: str, position: str) -> None:
        if name in self.model.groups:
            return

        def make() -> None:
            queue = self.state.queue
            self.node.manager.group(queue, name.encode(), mode=MODES[name], position=position)
            self.model.add_group(name, MODES[name], [log.first for log in queue.logs])
            if position == "next":
                for at, log in enumerate(queue.logs):
                    self.model.seek(name, at, log.next)
        self.do(make)

    def do_join(self, name: str, room: int, lease_ms: int) -> None:
        self.do_group(name, "")
        self.do(lambda: self.join(name, room, lease_ms))

    def some_member(self, name: str, which: float) -> int | None:
        known = list(self.model.groups[name].members) if name in self.model.groups else []
        return known[int(which * len(known))] if known else None  # type: ignore[return-value]

    def some_claim(self, name: str, which: float) -> tuple[int, int] | None:
        places = sorted(place for place, claim in self.model.claims(name).items()
                        if claim[0] == "held") if name in self.model.groups else []
        return places[int(which * len(places))] if places else None

    def do_leave(self, name: str, which: float) -> None:
        number = self.some_member(name, which)
        if number is None:
            return

        def leave() -> None:
            self.groups()[name].leave(self.members[number])
            self.model.leave(name, number)
            self.owners(name)
        self.do(leave)

    def do_settle(self, name: str, which: float) -> None:
        place = self.some_claim(name, which)
        if place is not None:
            def settle() -> None:
                by_offset.settle_at(self.groups()[name], self.log(place).number, place[1])
                self.model.settled(name, [place])
            self.do(settle)

    def do_settle_many(self, name: str, which: float) -> None:
        place, number = self.some_claim(name, which), self.some_member(name, which)
        if place is not None and number is not None:
            def settle() -> None:
                done = settle_upto(
                    self.groups()[name], self.log(place).number, place[1], self.members[number])
                assert done == self.model.settled_upto(name, number, *place)
            self.do(settle)

    def do_give_back(self, name: str, which: float, delay: int, counts: bool) -> None:
        place = self.some_claim(name, which)
        if place is not None:
            def give_back() -> None:
                by_offset.give_back_at(self.groups()[name], self.log(place).number, place[1], delay, counts)
                self.model.given_back(name, place, delay, counts)
            self.do(give_back)

    def do_abandon(self, name: str) -> None:
        """All members leave; what they had never left the broker, so it does not count as delivered."""
        def abandon() -> None:
            for place in [place for place, claim in self.model.claims(name).items() if claim[0] == "held"]:
                by_offset.give_back_at(self.groups()[name], self.log(place).number, place[1], 0, False)
                self.model.given_back(name, place, 0, False)
            for number in list(self.model.groups[name].members):
                self.groups()[name].leave(self.members[number])
                self.model.leave(name, number)
        self.do(abandon)

    def do_reject(self, name: str, which: float) -> None:
        place = self.some_claim(name, which)
        if place is not None and place[1] in self.model.logs[place[0]]:
            self.do(lambda: by_offset.reject_at(self.groups()[name], self.log(place).number, place[1], "rejected"))

    def do_time(self, ms: int) -> None:
        def pass_() -> None:
            self.model.now, self.model.mono = self.model.now + ms, self.model.mono + ms
            self.node.hub.set_clock(self.model.now, self.model.mono)
            self.node.clock.tick()
            self.model.ticked()
        self.do(pass_)

    def do_seek(self, name: str, which: float, where: float) -> None:
        if name not in self.model.groups:
            return
        at = int(which * len(self.state.queue.logs))
        if any(claim[0] == "held" and place[0] == at for place, claim in self.model.claims(name).items()):
            return

        def seek() -> None:
            log = self.state.queue.logs[at]
            position = log.first + round(where * (log.next - log.first))
            by_offset.seek(self.groups()[name], log.number, position)
            self.model.seek(name, at, position)
        self.do(seek)

    def do_purge(self) -> None:
        def purge() -> None:
            self.node.manager.purge(self.state)
            self.known.delayed.clear()
            for at in range(len(self.model.logs)):
                self.model.drop(at, self.model.next[at])
        self.do(purge)

    def do_drop_group(self, name: str) -> None:
        if name in self.model.groups and not self.model.groups[name].members:
            def drop() -> None:
                self.node.manager.drop_group(self.state, (name.encode(), b""))
                self.model.drop_group(name)
            self.do(drop)

    def do_change(self, depth: int) -> None:
        def change() -> None:
            self.known.spec = msgspec.structs.replace(self.known.spec, limits=QueueLimits(max_depth=depth))
            self.node.manager.declare(self.known.spec)
        self.do(change)

    def do_make_anew(self) -> None:
        """Deleted and declared again: nothing of the former one comes back, but its dead letters are still there."""
        def make() -> None:
            self.node.manager.delete((b"/", b"q"))
            former, self.known = self.known, Known(self.known.spec)
            self.model.now, self.model.mono, self.model.dead = former.model.now, former.model.mono, former.model.dead
            self.members.clear()
            self.node.manager.declare(self.known.spec)
            self.known.declared = True
        self.do(make)

    # ── the end of a life ────────────────────────────────────────────────────────────────────────────────

    def do_crash(self, which: float, how: str) -> None:
        super().do_crash(which, how)
        self.do(lambda: None)

    def go_on(self, cut: Cut, how: str) -> None:
        node = self.after(cut, how, True)
        Watcher.__init__(self, node, self.known_after(node))
        self.check()

    def known_after(self, node: QueueNode) -> Known:
        known = copy.deepcopy(self.snapshot_of(node))
        known.model.now, known.model.mono = self.model.now, self.model.mono
        known.crash()
        return known

    def look_after(self, cut: Cut, how: str) -> None:
        node = self.after(cut, how, False)
        try:
            watcher = Watcher(node, self.known_after(node))
            watcher.check()
            watcher.drain()
        except AssertionError as error:
            error.add_note(f"after a crash ({how}) before {cut.what!r}, batch {node.recovered}")
            raise
        finally:
            node.stop()


@settings(SMOKE, max_examples=30)
@given(st.sampled_from(SPECS), st.lists(step, min_size=15, max_size=50), st.integers(0, 1 << 30))
def test_any_instant(spec: QueueSpec, steps: Steps, seed: int) -> None:
    QueueHistory.play(steps, seed, 12, spec)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(SMOKE, max_examples=1000, phases=list(Phase))
@given(st.sampled_from(SPECS), st.lists(step, min_size=15, max_size=150), st.integers(0, 1 << 30))
def test_any_instant_for_long(spec: QueueSpec, steps: Steps, seed: int) -> None:
    QueueHistory.play(steps, seed, 0, spec)


# ── histories that once went wrong ───────────────────────────────────────────────────────────────────────

ONE, LANES, ROOM_FOR_SIX, _ = SPECS
PUT_2 = ("publish", 2, 0, "", 0, 0)


@pytest.mark.parametrize(("spec", "steps"), [
    pytest.param(ONE, [PUT_2, ("submit",), ("crash", 0.999, "kill")],
                 id="the first checkpoint of a life takes what the journal of the one before had"),
    pytest.param(ONE, [PUT_2, ("finish",), ("crash", 0.999, "kill"), ("finish",), ("crash", 0.999, "power")],
                 id="a journal file is always there, also while a node starts"),
    pytest.param(LANES, [PUT_2, ("group", "a", "next"), PUT_2, ("sync",), ("crash", 0.999, "kill")],
                 id="a group begins where it was told to"),
    pytest.param(ONE, [PUT_2, ("join", "a", 4, 0), ("settle", "a", 0), ("settle", "a", 0), ("group", "b", ""), PUT_2,
                       ("sync",), ("crash", 0.999, "kill")],
                 id="a group that is made later does not get what was gone by then"),
    pytest.param(LANES, [("publish", 1, 1, "", 0, 0), ("finish",), ("crash", 0.9, "power"), ("finish",),
                         ("publish", 3, 0, "x", 0, 0), ("publish", 3, 0, "y", 0, 0), ("sync",)],
                 id="a lane that was empty loses nothing by a torn first segment"),
    pytest.param(ONE, [PUT_2, ("sync",), ("join", "a", 2, 0), ("give_back", "a", 0, 0, True), ("checkpoint", 3),
                       ("finish",), ("crash", 0.999, "kill")],
                 id="the count of a message is not its neighbour's"),
    pytest.param(ONE, [("group", "b", ""), ("drop_group", "b"), ("group", "b", "next"), ("checkpoint", 5), ("finish",)],
                 id="a group that was made anew is there although the former one ends once more"),
    pytest.param(ONE, [PUT_2, ("make_anew",), PUT_2, ("checkpoint", 5), ("finish",)],
                 id="a queue that was made anew is there although the former one ends once more"),
    pytest.param(ONE, [PUT_2, ("finish",), ("purge",), ("finish",), PUT_2, ("finish",)],
                 id="the first segment after a purge may be torn"),
    pytest.param(ROOM_FOR_SIX, [("publish", 3, 1, "x", 900, 0), ("finish",)],
                 id="what was read from disk stays until it was looked at"),
])
def test_every_instant_of_what_went_wrong(spec: QueueSpec, steps: Steps) -> None:
    every_instant_of(spec, steps, seeds=3)


def every_instant_of(spec: QueueSpec, steps: Steps, seeds: int = 1) -> None:
    for seed in range(seeds):
        assert QueueHistory.play(steps, seed, 0, spec) > 10


# ── what chance meets too seldom ─────────────────────────────────────────────────────────────────────────

# A count is only to be seen at an instant at which nobody has the message again: it waits, or nobody is there.
JOIN = ("join", "a", 4, 0)
GIVEN_BACK = {
    "waits": [("give_back", "a", 0, 900, True)],
    "nobody is there": [("leave", "a", 0)],
    "its lease was over": [("join", "a", 1, 1000), ("leave", "a", 0), ("time", 1000), ("leave", "a", 0)],
    "it does not count": [("give_back", "a", 0, 900, False), ("leave", "a", 0)],
    "it never left": [("abandon", "a")],
    "twice": [("leave", "a", 0), JOIN, ("leave", "a", 0)],
}


def kept(where: str, more: Steps) -> Steps:
    """A crash, and where the start after it finds what was done before. more: done in the middle of that."""
    return {
        "journal": [("sync",), ("crash", 0.999, "kill")],
        "view": [("finish",), ("crash", 0.999, "power")],
        "a later view": [("finish",), *more, ("finish",), ("crash", 0.999, "power")],
        "view and journal": [("checkpoint", 2), *more, ("sync",), ("crash", 0.999, "kill")],
        "the third life": [("sync",), ("crash", 0.999, "kill"), ("finish",), ("crash", 0.999, "kill")],
    }[where]


PLACES = ("journal", "view", "a later view", "view and journal", "the third life")


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("back", GIVEN_BACK)
def test_the_count_of_what_was_given_back(back: str, where: str) -> None:
    more = [("time", 900), JOIN, ("leave", "a", 0)]
    every_instant_of(ONE, [PUT_2, JOIN, ("sync",), *GIVEN_BACK[back], *kept(where, more), JOIN, ("leave", "a", 0)])


def produce(*sequences: int, delayed: bool = False) -> Steps:
    return [("produce", sequence, delayed) for sequence in sequences]


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("where", PLACES)
def test_what_a_producer_repeats_after_a_crash(where: str, delayed: bool) -> None:
    """Each step that repeats a sequence asserts that nothing is appended; each instant is asked for all of them."""
    every_instant_of(ONE, [*produce(1, 4, delayed=delayed), ("sync",), *kept(where, produce(3, 1)),
                           *produce(1, 4, 3, 2, 1, 4, 3, 2)])


@pytest.mark.parametrize("where", PLACES)
def test_all_of_a_producers_window_is_remembered(where: str) -> None:
    every_instant_of(ONE, [*produce(2, 1001), ("sync",), *kept(where, produce(1000)), *produce(2, 1001, 1, 1000)])
