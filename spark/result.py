"""A replay's result: its table, summary.json, the writer of both and the way to read them.

    RESULT/summary.json                 replaced as a whole (rename); `complete` is false until the replay ended well
    RESULT/events/part-0000-0001.parquet    task and number; _part-….open while it is being written

RESULT is a directory, or a URI that pyarrow knows (hdfs://, s3://, gs://): what every executor and the driver reach.
"""
from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from fluxmq._core.errors import FluxError
from fluxmq.spark.session import file_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EVENTS", "FORMAT", "SCHEMA", "VERSION", "EventsWriter", "Place", "Result", "ResultError", "Summary",
           "create_result", "open_result", "unused_place"]

FORMAT = "fluxmq-result"
VERSION = 1
SUMMARY = "summary.json"
EVENTS_FOLDER = "events"
ROWS_PER_FILE = 8_000_000

EVENTS = ("publish", "delivery", "subscribe", "unsubscribe", "connect", "disconnect", "lost-connection",
          "method", "settlement")

_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([
    ("event", _NAME), ("client", _NAME), ("client_number", pa.int64()), ("connection", pa.int32()), ("op", pa.int64()),
    ("topic", _NAME), ("qos", pa.int8()), ("retain", pa.bool_()), ("dup", pa.bool_()), ("size", pa.int64()),
    ("publisher", pa.int64()), ("publisher_op", pa.int64()), ("due", pa.int64()), ("sent", pa.int64()),
    ("acked", pa.int64()), ("reason", pa.int32()), ("detail", pa.string()),
])


class ResultError(FluxError):
    """A result cannot be written or read. One sentence with the file and the reason."""


@dataclass(slots=True)
class Summary:
    """summary.json. Instants: ns since 1970.

    run: tag in the traces, unsigned 32 bits. broker: {"address": …, "name": …, "version": …}, the latter two if
    known. finished: None while it runs. complete: everything was sent, and the end was reached. why: one sentence, ""
    when complete. cpu: [instant, seconds of the broker's process]. memory: [instant, its resident bytes]. counts: rows
    by event. not_sent: operations whose connection was gone. not_replayed: what no player plays, by reason. recorded:
    as counts, what the recording has of publish, delivery and settlement, times the copies; empty in results of an
    earlier version.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    run: int = 0
    recording: dict[str, Any] = field(default_factory=dict)
    broker: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    started: int | None = None
    finished: int | None = None
    complete: bool = False
    why: str = ""
    cpu: list[tuple[int, float]] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)
    partitions: int = 0
    not_sent: int = 0
    not_replayed: dict[str, int] = field(default_factory=dict)
    late_ns_max: int = 0

    def to_json(self) -> bytes:
        return (json.dumps({"format": FORMAT, "version": VERSION} | asdict(self), indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes, name: str) -> Summary:
        """name: of the file, for the message. Unknown keys of a later minor form are ignored. Raises ResultError."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ResultError(f"{name} is not JSON: {error}") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ResultError(f"{name} is not the summary of a replay's result: its format is not {FORMAT!r}")
        version = found.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise ResultError(f"{name} has version {version}, this FluxMQ reads up to {VERSION}: use a newer one")
        known = {entry.name: found[entry.name] for entry in fields(cls) if entry.name in found}
        for key in ("id", "run", "complete"):
            if key not in known:
                raise ResultError(f"{name} has no {key!r}: it was not written by a replay")
        return cls(**known)


class Place:
    """A directory, local or behind a URI. Raises ResultError where the system refuses."""

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        try:
            if "://" in self.name:
                self.system, self.root = pafs.FileSystem.from_uri(self.name)
            else:
                self.system, self.root = pafs.LocalFileSystem(), str(Path(path).absolute())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ResultError(f"{self.name} is no place for a result: {error}") from None

    def path(self, *parts: str) -> str:
        return str(PurePosixPath(self.root, *parts))

    def read(self, name: str) -> bytes | None:
        """None if there is no such file."""
        path = self.path(name)
        try:
            if self.system.get_file_info(path).type != pafs.FileType.File:
                return None
            with self.system.open_input_stream(path, compression=None) as stream:
                return bytes(stream.read())
        except OSError as error:
            raise ResultError(f"{path} cannot be read: {error}") from None

    def write(self, name: str, content: bytes) -> None:
        """Replaces a file as a whole."""
        path = self.path(name)
        try:
            with self.system.open_output_stream(path + ".open", compression=None) as stream:
                stream.write(content)
            self.system.move(path + ".open", path)
        except OSError as error:
            raise ResultError(f"{path} cannot be written: {error}") from None

    def names(self, folder: str, suffix: str) -> list[str]:
        """Files of a folder, sorted."""
        found = self.system.get_file_info(pafs.FileSelector(self.path(folder), allow_not_found=True))
        return sorted(info.base_name for info in found if info.is_file and info.base_name.endswith(suffix))

    def remove(self, folder: str) -> None:
        if self.system.get_file_info(self.path(folder)).type == pafs.FileType.Directory:
            self.system.delete_dir(self.path(folder))


def unused_place(path: str | Path) -> Place:
    """The place for a new result. Raises ResultError if something exists there already."""
    place = Place(path)
    try:
        if place.system.get_file_info(pafs.FileSelector(place.root, allow_not_found=True)):
            raise ResultError(f"{place.name} is not empty: name a new directory for the result")
    except OSError as error:
        raise ResultError(f"{place.name} cannot be looked at: {error}") from None
    return place


