"""`fluxmq bench …`: the load generator as a user's tool. `bench` is the click group that the application mounts."""
from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from fluxmq.bench.load.amqp_cli import amqp
from fluxmq.bench.load.backlog import BacklogOptions, run_backlog
from fluxmq.bench.load.brokers import MQTT_BROKERS, BrokerError
from fluxmq.bench.load.clients import ClientOptions, render_clients, run_clients
from fluxmq.bench.load.cluster_cli import cluster
from fluxmq.bench.load.compare import CompareOptions, compare
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.flood import KINDS, FloodOptions, render_flood, run_flood
from fluxmq.bench.load.floors import FloorError, fsync_latency
from fluxmq.bench.load.many import ManyOptions, run_many
from fluxmq.bench.load.options import LoadOptions, OptionsError
from fluxmq.bench.load.recording import RecordBenchOptions, render_recording, run_recording
from fluxmq.bench.load.runner import run_load
from fluxmq.bench.load.scenarios import ROWS
from fluxmq.bench.load.storms import StormOptions, run_storm
from fluxmq.bench.load.table import latency_line, render, render_backlog, render_load, render_many, render_storm
from fluxmq.model.number_option import Number

__all__ = ["bench"]

SMOKE_SECONDS = 0.3
SMOKE_WARMUP = 0.1
SMOKE_CONNECTIONS = 200
SMOKE_MESSAGES = 20_000
SMOKE_MANY = 300
FAILED = 1
MISUSED = 2

Command = TypeVar("Command", bound=Callable[..., Any])


def fail(error: Exception) -> NoReturn:
    click.echo(f"fluxmq bench: {error}", err=True)
    raise SystemExit(MISUSED if isinstance(error, OptionsError) else FAILED)


def interrupted(_signal: int, _frame: Any) -> NoReturn:
    """Handles SIGTERM like Ctrl-C: started processes are stopped."""
    raise KeyboardInterrupt


def failed(results: dict[str, Any], smoke: bool) -> bool:
    """Whether a side of a comparison failed. At smoke size a broker that is not installed is only named, as a test that
    needs it would be skipped, unless FLUXMQ_REQUIRE_TOOLS=1."""
    excused = smoke and os.environ.get("FLUXMQ_REQUIRE_TOOLS") != "1"
    errors = [text for row in results["rows"] for text in row["errors"].values()]
    return any(not (excused and "is not installed" in text) for text in errors)


@click.group()
def bench() -> None:
    """Load a broker and measure it: throughput, latency, CPU and memory.

    Any MQTT broker will do; for one on this machine, --broker-pid adds its CPU time per message and its memory.
    """
    signal.signal(signal.SIGTERM, interrupted)


bench.add_command(amqp)
bench.add_command(cluster)

CONNECTION_OPTIONS = [
    click.option("--addr", default="127.0.0.1:1883", show_default=True, help="HOST:PORT of the broker."),
    click.option("--mqtt", "version", type=click.Choice(["3.1.1", "5"]), default="3.1.1", show_default=True,
                 help="Protocol version."),
    click.option("--username", help="User name for all connections."),
    click.option("--password", help="Password for all connections."),
    click.option("--keep-alive", type=click.IntRange(0, 65535), default=0, show_default=True,
                 help="Keep alive in seconds; 0 turns it off."),
    click.option("--broker-pid", type=int, help="Process id of the broker, to read its CPU time and memory."),
    click.option("--smoke", is_flag=True, help="A run of a fraction of a second, to see that it works."),
    click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object."),
]


def connection_options(command: Any) -> Any:
    for option in reversed(CONNECTION_OPTIONS):
        command = option(command)
    return command


