"""`python -m fluxmq.bench.gate`: is the broker of this checkout slower than that of the commit in bench/BASELINE?

Exit status 0: no, or that cannot be told from noise, or there is no baseline. 1: yes. 2: nothing could be judged.
"""
from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fluxmq._core.errors import FluxError
from fluxmq._core.testing import DEBUG_BUILD
from fluxmq.bench.gate.baseline import NoBaseline, build, find_commit
from fluxmq.bench.gate.rows import ROWS, GateRow, chosen
from fluxmq.bench.gate.turns import Homes, Turns
from fluxmq.bench.gate.workload import PUBLISHES
from fluxmq.bench.load.brokers import BrokerError
from fluxmq.bench.load.compare import pinned
from fluxmq.bench.load.engine import LoadError
from fluxmq.spark.gate import GateError, Pair, Verdict, judge, load_thresholds
from fluxmq.spark.verdict_text import render

__all__ = ["gate"]

THRESHOLDS = Path(__file__).with_name("thresholds.yaml")
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
@click.option("--rounds", type=click.IntRange(1), default=8, show_default=True,
              help="Pairs of each row: fresh brokers of both, each loaded twice.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=0.3, show_default=True,
              help="What is measured of each turn.")
@click.option("--publishes", type=click.IntRange(100), default=PUBLISHES, show_default=True,
              help="Of the workload that is replayed.")
@click.option("--baseline", metavar="COMMIT|DIR", help="Hold against this commit, or the built tree in DIR, instead of "
                                                       "what bench/BASELINE names.")
@click.option("--candidate", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The built tree that is judged. Default: the FluxMQ that runs this.")
@click.option("--checkout", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              default=Path(), help="The clone that has the baseline. Default: the current directory.")
@click.option("--only", multiple=True, type=click.Choice([row.key for row in ROWS]), help="Run these rows only.")
@click.option("--thresholds", type=click.Path(dir_okay=False, path_type=Path), default=THRESHOLDS,
              help="What is allowed; see docs/gate.md. Default: bench/gate/thresholds.yaml.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write all pairs and the verdict here.")
def gate(rounds: int, seconds: float, publishes: int, baseline: str | None, candidate: Path | None, checkout: Path,
         only: tuple[str, ...], thresholds: Path, as_json: bool, output: Path | None) -> None:
    """Measure the broker of this checkout against a baseline, in turns, and judge.

    Exit status 0: not slower, or not to be told from noise, or no baseline here. 1: slower than allowed. 2: nothing
    could be judged.
    """
    rows = chosen(only)
    progress = Progress(rounds * len(rows))
    try:
        limits = load_thresholds(thresholds)
        if DEBUG_BUILD and candidate is None:
            raise GateError("this is a debug build: what it measures says nothing about the one that ships")
        homes = Homes(find_home(baseline, checkout.resolve(), progress), candidate and candidate.absolute())
        pairs = measure(rows, homes, rounds, seconds, publishes, progress)
    except NoBaseline as error:
        click.echo(f"no baseline: {error}")
        return
    except (FluxError, BrokerError, LoadError, OSError) as error:
        click.echo(f"fluxmq gate: {error}", err=True)
        raise SystemExit(NOTHING) from None
    verdict = judge(pairs, limits)
    if output is not None:
        output.write_text(json.dumps(document(pairs, verdict), indent=1) + "\n")
    click.echo(json.dumps(verdict.as_json(), indent=1) if as_json else render(verdict, "checkout"))
    raise SystemExit(verdict.status)


def find_home(baseline: str | None, checkout: Path, progress: Progress) -> Path:
    """The directory of the baseline's package. Raises NoBaseline, GateError."""
    if baseline is not None and Path(baseline).is_dir():
        if not list(Path(baseline, "fluxmq", "_core").glob("*.so")):
            raise GateError(f"{baseline} is no built tree: it has no compiled modules in fluxmq/_core")
        return Path(baseline).absolute()
    return build(checkout, find_commit(checkout, baseline), progress.say)


def measure(rows: tuple[GateRow, ...], homes: Homes, rounds: int, seconds: float, publishes: int,
            progress: Progress) -> list[Pair]:
    """A pair for each round, with the measures of all rows."""
    found: list[tuple[dict[str, float | None], dict[str, float | None]]] = [({}, {}) for _ in range(rounds)]
    with scratch() as folder, pinned(True) as cores:
        turns = Turns(homes=homes, seconds=seconds, cores=cores, folder=folder, publishes=publishes)
        for row in rows:
            if not progress.live:
                progress.say(f"{row.key}: {row.work}; rounds: {rounds}")
            for number, (before, after) in enumerate(found):
                progress.step(f"{row.key}: {row.work}, round {number + 1}")
                pair = turns.round(row, number)
                before |= pair.baseline
                after |= pair.candidate
        progress.clear()
    return [Pair(before, after) for before, after in found]


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fluxmq-gate-") as name:
        yield Path(name)


def document(pairs: list[Pair], verdict: Verdict) -> dict[str, object]:
    return verdict.as_json() | {"pairs": [{"baseline": dict(pair.baseline), "candidate": dict(pair.candidate)}
                                          for pair in pairs]}


if __name__ == "__main__":
    gate()
