"""Any history of a node, cut off at any instant: what a restart brings back is the state after some batch of the
journal, and no earlier one than the last that was durable.

State means all that is promised: sessions with subscriptions, will, line, window with its packet identifiers, what is
released, inbound QoS 2 identifiers, and retained messages.
"""
from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from crash.history import MEMORY
from crash.node import Node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle.mqtt import Disconnect, Publish, Subscribe, Unsubscribe, Will

import fluxmq.engine.durability as durability

CLIENTS = ("a", "b", "c")
FILTERS = ("t/0", "t/1", "t/+", "#", "$share/g/t/0", "$share/g/#")
TOPICS = ("t/0", "t/1")

client = st.sampled_from(CLIENTS)
small = st.integers(0, 7)
step = st.one_of(
    st.tuples(st.just("connect"), client, st.booleans(), st.sampled_from((True, True, True, False)), st.integers(1, 3),
              st.sampled_from((None, None, 0, 1, 2))),
    st.tuples(st.just("subscribe"), client, st.sampled_from(FILTERS), st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("unsubscribe"), client, st.sampled_from(FILTERS)),
    st.tuples(st.just("publish"), client, st.sampled_from(TOPICS), st.integers(0, 2), st.booleans(),
              st.sampled_from((0, 3, 3, 5000)), st.integers(1, 6)),
    st.tuples(st.just("publish"), client, st.sampled_from(TOPICS), st.integers(1, 2), st.just(False), st.just(3),
              st.integers(1, 6)),
    st.tuples(st.just("answer"), client, small),
    st.tuples(st.just("answer"), client, st.just(7)),
    st.tuples(st.just("leave"), client, st.booleans()),
    st.tuples(st.just("disk")), st.tuples(st.just("settle")),
    st.tuples(st.just("gate"), st.booleans()),
    st.tuples(st.just("checkpoint"), st.integers(1, 6)), st.tuples(st.just("finish")),
    st.tuples(st.just("crash")),
)


