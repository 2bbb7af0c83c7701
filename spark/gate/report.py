"""The page of `replay gate`: the verdict, the table of findings, and both sides' latencies over each other."""
from __future__ import annotations

from collections.abc import Sequence

from fluxmq.spark.gate.judging import Finding, Verdict
from fluxmq.spark.gate.text import HEADER, line, summary
from fluxmq.spark.report.page import Html, Tone, bad, page, section, table
from fluxmq.spark.report.report import Side, conditions, latency

__all__ = ["TONES", "findings_table", "gate_page"]

TONES: dict[int, Tone] = {0: "good", 1: "bad", 2: "open"}


def _cells(finding: Finding) -> list[str]:
    """A row of the terminal's table, with regressions highlighted."""
    *cells, said = line(finding)
    return [*cells, bad(said) if finding.outcome == "regression" and finding.gated else said]


def findings_table(verdict: Verdict, candidate: str) -> Html:
    """candidate: name of the candidate."""
    header = [cell.format(candidate) for cell in HEADER]
    caption = "Every measure: medians, the median of the ratios with its interval, and what is allowed"
    return table(caption, [*header[:-1], "verdict"], map(_cells, verdict.findings)) if verdict.findings else Html()


def gate_page(verdict: Verdict, baselines: Sequence[Side], candidates: Sequence[Side]) -> str:
    """The whole page. The first candidate was compared with the first baseline, and so on."""
    numbered = [f"{name} {number}" for name, sides in (("baseline", baselines), ("candidate", candidates))
                for number, _ in enumerate(sides, 1)]
    return page(f"gate, {len(candidates)} pairs", TONES[verdict.status], summary(verdict, "candidate"),
                section("Findings", findings_table(verdict, "candidate")),
                latency([("baseline", [side.measures for side in baselines]),
                         ("candidate", [side.measures for side in candidates])]),
                conditions([*baselines, *candidates], numbered))
