"""Parts on disk: record batches in, closed Parquet files out, the manifest kept up.

    _part-000001.parquet.open   being written; readers of Parquet pass over it for its underscore
    part-000001.parquet         closed, synced, whole

A part is closed as soon as it has so many rows or bytes or is so old. Each batch becomes one row group, so that what
is in memory is one batch, and no batch makes the writer wait for long.
"""
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fluxmq.record.manifest import MANIFEST, Manifest, Part, RecordingError, sync_directory, write_manifest
from fluxmq.record.options import RecordOptions
from fluxmq.record.schema import COLUMNS, DICTIONARIES, SCHEMA, microseconds

__all__ = ["OPEN", "SPARE", "RecordingFiles", "batch_of_columns", "batch_of_rows", "part_name", "prepare_directory"]

OPEN = ".open"
# Reserved room for the last manifest, so that it can be written on a full disk.
SPARE = f"{MANIFEST}.spare"
_SPARE_BYTES = 1 << 18
_COMPRESSION = "zstd"
_LEVEL = 1
# Delta encoding for numbers that grow or change little between rows: smaller and faster. The digest is random.
_DELTA = ("seq", "time", "time_ns", "connection", "packet_id", "size", "bytes", "answers", "ack_latency")


def part_name(number: int) -> str:
    """Of part `number`, from 1."""
    return f"part-{number:06d}.parquet"


def prepare_directory(directory: Path) -> None:
    """Makes the directory of a new recording; it and those above that were missing are on disk when this returns.
    RecordingError when it has something in it, or cannot be made."""
    try:
        made = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in reversed(made):
            sync_directory(path.parent)
        if any(directory.iterdir()):
            raise RecordingError(f"{directory}: there is something in it already; a recording needs a directory of "
                                 "its own")
    except OSError as error:
        raise RecordingError(f"{directory}: cannot be used for a recording: {error.strerror}") from error