class History:
    """One node after the other on what each crash left."""

    def __init__(self, directory: Path, queue_max: int = 4) -> None:
        self.queue_max = queue_max
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.lives = 1
        self.packet_id = 0
        self.messages = 0
        self.node = Node(directory / "1", self.loop, 1, queue_max)

    def close(self) -> None:
        self.node.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def next_id(self) -> int:
        """Grows over all lives, so that an identifier never means two messages."""
        self.packet_id += 1
        return self.packet_id

    def run(self, what: str, *arguments: object) -> None:
        getattr(self, what)(*arguments)
        assert not self.node.problems, self.node.problems

    def connect(self, name: str, clean: bool, kept: bool, receive_maximum: int, will_qos: int | None) -> None:
        former = self.node.peers.get(name)
        will = None if will_qos is None else Will(topic="t/0", payload=b"will of " + name.encode(), qos=will_qos,
                                                  retain=will_qos == 1, properties={"will_delay_interval": 1000})
        self.node.connect(name, clean=clean, kept=kept, receive_maximum=receive_maximum, will=will)
        if former is not None:
            former.close()

    def subscribe(self, name: str, filter_: str, qos: int, identifier: int) -> None:
        properties = {"subscription_identifier": identifier} if identifier else {}
        self._send(name, Subscribe(packet_id=self.next_id(), filters=[(filter_, qos)], properties=properties))

    def unsubscribe(self, name: str, filter_: str) -> None:
        self._send(name, Unsubscribe(packet_id=self.next_id(), filters=[filter_]))

    def publish(self, name: str, topic: str, qos: int, retain: bool, size: int, count: int) -> None:
        packets = []
        for _ in range(count):
            self.messages += 1
            packets.append(Publish(topic=topic, qos=qos, retain=retain, packet_id=self.next_id() if qos else None,
                                   payload=b"%d" % self.messages + bytes(size) if size else b""))
        self._send(name, *packets)

    def answer(self, name: str, which: int) -> None:
        """One of the things that a client owes, or, for 7, all of them."""
        peer = self.node.peers.get(name)
        if peer is None:
            return
        peer.pull()
        if not peer.open:
            return
        owed = peer.owed if which == 7 else peer.owed[which:which + 1]
        peer.owed = [] if which == 7 else peer.owed[:which] + peer.owed[which + 1:]
        self._send(name, *owed)

    def leave(self, name: str, politely: bool) -> None:
        peer = self.node.peers.pop(name, None)
        if peer is not None:
            peer.pull()
            if politely and peer.open:
                peer.send(Disconnect())
            peer.close()
            self.node.turn()

    def disk(self) -> None:
        self.node.disk()

    def settle(self) -> None:
        self.node.settle()

    def gate(self, is_open: bool) -> None:
        if is_open:
            self.node.gate.set()
        else:
            self.node.gate.clear()

    def checkpoint(self, steps: int) -> None:
        for _ in range(steps):
            self.node.checkpoint_step()

    def finish(self) -> None:
        """The checkpoint under way to its end, or a whole one."""
        self.node.checkpoint_step()
        self.node.finish_checkpoint()

    def crash(self) -> None:
        self.lives += 1
        target = self.directory / str(self.lives)
        durable, snapshots = self.node.crash(target)
        self.node = Node(target, self.loop, self.lives, self.queue_max)
        last = self.node.first - 1
        assert last >= durable
        if last not in snapshots:       # a turn may make some batches: what was between them nobody could look at
            assert any(last < number <= last + 2 for number in snapshots)
        elif snapshots[last].records in (None, self.node.records.get(last)):
            assert self.node.state() == snapshots[last].state, f"after batch {last}"

    def _send(self, name: str, *packets: object) -> None:
        peer = self.node.peers.get(name)
        if peer is None:
            return
        peer.pull()
        if peer.open and packets:
            peer.send(*packets)     # type: ignore[arg-type]
            self.node.turn()


def check(steps: list[tuple[object, ...]], queue_max: int = 4) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        history = History(Path(directory), queue_max)
        try:
            for each in steps:
                history.run(*each)      # type: ignore[arg-type]
            history.run("crash")
            history.run("settle")
            history.run("finish")
            history.run("crash")
        finally:
            history.close()


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "SLICE_SESSIONS", 1)    # as many gaps in a checkpoint as there can be


CONNECTED = [("connect", "a", False, True, 2, None), ("settle",), ("subscribe", "a", "#", 2, 0), ("settle",),
             ("connect", "b", False, True, 2, None), ("settle",)]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(step, min_size=10, max_size=60))
def test_a_crash_leaves_the_state_after_a_batch(steps: list[tuple[object, ...]]) -> None:
    check(CONNECTED + steps)


@pytest.mark.soak
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(step, min_size=10, max_size=200))
def test_a_crash_leaves_the_state_after_a_batch_for_long(steps: list[tuple[object, ...]]) -> None:
    check(CONNECTED + steps)


# ── histories that once went wrong ───────────────────────────────────────────────────────────────────────


def test_a_message_that_dies_while_sessions_are_exported() -> None:
    """Its session's copy still names it, so the view must keep it until that session's next copy."""
    check([*CONNECTED, ("publish", "b", "t/0", 1, False, 3, 1), ("settle",), ("checkpoint", 1), ("answer", "a", 7),
           ("settle",), ("finish",), ("crash",)])


def test_a_session_that_is_stored_for_its_will_only() -> None:
    """Its window and line were never journalled, and have no place in the view."""
    check([("connect", "c", False, False, 1, 1), ("settle",), ("subscribe", "c", "#", 1, 0), ("settle",),
           ("connect", "b", False, True, 1, None), ("settle",), ("publish", "b", "t/0", 1, False, 3, 4), ("settle",),
           ("finish",), ("crash",)])


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_evicted_by_the_publish_that_brought_it(qos: int) -> None:
    """One publish reaches a session twice, and its line has room for one: the first must not come back."""
    check([*CONNECTED, ("subscribe", "a", "$share/g/#", 2, 0), ("settle",), ("leave", "a", False),
           ("publish", "b", "t/0", qos, False, 3, 1), ("settle",), ("crash",)], queue_max=1)


