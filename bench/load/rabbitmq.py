"""RabbitMQ to measure beside FluxMQ: the installed rabbitmq-server, run by hand in a directory of its own.

Everything that it writes is in that directory, everything that it listens on is on loopback at a free port, and its
port mapper (epmd) is one of our own, so that neither a RabbitMQ of the machine nor its settings are met.
"""
from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from fluxmq.bench.load.brokers import Broker, BrokerError, Needs, free_port, ready, spawn, wait_listening

__all__ = [
    "NOT_INSTALLED",
    "START_SECONDS",
    "RabbitMQ",
    "find_rabbitmq",
    "node_name",
    "spawn_node",
    "start",
    "start_epmd",
]

# Debian's /usr/sbin/rabbitmq-server is a wrapper that changes user and directory; this is the script it calls.
DEBIAN_PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/lib/erlang/bin"))
START_SECONDS = 60.0
NOT_INSTALLED = "rabbitmq is not installed (Debian package: rabbitmq-server)"
# Default settings except addresses, and without a log line for every connection.
CONFIG = "listeners.tcp.1 = 127.0.0.1:{port}\nlog.file.level = warning\nlog.console = false\n"


def find_rabbitmq() -> tuple[str, str] | None:
    """Paths of rabbitmq-server and epmd, or None when one of them is not installed."""
    server = DEBIAN_PROGRAM if Path(DEBIAN_PROGRAM).exists() else shutil.which("rabbitmq-server", path=PLACES)
    epmd = shutil.which("epmd", path=PLACES)
    return (server, epmd) if server and epmd else None


@dataclass(slots=True)
class RabbitMQ(Broker):
    """A running RabbitMQ and its port mapper; both are stopped together."""

    epmd: Broker = field(kw_only=True)

    def stop(self) -> None:
        # Named explicitly, because super() would find the wrong class in a dataclass with slots.
        try:
            Broker.stop(self)
        finally:
            self.epmd.stop()


def node_name(dist_port: int) -> str:
    return f"fluxmq-bench-{dist_port}@localhost"


def environment(folder: Path, dist_port: int, epmd_port: int) -> dict[str, str]:
    """Environment that isolates the node. HOME has the cookie; the last variable makes the script exec the server."""
    return {
        "HOME": str(folder), "ERL_EPMD_PORT": str(epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": node_name(dist_port), "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"), "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"), "RABBITMQ_PLUGINS_EXPAND_DIR": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RUNNING_UNDER_SYSTEMD": "1",
    }


def start_epmd(program: str, needs: Needs) -> Broker:
    folder = needs.folder / "epmd"
    folder.mkdir()
    own = Needs(folder=folder, cores=needs.cores)
    port = free_port()
    epmd = Broker("epmd", spawn([program, "-address", "127.0.0.1", "-port", str(port)], own, quiet=True),
                  {"epmd": f"127.0.0.1:{port}"})
    return ready(epmd, own, lambda: wait_listening(epmd, own))


def spawn_node(program: str, needs: Needs, epmd: Broker, dist_port: int,
               lines: str = "") -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Starts a node in its folder, without waiting for it; returns its process and addresses. lines: more of
    rabbitmq.conf."""
    port = free_port()
    (needs.folder / "rabbitmq.conf").write_text(CONFIG.format(port=port) + lines)
    (needs.folder / "enabled_plugins").write_text("[].\n")
    given = environment(needs.folder, dist_port, int(epmd.addresses["epmd"].rpartition(":")[2]))
    command = ["env", *(f"{name}={value}" for name, value in given.items()), program]
    return spawn(command, needs, quiet=True), {"amqp": f"127.0.0.1:{port}"}


def start(needs: Needs) -> RabbitMQ:
    """RabbitMQ as it ships, without plugins. Raises BrokerError, also when it is not installed."""
    programs = find_rabbitmq()
    if programs is None:
        raise BrokerError(NOT_INSTALLED)
    epmd = start_epmd(programs[1], needs)
    try:
        process, addresses = spawn_node(programs[0], needs, epmd, free_port())
        broker = RabbitMQ("rabbitmq", process, addresses, epmd=epmd)
    except BaseException:
        epmd.stop()
        raise
    ready(broker, needs, lambda: wait_listening(broker, needs, START_SECONDS))
    return broker
