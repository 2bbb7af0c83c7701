"""A backlog: fill a queue without consumers, measure the broker's memory, stop or kill it, start it again.

    kind        what is published
    plain       to a classic queue
    priorities  to one of ten levels, every level in turn
    delayed     not before tomorrow, at times scattered over a day

What a message costs in memory is what the last nine tenths of them add to the resident size: caches and buffers,
which have a bound, are full before. They are made small, since how full they are at the moment would else say more than
the messages do. A disk of the size of all messages is needed (--dir).
"""
from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fluxmq.bench.load.brokers import Broker, Needs, start_broker
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.mqtt_session import MqttSession
from fluxmq.bench.load.options import OptionsError
from fluxmq.bench.load.packets import integer, packet, string
from fluxmq.bench.load.procinfo import memory

__all__ = ["BacklogOptions", "run_backlog"]

WINDOW = 1000           # messages without acknowledgement; a broker may allow fewer
LIGHT_PART = 10         # of the messages, published before memory is read first
SETTLE_SECONDS = 3.0    # until the last checkpoint has written the last messages
POLL_SECONDS = 0.25
ADMIN_SOCKET = "admin.sock"
TIMEOUT = 60.0
LEVELS = 10
BUFFERS = "16MiB"
DAY_MS = 86_400_000
SCATTER = 2_654_435_761     # times a number, modulo a day: scatters consecutive numbers


@dataclass(slots=True, kw_only=True)
class RestartOptions:
    """size: of a payload, bytes. folder: the broker's data directory. restart: how the broker ends before it is started
    again. settle: seconds without load before its memory is read."""

    size: int = 256
    folder: Path = Path()
    restart: Literal["stop", "kill"] = "stop"
    settle: float = SETTLE_SECONDS


@dataclass(slots=True, kw_only=True)
class BacklogOptions(RestartOptions):
    """messages: their number."""

    kind: Literal["plain", "priorities", "delayed"] = "plain"
    messages: int = 10_000_000


class Publisher:
    """One MQTT 5 client that publishes in windows, with QoS 1."""

    def __init__(self, address: str) -> None:
        session = MqttSession(address, "backlog", timeout=TIMEOUT)
        self.socket = session.sock
        self.window = min(WINDOW, session.receive_maximum)

    def publish(self, window: list[bytes]) -> None:
        """Sends the packets, whose identifiers count from 1, and waits for all acknowledgements."""
        self.socket.sendall(b"".join(window))
        left = b""
        waiting = len(window)
        while waiting:
            got = self.socket.recv(1 << 16)
            if not got:
                raise LoadError("the broker closed the connection")
            left += got
            at = 0
            while at + 2 <= len(left) and at + 2 + left[at + 1] <= len(left):
                size = left[at + 1]
                if left[at] != 0x40 or (size > 2 and left[at + 4]):
                    raise LoadError(f"a message was refused, or something else came: {left[at:at + 8].hex()}")
                at += 2 + size
                waiting -= 1
            left = left[at:]

    def close(self) -> None:
        self.socket.close()


def windows(options: BacklogOptions, window: int, now_ms: int) -> Iterator[list[bytes]]:
    """The packets of all messages, one window at a time."""
    payload = bytes(i & 0xFF for i in range(options.size))

    def made(packet_id: int, name: str, value: str) -> bytes:
        properties = b"\x26" + string(name) + string(value) if name else b""
        return packet(0x32, string("$queue/backlog") + packet_id.to_bytes(2, "big") + integer(len(properties))
                      + properties + payload)

    if options.kind == "delayed":
        whole = [made(number + 1, "not-before", "0" * 13) for number in range(window)]
        at = whole[0].index(b"0" * 13)
        heads, tails = [one[:at] for one in whole], [one[at + 13:] for one in whole]
    else:
        names = ["priority" if options.kind == "priorities" else ""] * window
        whole = [made(number + 1, name, str(number % LEVELS)) for number, name in enumerate(names)]
    for first in range(0, options.messages, window):
        count = min(window, options.messages - first)
        if options.kind == "delayed":
            yield [heads[i] + b"%013d" % (now_ms + DAY_MS + (first + i) * SCATTER % DAY_MS) + tails[i]
                   for i in range(count)]
        else:
            yield whole[:count]


