"""`fluxmq replay profile RECORDING`: what is in a recording. docs/profile.md."""
from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxmq.record.merging import open_recordings
from fluxmq.record.reading import Recording, RecordingError
from fluxmq.spark.attempt import attempt
from fluxmq.spark.profile.report import profile_page
from fluxmq.spark.profile.text import text
from fluxmq.spark.progress import shown
from fluxmq.spark.recorded import rows_of
from fluxmq.spark.report.page import check_empty, check_place, html_option, write_page
from fluxmq.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["about", "profile", "tables"]

# Enough for any table of aggregates; without it a JVM takes a quarter of the machine's memory for its heap.
DRIVER_MEMORY = "1g"


def about(recording: Recording) -> dict[str, Any]:
    """Information from the manifest that the rows do not have."""
    manifest = recording.manifest
    return {"path": str(recording.path), "id": manifest.id, "source": manifest.source,
            "broker": f"{manifest.broker.name} {manifest.broker.version}".strip(), "end": manifest.end,
            "parts": len(recording.parts), "file_bytes": recording.bytes, "lost_entries": manifest.lost_entries,
            "lost_bytes": manifest.lost_bytes, "filtered_rows": manifest.filtered_rows}


def tables(spark: SparkSession, recording: Recording) -> dict[str, DataFrame]:
    """The tables of aggregates, computed: rates, topics, subtrees, connections, clients, sizes, latencies."""
    from fluxmq.spark.profile import scans
    from fluxmq.spark.profile.summary import clients_of

    rows = rows_of(spark, recording)
    topics = scans.by_topic(rows).localCheckpoint()
    connections = scans.by_connection(rows).localCheckpoint()
    return {"rates": scans.by_rate(rows).localCheckpoint(), "topics": topics,
            "subtrees": scans.subtrees(topics).localCheckpoint(), "connections": connections,
            "clients": clients_of(connections).localCheckpoint(),
            "sizes": scans.by_bucket(rows, "size").localCheckpoint(),
            "latencies": scans.by_bucket(rows, "ack_latency").localCheckpoint()}


@click.command("profile")
@click.argument("recordings", metavar="RECORDING...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory for the tables, as Parquet.")
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Topics and subtrees named.")
@html_option()
@click.option("--master", metavar="URL", help="As spark-submit's; without it this process, on all processors.")
def profile(recordings: tuple[Path, ...], as_json: bool, out: Path | None, top: int, html: Path | None,
            master: str | None) -> int:
    """What is in a recording: rates, kinds, sizes, topics, latencies, clients.

    Several are recordings of the nodes of one cluster, or one directory that holds them: they are read as one.
    """
    check_place(html)
    found = open_recordings(*recordings)
    check_empty(out, "tables")
    summed: dict[str, Any] = {"rows": 0}
    drawn: tuple[Any, Any] = {}, {}
    if found.rows:
        from fluxmq.spark.profile.summary import spreads, summary

        with shown("starting Spark"):
            spark = session("fluxmq profile", master, {"spark.driver.memory": DRIVER_MEMORY}, rows=found.rows)
        with attempt(spark, "profile", RecordingError, f"{found.path} cannot be read"):
            made = tables(spark, found)
            rest = {name: made[name] for name in ("rates", "topics", "connections", "clients", "sizes", "latencies")}
            summed = summary(**rest, trees=made["subtrees"], top=top)
            drawn = spreads(made["sizes"], made["latencies"]) if html is not None else drawn
            if out is not None:
                for name in ("rates", "topics", "subtrees", "connections", "clients"):
                    made[name].coalesce(1).write.parquet(str(out / name))
    about_recording = about(found)
    click.echo(json.dumps(about_recording | summed, indent=1) if as_json else text(summed, about_recording))
    if html is not None:
        write_page(html, profile_page(summed, about_recording, *drawn))
        click.echo(f"\nThe report with its plots: {html}", err=as_json)
    return 0
