"""`fluxmq tryout` as a user runs it: a process, what it prints, and what must not be left of it.

    with Tryout(tmp, "--nodes", "3", "--hold") as tryout:
        tryout.up["nodes"]                      # what it has said when it was up
        tryout.command("kill", "node-2")        # (status, output) of fluxmq tryout kill node-2
        tryout.end(signal.SIGINT)               # the exit status; nothing may be left
"""
from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.etcd import etcd_binary
from kit.python import environment
from kit.watch import wait_until

__all__ = ["Tryout", "lives", "processes_of"]

PATIENCE_S = 110.0          # only a failing test needs it
PORTS = ("mqtt", "amqp", "websocket", "health")


def listeners_of(port: int) -> set[int]:
    """Processes that listen at a port of 127.0.0.1 or of all addresses."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port}
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):      # it is closed, or its process has ended
            if os.readlink(descriptor) in sockets:
                found.add(int(descriptor.parts[2]))
    return found


def processes_of(directory: Path) -> dict[int, str]:
    """Those whose command line names something in the directory, and those that run one of its programs."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if f"{directory}/" in line:
                found[int(entry.name)] = line
    return found


def lives(pid: int) -> bool:
    """Whether it is a process that has not ended. One that nobody has asked how it ended is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Tryout:
    """base: a directory of its own, with a short name, for the sockets in it. The try-out makes its directory there."""

    def __init__(self, base: Path, *words: str, environ: dict[str, str] | None = None) -> None:
        etcd_binary()
        self.base = base
        self._environ = environment(TMPDIR=str(base)) | (environ or {})
        self.progress = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fluxmq", "tryout", "--json", *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=self._environ)
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._threads = [threading.Thread(target=self._read_events, daemon=True),
                         threading.Thread(target=self._read_progress, daemon=True)]
        for thread in self._threads:
            thread.start()
        self._up: dict[str, Any] = {}

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_progress(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.progress += line

    def event(self, name: str) -> dict[str, Any]:
        """The next one, which must be this."""
        try:
            found = self._events.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"nothing is said\n{self.progress}") from None
        assert found is not None, f"it has ended\n{self.progress}"
        assert found["event"] == name, found
        return found

    @property
    def up(self) -> dict[str, Any]:
        """What it says when it is up."""
        if not self._up:
            self._up = self.event("up")
        return self._up

    @property
    def directory(self) -> Path:
        """Of the try-out; known while it starts, too."""
        wait_until(lambda: list(self.base.glob("fluxmq-tryout-*/tryout.json")), PATIENCE_S)
        return next(self.base.glob("fluxmq-tryout-*"))

    def command(self, *words: str) -> tuple[int, str]:
        """`fluxmq tryout WORDS…`, which finds this try-out by itself: its status, and what it says."""
        done = subprocess.run([sys.executable, "-m", "fluxmq", "tryout", *words], env=self._environ, timeout=PATIENCE_S,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    def status(self) -> dict[str, Any]:
        code, said = self.command("status", "--json")
        assert code == 0, said
        found: dict[str, Any] = json.loads(said)
        return found

    def end(self, number: signal.Signals | None = signal.SIGINT) -> int:
        """Its exit status, after the signal; None: by itself. Nothing of it is left."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.nothing_left()
        return status

    def nothing_left(self) -> None:
        """No process, no directory, no port."""
        wait_until(lambda: not processes_of(self.base))
        assert list(self.base.iterdir()) == []
        for node in self._up.get("nodes", ()):
            for name in PORTS:
                address = node[name].partition("://")[2].partition("/")[0] or node[name]
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)     # connections may be fading away
                    port = int(address.rpartition(":")[2])
                    try:
                        probe.bind(("127.0.0.1", port))
                        probe.listen()
                    except OSError:         # another test may have drawn it meanwhile
                        owners = listeners_of(port)
                        assert owners and not owners & {each[key] for each in self._up["nodes"]
                                                        for key in ("pid", "etcd_pid")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        wait_until(lambda: not processes_of(self.base))
