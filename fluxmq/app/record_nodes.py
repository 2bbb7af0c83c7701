"""`fluxmq record` with several --attach: the nodes of a cluster on this machine, recorded at the same time.

Each gets a command of its own, as if it had been started for that node alone, with a recording in `node=NAME` of the
directory. All end together: by a signal, after the duration, when one fails, or when this command is killed.
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import click

from fluxmq.app.admin_client import AdminClient

__all__ = ["record_nodes"]

LOOK_S = 0.1


def record_nodes(sockets: Sequence[Path], directory: Path, words: Sequence[str]) -> int:
    """Records the brokers behind these admin sockets until all have ended. words: options for each. Returns the exit
    status; raises AdminError, and ClickException if they are not different nodes of one cluster."""
    names = _names(sockets)
    with ExitStack() as stack:
        said: list[IO[str]] = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in names]
        stop = stack.enter_context(_signals())
        children = [subprocess.Popen(
            [sys.executable, "-P", "-m", "fluxmq", "record", "--attach", str(socket), "--dir",
             str(directory / f"node={name}"), "--parent", str(os.getpid()), *words],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True)     # Ctrl+C is passed on, once
            for socket, name, file in zip(sockets, names, said, strict=True)]
        try:
            _wait(children, stop)
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait()
        for file in said:
            file.seek(0)
            click.echo(file.read(), nl=False)
    return int(any(child.returncode for child in children))


def _wait(children: Sequence[subprocess.Popen[bytes]], stop: list[int]) -> None:
    """Until all have ended, a signal has come, or one has failed."""
    while not stop:
        ended = [child.poll() for child in children]
        if None not in ended or any(ended):
            return
        time.sleep(LOOK_S)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are collected while the block runs."""
    came: list[int] = []
    former: dict[signal.Signals, Any] = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _names(sockets: Sequence[Path]) -> list[str]:
    """Of the nodes."""
    names: list[str] = []
    clusters: list[str] = []
    for socket in sockets:
        client = AdminClient(socket, "--attach")
        try:
            view = client.ask("GET", "cluster")
        finally:
            client.close()
        if not view["env"]:
            raise click.ClickException(f"{socket}: this broker is in no cluster, or has not joined it: record it alone")
        if clusters and view["env"] != clusters[0]:
            raise click.ClickException(f"{sockets[0]} and {socket} are of different clusters: {clusters[0]} and "
                                       f"{view['env']}")
        if view["local"] in names:
            raise click.ClickException(f"{sockets[names.index(view['local'])]} and {socket} are both of node "
                                       f"{view['local']}")
        names.append(view["local"])
        clusters.append(view["env"])
    return names
