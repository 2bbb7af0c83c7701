"""The statistics of the gate, on data whose truth is known; and the thresholds file.

Simulations are seeded, so that each of these says the same every time. What a rate is held against is the level that
the interval promises, with the chance of the simulation itself added (three of its standard deviations).
"""
from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxmq.spark.gate.judging import (
    GateError,
    Pair,
    Threshold,
    Thresholds,
    interval,
    judge,
    load_thresholds,
    pairs_needed,
)

RATE = "throughput"
COST = "cpu_per_message_us"
WORSE_BY = 0.15
Noise = Callable[[random.Random], float]


def thresholds() -> Thresholds:
    return Thresholds(resamples=300, measures={
        RATE: Threshold(better="higher", worse_by=WORSE_BY), COST: Threshold(better="lower", worse_by=WORSE_BY)})


def steady(chance: random.Random) -> float:
    """A few percent, as on a machine of one's own."""
    return chance.lognormvariate(0, 0.04)


def disturbed(chance: random.Random) -> float:
    """A neighbour: one run in eight is up to three times slower."""
    return chance.lognormvariate(0, 0.06) * (chance.uniform(1.3, 3) if chance.random() < 0.125 else 1)


def wild(chance: random.Random) -> float:
    return chance.lognormvariate(0, 0.5)


def simulated(chance: random.Random, count: int, noise: Noise, slower: float = 1.0) -> list[Pair]:
    """Pairs of runs: cost is `slower` times the baseline's, and rate is its inverse; the machine drifts under both."""
    pairs = []
    for _ in range(count):
        drift = chance.uniform(0.7, 1.4)
        before, after = drift * noise(chance), drift * slower * noise(chance)
        pairs.append(Pair({RATE: 1e6 / before, COST: before}, {RATE: 1e6 / after, COST: after}))
    return pairs


def rate_of(outcome: str, trials: int, count: int, noise: Noise, slower: float = 1.0) -> float:
    chance = random.Random(f"{outcome} {count} {noise.__name__} {slower}")
    limits = thresholds()
    return statistics.fmean(judge(simulated(chance, count, noise, slower), limits).outcome == outcome
                            for _ in range(trials))


@pytest.mark.parametrize("count", [7, 9, 12])
def test_a_slowdown_of_a_quarter_fails(count: int) -> None:
    """25 % fewer messages a second are 33 % more time for each."""
    assert rate_of("regression", 200, count, steady, 1 / 0.75) >= 0.97


@pytest.mark.parametrize("noise", [steady, disturbed, wild])
@pytest.mark.parametrize("count", [6, 9, 15])
def test_no_difference_is_no_regression(count: int, noise: Noise) -> None:
    level = (1 - 0.95) / 2 * 2          # two measures, each at its level
    assert rate_of("regression", 400, count, noise) <= level


@pytest.mark.parametrize("noise", [steady, disturbed, wild])
@pytest.mark.parametrize("count", [6, 8, 9, 12])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_level_holds_where_it_is_hardest(count: int, noise: Noise, confidence: float) -> None:
    """A candidate that is exactly as much slower as it may be: the sign of each ratio against the limit is a coin."""
    trials, level = 600, (1 - confidence) / 2
    chance = random.Random(f"{count} {noise.__name__}")
    limits = Thresholds(confidence=confidence, resamples=200, measures={COST: Threshold(better="lower", worse_by=0.15)})
    found = statistics.fmean(judge(simulated(chance, count, noise, 1.15), limits).outcome == "regression"
                             for _ in range(trials))
    assert found <= level + 3 * math.sqrt(level * (1 - level) / trials)


@pytest.mark.parametrize("noise", [steady, wild])
def test_too_few_pairs_are_noise(noise: Noise) -> None:
    for count in range(1, pairs_needed(0.95)):
        verdict = judge(simulated(random.Random(count), count, noise, 3.0), thresholds())
        assert verdict.outcome == "noise" and verdict.status == 2       # nothing was proved
        assert f"too few pairs: {count}, and 95% confidence needs 6" in verdict.findings[0].why


def test_pairs_that_are_too_noisy_are_noise() -> None:
    """A quarter slower under noise of a half: neither passed nor failed by luck."""
    assert rate_of("noise", 200, 7, wild, 1 / 0.75) >= 0.8


def test_pairs_needed() -> None:
    assert [pairs_needed(c) for c in (0.5, 0.8, 0.9, 0.95, 0.99)] == [2, 4, 5, 6, 8]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=25), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]),
       st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_an_interval_is_around_the_median(values: list[float], confidence: float, seed: int) -> None:
    bounds = interval(values, confidence, 200, random.Random(seed))
    if len(values) < pairs_needed(confidence):
        assert bounds is None
        return
    assert bounds is not None
    low, high = bounds
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)
    assert bounds == interval(values[::-1], confidence, 200, random.Random(seed))


pairs_of_ratios = st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=6, max_size=12)


