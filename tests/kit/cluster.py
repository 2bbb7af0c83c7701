"""Brokers of one cluster, each a process with its etcd member, on free ports of loopback.

    with Cluster(tmp_path, 3) as cluster:
        client = cluster.client(0); client.connect("c")
        cluster[1].kill(); cluster[1].start()
        cluster.pause(2); cluster.resume(2)
"""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oracle.mqtt import V5

from kit.broker import Broker, free_port
from kit.client import Client
from kit.etcd import etcd_binary
from kit.python import environment

__all__ = ["Cluster", "cluster_command", "fluxmq"]

PATIENCE_S = 60.0  # only a failing test needs it


def fluxmq(*words: str) -> str:
    """Runs a command; what it says."""
    done = subprocess.run([sys.executable, "-m", "fluxmq", *words], capture_output=True, text=True, timeout=PATIENCE_S,
                          check=False, env=environment())
    return done.stdout + done.stderr


def cluster_command(broker: Broker, *words: str) -> str:
    """`fluxmq cluster …` of a node that runs; what it says."""
    return fluxmq("cluster", *words, "--socket", str(broker.directory / "data" / "admin.sock"))


class Cluster:
    """count: of nodes, named n0, n1, … ttl_s: of their leases. settings: of every node, besides. scheme: of the members
    of etcd; https needs the files in settings."""

    def __init__(self, directory: Path, count: int, *, ttl_s: int = 8, settings: dict[str, object] | None = None,
                 scheme: str = "http") -> None:
        etcd_binary()
        self.names = [f"n{number}" for number in range(count)]
        self._directory = directory
        self._ttl_s = ttl_s
        self._scheme = scheme
        self._settings = settings or {}
        self._peers = {name: free_port() for name in self.names}
        members = self._members(self.names)
        self.brokers = [self._broker(name, {"cluster.etcd.initial_cluster": members}) for name in self.names]
        self._clients: list[Client] = []
        self._paused: set[int] = set()

    def _members(self, names: Iterable[str]) -> str:
        return ",".join(f"{name}={self._scheme}://127.0.0.1:{self._peers[name]}" for name in names)

    def _broker(self, name: str, settings: dict[str, object]) -> Broker:
        # A variable that Python reads at its start: each node is a process of its own, not forked from this one.
        return Broker(self._directory / name, {
            "cluster.enabled": True, "cluster.node_id": name, "cluster.lease_ttl": self._ttl_s,
            "cluster.etcd.bind_addr": f"127.0.0.1:{self._peers[name]}",
            "cluster.etcd.client_addr": f"127.0.0.1:{free_port()}",
            "cluster.transport.bind_addr": f"127.0.0.1:{free_port()}",
        } | settings | self._settings, {"PYTHONHASHSEED": "0"})

    def add(self, through: int = 0) -> Broker:
        """A further node, not started, which joins through a node that is there."""
        name = f"n{len(self.brokers)}"
        self.names.append(name)
        self._peers[name] = free_port()
        self.brokers.append(self._broker(name, {
            "cluster.etcd.bootstrap": False,
            "cluster.etcd.initial_cluster": self._members([self.names[through], name])}))
        return self.brokers[-1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with contextlib.ExitStack() as ends:
            ends.callback(self._stop)
            for client in self._clients:
                ends.callback(client.close)
            for number in list(self._paused):
                ends.callback(self.resume, number)

    def _stop(self) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(Broker.stop, self.brokers))

    def __getitem__(self, number: int) -> Broker:
        return self.brokers[number]

    def start(self) -> None:
        """All of them: none is ready before a majority of etcd runs."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(Broker.start, self.brokers))

    def client(self, number: int, version: int = V5) -> Client:
        """A connection to a node."""
        client = Client(self[number].addresses["mqtt/tcp/plain"], version)
        self._clients.append(client)
        return client

    def pause(self, number: int) -> None:
        """SIGSTOP to the broker; its etcd member runs."""
        self._paused.add(number)
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self._paused.discard(number)
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = self[number].process
        assert process is not None
        os.kill(process.pid, what)

    def view(self, number: int) -> dict[str, Any]:
        """GET /cluster."""
        host, port = self[number].addresses["health"]
        with urllib.request.urlopen(f"http://{host}:{port}/cluster", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def nodes(self, number: int) -> dict[str, dict[str, Any]]:
        """Those with a lease, as a node knows them, by name."""
        return {node["id"]: node for node in self.view(number)["nodes"] if node["state"] != "down"}

    def votes(self, number: int) -> dict[str, tuple[str, bool | None]]:
        """(vote in etcd, whether the member answers) of each node, as a node knows them."""
        return {node["id"]: (node["etcd"], node["etcd_healthy"]) for node in self.view(number)["nodes"]}

    @staticmethod
    def wait(condition: Callable[[], object]) -> None:
        """Until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it does not happen"
            time.sleep(0.05)
