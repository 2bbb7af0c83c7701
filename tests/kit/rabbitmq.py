"""Debian's RabbitMQ as a process of its own, with the verbs of kit/broker.py: started, killed and started again on the
same data and the same port. What AMQP tests are proved against (`--amqp-broker=rabbitmq`)."""
from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fluxmq.bench.load.brokers import Broker as Process
from fluxmq.bench.load.brokers import BrokerError, Needs, ready, spawn, wait_listening
from fluxmq.bench.load.rabbitmq import CONFIG, environment, find_rabbitmq, start_epmd
from kit.broker import free_port

__all__ = ["RabbitNode"]

START_SECONDS = 90.0


class RabbitNode:
    """directory: where data and logs go. lines: more of rabbitmq.conf."""

    kind = "rabbitmq"

    def __init__(self, directory: Path, lines: tuple[str, ...] = ()) -> None:
        programs = find_rabbitmq()
        if programs is None:
            pytest.skip("rabbitmq is not installed (Debian package: rabbitmq-server)")
        self._program, self._epmd_program = programs
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.amqp = ("127.0.0.1", free_port())
        (directory / "rabbitmq.conf").write_text(CONFIG.format(port=self.amqp[1]) + "".join(f"{line}\n"
                                                                                            for line in lines))
        (directory / "enabled_plugins").write_text("[].\n")
        self._needs = Needs(folder=directory)
        self._dist_port = free_port()
        self._epmd: Process | None = None
        self._process: Process | None = None

    def start(self) -> RabbitNode:
        if self._epmd is None:
            self._epmd = start_epmd(self._epmd_program, self._needs)
        given = environment(self.directory, self._dist_port, int(self._epmd.addresses["epmd"].rpartition(":")[2]))
        command = ["env", *(f"{name}={value}" for name, value in given.items()), self._program]
        process = Process("rabbitmq", spawn(command, self._needs, quiet=True),
                          {"amqp": f"127.0.0.1:{self.amqp[1]}"})
        self._process = ready(process, self._needs, lambda: wait_listening(process, self._needs, START_SECONDS))
        return self

    def restart(self) -> None:
        self._stop_node()
        self.start()

    def kill(self) -> None:
        """SIGKILL to the node and what it started. Follow it with `start`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.process.wait()
        self._process = None

    def stop(self) -> None:
        self._stop_node()
        if self._epmd is not None:
            self._epmd.stop()
            self._epmd = None

    def _stop_node(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def check(self) -> None:
        """Raise BrokerError when it ended by itself."""
        if self._process is not None and self._process.process.poll() is not None:
            raise BrokerError("rabbitmq ended by itself")

    def stderr(self, since: int = 0) -> str:
        path = self.directory / "stderr.txt"
        return path.read_bytes()[since:].decode("utf-8", "replace") if path.exists() else ""

    def stderr_size(self) -> int:
        path = self.directory / "stderr.txt"
        return path.stat().st_size if path.exists() else 0
