"""Recordings for the tests of the replay, written as what clients did, and what came of a replay, as plain rows."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fluxmq.record.options import ClusterAbout
from fluxmq.spark.result import open_result
from kit.recordings import START, make_recording

__all__ = ["SECOND", "Story", "events_of", "write_nodes"]

SECOND = 1_000_000_000


class Story:
    """Packets of clients, in order. Each verb takes `at`, seconds since the beginning; without, a millisecond later."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.now = 0.0
        self.connections: dict[str, int] = {}
        self.opened = 0
        self.versions: dict[str, int] = {}

    def row(self, client: str, kind: str, *, at: float | None = None, direction: str | None = "in",
            detail: dict[str, Any] | None = None, properties: dict[str, Any] | None = None, **more: Any) -> int:
        """The number of the row."""
        self.now = self.now + 0.001 if at is None else at
        self.rows.append({
            "seq": len(self.rows), "time": START + int(self.now * SECOND), "connection": self.connections[client],
            "client_id": client, "version": self.versions.get(client, 5), "direction": direction, "kind": kind,
            "detail": None if detail is None else json.dumps(detail),
            "properties": None if properties is None else json.dumps(properties), **more})
        return len(self.rows) - 1

    def _new(self, client: str, version: int) -> None:
        self.opened += 1
        self.connections[client], self.versions[client] = self.opened, version

    def connect(self, client: str, *, version: int = 5, clean: bool = True, will: dict[str, Any] | None = None,
                at: float | None = None, properties: dict[str, Any] | None = None) -> None:
        self._new(client, version)
        asked = {"client_id": client, "clean_start": clean, "keep_alive_s": 60, "user": None, "password": False}
        self.row(client, "CONNECT", at=at, properties=properties, detail=asked | ({"will": will} if will else {}))

    def there(self, client: str, *subscriptions: tuple[str, int], version: int = 5, clean: bool = True) -> None:
        """It was connected when the recording began."""
        self._new(client, version)
        self.row(client, "accepted", direction=None, detail={
            "client_id": client, "version": version, "clean_start": clean, "session_present": False, "keep_alive_s": 60,
            "session_expiry_s": 0, "subscriptions": [list(one) for one in subscriptions]})

    def subscribe(self, client: str, *filters: tuple[str, int], at: float | None = None,
                  properties: dict[str, Any] | None = None) -> None:
        self.row(client, "SUBSCRIBE", at=at, properties=properties,
                 detail={"subscriptions": [list(one) for one in filters]})

    def unsubscribe(self, client: str, *filters: str, at: float | None = None) -> None:
        self.row(client, "UNSUBSCRIBE", at=at, detail={"filters": list(filters)})

    def publish(self, client: str, topic: str, qos: int = 0, *, size: int = 32, retain: bool = False,
                at: float | None = None, properties: dict[str, Any] | None = None, **more: Any) -> int:
        return self.row(client, "PUBLISH", at=at, topic=topic, qos=qos, retain=retain, dup=False, size=size,
                        properties=properties, **more)

    def delivered(self, client: str, topic: str, qos: int, at: float | None = None,
                  properties: dict[str, Any] | None = None) -> int:
        return self.row(client, "PUBLISH", at=at, direction="out", topic=topic, qos=qos, retain=False, dup=False,
                        size=32, properties=properties)

    def acknowledge(self, client: str, answers: int, *, kind: str = "PUBACK", at: float | None = None) -> None:
        row = self.row(client, kind, at=at, answers=answers)
        self.rows[row]["ack_latency"] = self.rows[row]["time"] - self.rows[answers]["time"]

    def disconnect(self, client: str, *, reason: int = 0, at: float | None = None) -> None:
        self.row(client, "DISCONNECT", at=at, reason=reason)
        self.row(client, "closed", direction=None, detail={"by": "client", "reason": "disconnect", "code": reason})

    def lost(self, client: str, at: float | None = None) -> None:
        self.row(client, "closed", at=at, direction=None, detail={"by": "client", "reason": "eof", "code": 0})

    def write(self, path: Path, **options: Any) -> Path:
        make_recording(path, self.rows, **options)
        return path


def write_nodes(story: Story, place: Path, node_of: Callable[[int], int], clocks: Sequence[int] = (0, 0, 0)) -> Path:
    """The recordings that the nodes of a cluster would have made of it, each in a directory of its own.

    node_of: the node of a connection. clocks: by how many ns the clock of each node is fast.
    """
    names = tuple(f"n{node}" for node in range(len(clocks)))
    for node, fast in enumerate(clocks):
        numbers: dict[int, int] = {}
        seqs: dict[int, int] = {}
        rows = []
        for row in story.rows:
            if node_of(row["connection"]) == node:
                seqs[row["seq"]] = len(seqs)
                number = numbers.setdefault(row["connection"], len(numbers) + 1)
                rows.append(row | {"seq": seqs[row["seq"]], "connection": number, "time": row["time"] + fast})
                if row.get("answers") is not None:
                    rows[-1]["answers"] = seqs[row["answers"]]
                if row.get("protocol") == "amqp091":
                    rows[-1]["client_id"] = f"amqp091-{number}"
        make_recording(place / f"node=n{node}", rows, cluster=ClusterAbout(id="cluster", node=names[node], nodes=names),
                       started=START, ended=max(row["time"] for row in story.rows) + 1)
    return place


def events_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a result in the order of `sent`, with `detail` read."""
    rows = open_result(path).table().to_pylist()
    for row in rows:
        row["detail"] = json.loads(row["detail"]) if row["detail"] else {}
    return sorted(rows, key=lambda row: row["sent"])
