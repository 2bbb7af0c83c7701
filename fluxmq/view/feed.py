"""Where the picture comes from: the tap of each watched broker, its counters, and what its admin socket says.

    ring ──► LaneCounts ──► counts by lane, latencies     each frame, by the thread that draws
    stream of POST /api/v1/record ──► exact counters      a thread for each broker, which also connects again
    GET cluster, queues ──► nodes, owners, backlogs       a thread, of the first broker that answers

A ring has room for what the view takes in a frame. When there is more, the broker counts what it leaves out, and says
so in the stream: this is the sample.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fluxmq._core.errors import CorruptError, FluxError
from fluxmq._core.record.counts import BUCKETS, KINDS, LaneCounts
from fluxmq._core.record.ring import RingReader
from fluxmq.record.ring import open_ring
from fluxmq.view.lanes import Lanes
from fluxmq.view.picture import Numbers
from fluxmq.view.ports import Admin, Connect
from fluxmq.view.words import percentile

__all__ = ["Broker", "Feed", "Places", "who_looks"]

AGAIN_S = 1.0           # between two attempts to reach a broker
WINDOW_S = 2.0          # over which rates of counters are taken
LATENCY_S = 5.0         # and latencies
ASK_S = 0.5             # between two questions about queues, and more if the answers take long:
ASK_SHARE = 50          # a fiftieth of the broker's time at most,
ASK_MAX_S = 5.0         # but an answer that came late, because a node hung, does not stop the questions
TAKE_BYTES = 1 << 20


def who_looks() -> str:
    """For the error that the next one gets."""
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}, fluxmq viz, process {os.getpid()}"


class Broker:
    """Machine and handle. One watched broker. connect: makes a connection to its admin socket. counts: fed by take().

    name: of the node, "" until it is known. trouble: why it is not watched at present, "" while it is.
    """

    def __init__(self, connect: Connect, lane_of: Callable[[bytes, bytes | None], tuple[int, int]],
                 ring_bytes: int = 0) -> None:
        self.counts = LaneCounts(lane_of)
        self.name = ""
        self.trouble = ""
        self.counters: dict[str, int] = {}
        self.past: deque[tuple[float, dict[str, int]]] = deque()    # counters of the last WINDOW_S
        self._connect, self._lane_of, self._ring_bytes = connect, lane_of, ring_bytes
        self._lock = threading.Lock()
        self._reader: RingReader | None = None
        self._fresh = False         # the ring is another one than before
        self._admin: Admin | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to watch. Raises FluxError if that is not possible now; later it tries again by itself."""
        lines = self._attach()
        self._thread = threading.Thread(target=self._follow, args=(lines,), daemon=True, name="viz broker")
        self._thread.start()

    def wait(self) -> None:
        """As start, for a broker that need not be there yet."""
        self._thread = threading.Thread(target=self._follow, args=(None,), daemon=True, name="viz broker")
        self._thread.start()

    def _attach(self) -> Iterator[bytes]:
        admin = self._connect()
        try:
            found, lines = admin.record(self._ring_bytes, view=True, who=who_looks())
            reader = open_ring(found["ring"])
        except BaseException:
            admin.close()
            raise
        self.name = found["about"]["cluster"]["node"] or self.name
        with self._lock:
            self._admin, self._reader, self._fresh = admin, reader, True
        self.trouble = ""
        return lines

    def _follow(self, lines: Iterator[bytes] | None) -> None:
        """The thread: the stream, and the next one when it ends."""
        while not self._closed.is_set():
            try:
                for line in lines if lines is not None else self._attach():
                    if line.strip():
                        self._count(json.loads(line))
                self._lose("the broker has ended the view, or is gone; trying again")
            except FluxError as error:
                self._lose(str(error))
            except (ValueError, KeyError, TypeError) as error:
                self._lose(f"the broker says what cannot be read: {error}")
            lines = None
            self._closed.wait(AGAIN_S)

    def _count(self, counters: dict[str, int]) -> None:
        now = time.monotonic()
        with self._lock:
            self.counters = counters
            self.past.append((now, counters))
            while len(self.past) > 2 and now - self.past[0][0] > WINDOW_S:
                self.past.popleft()

    def _lose(self, why: str) -> None:
        with self._lock:
            reader, admin = self._reader, self._admin
            self._reader = self._admin = None
            self.past.clear()
            self.trouble = why
        if reader is not None:
            with contextlib.suppress(CorruptError):
                reader.stop()
        if admin is not None:
            admin.close()

    def rates(self) -> dict[str, float]:
        """Of its counters, per second; {}: not known yet."""
        with self._lock:
            if len(self.past) < 2:
                return {}
            (begin, first), (end, last) = self.past[0], self.past[-1]
        return {name: max(last[name] - first[name], 0) / max(end - begin, 1e-3) for name in last}

    def take(self) -> None:
        """What is in the ring into `counts`, a ring's size at most."""
        with self._lock:
            reader = self._reader
            if reader is None:
                return
            if self._fresh:
                self._fresh = False
                self.counts = LaneCounts(self._lane_of)
            try:
                left = max(reader.waiting, 0)
                while left > 0 and (entries := reader.take(TAKE_BYTES)):
                    left -= len(entries)
                    self.counts.feed(entries)
                reader.release()
            except CorruptError as error:
                self.trouble = str(error)
                self._reader = None

    def close(self) -> None:
        self._closed.set()
        self._lose("")
        if self._thread is not None:
            self._thread.join(2.0)


