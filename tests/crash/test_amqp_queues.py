"""Any history of queues that AMQP declared, cut off before any call that changes the disk, by a kill or by a loss of
power: what a restart finds is what was durable after some batch of the journal, and no earlier one than the last that
somebody was told of. What was declared is there as it was declared, a dead letter is in one place, what is not durable
is gone. Checkpoints take their steps in between.
"""
from __future__ import annotations

import asyncio
import os
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crash.queue_node import QueueNode, View
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kit.film import Cut
from oracle.amqp091 import plain_properties
from unit.amqp_world import bytes_in_order

from fluxmq._core.amqp091.properties import encode_properties
from fluxmq._core.queue.heads import PULL_GIVEN
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.amqp_queues import AmqpQueues
from fluxmq.engine.queue_positions import NOTHING
from fluxmq.model.amqp import AmqpRefused

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
AMQP = 1
State = frozenset[Any]

names = st.sampled_from((b"q", b"q", b"q", b"r", b"r", b"\xff\0/+#"))
hosts = st.sampled_from((b"/", b"/", b"/", b"/", b"v"))
arguments = st.sampled_from((
    {}, {"x-max-length": 2}, {"x-max-length-bytes": 300}, {"x-message-ttl": 1000}, {"x-max-priority": 200},
    {"x-queue-type": "quorum", "x-delivery-limit": 1}, {"x-single-active-consumer": True, "x-foo": "bar"},
    {"x-overflow": "reject-publish-dlx", "x-max-length": 1}))
step = st.one_of(
    st.tuples(st.just("declare"), hosts, names, st.sampled_from((*3 * ["durable"], "transient", "owned")), arguments,
              st.booleans()),
    st.tuples(st.just("delete"), hosts, names), st.tuples(st.just("purge"), hosts, names),
    *(st.tuples(st.just("put"), hosts, names, st.sampled_from((0, 0, 9)), st.sampled_from((None, None, "500")),
                st.sampled_from((0, 700))) for _ in range(9)),
    *(st.tuples(st.just("get"), hosts, names, st.sampled_from(("ack", "reject", "requeue", "keep")))
      for _ in range(5)),
    st.tuples(st.just("leave"), hosts, names), st.tuples(st.just("time"), st.sampled_from((300, 2000))),
    st.tuples(st.just("submit")), st.tuples(st.just("sync")), st.tuples(st.just("sync")), st.tuples(st.just("poll")),
    st.tuples(st.just("checkpoint"), st.integers(1, 5)), st.tuples(st.just("finish")),
    st.tuples(st.just("crash"), st.floats(0.6, 0.999), st.sampled_from(("kill", "power", "torn"))),
)


class Life:
    """A node, and what AMQP makes of it."""

    def __init__(self, node: QueueNode) -> None:
        self.node = node
        self.amqp = AmqpQueues(node.manager, bytes_in_order())
        self.members: dict[Queue, PyMember] = {}
        self.got: list[tuple[int, int]] = []

    def member(self, queue: Queue) -> PyMember:
        member = self.members.get(queue)
        if member is None or member.group is None:
            self.members[queue] = member = PyMember(lambda log, offset, n: self.got.append((log, offset)), room=100)
            self.amqp.add_puller(queue, member)
        return member

    def letters(self, queue: Queue) -> list[Any]:
        """What nobody has settled: (body, deaths, how often it was delivered)."""
        found = []
        for log in queue.logs:
            at = log.first
            while at < log.next:
                record = log.at_or_above(at)
                if record is None:
                    if log.wanted == NOTHING:
                        break
                    self.node.loop.run_until_complete(self._read(queue))
                    self.node.settle_reads()
                    continue
                at = record.offset + 1
                if queue.is_needed(log, record.offset):
                    claim = queue.groups[0].claim_of(log.number, record.offset)
                    headers = plain_properties(record.properties).get("headers", {})
                    deaths = tuple((death["queue"], death["reason"], int(death["count"]))
                                   for death in headers.get("x-death", []))
                    found.append((record.payload[:20], deaths, claim[0] if claim is not None else 0, record.priority,
                                  record.expires_at))
        return sorted(found)

    async def _read(self, queue: Queue) -> None:
        self.node.manager.read_on(queue)

    def state(self) -> State:
        """What of it is durable."""
        return frozenset((state.declared.vhost, state.declared.name, state.declared.durable, state.declared.auto_delete,
                          repr(sorted(state.declared.arguments.items())), state.terms, tuple(self.letters(state.queue)))
                         for state in self.node.manager.queues.values()
                         if state.queue.durable and state.declared is not None)


