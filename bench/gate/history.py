"""What each move of the baseline was measured to cost or gain: bench/history, a file of JSON each, named by its time.

A baseline that moves forgives what was lost since the one before. A loss that each move finds too small to count shows
when the ratios of the last ten are multiplied, which the gate does every time, and when the oldest of these commits is
measured again, which `--long` does.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from fluxmq.bench.gate.baseline import NAME, git
from fluxmq.spark.gate.judging import GateError, Verdict

__all__ = ["KEPT", "Figure", "Move", "committed", "drift", "move_baseline", "read_history"]

FOLDER = "bench/history"
KEPT = 10
CHAINED = ("cpu_per_message_us", "cpu_per_connection_us", "bytes_per_connection", "cpu_s", "resident_bytes")


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Medians of a measure over the pairs: of the former baseline, of the new one, of their ratio with its interval."""

    baseline: float
    candidate: float
    ratio: float
    low: float | None = None
    high: float | None = None
    pairs: int


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file. commit: the new baseline. former: what it was held against. when: UTC. machine: where."""

    commit: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]
    former: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]
    when: str
    why: str
    machine: str
    figures: dict[str, Figure]


def read_history(root: Path) -> list[Move]:
    """The last ten moves, oldest first. Raises GateError for a file that cannot be used."""
    moves = []
    for path in sorted((root / FOLDER).glob("*.json"))[-KEPT:]:
        try:
            moves.append(msgspec.json.decode(path.read_bytes(), type=Move))
        except (OSError, msgspec.MsgspecError) as error:
            raise GateError(f"{path} cannot be used: {error}") from None
    return moves


def drift(moves: Sequence[Move], verdict: Verdict) -> dict[str, float]:
    """Measure → how much worse (above 1) or better the candidate is than the oldest commit of the history was: the
    ratios of the moves, multiplied, times the one just measured. Only of measures that each move has. moves: one at
    least."""
    ratios = {}
    for finding in verdict.findings:
        if finding.ratio is None or finding.measure.rpartition("/")[2] not in CHAINED:
            continue
        parts = [move.figures.get(finding.measure) for move in moves]
        if all(parts):
            ratios[finding.measure] = math.prod((one.ratio for one in parts if one is not None), start=finding.ratio)
    return ratios


def committed(root: Path) -> str:
    """The commit that is checked out. Raises GateError when the checkout has changes beside it."""
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        raise GateError("a baseline is a commit, and this checkout has changes that are in none: commit them first")
    return git(root, "rev-parse", "HEAD")


def move_baseline(root: Path, commit: str, former: str, why: str, machine: str, verdict: Verdict) -> Path:
    """Writes the file of the move and bench/BASELINE. Returns the path of the first.

    Raises GateError when there is nothing in the verdict to keep.
    """
    figures = {one.measure: Figure(baseline=one.baseline, candidate=one.candidate, ratio=one.ratio, low=one.low,
                                   high=one.high, pairs=one.pairs)
               for one in verdict.findings
               if one.ratio is not None and one.baseline is not None and one.candidate is not None}
    if not figures:
        raise GateError("nothing was measured that could be kept")
    now = datetime.now(UTC)
    move = Move(commit=commit, former=former, when=now.isoformat(timespec="seconds"), why=why, machine=machine,
                figures=figures)
    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{now:%Y%m%dT%H%M%SZ}-{commit[:12]}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(move), indent=1) + b"\n")
    (root / NAME).write_text(f"{commit}\n\n{why}\n", encoding="utf-8")
    return path
