"""A broker as a process of its own: started, killed and started again on the same data and the same ports.

FLUXMQ_TEST_BROKER says which broker the tests speak to:

    (not set)     this tree's `python -m fluxmq run`
    mosquitto     Debian's mosquitto; for work on the tests only, what it cannot be configured to do is skipped
    host:port     one that runs already; what needs a configuration or a restart of its own is skipped

FLUXMQ_TEST_PORTS=FIRST-LAST: brokers and members of etcd listen on no other ports.
"""
from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest

from kit.nursery import Process, can_fork, fork
from kit.python import environment
from kit.surroundings import NotReady, PortTaken

ROOT = Path(__file__).resolve().parents[2]
WHICH = os.environ.get("FLUXMQ_TEST_BROKER", "")
START_SECONDS = 30.0            # generous: only a broken broker needs them
STOP_SECONDS = 30.0
PORT_TRIES = 5
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = (10_000, 65_536)
PORTS_MIN = 2_000               # fewer are too few for all tests: then any will do
PORTS_VARIABLE = "FLUXMQ_TEST_PORTS"


Address = tuple[str, int]

# What a broker prints only when something is wrong with itself
ACCIDENTS = ("Traceback (most recent call last)", "internal error", "AddressSanitizer", "runtime error:",
             "exception was never retrieved", "Exception in callback")

# What mosquitto calls the keys that it knows; a key without a line here skips the test
MOSQUITTO_KEYS = {
    "broker.server_keep_alive_max": "max_keepalive {}",
    "broker.max_qos": "max_qos {}",
    "session.max_inflight_messages": "max_inflight_messages {}",
    "session.max_offline_queue_size": "max_queued_messages {}",
}


class BrokerDied(AssertionError):
    """The process ended by itself, never became ready, or printed a traceback."""


class BrokerNotReady(BrokerDied, NotReady):
    """It runs, and does not say that it is ready."""


class BrokerPortTaken(BrokerDied, PortTaken):
    """Another process was quicker."""


@functools.cache
def ports() -> list[int]:
    """Those that the kernel gives to no client's end of a connection and no other worker of pytest gives to a broker,
    in an order of chance. (Not the chance of the test: hypothesis gives all workers the same.)"""
    try:
        low, high = map(int, EPHEMERAL.read_text().split())
    except OSError:
        low, high = 32_768, 60_999
    found = [port for port in range(*PORTS) if not low <= port <= high]
    if len(found) < PORTS_MIN:
        found = list(range(*PORTS))
    if PORTS_VARIABLE in os.environ:
        first, _, last = os.environ[PORTS_VARIABLE].partition("-")
        found = list(range(int(first), int(last) + 1))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    found = found[int(worker) % workers::workers] if worker.isdigit() else found
    random.SystemRandom().shuffle(found)
    return found


_turns = itertools.count()


def free_port() -> int:
    """A port that was free a moment ago, and that nobody will get meanwhile: a broker that is killed and started again
    wants its ports back."""
    while True:
        port = ports()[next(_turns) % len(ports())]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def free_pairs(count: int) -> tuple[list[int], int]:
    """(ports, offset): as free_port(), of ports and of those that are `offset` behind them."""
    offset = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own, found = {*ports()}, list[int]()
    while len(found) < count:
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            if port + offset in own and not {port - offset, port, port + offset} & {*found}:
                probe.bind(("127.0.0.1", port + offset))
                found.append(port)
    return found, offset