def _array_of(kind: pa.DataType, count: int, buffers: tuple[Any, ...]) -> pa.Array:
    """From (validity or None, values), of strings (validity, offsets, bytes), of words (validity, indices, the number
    of words, their offsets, their bytes)."""
    if pa.types.is_dictionary(kind):
        validity, indices, words, offsets, data = buffers
        index = pa.Array.from_buffers(pa.int32(), count, [validity and pa.py_buffer(validity), pa.py_buffer(indices)])
        words_array = pa.Array.from_buffers(pa.string(), words, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        return pa.DictionaryArray.from_arrays(index, words_array, safe=False)
    validity, *values = buffers
    return pa.Array.from_buffers(kind, count, [validity and pa.py_buffer(validity), *map(pa.py_buffer, values)])


def batch_of_columns(count: int, columns: Mapping[str, tuple[Any, ...] | None]) -> pa.RecordBatch:
    """From the buffers of RecordRows.take; a column that is None is null throughout. Nothing is copied but
    `time`, which comes in nanoseconds."""
    exact = _array_of(pa.int64(), count, columns["time"] or ())
    times = {"time": microseconds(exact), "time_ns": exact}
    arrays = [times[column.name] if column.name in times else
              pa.nulls(count, column.type) if (buffers := columns[column.name]) is None
              else _array_of(column.type, count, buffers) for column in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def batch_of_rows(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """From rows as dicts, for tests and tools: what is not there is null. time: ns since 1970, of which
    `time_ns` is made too."""
    return pa.RecordBatch.from_pylist(
        [{column.name: row.get(column.name) for column in COLUMNS}
         | {"time": row["time"] // 1000, "time_ns": row["time"]} for row in rows], schema=SCHEMA)


class _OpenPart:
    """Handle. The part being written."""

    def __init__(self, directory: Path, number: int) -> None:
        self.name = part_name(number)
        self._final = directory / self.name
        self._path = directory / f"_{self.name}{OPEN}"
        # It holds the clients' data, so only its owner may read it.
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = pa.OSFile(str(self._path), "wb")
        delta = {name: "DELTA_BINARY_PACKED" for name in _DELTA}
        self._writer = pq.ParquetWriter(self._file, SCHEMA, version="2.6", compression=_COMPRESSION,
                                        compression_level=_LEVEL, use_dictionary=list(DICTIONARIES),
                                        column_encoding=delta)
        self.opened = time.monotonic()
        self.rows = 0
        self.first_time = 0
        self.last_time = 0

    def write(self, batch: pa.RecordBatch) -> None:
        ends = pc.min_max(batch.column("time_ns")).as_py()
        self.first_time = min(self.first_time, ends["min"]) if self.rows else ends["min"]
        self.last_time = max(self.last_time, ends["max"]) if self.rows else ends["max"]
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        self.rows += batch.num_rows

    @property
    def bytes(self) -> int:
        return int(self._file.tell())

    def close(self) -> Part:
        """Ends the file, syncs it, and gives it its name."""
        self._writer.close()
        size = self._file.tell()
        self._file.close()
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._path.rename(self._final)
        return Part(name=self.name, rows=self.rows, bytes=size, first_time=self.first_time, last_time=self.last_time)

    def abandon(self) -> None:
        """Closes and removes an unfinished part, as far as possible."""
        for step in (self._writer.close, self._file.close, lambda: os.close(self._descriptor), self._path.unlink):
            with contextlib.suppress(OSError, pa.ArrowException):
                step()


class RecordingFiles:
    """Machine. A recording that is being written: `write` batches, `close` once.

    directory: empty (prepare_directory). manifest: it is kept up, and written at once, with every part, and at the
    end. update is called before it is written, to fill in what is counted elsewhere. Raises RecordingError when it
    cannot begin, and leaves nothing. Any of its verbs raises OSError when the disk refuses; `close` may then still be
    called, keeps what is closed, and does not raise for the part that could not be.
    """

    def __init__(self, directory: Path, manifest: Manifest, options: RecordOptions,
                 update: Callable[[Manifest], None] | None = None) -> None:
        self.directory = directory
        self.manifest = manifest
        self.failed = False
        self._options = options
        self._update = update or (lambda manifest: None)
        self._open: _OpenPart | None = None
        self._closed_bytes = 0
        self._bytes = 0             # asked for by another thread than the one that opens and closes parts
        self._spare = directory / SPARE
        try:
            descriptor = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _SPARE_BYTES)
            finally:
                os.close(descriptor)
            self._write_manifest()
        except OSError as error:
            for path in (self._spare, directory / MANIFEST, directory / f"{MANIFEST}.new"):
                with contextlib.suppress(OSError):
                    path.unlink()
            raise RecordingError(f"{directory}: a recording cannot begin there: {error.strerror}") from error

    @property
    def rows(self) -> int:
        """Rows written, those of the open part too."""
        part = self._open
        return self.manifest.rows + (part.rows if part else 0)

    @property
    def bytes(self) -> int:
        """Bytes of all parts, the open one as far as it is written."""
        return self._bytes

    @property
    def parts(self) -> int:
        return len(self.manifest.parts)

    @property
    def capped(self) -> bool:
        """Whether the parts have reached the allowed size."""
        return 0 < self._options.cap_bytes <= self.bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows, of SCHEMA, and closes the part when it is full. OSError."""
        if batch.num_rows:
            try:
                if self._open is None:
                    self._open = _OpenPart(self.directory, self.parts + 1)
                self._open.write(batch)
                self._bytes = self._closed_bytes + self._open.bytes
            except OSError:
                self.failed = True
                raise
        self.rotate()

    def rotate(self) -> None:
        """Closes the open part when it is full or old enough. OSError."""
        part = self._open
        if part is not None and (part.rows >= self._options.max_rows or part.bytes >= self._options.max_bytes
                                 or time.monotonic() - part.opened >= self._options.max_seconds):
            self._close_part()

    def _close_part(self) -> None:
        part, self._open = self._open, None
        if part is None:
            return
        try:
            closed = part.close()
        except OSError:
            self.failed = True
            part.abandon()
            raise
        self.manifest.parts.append(closed)
        self.manifest.rows += closed.rows
        self._closed_bytes += closed.bytes
        self._bytes = self._closed_bytes
        self._write_manifest()

    def _write_manifest(self) -> None:
        self._update(self.manifest)
        try:
            write_manifest(self.directory, self.manifest)
        except OSError:
            self.failed = True
            raise

    def close(self, end: str) -> Manifest:
        """Closes the open part and says in the manifest that, and why, the recording ended."""
        refused = self.failed
        try:
            if refused and self._open is not None:
                self._open.abandon()
                self._open = None
            self._close_part()
            self.manifest.end = end
            self.manifest.ended = time.time_ns()
            self._spare.unlink(missing_ok=True)
            self._write_manifest()
        except OSError:
            if not refused:
                raise
        return self.manifest
