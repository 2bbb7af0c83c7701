"""Commands on recordings as files: `fluxmq record import` and `fluxmq record show`."""
from __future__ import annotations

import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxmq.model.extras import how_to_install

if TYPE_CHECKING:
    from fluxmq.record.reading import Recording

__all__ = ["import_command", "show_command"]


def _need_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise click.ClickException(f"recordings are Parquet, and pyarrow is not installed: {how_to_install('record')}")


def _when(nanoseconds: int | None) -> str:
    if not nanoseconds:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(nanoseconds / 1e9)) + " UTC"


@click.command("import")
@click.argument("capture", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--payload", type=click.Choice(["full", "hash", "size"]), default="hash", show_default=True,
              help="What is kept of payloads.")
@click.option("--mqtt-port", "mqtt_ports", type=click.IntRange(1, 65535), multiple=True,
              help="A broker's port, for connections that began before the capture. Default: 1883.")
@click.option("--amqp-port", "amqp_ports", type=click.IntRange(1, 65535), multiple=True,
              help="Likewise. Default: 5672.")
def import_command(capture: Path, directory: Path, payload: Any, mqtt_ports: tuple[int, ...],
                   amqp_ports: tuple[int, ...]) -> None:
    """Make a recording in DIRECTORY of the MQTT and AMQP 0-9-1 in CAPTURE, a pcap or pcapng file.

    TLS cannot be read. Gaps in the capture are reported at the end and recorded as `lost`, invalid packets
    as `malformed`.
    """
    _need_pyarrow()
    from fluxmq.record.importer import AMQP_PORTS, MQTT_PORTS, import_capture
    from fluxmq.record.options import RecordOptions

    # The package has this name only in an installed tree.
    shown = import_module("fluxmq.spark.progress").shown
    read = (0.0, 0)

    def on_progress(share: float, packets: int) -> None:
        nonlocal read
        read = share, packets

    with shown("import", lambda: (read[0], f"{read[1]} packets")):
        done = import_capture(capture, directory, RecordOptions(payload=payload), mqtt_ports=mqtt_ports or MQTT_PORTS,
                              amqp_ports=amqp_ports or AMQP_PORTS, progress=on_progress)
    click.echo(f"{done.manifest.rows} rows of {done.connections} connections, from {done.packets} packets: {directory}")
    for note in done.notes:
        click.echo(note, err=True)


def _words(recording: Recording) -> str:
    manifest = recording.manifest
    broker = f"{manifest.broker.name} {manifest.broker.version}".strip() or "not known"
    first = min((part.first_time for part in manifest.parts), default=None)
    last = max((part.last_time for part in manifest.parts), default=None)
    machine = manifest.machine
    lines = {
        "recording": manifest.id, "of": "a broker" if manifest.source == "broker" else "a capture",
        "broker": broker + (f", configuration {manifest.config_digest[:12]}" if manifest.config_digest else ""),
        **_cluster_words(recording),
        "machine": f"{machine.system}, {machine.processors} processors, {machine.memory >> 20} MiB",
        "made": f"{_when(manifest.started)} to {_when(manifest.ended)}",
        "traffic": f"{_when(first)} to {_when(last)}",
        "end": manifest.end or "none: it still runs, or was cut off",
        "rows": f"{recording.rows} in {len(recording.parts)} parts, {recording.bytes} bytes",
        "lost": f"{manifest.lost_entries} entries, {manifest.lost_bytes} bytes",
        "left out": f"{manifest.filtered_rows} rows",
        "undecoded": f"{manifest.undecoded_bytes} bytes",
        "options": ", ".join(f"{name} {value}" for name, value in manifest.options.items() if value not in ([], 0)),
    }
    return "\n".join(f"{name:<10} {value}" for name, value in lines.items())


def _cluster_words(recording: Recording) -> dict[str, str]:
    """Of which node of which cluster; of several recordings each in a line."""
    from fluxmq.record.merging import ClusterRecording

    about = recording.manifest.cluster
    if not isinstance(recording, ClusterRecording):
        return {"cluster": f"node {about.node} of {about.id}"} if about.id else {}
    lines = [about.id]
    for one in recording.nodes:
        its = one.manifest
        lines.append(f"{its.cluster.node}: {_when(its.started)} to {_when(its.ended)}, {one.rows} rows, "
                     f"{its.lost_entries} entries lost, {its.end or 'no end'}, {one.path}")
    found = {"cluster": f"\n{'':<11}".join(lines),
             "all nodes": f"{_when(recording.common[0])} to {_when(recording.common[1])}"}
    return found | ({"missing": f"no recording of {', '.join(recording.missing)}"} if recording.missing else {})


@click.command("show")
@click.argument("directories", metavar="DIRECTORY...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The manifest, with the parts that are there.")
def show_command(directories: tuple[Path, ...], as_json: bool) -> None:
    """Show which broker the recording in DIRECTORY is of, when it was made, its size, and how it ended.

    Several are recordings of the nodes of one cluster, or one directory that holds them: they are shown as one.
    """
    _need_pyarrow()
    import msgspec

    from fluxmq.record.merging import open_recordings

    recording = open_recordings(*directories)
    if as_json:
        manifest = msgspec.to_builtins(recording.manifest) | {
            "rows": recording.rows, "files": [
                path.name if len(recording.nodes) == 1 else f"{path.parent.name}/{path.name}"
                for path in recording.parts]}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n")
    else:
        click.echo(_words(recording))
