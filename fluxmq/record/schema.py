"""The one table of a recording: its columns, in order, with their types and what they mean.

docs/recording.md shows this table; a test compares the two. A part that has more columns is of a later minor form and
is read; a column that is missing, or of another type, makes it something else. Parts of version 1 had no `time_ns`, and
a `time` in nanoseconds, which Spark reads by a legacy setting only: `current` makes the columns of today of theirs.
"""
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["COLUMNS", "DICTIONARIES", "SCHEMA", "Column", "columns_before", "current", "differences", "is_version_1",
           "microseconds"]

_WORD = pa.dictionary(pa.int32(), pa.string())


class Column(NamedTuple):
    """name, type, whether a row may be without it, and what it holds."""

    name: str
    type: pa.DataType
    nullable: bool
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("seq", pa.int64(), False, "number of the row, from 0, in the order in which the broker read and wrote"),
    Column("time", pa.timestamp("us", "UTC"), False, "when the broker read or wrote it, truncated to a microsecond"),
    Column("time_ns", pa.int64(), False, "the same, exact: ns since 1970"),
    Column("connection", pa.int64(), False, "number of the connection; 0 in a row `lost` of all connections"),
    Column("client_id", _WORD, True, "null until it is known; AMQP: `amqp091-…`"),
    Column("protocol", _WORD, True, "`mqtt`, `amqp091`"),
    Column("version", pa.int8(), True, "MQTT 3, 4, 5; AMQP 91; null until it is known"),
    Column("direction", _WORD, True, "`in` (client to broker), `out`; null for session events"),
    Column("kind", _WORD, False, "the packet or method, by its name in the specification; or `opened`, `accepted`, "
                                 "`closed`, `lost`, `malformed`"),
    Column("channel", pa.int32(), True, "AMQP channel"),
    Column("packet_id", pa.int64(), True, "MQTT packet identifier; AMQP delivery tag; for a publish on a confirm "
                                          "channel its number"),
    Column("topic", _WORD, True, "MQTT topic name, aliases resolved; AMQP routing key"),
    Column("exchange", _WORD, True, "AMQP exchange"),
    Column("qos", pa.int8(), True, "QoS of a PUBLISH; AMQP delivery mode"),
    Column("retain", pa.bool_(), True, "RETAIN of a PUBLISH"),
    Column("dup", pa.bool_(), True, "DUP of a PUBLISH; AMQP redelivered"),
    Column("reason", pa.int32(), True, "reason or return code, if the packet has one; AMQP reply code"),
    Column("properties", pa.string(), True, "JSON: properties of MQTT 5, or of an AMQP content header"),
    Column("detail", pa.string(), True, "JSON: other fields of the packet"),
    Column("payload", pa.binary(), True, "with payload `full`"),
    Column("digest", pa.int64(), True, "XXH64 of the payload, seed 0, as a signed number; with payload `hash`, `full`"),
    Column("size", pa.int64(), True, "bytes of the payload"),
    Column("bytes", pa.int64(), True, "bytes of the packet, or of all its frames"),
    Column("answers", pa.int64(), True, "`seq` of the row that this one acknowledges"),
    Column("ack_latency", pa.int64(), True, "ns since that row, on its last acknowledgement"),
)

SCHEMA: pa.Schema = pa.schema([pa.field(column.name, column.type, column.nullable) for column in COLUMNS])

# Columns of few different values.
DICTIONARIES: tuple[str, ...] = tuple(column.name for column in COLUMNS if column.type == _WORD)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A dictionary is a way to write strings: a file that was written another way holds the same."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def is_version_1(schema: pa.Schema) -> bool:
    """Whether a part is of the layout before this one: times of nanoseconds in `time`, and no `time_ns`."""
    at = schema.get_field_index("time")
    return bool(schema.get_field_index("time_ns") < 0 and at >= 0
                and schema.field(at).type == pa.timestamp("ns", "UTC"))


def columns_before(names: list[str]) -> list[str]:
    """Which columns of a part of version 1 these columns are made of."""
    return list(dict.fromkeys("time" if name == "time_ns" else name for name in names))


def microseconds(time_ns: pa.Array) -> pa.Array:
    """`time` of `time_ns`."""
    return pc.divide(time_ns, 1000).cast(pa.timestamp("us", "UTC"))


def current(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """The columns `names` of today, of rows of version 1 that have columns_before(names)."""
    made = {name: batch.column(name) for name in batch.schema.names}
    if "time" in made:
        made["time_ns"] = made["time"].cast(pa.int64())
        made["time"] = microseconds(made["time_ns"])
    return pa.RecordBatch.from_arrays([made[name] for name in names], names)


def differences(schema: pa.Schema) -> str:
    """Why a file is no part of a recording, in a few words; "" if it is one."""
    before = is_version_1(schema)
    for column in COLUMNS:
        if before and column.name in ("time", "time_ns"):
            continue
        index = schema.get_field_index(column.name)
        if index < 0:
            return f"has no column {column.name!r}"
        type_ = schema.field(index).type
        if _plain(type_) != _plain(column.type):
            return f"has a column {column.name!r} of type {type_}, which should be {column.type}"
    return ""