class Broker:
    """One broker process.

    directory: where data and logs go. settings: `key.path` → value, as for `fluxmq run --set`. environ: what its
    process has besides in its environment. It is forked by a program that has imported everything (kit/nursery.py),
    or started by itself where that would be another thing.
    After `start`, `addresses` maps slot names as the start message prints them ("mqtt/tcp/plain", "health", …)
    to (host, port), and they stay the same over restarts.
    """

    folders: tuple[Path, ...] = ()  # that it imports from besides
    start_seconds = START_SECONDS

    def __init__(self, directory: Path, settings: dict[str, object] | None = None,
                 environ: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.environ = dict(environ or {})
        self.settings = dict(settings or {})
        self.addresses: dict[str, Address] = {}
        self.process: subprocess.Popen[bytes] | Process | None = None
        self._checked = 0                    # bytes of stderr that a check has seen
        self._began = 0                      # bytes of stderr before its last start
        directory.mkdir(parents=True, exist_ok=True)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Broker:
        """Start the process and wait until it says that it is ready."""
        if self.external:
            host, _, port = WHICH.rpartition(":")
            self.addresses = {"mqtt/tcp/plain": (host, int(port))}
            return self
        for _ in range(PORT_TRIES):
            with contextlib.suppress(BrokerPortTaken):
                return self._start()
            time.sleep(0.2)                      # another test was quicker, for now
        return self._start()

    def _start(self) -> Broker:
        command = self._mosquitto_command() if WHICH == "mosquitto" else self._command()
        out, err = self._log("stdout"), self._log("stderr")
        self._began = self.stderr_size()
        env = environment(*self.folders, PYTHONUNBUFFERED="1", **self.environ)
        if can_fork(command, env):
            self.process = fork(command, stdout=out, stderr=err, cwd=self.directory, env=env)
        else:
            with out.open("wb") as stdout, err.open("ab") as stderr:
                self.process = subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=self.directory, env=env)
        if WHICH == "mosquitto":
            self._wait_until_listening()
        else:
            self._wait_until_ready()
        return self

    def restart(self) -> None:
        """SIGTERM, then start again on the same data and the same ports."""
        self.terminate()
        self.start()

    def kill(self) -> None:
        """SIGKILL: no goodbye. Follow it with `start`."""
        self._need_process().kill()
        self._need_process().wait(STOP_SECONDS)
        self.process = None

    def terminate(self) -> int:
        """SIGTERM; wait for the end; the exit code."""
        process = self._need_process()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerDied(f"SIGTERM did not end the broker\n{self.stderr()}") from None
        self.process = None
        return code

    def reload(self) -> None:
        """SIGHUP: re-read certificates, users and ACL."""
        self._need_process().send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End it if it runs, whatever its state."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    # ── what it is and says ──────────────────────────────────────────────────────────────────────────────

    @property
    def external(self) -> bool:
        return ":" in WHICH

    @property
    def ours(self) -> bool:
        return not WHICH

    @property
    def running(self) -> bool:
        return self.external or (self.process is not None and self.process.poll() is None)

    @property
    def address(self) -> Address:
        return self.addresses["mqtt/tcp/plain"]

    @property
    def websocket(self) -> Address:
        return self._or_skip("mqtt/websocket/plain")

    @property
    def health(self) -> Address:
        return self._or_skip("health")

    def ready(self) -> int:
        """The status that /ready answers."""
        with contextlib.closing(http.client.HTTPConnection(*self.health, timeout=10)) as connection:
            connection.request("GET", "/ready")
            return connection.getresponse().status

    def stderr(self, since: int = 0) -> str:
        path = self._log("stderr")
        return path.read_bytes()[since:].decode("utf-8", "replace") if path.exists() else ""

    def stderr_size(self) -> int:
        path = self._log("stderr")
        return path.stat().st_size if path.exists() else 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends it; where the block went well, so must have the broker."""
        try:
            if kind is None:
                self.check()
        finally:
            self.stop()

    def check(self) -> None:
        """Raise BrokerDied when the process ended by itself or printed a traceback since the last check."""
        new, self._checked = self.stderr(self._checked), self.stderr_size()
        if self.process is not None and self.process.poll() is not None:
            code, self.process = self.process.returncode, None
            raise BrokerDied(f"the broker ended by itself, exit code {code}\n{new}")
        if any(sign in new for sign in ACCIDENTS):
            raise BrokerDied(f"the broker had an accident\n{new}")

    # ── details ──────────────────────────────────────────────────────────────────────────────────────────

    def _command(self) -> list[str]:
        ports = [free_port() for _ in range(4)]
        settings: dict[str, object] = {
            "server.mqtt.tcp.plain.addr": f"127.0.0.1:{ports.pop()}",
            "server.mqtt.websocket.plain.addr": f"127.0.0.1:{ports.pop()}",
            "server.amqp091.plain.addr": f"127.0.0.1:{ports.pop()}",
            "server.health_addr": f"127.0.0.1:{ports.pop()}",
            "storage.dir": str(self.directory / "data"),
        } | self.settings
        for slot, (host, port) in self.addresses.items():          # the second start keeps the ports of the first
            key = "server.health_addr" if slot == "health" else f"server.{slot.replace('/', '.')}.addr"
            settings[key] = f"{host}:{port}"
        return [sys.executable, "-m", "fluxmq", "run", *self._sets(settings)]

    def sets(self) -> list[str]:
        """The configuration as options of a command, once it has been started."""
        return self._sets({"storage.dir": str(self.directory / "data")} | self.settings)

    def _sets(self, settings: dict[str, object]) -> list[str]:
        return [f"--set={key}={self._value(value)}" for key, value in settings.items()]

    @staticmethod
    def _value(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while time.monotonic() < deadline:
            lines = self._log("stdout").read_text("utf-8", "replace").splitlines()
            if "ready" in (line.strip() for line in lines):
                self.addresses = self._listeners(lines)
                return
            if self._need_process().poll() is not None:
                break
            time.sleep(0.01)
        said = self._log("stdout").read_text("utf-8", "replace") + self.stderr(self._began)
        kind: type[BrokerDied] = BrokerDied
        if self._need_process().poll() is None and not any(sign in said for sign in ACCIDENTS):
            kind = BrokerNotReady
        self.stop()
        # Another test took it meanwhile, or one was drawn twice.
        if any(text in said for text in ("Address already in use", "cannot be listened on twice")):
            kind = BrokerPortTaken
        raise kind(f"the broker did not become ready\n{said}")

    @staticmethod
    def _listeners(lines: list[str]) -> dict[str, Address]:
        found: dict[str, Address] = {}
        for line in lines:
            words = re.split(r"\s{2,}", line.strip())
            if len(words) >= 3 and words[0] == "listening":
                host, _, port = words[2].rpartition(":")
                if port.isdigit():                      # the admin socket is a path
                    found[words[1]] = (host.strip("[]"), int(port))
        return found

    def _mosquitto_command(self) -> list[str]:
        program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        if not Path(program).exists():
            pytest.skip("needs mosquitto (Debian package mosquitto)")
        if not self.addresses:
            self.addresses = {"mqtt/tcp/plain": ("127.0.0.1", free_port())}
        lines = [f"listener {self.address[1]} 127.0.0.1", "allow_anonymous true", "persistence true", "user root",
                 f"persistence_location {self.directory}/", "max_inflight_messages 100"]
        for key, value in self.settings.items():
            if key not in MOSQUITTO_KEYS:
                pytest.skip(f"mosquitto has no {key}")
            lines.append(MOSQUITTO_KEYS[key].format(value))
        config = self.directory / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        return [program, "-c", str(config)]

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._need_process().poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(self.address, 1):
                return
            time.sleep(0.01)
        raise BrokerNotReady(f"mosquitto did not start\n{self.stderr()}")

    def _log(self, stream: str) -> Path:
        return self.directory / f"broker.{stream}"

    def _need_process(self) -> subprocess.Popen[bytes] | Process:
        if self.external:
            pytest.skip("needs a broker of its own to restart")
        assert self.process is not None, "the broker was not started"
        return self.process

    def _or_skip(self, slot: str) -> Address:
        if slot not in self.addresses and not self.ours:
            pytest.skip(f"this broker has no {slot}")
        return self.addresses[slot]


def add_user(users_file: Path, user: str, password: str) -> None:
    """Add a user as an administrator would: `fluxmq user add`, the password on standard input."""
    if WHICH:
        pytest.skip("this broker has no users file of ours")
    subprocess.run([sys.executable, "-m", "fluxmq", "user", "add", "--file", str(users_file), "--password-stdin", user],
                   input=f"{password}\n".encode(), check=True, env=environment(), timeout=START_SECONDS)


__all__ = ["ROOT", "WHICH", "Address", "Broker", "BrokerDied", "add_user", "free_pairs", "free_port"]
