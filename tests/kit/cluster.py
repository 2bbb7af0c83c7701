"""Brokers of one cluster, each a process with its etcd member, on free ports of loopback.

    with Cluster(tmp_path, 3) as cluster:
        client = cluster.client(0); client.connect("c")
        cluster[1].kill(); cluster[1].start()
        cluster.pause(2); cluster.resume(2)
        cluster.kill_member(1)                          # the node's etcd

    with Cluster(tmp_path, 3, can_hold=True) as cluster:
        cluster.hold_member(1); cluster.release_member(1)
"""
from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oracle.mqtt import V5

from kit.broker import Broker, free_port
from kit.client import Client
from kit.etcd import etcd_binary
from kit.python import TESTS, environment
from kit.standstill import stand_still
from kit.surroundings import OutOfTime

__all__ = ["Cluster", "cluster_command", "fluxmq", "fluxmq_json"]

PATIENCE_S = 60.0  # only a failing test needs it
MEMORY = Path("/dev/shm")
LATE = "FLUXMQ_TEST_LATE_PEERS"  # in the environment: see kit/late_peers.py


def fluxmq(*words: str, given: str = "") -> str:
    """Runs a command; what it says. given: on standard input."""
    done = _run(words, given)
    return done.stdout + done.stderr


def fluxmq_json(*words: str) -> Any:
    """What a command prints with --json, without what it says on standard error (a node has not answered)."""
    done = _run((*words, "--json"), "")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def _run(words: Sequence[str], given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fluxmq", *words], capture_output=True, text=True, timeout=PATIENCE_S,
                          check=False, env=environment(), input=given)


def cluster_command(broker: Broker, *words: str) -> str:
    """`fluxmq cluster …` of a node that runs; what it says."""
    return fluxmq("cluster", *words, "--socket", str(broker.directory / "data" / "admin.sock"))


class _LateBroker(Broker):
    """One whose frames to other nodes come late."""

    folders = (TESTS,)

    def _command(self) -> list[str]:
        python, _, _, *words = super()._command()
        return [python, "-m", "kit.late_peers", *words]


