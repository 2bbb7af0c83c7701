"""`python -m fluxmq.bench.gate`: is the broker of this checkout slower than that of the commit in bench/BASELINE?

Exit status 0: no, or that cannot be told from noise, or there is no baseline. 1: yes. 2: nothing could be judged.
"""
from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from fluxmq._core.errors import ConfigError, FluxError
from fluxmq._core.testing.probes import DEBUG_BUILD
from fluxmq.bench.gate.baseline import NoBaseline, build, find_commit, named_commit
from fluxmq.bench.gate.history import committed, drift, move_baseline, read_history
from fluxmq.bench.gate.report import gate_report
from fluxmq.bench.gate.rows import ROWS, GateRow, chosen
from fluxmq.bench.gate.turns import Homes, Turns, what_misses
from fluxmq.bench.gate.workload import PUBLISHES
from fluxmq.bench.load.brokers import BrokerError
from fluxmq.bench.load.compare import pinned
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.machine import describe, describe_machine
from fluxmq.model.number_option import Number
from fluxmq.spark.gate.judging import REGRESSED, GateError, Pair, Thresholds, Verdict, judge, load_thresholds
from fluxmq.spark.gate.text import render
from fluxmq.spark.report.page import check_place, html_option, write_page

__all__ = ["gate"]

THRESHOLDS = Path(__file__).with_name("thresholds.yaml")
THRESHOLDS_LONG = Path(__file__).with_name("thresholds-long.yaml")
ROUNDS, ROUNDS_LONG = 8, 40
SECONDS, SECONDS_LONG = 0.3, 0.6
DISK_SECONDS = 0.5
NOTHING = 2


