"""Commands about messages of a queue: a PUBLISH to `$queue/<name>/$ack`, `$nack`, `$reject`, `$extend` or `$commit`.

A command names its message by user properties: `message-id`, or `partition` and `offset`. They are valid for the
recorded broker only; another one, or the same one later, assigns others. So the replay keeps the position: the command
was for the n-th delivery on its connection from that queue, and is sent for the n-th delivery of this run. This module
finds `rank`, that n counted from 0, with pyarrow; plan_spark.py finds the same with Spark.
"""
from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.compute as pc

from fluxmq._core.wire.queue_address import queue_topic

__all__ = ["COMMAND_PATTERN", "FROM_QUEUE", "command_ranks", "message_named", "queue_of", "user_pairs"]

FROM_QUEUE = queue_topic("")
# Matches the whole topic in Arrow (RE2), Spark (Java) and Python.
COMMAND_PATTERN = r"^\$queue/[^/]+/\$(ack|nack|reject|extend|commit)$"
_QUEUE = re.compile(r"\$queue/([^/]+)")


def queue_of(topic: str) -> str:
    """The queue of a delivery's or a command's topic."""
    found = _QUEUE.match(topic)
    return found[1] if found else ""


def user_pairs(properties: str | None) -> dict[str, str]:
    """User properties of a recorded row; the last value if a name repeats."""
    found = json.loads(properties) if properties else {}
    return {str(name): str(value) for name, value in found.get("user_property") or ()}


def message_named(pairs: dict[str, str]) -> str | None:
    """The `message-id` in these user properties, or made from partition and offset; None if they name no message."""
    if "message-id" in pairs:
        return pairs["message-id"]
    if "partition" in pairs and "offset" in pairs:
        return f"{pairs['partition']}:{pairs['offset']}"
    return None


def command_ranks(table: pa.Table) -> dict[int, int]:
    """`seq` of a command -> the rank of its delivery from its queue on its connection. Commands about messages whose
    delivery the recording does not show are left out. table: rows of MQTT, ordered by `seq`."""
    topics = pc.fill_null(pc.starts_with(table["topic"], FROM_QUEUE), False)
    rows = table.filter(pc.and_(topics, pc.equal(table["kind"], "PUBLISH"))).select(
        ["seq", "connection", "direction", "topic", "properties"])
    counts: dict[tuple[int, str], int] = {}
    latest: dict[tuple[int, str, str], int] = {}
    found: dict[int, int] = {}
    command = re.compile(COMMAND_PATTERN)
    for row in rows.to_pylist():
        queue = queue_of(row["topic"])
        place = row["connection"], queue
        if row["direction"] == "out":
            rank = counts.get(place, 0)
            counts[place] = rank + 1
            name = message_named(user_pairs(row["properties"]))
            if name is not None:
                latest[*place, name] = rank
        elif command.match(row["topic"]):
            name = message_named(user_pairs(row["properties"]))
            if name is not None and (*place, name) in latest:
                found[row["seq"]] = latest[*place, name]
    return found
