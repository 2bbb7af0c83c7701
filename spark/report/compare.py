"""`fluxmq replay compare A B`: two results beside each other, as one HTML file and as a table on the terminal."""
from __future__ import annotations

from pathlib import Path

import click

from fluxmq.spark.measures.measures import alike
from fluxmq.spark.measures.measuring import Engine, engine_options, measured
from fluxmq.spark.report.page import check_place, html_option, write_page
from fluxmq.spark.report.report import Side, html_report, text_report
from fluxmq.spark.result import open_result

__all__ = ["compare"]


@click.command()
@click.argument("a", metavar="RESULT_A")
@click.argument("b", metavar="RESULT_B")
@html_option("--out")
@engine_options
def compare(a: str, b: str, html: Path | None, engine: Engine, master: str | None) -> None:
    """Show two results of `replay run` beside each other: rates, latency over time, faults, the broker's CPU.

    Partial results are taken, and marked. What may differ by how much is for `replay gate` to say.
    """
    check_place(html)
    results = [open_result(a), open_result(b)]
    sides = [Side(result.name, result.summary, measures)
             for result, measures in zip(results, measured(results, engine, master), strict=True)]
    alike(sides[0].measures.values, sides[1].measures.values)
    click.echo(text_report(*sides))
    if html is not None:
        write_page(html, html_report(*sides))
        click.echo(f"\nThe report with its plots: {html}")
