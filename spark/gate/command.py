"""`fluxmq replay gate`: whether the candidate's results are worse than the baseline's by more than they may be."""
from __future__ import annotations

import json
from pathlib import Path

import click

from fluxmq._core.errors import FluxError
from fluxmq.spark.gate.judging import NOTHING, GateError, Pair, judge, load_thresholds
from fluxmq.spark.gate.report import gate_page
from fluxmq.spark.gate.text import render
from fluxmq.spark.measures.measures import alike
from fluxmq.spark.measures.measuring import Engine, engine_options, measured
from fluxmq.spark.report.page import check_place, html_option, write_page
from fluxmq.spark.report.report import Side
from fluxmq.spark.result import open_result

__all__ = ["gate"]


@click.command()
@click.option("--baseline", "baselines", multiple=True, required=True, metavar="RESULT",
              help="A result of the baseline; once for each repetition.")
@click.option("--candidate", "candidates", multiple=True, required=True, metavar="RESULT",
              help="A result of the candidate; as many, in the order of the baseline's.")
@click.option("--thresholds", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE",
              help="What is allowed: docs/gate.md.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@html_option()
@engine_options
def gate(baselines: tuple[str, ...], candidates: tuple[str, ...], thresholds: Path, as_json: bool,
         html: Path | None, engine: Engine, master: str | None) -> int:
    """Judge results of `replay run` against others: the first candidate with the first baseline, and so on.

    Exit status 0: pass; beside measures that passed, others may be noise. 1: a regression. 2: nothing was proved, for
    there was nothing to judge or all of it is noise; or what was given cannot be used.
    """
    try:
        check_place(html)
        limits = load_thresholds(thresholds)
        if len(baselines) != len(candidates):
            raise GateError(f"{len(baselines)} results of the baseline and {len(candidates)} of the candidate: give as "
                            "many of each")
        # A partial result has another load, so its figures are not comparable.
        results = [open_result(name, partial=False) for name in (*baselines, *candidates)]
        sides = [Side(result.name, result.summary, measures)
                 for result, measures in zip(results, measured(results, engine, master), strict=True)]
    except FluxError as error:
        return _refused(error)
    before, after = sides[:len(baselines)], sides[len(baselines):]
    pairs = [Pair(one.measures.values, other.measures.values) for one, other in zip(before, after, strict=True)]
    for one, other in zip(before, after, strict=True):
        alike(one.measures.values, other.measures.values)
    verdict = judge(pairs, limits)
    click.echo(json.dumps(verdict.as_json(), indent=1) if as_json else render(verdict, "candidate"))
    if html is not None:
        try:
            write_page(html, gate_page(verdict, before, after))
        except FluxError as error:
            # A regression stays one; a pass whose report cannot be written counts as none.
            refused = _refused(error)
            return verdict.status or refused
        click.echo(f"\nThe report with its plots: {html}", err=as_json)
    return verdict.status


def _refused(error: FluxError) -> int:
    """Reports an error. Its status is not 1, which means a regression and nothing else."""
    click.echo(f"fluxmq: {error}", err=True)
    return NOTHING