@bench.command()
@connection_options
@click.option("--transport", type=click.Choice(["tcp", "tls", "ws", "wss"]), default="tcp", show_default=True)
@click.option("--path", default="/mqtt", show_default=True, help="Path of the WebSocket upgrade.")
@click.option("--cafile", help="PEM file with the authority that signed the broker's certificate.")
@click.option("--insecure", is_flag=True, help="Do not verify the broker's certificate.")
@click.option("--pubs", type=click.IntRange(1), default=1, show_default=True, help="Publishers.")
@click.option("--subs", type=click.IntRange(0), default=1, show_default=True, help="Subscribers.")
@click.option("--topics", type=click.Choice(["one", "pairs", "fresh"]), default="one", show_default=True,
              help="one topic for all; pairs: publisher i to subscriber i; fresh: every message on a new topic.")
@click.option("--filter", "filter_", type=click.Choice(["exact", "plus", "hash"]), default=None,
              help="How subscriptions name their topic: as it is, with +, or with #. Default: exact, hash for fresh.")
@click.option("--groups", type=click.IntRange(0), default=0, show_default=True,
              help="Shared subscriptions: number of groups that the subscribers form; 0 for none.")
@click.option("--prefix", default="b", show_default=True, help="First level of the topics.")
@click.option("--queue", type=click.Choice(["", "classic", "stream"]), default="",
              help="Publish to and consume from the queue --prefix, of this type, instead of topics.")
@click.option("--qos", type=click.IntRange(0, 2), default=0, show_default=True, help="QoS of publications.")
@click.option("--sub-qos", type=click.IntRange(0, 2), help="QoS of subscriptions; as --qos unless given.")
@click.option("--size", type=click.IntRange(0), default=64, show_default=True,
              help="Payload in bytes; below 16 nothing but the number of messages is measured.")
@click.option("--properties", is_flag=True, help="Add a content type and two user properties (MQTT 5).")
@click.option("--window", type=click.IntRange(1), default=1000, show_default=True,
              help="Closed loop: messages in flight in all, from their sending to their last delivery.")
@click.option("--batch", type=click.IntRange(0), default=0, show_default=True,
              help="Closed loop: most messages a publisher sends at a time; 0 for as many as the window allows.")
@click.option("--rate", type=Number(0), default=0.0, show_default=True,
              help="Open loop: messages per second in all, evenly spaced; 0 for a closed loop.")
@click.option("--duration", type=Number(0, min_open=True), default=5.0, show_default=True,
              help="Seconds measured.")
@click.option("--warmup", type=Number(0), default=1.0, show_default=True, help="Seconds before that.")
@click.option("--persistent", is_flag=True, help="Sessions that outlive the connection; removed at the end.")
@click.option("--session-expiry", type=click.IntRange(1, 0xFFFFFFFF), default=3600, show_default=True,
              help="Seconds that persistent sessions live (MQTT 5).")
@click.option("--receive-maximum", type=click.IntRange(1, 65535), help="Receive Maximum of all connections (MQTT 5).")
@click.option("--churn", type=Number(0), default=0.0, show_default=True,
              help="Subscriptions per second that come and go on other topics meanwhile.")
def run(smoke: bool, as_json: bool, filter_: str | None, **given: Any) -> None:
    """Publish and subscribe, and report how fast it went.

    A closed loop (the default) keeps --window messages in flight, so it measures what the broker can do and loses
    nothing; an open loop (--rate) sends on time whatever the broker does. Exit status 1 when messages were lost.
    """
    given["filter"] = filter_ or ("hash" if given["topics"] == "fresh" else "exact")
    if smoke:
        given |= {"duration": SMOKE_SECONDS, "warmup": SMOKE_WARMUP}
    try:
        figures = run_load(LoadOptions(**given))
    except (OptionsError, LoadError, OSError) as error:
        fail(error)
    click.echo(json.dumps(figures, indent=2) if as_json else render_load(figures))
    if figures["total"]["lost"]:
        raise SystemExit(FAILED)


@bench.command()
@connection_options
@click.option("--connections", type=click.IntRange(1), default=1000, show_default=True, help="How many to open.")
@click.option("--at-once", type=click.IntRange(1), default=100, show_default=True, help="How many are in progress.")
@click.option("--first", type=click.IntRange(1), default=1000, show_default=True,
              help="Connections after which memory is first read; the rest is charged with what is added.")