class Progress:
    """What is being done, on standard error: a line that is written over on a terminal, else one for each row."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.began = time.monotonic()
        self.live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        click.echo(f"\r\x1b[K{text}" if self.live else text, err=True)

    def step(self, text: str) -> None:
        """One round is about to begin."""
        if self.live:
            spent = time.monotonic() - self.began
            left = f", {spent / self.done * (self.total - self.done):.0f} s left" if self.done else ""
            click.echo(f"\r\x1b[K[{self.done}/{self.total}{left}] {text}", err=True, nl=False)
        self.done += 1

    def clear(self) -> None:
        if self.live:
            click.echo("\r\x1b[K", err=True, nl=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--long", "thorough", is_flag=True,
              help="Find 5 % instead of 10, which takes an hour and a quiet machine; also compare with the oldest of "
                   "the last ten baselines.")
@click.option("--rounds", type=click.IntRange(1),
              help="Pairs of each row, of quiet ones twice as many: fresh brokers of both, each loaded twice. Default: "
                   f"{ROUNDS}, --long {ROUNDS_LONG}.")
@click.option("--seconds", type=Number(0, min_open=True),
              help=f"What is measured of each turn. Default: {SECONDS}, --long {SECONDS_LONG}.")
@click.option("--publishes", type=click.IntRange(100), default=PUBLISHES, show_default=True,
              help="Of the workload that is replayed.")
@click.option("--baseline", metavar="COMMIT|DIR", help="Compare with this commit, or the built tree in DIR, instead of "
                                                       "what bench/BASELINE names.")
@click.option("--candidate", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The built tree that is judged. Default: the FluxMQ that runs this.")
@click.option("--checkout", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              default=Path(), help="The clone that has the baseline. Default: the current directory.")
@click.option("--only", multiple=True, type=click.Choice([row.key for row in ROWS]), help="Run these rows only.")
@click.option("--thresholds", type=click.Path(dir_okay=False, path_type=Path),
              help="What is allowed; see docs/gate.md. Default: bench/gate/thresholds.yaml, --long "
                   "thresholds-long.yaml.")
@click.option("--move", metavar="WHY", help="When measured, make the commit that is checked out the baseline, for this "
                                            "reason, and keep the figures in bench/history.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@html_option()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write all pairs and the verdict here.")
def gate(thorough: bool, rounds: int | None, seconds: float | None, publishes: int, baseline: str | None,
         candidate: Path | None, checkout: Path, only: tuple[str, ...], thresholds: Path | None, move: str | None,
         as_json: bool, html: Path | None, output: Path | None) -> None:
    """Measure the broker of this checkout against a baseline, in turns, and judge.

    Exit status 0: not slower, or not to be told from noise, or no baseline here. 1: slower than allowed. 2: nothing
    could be judged.
    """
    measurement = Measurement(rows=chosen(only), rounds=rounds or (ROUNDS_LONG if thorough else ROUNDS),
                              seconds=seconds or (SECONDS_LONG if thorough else SECONDS), publishes=publishes)
    checkout = checkout.resolve()
    try:
        check_place(html)
        limits = load_thresholds(thresholds or (THRESHOLDS_LONG if thorough else THRESHOLDS))
        if DEBUG_BUILD and candidate is None:
            raise GateError("this is a debug build: what it measures says nothing about the one that ships")
        if move is not None and (baseline or candidate or only):
            raise GateError("--move measures this checkout against bench/BASELINE, in all rows: without --baseline, "
                            "--candidate and --only")
        commit = committed(checkout) if move is not None else ""
        history = read_history(checkout)
        verdict, pairs = measurement.hold(find_home(baseline, checkout, measurement.progress), candidate, limits)
        against = baseline or named_commit(checkout)
        since = drift(history, verdict) if baseline is None and history else {}
        oldest = None
        if thorough and baseline is None and history:
            measurement.progress.say(f"the oldest of the last {len(history) + 1} baselines, {history[0].former[:12]}")
            built = build(checkout, find_commit(checkout, history[0].former), measurement.progress.say)
            oldest, _ = measurement.hold(built, candidate, load_thresholds(thresholds or THRESHOLDS))
        if move is not None:
            with scratch() as folder:
                machine = describe(describe_machine(folder, DISK_SECONDS))
            kept = move_baseline(checkout, commit, named_commit(checkout), move, machine, verdict)
            measurement.progress.say(f"kept in {kept}; bench/BASELINE names {commit[:12]} now: commit both")
    except NoBaseline as error:
        click.echo(f"no baseline: {error}")
        return
    except (FluxError, BrokerError, LoadError, OSError) as error:
        click.echo(f"fluxmq gate: {error}", err=True)
        raise SystemExit(NOTHING) from None
    first = history[0].former if history else ""
    result = document(pairs, verdict, since, oldest)
    if output is not None:
        output.write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps({key: value for key, value in result.items() if key != "pairs"}, indent=1))
    else:
        click.echo(text(verdict, since, first, oldest))
    status = REGRESSED if oldest is not None and oldest.status == REGRESSED else verdict.status
    if html is not None:
        try:
            write_page(html, gate_report(verdict, pairs, measurement.conditions(against, candidate), since, first,
                                         oldest))
        except FluxError as error:
            # A regression stays one; a pass without its report is none.
            click.echo(f"fluxmq gate: {error}", err=True)
            raise SystemExit(status or NOTHING) from None
        click.echo(f"\nThe report with its plots: {html}", err=as_json)
    if move is None:    # else what it costs is accepted, and kept
        raise SystemExit(status)


def find_home(baseline: str | None, checkout: Path, progress: Progress) -> Path:
    """The directory of the baseline's package. Raises NoBaseline, GateError."""
    if baseline is not None and Path(baseline).is_dir():
        if not list(Path(baseline, "fluxmq", "_core").rglob("*.so")):
            raise GateError(f"{baseline} is no built tree: it has no compiled modules in fluxmq/_core")
        return Path(baseline).absolute()
    return build(checkout, find_commit(checkout, baseline), progress.say)


