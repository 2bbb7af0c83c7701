"""Measures results for a command: in this process if they are small, otherwise with Spark."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import click

from fluxmq.spark.measures.breakdown import Breakdown, breakdown
from fluxmq.spark.measures.measures import Measures, measure
from fluxmq.spark.progress import shown
from fluxmq.spark.result import Result

__all__ = ["Engine", "broken_down", "engine_options", "measured"]

Engine = Literal["auto", "plain", "spark"]
# Parquet of that size has some ten million rows, the most to be held in memory at once.
PLAIN_BYTES = 64 << 20


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --engine and --master."""
    command = click.option("--master", help="Of Spark; default: what spark-submit said, or this machine.")(command)
    return click.option("--engine", type=click.Choice(["auto", "plain", "spark"]), default="auto", show_default=True,
                        help="What computes: this process or Spark; auto takes Spark for large results.")(command)


def measured(results: Sequence[Result], engine: Engine, master: str | None) -> list[Measures]:
    """The measures of each. Raises ResultError, SparkMissing."""
    found = []
    if _in_memory(results, engine):
        for number, result in enumerate(results):
            with shown(f"measuring {result.name} ({number + 1} of {len(results)})"):
                found.append(measure(result))
        return found
    from fluxmq.spark.measures.measures_spark import measure_with_spark
    from fluxmq.spark.session import session

    with shown("starting Spark"):
        spark = session("fluxmq measures", master)
    for number, result in enumerate(results):
        with shown(f"measuring {result.name} ({number + 1} of {len(results)})"):
            found.append(measure_with_spark(result, spark))
    return found


def broken_down(result: Result, engine: Engine, master: str | None) -> Breakdown:
    """By topic, protocol, QoS and client. Raises ResultError, SparkMissing."""
    with shown(f"measuring the parts of {result.name}"):
        if _in_memory([result], engine):
            return breakdown(result)
        from fluxmq.spark.measures.breakdown import breakdown_with_spark
        from fluxmq.spark.session import session

        return breakdown_with_spark(result, session("fluxmq measures", master))


def _in_memory(results: Sequence[Result], engine: Engine) -> bool:
    size = sum(result.place.system.get_file_info(name).size or 0 for result in results for name in result.files)
    return engine == "plain" or (engine == "auto" and size <= PLAIN_BYTES)
