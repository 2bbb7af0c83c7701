"""The etcd member of a node: a child process that is started, watched, started again and stopped with the node.

    STOPPED ──start()──► RUNNING ──ended──► WAITING ──after a while──► RUNNING
                            │                  │
                            │                  └── ended in a way that a start does not mend (endings.py) ──► FAILED
                            └──stop()──► STOPPING ──► STOPPED

The kernel kills it when the node ends, also by SIGKILL (guard.py). It is the leader of a session of its own, so that a
Ctrl+C at the terminal reaches the node alone. Its log is read line by line. Nothing of the node's environment
configures it: variables ETCD_… are taken out, and those of proxies, through which it would talk to the other members.
"""
from __future__ import annotations

import asyncio
import contextlib
import enum
import fcntl
import os
import shlex
import signal
import stat
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from fluxmq._core.errors import StorageError, UsageError
from fluxmq.cluster.etcd.endings import Ending, Line, ending_of, parse_line
from fluxmq.cluster.etcd.guard import guarded
from fluxmq.cluster.ports import Log

__all__ = ["METRICS_SOCKET", "EtcdMember", "EtcdOptions", "Exit", "MemberState", "MemberTls"]

RETRY_S = (0.5, 30.0)       # before the next start: at first, at most; doubled each time
STEADY_S = 60.0             # one that has lived so long ended of a new cause
STOP_S = 10.0               # until SIGKILL
LINES_KEPT = (5, 50)        # the first, of an etcd that explains its arguments at length, and the last
LINE_BYTES_MAX = 64 << 10
CAUSE_MAX = 100             # characters of a line that tell it from others
PIPE_BYTES = 1 << 20        # of its log, while the node stands still: then etcd waits
READ_BYTES = 64 << 10
METRICS_SOCKET = "metrics:1"    # in the data directory, which is etcd's working directory; etcd wants host:port
# Levels of the node's log for those of etcd. While another member is away etcd warns several times a second, for as
# long as it lasts, and the node itself says what an operator has to know: that a node's lease has ended, that etcd does
# not answer, that the disk is full, and why a member has ended, with its last lines.
LEVELS = {"debug": "debug", "info": "debug", "warning": "info", "error": "error"}
# What it logs when it has come to know a leader, before it confirms anything to that leader.
LEADER_SEEN = (" elected leader ", " changed leader from ")


class MemberTls(NamedTuple):
    """Files in PEM, for other members and for clients alike: both must have a certificate of this authority."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, kw_only=True)
class EtcdOptions:
    """The arguments of a member. URLs with their scheme. state: "new" makes the cluster that initial_cluster names,
    "existing" joins it; both are read only while the data directory is empty. compaction: how much history is kept, as
    etcd's --auto-compaction-retention in mode periodic. flags: besides, for tests."""

    name: str
    data_dir: Path
    listen_peer: str
    advertise_peer: str
    listen_client: str
    advertise_client: str
    initial_cluster: str
    state: Literal["new", "existing"] = "new"
    token: str = "fluxmq"
    tls: MemberTls | None = None
    quota_bytes: int = 2 << 30
    compaction: str = "5m"
    heartbeat_ms: int = 100
    election_ms: int = 1000
    flags: Sequence[str] = ()

    def arguments(self) -> list[str]:
        """Of the command line, without the program."""
        found = [
            f"--name={self.name}", f"--data-dir={self.data_dir.absolute()}",
            f"--listen-peer-urls={self.listen_peer}", f"--initial-advertise-peer-urls={self.advertise_peer}",
            f"--listen-client-urls={self.listen_client}", f"--advertise-client-urls={self.advertise_client}",
            f"--initial-cluster={self.initial_cluster}", f"--initial-cluster-state={self.state}",
            f"--initial-cluster-token={self.token}",
            f"--quota-backend-bytes={self.quota_bytes}",
            "--auto-compaction-mode=periodic", f"--auto-compaction-retention={self.compaction}",
            f"--heartbeat-interval={self.heartbeat_ms}", f"--election-timeout={self.election_ms}",
            # Off by default in 3.4: without it a member that was cut off unseats the leader when it is back.
            "--pre-vote=true",
            f"--listen-metrics-urls=unix://{METRICS_SOCKET}",
            "--logger=zap", "--log-level=info", "--log-outputs=stderr",
        ]
        if self.tls is not None:
            for prefix in ("", "peer-"):
                cert, key, ca = (path.absolute() for path in self.tls)
                found += [f"--{prefix}cert-file={cert}", f"--{prefix}key-file={key}",
                          f"--{prefix}trusted-ca-file={ca}", f"--{prefix}client-cert-auth"]
        return [*found, *self.flags]