def create_result(path: str | Path, summary: Summary) -> Place:
    """Makes an empty result, marked incomplete. Raises ResultError if something exists there already."""
    place = unused_place(path)
    try:
        place.system.create_dir(place.path(EVENTS_FOLDER), recursive=True)
    except OSError as error:
        raise ResultError(f"{place.name} cannot be made: {error}") from None
    place.write(SUMMARY, summary.to_json())
    return place


class EventsWriter:
    """Parquet files of one task. Each is complete as soon as it has its final name."""

    def __init__(self, place: Place, task: int) -> None:
        self.place = place
        self.task = task
        self.rows = 0
        self.counts: dict[str, int] = {}
        self._number = 0
        self._in_file = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """batch: of SCHEMA. Raises ResultError."""
        try:
            if self._writer is None:
                self._number += 1
                self._writer = pq.ParquetWriter(self._open_path(), SCHEMA, filesystem=self.place.system,
                                                compression="zstd", compression_level=1)
            self._writer.write_batch(batch)
        except OSError as error:
            raise ResultError(f"{self._path()} cannot be written: {error}") from None
        self.rows += batch.num_rows
        self._in_file += batch.num_rows
        for entry in batch.column("event").value_counts().to_pylist():
            self.counts[entry["values"]] = self.counts.get(entry["values"], 0) + entry["counts"]
        if self._in_file >= ROWS_PER_FILE:
            self.close()

    def close(self) -> None:
        """Closes the open file; more may be written after it. Raises ResultError."""
        if self._writer is None:
            return
        writer, self._writer, self._in_file = self._writer, None, 0
        try:
            writer.close()
            self.place.system.move(self._open_path(), self._path())
        except OSError as error:
            raise ResultError(f"{self._path()} cannot be written: {error}") from None

    def _path(self) -> str:
        return self.place.path(EVENTS_FOLDER, f"part-{self.task:04}-{self._number:04}.parquet")

    def _open_path(self) -> str:
        """Name while it is written: readers of Parquet ignore names that begin with an underscore."""
        return self.place.path(EVENTS_FOLDER, f"_part-{self.task:04}-{self._number:04}.parquet.open")


class Result:
    """An existing result: `summary`, `files` (full names), and its rows as Arrow or as a Spark DataFrame."""

    def __init__(self, place: Place, summary: Summary, names: list[str]) -> None:
        self.place = place
        self.summary = summary
        self.files = [place.path(EVENTS_FOLDER, name) for name in names]

    @property
    def name(self) -> str:
        return self.place.name

    def dataset(self) -> ds.Dataset:
        return ds.dataset(self.files, schema=SCHEMA, format="parquet", filesystem=self.place.system)

    def batches(self, columns: list[str] | None = None,
                filter: ds.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """Raises ResultError for a file that is damaged."""
        if self.files:
            try:
                yield from self.dataset().to_batches(columns=columns, filter=filter)
            except (pa.ArrowException, OSError) as error:
                raise ResultError(f"the events of {self.name} cannot be read: {error}") from None

    def table(self, columns: list[str] | None = None, filter: ds.Expression | None = None) -> pa.Table:
        """All rows, or those that pass. Raises ResultError."""
        schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
        return pa.Table.from_batches(self.batches(columns, filter), schema)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows; dictionary columns are strings."""
        if not self.files:
            empty = pa.schema([(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in SCHEMA])
            return spark.createDataFrame(empty.empty_table())
        remote = "://" in self.name
        return spark.read.parquet(*([f"{self.name.rstrip('/')}/{EVENTS_FOLDER}/{PurePosixPath(name).name}"
                                     for name in self.files] if remote else list(map(file_url, self.files))))


def open_result(path: str | Path, *, partial: bool = True) -> Result:
    """The result in a directory. partial: whether one that is marked incomplete is accepted.

    Raises ResultError: no result, a newer version, an events file that is truncated or holds something else.
    """
    place = Place(path)
    content = place.read(SUMMARY)
    if content is None:
        raise ResultError(f"{place.name} is not a replay's result: it has no {SUMMARY}")
    summary = Summary.from_json(content, place.path(SUMMARY))
    if not partial and not summary.complete:
        raise ResultError(f"{place.name} is a partial result: {summary.why or 'its replay did not end'}")
    names = place.names(EVENTS_FOLDER, ".parquet")
    for name in names:
        _check(place, place.path(EVENTS_FOLDER, name))
    return Result(place, summary, names)


def _check(place: Place, path: str) -> None:
    try:
        schema = pq.read_schema(path, filesystem=place.system)
    except (pa.ArrowException, OSError) as error:
        raise ResultError(f"{path} is not a whole Parquet file: {str(error).splitlines()[0]}") from None
    for wanted in SCHEMA:
        index = schema.get_field_index(wanted.name)
        if index < 0:
            raise ResultError(f"{path} is not of a replay's result: it has no column {wanted.name!r}")
        found = schema.field(index).type
        plain = pa.types.is_dictionary(wanted.type) and found == pa.string()
        if found != wanted.type and not plain:
            raise ResultError(f"{path} is not of a replay's result: column {wanted.name!r} is {found}, "
                              f"not {wanted.type}")
