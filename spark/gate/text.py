"""A verdict as text for a terminal."""
from __future__ import annotations

from fluxmq.spark.gate.judging import Finding, Verdict
from fluxmq.spark.report.text import number

__all__ = ["HEADER", "line", "render", "summary"]

HEADER = ("measure", "baseline", "{}", "ratio", "interval", "allowed", "")
OUTCOMES = {"regression": "REGRESSION", "pass": "pass", "noise": "noise", "nothing": "not measured"}
SUMMARY = {"regression": "regression: the {} is worse than it may be",
           "pass": "pass: no regression outside noise",
           "noise": "no regression that can be told from noise; that passes",
           "unproved": "nothing was proved: no measure can be told from noise",
           "nothing": "nothing to judge"}


def render(verdict: Verdict, candidate: str) -> str:
    """A line for each measure, and the verdict. candidate: name of the candidate."""
    kept = [finding for finding in verdict.findings if finding.better is None and finding.outcome == "pass"]
    rows = [tuple(cell.format(candidate) for cell in HEADER)]
    rows += [line(finding) for finding in verdict.findings if finding not in kept]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if kept:
        kinds = dict.fromkeys(finding.measure.rpartition("/")[2] for finding in kept)
        lines += ["", f"Within their bounds in every run: {', '.join(kinds)}"]
    noisy = [f.measure for f in verdict.findings if f.outcome == "noise" and f.gated]
    if noisy:
        lines += ["", f"Neither passed nor failed, for noise: {', '.join(noisy)}"]
    return "\n".join([*lines, "", summary(verdict, candidate)])


def summary(verdict: Verdict, candidate: str) -> str:
    """The verdict in one sentence."""
    said = "unproved" if verdict.outcome == "noise" and verdict.status else verdict.outcome
    return SUMMARY[said].format(candidate)


def line(finding: Finding) -> tuple[str, ...]:
    """The cells of one measure, under HEADER."""
    bound = finding.better is None
    allowed = "≤ " if bound or finding.better == "lower" else "≥ "
    said = OUTCOMES[finding.outcome] + ("" if finding.gated else " (shown only)")
    return (finding.measure, number(finding.baseline), number(finding.candidate),
            "" if finding.ratio is None else f"{finding.ratio:.3f}",
            "" if finding.low is None or finding.high is None or bound else f"{finding.low:.3f} .. {finding.high:.3f}",
            f"{allowed}{finding.limit:g}", f"{said}: {finding.why}" if finding.why else said)
