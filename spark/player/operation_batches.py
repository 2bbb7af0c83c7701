"""Batches of OPERATIONS as the player takes them: lists by column, and single rows."""
from __future__ import annotations

from typing import Any

import pyarrow as pa

from fluxmq.spark.player.links import Operation

__all__ = ["columns_of", "operation_at"]


def columns_of(batch: pa.RecordBatch) -> dict[str, Any]:
    """Lists by name; topics as bytes, each once."""
    columns: dict[str, Any] = {name: batch.column(name).to_pylist() for name in batch.schema.names
                               if name not in ("topic", "seq")}
    coded = batch.column("topic").dictionary_encode()
    names = [None if topic is None else topic.encode() for topic in coded.dictionary.to_pylist()]
    columns["topic"] = [None if index is None else names[index] for index in coded.indices.to_pylist()]
    return columns


def operation_at(columns: dict[str, Any], at: int, due: int) -> Operation:
    """One row of columns_of(). due: ns since 1970, NO_VALUE with `--fast`."""
    take = {name: values[at] for name, values in columns.items()}
    return Operation(
        take["kind"], take["link"], take["client_number"], take["client"], take["version"] or 0, take["copy"],
        take["topic"], take["qos"] or 0, bool(take["retain"]), take["size"] or 0, take["payload"], take["properties"],
        take["detail"], take["reason"] or 0, take["rank"], due,
        take["method"], take["channel"] or 0, take["exchange"], take["tag"] or 0)
