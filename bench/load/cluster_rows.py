"""What is measured of a cluster: throughput and latency across nodes, connects, and what a failure costs.

Nodes, their etcd members and the load share one machine, so the figures are a floor. Rows that load the cluster run the
same load on a single broker in the same round (`one`); rows of failures and of sessions that move have times only.
"""
from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fluxmq.bench.load.cluster_paced import PACED_ROWS
from fluxmq.bench.load.cluster_parts import TTL_MIN, Bench, Figures, Goal, Row, faults
from fluxmq.bench.load.cluster_queues import Roles, queue_rows
from fluxmq.bench.load.cluster_retained import retained
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.mqtt_session import MqttSession
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.procinfo import cpu_between, memory, read_cpu
from fluxmq.bench.load.runner import run_load
from fluxmq.bench.load.storms import StormOptions, run_storm

__all__ = ["CLUSTER_ROWS"]

PATIENCE_SECONDS = 120.0
FILTERS_PER_SUBSCRIBE = 500
PUBLISH_SECONDS = 0.005     # between messages of the publisher beside a failure


def throughput(**load: Any) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        before = [read_cpu(broker.pid) for broker in bench.nodes.brokers.values()]
        ours, one = bench.load((1,), **load)
        used = sum(cpu_between(was, read_cpu(broker.pid))
                   for was, broker in zip(before, bench.nodes.brokers.values(), strict=True))
        return {"rate": ours["delivered_per_second"], "one": one["delivered_per_second"],
                "cpu_us": used * 1e6 / max(1, ours["total"]["delivered"])} | faults(ours)
    return run


def fanout(bench: Bench) -> Figures:
    before = bench.nodes.sent(0)
    ours, one = bench.load((0, 1, 2), subs=bench.scaled(200))
    after = bench.nodes.sent(0)
    copies = (after["messages"] - before["messages"]) / (bench.nodes.count - 1) / ours["total"]["sent"]
    return {"rate": ours["delivered_per_second"], "one": one["delivered_per_second"], "copies": copies} | faults(ours)


def latency(bench: Bench) -> Figures:
    ours, one = bench.load((1,), pubs=5, subs=5, topics="pairs", rate=5000.0)
    return {"p50_ms": ours["latency_us"]["p50"] / 1e3, "p99_ms": ours["latency_us"]["p99"] / 1e3,
            "one_p50_ms": one["latency_us"]["p50"] / 1e3, "one_p99_ms": one["latency_us"]["p99"] / 1e3} | faults(ours)


def saturated(bench: Bench) -> Figures:
    """5 000/s from node 0 to node 1, while a closed loop goes the same way."""
    command = [sys.executable, "-P", "-m", "fluxmq.bench.load.cluster_rows", bench.nodes.address(0),
               bench.nodes.address(1), f"{bench.options.warmup + bench.options.duration + 2:g}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as beside:
        assert beside.stdout is not None
        beside.stdout.readline()
        ours = run_load(LoadOptions(addr=bench.nodes.address(0), sub_addrs=(bench.nodes.address(1),), pubs=5, subs=5,
                                    topics="pairs", rate=5000.0, prefix="s", duration=bench.options.duration,
                                    warmup=bench.options.warmup))
        beside.terminate()
    return {"p50_ms": ours["latency_us"]["p50"] / 1e3, "p99_ms": ours["latency_us"]["p99"] / 1e3} | faults(ours)


def storm(bench: Bench) -> Figures:
    count = bench.scaled(5000)
    many: dict[str, Any] = {"connections": count, "at_once": count}
    ours = run_storm(StormOptions(addr=bench.nodes.address(0), **many))
    one = run_storm(StormOptions(addr=bench.one.addresses["tcp"], **many))
    return {"per_second": ours["per_second"], "one": one["per_second"]}


def reconnect(bench: Bench) -> Figures:
    """Clients of node 0, which dies, connect again to the others, all at once."""
    count = bench.scaled(9000)
    tags = secrets.token_hex(4), secrets.token_hex(4)
    held = [Held(bench.nodes.address(0), tag, count) for tag in tags]
    for one in held:
        one.wait_open()
    begin = time.monotonic()
    bench.nodes.kill(0)
    for one in held:
        one.close()
    again = [Held(bench.nodes.address(number), tag, count) for number, tag in zip((1, 2), tags, strict=True)]
    for one in again:
        one.wait_open()
    seconds = time.monotonic() - begin
    peak = max(memory(bench.nodes.brokers[number].pid).peak for number in (1, 2))
    for one in again:
        one.close()
    bench.nodes.start(0)
    bench.nodes.wait(bench.nodes.whole, "node 0 does not come back")
    return {"seconds": seconds, "peak_mib": peak / 2**20}


class Held:
    """A storm in a thread, held open until close()."""

    def __init__(self, addr: str, tag: str, count: int) -> None:
        self._opened = threading.Event()
        self._close = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(addr, tag, count), daemon=True)
        self._thread.start()

    def _run(self, addr: str, tag: str, count: int) -> None:
        def wait() -> None:
            self._opened.set()
            self._close.wait()
        try:
            run_storm(StormOptions(addr=addr, tag=tag, connections=count, at_once=count, first=count,
                                   timeout=PATIENCE_SECONDS), wait)
        except (OSError, LoadError) as error:
            self._error = error
        self._opened.set()

    def wait_open(self) -> None:
        """Until every client has its CONNACK. Raises LoadError, OSError."""
        self._opened.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._close.set()
        self._thread.join()