@click.option("--hold", type=Number(0), default=0.0, show_default=True, help="Seconds to keep them open.")
def storm(smoke: bool, as_json: bool, **given: Any) -> None:
    """Open many connections as fast as the broker takes them, and hold them idle (plain TCP, IPv4)."""
    if smoke:
        given["connections"] = min(given["connections"], SMOKE_CONNECTIONS)
        given["first"] = min(given["first"], SMOKE_CONNECTIONS // 2)
    try:
        figures = run_storm(StormOptions(**given))
    except (OptionsError, LoadError, OSError) as error:
        fail(error)
    click.echo(json.dumps(figures, indent=2) if as_json else render_storm(figures))


@contextmanager
def temporary(prefix: str, folder: Path | None) -> Iterator[Path]:
    """A temporary directory in `folder` for a broker's data; errors inside are reported as messages."""
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as own:
            yield Path(own)
    except (OptionsError, LoadError, BrokerError, OSError) as error:
        fail(error)


def restarted(command: Command) -> Command:
    """The options of a benchmark that fills a broker and starts it again: RestartOptions."""
    for option in (
            click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
                         help="Where the broker keeps its data: a disk with room for all. Default: the temporary "
                              "directory."),
            click.option("--restart", type=click.Choice(["stop", "kill"]), default="stop", show_default=True,
                         help="How the broker ends before it is started again.")):
        command = option(command)
    return command


@bench.command(name="backlog")
@click.option("--kind", type=click.Choice(["plain", "priorities", "delayed"]), default="plain", show_default=True,
              help="To a classic queue; to ten levels of priority in turn; or not before tomorrow.")