class Places:
    """Handle. Asks who owns what, and what waits where, in a thread of its own. connects: of the brokers, of which the
    first that answers is asked. latest: the last answers, None: none yet; number: how many there were."""

    def __init__(self, connects: Sequence[Connect]) -> None:
        self.latest: tuple[dict[str, Any], list[tuple[str, list[tuple[str, int, bool]]]]] | None = None
        self.number = 0
        self.trouble = ""
        self._connects = connects
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="viz places")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        at, admin = 0, None
        while not self._closed.is_set():
            begun = time.monotonic()
            try:
                admin = admin or self._connects[at % len(self._connects)]()
                self.latest = ask_places(admin)
                self.number += 1
                self.trouble = ""
            except (FluxError, KeyError, TypeError, ValueError) as error:
                self.trouble = str(error)
                if admin is not None:
                    admin.close()
                admin = None
                at += 1
            self._closed.wait(min(max(ASK_S, (time.monotonic() - begun) * ASK_SHARE), ASK_MAX_S))
        if admin is not None:
            admin.close()


def _short(name: str) -> str:
    """The name of a cluster. One that nobody has given is 32 hex digits, of which four tell it from others."""
    return name[:4] if re.fullmatch("[0-9a-f]{32}", name) else name


def _backlog(part: dict[str, Any]) -> int:
    """What consumers have before them in a partition; -1: nobody knows. What a stream keeps is none, when no group
    reads it."""
    if part["messages"] is None:
        return -1
    return part["lag"] or 0


def ask_places(admin: Admin) -> tuple[dict[str, Any], list[tuple[str, list[tuple[str, int, bool]]]]]:
    """The cluster, and the queues for Lanes.learn_queues."""
    cluster: dict[str, Any] = admin.ask("GET", "cluster")
    queues: list[tuple[str, list[tuple[str, int, bool]]]] = []
    single = not cluster.get("env")
    for entry in admin.ask("GET", "queues", query={"partitions": True})["queues"]:
        if entry.get("internal") and not entry["messages"]:
            continue
        queues.append((str(entry["name"]), [
            ("" if single else str(part.get("node") or ""), _backlog(part), part.get("state") == "away")
            for part in entry["partition_list"]]))
    return cluster, queues


