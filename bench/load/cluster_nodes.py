"""A cluster of FluxMQ for benchmarks: three nodes, each with its etcd member, all on loopback, and how they see it."""
from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxmq.bench.load.brokers import Broker, BrokerError, Needs, free_port, start_broker
from fluxmq.bench.load.procinfo import children

__all__ = ["ClusterNodes"]

PATIENCE_SECONDS = 90.0


@dataclass(slots=True)
class ClusterNodes:
    """folder: an empty directory of its own. ttl: of the nodes' leases, seconds. settings: of every node, besides those
    that make the cluster. home: see Needs. cores: processors to run on when they have started, which needs all there
    are; empty for any. Leaving its context stops the nodes. Raises BrokerError when one does not start."""

    folder: Path
    count: int = 3
    ttl: float = 10.0
    settings: dict[str, str] = field(default_factory=dict)
    cores: frozenset[int] = frozenset()
    home: Path | None = None
    brokers: dict[int, Broker] = field(default_factory=dict)
    _fixed: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> ClusterNodes:
        peers = [free_port() for _ in range(self.count)]
        members = ",".join(f"node-{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
        for number, port in enumerate(peers):
            self._fixed.append({
                "server.mqtt.tcp.plain.addr": f"127.0.0.1:{free_port()}",
                "server.amqp091.plain.addr": f"127.0.0.1:{free_port()}",
                "server.health_enabled": "true", "server.health_addr": f"127.0.0.1:{free_port()}",
                "cluster.enabled": "true", "cluster.node_id": f"node-{number}", "cluster.lease_ttl": f"{self.ttl:g}",
                "cluster.etcd.bind_addr": f"127.0.0.1:{port}", "cluster.etcd.client_addr": f"127.0.0.1:{free_port()}",
                "cluster.etcd.initial_cluster": members, "cluster.transport.bind_addr": f"127.0.0.1:{free_port()}",
            } | self.settings)
        try:
            # At once: none is ready before a majority of etcd runs.
            with ThreadPoolExecutor(self.count) as pool:
                list(pool.map(self.start, range(self.count)))
            self.wait(self.whole, "the nodes do not become one cluster")
            if self.cores:
                self.keep_to(self.cores)
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start(self, number: int) -> Broker:
        """Starts a node; it is ready when this returns."""
        folder = self.folder / f"node-{number}"
        folder.mkdir(exist_ok=True)
        needs = Needs(folder=folder, settings=self._fixed[number], patience=PATIENCE_SECONDS, home=self.home,
                      cores=self.cores and self.cores | os.sched_getaffinity(0))
        broker = self.brokers[number] = start_broker("fluxmq", needs)
        self.wait(lambda: self.view(number)["state"] == "serving", f"node {number} does not join")
        return broker

    def keep_to(self, cores: frozenset[int]) -> None:
        """All threads there are, of the members of etcd too; others inherit it."""
        for pid in self.pids():
            for task in list(Path(f"/proc/{pid}/task").iterdir()):
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.sched_setaffinity(int(task.name), cores)

    def pids(self) -> list[int]:
        """Of nodes and members of etcd."""
        return [pid for broker in self.brokers.values() for pid in children(broker.pid)]

    def whole(self) -> bool:
        """Whether every node has streams to and from all others."""
        return all(sum(peer["connected"] for peer in self.view(number)["peers"]) == self.count - 1
                   for number in range(self.count))

    def kill(self, number: int) -> None:
        """SIGKILL; its etcd member ends with it."""
        broker = self.brokers.pop(number)
        broker.process.kill()
        broker.stop()

    def kill_all(self) -> None:
        """SIGKILL to all: nobody needs what they have. Their members of etcd have ended when this returns."""
        running = [Path(f"/proc/{pid}") for pid in self.pids()]
        for broker in self.brokers.values():
            broker.process.kill()
        for number in list(self.brokers):
            self.kill(number)
        self.wait(lambda: not any(process.exists() for process in running), "members of etcd do not end")

    def stop(self, number: int) -> None:
        self.brokers.pop(number).stop()

    def stop_all(self) -> None:
        with ThreadPoolExecutor(self.count) as pool:
            list(pool.map(Broker.stop, self.brokers.values()))
        self.brokers.clear()

    def address(self, number: int) -> str:
        """Of MQTT, HOST:PORT; known also while the node is not running."""
        return self._fixed[number]["server.mqtt.tcp.plain.addr"]

    def amqp_address(self, number: int) -> str:
        """Of AMQP, likewise."""
        return self._fixed[number]["server.amqp091.plain.addr"]

    def view(self, number: int) -> dict[str, Any]:
        """GET /cluster of a node."""
        url = f"http://{self._fixed[number]['server.health_addr']}/cluster"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def sent(self, number: int) -> dict[str, int]:
        """What a node has sent to the others: messages, batches and bytes."""
        peers = self.view(number)["peers"]
        return {what: sum(peer[f"{what}_sent"] for peer in peers) for what in ("messages", "batches", "bytes")}

    def leads_etcd(self, number: int) -> bool:
        """Whether the etcd member of a node is the leader of etcd."""
        url = f"http://{self._fixed[number]['cluster.etcd.client_addr']}/metrics"
        with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return b"\netcd_server_is_leader 1" in answer.read()
        return False

    @staticmethod
    def wait(condition: Callable[[], object], complaint: str) -> None:
        """Until it holds. Raises BrokerError."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(OSError):
                if condition():
                    return
            if time.monotonic() > end:
                raise BrokerError(complaint)
            time.sleep(0.02)