@click.option("--messages", type=click.IntRange(10), default=10_000_000, show_default=True, help="How many.")
@click.option("--size", type=click.IntRange(0), default=256, show_default=True, help="Payload in bytes.")
@restarted
@click.option("--smoke", is_flag=True, help="A small backlog, to see that it works.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
def backlog_command(folder: Path | None, smoke: bool, as_json: bool, **given: Any) -> None:
    """Fill a queue of FluxMQ without consumers: memory per message, and the time of a restart."""
    if smoke:
        given |= {"messages": min(given["messages"], SMOKE_MESSAGES), "settle": SMOKE_SECONDS}
    with temporary("fluxmq-backlog-", folder) as own:
        figures = run_backlog(BacklogOptions(folder=own, **given))
    click.echo(json.dumps(figures, indent=2) if as_json else render_backlog(figures))


@bench.command(name="many")
@click.option("--kind", type=click.Choice(["queues", "sessions", "retained", "bindings", "fanout"]), default="queues",
              show_default=True, help="Durable queues with a message each, persistent sessions with one each, retained "
                                      "messages, or exchanges with a binding each.")
@click.option("--count", type=click.IntRange(1), default=100_000, show_default=True, help="How many.")
@click.option("--size", type=click.IntRange(0), default=64, show_default=True, help="Payload in bytes.")
@restarted
@click.option("--smoke", is_flag=True, help="A few hundred, to see that it works.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
def many_command(folder: Path | None, smoke: bool, as_json: bool, **given: Any) -> None:
    """Many queues (or sessions, …) of FluxMQ: memory for each, start, stop, and how long others wait meanwhile."""
    if smoke:
        given |= {"count": min(given["count"], SMOKE_MANY), "settle": SMOKE_SECONDS}
    with temporary("fluxmq-many-", folder) as own:
        figures = run_many(ManyOptions(folder=own, **given))
    click.echo(json.dumps(figures, indent=2) if as_json else render_many(figures))


@bench.command(name="flood")
@click.option("--kind", type=click.Choice(list(KINDS)), default="subscribe", show_default=True,
              help="What the clients of the flood ask for, over and over.")
@click.option("--clients", type=click.IntRange(1), default=20, show_default=True, help="Of the flood.")
@click.option("--retained", type=click.IntRange(1), default=100_000, show_default=True,
              help="Retained messages, of the kinds retained and retain.")
@click.option("--size", type=click.IntRange(0), default=32, show_default=True, help="Bytes of each of them.")
@click.option("--duration", "seconds", type=Number(0, min_open=True), default=5.0, show_default=True,
              help="Seconds measured.")
@click.option("--warmup", type=Number(0), default=1.0, show_default=True, help="Seconds before that.")
@click.option("--smoke", is_flag=True, help="A flood of a fraction of a second, to see that it works.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
def flood_command(smoke: bool, as_json: bool, **given: Any) -> None:
    """Flood FluxMQ with one kind of request: how long another client waits for its answers, and what the flood gets."""
    if smoke:
        given |= {"seconds": SMOKE_SECONDS, "warmup": SMOKE_WARMUP, "clients": 3, "retained": 1000}
    with temporary("fluxmq-flood-", None) as own:
        figures = run_flood(FloodOptions(folder=own, **given))
    click.echo(json.dumps(figures, indent=2) if as_json else render_flood(figures))


@bench.command(name="record")
@click.option("--rate", type=Number(0, min_open=True), default=200_000.0, show_default=True,
              help="Messages per second, each delivered once.")
@click.option("--pairs", type=click.IntRange(1), default=1, show_default=True, help="Publishers, and subscribers.")
@click.option("--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("--size", type=click.IntRange(16), default=64, show_default=True, help="Payload in bytes.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Of one run with, one without.")
@click.option("--duration", type=Number(0, min_open=True), default=5.0, show_default=True,
              help="Seconds measured of each run.")
@click.option("--warmup", type=Number(0), default=1.0, show_default=True, help="Seconds before that.")
@click.option("--writer", type=click.Choice(["parquet", "none"]), default="parquet", show_default=True,
              help="fluxmq record, or a reader that throws everything away.")
@click.option("--payload", type=click.Choice(["full", "hash", "size"]), default="hash", show_default=True)
@click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where recordings go. Default: the temporary directory.")
@click.option("--no-pin", is_flag=True, help="Leave the choice of processors to the system.")
@click.option("--smoke", is_flag=True, help="A run of a fraction of a second, to see that it works.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
def record_command(folder: Path | None, no_pin: bool, smoke: bool, as_json: bool, **given: Any) -> None:
    """What recording costs the broker's process: the same load with and without it, in turns."""
    if smoke:
        given |= {"rounds": 1, "duration": SMOKE_SECONDS, "warmup": SMOKE_WARMUP, "rate": 5000.0}
    with temporary("fluxmq-record-", folder) as own:
        found = run_recording(RecordBenchOptions(folder=own, pin=not no_pin, **given),
                              lambda line: click.echo(line, err=True))
    click.echo(json.dumps(found, indent=2) if as_json else render_recording(found))


@bench.command(name="client")
@click.option("--addr", default="", help="HOST:PORT of a broker. Default: FluxMQ is started.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns of each client.")
@click.option("--duration", type=Number(0, min_open=True), default=2.0, show_default=True,
              help="Seconds of each turn.")
@click.option("--size", type=click.IntRange(0), default=64, show_default=True, help="Payload in bytes.")
@click.option("--window", type=click.IntRange(1, 900), default=500, show_default=True, help="Messages on their way.")
@click.option("--no-pin", is_flag=True, help="Leave the choice of processors to the system.")
@click.option("--smoke", is_flag=True, help="One round of a fraction of a second.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def client_command(no_pin: bool, smoke: bool, as_json: bool, **given: Any) -> None:
    """Compare clients in Python: fluxmq.client, paho-mqtt and aiomqtt, in turns, publishing and receiving at once."""
    if smoke:
        given |= {"rounds": 1, "duration": SMOKE_SECONDS}
    try:
        results = run_clients(ClientOptions(pin=not no_pin, **given), lambda line: click.echo(line, err=True))
    except (OptionsError, LoadError, BrokerError, OSError) as error:
        fail(error)
    click.echo(json.dumps(results, indent=2) if as_json else render_clients(results))


@bench.command(name="compare")
@click.option("--only", multiple=True, metavar="ROW", help="Run this row only; may be repeated. --list names them.")
@click.option("--group", type=click.Choice(["topics", "queues", "amqp"]), default=None,
              help="Run the rows of this group only.")
@click.option("--list", "list_rows", is_flag=True, help="Name the rows and stop.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Times that each row is run.")
@click.option("--duration", type=Number(0, min_open=True), default=5.0, show_default=True,
              help="Seconds measured of each side in each round.")
@click.option("--warmup", type=Number(0), default=1.0, show_default=True, help="Seconds before that.")
@click.option("--batch", type=click.IntRange(0), default=0, show_default=True,
              help="Most messages a publisher sends at a time; 0 for as many as its window allows.")
@click.option("--ours", type=click.Choice(MQTT_BROKERS), default="fluxmq", show_default=True)
@click.option("--theirs", type=click.Choice(MQTT_BROKERS), default="mosquitto", show_default=True)
@click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where brokers keep their data: a disk, for durable rows. Default: the temporary directory.")
@click.option("--no-pin", is_flag=True, help="Leave the choice of processors to the system.")
@click.option("--smoke", is_flag=True, help="One round of a fraction of a second per row, at small sizes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file too.")
def compare_command(list_rows: bool, as_json: bool, output: Path | None, no_pin: bool, smoke: bool, rounds: int,
                    duration: float, warmup: float, only: tuple[str, ...], group: str | None, **given: Any) -> None:
    """Run FluxMQ and mosquitto alternately through every row of the table and print the ratios.

    Each broker runs alone on the first processor, the load on the second. Goals are shown with met or missed; a missed
    goal does not change the exit status, a side that fails does.
    """
    if list_rows:
        for row in ROWS:
            click.echo(f"{row.key:<16} {row.work}")
        return
    if smoke:
        rounds, duration, warmup = 1, SMOKE_SECONDS, SMOKE_WARMUP
    options = CompareOptions(rounds=rounds, duration=duration, warmup=warmup, smoke=smoke, only=only, pin=not no_pin,
                             group=group or "", **given)
    try:
        results = compare(options, lambda line: click.echo(line, err=True))
    except (OptionsError, OSError) as error:
        fail(error)
    text = json.dumps(results, indent=2)
    if output is not None:
        output.write_text(text + "\n")
    click.echo(text if as_json else render(results))
    if failed(results, smoke):
        raise SystemExit(FAILED)


@bench.command(name="table")
@click.argument("results", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--markdown", "as_markdown", is_flag=True, help="As Markdown.")
def table_command(results: Path, as_markdown: bool) -> None:
    """Print the table of a FILE that `compare --output` wrote."""
    try:
        text = render(json.loads(results.read_text()), as_markdown)
    except (ValueError, KeyError) as error:
        fail(ValueError(f"{results} holds no results of `fluxmq bench compare`: {error!r}"))
    click.echo(text)


@bench.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--duration", type=Number(0, min_open=True), default=2.0, show_default=True,
              help="Seconds to measure.")
@click.option("--block", type=click.IntRange(1, 1 << 30), default=4096, show_default=True, help="Bytes per write.")
@click.option("--smoke", is_flag=True, help="A fraction of a second.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fsync(folder: Path, duration: float, block: int, smoke: bool, as_json: bool) -> None:
    """Measure write + fdatasync in DIR: what a disk charges for one durable batch."""
    try:
        latency = fsync_latency(folder, SMOKE_SECONDS if smoke else duration, block).summary()
    except FloorError as error:
        fail(error)
    click.echo(json.dumps(latency, indent=2) if as_json
               else "\n".join([f"{latency['count']:,} times", *latency_line("fdatasync", latency)]))
