"""`fluxmq replay show RESULT`: what a replay came to, as text and as HTML."""
from __future__ import annotations

from pathlib import Path

import click

from fluxmq.spark.measures.measures import MEASURES
from fluxmq.spark.measures.measuring import Engine, broken_down, engine_options, measured
from fluxmq.spark.report.page import check_place, html_option, write_page
from fluxmq.spark.report.report import Side, result_page
from fluxmq.spark.report.side_by_side import recorded_nodes, side_by_side
from fluxmq.spark.report.text import printable, with_unit
from fluxmq.spark.result import Summary, open_result

__all__ = ["show"]


def _head(name: str, summary: Summary) -> list[str]:
    verdict = "complete" if summary.complete else f"partial: {summary.why or 'the replay did not end'}"
    return [f"result {name}: {verdict}",
            f"recording {summary.recording.get('path', '-')}, against {summary.broker.get('address', '-')}"]


@click.command()
@click.argument("result")
@html_option()
@engine_options
def show(result: str, html: Path | None, engine: Engine, master: str | None) -> None:
    """Show what the replay that wrote RESULT came to: whether it is complete, what was recorded and what was replayed,
    rates, latencies, and what went wrong."""
    check_place(html)
    found = open_result(result)
    (measures,) = measured([found], engine, master)
    lines = _head(found.name, found.summary) + recorded_nodes(found.summary) + side_by_side(found.summary)
    lines += [f"  not replayed: {count:,} {what}" for what, count in found.summary.not_replayed.items()]
    wide = max(len(measure.title) for measure in MEASURES.values())
    lines += [f"  {measure.title:<{wide}}  {with_unit(measures.values[name], measure.unit)}"
              for name, measure in MEASURES.items() if measures.values.get(name) is not None]
    click.echo("\n".join(map(printable, lines)))
    if html is not None:
        side = Side(found.name, found.summary, measures)
        write_page(html, result_page(side, broken_down(found, engine, master)))
        click.echo(f"\nThe report with its plots: {html}")
