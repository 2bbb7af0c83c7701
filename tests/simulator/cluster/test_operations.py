"""Operations of operators between the brokers of a simulated cluster: the call, and what it does at the owner."""
from __future__ import annotations

import json
from typing import Any

import pytest
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_queues import NAMES, share

from fluxmq.cluster.messages import OperationCall, encode
from fluxmq.cluster.node import ClusterNode
from fluxmq.cluster.operations import OPERATION, OUTCOME_BYTES_MAX, PART_BYTES
from fluxmq.cluster.ports import CallFailed
from fluxmq.engine.ports.operations import Operation, Outcome
from fluxmq.engine.ports.queues import Publish, QueueElsewhere
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.model.queues import DeadLetters, QueueSpec

LIMIT_S = 10.0


class Desk:
    """Answers of broker `at`: its operators' questions, and how large an answer it gives."""

    def __init__(self, brokers: Brokers, at: str) -> None:
        self.brokers, self.at = brokers, at
        self.asked: list[tuple[Operation, str]] = []
        self.body = b""
        brokers.processes[at].cluster.operations.answer_by(self.answer)

    async def answer(self, operation: Operation, node: str) -> Outcome:
        self.asked.append((operation, node))
        name, what = operation.target.split("/")
        admin = QueueAdmin(self.brokers.processes[self.at].node.manager)
        result = {"purge": admin.purge, "describe": admin.describe, "body": lambda name: 0}[what](name)
        return Outcome(200, "text/plain", self.body or json.dumps(result).encode())


def ask(brokers: Brokers, at: str, node: str, operation: Operation,
        limit_s: float = LIMIT_S) -> Outcome | QueueElsewhere:
    """What broker `at` gets for an answer, or why it gets none."""
    found: list[Outcome | QueueElsewhere] = []

    async def call() -> None:
        try:
            found.append(await brokers.processes[at].cluster.operations.ask(node, operation, limit_s))
        except QueueElsewhere as error:
            found.append(error)

    brokers.processes[at].process.driver.start(call())
    brokers.run_until(lambda: found)
    return found[0]


def fill(brokers: Brokers, at: str, count: int) -> None:
    admin = QueueAdmin(brokers.processes[at].node.manager)
    for number in range(count):
        admin.publish("q", Publish(payload=b"%d" % number))
    brokers.run_for(1.0)


