"""The page of the benchmark gate: the verdict, the findings, each pair of what is gated, and the oldest baseline."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluxmq.spark.gate.judging import REGRESSED, Finding, Pair, Verdict
from fluxmq.spark.gate.report import TONES, findings_table
from fluxmq.spark.gate.text import summary
from fluxmq.spark.measures.measures import MEASURES
from fluxmq.spark.report.page import STYLES, Html, over_time, page, section, table
from fluxmq.spark.report.plot import Series

__all__ = ["gate_report"]

CANDIDATE = "checkout"
# of figures that no replay has
UNITS = {"cpu_per_connection_us": "µs", "bytes_per_connection": "bytes", "cpu_s": "s", "seconds": "s",
         "resident_bytes": "bytes"}


def gate_report(verdict: Verdict, pairs: Sequence[Pair], conditions: Mapping[str, str], since: Mapping[str, float],
                first: str, oldest: Verdict | None) -> str:
    """The whole page. conditions: what it was measured under. since: ratios to the commit `first`, the oldest baseline
    that is remembered; oldest: the verdict on it, where it was measured."""
    judged = [finding for finding in verdict.findings if finding.gated and finding.ratio is not None]
    told, tone = summary(verdict, CANDIDATE), TONES[verdict.status]
    if oldest is not None:
        told = f"{told}. Against {first[:12]}: {summary(oldest, CANDIDATE)}"
        if oldest.status == REGRESSED:
            tone = TONES[REGRESSED]
    return page(
        "benchmark gate", tone, told, section("Findings", findings_table(verdict, CANDIDATE)),
        section("Pair by pair", *[drawn(number, finding, pairs) for number, finding in enumerate(judged)]),
        section(f"Since {first[:12]}, the oldest baseline that is remembered", became(since),
                Html() if oldest is None else findings_table(oldest, CANDIDATE)),
        section("Conditions", table("What was measured, and under what", ("", ""), conditions.items(), "text")))


def drawn(number: int, finding: Finding, pairs: Sequence[Pair]) -> Html:
    """Both sides of a measure over the pairs, in the order in which they were measured."""
    name = finding.measure
    names = ("baseline", CANDIDATE)
    sides = [[(float(at), side.get(name)) for at, side in enumerate(values, 1) if side.get(name) is not None]
             for values in ([pair.baseline for pair in pairs], [pair.candidate for pair in pairs])]
    kind = name.rpartition("/")[2]
    unit = MEASURES[kind].unit if kind in MEASURES else UNITS.get(kind, "")
    return over_time(f"pairs-{number}", name, unit, [
        Series(*one) for one in zip(names, STYLES, sides, strict=True)], across="pair")


def became(since: Mapping[str, float]) -> Html:
    """The ratios of the moves and this one, multiplied."""
    rows = [(name, f"{ratio:.3f}") for name, ratio in since.items()]
    return table("By the ratios of bench/history, and this one's", ("measure", "ratio"), rows) if rows else Html()
