"""`fluxmq replay run`: a recording against a broker, one player for each slot of Spark, all at the same time.

A barrier stage: players meet before T0, so that all subscriptions exist, and again when everything is sent, so that
none leaves while others still publish. Each writes its own files into the result; the driver gets one row with the
status of each.
"""
from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from fluxmq.model.number_option import Number
from fluxmq.record.merging import open_recordings
from fluxmq.spark.player.options import PlayOptions, PlayStatus
from fluxmq.spark.progress import shown
from fluxmq.spark.replay.broker_process import sampled
from fluxmq.spark.replay.plan import Plan, PlanError, nodes_of, plan_recording
from fluxmq.spark.replay.replaying import (
    PlayedLinks,
    ReplayError,
    ReplayRequest,
    begin,
    finish,
    look_first,
    perform,
    play_options,
    played_links,
)
from fluxmq.spark.report.side_by_side import broker_used, recorded_nodes, side_by_side
from fluxmq.spark.result import Place, Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["meeting", "replay_with_spark", "run"]

PROGRESS = ".progress"
BROKER_LOST = ".gone"                          # suffix of a file by which a player reports that the broker is gone
PROGRESS_EVERY_S = 0.5
EXECUTORS_S = 60.0
BEGIN_IN_NS = 1_500_000_000     # Spark notifies a task that waits for the others once a second
NANO = 1e9
PASSWORD = "FLUXMQ_REPLAY_PASSWORD"
ENDED = pa.schema([("status", pa.string())])


def meeting(word: str, now: int) -> int:
    """Waits for all players of the stage; returns the latest clock plus BEGIN_IN_NS. All call it with the same words in
    order."""
    from pyspark import BarrierTaskContext

    clocks = BarrierTaskContext.get().allGather(f"{word} {now}")
    return max(int(clock.split()[1]) for clock in clocks) + BEGIN_IN_NS


