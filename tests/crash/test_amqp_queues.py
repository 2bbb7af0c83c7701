"""Any history of queues that AMQP declared, cut off before any call that changes the disk, by a kill or by a loss of
power: what a restart finds is what was durable after some batch of the journal, and no earlier one than the last that
somebody was told of. What was declared is there as it was declared, a dead letter is in one place, what is not durable
is gone. Checkpoints take their steps in between.
"""
from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crash.history import DISK_STEPS, SMOKE, History, Steps
from crash.queue_node import QueueNode
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.film import Cut
from oracle.amqp091 import plain_properties
from unit.amqp_world import bytes_in_order

from fluxmq._core.amqp091.properties import encode_properties
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.amqp_head import PULL_GIVEN
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.positions import NOTHING
from fluxmq.model.amqp import AmqpRefused

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
    st.tuples(st.just("sync")), *DISK_STEPS,
    st.tuples(st.just("crash"), st.floats(0.6, 0.999), st.sampled_from(("kill", "power", "torn"))),
)


class AmqpHistory(History):
    """What AMQP makes of one node after the other."""

    def __init__(self, directory: Path, seed: int, cuts_max: int) -> None:
        self.bodies, self.wall_ms = 0, 1_000_000
        super().__init__(directory, seed, cuts_max)

    def clock(self) -> tuple[int, int]:
        return self.wall_ms, self.wall_ms

    def made(self, node: QueueNode) -> None:
        self.amqp = AmqpQueues(node.manager, bytes_in_order())
        self.members: dict[Queue, PyMember] = {}
        self.got: list[tuple[int, int]] = []

    def member(self, queue: Queue) -> PyMember:
        member = self.members.get(queue)
        if member is None or member.group is None:
            self.members[queue] = member = PyMember(lambda log, offset, n: self.got.append((log, offset)), room=100)
            self.amqp.add_puller(queue, member)
        return member

    def unsettled(self, node: QueueNode, queue: Queue) -> list[Any]:
        """What nobody has settled: (body, deaths, how often it was delivered)."""
        found = []
        for log in queue.logs:
            at = log.first
            while at < log.next:
                record = log.at_or_above(at)
                if record is None:
                    if log.wanted == NOTHING:
                        break
                    node.loop.run_until_complete(self._read(node, queue))
                    node.settle_reads()
                    continue
                at = record.offset + 1
                if queue.is_needed(log, record.offset):
                    claim = by_offset.claim_of(queue.groups[0], log.number, record.offset)
                    headers = plain_properties(record.properties).get("headers", {})
                    deaths = tuple((death["queue"], death["reason"], int(death["count"]))
                                   for death in headers.get("x-death", []))
                    found.append((record.payload[:20], deaths, claim[0] if claim is not None else 0, record.priority,
                                  record.expires_at))
        return sorted(found)

    async def _read(self, node: QueueNode, queue: Queue) -> None:
        node.manager.read_on(queue)

    def state_of(self, node: QueueNode) -> State:
        """What of it is durable."""
        return frozenset((state.declared.vhost, state.declared.name, state.declared.durable, state.declared.auto_delete,
                          repr(sorted(state.declared.arguments.items())), state.arguments,
                          tuple(self.unsettled(node, state.queue)))
                         for state in node.manager.queues.values()
                         if state.queue.durable and state.declared is not None)

    def do(self, what: Any) -> None:
        """One turn, and another for what came of it in other queues; what is known after each batch."""
        for each in (what, lambda: None):
            number = self.node.in_turn(each)
            self.node.settle_reads()
            self.snapshots[number] = self.state_of(self.node)

    def do_declare(self, host: bytes, name: bytes, how: str, given_arguments: dict[str, Any], letters: bool) -> None:
        more = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"} if letters else {}

        def declare() -> None:
            with suppress(AmqpRefused):
                self.amqp.declare(host, name, durable=how != "transient", arguments=given_arguments | more,
                                       exclusive_owner=self if how == "owned" else None)
        self.do(declare)

    def do_delete(self, host: bytes, name: bytes) -> None:
        self.do(lambda: self.amqp.delete(host, name, self))

    def do_purge(self, host: bytes, name: bytes) -> None:
        if self.amqp.get(host, name) is not None:
            self.do(lambda: self.amqp.purge(host, name, self))

    def do_put(self, host: bytes, name: bytes, priority: int, expiration: str | None, padding: int) -> None:
        queue = self.amqp.get(host, name)
        if queue is not None:
            self.bodies += 1
            told = {"priority": priority} | ({"expiration": expiration} if expiration else {})
            body = str(self.bodies).encode() + b" " * padding
            self.do(lambda: queue.publish(b"\0k", body, encode_properties(told), format=AMQP))

    def do_get(self, host: bytes, name: bytes, then: str) -> None:
        queue = self.amqp.get(host, name)
        if queue is None:
            return
        member = self.member(queue)
        self.got.clear()

        def get() -> None:
            if self.amqp.ask(queue, member) == PULL_GIVEN:
                group, place = queue.groups[0], self.got[0]
                if then == "ack":
                    by_offset.settle_at(group, *place)
                elif then == "reject":
                    by_offset.reject_at(group, *place, "rejected")
                elif then == "requeue":
                    by_offset.give_back_at(group, *place)
        self.do(get)

    def do_leave(self, host: bytes, name: bytes) -> None:
        queue = self.amqp.get(host, name)
        member = self.members.pop(queue, None) if queue is not None else None
        if queue is not None and member is not None:
            self.do(lambda: self.amqp.left(queue, member))

    def do_time(self, ms: int) -> None:
        self.wall_ms += ms

        def pass_time() -> None:
            self.node.hub.set_clock(self.wall_ms, self.wall_ms)
            self.node.clock.tick()
        self.do(pass_time)

    def revive(self, cut: Cut, how: str, filmed: bool) -> QueueNode:
        node = super().revive(cut, how, filmed)
        assert not [state for state in node.manager.queues.values() if not state.queue.durable]
        return node


