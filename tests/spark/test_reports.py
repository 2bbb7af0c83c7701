"""Reports in HTML: what stands in them, and that a recording's names are text in them and nothing else."""
from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kit.html import Page, page_of
from kit.results import START, connect, delivery, publish, random_rows, result_of

from fluxmq.spark.cli import replay
from fluxmq.spark.measures.breakdown import PARTS_MAX, breakdown, breakdown_with_spark
from fluxmq.spark.measures.buckets import bucket_edge, bucket_of, bucket_sql, bucketed
from fluxmq.spark.report.page import Spread, distribution, duration
from fluxmq.spark.report.plot import Series, decades, line_chart
from fluxmq.spark.report.report import NOTHING_WRONG
from fluxmq.spark.report.text import with_unit
from fluxmq.spark.result import Result, open_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J\u202e"
SHOWN = "<script>alert(1)</script>\"'&\\x1b[2J\\u202e"


def page_made(tmp_path: Path, *words: str, status: int | None = None) -> Page:
    out = tmp_path / "report.html"
    done = CliRunner().invoke(replay, [*words, "--html", str(out)], standalone_mode=False)
    assert done.exception is None and done.return_value == status, done.exception
    assert f"The report with its plots: {out}" in done.output
    return page_of(out.read_text())


def spoken(rows: list[dict[str, Any]], **versions: int | None) -> list[dict[str, Any]]:
    """With the version of the protocol in the clients' connects."""
    for row in rows:
        if row["event"] == "connect" and versions.get(row["client"]) is not None:
            row["detail"] = json.dumps({"version": versions[row["client"]]})
    return rows


def hostile(path: Path, **summary: Any) -> Result:
    rows = spoken([connect(0), connect(1), connect(2)], c0=5, c1=91)
    for op in range(10):
        rows += [publish(0, op, 100 * op, topic=HOSTILE, client=HOSTILE),
                 delivery(1, op, 100 * op + 10 * 2**op, 0, op, topic=HOSTILE),
                 delivery(2, op, 100 * op + 5, 0, op, topic="plain", qos=0)]
    return result_of(path, rows, cpu=[(START, 0.0), (START + 10**9, 0.5)],
                     memory=[(START, 70 << 20), (START + 10**9, 50 << 20)],
                     **{"recording": {"path": HOSTILE}, "broker": {"name": HOSTILE}} | summary)


def test_the_report_of_a_result(tmp_path: Path) -> None:
    hostile(tmp_path / "r", recorded={"publish": 10, "delivery": 21}, counts={"publish": 10, "delivery": 20},
            not_replayed={HOSTILE: 3})
    page = page_made(tmp_path, "show", str(tmp_path / "r"))
    assert page.verdict == ("good", f"Complete; {NOTHING_WRONG}")
    assert page.tables["By topic"][1:] == [
        [SHOWN, "10", "10", "160 µs", "5.12 ms"], ["plain", "0", "10", "5 µs", "5 µs"]]
    assert page.tables["By client"][1][0] == SHOWN and page.tables["By client"][2][:3] == ["c1", "0", "10"]
    assert [row[:3] for row in page.tables["By protocol"][1:]] == [
        ["AMQP 0-9-1", "0", "10"], ["MQTT 5.0", "10", "0"], ["not known", "0", "10"]]
    assert [row[:3] for row in page.tables["By QoS"][1:]] == [["1", "10", "10"], ["0", "0", "10"]]
    assert ["deliveries", "21", "20"] in page.tables["What the recording has, and what came of it"]
    assert sum(int(row[1]) for row in page.tables["Latency"][1:]) == 20 and page.tables["Latency"][-1][-1] == "100 %"
    assert "Latency, histogram" in page.text and "Latency, cumulative" in page.text
    assert ["Broker memory, max (MiB)", "70"] in [row[:2] for row in page.tables["All measures"]]
    assert page.tables["Broker memory over time, MiB"][1:] == [["1", "0.000", "70"], ["2", "1.000", "50"]]
    assert ["Recording", f"path {SHOWN}"] in page.tables["What was measured, and under what"]


def test_the_verdict_names_what_is_wrong(tmp_path: Path) -> None:
    hostile(tmp_path / "r", complete=False, why=HOSTILE)
    assert page_made(tmp_path, "show", str(tmp_path / "r")).verdict == (
        "open", f"Partial: {SHOWN}; {NOTHING_WRONG}")
    result_of(tmp_path / "twice", [connect(1), publish(0, 0, 0), *[delivery(1, op, 9 + op, 0, 0) for op in range(2)]])
    assert page_made(tmp_path, "show", str(tmp_path / "twice")).verdict == ("bad", "Complete; duplicates 1")
    result_of(tmp_path / "none", [])
    assert "Not measured." in page_made(tmp_path, "show", str(tmp_path / "none")).text


def test_only_the_busiest_are_named(tmp_path: Path) -> None:
    rows = [publish(0, op, op, topic=f"t/{op % 40}") for op in range(50)]
    result_of(tmp_path / "r", rows)
    page = page_made(tmp_path, "show", str(tmp_path / "r"))
    shown = page.tables[f"By topic: the {PARTS_MAX} with the most messages of 40"][1:]
    assert len(shown) == PARTS_MAX and [row[1] for row in shown] == ["2"] * 10 + ["1"] * 15


