"""`fluxmq record`: records a running broker for a while. This process writes the files; the broker only fills the ring.

The broker is asked over its admin socket and records for as long as that connection is open. If this command fails in
any way, the broker notices it and continues.
"""
from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fluxmq.app.config_options import duration, file_option
from fluxmq.app.record_files_cli import import_command, show_command
from fluxmq.app.running import broker_sockets, node_option
from fluxmq.model.extras import how_to_install

if TYPE_CHECKING:
    from fluxmq.model.config import Config
    from fluxmq.record.manifest import Manifest
    from fluxmq.record.options import Progress, RecordOptions

__all__ = ["record"]

_GOODBYE_SECONDS = 5.0  # time for a broker that ends the stream to mark the end in the ring as well
_PROTOCOLS = ("mqtt", "amqp091")
_PAYLOADS = ("full", "hash", "size")


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    from fluxmq.model.units import parse_size

    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error) or "write a size such as 64MiB") from None


def _filters(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from fluxmq.app.config_checks import is_topic_choice

    for value in values:
        if not is_topic_choice(value):
            raise click.BadParameter(f"{value!r} is no filter of topics, such as sensors/+/temperature or plant/#")
    return values


def _patterns(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    if "" in values:
        raise click.BadParameter("a client id may not be empty")
    return values


@click.group(invoke_without_command=True)
@click.option("--attach", "sockets", type=click.Path(path_type=Path), metavar="ADDR", multiple=True,
              help="The broker's admin socket. Default: that of the only broker that runs on this machine. Several: "
                   "nodes of a cluster on this machine, each recorded into node=NAME of DIR.")
@node_option(several=True)
@file_option("The broker's configuration file: where its socket is, and the defaults of the options below (section "
             "record).")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Directory of this recording, new or empty. Default: one named by date and time in record.dir.")
@click.option("--topic", "topics", multiple=True, callback=_filters, metavar="FILTER",
              help="Only PUBLISH packets to these. Repeatable.")
@click.option("--client", "clients", multiple=True, callback=_patterns, metavar="PATTERN",
              help="Only clients whose id matches; * and ? are wild. Repeatable.")
@click.option("--protocol", "protocols", multiple=True, type=click.Choice(_PROTOCOLS), help="Only these. Repeatable.")
@click.option("--sample", type=click.IntRange(1, 100), metavar="PERCENT",
              help="Record this share of the clients, each completely.")
@click.option("--payload", type=click.Choice(_PAYLOADS), help="What is kept of payloads.")
@click.option("--max-rows", type=click.IntRange(1), help="Start a new file after this many rows.")
@click.option("--max-size", callback=_size, metavar="SIZE", help="Start a new file at this size.")
@click.option("--max-time", callback=duration, metavar="TIME", help="Start a new file after this time.")
@click.option("--max-disk", callback=_size, metavar="SIZE", help="Stop when all files together reach this size.")
@click.option("--ring-size", callback=_size, metavar="SIZE", help="Memory between broker and writer.")
@click.option("--duration", callback=duration, metavar="TIME", help="Stop after this time. Default: at Ctrl+C.")
@click.option("--parent", type=int, default=0, hidden=True)     # stop when this process, which started it, has ended
@click.pass_context
def record(context: click.Context, /, sockets: tuple[Path, ...], nodes: tuple[str, ...], file: Path | None,
           directory: Path | None, duration: float | None, ring_size: int | None, parent: int, **given: Any) -> None:
    """Record the traffic of a running broker into DIR, until Ctrl+C. See docs/recording.md."""
    if context.invoked_subcommand is not None:
        return
    if find_spec("pyarrow") is None:
        raise click.ClickException(f"recordings are Parquet, and pyarrow is not installed: {how_to_install('record')}")
    from fluxmq.app.config import load
    from fluxmq.record.supervisor import recording_name

    config = load(file, os.environ)[0]
    if directory is None:
        directory = Path(config.record.dir) / recording_name(time.time_ns())
    found = broker_sockets(sockets, file, nodes, "--attach")
    if len(found) > 1:
        from fluxmq.app.record_nodes import record_nodes

        context.exit(record_nodes(found, directory, _words(given | {
            "config": file, "duration": duration, "ring_size": ring_size})))
    manifest = _record(found[0], directory, _options(config, given), _Stop(duration, parent), ring_size)
    lost = f"; {manifest.lost_entries} entries lost, {_bytes(manifest.lost_bytes)}" if manifest.lost_entries else ""
    click.echo(f"{directory}: {manifest.rows} rows in {len(manifest.parts)} files{lost} ({manifest.end})")
    if manifest.end not in ("stopped", "broker ended", "cap reached"):
        context.exit(1)


def _words(given: dict[str, Any]) -> list[str]:
    """The options again, for the command of one node."""
    repeated = {"topics": "--topic", "clients": "--client", "protocols": "--protocol"}
    words = [word for name, option in repeated.items() for value in given.pop(name) for word in (option, value)]
    return words + [word for name, value in given.items() if value is not None
                    for word in (f"--{name.replace('_', '-')}", str(value))]


def _options(config: Config, given: dict[str, Any]) -> RecordOptions:
    """Options of the command line over those of the section `record`. --max-disk applies to this recording only."""
    import msgspec

    from fluxmq.record.supervisor import recording_options

    words: dict[str, Any] = {"topics": given["topics"], "clients": given["clients"], "protocols": given["protocols"],
                             "sample": given["sample"] and given["sample"] / 100, "payload": given["payload"],
                             "max_rows": given["max_rows"], "max_bytes": given["max_size"],
                             "max_seconds": given["max_time"], "cap_bytes": given["max_disk"]}
    return msgspec.structs.replace(recording_options(config.record, config.record.max_disk),
                                   **{word: value for word, value in words.items() if value})


def _record(path: Path, directory: Path, options: RecordOptions, stopping: _Stop, ring_size: int | None) -> Manifest:
    import msgspec

    from fluxmq.app.admin_client import AdminClient
    from fluxmq.record.options import BrokerAbout
    from fluxmq.record.ring import open_ring
    from fluxmq.record.writer import run_writer

    client = AdminClient(path, "--attach")
    os.umask(0o077)
    try:
        # The broker records before its answer arrives, so a signal in between ends the recording, not the process.
        with stopping as stop:
            found, stream = client.record(ring_size or 0)
            reader = open_ring(found["ring"])
            about = msgspec.convert(found["about"], BrokerAbout)
            shown = _Shown(stop.duration)
            stop.follow(stream, int(found["pid"]))
            try:
                manifest: Manifest = run_writer(reader, options, directory, about=about, stop=stop, progress=shown)
                return manifest
            finally:
                shown.done()
    finally:
        client.close()


class _Stop:
    """Tells the writer whether to end. Inside the block, SIGINT and SIGTERM do not end the process; but the second
    signal does while the broker has not answered yet, because its answer may take long. parent: the process whose end
    is as a signal; 0: none."""

    def __init__(self, duration: float | None, parent: int = 0) -> None:
        self.duration = duration
        self._parent = parent
        self._until: float | None = None
        self._pid = 0  # of the broker; 0: it has not answered yet
        self._signalled = False
        self._left_at: float | None = None
        self._handlers: dict[int, Any] = {}

    def follow(self, stream: Any, pid: int) -> None:
        """Called when the broker has answered: the duration begins, and the end of the stream ends the recording."""
        self._until = None if self.duration is None else time.monotonic() + self.duration
        self._pid = pid
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        try:
            for _ in stream:  # empty lines
                pass
        finally:
            self._left_at = time.monotonic()

    def __enter__(self) -> _Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _signal(self, number: int, frame: object) -> None:
        if self._signalled and not self._pid:
            signal.signal(number, self._handlers[number])
            signal.raise_signal(number)
        self._signalled = True

    def __call__(self) -> str | None:
        now = time.monotonic()
        if (self._signalled or (self._until is not None and now >= self._until)
                or (self._parent and os.getppid() != self._parent)):
            return "stopped"
        # A broker that stops ends the stream before it disconnects its clients: the ring has the end of the recording.
        if self._left_at is not None and (now - self._left_at > _GOODBYE_SECONDS
                                          or not os.path.exists(f"/proc/{self._pid}")):
            return "broker ended"
        return None


class _Shown:
    """The progress line on a terminal."""

    def __init__(self, duration: float | None) -> None:
        self._terminal = sys.stderr.isatty()
        self._since = time.monotonic()
        self._duration = duration

    def __call__(self, progress: Progress) -> None:
        if self._terminal:
            passed = time.monotonic() - self._since
            of = f" of {self._duration:.0f}" if self._duration is not None else ""
            lost = f", {progress.lost_entries} entries lost" if progress.lost_entries else ""
            click.echo(f"\r\x1b[K{passed:.0f}{of} s: {progress.rows} rows, {_bytes(progress.bytes)}{lost}", err=True,
                       nl=False)

    def done(self) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def _bytes(number: float) -> str:
    unit: Literal["B", "KiB", "MiB", "GiB"]
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


record.add_command(import_command)
record.add_command(show_command)