FIRST = [("declare", b"/", b"d", "durable", {}, False), ("declare", b"/", b"q", "durable", {"x-max-priority": 9}, True),
         ("declare", b"/", b"r", "durable", {"x-max-length": 2, "x-message-ttl": 2000}, True)]


@settings(SMOKE, max_examples=20)
@given(st.lists(step, min_size=30, max_size=60), st.integers(0, 1 << 30))
def test_any_instant(steps: Steps, seed: int) -> None:
    AmqpHistory.play(FIRST + steps, seed, 8)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_limit_of_bytes_after_a_restart(checkpoint: bool, tmp_path: Path) -> None:
    """What is in the journal is known to the byte; of what a checkpoint took over nothing is dropped by a start."""
    history = AmqpHistory(tmp_path, 1, 1)
    try:
        history.run("declare", b"/", b"q", "durable", {"x-max-length-bytes": 500}, False)
        for number in range(7):
            queue = history.amqp.get(b"/", b"q")
            assert queue is not None
            history.do(lambda queue=queue, number=number: queue.publish(  # type: ignore[misc]
                b"\0q", str(number).encode() * 100, encode_properties({"message_id": "x" * 50}), format=AMQP))
        history.run("sync")
        if checkpoint:
            history.run("finish")
        history.run("crash", 0.999, "kill")
        queue = history.amqp.get(b"/", b"q")
        assert queue is not None
        history.do(lambda: None)
        assert [message[0][:1] for message in history.unsettled(history.node, queue)] == [b"2", b"3", b"4", b"5", b"6"]
        history.do(lambda: queue.publish(b"\0q", b"7" * 100, encode_properties({}), format=AMQP))
        history.run("sync")
        history.node.settle_reads()
        history.do(lambda: None)
        assert [message[0][:1] for message in history.unsettled(history.node, queue)] == [b"3", b"4", b"5", b"6", b"7"]
    finally:
        history.close()


@pytest.mark.soak
@settings(SMOKE, max_examples=1000)
@given(st.lists(step, min_size=30, max_size=120), st.integers(0, 1 << 30))
def test_any_instant_of_many(steps: Steps, seed: int) -> None:
    AmqpHistory.play(FIRST + steps, seed, 0)
