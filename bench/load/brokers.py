"""The brokers of a comparison: FluxMQ, mosquitto, RabbitMQ, or a floor.

Started here (RabbitMQ in rabbitmq.py), stopped here, by pid.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from fluxmq.bench.load.certs import Certificates
from fluxmq.bench.load.floors import build_floor

__all__ = ["BROKERS", "MQTT_BROKERS", "Broker", "BrokerError", "Needs", "find_mosquitto", "free_port", "start_broker"]

START_SECONDS = 20.0
STOP_SECONDS = 10.0
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_MIN = 10_000
SLOTS = {"tcp": "server.mqtt.tcp.plain", "tls": "server.mqtt.tcp.tls",
         "ws": "server.mqtt.websocket.plain", "wss": "server.mqtt.websocket.tls", "amqp": "server.amqp091.plain"}
# The start message has a line for each slot, with its key or the key's end and HOST:PORT.
SLOT_IN_LINE = re.compile(r"\b(tcp|websocket|amqp091)[./](plain|tls)\b")
ADDRESS_IN_LINE = re.compile(r"(\d+\.\d+\.\d+\.\d+|\[[0-9a-fA-F:]+\]):(\d+)")
TRANSPORT_OF = {("tcp", "plain"): "tcp", ("tcp", "tls"): "tls", ("websocket", "plain"): "ws",
                ("websocket", "tls"): "wss", ("amqp091", "plain"): "amqp"}


class BrokerError(RuntimeError):
    """A broker could not be started. The text names it and has its output."""


@dataclass(slots=True, kw_only=True)
class Needs:
    """What a row asks of a broker. folder: an empty directory of its own. cores: processors to run on, empty for any.

    pairs: a relay is to hand each publisher's bytes to one subscriber. queue: the type of queue that a publish to an
    unknown one makes, "" for none. compress: whether messages on disk may be compressed.
    patience: seconds until it must have reported its addresses. settings: of FluxMQ, those that differ from the
    default. home: the directory that has the package `fluxmq` to run, None for the one that runs this."""

    folder: Path
    transports: tuple[str, ...] = ("tcp",)
    certificates: Certificates | None = None
    pairs: bool = False
    queue: str = ""
    compress: bool = True
    cores: frozenset[int] = frozenset()
    patience: float = START_SECONDS
    settings: dict[str, str] = field(default_factory=dict)
    home: Path | None = None


@dataclass(slots=True)
class Broker:
    """A running broker. addresses: transport → HOST:PORT. Leaving its context stops the process."""

    name: str
    process: subprocess.Popen[bytes]
    addresses: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if the process has not ended within ten seconds; returns when it has."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()


def spawn(command: list[str], needs: Needs, *, quiet: bool) -> subprocess.Popen[bytes]:
    """Starts a process in its folder, on its cores, outside of the terminal's process group, so that only we handle
    Ctrl-C."""
    log = needs.folder / "stderr.txt"
    # Affinity is inherited: it is set for this process during the fork, so that all threads of the child have it.
    own = os.sched_getaffinity(0)
    with log.open("wb") as errors:
        if needs.cores:
            os.sched_setaffinity(0, needs.cores)
        environment = os.environ | ({"PYTHONPATH": str(needs.home)} if needs.home else {})
        try:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=needs.folder, start_new_session=True,
                                    env=environment,
                                    stdout=errors if quiet else subprocess.PIPE, stderr=errors)
        finally:
            os.sched_setaffinity(0, own)


def complaint(needs: Needs, text: str = "") -> str:
    log = needs.folder / "stderr.txt"
    said = (text + (log.read_text(errors="replace") if log.exists() else "")).strip()
    return said[-2000:] or "it printed nothing"


def read_lines(broker: Broker, needs: Needs, take: Callable[[str], bool]) -> None:
    """Passes lines of standard output to `take` until that returns true. Raises BrokerError."""
    assert broker.process.stdout is not None
    fd = broker.process.stdout.fileno()
    end = time.monotonic() + needs.patience
    said = text = ""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if not selector.select(left):
                break
            got = os.read(fd, 4096).decode(errors="replace")
            if not got:
                break
            said += got
            *lines, text = (text + got).split("\n")
            if any([take(line) for line in lines]):
                return
    raise BrokerError(f"{broker.name} did not say where it listens: {complaint(needs, said)}")


def start_fluxmq(needs: Needs) -> Broker:
    """FluxMQ as it ships, but for what is needed: default settings, ports of its own choosing, data in the folder."""
    settings = {"storage.dir": str(needs.folder / "data"), "server.health_enabled": "false",
                "server.admin_socket": "", "queue_manager.auto_create": needs.queue,
                "queue_manager.compression": "zstd" if needs.compress else "none"}
    for transport, slot in SLOTS.items():
        settings[f"{slot}.addr"] = "127.0.0.1:0" if transport in needs.transports else ""
        if transport in needs.transports and transport in ("tls", "wss") and needs.certificates:
            settings[f"{slot}.cert_file"] = str(needs.certificates.certfile)
            settings[f"{slot}.key_file"] = str(needs.certificates.keyfile)
    command = [sys.executable, "-m", "fluxmq", "run"]
    for key, value in (settings | needs.settings).items():
        command += ["--set", f"{key}={value}"]
    broker = Broker("fluxmq", spawn(command, needs, quiet=False))

    def take(line: str) -> bool:
        slot, address = SLOT_IN_LINE.search(line), ADDRESS_IN_LINE.search(line)
        if slot and address and address.group(2) != "0":
            broker.addresses[TRANSPORT_OF[slot.group(1), slot.group(2)]] = address.group(0)
        return set(broker.addresses) >= set(needs.transports)

    return ready(broker, needs, lambda: read_lines(broker, needs, take))


def find_mosquitto() -> str | None:
    """The program's path: PATH, or where Debian puts it for root."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


