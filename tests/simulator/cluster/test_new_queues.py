"""What clients ask about a queue of which its owner has not heard yet, or about one that their node does not know to be
gone."""
from __future__ import annotations

import pytest
from simulator.cluster.amqp import Amqp
from simulator.cluster.test_order_in_moves import NAMES, with_views

from fluxmq.model.queues import QueueSpec

ADDRESS = b"/", b"q"


@pytest.mark.parametrize(("method", "asked", "answer"), [
    ("queue.declare", {"queue": "q", "passive": True}, "queue.declare-ok"),
    ("queue.purge", {"queue": "q"}, "queue.purge-ok"),
    ("queue.delete", {"queue": "q", "if_empty": True}, "queue.delete-ok"),
    ("basic.get", {"queue": "q"}, "basic.get-empty"),
])
def test_an_owner_that_does_not_know_the_queue_yet_is_asked_again(
        method: str, asked: dict[str, object], answer: str) -> None:
    """Another client has just declared it: this node has heard of that, and the owner has not."""
    brokers, views = with_views(7)
    client = Amqp(brokers, "two")
    views[NAMES.index("one")].late_s = 3.0
    brokers.processes["one"].node.manager.definer.make_known(QueueSpec(name="q"), lambda: None)
    brokers.run_until(lambda: ADDRESS in brokers.processes["two"].node.manager.queues)
    assert ADDRESS not in brokers.processes["one"].node.manager.queues
    client.method(method, **asked)
    brokers.run_for(0.5)
    assert not client.told(answer) and not client.told("channel.close")
    client.ask(answer)


def test_a_question_ends_with_its_queue() -> None:
    """The owner has deleted it, of which the client's node hears later."""
    brokers, views = with_views(7)
    client = Amqp(brokers, "two")
    brokers.processes["one"].node.manager.definer.make_known(QueueSpec(name="q"), lambda: None)
    brokers.run_until(lambda: all(ADDRESS in broker.node.manager.queues for broker in brokers.processes.values()))
    views[NAMES.index("two")].late_s = 2.0
    other = Amqp(brokers, "one")
    other.method("queue.delete", queue="q")
    brokers.run_until(lambda: ADDRESS not in brokers.processes["one"].node.manager.queues)
    client.method("queue.declare", queue="q", passive=True)
    brokers.run_for(0.2)
    assert ADDRESS in brokers.processes["two"].node.manager.queues and not client.told("channel.close")
    brokers.run_until(lambda: client.told("channel.close"))
    assert ADDRESS not in brokers.processes["two"].node.manager.queues
    assert client.told("channel.close")[0]["reply_code"] == 404