class History:
    """One life after the other. cuts_max: how many instants of each are looked at; 0 = all."""

    def __init__(self, directory: Path, seed: int, cuts_max: int) -> None:
        self.directory, self.cuts_max = directory, cuts_max
        self.chance = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.places = self.instants = self.bodies = 0
        self.wall_ms = 1_000_000
        self.life = Life(QueueNode(self._place(), self.loop, View(), (self.wall_ms, self.wall_ms), 1))
        self.snapshots: dict[int, State] = {0: self.life.state()}

    def _place(self, make: bool = True) -> Path:
        self.places += 1
        path = self.directory / str(self.places)
        if make:
            path.mkdir()
        return path

    def do(self, what: Any) -> None:
        """One turn, and another for what came of it in other queues; what is known after each batch."""
        for each in (what, lambda: None):
            number = self.life.node.in_turn(each)
            self.life.node.settle_reads()
            self.snapshots[number] = self.life.state()

    def run(self, what: str, *said: Any) -> None:
        getattr(self, f"do_{what}")(*said)

    def do_declare(self, host: bytes, name: bytes, how: str, given_arguments: dict[str, Any], letters: bool) -> None:
        more = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"} if letters else {}

        def declare() -> None:
            with suppress(AmqpRefused):
                self.life.amqp.declare(host, name, durable=how != "transient", arguments=given_arguments | more,
                                       exclusive_owner=self if how == "owned" else None)
        self.do(declare)

    def do_delete(self, host: bytes, name: bytes) -> None:
        self.do(lambda: self.life.amqp.delete(host, name, self))

    def do_purge(self, host: bytes, name: bytes) -> None:
        if self.life.amqp.get(host, name) is not None:
            self.do(lambda: self.life.amqp.purge(host, name, self))

    def do_put(self, host: bytes, name: bytes, priority: int, expiration: str | None, padding: int) -> None:
        queue = self.life.amqp.get(host, name)
        if queue is not None:
            self.bodies += 1
            told = {"priority": priority} | ({"expiration": expiration} if expiration else {})
            body = str(self.bodies).encode() + b" " * padding
            self.do(lambda: queue.publish(b"\0k", body, encode_properties(told), format=AMQP))

    def do_get(self, host: bytes, name: bytes, then: str) -> None:
        queue = self.life.amqp.get(host, name)
        if queue is None:
            return
        member = self.life.member(queue)
        self.life.got.clear()

        def get() -> None:
            if self.life.amqp.ask(queue, member) == PULL_GIVEN:
                group, place = queue.groups[0], self.life.got[0]
                if then == "ack":
                    group.settle_at(*place)
                elif then == "reject":
                    group.reject_at(*place, "rejected")
                elif then == "requeue":
                    group.give_back_at(*place)
        self.do(get)

    def do_leave(self, host: bytes, name: bytes) -> None:
        queue = self.life.amqp.get(host, name)
        member = self.life.members.pop(queue, None) if queue is not None else None
        if queue is not None and member is not None:
            self.do(lambda: self.life.amqp.left(queue, member))

    def do_time(self, ms: int) -> None:
        self.wall_ms += ms

        def pass_time() -> None:
            self.life.node.hub.set_clock(self.wall_ms, self.wall_ms)
            self.life.node.clock.tick()
        self.do(pass_time)

    def do_submit(self) -> None:
        self.life.node.submit()

    def do_sync(self) -> None:
        self.life.node.sync()

    def do_poll(self) -> None:
        self.life.node.poll()

    def do_checkpoint(self, rounds: int) -> None:
        self.life.node.begin_checkpoint()
        for _ in range(rounds):
            self.life.node.round()
            self.life.node.poll()

    def do_finish(self) -> None:
        self.life.node.begin_checkpoint()
        self.life.node.finish_checkpoint()

    def do_crash(self, which: float, how: str) -> None:
        cuts = self.life.node.stop()
        some = cuts if not self.cuts_max or len(cuts) <= self.cuts_max else self.chance.sample(cuts, self.cuts_max)
        for cut in some:
            self.revive(cut, self.chance.choice(("kill", "power", "torn")), False).node.stop()
        self.life = self.revive(cuts[int(which * len(cuts))], how, True)
        self.snapshots = {self.life.node.recovered: self.life.state()}

    def revive(self, cut: Cut, how: str, filmed: bool) -> Life:
        self.instants += 1
        chance = random.Random(self.chance.random())
        life = Life(QueueNode.after(cut, self._place(make=False), chance if how == "torn" else how, self.loop,
                                    (self.wall_ms, self.wall_ms), filmed))
        number = life.node.recovered
        assert number >= cut.facts[0], "what somebody was told of is gone"
        known = self.snapshots[max(one for one in self.snapshots if one <= number)]
        assert life.state() == known, f"after a crash ({how}) before {cut.what!r}, batch {number}"
        assert not [state for state in life.node.manager.queues.values() if not state.queue.durable]
        return life

    def close(self) -> None:
        try:
            self.life.node.stop()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def check(steps: list[tuple[Any, ...]], seed: int, cuts_max: int) -> int:
    """Returns how many instants were looked at."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        history = History(Path(directory), seed, cuts_max)
        try:
            for each in steps:
                history.run(*each)
            history.run("crash", 0.999, "kill")
            history.run("finish")
            history.run("crash", 0.999, "power")
            return history.instants
        finally:
            history.close()


SMOKE = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck),
                 phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True)  # shrinking takes minutes


FIRST = [("declare", b"/", b"d", "durable", {}, False), ("declare", b"/", b"q", "durable", {"x-max-priority": 9}, True),
         ("declare", b"/", b"r", "durable", {"x-max-length": 2, "x-message-ttl": 2000}, True)]


@SMOKE
@given(st.lists(step, min_size=30, max_size=60), st.integers(0, 1 << 30))
def test_any_instant(steps: list[tuple[Any, ...]], seed: int) -> None:
    check(FIRST + steps, seed, 8)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_limit_of_bytes_after_a_restart(checkpoint: bool, tmp_path: Path) -> None:
    """What is in the journal is known to the byte; of what a checkpoint took over nothing is dropped by a start."""
    history = History(tmp_path, 1, 1)
    try:
        history.run("declare", b"/", b"q", "durable", {"x-max-length-bytes": 500}, False)
        for number in range(7):
            queue = history.life.amqp.get(b"/", b"q")
            assert queue is not None
            history.do(lambda queue=queue, number=number: queue.publish(  # type: ignore[misc]
                b"\0q", str(number).encode() * 100, encode_properties({"message_id": "x" * 50}), format=AMQP))
        history.run("sync")
        if checkpoint:
            history.run("finish")
        history.run("crash", 0.999, "kill")
        queue = history.life.amqp.get(b"/", b"q")
        assert queue is not None
        history.do(lambda: None)
        assert [letter[0][:1] for letter in history.life.letters(queue)] == [b"2", b"3", b"4", b"5", b"6"]
        history.do(lambda: queue.publish(b"\0q", b"7" * 100, encode_properties({}), format=AMQP))
        history.run("sync")
        history.life.node.settle_reads()
        history.do(lambda: None)
        assert [letter[0][:1] for letter in history.life.letters(queue)] == [b"3", b"4", b"5", b"6", b"7"]
    finally:
        history.close()


@pytest.mark.soak
@settings(SMOKE, max_examples=1000)
@given(st.lists(step, min_size=30, max_size=120), st.integers(0, 1 << 30))
def test_any_instant_of_many(steps: list[tuple[Any, ...]], seed: int) -> None:
    check(FIRST + steps, seed, 0)
