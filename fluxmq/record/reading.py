"""A recording on disk, opened and checked: its manifest, its parts, and their rows.

Every fault is a RecordingError with one sentence that names the file. Parts that the manifest does not name
yet, of a recording that runs or was cut off, are read: a part with its final name is complete.
"""
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fluxmq.record.manifest import Manifest, RecordingError, read_manifest
from fluxmq.record.schema import COLUMNS, SCHEMA, columns_before, current, differences, is_version_1

__all__ = ["Recording", "RecordingError", "open_recording"]


class Recording:
    """Value. path, manifest, parts (paths, in the order of their rows), schema (of the format), rows (of all parts),
    bytes (of all parts)."""

    def __init__(self, path: Path, manifest: Manifest, parts: list[Path], rows: list[int]) -> None:
        self.path = path
        self.manifest = manifest
        self.parts = parts
        self.part_rows = rows
        self.schema = SCHEMA

    @property
    def nodes(self) -> list["Recording"]:
        """The recordings that it consists of, one for each node of a cluster (merging.py): this one."""
        return [self]

    @property
    def rows(self) -> int:
        return sum(self.part_rows)

    @property
    def bytes(self) -> int:
        return sum(part.stat().st_size for part in self.parts)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in order, a row group or less at a time. columns: names, in the order wanted; None: all of the
        format. RecordingError when a part is damaged within."""
        names = [column.name for column in COLUMNS] if columns is None else list(columns)
        for part in self.parts:
            try:
                with pq.ParquetFile(part) as file:
                    before = is_version_1(file.schema_arrow)
                    for batch in file.iter_batches(columns=columns_before(names) if before else names):
                        yield current(batch, names) if before else batch.select(names)
            except (OSError, pa.ArrowException) as error:
                raise RecordingError(f"{part}: this part is damaged: {_first_line(error)}") from error

    def protocols(self) -> frozenset[str]:
        """The protocols of its rows (`mqtt`, `amqp091`). Nearly always the footers suffice; a row group is read only
        where it has several. RecordingError when a part is damaged within."""
        names: set[str] = set()
        for part in self.parts:
            try:
                with pq.ParquetFile(part) as file:
                    at = file.schema_arrow.get_field_index("protocol")
                    for group in range(file.num_row_groups):
                        about = file.metadata.row_group(group).column(at).statistics
                        if about is not None and about.has_min_max and about.min == about.max:
                            names.add(about.min)
                        else:
                            column = file.read_row_group(group, columns=["protocol"])["protocol"]
                            names.update(column.unique().to_pylist())
            except (OSError, pa.ArrowException) as error:
                raise RecordingError(f"{part}: this part is damaged: {_first_line(error)}") from error
        return frozenset(names - {None})

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows at once. RecordingError."""
        names = [column.name for column in COLUMNS] if columns is None else list(columns)
        schema = pa.schema([SCHEMA.field(name) for name in names])
        return pa.Table.from_batches((batch.cast(schema) for batch in self.batches(names)), schema=schema)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _rows_of(part: Path) -> int:
    """Checks a part's footer and schema."""
    try:
        with pq.ParquetFile(part) as file:
            different = differences(file.schema_arrow)
            rows = int(file.metadata.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise RecordingError(f"{part}: this is not a whole Parquet file, it may have been cut off: "
                             f"{_first_line(error)}") from error
    if different:
        raise RecordingError(f"{part}: this is not a part of a recording: it {different}")
    return rows


def open_recording(path: str | Path) -> Recording:
    """Opens the recording in that directory and looks at the footer of every part. Raises RecordingError."""
    directory = Path(path)
    manifest = read_manifest(directory)
    parts = sorted(directory.glob("part-*.parquet"))
    there = {part.name for part in parts}
    missing = [part.name for part in manifest.parts if part.name not in there]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RecordingError(f"{directory}: {missing[0]}{more} is missing, which the manifest names; the recording is "
                             "not complete")
    rows = [_rows_of(part) for part in parts]
    known = {part.name: part.rows for part in manifest.parts}
    for part, count in zip(parts, rows, strict=True):
        if known.get(part.name, count) != count:
            raise RecordingError(f"{part}: it has {count} rows where the manifest says {known[part.name]}; it is not "
                                 "the file that was written")
    return Recording(directory, manifest, parts, rows)