class Feed:
    """Machine and handle. All watched brokers together."""

    def __init__(self, connects: Sequence[Connect], lanes: Lanes, ring_bytes: int = 0) -> None:
        self.lanes = lanes
        self.brokers = [Broker(connect, lanes.lane_of, ring_bytes) for connect in connects]
        self.places = Places(connects)
        self.errors = 0
        self._seen = 0          # answers of places that were learned
        self._changes = lanes.changes
        self._latencies: deque[tuple[float, memoryview, memoryview]] = deque()
        self._pings: deque[tuple[float, int]] = deque()

    def start(self) -> None:
        """Raises FluxError if no broker can be watched; those that are not there are tried again."""
        failed: list[FluxError] = []

        def start(broker: Broker) -> None:
            try:
                broker.start()
            except FluxError as error:
                failed.append(error)
                broker.trouble = str(error)

        # All at once: each may be one that hangs.
        starts = [threading.Thread(target=start, args=(broker,), daemon=True) for broker in self.brokers]
        for thread in starts:
            thread.start()
        for thread in starts:
            thread.join()
        if len(failed) == len(self.brokers):
            raise max(failed, key=lambda error: getattr(error, "status", 0))    # what a broker has answered says more
        for broker in self.brokers:
            if broker.trouble:
                broker.wait()
        self.places.start()

    def close(self) -> None:
        self.places.close()
        for broker in self.brokers:
            broker.close()

    def take(self, now: float) -> dict[int, list[int]]:
        """What has happened since the last call, by lane. now: of the picture, seconds."""
        if self.places.number != self._seen and self.places.latest is not None:
            self._seen = self.places.number
            self.lanes.learn_queues(self.places.latest[1], now)
        if self.lanes.changes != self._changes:
            self._changes = self.lanes.changes
            for broker in self.brokers:
                broker.counts.forget()
        found: dict[int, list[int]] = {}
        pings = 0
        for broker in self.brokers:
            broker.take()
            add(found, memoryview(broker.counts.take()).cast("I"))
        for kinds in found.values():
            pings += kinds[KINDS.index("ping")]
            self.errors += kinds[KINDS.index("error")]
        self._pings.append((now, pings))
        while self._pings and now - self._pings[0][0] > WINDOW_S:
            self._pings.popleft()
        return found

    def numbers(self, now: float) -> Numbers:
        """For the head-up display, a few times a second."""
        for broker in self.brokers:
            confirms, acks = broker.counts.take_latencies()
            if confirms.strip(b"\0") or acks.strip(b"\0"):
                self._latencies.append((now, memoryview(confirms).cast("I"), memoryview(acks).cast("I")))
        while self._latencies and now - self._latencies[0][0] > LATENCY_S:
            self._latencies.popleft()
        rates = [found for broker in self.brokers if (found := broker.rates())]
        seen = sum(found["bytes"] for found in rates)
        lost = sum(found["lost_bytes"] for found in rates)
        numbers = Numbers(
            confirm=self._latency(0), ack=self._latency(1), errors=self.errors,
            connections=sum(broker.counters.get("connections", 0) for broker in self.brokers if not broker.trouble),
            pings=sum(count for _, count in self._pings) / max(min(now, WINDOW_S), 1e-3),
            shown=seen / (seen + lost) if lost else 1.0)
        if rates:
            numbers.received = sum(found["received"] for found in rates)
            numbers.sent = sum(found["sent"] for found in rates)
        backlogs = [lane.backlog for lane in self.lanes.lanes if lane.backlog >= 0 and not lane.gone]
        numbers.backlog = sum(backlogs) if self._seen else -1
        cluster = self.places.latest[0] if self.places.latest is not None else {}
        if cluster.get("env"):
            numbers.name = f"cluster {_short(str(cluster['env']))}"
            numbers.nodes = [(str(node["id"]), str(node["state"]), int(node["sessions"])) for node in cluster["nodes"]]
        numbers.trouble = self._trouble()
        return numbers

    def _trouble(self) -> str:
        troubled = [broker for broker in self.brokers if broker.trouble]
        if not troubled:
            return ""
        if len(troubled) == len(self.brokers):
            return troubled[0].trouble
        return "; ".join(f"{broker.name or 'a node'} is not watched: {broker.trouble}" for broker in troubled)

    def _latency(self, at: int) -> tuple[float, float]:
        sums = [0] * BUCKETS
        for entry in self._latencies:
            buckets = entry[1 + at]
            assert isinstance(buckets, memoryview)
            sums = [a + b for a, b in zip(sums, buckets, strict=True)]
        return percentile(sums, 0.5), percentile(sums, 0.99)


def add(found: dict[int, list[int]], counts: memoryview) -> None:
    """The counts of lanes, a u32 for each kind, to those that were found before."""
    width = len(KINDS)
    values = counts.tolist()
    for at in range(0, len(values), width):
        kinds = values[at:at + width]
        if any(kinds):
            known = found.get(at // width)
            found[at // width] = kinds if known is None else [a + b for a, b in zip(known, kinds, strict=True)]