def _task(options: PlayOptions, result: str, links: PlayedLinks) -> Callable[[Iterable[pa.RecordBatch]],
                                                                            Iterator[pa.RecordBatch]]:
    """The work of a slot."""

    def player(operations: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        task, place = BarrierTaskContext.get().partitionId(), Place(result)
        # Spark repeats a failed task, which must be prevented: the broker has received the operations already.
        if place.read(f"{PROGRESS}/{task}") is not None:
            raise RuntimeError("a replay is not repeated")
        place.write(f"{PROGRESS}/{task}", b"0")
        last = 0.0

        def on_status(status: PlayStatus) -> None:
            nonlocal last
            if time.monotonic() - last > PROGRESS_EVERY_S:
                last = time.monotonic()
                place.write(f"{PROGRESS}/{task}", str(status.operations).encode())

        def report_lost_broker(why: str) -> None:
            place.write(f"{PROGRESS}/{task}{BROKER_LOST}", why.encode())

        def lost_broker() -> str:
            reports = place.names(PROGRESS, BROKER_LOST)
            return (place.read(f"{PROGRESS}/{reports[0]}") or b"").decode() if reports else ""

        playing = replace(options, meet=meeting, report_lost_broker=report_lost_broker, lost_broker=lost_broker)
        status, counts = perform(place, task, operations, playing, links, on_status)
        yield pa.RecordBatch.from_pydict({"status": [json.dumps({"status": asdict(status), "counts": counts})]}, ENDED)

    return player


def _slots(spark: SparkSession) -> int:
    """Number of tasks that run at the same time."""
    context: Any = spark.sparkContext
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _room(spark: SparkSession, wanted: int | None) -> int:
    """Waits for as many slots as wanted: executors of a cluster start one after the other, those of local[N] exist from
    the start."""
    end = time.monotonic() + EXECUTORS_S
    while (slots := _slots(spark)) < (wanted or 1) and time.monotonic() < end:
        if (spark.sparkContext.master or "").startswith("local"):
            break
        time.sleep(PROGRESS_EVERY_S)
    return slots


def replay_with_spark(spark: SparkSession, request: ReplayRequest) -> Summary:
    """Raises RecordingError, PlanError, ReplayError, ResultError; a failure of the broker is not raised, but in the
    summary."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from fluxmq.spark.replay.plan_spark import recorded_rows, spark_operations, spark_survey

    recording = open_recordings(*request.recordings)
    if not recording.parts:
        raise PlanError(f"{recording.path} has no rows that could be replayed")
    rows = recorded_rows(spark, recording)
    with shown("reading", lambda: (None, f"{recording.rows} rows of {recording.path}")):
        survey = spark_survey(rows, nodes_of(recording))
    slots = _room(spark, request.partitions)      # after the first job, when the first executors have started
    wanted = request.partitions or slots
    if wanted > slots:
        raise ReplayError(f"all {wanted} partitions must run at one time, and Spark has room for {slots}: ask for "
                          "fewer with --partitions, or give Spark more processors")
    plan = plan_recording(survey, copies=request.copies, partitions=wanted)
    operations = spark_operations(spark, rows, plan)
    place, summary = begin(request, recording, plan)
    place.system.create_dir(place.path(PROGRESS))
    options = replace(play_options(request, plan, summary.run), window=max(1, request.window // plan.partitions))
    links = played_links(plan)
    ended: list[tuple[PlayStatus, dict[str, int]]] = []
    look = _look_at(place, plan, request)
    with sampled(request.process()) as used, shown("replaying", look):
        try:
            play = operations.mapInArrow(_task(options, place.name if "://" in place.name else place.root, links),
                                         "status string", barrier=True)
            for row in play.collect():
                said = json.loads(row["status"])
                ended.append((PlayStatus(**said["status"]), said["counts"]))
        except (PySparkException, Py4JError) as error:
            summary.why = f"Spark gave up: {_why(error)}"
            raise ReplayError(f"{summary.why}; the part written to {request.out} is kept and marked partial") from error
        finally:
            place.remove(PROGRESS)
            finish(place, summary, ended, used)
    return summary


def _why(error: Exception) -> str:
    """The relevant line of a long report: the last error of Python's, or the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception): ", line) and "py4j" not in line]
    return (named or lines or [type(error).__name__])[-1 if named else 0]


def _look_at(place: Place, plan: Plan, request: ReplayRequest) -> Callable[[], tuple[float | None, str]]:
    lock = threading.Lock()

    def look() -> tuple[float | None, str]:
        with lock:
            done = sum(int(place.read(f"{PROGRESS}/{task}") or 0) for task in range(plan.partitions))
        return done / plan.operations, f"{done} of {plan.operations} operations against {request.broker}"

    return look


def _report(summary: Summary, out: str) -> str:
    counts = summary.counts
    span = ((summary.finished or 0) - (summary.started or 0)) / NANO
    lines = [f"{counts.get('publish', 0)} publishes and {counts.get('delivery', 0)} deliveries of "
             f"{summary.recording['clients']} clients in {span:.1f} s; the result is in {out}"]
    lines += recorded_nodes(summary) + side_by_side(summary) + broker_used(summary)
    lines += [f"not replayed: {count} {what}" for what, count in summary.not_replayed.items()]
    return "\n".join(lines)


@click.command()
@click.argument("recordings", metavar="RECORDING...", nargs=-1, required=True, type=click.Path())
@click.option("--broker", required=True, metavar="HOST:PORT[,…]",
              help="The broker to play against; best a fresh one. Of a cluster the nodes, separated by commas: clients "
                   "of each recorded node go to one of them.")
@click.option("--out", required=True, metavar="RESULT", help="A new directory for the result; all executors reach it.")
@click.option("--amqp-broker", metavar="HOST:PORT[,…]",
              help="Where AMQP 0-9-1 clients go; without, port 5672 of the broker, or the broker itself when the "
                   "recording has no other clients.")
@click.option("--speed", type=Number(min=0, min_open=True), default=1.0, show_default=True,
              help="Factor; 2 replays in half of the recorded time.")
@click.option("--fast", is_flag=True, help="As fast as possible, in the recorded order of each client.")
@click.option("--copies", type=click.IntRange(1), default=1, show_default=True,
              help="How many times to play the recording at once, each with client ids and topics of its own.")
@click.option("--master", metavar="URL", help="Of Spark; without, local[*] in this process.")
@click.option("--partitions", type=click.IntRange(1),
              help="Number of parallel players. Default: one for each slot of Spark.")
@click.option("--username", help=f"Log in as that, with the password in the environment variable {PASSWORD}.")
@click.option("--broker-pid", type=click.IntRange(1),
              help="Process whose CPU and memory are sampled. Default: found by its port.")
@click.option("--quiet", "quiet_s", type=Number(0), default=1.0, show_default=True, metavar="SECONDS",
              help="End when no delivery has arrived for this long.")
@click.option("--window", type=click.IntRange(1), default=1000, show_default=True,
              help="With --fast: publishes after which subscribers must have caught up.")
def run(recordings: tuple[str, ...], broker: str, out: str, amqp_broker: str | None, speed: float, fast: bool,
        copies: int, master: str | None, partitions: int | None, username: str | None, broker_pid: int | None,
        quiet_s: float, window: int) -> int:
    """Replay RECORDING against a broker, and write what was sent and what arrived to RESULT.

    Several are recordings of the nodes of one cluster, or one directory that holds them: they are replayed as one.
    """
    from fluxmq.spark.session import session

    request = ReplayRequest(
        recording=recordings, broker=broker, out=out, amqp_broker=amqp_broker, speed=None if fast else speed,
        copies=copies, partitions=partitions, username=username,
        password=os.environ.get(PASSWORD) if username else None, broker_pid=broker_pid, quiet_s=quiet_s, window=window)
    # Checked before Spark starts.
    opened = open_recordings(*recordings)
    look_first(request, opened)
    with shown("starting Spark"):
        spark = session("fluxmq replay", master, {"spark.ui.showConsoleProgress": "false"}, rows=opened.rows * copies)
    summary = replay_with_spark(spark, request)
    click.echo(_report(summary, out))
    if not summary.complete:
        click.echo(f"fluxmq: the result is partial: {summary.why}", err=True)
        return 1
    return 0