def test_the_place_is_looked_at_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("it began to work")

    monkeypatch.setattr("fluxmq.spark.report.show.open_result", opened)
    done = CliRunner().invoke(replay, ["show", "r", "--html", str(tmp_path / "no" / "r.html")], standalone_mode=False)
    assert str(done.exception).endswith(f"r.html cannot be written: there is no directory {tmp_path / 'no'}")


@pytest.mark.parametrize("seed", [5, 6])
def test_both_engines_break_down_alike(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    rows = spoken(random_rows(seed), c0=5, c1=4, c2=91, c3=4, c4=77)
    result = result_of(tmp_path / "r", rows)
    assert breakdown(result) == breakdown_with_spark(open_result(tmp_path / "r"), spark)
    assert len(breakdown(result).parts["client"]) == 6 and len(breakdown(result).parts["protocol"]) == 4


def test_buckets(spark: SparkSession) -> None:
    chance = random.Random(1)
    edges = [10**power + more for power in range(14) for more in (-1, 0, 1)]
    values = sorted([*edges, -5, *[int(10 ** chance.uniform(0, 13)) for _ in range(500)]])
    counted = bucketed(values)
    assert sum(counted.values()) == len(values) and counted == {
        number: sum(bucket_of(value) == number for value in values) for number in map(bucket_of, values)}
    for value in values:
        assert value < 1 or bucket_edge(bucket_of(value)) <= value < bucket_edge(bucket_of(value) + 1), value
    rows = spark.createDataFrame([(value,) for value in values], "v bigint").selectExpr("v", f"{bucket_sql('v')} AS n")
    assert {row["v"]: row["n"] for row in rows.collect()} == {value: bucket_of(value) for value in values}


def test_a_logarithmic_axis() -> None:
    assert decades(1, 1000) == pytest.approx([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000])
    assert decades(300, 3e7) == pytest.approx([10.0**power for power in range(2, 9)])
    assert decades(10, 10) == pytest.approx([10, 20, 50, 100])
    drawn = line_chart("i", "t", "", "%", [Series("", "a", [(0, 1), (10, 1), (100, 1), (1000, 1)])], across=duration)
    places = [float(place.split(",")[0]) for place in drawn.split('points="')[1].split('"')[0].split()]
    assert places[0] == places[1], "nought stands at the left end"
    assert math.isclose(places[2] - places[1], places[3] - places[2], abs_tol=0.11)
    assert ">10 ns<" in drawn and 'text-anchor="end">1 µs<' in drawn


def test_a_distribution_adds_up() -> None:
    drawn = distribution("i", "T", [Spread("A", "a", {-1: 1, 3: 2, 30: 1}, 1000), Spread("B", "b", {})], duration)
    assert "A: 0 ns to 1 µs" in drawn and "25 %" in drawn and "75 %" in drawn and "B: not measured" in drawn


LIMITS = """
measures:
  throughput: {better: higher, worse_by: 0.15}
  lost: {at_most: 0}
"""


def test_the_report_of_the_gate(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS)
    words = ["gate", "--thresholds", str(limits)]
    for number in range(6):
        for side, factor in (("baseline", 1), ("candidate", 2)):
            rows = [connect(1)]
            for op in range(20):
                rows += [publish(0, op, 100 * op * factor), delivery(1, op, 100 * op * factor + 30, 0, op)]
            result_of(tmp_path / f"{side}{number}", rows, broker={"name": HOSTILE})
            words += [f"--{side}", str(tmp_path / f"{side}{number}")]
    page = page_made(tmp_path, *words, status=1)
    assert page.verdict == ("bad", "regression: the candidate is worse than it may be")
    found = next(rows for caption, rows in page.tables.items() if caption.startswith("Every measure"))
    assert [(row[0], row[-1]) for row in found[1:]] == [("throughput", "REGRESSION"), ("lost", "pass")]
    assert [row[:2] for row in page.tables["Latency"][1:]] == [
        ["baseline: 25.1 µs to 31.6 µs", "120"], ["candidate: 25.1 µs to 31.6 µs", "120"]]
    assert ["Broker", *[SHOWN] * 12] in page.tables["What was measured, and under what"]
    refused = CliRunner().invoke(replay, [*words, "--html", str(tmp_path / "no" / "r.html")], standalone_mode=False)
    assert refused.return_value == 2 and "there is no directory" in refused.stderr
    lost = CliRunner().invoke(replay, [*words, "--html", "/dev/full"], standalone_mode=False)
    assert lost.return_value == 1 and "No space left on device" in lost.stderr, "a regression stays one"


@pytest.mark.parametrize(("value", "unit", "text"), [
    (62_000, "µs", "62 ms"), (999.4, "µs", "999 µs"), (0, "µs", "0 µs"), (5120, "µs", "5.12 ms"),
    (2.5e6, "µs", "2.5 s"),
    (62_000, "messages/s", "62 k messages/s"), (None, "µs", "- µs")])
def test_times_have_the_unit_that_makes_them_short(value: float | None, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text
