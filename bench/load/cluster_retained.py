"""Retained messages at a steady rate to one node of a cluster, and what clients that connect there notice of them.

    python -P -m fluxmq.bench.load.cluster_retained HOST:PORT RATE TOPICS RETAIN

publishes, one half with QoS 0 and the other with QoS 1, to so many topics in turn, until its standard input ends. It
says `begun`, and at the end its figures as JSON. RETAIN 0: the same messages without the retain flag.
"""
from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from fluxmq.bench.load.cluster_nodes import ClusterNodes
from fluxmq.bench.load.cluster_parts import Bench
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.mqtt_session import READ_SIZE, MqttSession
from fluxmq.bench.load.storms import StormOptions, run_storm

__all__ = ["retained"]

RATE = 50_000.0
TOPICS = 1000
PAYLOAD_BYTES = 64
STEP_SECONDS = 0.005
BEHIND_MAX_SECONDS = 1.0    # what is due for longer is left out: the rate was not achieved
SAMPLE_SECONDS = 0.2
CLIENTS, AT_ONCE = 5000, 20


def retained(bench: Bench) -> dict[str, float]:
    """Clients connect to node 0: with nothing beside, beside messages that are not retained, beside retained ones."""
    alone = connects(bench)
    with Publisher(bench, retain=False) as plain:
        beside_plain = connects(bench)
    with Leases(bench.nodes) as leases, Publisher(bench, retain=True) as other:
        beside = connects(bench)
    begin = time.monotonic()
    bench.nodes.wait(lambda: not bench.nodes.view(0)["retained_pending"], "retained messages do not come into etcd")
    return {"rate": other.rate, "unretained_rate": plain.rate,
            "p50_ms": beside["p50"] / 1e3, "p99_ms": beside["p99"] / 1e3,
            "unretained_p50_ms": beside_plain["p50"] / 1e3, "unretained_p99_ms": beside_plain["p99"] / 1e3,
            "alone_p50_ms": alone["p50"] / 1e3, "alone_p99_ms": alone["p99"] / 1e3,
            "p99_times": beside["p99"] / beside_plain["p99"],
            "leases_lost": float(leases.lost), "lease_left_s": leases.least_s,
            "written_s": time.monotonic() - begin}


def connects(bench: Bench) -> dict[str, float]:
    """Time from connect to CONNACK, µs. Each client has a session that is new: etcd must have its owner first."""
    found: dict[str, float] = run_storm(StormOptions(addr=bench.nodes.address(0), connections=bench.scaled(CLIENTS),
                                                     at_once=AT_ONCE))["latency_us"]
    return found


class Publisher:
    """A process that publishes to node 0 until its context is left, and for some time before it is entered. rate:
    achieved, messages/s, then."""

    def __init__(self, bench: Bench, *, retain: bool) -> None:
        self.rate = 0.0
        self._warmup = bench.options.warmup
        address, topics = bench.nodes.address(0), bench.scaled(TOPICS)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fluxmq.bench.load.cluster_retained", address, f"{RATE:g}", str(topics),
             str(int(retain))], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Publisher:
        assert self._process.stdout is not None
        self._process.stdout.readline()
        time.sleep(self._warmup)
        return self

    def __exit__(self, *_: object) -> None:
        said = self._process.communicate()[0]
        if self._process.returncode:
            raise LoadError(f"the publisher of retained messages failed ({self._process.returncode})")
        self.rate = json.loads(said)["rate"]


class Leases:
    """Watches the nodes' leases. lost: nodes that have another epoch at the end. least_s: the least that was left of
    one, by the node itself."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self.lost = 0
        self.least_s = nodes.ttl
        self._nodes = nodes
        self._epochs = self._look()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _look(self) -> list[int]:
        epochs = []
        for number in range(self._nodes.count):
            view: dict[str, Any] = self._nodes.view(number)
            own = next(node for node in view["nodes"] if node["id"] == view["local"])
            epochs.append(own["epoch"])
            self.least_s = min(self.least_s, own["lease_left_ms"] / 1000)
        return epochs

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            with suppress(OSError):
                self._look()

    def __enter__(self) -> Leases:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.lost = sum(now != was for now, was in zip(self._look(), self._epochs, strict=True))


def publish(address: str, rate: float, topics: int, retain: bool) -> dict[str, float]:
    """Until standard input ends. Returns the rate that was achieved: of QoS 1, what was acknowledged."""
    names = [f"retained/{number:06d}" for number in range(topics)]
    payload = bytes(PAYLOAD_BYTES)
    plain, sure = (MqttSession(address, f"retained-{qos}-{int(retain)}") for qos in (0, 1))
    begin, sent, left_out = time.monotonic(), 0, 0
    print("begun", flush=True)
    while True:
        time.sleep(STEP_SECONDS)
        ready = select.select([sys.stdin, sure.sock], [], [], 0)[0]
        if sys.stdin in ready:
            break
        if sure.sock in ready:
            sure.feed(sure.sock.recv(READ_SIZE))
        due = int((time.monotonic() - begin) * rate) - sent - left_out
        if (late := due - int(BEHIND_MAX_SECONDS * rate)) > 0:
            left_out += late
            due -= late
        for _ in range(due):
            client = plain if sent % 2 == 0 else sure
            if client is sure and not sure.window:
                break
            if client is plain:
                client.publish(names[sent % topics], payload, 0, retain)
            else:
                client.publish(names[sent % topics], payload, 1, retain, done=sure._answered)
                sure.waiting += 1
            sent += 1
        plain.sock.sendall(plain.take_output())
        sure.sock.sendall(sure.take_output())
    seconds, taken = time.monotonic() - begin, sent - sure.waiting
    pongs: list[bool] = []
    plain.ping(lambda: pongs.append(True))
    plain.until(lambda: bool(pongs))
    sure.until(lambda: not sure.waiting)
    for client in (plain, sure):
        client.close()
    return {"rate": taken / seconds}


if __name__ == "__main__":
    print(json.dumps(publish(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")))