def join(bench: Bench) -> Figures:
    """A node starts while the others have subscriptions, and while they have none."""
    count = bench.scaled(100_000)
    found: Figures = {}
    for name in ("one", "seconds"):
        clients: list[MqttSession] = []
        if name == "seconds":
            for number in range(10):
                client = MqttSession(bench.nodes.address(number % 2), f"join{number}", timeout=PATIENCE_SECONDS)
                filters = [f"join/{number}/{at}" for at in range(count // 10)]
                for at in range(0, len(filters), FILTERS_PER_SUBSCRIBE):
                    subscribe_all(client, filters[at:at + FILTERS_PER_SUBSCRIBE])
                clients.append(client)
        bench.nodes.stop(2)
        begin = time.monotonic()
        bench.nodes.start(2)
        found[name] = time.monotonic() - begin
        bench.nodes.wait(bench.nodes.whole, "node 2 does not come back")
        for client in clients:
            client.close()
    return found


def subscribe_all(client: MqttSession, filters: list[str]) -> None:
    answers: list[list[int]] = []
    client.subscribe([(one, 1) for one in filters], lambda _packet_id, reasons: answers.append(reasons))
    client.until(lambda: bool(answers))
    if max(answers[0]) >= 0x80:
        raise LoadError(f"a subscription was refused with reason {max(answers[0])}")


def failover(leads_etcd: bool) -> Callable[[Bench], Figures]:
    """A node is killed; its client connects elsewhere and gets what is published there."""
    def run(bench: Bench) -> Figures:
        nodes = bench.nodes
        dies = next(number for number in range(nodes.count) if nodes.leads_etcd(number) == leads_etcd)
        lives = (dies + 1) % nodes.count
        topic, name = f"failover/{secrets.token_hex(4)}", f"failover-{secrets.token_hex(4)}"
        with subscriber(nodes.address(dies), name, topic) as client, Publishing(nodes.address(lives), topic):
            client.until_delivered()
            begin = time.monotonic()
            nodes.kill(dies)
        with reconnected(nodes.address(lives), name, topic) as client, Publishing(nodes.address(lives), topic):
            client.until_delivered()
            seconds = time.monotonic() - begin
        nodes.start(dies)
        nodes.wait(nodes.whole, f"node {dies} does not come back")
        MqttSession(nodes.address(lives), name).close()
        return {"seconds": seconds}
    return run


def subscriber(address: str, name: str, topic: str) -> MqttSession:
    """A client with a session that outlives its connection."""
    client = MqttSession(address, name, clean=False, session_expiry=300, timeout=PATIENCE_SECONDS)
    client.subscribe_to(topic, 1)
    return client


def reconnected(address: str, name: str, topic: str) -> MqttSession:
    """The client's next connection, tried until it is accepted."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return subscriber(address, name, topic)
        except (LoadError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


class Publishing:
    """A client that publishes with QoS 0, one message after the other, until its context is left."""

    def __init__(self, address: str, topic: str) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(address, topic), daemon=True)

    def _run(self, address: str, topic: str) -> None:
        client = MqttSession(address, f"publisher-{secrets.token_hex(4)}")
        while not self._end.wait(PUBLISH_SECONDS):
            client.publish(topic, b"message")
            client.sock.sendall(client.take_output())
        client.close()

    def __enter__(self) -> Publishing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def takeover(bench: Bench) -> Figures:
    """Sessions with 1 000 messages waiting at node 0; their clients connect to node 1."""
    sessions, messages = bench.scaled(50), bench.scaled(1000)
    run = secrets.token_hex(4)
    names, topic = [f"takeover-{run}-{number}" for number in range(sessions)], f"takeover/{run}"
    for name in names:
        subscriber(bench.nodes.address(0), name, topic).close()
    publisher = MqttSession(bench.nodes.address(0), f"publisher-{run}")
    publisher.publish_all([topic] * messages, bytes(64), retain=False)
    publisher.close()
    accepted, complete = [], []
    for name in names:
        begin = time.monotonic()
        client = MqttSession(bench.nodes.address(1), name, clean=False, session_expiry=300, acknowledges=True)
        accepted.append(time.monotonic() - begin)
        client.until_delivered(messages)
        complete.append(time.monotonic() - begin)
        client.close()
        MqttSession(bench.nodes.address(1), name).close()
    return {"p50_ms": 1e3 * statistics.median(accepted), "p99_ms": 1e3 * max(accepted),
            "complete_p99_ms": 1e3 * max(complete)}


CLUSTER_ROWS = (
    Row(key="across-1", work="1 → 1 across two nodes, QoS 0", run=throughput(),
        goals=(Goal(figure="rate", bound=700_000, at_least=True),)),
    Row(key="across-10", work="10 pairs across two nodes, QoS 0", run=throughput(pubs=10, subs=10, topics="pairs"),
        goals=(Goal(figure="rate", bound=700_000, at_least=True),)),
    Row(key="across-1-qos1", work="1 → 1 across two nodes, QoS 1", run=throughput(qos=1),
        goals=(Goal(figure="rate", bound=250_000, at_least=True),)),
    Row(key="across-10-qos1", work="10 pairs across two nodes, QoS 1",
        run=throughput(pubs=10, subs=10, topics="pairs", qos=1),
        goals=(Goal(figure="rate", bound=250_000, at_least=True),)),
    Row(key="fanout", work="1 → 200 on three nodes, QoS 0", run=fanout,
        goals=(Goal(figure="rate", bound=8e6, at_least=True), Goal(figure="copies", bound=1.001))),
    Row(key="group", work="1 → a share group of two on another node, QoS 0", run=throughput(subs=2, groups=1),
        goals=()),
    Row(key="group-qos1", work="the same, QoS 1", run=throughput(subs=2, groups=1, qos=1), goals=()),
    Row(key="latency", work="5 000 messages/s across two nodes", run=latency,
        goals=(Goal(figure="p50_ms", bound=0.8), Goal(figure="p99_ms", bound=6.0))),
    Row(key="saturated", work="the same, while a closed loop fills the way", run=saturated, goals=()),
    *PACED_ROWS,
    Row(key="storm", work="5 000 clients connect at once", run=storm,
        goals=(Goal(figure="per_second", bound=2500, at_least=True),)),
    Row(key="retained", work="clients connect beside 50 000 retained messages/s over 1 000 topics", run=retained,
        goals=(Goal(figure="rate", bound=49_000, at_least=True), Goal(figure="leases_lost", bound=0.0),
               Goal(figure="p99_times", bound=1.5))),
    Row(key="takeover", work="sessions with 1 000 messages waiting move", run=takeover,
        goals=(Goal(figure="p99_ms", bound=100.0),)),
    Row(key="join", work="a node starts beside 100 000 subscriptions", run=join,
        goals=(Goal(figure="seconds", bound=5.0),)),
    Row(key="reconnect", work="18 000 clients of a killed node connect to the others", run=reconnect,
        goals=(Goal(figure="seconds", bound=20.0),)),
    *(row for row in queue_rows(Roles()) if not row.ttl),
    Row(key="failover", work="a node is killed", run=failover(False), ttl=TTL_MIN,
        goals=(Goal(figure="seconds", bound=1.5, plus_ttl=True),)),
    Row(key="failover-etcd", work="a node is killed whose etcd member leads", run=failover(True), ttl=TTL_MIN,
        goals=(Goal(figure="seconds", bound=4.0, plus_ttl=True),)),
    *(row for row in queue_rows(Roles()) if row.ttl),
)


def flood(publishers: str, subscribers: str, seconds: float) -> None:
    """A closed loop from one address to another; a line when it has begun."""
    threading.Timer(1.0, lambda: print("begun", flush=True)).start()
    with suppress(KeyboardInterrupt, LoadError):
        run_load(LoadOptions(addr=publishers, sub_addrs=(subscribers,), duration=seconds, prefix="f"))


if __name__ == "__main__":
    flood(sys.argv[1], sys.argv[2], float(sys.argv[3]))
