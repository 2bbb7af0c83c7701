"""The recorded workload of the gate: a plant for some seconds, the same rows every time.

Devices of both versions of MQTT publish states (QoS 0, 1 and 2) and, now and then, alarms; boards read a line each,
watchers all alarms, archives with persistent sessions everything, and go away and come back between shifts; a shared
group works on the alarms, and orders go through a durable queue. Written in the format of a recording
(docs/internals/recording.md): what clients sent, which is what a replay takes from one.
"""
from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fluxmq.record.files import RecordingFiles, batch_of_rows, prepare_directory
from fluxmq.record.manifest import new_manifest
from fluxmq.record.options import BrokerAbout, RecordOptions

__all__ = ["PUBLISHES", "write_workload"]

PUBLISHES = 60_000
SHIFTS = 4
DEVICES, BOARDS, WATCHERS, ARCHIVES, WORKERS, ORDERERS = 40, 8, 10, 2, 4, 4
LINES = 4
STEP_NS = 20_000                        # from one operation to the next
START = 1_760_000_000_000_000_000       # some instant; a replay counts from the first row
SEED = 20_251
QUEUE = "$queue/gate-orders"


class Plant:
    """Yields rows. What chance decides is decided by one seeded generator, in one order."""

    def __init__(self) -> None:
        self.chance = random.Random(SEED)
        self.time = START
        self.seq = 0
        self.connections: dict[str, int] = {}
        self.opened = 0
        self.packets: dict[str, int] = {}

    def row(self, client: str, kind: str, **more: Any) -> dict[str, Any]:
        self.time += STEP_NS
        row = {"seq": self.seq, "time": self.time, "connection": self.connections[client], "client_id": client,
               "protocol": "mqtt", "version": version_of(client), "direction": "in", "kind": kind, **more}
        self.seq += 1
        return row

    def packet_id(self, client: str) -> int:
        self.packets[client] = self.packets.get(client, 0) % 65_535 + 1
        return self.packets[client]

    def connect(self, client: str, *, clean: bool = True) -> dict[str, Any]:
        self.opened += 1
        self.connections[client] = self.opened
        five = version_of(client) == 5
        properties = {"session_expiry_interval": 3600} if five and not clean else None
        return self.row(client, "CONNECT", detail=json.dumps({"client_id": client, "clean_start": clean,
                                                              "keep_alive_s": 60}),
                        properties=json.dumps(properties) if properties else None)

    def subscribe(self, client: str, *filters: tuple[str, int]) -> dict[str, Any]:
        return self.row(client, "SUBSCRIBE", packet_id=self.packet_id(client),
                        detail=json.dumps({"subscriptions": [list(one) for one in filters]}))

    def publish(self, client: str, topic: str, qos: int, size: int, *, retain: bool = False) -> dict[str, Any]:
        return self.row(client, "PUBLISH", topic=topic, qos=qos, size=size, retain=retain, dup=False,
                        packet_id=self.packet_id(client) if qos else None)

    def rows(self, publishes: int) -> Iterator[dict[str, Any]]:
        yield from self.opening()
        for shift in range(SHIFTS):
            yield from self.shift(publishes // SHIFTS)
            if shift < SHIFTS - 1:
                yield from self.change()
        for client in list(self.connections):
            yield self.row(client, "DISCONNECT", reason=0)

    def opening(self) -> Iterator[dict[str, Any]]:
        for number in range(ARCHIVES):
            yield self.connect(f"archive-{number}", clean=False)
            yield self.subscribe(f"archive-{number}", ("plant/#", 1))
        for number in range(BOARDS):
            yield self.connect(f"board-{number}")
            yield self.subscribe(f"board-{number}", (f"plant/{number % LINES}/+/state", number % 2))
        for number in range(WATCHERS):
            yield self.connect(f"watcher-{number}")
            yield self.subscribe(f"watcher-{number}", ("plant/+/+/alarm", 2), ("notice/#", 0))
        for number in range(WORKERS):
            yield self.connect(f"worker-{number}")
            yield self.subscribe(f"worker-{number}", (QUEUE, 1), ("$share/repair/plant/+/+/alarm", 1))
        for number in range(DEVICES):
            yield self.connect(f"device-{number}")
        for number in range(ORDERERS):
            yield self.connect(f"orderer-{number}")

    def shift(self, publishes: int) -> Iterator[dict[str, Any]]:
        for _ in range(publishes):
            what = self.chance.random()
            device = self.chance.randrange(DEVICES)
            place = f"plant/{device % LINES}/{device}"
            size = min(int(self.chance.lognormvariate(4.6, 0.6)) + 16, 2048)
            if what < 0.12:
                yield self.publish(f"orderer-{device % ORDERERS}", QUEUE, 1, size)
            elif what < 0.17:
                yield self.publish(f"device-{device}", f"{place}/alarm", self.chance.choice((1, 2)), size)
            else:
                qos = self.chance.choices((0, 1, 2), (50, 40, 10))[0]
                yield self.publish(f"device-{device}", f"{place}/state", qos, size)

    def change(self) -> Iterator[dict[str, Any]]:
        """Between shifts: an archive leaves its session and comes back to it, a board looks at something else, a
        notice is retained."""
        number = self.chance.randrange(ARCHIVES)
        yield self.row(f"archive-{number}", "DISCONNECT", reason=0)
        yield self.publish("device-0", "notice/shift", 1, 64, retain=True)
        yield self.connect(f"archive-{number}", clean=False)
        board = f"board-{self.chance.randrange(BOARDS)}"
        yield self.subscribe(board, ("notice/shift", 1))
        yield self.row(board, "UNSUBSCRIBE", packet_id=self.packet_id(board),
                       detail=json.dumps({"filters": ["notice/shift"]}))


def version_of(client: str) -> int:
    """Every other one of each kind speaks 3.1.1."""
    return 5 if int(client.rpartition("-")[2]) % 2 else 4


def write_workload(directory: Path, publishes: int = PUBLISHES) -> Path:
    """Writes the recording; the same arguments make the same rows. Raises RecordingError."""
    options = RecordOptions()
    prepare_directory(directory)
    files = RecordingFiles(directory, new_manifest(options, BrokerAbout(version="")), options)
    files.write(batch_of_rows(Plant().rows(publishes)))
    files.close("stopped")
    return directory
