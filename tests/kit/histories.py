"""Results of replays for tests: rows as dicts → a DataFrame of several results, or a result's directory."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluxmq.spark.result import SCHEMA, EventsWriter, Summary, create_result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["frame", "table", "write"]


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_dictionary(kind) else kind


def table(histories: Mapping[str, Iterable[dict[str, Any]]]) -> pa.Table:
    """Rows of result.SCHEMA with `run`, the history's name. `detail` may be a dict; what is not given is null."""
    columns: dict[str, list[Any]] = {"run": [], **{name: [] for name in SCHEMA.names}}
    for run, rows in histories.items():
        for row in rows:
            columns["run"].append(run)
            for name in SCHEMA.names:
                value = row.get(name)
                columns[name].append(json.dumps(value) if isinstance(value, dict) else value)
    schema = pa.schema([("run", pa.string()), *[(entry.name, _plain(entry.type)) for entry in SCHEMA]])
    return pa.table(columns, schema)


def frame(spark: SparkSession, histories: Mapping[str, Iterable[dict[str, Any]]]) -> DataFrame:
    """What violations.judged() is given."""
    return spark.createDataFrame(table(histories))


def write(path: Path, rows: Iterable[dict[str, Any]], *, complete: bool = True, why: str = "",
          broker: str = "") -> Path:
    """A result's directory. broker: the address that it was played against."""
    place = create_result(path, Summary(run=1, complete=complete, why=why, broker={"address": broker}))
    writer = EventsWriter(place, 0)
    for batch in table({"": rows}).drop_columns(["run"]).cast(SCHEMA).to_batches():
        writer.write(batch)
    writer.close()
    return path
