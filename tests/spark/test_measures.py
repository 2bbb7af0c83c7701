"""The measures of a result: by hand what they come to, and that both engines say the same."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit.results import START, connect, delivery, publish, random_rows, result_of, subscribe

from fluxmq.spark.measures.measures import MEASURES, Measures, measure
from fluxmq.spark.measures.measures_spark import measure_with_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def measured(tmp_path: Path, rows: list[dict[str, Any]], **summary: Any) -> Measures:
    return measure(result_of(tmp_path / "result", rows, **summary))


def test_rates_latency_and_cpu(tmp_path: Path) -> None:
    """Ten publishes, 100 µs apart, each delivered to two clients after 10 and 20 µs; half a processor used."""
    rows = [connect(1), connect(2)]
    for op in range(10):
        rows += [publish(0, op, 100 * op, due=100 * op - 7), delivery(1, op, 100 * op + 10, 0, op),
                 delivery(2, op, 100 * op + 20, 0, op)]
    cpu = [(START - 460_000, 1.0), (START + 920_000 + 460_000, 1.00092)]
    memory = [(START, 3 << 20), (START + 10**9, 9 << 20), (START + 2 * 10**9, 5 << 20)]
    found = measured(tmp_path, rows, cpu=cpu, memory=memory)
    assert found.values == {
        "throughput": pytest.approx(20 / 920e-6), "latency_p50_us": 10, "latency_p90_us": 20, "latency_p99_us": 20,
        "latency_p99_9_us": 20, "cpu_per_message_us": pytest.approx(0.00046 * 1e6 / 20),
        "memory_peak_mib": 9, "memory_end_mib": 5, "lost": 0, "duplicates": 0,
        "order_violations": 0, "unanswered": 0, "published": 10, "delivered": 20, "late_p99_us": 7,
        "window_s": pytest.approx(920e-6)}
    assert set(found.values) == set(MEASURES)
    assert found.cpu == [(pytest.approx(1.38e-3), pytest.approx(0.5))]
    assert found.memory == [(0, 3), (1, 9), (2, 5)]
    assert [(b.second, b.published, b.delivered) for b in found.buckets] == [(0, 10, 20)]


def test_percentiles_over_time(tmp_path: Path) -> None:
    """The second half is ten times slower, and the buckets say when."""
    rows = [connect(1)]
    for op in range(600):
        rows += [publish(0, op, 1000 * op), delivery(1, op, 1000 * op + (10 if op < 300 else 100), 0, op)]
    found = measured(tmp_path, rows)
    assert len(found.buckets) == 60 and sum(b.published for b in found.buckets) == 600
    assert {b.latency["p50"] for b in found.buckets[:30]} == {10}
    assert {b.latency["p50"] for b in found.buckets[31:]} == {100}


def test_what_is_lost(tmp_path: Path) -> None:
    """3 and 4 are missing between what came; 0 and 10 are before and after what the connection can be known to want; 6
    was never acknowledged, 7 was refused and 8 was QoS 0."""
    rows = [connect(1), subscribe(1, "t")]
    rows += [publish(0, op, op) for op in (0, 1, 2, 3, 4, 5, 9, 10)]
    rows += [publish(0, 6, 6, acked=None), publish(0, 7, 7, reason=151), publish(0, 8, 8, qos=0)]
    rows += [delivery(1, number, 20 + number, 0, op) for number, op in enumerate((1, 2, 5, 9))]
    assert measured(tmp_path, rows).values["lost"] == 2


@pytest.mark.parametrize("topic", ["$share/g/t", "$queue/t"])
def test_who_shares_loses_nothing(tmp_path: Path, topic: str) -> None:
    rows = [subscribe(1, topic), *(publish(0, op, op) for op in range(5))]
    rows += [delivery(1, 0, 9, 0, 0), delivery(1, 1, 9, 0, 4)]
    assert measured(tmp_path, rows).values["lost"] == 0


def test_duplicates_and_order(tmp_path: Path) -> None:
    rows = [publish(0, op, op) for op in range(6)]
    order = [0, 2, 1, 1, 3, 5, 4]
    rows += [delivery(1, number, 10 + number, 0, op) for number, op in enumerate(order)]
    rows += [delivery(1, 7, 20, 0, 0, dup=True), delivery(1, 8, 20, 0, 0, retain=True)]
    rows += [delivery(2, 0, 20, 0, 5), delivery(2, 1, 20, 0, 4, qos=0), delivery(2, 2, 20, 0, 3, connection=1)]
    found = measured(tmp_path, rows).values
    assert (found["duplicates"], found["order_violations"], found["delivered"]) == (1, 2, 9)


def test_latency_leaves_out_what_waited_for_its_client(tmp_path: Path) -> None:
    rows = [publish(0, 0, 0), publish(0, 1, 500), connect(1, 0), connect(1, 400, connection=1),
            delivery(1, 0, 450, 0, 0, connection=1), delivery(1, 1, 501, 0, 1, connection=1),
            delivery(1, 2, 600, 0, 0, connection=1, dup=True), delivery(1, 3, 600, None, None)]
    found = measured(tmp_path, rows).values
    assert (found["latency_p50_us"], found["latency_p99_us"], found["delivered"]) == (1, 1, 2)


def test_latency_from_a_queue_counts_from_when_it_could_be_delivered(tmp_path: Path) -> None:
    """Published at 0; the consumer came at 400, and had room at 900: 5 and 7 µs are the broker's. The third was
    published later than it could have been delivered."""
    rows = [connect(1, 300), publish(0, 0, 0), publish(0, 1, 0), publish(0, 2, 950)]
    rows += [delivery(1, number, sent, 0, number, due=due, topic="$queue/q")
             for number, (sent, due) in enumerate(((405, 400), (907, 900), (959, 910)))]
    found = measured(tmp_path, rows).values
    assert (found["latency_p50_us"], found["latency_p99_us"], found["delivered"]) == (7, 9, 3)


def test_nothing_to_measure(tmp_path: Path) -> None:
    found = measured(tmp_path, [connect(1)])
    assert found.values["throughput"] is None and found.values["latency_p50_us"] is None and found.buckets == []
    assert measure(result_of(tmp_path / "none", [])).values["published"] == 0


def test_publishing_alone_is_throughput_too(tmp_path: Path) -> None:
    found = measured(tmp_path, [publish(0, 0, 0), publish(0, 1, 1000, acked=None)]).values
    assert found["throughput"] == pytest.approx(2000) and found["unanswered"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_both_engines_say_the_same(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    result = result_of(tmp_path / "result", random_rows(seed), cpu=[(START, 0.0), (START + 10**9, 0.25)],
                       memory=[(START, 9 << 20), (START + 10**9, 7 << 20)])
    plain, with_spark = measure(result), measure_with_spark(result, spark)
    assert plain == with_spark
    assert all(plain.values[name] for name in ("lost", "duplicates", "order_violations", "unanswered", "late_p99_us"))


def test_an_empty_result_with_spark(tmp_path: Path, spark: SparkSession) -> None:
    for name, rows in (("empty", []), ("idle", [connect(1)]), ("sent", [publish(0, 0, 5), publish(0, 1, 9)])):
        result = result_of(tmp_path / name, rows)
        assert measure_with_spark(result, spark) == measure(result)
