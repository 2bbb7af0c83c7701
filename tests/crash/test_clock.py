"""Whatever happens to the wall clock: what waits, waits as long as it was told to, and no expiry grows. Any history of
time that passes, clocks that are set, sleep, restarts and reboots, against a model that adds up what has passed.

The model knows one clock: it advances with the time that passes while the broker runs, and over a restart by what the
wall clock says, if that went forward.
"""
from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from crash.history import MEMORY
from crash.queue_node import QueueNode, View
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kit.carrier import Carrier

from fluxmq._core.pubsub.session import Session
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq.engine.queues.clock import retain
from fluxmq.engine.sessions.state import Will
from fluxmq.model.queues import QueueSpec, Retention

START_MS = 1_700_000_000_000
BACK = -1           # Client.left: when the broker is back
SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000

passes = st.sampled_from([1, SECOND, 59 * SECOND, HOUR, DAY])
steps = st.sampled_from([0, 0, -150, 150, -HOUR, HOUR, -30 * DAY, 30 * DAY, -1000 * DAY])
waits = st.sampled_from([1, 8, 60, 3600, 86_400, 40 * 86_400])      # seconds


def user_property(name: bytes, value: bytes) -> bytes:
    return b"".join((b"\x26", len(name).to_bytes(2, "big"), name, len(value).to_bytes(2, "big"), value))


@dataclass
class Client:
    """A session and what it waits for. left: by the model's clock; None: it is connected."""

    expiry_s: int
    delay_s: int | None
    link: Carrier
    left: int | None = None
    lost: bool = False              # it was connected when the broker ended: its time begins when that is back

    def waits(self, now: int) -> bool:
        """For its will to be published."""
        return self.delay_s is not None and not self.speaks(now)

    def ends(self, now: int) -> bool:
        return self.left is not None and now >= self.left + self.expiry_s * SECOND

    def speaks(self, now: int) -> bool:
        if self.left is None or self.delay_s is None:
            return False
        return now >= self.left + min(self.delay_s, self.expiry_s) * SECOND


