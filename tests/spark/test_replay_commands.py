"""Consumers of queues that settle by hand: their orders name messages of the recorded broker, and are about those of
this one in the replay."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from kit.broker import Broker
from kit.story import Story, events_of

from fluxmq.record.reading import open_recording
from fluxmq.spark.player.operations import COMMAND
from fluxmq.spark.replay.plan import plain_plan, plain_survey, plan_recording
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here
from fluxmq.spark.report.side_by_side import broker_used, side_by_side
from fluxmq.spark.result import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 300
PREFETCH = 10
Rows = list[dict[str, Any]]


def told(message: str, *more: tuple[str, str]) -> dict[str, Any]:
    return {"user_property": [["queue", "jobs"], ["group-id", "default"], ["message-id", message], *map(list, more)]}


def consumer(story: Story, client: str, **options: Any) -> None:
    story.connect(client, **options)
    story.subscribe(client, ("$queue/jobs", 1), properties={
        "user_property": [["ack", "manual"], ["prefetch", str(PREFETCH)]]})


def work(consumers: int = 2, leaves: bool = False) -> Story:
    """MESSAGES published, delivered and acknowledged, turn by turn. The names are of a broker that was long at work."""
    story = Story()
    for number in range(consumers):
        consumer(story, f"worker-{number}")
    story.connect("pub")
    for number in range(MESSAGES):
        story.publish("pub", "$queue/jobs", 1)
        client, message = f"worker-{number % consumers}", f"{number % 3}:{700_000 + number}"
        story.acknowledge(client, story.delivered(client, "$queue/jobs", 1, properties=told(message)))
        story.publish(client, "$queue/jobs/$ack", 1, size=0, properties=told(message))
    for number in range(consumers if leaves else 0):
        story.disconnect(f"worker-{number}")
    return story


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "broker", {"queues": '[{"name": "jobs", "type": "classic"}]'})
    one.start()
    yield one
    one.stop()
    one.check()


def replayed(tmp_path: Path, broker: Broker, story: Story, **options: Any) -> tuple[Summary, Rows]:
    story.write(tmp_path / "recording")
    summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                        broker="{}:{}".format(*broker.address),
                                        **({"speed": None, "quiet_s": 0.5} | options)))
    return summary, events_of(tmp_path / "result")


@pytest.mark.parametrize(("consumers", "leaves", "speed"), [(1, False, None), (2, False, None), (1, True, None),
                                                            (2, False, 1.0)])
def test_what_was_consumed_and_settled_by_hand_is_so_again(tmp_path: Path, broker: Broker, consumers: int,
                                                           leaves: bool, speed: float | None) -> None:
    summary, rows = replayed(tmp_path, broker, work(consumers, leaves), speed=speed)
    assert summary.complete
    orders = [row for row in rows if row["event"] == "settlement" and row["reason"] == 0]
    assert len(orders) == MESSAGES
    assert all(row["topic"] == "$queue/jobs/$ack" and row["acked"] >= row["sent"] for row in orders)
    assert summary.recorded == {"publish": MESSAGES, "delivery": MESSAGES, "settlement": MESSAGES}
    names = Counter((row["publisher"], row["publisher_op"]) for row in rows if row["event"] == "delivery")
    assert len(names) == summary.counts["publish"] == MESSAGES and not summary.not_replayed
    # Of two consumers the one that has no order left may have to give back what it has in hand.
    assert MESSAGES <= summary.counts["delivery"] <= MESSAGES + (consumers - 1) * PREFETCH


def test_a_delivery_says_since_when_it_could_come(tmp_path: Path, broker: Broker) -> None:
    """A line of messages was there before the consumer: the first PREFETCH could come with its SUBACK, each other one
    when one before it was settled."""
    story = Story()
    story.connect("pub")
    for _ in range(3 * PREFETCH):
        story.publish("pub", "$queue/jobs", 1)
    consumer(story, "worker-0")
    for number in range(3 * PREFETCH):
        message = f"0:{number}"
        story.acknowledge("worker-0", story.delivered("worker-0", "$queue/jobs", 1, properties=told(message)))
        story.publish("worker-0", "$queue/jobs/$ack", 1, size=0, properties=told(message))
    _, rows = replayed(tmp_path, broker, story)
    (subscribed,) = (row["acked"] for row in rows if row["event"] == "subscribe")
    got = [row for row in rows if row["event"] == "delivery"]
    assert len(got) == 3 * PREFETCH and all(row["due"] <= row["sent"] for row in got)
    assert [row["due"] for row in got[:PREFETCH]] == [subscribed] * PREFETCH
    assert all(row["due"] > subscribed for row in got[PREFETCH:])
    assert [row["due"] for row in got] == sorted(row["due"] for row in got)


def test_all_that_an_order_says_besides_stays(tmp_path: Path, broker: Broker) -> None:
    """nack with a delay, given to the same client again; extend, then reject with a reason; by partition and offset."""
    story = Story()
    consumer(story, "worker")
    for number in range(3):
        story.publish("worker", "$queue/jobs", 1)
        story.delivered("worker", "$queue/jobs", 1, properties=told(f"0:{900 + number}"))
    for verb, message, *more in (("nack", "0:900", ("delay", "1")), ("extend", "0:901", ("lease", "60000")),
                                 ("reject", "0:901", ("reason", "poison"))):
        story.publish("worker", f"$queue/jobs/${verb}", 1, size=0, properties=told(message, *more))
    story.publish("worker", "$queue/jobs/$ack", 1, size=0, properties={
        "user_property": [["partition", "0"], ["offset", "902"]]})
    story.delivered("worker", "$queue/jobs", 1, properties=told("0:900"))
    story.publish("worker", "$queue/jobs/$ack", 1, size=0, properties=told("0:900"))
    summary, rows = replayed(tmp_path, broker, story)
    assert summary.complete
    orders = [(row["topic"].rpartition("/")[2], row["reason"]) for row in rows if row["event"] == "settlement"]
    assert sorted(orders) == [("$ack", 0), ("$ack", 0), ("$extend", 0), ("$nack", 0), ("$reject", 0)]
    assert summary.counts["delivery"] == 4


def test_an_order_about_what_the_recording_does_not_show_is_counted(tmp_path: Path, broker: Broker) -> None:
    story = Story()
    consumer(story, "worker")
    story.publish("worker", "$queue/jobs/$ack", 1, size=0, properties=told("0:1"))
    story.publish("worker", "$queue/jobs", 1)
    story.delivered("worker", "$queue/jobs", 1, properties=told("0:2"))
    story.publish("worker", "$queue/jobs/$ack", 1, size=0, properties=told("0:2"))
    summary, rows = replayed(tmp_path, broker, story)
    assert summary.complete
    assert [row["reason"] for row in rows if row["event"] == "settlement"] == [0]
    assert summary.not_replayed == {"settlements of messages whose delivery the recording does not show": 1}


def mixed() -> Story:
    """Names that come again on another connection and queue, redelivery, an order before any delivery."""
    story = work(3)
    story.publish("worker-0", "$queue/other/$nack", 1, size=0, properties=told("0:700000"))
    story.delivered("worker-0", "$queue/other/eu", 1, properties=told("0:700000"))
    story.delivered("worker-0", "$queue/other/eu", 1, properties=told("0:5"))
    story.delivered("worker-0", "$queue/other/eu", 1, properties=told("0:700000", ("delivery-count", "2")))
    story.publish("worker-0", "$queue/other/$ack", 1, size=0, properties=told("0:700000"))
    story.publish("worker-0", "$queue/other/$reject", 1, size=0)
    story.publish("pub", "$queue/other/$ack/more", 1, size=0)
    story.publish("pub", "$queue/jobs/$acks", 1, size=0)
    return story


def test_the_n_th_delivery_of_a_queue_is_named(tmp_path: Path) -> None:
    recording = open_recording(mixed().write(tmp_path / "r"))
    survey = plain_survey(recording)
    assert survey.settling == [1, 2, 3]
    assert survey.recorded == {"publish": MESSAGES + 2, "delivery": MESSAGES + 3, "settlement": MESSAGES + 3}
    _, (part,) = plain_plan(recording)
    rows = [row for batch in part for row in batch.filter(pc.field("kind") == COMMAND).to_pylist()]
    jobs = [row["rank"] for row in rows if row["client"] == "worker-1"]
    assert jobs == list(range(MESSAGES // 3))
    assert [row["rank"] for row in rows if "other" in row["topic"]] == [None, 2, None]


def test_spark_finds_the_same(tmp_path: Path, spark: SparkSession) -> None:
    from fluxmq.spark.replay.plan_spark import recorded_rows, spark_operations, spark_survey

    recording = open_recording(mixed().write(tmp_path / "r", rows_per_part=200))
    rows = recorded_rows(spark, recording)
    survey, plain = spark_survey(rows), plain_survey(recording)
    assert (survey.settling, survey.recorded) == (plain.settling, plain.recorded)
    plan, parts = plain_plan(recording, copies=2, partitions=2)
    assert plan_recording(survey, copies=2, partitions=2).places == plan.places
    found: list[Rows] = [[], []]
    operations = spark_operations(spark, rows, plan).selectExpr("spark_partition_id() as place", "*")
    for row in operations.toArrow().to_pylist():
        found[row.pop("place")].append(row)
    assert found == [[row for batch in part for row in batch.to_pylist()] for part in parts]


def test_recorded_and_replayed_stand_side_by_side() -> None:
    summary = Summary(recorded={"publish": 300, "delivery": 1300, "settlement": 300},
                      counts={"publish": 300, "delivery": 74, "settlement": 74})
    assert side_by_side(summary) == [
        "                       recorded replayed",
        "  publishes                 300      300",
        "  deliveries              1,300       74",
        "  settled in queues         300       74"]
    assert side_by_side(Summary()) == []


def test_a_line_says_what_the_broker_used() -> None:
    summary = Summary(cpu=[(1, 2.0), (2, 3.5)], memory=[(1, 80 << 20), (2, 120 << 20), (3, 100 << 20)])
    assert broker_used(summary) == [
        "the broker used 1.50 s on CPU, 120.0 MiB of memory max, 100.0 at the end"]
    assert broker_used(Summary()) == []
