"""Measures results for a command: in this process if they are small, otherwise with Spark."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Any, Literal

import click

from fluxmq.spark.measures.breakdown import Breakdown, breakdown
from fluxmq.spark.measures.measures import Measures, measure
from fluxmq.spark.result import Result

__all__ = ["Engine", "broken_down", "engine_options", "measured"]

Engine = Literal["auto", "plain", "spark"]
# Parquet of that size has some ten million rows, the most to be held in memory at once.
PLAIN_BYTES = 64 << 20
PROGRESS_AFTER_S = 2.0


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
            with _shown(f"measuring {result.name} ({number + 1} of {len(results)})"):
                found.append(measure(result))
        return found
    from fluxmq.spark.measures.measures_spark import measure_with_spark
    from fluxmq.spark.session import session

    with _shown("starting Spark"):
        spark = session("fluxmq measures", master)
    for number, result in enumerate(results):
        with _shown(f"measuring {result.name} ({number + 1} of {len(results)})"):
            found.append(measure_with_spark(result, spark))
    return found


def broken_down(result: Result, engine: Engine, master: str | None) -> Breakdown:
    """By topic, protocol, QoS and client. Raises ResultError, SparkMissing."""
    with _shown(f"measuring the parts of {result.name}"):
        if _in_memory([result], engine):
            return breakdown(result)
        from fluxmq.spark.measures.breakdown import breakdown_with_spark
        from fluxmq.spark.session import session

        return breakdown_with_spark(result, session("fluxmq measures", master))


def _in_memory(results: Sequence[Result], engine: Engine) -> bool:
    size = sum(result.place.system.get_file_info(name).size or 0 for result in results for name in result.files)
    return engine == "plain" or (engine == "auto" and size <= PLAIN_BYTES)


@contextmanager
def _shown(what: str) -> Iterator[None]:
    """On a terminal, shows an operation that takes longer than two seconds, and its duration so far."""
    done, began = Event(), monotonic()

    def show() -> None:
        while not done.wait(PROGRESS_AFTER_S / 2 if monotonic() - began > PROGRESS_AFTER_S else PROGRESS_AFTER_S):
            click.echo(f"\r\x1b[K{what}: {monotonic() - began:.0f} s", err=True, nl=False)
        if monotonic() - began > PROGRESS_AFTER_S:
            click.echo("\r\x1b[K", err=True, nl=False)

    teller = Thread(target=show, daemon=True)
    if sys.stderr.isatty():
        teller.start()
    try:
        yield
    finally:
        done.set()
        if teller.is_alive():
            teller.join()