class ClockMachine(RuleBasedStateMachine):
    """now: the model's clock, ms. expiring, delayed: by payload, when; retained: by topic."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY)
        self.path = Path(self.directory.name) / "node"
        self.path.mkdir()
        self.now = self.wall = START_MS
        self.mono, self.slept = 5000, 0
        self.lives = self.count = 0
        self.expiring: dict[bytes, int] = {}
        self.published: dict[bytes, int] = {}
        self.delayed: dict[bytes, int] = {}
        self.retained: dict[bytes, int] = {}
        self.streamed: list[int] = []       # by offset: when
        self.clients: dict[str, Client] = {}
        self.wills: set[bytes] = set()
        self.node: QueueNode
        self.open(View())
        for spec in (QueueSpec(name="expiring"), QueueSpec(name="delayed"),
                     QueueSpec(name="stream", type="stream", retention=Retention(max_age=HOUR / SECOND))):
            self.turn(lambda spec=spec: self.node.manager.declare(spec))    # type: ignore[misc]

    def open(self, view: View) -> None:
        self.lives += 1
        self.node = QueueNode(self.path, self.loop, view, (self.wall, self.mono), self.lives, filmed=False)
        self.slept = 0
        self.tick()

    def turn(self, step: object = None) -> None:
        self.node.in_turn(step if callable(step) else lambda: None)
        self.node.sync()

    def tick(self) -> None:
        def ticks() -> None:
            self.node.hub.set_clock(self.wall, self.mono, self.slept)
            self.node.keeper.clock.tick()
            self.node.keeper.broker.tick()
            self.node.clock.tick()
            self.node.hub.namespaces.expire_retained()
            for state in self.node.manager.queues.values():     # the clock does it every few seconds
                retain(self.node.manager, state, self.node.keeper.clock.stamp_of_age)
        self.turn(ticks)
        self.turn()                     # what became due in the tick is moved by the next pump

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule(ms=passes, step=steps, sleeps=st.booleans())
    def time_passes(self, ms: int, step: int, sleeps: bool) -> None:
        self.now += ms
        self.wall += ms + step
        self.slept += ms if sleeps else 0
        self.mono += 0 if sleeps else ms
        self.tick()

    @rule(ms=passes, step=steps, clean=st.booleans(), reboot=st.booleans())
    def restart(self, ms: int, step: int, clean: bool, reboot: bool) -> None:
        """clean: with a last checkpoint. Else all that is known is in the journal."""
        if clean:
            self.node.begin_checkpoint()
            self.node.finish_checkpoint()
        self.node.stop()
        assert self.node.store is not None
        self.mono, self.slept = (0, 0) if reboot else (self.mono + self.slept + ms, 0)
        self.wall += ms + step
        before = self.now
        self.now += ms + step
        for client in self.clients.values():
            # Whoever was connected when the broker ended counts as that until a checkpoint says when it began to wait,
            # or its will does, whose record has that too.
            client.lost = client.left is None or (
                client.lost and not client.speaks(before) and (not clean or client.waits(before)))
            client.left = BACK if client.lost else client.left
        self.open(self.node.store.view)
        if ms + step < 0:               # what it slept through since it last wrote anything is not known
            assert self.node.hub.steady_ms <= before
            assert self.now <= self.node.hub.steady_ms
            self.now = self.node.hub.steady_ms
        for client in self.clients.values():
            if client.left == BACK:
                client.left = self.now
        self.tick()

    # ── what waits ───────────────────────────────────────────────────────────────────────────────────────

    @rule(wait=waits)
    def publish_with_an_expiry(self, wait: int) -> None:
        payload = self.payload()
        queue = self.node.manager.queues[b"/", b"expiring"].queue
        self.expiring[payload] = self.now + wait * SECOND
        self.published[payload] = wait * SECOND
        expires_at = self.node.hub.steady_ms + wait * SECOND
        self.turn(lambda: queue.publish(b"$queue/expiring", payload, expires_at=expires_at))

    @rule(wait=waits, point=st.booleans())
    def publish_with_a_delay(self, wait: int, point: bool) -> None:
        payload = self.payload()
        queue = self.node.manager.queues[b"/", b"delayed"].queue
        properties = (user_property(b"not-before", b"%d" % (self.wall + wait * SECOND)) if point else
                      user_property(b"x-delay", b"%d" % (wait * SECOND)))
        self.delayed[payload] = self.now + wait * SECOND
        self.turn(lambda: queue.publish(b"$queue/delayed", payload, properties))

    @rule(wait=waits)
    def retain_with_an_expiry(self, wait: int) -> None:
        topic = b"kept/" + self.payload()
        self.retained[topic] = self.now + wait * SECOND
        self.published[topic] = wait * SECOND
        hub = self.node.hub
        self.turn(lambda: hub.publish_message(topic, b"x", 1, True, expires_at=hub.steady_ms + wait * SECOND))

    @rule()
    def append_to_the_stream(self) -> None:
        stream = self.node.manager.queues[b"/", b"stream"].queue
        self.streamed.append(self.now)
        self.turn(lambda: stream.publish(b"$queue/stream", b"x"))

    @rule(expiry=waits, delay=st.none() | waits, leaves=st.booleans())
    def connect(self, expiry: int, delay: int | None, leaves: bool) -> None:
        name = self.payload().decode()
        client = self.clients[name] = Client(expiry, delay, Carrier())
        will = Will(b"will/" + name.encode(), b"x", 1, True, b"", delay) if delay is not None else None

        def come() -> None:
            self.node.keeper.broker.connect(
                name.encode(), version=5, clean_start=False, expiry_s=expiry, keep_alive_s=0, will=will, username=None,
                connection=client.link)
        self.turn(come)
        if leaves:
            client.left = self.now
            self.turn(lambda: self.node.keeper.broker.disconnect(self.session(name), client.link, publish_will=True))

    def session(self, name: str) -> Session:
        return self.node.keeper.broker.sessions[b"/", name.encode()]

    def payload(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────────

    def consume(self, name: bytes) -> list[bytes]:
        """Everything that is there now; it is settled."""
        queue = self.node.manager.queues[b"/", name].queue
        taken: list[tuple[int, int]] = []

        def deliver(log: int, offset: int, count: int) -> bool:
            taken.append((log, offset))
            return True

        member = PyMember(deliver, room=1000)
        group = self.node.manager.group(queue, b"g")
        self.turn(lambda: group.join(member))
        self.node.settle_reads()
        self.turn()
        found = []
        for log, offset in taken:
            record = next(one for one in queue.logs if one.number == log).get(offset)
            assert record is not None
            found.append(record.payload)
            if record.expires_at:
                assert record.expires_at - self.node.hub.steady_ms <= self.published[record.payload]
                assert record.expires_at - self.node.hub.steady_ms == self.expiring[record.payload] - self.now
            self.turn(lambda at=(log, offset): by_offset.settle_at(group, *at))        # type: ignore[misc]
        self.turn(lambda: group.leave(member))
        return found

    @rule()
    def take_what_has_not_expired(self) -> None:
        assert self.consume(b"expiring") == [payload for payload, ends in self.expiring.items() if ends > self.now]
        self.expiring.clear()

    @rule()
    def take_what_is_due(self) -> None:
        due = sorted((at, int(payload)) for payload, at in self.delayed.items() if at <= self.now)
        assert sorted(self.consume(b"delayed"), key=int) == sorted((b"%d" % n for _, n in due), key=int)
        for _, number in due:
            del self.delayed[b"%d" % number]

    @invariant()
    def the_clock_is_that_of_the_model(self) -> None:
        assert self.node.hub.steady_ms == self.now

    @invariant()
    def what_is_kept_is_what_is_not_over(self) -> None:
        kept = {topic: value for topic, value in self.node.hub.root.topics.retained if topic.startswith(b"kept/")}
        assert kept.keys() == {topic for topic, ends in self.retained.items() if ends > self.now}
        for topic, value in kept.items():
            assert value.expires_at - self.node.hub.steady_ms == self.retained[topic] - self.now
            assert value.expires_at - self.node.hub.steady_ms <= self.published[topic]

    @invariant()
    def a_stream_keeps_what_is_not_too_old(self) -> None:
        """And, while the wall clock was set less than that ago, perhaps more."""
        first = self.node.manager.queues[b"/", b"stream"].queue.logs[0].first
        assert all(at <= self.now - HOUR for at in self.streamed[:first])

    @invariant()
    def clients_have_their_time(self) -> None:
        self.wills |= {b"will/" + name.encode() for name, client in self.clients.items() if client.speaks(self.now)}
        self.clients = {name: client for name, client in self.clients.items() if not client.ends(self.now)}
        assert {name.decode() for _, name in self.node.keeper.broker.sessions} == self.clients.keys()
        assert {topic for topic, _ in self.node.hub.root.topics.retained if topic.startswith(b"will/")} == self.wills

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.stop()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self.directory.cleanup()


class TestClocks(ClockMachine.TestCase):    # type: ignore[name-defined, misc]
    settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@pytest.mark.soak
@pytest.mark.timeout(7200)
class TestClocksForLong(ClockMachine.TestCase):     # type: ignore[name-defined, misc]
    settings = settings(max_examples=1500, stateful_step_count=60, deadline=None)