@dataclass(slots=True)
class Measurement:
    """What is to be measured, of whatever two there are; see the options of the same names."""

    rows: tuple[GateRow, ...]
    rounds: int
    seconds: float
    publishes: int
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(sum(self.rounds * row.times for row in self.rows))

    def conditions(self, baseline: str, candidate: Path | None) -> dict[str, str]:
        """For the report. baseline: a commit or a directory."""
        return {"Baseline": baseline, "Candidate": str(candidate or "the FluxMQ that runs this"),
                "Rows": ", ".join(f"{row.key} ({row.work})" for row in self.rows),
                "Pairs": ", ".join(f"{row.key} {self.rounds * row.times}" for row in self.rows),
                "Measured of each turn": f"{self.seconds:g} s", "Publishes of the replay": f"{self.publishes:,}"}

    def hold(self, baseline: Path, candidate: Path | None, limits: Thresholds) -> tuple[Verdict, list[Pair]]:
        """Both in turns. baseline, candidate: the directories of built trees; None for what runs this."""
        pairs = self.measure(Homes(baseline, candidate and candidate.absolute()), limits)
        return judge(pairs, limits), pairs

    def measure(self, homes: Homes, limits: Thresholds) -> list[Pair]:
        """A pair for each round, with the measures of all rows that have so many. What a row comes to is said when it
        ends: who stops the gate in the middle has what was measured until then."""
        rounds_max = self.rounds * max(row.times for row in self.rows)
        found: list[tuple[dict[str, float | None], dict[str, float | None]]] = [({}, {}) for _ in range(rounds_max)]
        progress = self.progress
        with scratch() as folder, pinned(True) as cores:
            turns = Turns(homes=homes, seconds=self.seconds, cores=cores, folder=folder, publishes=self.publishes)
            for row in self.rows:
                if why := self.left_out(row, homes):
                    progress.say(f"{row.key}: left out: {why}")
                    continue
                rounds, began = self.rounds * row.times, time.monotonic()
                if not progress.live:
                    progress.say(f"{row.key}: {row.work}; rounds: {rounds}")
                with closing(turns.rounds(row, rounds)) as pairs:
                    for number, (before, after) in enumerate(found[:rounds]):
                        progress.step(f"{row.key}: {row.work}, round {number + 1}")
                        pair = next(pairs)
                        before |= pair.baseline
                        after |= pair.candidate
                progress.clear()
                verdict = judge([Pair(before, after) for before, after in found[:rounds]], limits)
                progress.say(f"{row.key}: {in_short(row, verdict)} ({time.monotonic() - began:.0f} s)")
        return [Pair(before, after) for before, after in found]

    def left_out(self, row: GateRow, homes: Homes) -> str:
        """Why a row is, empty if it is not. Raises ConfigError where a program is missing that must be there."""
        try:
            return what_misses(row, homes)
        except ConfigError as error:
            if os.environ.get("FLUXMQ_REQUIRE_TOOLS") == "1":
                raise
            return str(error)


def in_short(row: GateRow, verdict: Verdict) -> str:
    """The ratios of a row's measures that are gated, each with what it says of the candidate."""
    return ", ".join(f"{finding.measure.removeprefix(row.key + '/')} {finding.ratio:.3f} {finding.outcome}"
                     for finding in verdict.findings
                     if finding.measure.startswith(row.key + "/") and finding.gated and finding.ratio is not None)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fluxmq-gate-") as name:
        yield Path(name)


def document(pairs: list[Pair], verdict: Verdict, since: dict[str, float], oldest: Verdict | None) -> dict[str, object]:
    return verdict.as_json() | {
        "since_oldest": since, "oldest": oldest and oldest.as_json(),
        "pairs": [{"baseline": dict(pair.baseline), "candidate": dict(pair.candidate)} for pair in pairs]}


def text(verdict: Verdict, since: dict[str, float], first: str, oldest: Verdict | None) -> str:
    parts = [render(verdict, "checkout")]
    if since:
        result = ", ".join(f"{name} {ratio:.2f}" for name, ratio in since.items())
        parts.append(f"Against {first[:12]}, the oldest baseline that is remembered, by the ratios of bench/history: "
                     f"{result}")
    if oldest is not None:
        parts.append(f"Against {first[:12]}, measured:\n{render(oldest, 'checkout')}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    gate()