@given(pairs_of_ratios, st.floats(1.0, 4.0))
@settings(max_examples=60, deadline=None)
def test_worse_figures_never_make_a_better_verdict(runs: list[tuple[float, float]], factor: float) -> None:
    order = ["pass", "noise", "regression"]
    limits = Thresholds(resamples=200, measures={COST: Threshold(better="lower", worse_by=0.15)})
    before = judge([Pair({COST: a}, {COST: b}) for a, b in runs], limits).outcome
    after = judge([Pair({COST: a}, {COST: b * factor}) for a, b in runs], limits).outcome
    assert order.index(after) >= order.index(before)


@given(pairs_of_ratios, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_other_measures_matter(runs: list[tuple[float, float]], chance: random.Random) -> None:
    limits = thresholds()
    alone = judge([Pair({COST: a}, {COST: b}) for a, b in runs], limits)
    pairs = [Pair({RATE: b, COST: a, "other": 1}, {RATE: a, COST: b}) for a, b in runs]
    chance.shuffle(pairs)
    assert [f for f in judge(pairs, limits).findings if f.measure == COST] == [
        f for f in alone.findings if f.measure == COST]


def test_directions() -> None:
    fine = judge([Pair({RATE: 100, COST: 1}, {RATE: 200, COST: 0.5})] * 6, thresholds())
    assert [f.outcome for f in fine.findings] == ["pass", "pass"] and fine.status == 0
    bad = judge([Pair({RATE: 100, COST: 1}, {RATE: 80, COST: 1.2})] * 6, thresholds())
    assert [f.outcome for f in bad.findings] == ["regression", "regression"] and bad.status == 1
    within = judge([Pair({RATE: 100, COST: 1}, {RATE: 86, COST: 1.14})] * 6, thresholds())
    assert within.outcome == "pass"


def test_a_bound_holds_for_every_run_and_excuses_nobody() -> None:
    limits = Thresholds(measures={"lost": Threshold(at_most=0)})
    pairs = [Pair({"lost": 5}, {"lost": 0})] * 6
    assert judge(pairs, limits).status == 0
    worse = judge([*pairs, Pair({"lost": 5}, {"lost": 1})], limits)
    assert worse.status == 1 and worse.findings[0].why == "above 0 in 1 of 7 runs"


def test_nothing_to_judge() -> None:
    limits = thresholds()
    for pairs in ([], [Pair({}, {})], [Pair({RATE: None, COST: 0}, {RATE: 5, COST: 5})],
                  [Pair({"other": 1}, {"other": 1})]):
        verdict = judge(pairs, limits)
        assert verdict.status == 2 and verdict.outcome == "nothing" and len(verdict.findings) == 2
    assert judge([Pair({COST: 1}, {COST: math.inf})], limits).status == 2


def test_what_is_only_shown_does_not_fail() -> None:
    limits = Thresholds(measures={COST: Threshold(better="lower", worse_by=0.1),
                                  "p99": Threshold(better="lower", worse_by=0.1, gate=False)})
    verdict = judge([Pair({COST: 1, "p99": 1}, {COST: 1, "p99": 9})] * 6, limits)
    assert [f.outcome for f in verdict.findings] == ["pass", "regression"] and verdict.status == 0
    assert verdict.as_json()["findings"][1]["gated"] is False


def test_a_measure_with_a_confidence_of_its_own() -> None:
    """One good pair of eight: an interval at 0.9 leaves it out, one at 0.99 does not."""
    limits = Thresholds(confidence=0.9, measures={
        COST: Threshold(better="lower", worse_by=0.1), RATE: Threshold(better="lower", worse_by=0.1, confidence=0.99)})
    pairs = [Pair({COST: 1, RATE: 1}, {COST: 1.3, RATE: 1.3})] * 7 + [Pair({COST: 1, RATE: 1}, {COST: 1, RATE: 1})]
    assert [f.outcome for f in judge(pairs, limits).findings] == ["regression", "noise"]


def test_the_first_pattern_that_fits() -> None:
    limits = Thresholds(measures={"a/cpu": Threshold(better="lower", worse_by=0.5),
                                  "*/cpu": Threshold(better="lower", worse_by=0.1)})
    verdict = judge([Pair({"a/cpu": 1, "b/cpu": 1}, {"a/cpu": 1.3, "b/cpu": 1.3})] * 6, limits)
    assert {f.measure: f.outcome for f in verdict.findings} == {"a/cpu": "pass", "b/cpu": "regression"}


GOOD = """
version: 1
confidence: 0.9
measures:
  throughput: {better: higher, worse_by: 0.15}
  "*/latency_p99_us": {better: lower, worse_by: 0.5, gate: false}
  lost: {at_most: 0}
"""


def test_a_thresholds_file(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(GOOD)
    found = load_thresholds(path)
    assert found.confidence == 0.9 and found.measures["throughput"].limit == 0.85
    assert found.of("x/latency_p99_us") == Threshold(better="lower", worse_by=0.5, gate=False)
    assert found.of("unknown") is None


@pytest.mark.parametrize(("text", "said"), [
    ("measures: {a: {better: up, worse_by: 0.1}}", "line 1: measures.a.better: invalid enum value 'up'"),
    ("version: 1\nmeasures:\n  a:\n    at_most: 0\n    better: up", "line 5: measures.a.better: invalid enum value"),
    ("measures: {a: {better: higher, worse_by: 15%}}", "line 1: measures.a.worse_by: expected `float | null`"),
    ("measures: {a: {better: higher}}", "measures.a: give either `better`"),
    ("measures: {a: {at_most: 0, better: lower, worse_by: 0.1}}", "measures.a: give either `better`"),
    ("measures: {a: {}}", "measures.a: give either `better`"),
    ("measures: {a: {better: higher, worse_by: 2}}", "can become worse by less than 1"),
    ("measures: {a: {better: lower, worse_by: -1}}", "expected `float` > 0"),
    ("measures:\n  a: {at_most: 0,\n      gates: false}", "line 3: measures.a.gates: there is no such key; did you"),
    ("measures: {a: {limit: 0}}", "line 1: measures.a.limit: there is no such key; there are better, worse_by"),
    ("measures: {a: 7}", "line 1: measures.a: expected `object`, got `int`"),
    ("measures:\n  a: {at_most: 0}\nmeasure: {}", "line 3: measure: there is no such key; did you mean measures?"),
    ("7: 1\nmeasures: {a: {at_most: 0}}", "line 1: 7: there is no such key; there are version, confidence, "),
    ("measures: {}", "length >= 1"),
    ("confidence: 1.5\nmeasures: {a: {at_most: 0}}", "Expected `float` < 1"),
    ("version: 2\nmeasures: {a: {at_most: 0}}", "line 1: version 2 is not known here"),
    ("measures: {a: {at_most: .nan}}", "measures.a: at_most nan bounds nothing"),
    ("measures: [", "is not YAML"),
    ("", "Expected `object`, got `null`"),
])
def test_what_is_wrong_with_a_thresholds_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(GateError) as caught:
        load_thresholds(path)
    assert said in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_no_thresholds_file(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(GateError, match="are not text in UTF-8"):
        load_thresholds(tmp_path / "image.png")
    with pytest.raises(GateError, match="cannot be read: No such file"):
        load_thresholds(tmp_path / "none.yaml")


# ── the limits of the benchmark gate (bench/gate) ────────────────────────────────────────────────────────────

GATE = Path(__file__).parents[2] / "bench" / "gate"
NORMAL, LONG = "thresholds.yaml", "thresholds-long.yaml"
CPU = "row/cpu_per_message_us"


def quiet(chance: random.Random) -> float:
    """Of fresh processes on a machine that does little else: what the memory's place is worth (bench/README.md)."""
    return chance.lognormvariate(0, 0.03)


def found(name: str, pairs: int, noise: Noise, slower: float, trials: int = 150) -> float:
    """How often the gate calls so much more CPU per message a regression."""
    chance = random.Random(f"{name} {pairs} {noise.__name__} {slower}")
    limits = msgspec.structs.replace(load_thresholds(GATE / name), resamples=300)       # for the test's sake: quicker
    runs = ([Pair({CPU: one.baseline[COST]}, {CPU: one.candidate[COST]})
             for one in simulated(chance, pairs, noise, slower)] for _ in range(trials))
    return statistics.fmean(judge(run, limits).status == 1 for run in runs)


@pytest.mark.parametrize(("name", "pairs", "slower"), [(NORMAL, 16, 1.10), (LONG, 80, 1.05)])
def test_what_the_benchmark_gate_promises_to_find(name: str, pairs: int, slower: float) -> None:
    assert found(name, pairs, quiet, slower) >= 0.9


@pytest.mark.parametrize("noise", [quiet, disturbed])
@pytest.mark.parametrize(("name", "pairs"), [(NORMAL, 8), (NORMAL, 16), (LONG, 80)])
def test_the_benchmark_gate_finds_nothing_where_nothing_is(name: str, pairs: int, noise: Noise) -> None:
    assert found(name, pairs, noise, 1.0, trials=100) == 0


def test_rows_have_the_pairs_that_their_promise_needs() -> None:
    rows = pytest.importorskip("fluxmq.bench.gate.rows").ROWS
    gate = pytest.importorskip("fluxmq.bench.gate.__main__")
    quiet_rows = {row.key: row.times for row in rows if row.times > 1}
    assert quiet_rows.keys() == {"qos0", "qos1-pairs", "queue", "amqp"}
    assert {gate.ROUNDS * times for times in quiet_rows.values()} == {16}
    assert {gate.ROUNDS_LONG * times for times in quiet_rows.values()} == {80}
