"""etcd for tests: one member or several, on free ports, which end with the process that has started them.

They do not call fsync: a test that cuts the power says so. Elections take half a second instead of one.
"""
from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fluxmq.cluster.etcd.guard import guarded
from kit.broker import free_port
from kit.standstill import stand_still
from kit.surroundings import ToolFailed
from kit.tools import require_tool

__all__ = ["QUICK", "EtcdServer", "EtcdServers", "etcd_binary"]

QUICK = ("--unsafe-no-fsync", "--heartbeat-interval=50", "--election-timeout=500")
SECONDS = 30.0


def etcd_binary() -> str:
    """Path of Debian's etcd. Without it the test is skipped, or fails when FLUXMQ_REQUIRE_TOOLS=1."""
    return require_tool("etcd", package="etcd-server")


class EtcdServer:
    """One member. flags: besides those that it needs. tls: the paths of ca, certificate and key; clients must then have
    a certificate too."""

    def __init__(self, folder: Path, name: str, flags: Iterable[str] = (), tls: tuple[str, str, str] | None = None,
                 ) -> None:
        self.folder, self.name = folder, name
        self.flags = [*flags]
        self.tls = tls
        self.client_port, self.peer_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For clients."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def start(self, cluster: str, state: str = "new") -> None:
        """cluster: as --initial-cluster. Returns at once."""
        client = f"{'https' if self.tls else 'http'}://{self.address}"
        command = [etcd_binary(), f"--name={self.name}", f"--data-dir={self.folder / self.name}", "--logger=zap",
                   f"--listen-peer-urls={self.peer_url}", f"--initial-advertise-peer-urls={self.peer_url}",
                   f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                   f"--initial-cluster={cluster}", f"--initial-cluster-state={state}", *self.flags]
        if self.tls:
            ca, certificate, key = self.tls
            command += [f"--trusted-ca-file={ca}", f"--cert-file={certificate}", f"--key-file={key}",
                        "--client-cert-auth"]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(guarded(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """With SIGKILL; waits for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)
            self.process = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile it stands still."""
        if self.process is not None:
            stand_still(self.process.pid)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def ask(self, path: str, body: str | None = None) -> Any:
        """What its HTTP gateway answers; None if it does not. Not with TLS."""
        connection = http.client.HTTPConnection("127.0.0.1", self.client_port, timeout=2.0)
        try:
            connection.request("GET" if body is None else "POST", path, body)
            return json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Until it knows a leader and serves."""
        deadline = time.monotonic() + SECONDS
        while "serving client traffic" not in self.log if self.tls else not _healthy(self.ask("/health")):
            if self.process is None or self.process.poll() is not None:
                raise ToolFailed(f"etcd has ended: {self.log[-3000:]}")
            if time.monotonic() >= deadline:
                raise ToolFailed(f"etcd does not serve: {self.log[-3000:]}")
            time.sleep(0.02)


def _healthy(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("health") in ("true", True)


class EtcdServers:
    """A cluster of `count` members in a folder, started."""

    def __init__(self, folder: Path, count: int = 1, flags: Iterable[str] = QUICK,
                 tls: tuple[str, str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.servers = [EtcdServer(folder, f"etcd-{number}", flags, tls) for number in range(1, count + 1)]
        self.cluster = ",".join(f"{server.name}={server.peer_url}" for server in self.servers)
        self.folder = folder
        self.flags = [*flags]
        try:
            for server in self.servers:
                server.start(self.cluster)
            for server in self.servers:
                server.wait_ready()
        except BaseException:
            self.end()
            raise

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    def leader(self) -> EtcdServer:
        """Of which all that run say that it leads."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            said = [server.ask("/v3/maintenance/status", "{}") for server in self.servers if server.process]
            leaders = {one.get("leader") for one in said if one}
            if len(leaders) == 1 and all(said):
                for server, one in zip([server for server in self.servers if server.process], said, strict=True):
                    if one["header"]["member_id"] in leaders:
                        return server
            time.sleep(0.05)
        raise AssertionError("the members do not agree on a leader")

    def followers(self) -> list[EtcdServer]:
        leader = self.leader()
        return [server for server in self.servers if server is not leader and server.process]

    def restore(self) -> None:
        """Starts those that were killed, and waits for all."""
        for server in self.servers:
            if server.process is None:
                server.start(self.cluster)
        for server in self.servers:
            server.wait_ready()

    def end(self) -> None:
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                server.signal(signal.SIGCONT)
            server.kill()
