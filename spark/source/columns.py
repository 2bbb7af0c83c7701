"""Columns of the data source `fluxmq`: their schema, and Arrow batches from the buffers of `_core/queue/rows`."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fluxmq._core.errors import FluxError

if TYPE_CHECKING:
    from fluxmq._core.queue.rows import Rows

__all__ = ["SCHEMA", "Columns", "SourceError"]


class SourceError(FluxError):
    """The data source cannot execute a request: one sentence with a remedy."""


_TEXTS = MapType(StringType(), StringType(), True)
SCHEMA = StructType([
    StructField("queue", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("time", TimestampType()),
    StructField("topic", StringType()),
    StructField("payload", BinaryType()),
    StructField("content_type", StringType()),
    StructField("key", StringType()),
    StructField("priority", ShortType()),
    StructField("qos", ByteType()),
    StructField("expiry", TimestampType()),
    StructField("properties", _TEXTS),
    StructField("headers", _TEXTS),
    StructField("format", StringType()),
])
_WHOLE = pa.int32()


class Columns:
    """Makes Arrow batches of the columns of `schema`, a part of SCHEMA. Raises SourceError for others."""

    def __init__(self, schema: StructType, queue: str, partition: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        check_schema(schema)
        self.arrow = to_arrow_schema(schema, timezone="UTC")
        self._constants = {"queue": pa.scalar(queue, pa.string()), "partition": pa.scalar(partition, _WHOLE)}

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """The rows added since the last call."""
        count, taken = rows.count, rows.take()
        arrays = []
        for field in self.arrow:
            constant = self._constants.get(field.name)
            if constant is not None:
                arrays.append(pa.repeat(constant, count))
            else:
                arrays.append(_array(field.type, count, taken[field.name]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


def check_schema(schema: StructType) -> None:
    """Raises SourceError if a schema has columns that this source does not have."""
    known = {field.name: field for field in SCHEMA}
    for field in schema:
        if field.name not in known:
            raise SourceError(f"the data source fluxmq has no column {field.name}; it has {', '.join(known)}")
        if field.dataType.simpleString() != known[field.name].dataType.simpleString():
            raise SourceError(f"the column {field.name} is of type {known[field.name].dataType.simpleString()}, not "
                              f"{field.dataType.simpleString()}: leave `schema()` out, and cast behind `load()`")


def _array(kind: pa.DataType, count: int, buffers: Any) -> pa.Array:
    if pa.types.is_map(kind):
        ends, names, values = buffers
        entries = int.from_bytes(ends[-4:], "little")
        pairs = pa.StructArray.from_arrays(
            [_array(kind.key_type, entries, names), _array(kind.item_type, entries, values)],
            fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends)], children=[pairs])
    valid = pa.py_buffer(buffers[0]) if buffers[0] else None
    return pa.Array.from_buffers(kind, count, [valid, *map(pa.py_buffer, buffers[1:])])