class MemberState(enum.Enum):
    """See the drawing on top."""

    STOPPED = "stopped"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPING = "stopping"


class Exit(NamedTuple):
    """An end that nobody asked for. code: its exit status, or minus the number of its signal. text: a sentence with
    what to do. lines: the first and the last of its log. again_s: seconds until the next start; None: there is none."""

    code: int
    ending: Ending
    text: str
    lines: Sequence[str]
    again_s: float | None


class EtcdMember:
    """binary: path of etcd. on_log: what the node says of it. on_line: etcd's own log, at the levels LEVELS. on_exit:
    called for each Exit. All on one event loop, whose thread lives as long as the process (guard.py)."""

    def __init__(self, binary: str, options: EtcdOptions, *, on_log: Log, on_line: Log,
                 on_exit: Callable[[Exit], None]) -> None:
        self.options = options
        self.state = MemberState.STOPPED
        self.starts = 0
        self.leaders_seen = 0                   # how often it has come to know a leader, as the log of this life says
        self.last_exit: Exit | None = None
        self._binary = os.path.abspath(binary) if os.sep in binary else binary
        self._log = on_log
        self._on_line = on_line
        self._on_exit = on_exit
        self._child: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._lock_fd = -1                      # of the data directory, from start() to stop()
        self._ended = asyncio.Event()           # there is no child
        self._ended.set()
        self._rest = b""                        # of a line that is not whole
        self._first: list[Line] = []
        self._lines: deque[Line] = deque(maxlen=LINES_KEPT[1])     # the last, behind the first
        self._since = 0.0
        self._pause = RETRY_S[0]
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self._child.pid if self._child is not None else 0

    def start(self) -> None:
        """Makes the data directory, readable by its owner alone, and starts the member. Raises StorageError when there
        can be no directory, or another node uses it, UsageError if it was started."""
        if self.state not in (MemberState.STOPPED, MemberState.FAILED):
            raise UsageError(f"the etcd member is {self.state.value}")
        self._pause = RETRY_S[0]
        _private(self.options.data_dir)
        if self._lock_fd < 0:
            self._lock_fd = _locked(self.options.data_dir)
        self._spawn()

    def _spawn(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        self._rest = b""
        self._first.clear()
        self._lines.clear()
        self.leaders_seen = 0
        _private(self.options.data_dir)
        with contextlib.suppress(OSError):      # of a former life: etcd would take it for data
            (self.options.data_dir / METRICS_SOCKET).unlink()
        child = subprocess.Popen(guarded([self._binary, *self.options.arguments()]), cwd=self.options.data_dir,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 start_new_session=True, bufsize=0, env=_environment(os.environ))
        assert child.stdout is not None
        self._child, self._pidfd = child, os.pidfd_open(child.pid)
        self._ended.clear()
        self._since = time.monotonic()
        self.starts += 1
        self.state = MemberState.RUNNING
        os.set_blocking(child.stdout.fileno(), False)
        with contextlib.suppress(OSError):      # a user may have reached the limit of /proc/sys/fs/pipe-user-pages-soft
            fcntl.fcntl(child.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        loop.add_reader(child.stdout.fileno(), self._read)
        loop.add_reader(self._pidfd, self._reap)
        self._log("info", "", "the etcd member is started",
                  {"pid": child.pid, "command": shlex.join([self._binary, *self.options.arguments()])})

    # ── its log ──────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> bool:
        """Takes what is there, at most READ_BYTES; whether there may be more."""
        assert self._child is not None and self._child.stdout is not None
        try:
            data = os.read(self._child.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(self._child.stdout.fileno())
            return False
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            whole.append(self._rest)
            self._rest = b""
        for raw in whole:
            self._take(raw)
        return True

    def drain(self) -> None:
        """Takes what its log has by now."""
        if self._child is not None:
            while self._read():
                pass

    def _take(self, raw: bytes) -> None:
        if raw.strip():
            line = parse_line(raw)
            if any(text in line.text for text in LEADER_SEEN):
                self.leaders_seen += 1
            (self._first if len(self._first) < LINES_KEPT[0] else self._lines).append(line)
            level = LEVELS[line.level]
            self._on_line(level, "" if level == "debug" else line.text[:CAUSE_MAX], line.text, line.fields)

    # ── its end ──────────────────────────────────────────────────────────────────────────────────────────────

    def _reap(self) -> None:
        """The process has ended."""
        child = self._child
        assert child is not None and child.stdout is not None
        while self._read():
            pass
        self._take(self._rest)
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.stdout.fileno())
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        child.stdout.close()
        code = child.wait()
        self._child, self._pidfd = None, -1
        self._ended.set()
        if self.state is MemberState.STOPPING:
            self._log("info", "", "the etcd member has ended", {"code": code})
            return
        if time.monotonic() - self._since >= STEADY_S:
            self._pause = RETRY_S[0]
        lines = [*self._first, *self._lines]
        ending, advice = ending_of(lines, str(self.options.data_dir), code)
        again_s = self._pause if ending.again else None
        self._pause = min(self._pause * 2, RETRY_S[1])
        self.last_exit = Exit(code, ending, f"the etcd member has ended ({_how(code)}): {advice or _last(lines)}",
                              [_shown(line) for line in lines], again_s)
        if again_s is None:
            self.state = MemberState.FAILED
        else:
            self.state = MemberState.WAITING
            self._timer = loop.call_later(again_s, self._again)
        self._on_exit(self.last_exit)

    def _again(self) -> None:
        if self.state is MemberState.WAITING:
            try:
                self._spawn()
            except (StorageError, OSError) as error:
                self._log("error", str(error), "the etcd member cannot be started; trying again", {})
                self._timer = asyncio.get_running_loop().call_later(self._pause, self._again)

    async def stop(self, limit_s: float = STOP_S) -> None:
        """Asks it to end (SIGTERM: as a leader it hands over first), and kills it after limit_s. It is not started
        again. Does nothing if there is none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._child is not None:
            await self._end(limit_s)
        self.state = MemberState.STOPPED
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    async def _end(self, limit_s: float) -> None:
        self.state = MemberState.STOPPING
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        except TimeoutError:
            self._log("warning", "", f"the etcd member has not ended within {limit_s:g} s, it is killed", {})
            self._signal(signal.SIGKILL)
            await self._ended.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


def _private(directory: Path) -> None:
    """Makes it, for its owner alone."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(directory.stat().st_mode) & 0o077:
            directory.chmod(0o700)
    except OSError as error:
        raise StorageError(f"the data directory of etcd cannot be used: {error} (cluster.etcd.data_dir)") from None


def _locked(directory: Path) -> int:
    """flock on the directory itself, in which etcd does not expect files of others. etcd's own lock comes too late: by
    then it has taken the socket for metrics from the member that is there. Returns the descriptor that holds it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StorageError(f"the data directory of etcd, {directory}, is in use by another node: give this one its own "
                           "(cluster.etcd.data_dir)") from None
    return fd


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what configures etcd, but for the consent to run on this kind of processor."""
    return {name: value for name, value in environ.items()
            if not (name.startswith("ETCD_") and name != "ETCD_UNSUPPORTED_ARCH")
            and name.lower() not in ("http_proxy", "https_proxy", "all_proxy")}


def _how(code: int) -> str:
    names = {one.value: one.name for one in signal.Signals}
    return f"exit status {code}" if code >= 0 else names.get(-code, f"signal {-code}")


def _shown(line: Line) -> str:
    fields = ", ".join(f"{name}={value}" for name, value in line.fields.items())
    return f"{line.level}: {line.text}" + (f" ({fields})" if fields else "")


def _last(lines: Sequence[Line]) -> str:
    """The last line that complains, or the last."""
    for level in ("error", "warning", "info"):
        for line in reversed(lines):
            if line.level == level:
                return _shown(line)[:500]
    return "it has said nothing"