def test_the_owner_does_it_and_says_what_it_did() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    desk = Desk(brokers, "one")
    fill(brokers, "one", 5)
    with pytest.raises(QueueElsewhere) as elsewhere:
        QueueAdmin(brokers.processes["two"].node.manager).purge("q")
    assert (elsewhere.value.node, elsewhere.value.away) == ("one", False)
    operation = Operation("POST", "q/purge", b"body", pages=True)
    assert ask(brokers, "two", "one", operation) == Outcome(200, "text/plain", b"5")
    assert desk.asked == [(operation, "two")]
    assert brokers.processes["one"].node.manager.queues[b"/", b"q"].queue.waiting == 0


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES - 1])
def test_an_answer_comes_in_parts(size: int) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    desk = Desk(brokers, "one")
    desk.body = bytes(range(256)) * (size // 256) + b"x" * (size % 256) or b""
    outcome = ask(brokers, "two", "one", Operation("GET", "q/body"))
    assert outcome == Outcome(200, "text/plain", desk.body or b"0")


def test_an_answer_has_a_largest_size() -> None:
    brokers = serving(*NAMES)
    desk = Desk(brokers, "one")
    desk.body = bytes(OUTCOME_BYTES_MAX + 1)
    found = ask(brokers, "two", "one", Operation("GET", "q/body"))
    assert isinstance(found, QueueElsewhere) and "over 67108864" in found.text


def test_a_node_that_is_gone_is_named_at_once_and_one_that_stands_still_in_time() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    Desk(brokers, "one")
    brokers.processes["one"].process.pause()
    began = brokers.world.now_ms
    found = ask(brokers, "two", "one", Operation("POST", "q/purge"), 1.0)
    assert isinstance(found, QueueElsewhere) and (found.node, found.away, found.kind) == ("one", True, "unavailable")
    assert "has not answered" in found.text and "it may have been done" in found.text
    assert brokers.world.now_ms - began <= 1500
    brokers.processes["one"].process.resume()
    brokers.run_for(2.0)
    brokers.kill("one")
    found = ask(brokers, "two", "one", Operation("GET", "q/describe"))
    assert isinstance(found, QueueElsewhere) and found.away and "may have been done" not in found.text
    brokers.end_lease_of("one")
    brokers.run_until(lambda: len(brokers.processes["two"].node.manager.away) == 1)
    with pytest.raises(QueueElsewhere) as away:
        QueueAdmin(brokers.processes["two"].node.manager).purge("q")
    assert (away.value.node, away.value.away) == ("one", True)
    found = ask(brokers, "two", "one", Operation("POST", "q/purge"))
    assert isinstance(found, QueueElsewhere) and found.text == "node one is away"


def test_a_node_without_an_admin_interface_says_so() -> None:
    brokers = serving(*NAMES)
    found = ask(brokers, "two", "one", Operation("POST", "q/purge"))
    assert isinstance(found, QueueElsewhere) and "takes no operations" in found.text and "done" not in found.text


@pytest.mark.parametrize("wrong", [{"cluster": "another"}, {"node": "four"}, {"epoch": 1}, {"to_epoch": 1}],
                         ids=lambda wrong: str(*wrong))
def test_an_operation_of_another_life_has_no_effect(wrong: dict[str, Any]) -> None:
    brokers = serving(*NAMES)
    share(brokers, "two")
    desk = Desk(brokers, "two")
    one, two = (brokers.processes[name].cluster for name in ("one", "two"))
    fields = one.peers.asks(one.peers.peers["two"]) | wrong
    failed = refused(brokers, two, encode(OperationCall(**fields, method="POST", target="q/purge", body=b"",
                                                        pages=False)))
    assert "one of the two has restarted" in str(failed) and not failed.reached and not desk.asked


def test_a_body_that_is_no_operation_is_refused() -> None:
    brokers = serving(*NAMES)
    failed = refused(brokers, brokers.processes["two"].cluster, b"\xc1")
    assert "not an operation" in str(failed) and not failed.reached


def refused(brokers: Brokers, node: ClusterNode, body: bytes) -> CallFailed:
    said: list[CallFailed] = []

    async def send() -> None:
        try:
            async for _ in node.on_call(OPERATION, body, None):
                pass
        except CallFailed as error:
            said.append(error)

    brokers.processes["two"].process.driver.start(send())
    brokers.run_until(lambda: said)
    return said[0]


def test_a_queue_has_an_identity_that_says_whether_its_offsets_hold() -> None:
    """One that is not durable loses its messages, and not its identity, with its node."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    do(brokers, "two", lambda node: node.manager.declare(QueueSpec(name="e", type="ephemeral")))
    one, two = (QueueAdmin(brokers.processes[name].node.manager) for name in ("one", "two"))
    states = brokers.processes["one"].node.manager.queues
    assert one.identity("q") == f"{states[b'/', b'q'].id:016x}"
    assert two.identity("e") == f"{states[b'/', b'e'].id:016x}@two"
    for admin, name in ((one, "e"), (two, "q")):
        with pytest.raises(QueueElsewhere):
            admin.identity(name)
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_until(lambda: any(state.here for name in ("one", "three") for state in [
        brokers.processes[name].node.manager.queues[b"/", b"e"]]), 60.0)
    (now,) = (name for name in ("one", "three") if brokers.processes[name].node.manager.queues[b"/", b"e"].here)
    assert QueueAdmin(brokers.processes[now].node.manager).identity("e") == f"{states[b'/', b'e'].id:016x}@{now}"


@pytest.mark.parametrize("restarts", ["", "one", "two"])
def test_dead_letters_go_back_to_a_queue_of_another_node(restarts: str) -> None:
    """Once, to the partition and with the priority that they had, whichever of the two nodes restarts."""
    brokers = serving(*NAMES)
    share(brokers, "one", partitions=4, max_priority=3, dlq=DeadLetters(topic="d"))
    do(brokers, "two", lambda node: node.manager.declare(QueueSpec(name="d", dlq=DeadLetters(enabled=False))))
    one, two, three = (QueueAdmin(brokers.processes[name].node.manager) for name in NAMES)
    how = [("partition-key", "k"), ("priority", "2"), ("producer-id", "p")]
    place = one.publish("q", Publish(payload=b"as it is", user_properties=[*how, ("producer-sequence", "100")]))
    for number in range(20):
        two.publish("d", Publish(payload=b"%d" % number, user_properties=[*how, ("producer-sequence", f"{number}")]))
    brokers.run_for(1.0)
    for away in (one, three):
        with pytest.raises(QueueElsewhere) as elsewhere:
            away.dead_replay("q", None, 20)
        assert elsewhere.value.node == "two"
    assert [entry["messages"] for entry in one.dead_list()] == [None]
    assert [entry["messages"] for entry in two.dead_list()] == [20]
    assert two.dead_replay("q", None, 20).moved == 20
    if restarts:
        brokers.run_for(0.05)
        brokers.kill(restarts)
        brokers.end_lease_of(restarts)
        brokers.run_for(3.0)
        brokers.processes[restarts].start()
        brokers.run_until(lambda: brokers.processes[restarts].serving, 60.0)
    brokers.run_for(10.0)
    there = QueueAdmin(brokers.processes["one"].node.manager).browse("q", "first", 100, 1 << 20, None).messages
    back = [message for message in there if message.payload != b"as it is"]
    assert sorted(int(message.payload) for message in back) == list(range(20))
    assert {(message.partition, message.priority) for message in back} == {(place["partition"], 2)}
    assert brokers.processes["two"].node.manager.queues[b"/", b"d"].queue.waiting == 0
