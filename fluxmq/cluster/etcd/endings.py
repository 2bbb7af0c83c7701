"""What etcd logs, and why it has ended: its last lines, recognised, and what to do then.

Since 3.4 etcd can log JSON, a line each: level, msg, and fields. Some texts come from Go itself (a panic) or are
printed before the logger exists (wrong flags); these are lines as they are.
"""
from __future__ import annotations

import enum
import json
import signal
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["Ending", "Line", "ending_of", "parse_line"]

_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error", "dpanic": "error", "panic": "error",
           "fatal": "error"}
_LEFT_OUT = {"level", "ts", "msg", "caller", "stacktrace", "logger"}


class Line(NamedTuple):
    """A line of the log. level: debug, info, warning or error."""

    level: str
    text: str
    fields: dict[str, Any]


class Ending(enum.Enum):
    """Why a member has ended. again: whether it is worth starting it again as it is."""

    STOPPED = "it was asked to stop"
    REMOVED = "it was removed from the etcd cluster"
    WIPED = "its data are gone"
    NOT_A_MEMBER = "the etcd cluster does not have it"
    DAMAGED = "its data are damaged"
    MISCONFIGURED = "it refuses its configuration"
    PORT_TAKEN = "a port is taken"
    NO_PERMISSION = "it lacks a permission"
    DISK_FULL = "its disk is full"
    NO_MEMORY = "it gets no memory"
    UNKNOWN = "it has ended"

    @property
    def again(self) -> bool:
        return self in (Ending.PORT_TAKEN, Ending.NO_PERMISSION, Ending.DISK_FULL, Ending.NO_MEMORY,
                        Ending.UNKNOWN)


_ANEW = "start the node again: its former member is then removed, and a new one is added"
_AWAY = f"move the directory away and {_ANEW}; the other members have its data"

# What a line contains, in this order of importance; {dir}: the data directory.
_TEXTS = (
    ("permanently removed from the cluster", Ending.REMOVED,
     "the member was removed from the etcd cluster and cannot come back under its number"),
    ("has already been bootstrapped", Ending.WIPED,
     "the etcd cluster knows this member, but {dir} has no data of it: the member is replaced by a new one, because "
     "started as it is it might lose confirmed changes"),
    ("out of range [lastIndex(", Ending.WIPED,
     "the etcd cluster knows more of this member's log than {dir} has, so the directory was emptied or is an old copy: "
     f"move it away and {_ANEW}"),
    ("last resolver error (context", Ending.UNKNOWN,
     "the names of hosts in cluster.etcd.initial_cluster were not resolved in time"),
    ("error validating peerURLs", Ending.NOT_A_MEMBER,
     "the etcd cluster of the others does not have this member, or has it at another address: compare "
     "cluster.etcd.initial_cluster with `fluxmq cluster members`; a node that joins has cluster.etcd.bootstrap: false"),
    ("couldn't find local name", Ending.MISCONFIGURED,
     "cluster.etcd.initial_cluster has no entry with this node's name (cluster.node_id)"),
    ("has different advertised URLs", Ending.MISCONFIGURED,
     "the entry of this node in cluster.etcd.initial_cluster is not the address that it advertises"),
    ("flag provided but not defined", Ending.MISCONFIGURED, "this etcd does not know one of its arguments"),
    ("error verifying flags", Ending.MISCONFIGURED, "etcd refuses its arguments"),
    ("crc mismatch", Ending.DAMAGED, f"a file in {{dir}} is damaged: {_AWAY}"),
    ("discovery failed proto: ", Ending.DAMAGED, f"a file in {{dir}} is damaged: {_AWAY}"),
    ("failed to recover v3 backend", Ending.DAMAGED, f"the database in {{dir}} is older than its log: {_AWAY}"),
    ("address already in use", Ending.PORT_TAKEN,
     "another process listens at an address of this member; Debian's package etcd-server starts an etcd there, which "
     "systemctl disable --now etcd ends"),
    ("cannot assign requested address", Ending.PORT_TAKEN, "this machine does not have an address of this member"),
    ("no space left on device", Ending.DISK_FULL, "the disk of {dir} is full"),
    ("permission denied", Ending.NO_PERMISSION, "the node's user lacks a permission, perhaps for {dir}"),
    ("cannot allocate memory", Ending.NO_MEMORY,
     "it may not have as much address space as its database needs (ulimit -v, or the service's limit), or memory"),
    # Last: it has several causes, some of which are above.
    ("failed to open database", Ending.DAMAGED, f"the database in {{dir}} is damaged: {_AWAY}"),
)


def parse_line(raw: bytes) -> Line:
    """A line of etcd's standard error, whatever it is."""
    text = raw.decode("utf-8", "replace").rstrip()
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if isinstance(fields, dict) and "msg" in fields:
            kept = {name: value for name, value in fields.items() if name not in _LEFT_OUT}
            return Line(_LEVELS.get(str(fields.get("level")), "info"), str(fields["msg"]), kept)
    return Line("error" if text.startswith(("panic:", "fatal error:")) else "info", text, {})


def ending_of(lines: Iterable[Line], data_dir: str, code: int) -> tuple[Ending, str]:
    """Why it has ended, by its last lines, and a sentence for the operator: what happened and what to do; "" if nothing
    is known. code: its exit status, or minus the number of the signal that killed it: then its lines say nothing."""
    if code < 0:
        killed = "it was killed; the kernel does so when memory runs out" if code == -signal.SIGKILL else ""
        return Ending.UNKNOWN, killed
    said = [line.text + " " + " ".join(str(value) for value in line.fields.values()) for line in lines]
    for text, ending, sentence in _TEXTS:
        for one in reversed(said):
            if text in one:
                return ending, sentence.format(dir=data_dir) + _detail(ending, one)
    return Ending.UNKNOWN, ""


def _detail(ending: Ending, line: str) -> str:
    """Which address, permission or argument it is, only etcd's own line tells."""
    named = (Ending.PORT_TAKEN, Ending.NO_PERMISSION, Ending.MISCONFIGURED, Ending.NOT_A_MEMBER)
    return f" ({line.strip()[:300]})" if ending in named else ""
