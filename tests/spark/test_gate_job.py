"""`fluxmq replay gate` and `compare`: results in, exit status, text, JSON and one HTML file out."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from kit.html import page_of
from kit.python import environment
from kit.results import START, connect, delivery, publish, random_rows, result_of

from fluxmq.spark.cli import replay
from fluxmq.spark.report.plot import Series, line_chart, ticks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMITS = """
measures:
  throughput: {better: higher, worse_by: 0.15}
  cpu_per_message_us: {better: lower, worse_by: 0.15}
  latency_p99_us: {better: lower, worse_by: 0.5}
  lost: {at_most: 0}
"""


def one(path: Path, *, slower: float = 1.0, lost: bool = False, cpu: bool = True, **summary: Any) -> str:
    """A result of 200 messages, 100 µs apart at the usual speed."""
    rows = [connect(1)]
    for op in range(200):
        rows.append(publish(0, op, 100 * op * slower))
        if not (lost and op == 7):
            rows.append(delivery(1, op, (100 * op + 30) * slower, 0, op))
    used = [(START, 0.0), (START + 10**9, 0.5 * slower)] if cpu else []
    held = [(START + second * 10**9, int(slower * (90 - second) * 2**20)) for second in range(2)] if cpu else []
    result_of(path, rows, cpu=used, memory=held, **summary)
    return str(path)


def gated(tmp_path: Path, baselines: list[str], candidates: list[str], *more: str) -> Result:
    limits = tmp_path / "limits.yaml"
    limits.write_text(LIMITS)
    words = ["gate", "--thresholds", str(limits), *more]
    for flag, names in (("--baseline", baselines), ("--candidate", candidates)):
        words += [word for name in names for word in (flag, name)]
    return CliRunner().invoke(replay, words, standalone_mode=False)


def test_a_pass_a_regression_and_noise(tmp_path: Path) -> None:
    before = [one(tmp_path / f"a{n}") for n in range(6)]
    same = gated(tmp_path, before, before)
    assert same.return_value == 0 and "pass: no regression outside noise" in same.output
    slow = [one(tmp_path / f"b{n}", slower=1 / 0.75) for n in range(6)]
    worse = gated(tmp_path, before, slow)
    assert worse.return_value == 1 and re.search(r"^throughput .* 0\.750 .* REGRESSION$", worse.output, re.MULTILINE)
    few = gated(tmp_path, before[:3], slow[:3])
    assert few.return_value == 0 and "too few pairs: 3" in few.output and "told from noise" in few.output


def test_a_loss_and_json(tmp_path: Path) -> None:
    before = [one(tmp_path / f"a{n}") for n in range(6)]
    verdict = gated(tmp_path, before, [*before[:5], one(tmp_path / "lossy", lost=True)], "--json")
    said = json.loads(verdict.output)
    assert verdict.return_value == said["status"] == 1
    assert {f["measure"]: f["outcome"] for f in said["findings"]} == {
        "throughput": "pass", "cpu_per_message_us": "pass", "latency_p99_us": "pass", "lost": "regression"}


def test_a_candidate_that_delivers_nothing(tmp_path: Path) -> None:
    """Its publishes, which are quick, are no throughput beside deliveries."""
    before = [one(tmp_path / f"a{n}") for n in range(6)]
    mute = [str(result_of(tmp_path / f"b{n}", [connect(1), *[publish(0, op, 10 * op) for op in range(200)]]).place.root)
            for n in range(6)]
    verdict = gated(tmp_path, before, mute)
    assert verdict.return_value == 1
    assert re.search(r"^throughput .* 0\.000 .* REGRESSION$", verdict.output, re.MULTILINE)
    assert gated(tmp_path, mute, mute).return_value == 0, "where nobody subscribes, publishes are what there is"
    shown = CliRunner().invoke(replay, ["compare", before[0], mute[0]], standalone_mode=False).output
    assert re.search(r"^Throughput .* 0 +0\.000$", shown, re.MULTILINE), shown


def test_what_cannot_be_judged_is_two(tmp_path: Path) -> None:
    """Never one: that would be a regression."""
    fine, partial = one(tmp_path / "a"), one(tmp_path / "p", complete=False, why="the broker went away")
    for baselines, candidates, said in [
            ([fine], [fine, fine], "1 results of the baseline and 2 of the candidate"),
            ([fine], [str(tmp_path / "none")], "is not a replay's result"),
            ([fine], [partial], "is a partial result: the broker went away")]:
        refused = gated(tmp_path, baselines, candidates)
        assert refused.return_value == 2 and said in refused.stderr and "Traceback" not in refused.output
    idle = str(result_of(tmp_path / "idle", [connect(1)]).place.root)
    unknown = gated(tmp_path, [idle] * 6, [idle] * 6)
    assert unknown.return_value == 0 and "not measured" in unknown.output      # lost is known, and none


def test_the_exit_status_of_the_process(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("measures: {}")
    command = [sys.executable, "-P", "-m", "fluxmq", "replay", "gate", "--baseline", "x", "--candidate", "y"]
    done = subprocess.run([*command, "--thresholds", str(limits)], capture_output=True, text=True, env=environment(),
                          timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.startswith("fluxmq: ") and len(done.stderr.splitlines()) == 1


def test_the_report_is_one_file(tmp_path: Path) -> None:
    a = one(tmp_path / "a", broker={"name": "FluxMQ", "version": "0.1.0"}, options={"speed": None, "copies": 2})
    b = one(tmp_path / "<b>", slower=2, lost=True, complete=False, why="the broker <went> away\x1b[2J")
    out = tmp_path / "report.html"
    done = CliRunner().invoke(replay, ["compare", a, b, "--out", str(out)], standalone_mode=False)
    assert done.exception is None
    assert re.search(r"Throughput \(messages/s\) +10,0\d\d +4,9\d\d +0\.49\d", done.output)
    assert re.search(r"Lost \(messages\) +0 +1 +- +must be 0", done.output)
    assert re.search(r"Broker memory, max \(MiB\) +90 +180 +2.000", done.output)
    assert "(partial: the broker <went> away\\x1b[2J)" in done.output
    text = out.read_text()
    page = page_of(text)
    assert page.tags.count("svg") == 9 and page.tags.count("table") == 10 and page.verdict[0] == "bad"
    assert re.search("^A: complete; no message lost, .* B: partial: the broker <went> away.*; lost 1$", page.verdict[1])
    assert "FluxMQ 0.1.0" in text and "copies 2" in text


def test_the_report_of_results_without_cpu_or_deliveries(tmp_path: Path) -> None:
    a, out = one(tmp_path / "a", cpu=False), tmp_path / "report.html"
    b = str(result_of(tmp_path / "b", []).place.root)
    done = CliRunner().invoke(replay, ["compare", a, b, "--out", str(out)], standalone_mode=False)
    assert done.exception is None and "Not measured." in out.read_text()
    assert page_of(out.read_text()).verdict[0] == "good"
    nowhere = CliRunner().invoke(replay, ["compare", a, a, "--out", str(tmp_path / "no" / "r.html")],
                                 standalone_mode=False)
    assert "cannot be written: there is no directory" in str(nowhere.exception)


def test_both_engines_make_one_report(tmp_path: Path, spark: SparkSession) -> None:
    names = [str(result_of(tmp_path / f"r{seed}", random_rows(seed), cpu=[(START, 0), (START + 10**8, 0.1)]).place.root)
             for seed in (7, 8)]
    pages = []
    for engine in ("plain", "spark"):
        out = tmp_path / f"{engine}.html"
        words = ["compare", *names, "--engine", engine, "--html", str(out)]
        assert CliRunner().invoke(replay, words, standalone_mode=False).exception is None
        pages.append(out.read_text())
    assert pages[0] == pages[1]


@pytest.mark.parametrize(("low", "high", "expected"), [
    (0, 10, [0, 2, 4, 6, 8, 10]), (0, 0.7, [0, 0.2, 0.4, 0.6, 0.8]), (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    (0, 123456, [0, 50_000, 100_000, 150_000]), (-3, 3, [-4, -2, 0, 2, 4])])
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_line_breaks_where_nothing_is_known() -> None:
    drawn = line_chart("i", "t & u", "s", "µs", [Series("A", "a", [(0, 1), (1, 2), (2, None), (3, 4)])])
    assert drawn.count("<polyline") == 1 and drawn.count("<circle") == 1 and "t &amp; u" in drawn
    assert "A: from 1 to 4 µs" in drawn
    assert line_chart("i", "t", "s", "µs", [Series("A", "a", [(0, None)])]) == "<p>Not measured.</p>"