@functools.cache
def ports() -> Iterator[int]:
    """Those below the range that the kernel assigns to clients, one of which could get a port before the broker: each
    once, in an order of chance, and then again. Ends at once where the kernel leaves none."""
    try:
        low = int(EPHEMERAL.read_text().split()[0])
    except OSError:
        low = 0
    found = list(range(PORT_MIN, low)) if low >= 2 * PORT_MIN else []
    random.SystemRandom().shuffle(found)
    return itertools.cycle(found)


def free_port() -> int:
    """A port that was free a moment ago. A process gets no port twice before it has had them all: who asks for several
    listens on them later. (Where the kernel leaves none for this, what it gives.)"""
    for port in ports():
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start_mosquitto(needs: Needs) -> Broker:
    """mosquitto without limits and persistence, logging only errors."""
    program = find_mosquitto()
    if program is None:
        raise BrokerError("mosquitto is not installed (Debian package: mosquitto)")
    lines = ["max_inflight_messages 0", "max_queued_messages 0", "set_tcp_nodelay true", "persistence false",
             "allow_anonymous true", "log_type error"]
    addresses = {}
    # With only WebSocket listeners version 2.0 assumes that it has none, and exits.
    for transport in dict.fromkeys(("tcp", *needs.transports)):
        port = free_port()
        addresses[transport] = f"127.0.0.1:{port}"
        lines.append(f"listener {port} 127.0.0.1")
        if transport in ("ws", "wss"):
            lines.append("protocol websockets")
        if transport in ("tls", "wss") and needs.certificates:
            lines += [f"certfile {needs.certificates.certfile}", f"keyfile {needs.certificates.keyfile}"]
    config = needs.folder / "mosquitto.conf"
    config.write_text("\n".join(lines) + "\n")
    # Started by root it would change to another user, which cannot read the key.
    if os.geteuid() == 0:
        config.write_text(config.read_text() + "user root\n")
    broker = Broker("mosquitto", spawn([program, "-c", str(config)], needs, quiet=True), addresses)
    return ready(broker, needs, lambda: wait_listening(broker, needs))


def start_floor(name: str, needs: Needs) -> Broker:
    command = [str(build_floor(name))] + (["pairs"] if needs.pairs and name == "relay" else [])
    broker = Broker(name, spawn(command, needs, quiet=False))

    def take(line: str) -> bool:
        broker.addresses["tcp"] = f"127.0.0.1:{int(line)}"
        return True

    return ready(broker, needs, lambda: read_lines(broker, needs, take))


def wait_listening(broker: Broker, needs: Needs, seconds: float = START_SECONDS) -> None:
    end = time.monotonic() + seconds
    for address in broker.addresses.values():
        host, _, port = address.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                break
            except OSError:
                if broker.process.poll() is not None or time.monotonic() > end:
                    raise BrokerError(f"{broker.name} does not listen: {complaint(needs)}") from None
                time.sleep(0.02)


def ready(broker: Broker, needs: Needs, wait: Callable[[], None]) -> Broker:
    """Returns the broker when it listens; stops it if it does not."""
    try:
        wait()
    except BaseException:
        broker.stop()
        raise
    return broker


def start_rabbitmq(needs: Needs) -> Broker:
    # Imported here, because rabbitmq.py imports from this module.
    from fluxmq.bench.load.rabbitmq import start

    return start(needs)


BROKERS: dict[str, Callable[[Needs], Broker]] = {
    "fluxmq": start_fluxmq,
    "mosquitto": start_mosquitto,
    "rabbitmq": start_rabbitmq,
    "relay": lambda needs: start_floor("relay", needs),
    "fanout": lambda needs: start_floor("fanout", needs),
}

# Brokers for rows that speak MQTT.
MQTT_BROKERS = sorted(set(BROKERS) - {"rabbitmq"})


def start_broker(name: str, needs: Needs) -> Broker:
    """Start one of BROKERS. Raises BrokerError, FloorError; KeyError for another name."""
    return BROKERS[name](needs)
