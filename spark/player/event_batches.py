"""Chunks of a replay's rows as Arrow, in the schema of the result."""
from __future__ import annotations

import numpy as np
import pyarrow as pa

from fluxmq._core.client.replay_rows import NO_VALUE, Chunk, ReplayRows
from fluxmq.spark.result import EVENTS, SCHEMA

__all__ = ["EventBatches"]

_KINDS = {"q": np.int64, "i": np.int32, "b": np.int8}
_NEVER_NULL = {"event", "client", "client_number", "connection", "op", "size", "sent", "reason"}


class EventBatches:
    """Keeps the names for the numbers in chunks from one chunk to the next."""

    def __init__(self, rows: ReplayRows) -> None:
        self.rows = rows
        self._events = pa.array(EVENTS)
        self._clients = self._topics = pa.array([], pa.string())

    def batch(self, chunk: Chunk) -> pa.RecordBatch:
        """One chunk; its arrays are Arrow's from here on."""
        if len(self._clients) != len(self.rows.clients):
            self._clients = pa.array(self.rows.clients, pa.string())
        if len(self._topics) != len(self.rows.topics):
            self._topics = pa.array([topic.decode() for topic in self.rows.topics], pa.string())
        names = {"event": self._events, "client": self._clients, "topic": self._topics}
        columns: list[pa.Array] = []
        for entry in SCHEMA:
            if entry.name == "detail":
                columns.append(self._details(chunk))
                continue
            source = chunk.columns[entry.name]
            values = np.frombuffer(source, _KINDS[source.typecode])[:chunk.rows]
            if entry.name in names:
                mask = None if entry.name in _NEVER_NULL else values < 0
                columns.append(pa.DictionaryArray.from_arrays(pa.array(values, mask=mask), names[entry.name]))
            elif pa.types.is_boolean(entry.type):
                columns.append(pa.array(values.astype(bool)))
            elif entry.name in _NEVER_NULL:
                columns.append(pa.array(values))
            else:
                columns.append(pa.array(values, mask=values == (-1 if entry.type == pa.int8() else NO_VALUE)))
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    @staticmethod
    def _details(chunk: Chunk) -> pa.Array:
        if not chunk.details:
            return pa.nulls(chunk.rows, pa.string())
        return pa.array([chunk.details.get(at) for at in range(chunk.rows)], pa.string())
