"""Recordings made of captures that a test wrote with kit.pcap, and rows to compare theirs with."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from fluxmq._core.record.rows import RecordRows
from fluxmq.record.files import batch_of_columns
from fluxmq.record.imported import Imported
from fluxmq.record.importer import import_capture
from fluxmq.record.options import RecordOptions
from fluxmq.record.reading import open_recording
from kit.pcap import Talk, write_capture
from kit.record_entries import MQTT, entry

EVENTS = ("opened", "accepted", "closed", "lost")


def imported(tmp_path: Path, talks: list[Talk], **words: Any) -> tuple[Imported, list[dict[str, Any]]]:
    packets = sorted((packet for talk in talks for packet in talk.packets), key=lambda packet: packet[0])
    write_capture(tmp_path / "c.pcap", packets, **words)
    return imported_file(tmp_path)


def imported_file(tmp_path: Path) -> tuple[Imported, list[dict[str, Any]]]:
    done = import_capture(tmp_path / "c.pcap", tmp_path / "r", RecordOptions(payload="full"))
    return done, plain(open_recording(tmp_path / "r").table())


def plain(table: Any) -> list[dict[str, Any]]:
    at = table.schema.get_field_index("time")
    return table.set_column(at, "time", table["time_ns"]).drop_columns("time_ns").to_pylist()


def direct(pieces: list[tuple[int, bytes]], protocol: int = MQTT) -> list[dict[str, Any]]:
    """The rows that a tap's entries of these bytes give."""
    machine = RecordRows(payload="full")
    machine.feed(b"".join(entry(kind, 1, data, protocol=protocol) for kind, data in pieces))
    return plain(pa.Table.from_batches([batch_of_columns(*machine.take())]))


def compared(rows: list[dict[str, Any]], *, leave: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Without events, times, and numbers that depend on events."""
    packets = [row for row in rows if row["kind"] not in EVENTS]
    place = {row["seq"]: n for n, row in enumerate(packets)}
    gone = {"seq", "time", "ack_latency", "connection", *leave}
    return [{name: place.get(value) if name == "answers" else value for name, value in row.items() if name not in gone}
            for row in packets]


def open_talk(**words: Any) -> Talk:
    talk = Talk(**words)
    talk.opened()
    return talk