def settled_memory(pid: int, seconds: float) -> int:
    """The smallest resident size during this time, because a running checkpoint has buffers."""
    least = memory(pid).rss
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(POLL_SECONDS, seconds))
        least = min(least, memory(pid).rss)
    return least


def settings(options: BacklogOptions, admin: Path) -> dict[str, str]:
    queue: dict[str, Any] = {"name": "backlog"}
    if options.kind == "priorities":
        queue["max_priority"] = LEVELS - 1
    return {"server.admin_socket": str(admin), "queues": json.dumps([queue]),
            "storage.journal_file_size": BUFFERS, "queue_manager.cache_size": BUFFERS}


def fill(broker: Broker, options: BacklogOptions) -> dict[str, Any]:
    """Publishes everything, and measures memory."""
    publisher = Publisher(broker.addresses["tcp"])
    first = max(options.messages // LIGHT_PART, 1)
    done, light, began, waited = 0, 0, time.monotonic(), 0.0
    try:
        for window in windows(options, publisher.window, int(time.time() * 1000)):
            publisher.publish(window)
            done += len(window)
            if not light and done >= first:
                since = time.monotonic()
                light, light_at = settled_memory(broker.pid, options.settle), done
                waited = time.monotonic() - since
    finally:
        publisher.close()
    seconds = time.monotonic() - began - waited
    heavy = settled_memory(broker.pid, options.settle)
    return {"fill_per_second": done / seconds, "rss_light": light, "rss_full": heavy,
            "rss_peak": memory(broker.pid).peak,
            "bytes_per_message": (heavy - light) / max(done - light_at, 1)}


def count(admin_socket: Path) -> dict[str, int]:
    """The broker's number of messages. Raises LoadError if some are missing."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(TIMEOUT)
        admin.connect(str(admin_socket))
        admin.sendall(b"GET /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        said = b""
        while got := admin.recv(1 << 16):
            said += got
    queue = json.loads(said.partition(b"\r\n\r\n")[2])["queues"][0]
    return {"messages": queue["messages"] - queue["delayed"], "delayed": queue["delayed"]}


def run_backlog(options: BacklogOptions) -> dict[str, Any]:
    """Fills, measures memory, restarts, measures again. The caller removes the broker's folder.

    Raises OptionsError, LoadError, BrokerError, OSError.
    """
    if options.messages < LIGHT_PART or options.size < 0:
        raise OptionsError(f"a backlog has {LIGHT_PART} messages at least")
    # The path of a socket is limited in length, so the data folder may be unsuitable.
    with tempfile.TemporaryDirectory(prefix="fluxmq-") as place:
        return _run(options, Path(place) / ADMIN_SOCKET)


def _run(options: BacklogOptions, admin: Path) -> dict[str, Any]:
    needs = Needs(folder=options.folder, settings=settings(options, admin))
    began = time.monotonic()
    with start_broker("fluxmq", needs) as broker:
        empty_start = time.monotonic() - began
        empty = settled_memory(broker.pid, options.settle)
        figures = fill(broker, options)
        found = count(admin)
        if options.restart == "kill":
            broker.process.kill()
    began = time.monotonic()
    with start_broker("fluxmq", needs) as broker:
        restart = time.monotonic() - began
        again = settled_memory(broker.pid, options.settle)
        peak = memory(broker.pid).peak
        again_found = count(admin)
    if again_found != found or sum(found.values()) != options.messages:
        raise LoadError(f"{options.messages} messages were acknowledged, {found} were there, {again_found} after the "
                        f"restart")
    return figures | {
        "kind": options.kind, "messages": options.messages, "size": options.size, "restart": options.restart,
        "found": found,
        "rss_empty": empty, "start_seconds_empty": empty_start, "restart_seconds": restart,
        "rss_restarted": again, "rss_restarted_peak": peak,
        "bytes_per_message_restarted": (again - empty) / options.messages}
