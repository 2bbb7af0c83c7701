"""A cluster whose nodes are in network namespaces, where packets vanish as a test says. Needs root and iproute2.

    with Network(3) as network, SpacedCluster(tmp_path, network) as cluster:
        network.cut(1)          # nothing passes between n1 and the other nodes
        network.lose_from(1)    # what n1 sends to the other nodes is lost
        network.lose_to(1)      # what they send to it
        network.mend(1)

    tests ── front, one link for each node ──► n0, n1, … ◄── back ──► a switch (a bridge in a namespace of its own)

Clients use the front, which always works; the nodes and their members of etcd use the back. A proxy (kit/parted.py)
answers for the other end while nothing is carried; here nobody does, and TCP sends again until it gives up.
"""
from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from kit.broker import Broker
from kit.cluster import Cluster
from kit.tools import require_tool

__all__ = ["Network", "SpacedCluster"]

MQTT_PORT, HEALTH_PORT = 1883, 8081


class Network:
    """count: of nodes. Skips the test where there is no right to make namespaces."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._ip, self._tc = require_tool("ip", package="iproute2"), require_tool("tc", package="iproute2")
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        self._prefix = f"fq{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._ends = contextlib.ExitStack()

    def space(self, number: int) -> str:
        """The namespace of a node."""
        return f"{self._prefix}-n{number}"

    def front(self, number: int) -> str:
        """The address of a node for its clients: of a network that is there for tests."""
        return f"198.18.{os.getpid() % 250}.{4 * number + 2}"

    def back(self, number: int) -> str:
        """Its address for the other nodes."""
        return f"198.19.0.{number + 1}"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            self._space(self._switch, ends)
            self._run(self._ip, "-n", self._switch, "link", "add", "switch", "type", "bridge")
            self._run(self._ip, "-n", self._switch, "link", "set", "switch", "up")
            for number in range(self.count):
                self._join(number, ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._ends.close()

    def _space(self, name: str, ends: contextlib.ExitStack) -> None:
        done = subprocess.run([self._ip, "netns", "add", name], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"network namespaces are not allowed here: {done.stderr.strip()}")
        ends.callback(subprocess.run, [self._ip, "netns", "delete", name], check=False)

    def _join(self, number: int, ends: contextlib.ExitStack) -> None:
        space, front, port = self.space(number), f"{self._prefix}f{number}", f"port{number}"
        self._space(space, ends)
        self._run(self._ip, "-n", space, "link", "set", "lo", "up")
        self._run(self._ip, "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "back",
                  "netns", space)
        self._run(self._ip, "-n", self._switch, "link", "set", port, "master", "switch", "up")
        self._run(self._ip, "-n", space, "address", "add", f"{self.back(number)}/24", "dev", "back")
        self._run(self._ip, "-n", space, "link", "set", "back", "up")
        self._run(self._ip, "link", "add", front, "type", "veth", "peer", "name", "front", "netns", space)
        self._run(self._ip, "-n", space, "address", "add", f"{self.front(number)}/30", "dev", "front")
        self._run(self._ip, "-n", space, "link", "set", "front", "up")
        here = self.front(number).rpartition(".")[0]
        self._run(self._ip, "address", "add", f"{here}.{4 * number + 1}/30", "dev", front)
        self._run(self._ip, "link", "set", front, "up")

    def cut(self, number: int) -> None:
        """Pulls a node's plug at the switch."""
        self._run(self._ip, "-n", self._switch, "link", "set", f"port{number}", "down")

    def lose_from(self, number: int) -> None:
        """Its interface has room for no packet."""
        self._run(self._tc, "-n", self.space(number), "qdisc", "replace", "dev", "back", "root", "pfifo", "limit", "0")

    def lose_to(self, number: int) -> None:
        """Its port at the switch has room for no packet."""
        self._run(self._tc, "-n", self._switch, "qdisc", "replace", "dev", f"port{number}", "root", "pfifo", "limit",
                  "0")

    def mend(self, number: int) -> None:
        """Everything passes again."""
        for space, device in ((self.space(number), "back"), (self._switch, f"port{number}")):
            self._run(self._tc, "-n", space, "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "1000")
        self._run(self._ip, "-n", self._switch, "link", "set", f"port{number}", "up")

    @staticmethod
    def _run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class SpacedBroker(Broker):
    """One in a namespace."""

    def __init__(self, directory: Path, settings: dict[str, object], environ: dict[str, str], space: str) -> None:
        super().__init__(directory, settings, environ)
        self._space = space

    def _command(self) -> list[str]:
        return [require_tool("ip", package="iproute2"), "netns", "exec", self._space, *super()._command()]


class SpacedCluster(Cluster):
    """As Cluster, with a node in each namespace of a network."""

    def __init__(self, directory: Path, network: Network, *, ttl_s: int = 4, settings: dict[str, object] | None = None,
                 ) -> None:
        self._network = network
        super().__init__(directory, network.count, ttl_s=ttl_s, settings=settings)

    def _host(self, name: str) -> str:
        return self._network.back(int(name[1:]))

    def _made(self, name: str, settings: dict[str, object], environ: dict[str, str]) -> Broker:
        front = self._network.front(int(name[1:]))
        return SpacedBroker(self._directory / name, {
            "server.mqtt.tcp.plain.addr": f"{front}:{MQTT_PORT}", "server.health_addr": f"{front}:{HEALTH_PORT}",
            "server.mqtt.websocket.plain.addr": "", "server.amqp091.plain.addr": "", "auth.allow_anonymous": True,
        } | settings, environ, self._network.space(int(name[1:])))