def test_a_line_that_is_longer_than_the_window() -> None:
    check([*CONNECTED, ("publish", "b", "t/0", 2, False, 3, 6), ("gate", False), ("answer", "a", 7), ("answer", "a", 7),
           ("crash",), ("connect", "a", False, True, 1, None), ("settle",), ("answer", "a", 7), ("disk",), ("crash",)])


def test_a_session_that_ended_with_the_broker_is_not_present_and_not_half_kept() -> None:
    """Session Expiry Interval 0 and a will: it is on disk, but a client that returns begins anew, and is journalled."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        history = History(Path(directory))
        try:
            for each in (("connect", "c", False, False, 1, 1), ("settle",), ("subscribe", "c", "#", 1, 0), ("settle",),
                         ("finish",), ("crash",), ("finish",), ("crash",), ("connect", "c", False, True, 1, None),
                         ("settle",)):
                history.run(*each)
            peer = history.node.peers["c"]
            peer.pull()
            assert peer.open and not peer.received[0].session_present      # type: ignore[attr-defined]
            for each in (("subscribe", "c", "#", 1, 0), ("settle",), ("publish", "c", "t/0", 1, False, 3, 1),
                         ("settle",), ("crash",)):
                history.run(*each)
            assert len(history.node.state()["sessions"][b"c"]["window"]) == 1
        finally:
            history.close()


def test_a_client_that_does_not_return_leaves_nothing_after_two_crashes() -> None:
    """Its will is published and its session ends, although a checkpoint lay between the crashes."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        history = History(Path(directory))
        try:
            for each in (("connect", "c", False, False, 1, 1), ("settle",), ("crash",), ("finish",), ("crash",)):
                history.run(*each)
            hub = history.node.hub
            hub.set_clock(hub.now_ms + 10_000_000, hub.mono_ms + 10_000_000)
            history.node.broker.tick()
            assert not history.node.broker.sessions
            assert history.node.state()["retained"][b"t/0"] == (b"will of c", 1)
        finally:
            history.close()


# ── what chance meets too seldom ─────────────────────────────────────────────────────────────────────────

QOS_2 = ("publish", "b", "t/0", 2, False, 3, 2)
Steps = list[tuple[object, ...]]


def kept(where: str, more: Steps) -> Steps:
    """A crash, and where the start after it finds what was done before. more: done in the middle of that."""
    return {
        "journal": [("settle",), ("crash",)],
        "view": [("settle",), ("finish",), ("crash",)],
        "a later view": [("settle",), ("finish",), *more, ("settle",), ("finish",), ("crash",)],
        "the third life": [("settle",), ("crash",), ("finish",), ("crash",)],
    }.get(where) or [("settle",), ("checkpoint", int(where.rpartition(" ")[2])), *more, ("settle",), ("crash",)]


PLACES = ("journal", "view", "a later view", "the third life", *(f"in a checkpoint, step {n}" for n in range(1, 7)))


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("released", [1, 2])
def test_identifiers_of_qos_2_that_were_received(released: int, where: str) -> None:
    """Two PUBLISH of QoS 2 have their PUBREC, and so many of them their PUBREL; the subscriber has answered nothing."""
    answers = [("answer", "b", 0)] * released
    check([*CONNECTED, QOS_2, ("settle",), *answers, *kept(where, [QOS_2, ("answer", "b", 0)]),
           ("connect", "b", False, True, 2, None), ("settle",), QOS_2, ("settle",), ("answer", "b", 7)])
