"""Child processes that never outlive the try-out.

The kernel kills them when this process ends (cluster/etcd/guard.py), so they must be started on the main thread. A node
has its etcd member as a child, which ends in the same way with the node; kill_all() waits until these have gone, too.
"""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fluxmq.cluster.etcd.guard import guarded

__all__ = ["Child", "give_terminal_back", "kill_all", "open_view", "terminal_state"]

GONE_S = 10.0           # until the kernel has cleared up processes that were killed
LOOK_S = 0.01
SETTINGS = "FLUXMQ_"    # variables that would change the configuration of nodes
TAIL = 8                # lines of a log that are shown


class _Process(NamedTuple):
    """started: when, by the kernel's count; a number that is used again belongs to a later one."""

    pid: int
    started: str


class Child:
    """`python -m fluxmq WORDS…`, a session of its own, so that Ctrl-C in a terminal does not reach it. log: of its
    output, appended. Raises OSError."""

    def __init__(self, words: Iterable[str], log: Path) -> None:
        self.log = log
        self._begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                guarded([sys.executable, "-P", "-m", "fluxmq", *words]), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.upper().startswith(SETTINGS)})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """To it alone, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def family(self) -> list[_Process]:
        """It, and the processes below it."""
        found = _below([self.pid])
        own = _look(self.pid)
        return found if own is None else [own[0], *found]

    def said(self) -> str:
        """What it has written since this start."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._begin)
            return file.read().decode("utf-8", "replace")
        return ""

    def last_words(self) -> str:
        """The end of that."""
        return "\n".join(self.said().splitlines()[-TAIL:])


def open_view(directory: Path) -> subprocess.Popen[bytes]:
    """`fluxmq viz` of a try-out, in the foreground of this terminal. Raises OSError."""
    return subprocess.Popen(guarded([sys.executable, "-P", "-m", "fluxmq", "viz", "--tryout", str(directory)]))


def terminal_state() -> list[Any] | None:
    """How the terminal of this process reads its keys. None: it has none."""
    try:
        return termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):
        return None


def give_terminal_back(before: list[Any] | None) -> None:
    """After a view that was killed: keys as before, the first screen, a cursor."""
    with contextlib.suppress(OSError, ValueError, termios.error):
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
        sys.stdout.write("\x1b[0m\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def kill_all(children: Iterable[Child]) -> None:
    """SIGKILL to them and all below them, whatever their state, and waits until they have gone. Blocks: this is the
    end, or a moment."""
    children = list(children)
    families = [one for child in children for one in child.family()]
    for child in children:
        child.signal(signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        for child in children:
            _ = child.status                # or it stays as a zombie
        left = [one for one in families if (found := _look(one.pid)) is not None and found[0] == one
                and one.pid not in {child.pid for child in children if child.status is not None}]
        if not left:
            return
        for one in left:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def _look(pid: int) -> tuple[_Process, int] | None:
    """A process that runs, and its parent. None: there is none, or it has ended."""
    try:
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (_Process(pid, fields[19]), int(fields[1]))


def _below(pids: list[int]) -> list[_Process]:
    children: dict[int, list[_Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _look(int(entry))) is not None:
            children.setdefault(found[1], []).append(found[0])
    found_below: list[_Process] = []
    while pids:
        for one in children.get(pids.pop(), ()):
            found_below.append(one)
            pids.append(one.pid)
    return found_below
