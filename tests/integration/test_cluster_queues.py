"""The rows of queues of `fluxmq bench cluster`: on one broker that has all roles, and on nodes that are made up."""
from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kit.proxy import Proxy

from fluxmq._core.amqp091 import methods as m
from fluxmq.bench.load import cluster_queues
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_session import Session, SessionError
from fluxmq.bench.load.brokers import Broker, Needs, start_broker
from fluxmq.bench.load.cluster_parts import ClusterOptions
from fluxmq.bench.load.cluster_queues import Roles, publish_all, queue_rows, taken_over
from fluxmq.bench.load.engine import LoadError

QUEUE = "bench-name"        # instead of a random one


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker("fluxmq", Needs(folder=tmp_path_factory.mktemp("one"), transports=("tcp", "amqp"))) as running:
        yield running


def bench(broker: Broker, rabbitmq: Any = None, seconds: float = 0.3) -> Any:
    """A Bench whose nodes are all this broker."""
    nodes = SimpleNamespace(address=lambda _number: broker.addresses["tcp"],
                            amqp_address=lambda _number: broker.addresses["amqp"])
    return SimpleNamespace(nodes=nodes, one=broker, rabbitmq=rabbitmq, number=0,
                           options=ClusterOptions(duration=seconds, warmup=0.1))


@pytest.mark.parametrize("key", ["queue", "queue-one", "stream", "queue-amqp", "queue-amqp-100"])
def test_a_row_has_the_figures_of_its_goals_and_loses_nothing(broker: Broker, key: str) -> None:
    row = next(row for row in queue_rows(Roles()) if row.key == key)
    # Of RabbitMQ there is a test of its own, which is skipped where it is not installed.
    stands_in = SimpleNamespace(address=lambda _number: broker.addresses["amqp"])
    for seconds in (0.3, 3.0, 12.0):            # a machine that is too busy for one message gets a longer run
        try:
            figures = row.run(bench(broker, stands_in if row.rabbitmq else None, seconds))
            break
        except LoadError as error:
            if "too short" not in str(error):
                raise
    assert {goal.figure for goal in row.goals} <= set(figures)
    assert not {"lost", "duplicates", "reordered"} & set(figures)
    assert all(value > 0 for value in figures.values())


def test_the_sides_take_turns_and_are_compared_in_their_round(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[AmqpOptions] = []
    latency = {"p50": 1000.0, "p99": 2000.0}
    nothing = {"lost": 0, "duplicates": 0, "reordered": 0}

    def run(options: AmqpOptions) -> dict[str, Any]:
        asked.append(options)
        theirs = options.addr.startswith("theirs")
        return {"delivered_per_second": 10.0 if theirs else 120.0, "latency_us": latency, "ack_latency_us": latency,
                "total": nothing | ({"lost": 3} if theirs else {})}

    monkeypatch.setattr(cluster_queues, "run_amqp", run)
    both = bench(broker, SimpleNamespace(address=lambda number: f"theirs-{number}:1"))
    both.nodes.amqp_address = lambda number: f"ours-{number}:1"
    row = next(row for row in queue_rows(Roles(publishers=2, owner=0, consumers=(1,))) if row.key == "queue-amqp")
    for both.number in range(2):
        figures = row.run(both)
        assert (figures["times"], figures["rate"], figures["rabbitmq_rate"]) == (12, 120, 10)
        assert (figures["rabbitmq_p99_ms"], figures["rabbitmq_lost"], "lost" in figures) == (2, 3, False)
    assert [options.addr for options in asked] == ["ours-2:1", "theirs-2:1", "theirs-2:1", "ours-2:1"]
    assert {(options.queue_addr[-4:], options.sub_addrs[0][-4:]) for options in asked} == {("-0:1", "-1:1")}
    both.rabbitmq = None
    with pytest.raises(LoadError, match="needs RabbitMQ"):
        row.run(both)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(cluster_queues.secrets, "token_hex", lambda _size: QUEUE.removeprefix("bench-"))
    return QUEUE


def test_what_a_consumer_held_is_waited_for(broker: Broker, queue: str) -> None:
    """The consumer's connection ends as it does when its node is killed."""
    address = broker.addresses["amqp"]
    host, _, port = address.rpartition(":")
    with Proxy((host, int(port))) as proxy:
        places = {0: address, 1: address, 2: proxy.address}
        assert taken_over(places.__getitem__, Roles(), 50, proxy.cut) > 0
    session = Session(AmqpOptions(addr=address), None)
    with pytest.raises(SessionError, match="404 NOT_FOUND"):
        session.call(m.QueueDeclare(queue=queue, passive=True))
    session.close()


def test_other_messages_are_not_what_it_held(broker: Broker, queue: str) -> None:
    """As many as it held, equal even, but nobody had them before."""
    address = broker.addresses["amqp"]
    with pytest.raises(LoadError, match="of 5 messages 5 came to the other consumer, 5 in all, 0 as delivered before"):
        taken_over(lambda _number: address, Roles(), 5, lambda: publish_all(address, queue, 5) and None)


def test_messages_that_do_not_come_are_not_waited_for_forever(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_queues, "PATIENCE_SECONDS", 0.5)
    address = broker.addresses["amqp"]
    with pytest.raises((LoadError, SessionError), match="did not"):
        taken_over(lambda _number: address, Roles(), 5, lambda: None)