class Cluster:
    """count: of nodes, named n0, n1, … ttl_s: of their leases. settings: of every node, besides. scheme: of the members
    of etcd; https needs the files in settings. can_hold: for hold_member."""

    def __init__(self, directory: Path, count: int, *, ttl_s: int = 8, settings: dict[str, object] | None = None,
                 scheme: str = "http", can_hold: bool = False) -> None:
        etcd_binary()
        self.names = [f"n{number}" for number in range(count)]
        self._directory = directory
        self._ttl_s = ttl_s
        self._scheme = scheme
        self._settings = settings or {}
        self._can_hold = can_hold
        self._etcd_ports: dict[str, int] = {}
        self._peers = {name: free_port() for name in self.names}
        members = self._members(self.names)
        self.brokers = [self._broker(name, {"cluster.etcd.initial_cluster": members}) for name in self.names]
        self._clients: list[Client] = []
        self._paused: set[int] = set()
        self._paused_members: set[int] = set()

    def _members(self, names: Iterable[str]) -> str:
        return ",".join(f"{name}={self._scheme}://{self._host(name)}:{self._peers[name]}" for name in names)

    def _host(self, name: str) -> str:
        """Where a node's member and its transport listen."""
        return "127.0.0.1"

    def _made(self, name: str, settings: dict[str, object], environ: dict[str, str]) -> Broker:
        if os.environ.get(LATE):
            return _LateBroker(self._directory / name, settings, environ)
        return Broker(self._directory / name, settings, environ)

    def _broker(self, name: str, settings: dict[str, object]) -> Broker:
        self._etcd_ports[name] = free_port()
        binary: dict[str, object] = {"cluster.etcd.binary": self._etcd_of(name)} if self._can_hold else {}
        # A variable that Python reads at its start: each node is a process of its own, not forked from this one.
        host = self._host(name)
        return self._made(name, {
            "cluster.enabled": True, "cluster.node_id": name, "cluster.lease_ttl": self._ttl_s,
            "cluster.etcd.bind_addr": f"{host}:{self._peers[name]}",
            "cluster.etcd.client_addr": f"{host}:{self._etcd_ports[name]}",
            "cluster.transport.bind_addr": f"{host}:{free_port()}",
        } | binary | settings | self._settings, {"PYTHONHASHSEED": "0"})

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
        with contextlib.ExitStack() as ends:
            ends.push(self.__exit__)            # if one does not start, the others end
            self.start()
            ends.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with contextlib.ExitStack() as ends:
            ends.callback(self._stop)
            for client in self._clients:
                ends.callback(client.close)
            for number in list(self._paused):
                ends.callback(self.resume, number)
            ends.callback(self.resume_members)
        if kind is None:
            for broker in self.brokers:
                broker.check()      # what it said in its last moments, too, and of tasks that nobody waited for

    def _stop(self) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(Broker.stop, self.brokers))
        for broker in self.brokers:
            # Of a cluster that a file of tests, or the whole run, has: 120 MiB each, which etcd reserves. In memory
            # (conftest.py) they would add up to gigabytes by the end.
            if MEMORY in broker.directory.parents:
                shutil.rmtree(broker.directory / "data" / "etcd", ignore_errors=True)

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
        process = self[number].process
        assert process is not None
        stand_still(process.pid)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self._paused.discard(number)
        self._signal(number, signal.SIGCONT)

    # ── etcd members ─────────────────────────────────────────────────────────────────────────────────────

    def _etcd_of(self, name: str) -> str:
        """A program that becomes etcd, unless the file .hold beside it says that it shall end."""
        self._directory.mkdir(parents=True, exist_ok=True)
        program = self._directory / f"{name}-etcd"
        program.write_text(f'#!/bin/sh\n[ -e "$0.hold" ] && exit 1\nexec {etcd_binary()} "$@"\n')
        program.chmod(0o755)
        return str(program)

    def member_pid(self, number: int) -> int:
        """Of the etcd process of a node; 0: there is none."""
        broker = self[number]
        directory = b"--data-dir=%s" % str(
            broker.settings.get("cluster.etcd.data_dir", broker.directory / "data" / "etcd")).encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and directory in (entry / "cmdline").read_bytes().split(b"\0"):
                    return int(entry.name)
        return 0

    def kill_member(self, number: int) -> None:
        """SIGKILL; the node starts it again, unless it is held."""
        os.kill(self.member_pid(number), signal.SIGKILL)

    def hold_member(self, number: int) -> None:
        """Kills it. Each time that the node starts it again it ends at once, until release_member."""
        (self._directory / f"{self.names[number]}-etcd.hold").touch()
        self.kill_member(number)

    def release_member(self, number: int) -> None:
        """The next start succeeds."""
        (self._directory / f"{self.names[number]}-etcd.hold").unlink()

    def pause_member(self, number: int) -> None:
        """SIGSTOP."""
        pid = self.member_pid(number)
        self._paused_members.add(pid)
        stand_still(pid)

    def resume_members(self) -> None:
        """SIGCONT to those that were paused."""
        while self._paused_members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._paused_members.pop(), signal.SIGCONT)

    def keys(self, prefix: bytes) -> list[bytes]:
        """Those of etcd that begin with this. Not with TLS."""
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_ports[self.names[0]], timeout=PATIENCE_S)
        with contextlib.closing(connection):
            first, end = (b64encode(key).decode() for key in (prefix, prefix[:-1] + bytes([prefix[-1] + 1])))
            connection.request("POST", "/v3/kv/range", json.dumps({"key": first, "range_end": end, "keys_only": True}))
            found = json.loads(connection.getresponse().read())
        return [b64decode(one["key"]) for one in found.get("kvs", ())]

    def etcd_leader(self) -> int:
        """The node whose member leads, as that member says; -1: there is none. Not with TLS."""
        for number, name in enumerate(self.names):
            connection = http.client.HTTPConnection("127.0.0.1", self._etcd_ports[name], timeout=2.0)
            with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
                connection.request("POST", "/v3/maintenance/status", "{}")
                said = json.loads(connection.getresponse().read())
                if said["leader"] == said["header"]["member_id"]:
                    return number
            connection.close()
        return -1

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

    def everybody_serves(self) -> bool:
        """Each node that runs serves, knows each other that runs, and knows the leader."""
        running = [number for number, broker in enumerate(self.brokers) if broker.running]
        for number in running:
            try:
                view = self.view(number)
            except OSError:
                return False
            up = [node["id"] for node in view["nodes"] if node["state"] != "down"]
            if (view["state"] != "serving" or sorted(up) != [self.names[one] for one in running]
                    or view["leader"] not in up or not all(peer["connected"] for peer in view["peers"]
                                                           if peer["node"] in up)):
                return False
        return True

    def epochs(self) -> list[int]:
        """Of all nodes, as each knows itself. Waits for one that is joining again: it tells nobody meanwhile."""
        found: list[int] = []

        def told() -> bool:
            try:
                found[:] = [self.nodes(number)[name]["epoch"] for number, name in enumerate(self.names)]
            except (OSError, KeyError):
                return False
            return True

        self.wait(told)
        return found

    def leader(self) -> int:
        """The node that leads the cluster."""
        return self.names.index(self.view(0)["leader"])

    @staticmethod
    def wait(condition: Callable[[], object]) -> None:
        """Until it holds. That nodes do not serve again in time says nothing of what they have; of any other condition
        nobody can know here what its absence means."""
        deadline = time.monotonic() + PATIENCE_S
        kind = OutOfTime if getattr(condition, "__func__", None) is Cluster.everybody_serves else AssertionError
        while not condition():
            if time.monotonic() >= deadline:
                raise kind("it does not happen")
            time.sleep(0.05)
