"""etcd/raft for tests: a program of ours (etcd_raft.go) over Debian's sources of it, which plays steps of replicas and
says what each has led to. Lines and words of both directions are in its top comment."""
from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kit.tools import missing_tool, require_tool

__all__ = ["Answer", "EtcdRaft", "EtcdRaftFailed", "build_etcd_raft"]

SOURCE = Path(__file__).with_suffix(".go")
PACKAGES = Path("/usr/share/gocode")        # where Debian has the sources of all Go packages
BUILD_SECONDS = 300


class EtcdRaftFailed(AssertionError):
    """It has ended: etcd/raft panics when a replica is told what cannot be."""


def build_etcd_raft(folder: Path) -> Path:
    """The program, built in `folder`; what was compiled there before is not compiled again. Without Go or the sources
    the test is skipped, or fails when FLUXMQ_REQUIRE_TOOLS=1."""
    go = require_tool("go", package="golang-go")
    if not (PACKAGES / "src/go.etcd.io/etcd/raft/rawnode.go").exists():
        missing_tool("the sources of etcd/raft are not installed (Debian package: golang-etcd-server-dev)")
    program = folder / "etcd_raft"
    env = {"GO111MODULE": "off", "GOPATH": str(PACKAGES), "GOCACHE": str(folder / "cache"), "GOFLAGS": "-p=2"}
    subprocess.run([go, "build", "-o", program, SOURCE], env=os.environ | env, check=True, timeout=BUILD_SECONDS)
    return program


@dataclass
class Answer:
    """A replica after a step. state: role, term, vote, leader, commit index, transferee. progress: of a leader. log:
    None if it is as before. messages: that it sends. taken: whether a proposal was."""

    taken: bool
    state: str
    members: str
    progress: str
    log: str | None
    messages: list[str]


class EtcdRaft:
    """The program, running."""

    def __init__(self, program: Path, errors: Path) -> None:
        """errors: a file for what it says when it panics."""
        self._errors = errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                                             env=os.environ | {"GOMAXPROCS": "1"})

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        found = self._process.stdout.readline()
        if not found:
            self._process.wait()
            raise EtcdRaftFailed(f"etcd/raft ends with {line!r}: {self._errors.read_text()[:1000]}")
        return found.decode().rstrip("\n")

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def group(self, replicas: int, election: int, heartbeat: int, inflight: int, bytes_max: int, members: str) -> None:
        """A new group with these members, and replicas with empty logs."""
        self._ask(f"group {replicas} {election} {heartbeat} {inflight} {bytes_max} {members}")

    def step(self, line: str) -> Answer:
        taken, state, members, progress, log, *messages = self._ask(line).split("|")
        return Answer(taken == "1", state, members, progress, None if log == "=" else log, messages)

    def close(self) -> None:
        """It ends."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process.wait()
