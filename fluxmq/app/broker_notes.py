"""Which brokers run on this machine: each leaves a note from its start to its end, so that a command finds it from any
directory, without its configuration, and knows why its admin socket does not answer yet, or does not any more.

    $XDG_RUNTIME_DIR/fluxmq/1234.json   of a user who is logged in (XDG Base Directory Specification)
    /run/fluxmq/1234.json               of root, or of a service whose runtime directory this is
    /tmp/fluxmq-1000/1234.json          where neither is

    {"pid": 1234, "began": 5093112, "node": "node-1", "socket": "/srv/fluxmq/admin.sock",
     "state": "starting", "doing": "it recovers its state from disk"}

A note has an operator talk to whoever wrote it. So one counts only in a directory of the operator's own, or in one for
which root has made the place, and where nobody else may write.

A note whose socket nobody listens on says what its process does instead: it starts, stops, or joins its cluster again.
If no such process lives, the broker was killed, and the note goes when it is seen. Numbers of processes are given
again, so a process is known by the time at which it began, too (`began`, proc_pid_stat(5)).

The note is there before the broker has the lock of its storage. A second process with the same configuration has a note
of its own, for the moment until it is refused; of two that live, the one that began first speaks for their socket.
"""
from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fluxmq.app.queue_text import plain

__all__ = ["Note", "Running", "listens", "owner", "running"]

RUN = Path("/run")
_NAME = "fluxmq"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ABOUT_BYTES_MAX = 8192
_STARTING, _AGAIN, _STOPPING = "starting", "joining its cluster again", "stopping"


class Running(NamedTuple):
    """A broker that runs here. node: its name in a cluster, "" of a single one. state: "" when its socket answers.
    doing: what it does in another state, a sentence without its end; "": nothing that is known. began: its process, in
    ticks of the kernel since the machine began; 0: not known."""

    pid: int
    node: str
    socket: Path
    state: str = ""
    doing: str = ""
    began: int = 0

    def __str__(self) -> str:
        state = f", {self.state}" if self.state else ""
        return f"{self.node or self.pid} ({'process ' + str(self.pid) + ', ' if self.node else ''}{self.socket}{state})"

    @property
    def stops(self) -> bool:
        """Its socket will not answer any more."""
        return self.state == _STOPPING

    @property
    def now(self) -> str:
        """Why its socket does not answer."""
        state = self.state or _STARTING     # it has got that far since it was asked
        return plain(f"{state}{': ' if self.doing else ''}{self.doing}")


class Note:
    """What this process tells about itself, from the first word to remove(). node: its name in a cluster. socket: its
    admin socket; None: it has none, and no command looks for it. There is none on a machine without a place for it."""

    def __init__(self, node: str = "", socket: Path | None = None) -> None:
        self._node, self._socket = node, socket
        self._state = _STARTING
        self._path: Path | None = None

    def starts(self, doing: str = "") -> None:
        """The socket will take connections. doing: what it does before, such as "it recovers its state from disk"."""
        self._write(self._state, doing)

    def serves(self) -> None:
        """The socket takes connections. If it starts once more, that is to join its cluster again."""
        self._state = _AGAIN
        self._write("", "")

    def stops(self, doing: str) -> None:
        """The socket takes no connections any more."""
        self._write(_STOPPING, doing)

    def remove(self) -> None:
        """Nobody finds this broker any more, whatever it tells."""
        self._socket = None
        if self._path is not None:
            _unlink(self._path)
            self._path = None

    def _write(self, state: str, doing: str) -> None:
        if self._socket is None:
            return
        text = json.dumps({"pid": os.getpid(), "began": _began(os.getpid()), "node": self._node,
                           "socket": str(self._socket.absolute()), "state": state, "doing": doing}) + "\n"
        for directory in _places():
            note = directory / f"{os.getpid()}.json"
            try:
                directory.mkdir(mode=0o700, exist_ok=True)
                if not _is_ours(directory):
                    continue
                draft = note.with_suffix(".new")
                draft.write_text(text)
                draft.replace(note)
            except OSError:
                continue
            if self._path not in (None, note):  # another place has become better
                _unlink(self._path)
            self._path = note
            return


def running() -> list[Running]:
    """The brokers that this user may talk to, by name: also those that start, or stop."""
    found: dict[Path, Running] = {}
    for note, one in _notes():
        if listens(one.socket):
            found.setdefault(one.socket, one._replace(state="", doing=""))
        elif _lives(one):
            found.setdefault(one.socket, one)
        else:
            _unlink(note)
    return sorted(found.values(), key=lambda one: (one.node, one.pid))


def owner(path: Path) -> Running | None:
    """The broker whose admin socket this is, as its note says, if its process lives."""
    real = os.path.realpath(path)
    return next((one for _, one in _notes() if os.path.realpath(one.socket) == real and _lives(one)), None)


def _notes() -> list[tuple[Path, Running]]:
    """Where this user trusts them, that of the process that began first before others."""
    found: list[tuple[Path, Running]] = []
    for directory in _places():
        try:
            files = sorted(directory.glob("*.json")) if _is_trusted(directory) else []
        except OSError:
            continue
        found += ((file, one) for file in files if (one := _read(file)) is not None)
    return sorted(found, key=lambda each: each[1].began)


def _places(environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Directories for notes, the best first. Not all of them exist."""
    given = environment.get("XDG_RUNTIME_DIR", "")
    if given:
        yield Path(given) / _NAME
    if given != f"{RUN}/user/{os.getuid()}":
        yield RUN / "user" / str(os.getuid()) / _NAME   # of the same user, who has come by another way, such as sudo
    yield RUN / _NAME
    yield Path(environment.get("TMPDIR") or "/tmp") / f"{_NAME}-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    """Whether nobody else can have put something there."""
    about = directory.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & _OTHERS_WRITE


def _is_trusted(directory: Path) -> bool:
    """Ours, or in a directory where only root makes any, such as a service's in /run."""
    if not directory.exists():
        return False
    if _is_ours(directory):
        return True
    about, parent = directory.lstat(), directory.parent.lstat()
    return (stat.S_ISDIR(about.st_mode) and not about.st_mode & _OTHERS_WRITE and parent.st_uid == 0
            and not parent.st_mode & _OTHERS_WRITE)


def _read(note: Path) -> Running | None:
    """What the note says; None if it is gone, or is no note."""
    try:
        with note.open("rb") as file:
            about = json.loads(file.read(_ABOUT_BYTES_MAX))
        return Running(int(about["pid"]), str(about["node"]), Path(str(about["socket"])), str(about.get("state", "")),
                       str(about.get("doing", "")), int(about.get("began", 0)))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _began(pid: int) -> int:
    """When the process began; 0: it has ended, whether somebody has asked for its status or not."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if state in ("Z", "X") else int(rest[18])      # fields 3 and 22 of proc_pid_stat(5)
    except (OSError, ValueError, IndexError):
        return 0


def _lives(one: Running) -> bool:
    """Whether the process that wrote the note does. One of an earlier version does not say when it began."""
    return one.began > 0 and _began(one.pid) == one.began


def listens(path: Path) -> bool:
    """Whether somebody takes connections there, as far as this user can tell."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:     # it may not be opened, or has a full backlog: there is one
            pass
    return True


def _unlink(note: Path) -> None:
    with contextlib.suppress(OSError):
        note.unlink()
