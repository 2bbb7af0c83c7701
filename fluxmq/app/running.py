"""Finds the broker that a command speaks to, and waits while it starts.

A broker's note (`broker_notes`) is there before its admin socket is. A command waits until somebody listens there, for
START_S at most, and not at all if the broker stops.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fluxmq.app.broker_notes import Running, listens, owner, running

__all__ = ["START_S", "broker_sockets", "node_option"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
START_S = 30.0  # how long a command waits for a broker that starts
TOLD_S = 1.0  # after which it says so
_LOOK_S = 0.1


def broker_sockets(given: Sequence[Path], file: Path | None, nodes: Sequence[str], option: str) -> list[Path]:
    """The admin sockets that a command speaks to, at least one.

    given: named by `option`; otherwise that of the configuration in `file`, or nodes by name, or process id; without
    any of them that of the configuration that `fluxmq run` would use here, or else the only broker that runs on this
    machine. Returns when they answer, as far as that can be waited for. Raises AdminError, InvalidConfig, UsageError.
    """
    return [_await_start(path) for path in _sockets(given, file, nodes, option)]


def _sockets(given: Sequence[Path], file: Path | None, nodes: Sequence[str], option: str) -> list[Path]:
    from fluxmq.app.admin_client import AdminError
    from fluxmq.app.config import DEFAULT, load

    if nodes:
        if given or file is not None:
            raise click.UsageError(f"--node says where the broker is, and so does {option if given else '--config'}: "
                                   "give one of them")
        return [_named(running(), name) for name in nodes]
    if given:
        return list(given)
    config, provenance = load(file, os.environ)
    path = config.admin_socket_path()
    chosen = any(provenance[key] != DEFAULT for key in ("server.admin_socket", "storage.dir", "storage.type"))
    if file is None and not chosen and (path is None or not (path.exists() or _not_listening(path))):
        every = running()
        found = [one for one in every if not one.stops] or every
        if len(found) > 1:
            raise AdminError(f"{len(found)} brokers run here: {'; '.join(map(str, found))}",
                             f"say which by --node, {option} PATH or --config FILE")
        if found:
            return [found[0].socket]
    if path is None:
        raise AdminError("a broker with this configuration has no admin socket",
                         f"set server.admin_socket to a path and start it again, or give {option} PATH")
    return [path]


def node_option(*, several: bool) -> Callable[[_Command], _Command]:
    """--node, for the parameter `nodes`."""
    return click.option("--node", "nodes", multiple=True, metavar="NAME",
                        callback=None if several else _only, help=(
                            "A broker that runs on this machine: its name in the cluster, or its process id. Needed "
                            f"where there are several.{' Repeatable.' if several else ''}"))


def _only(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) > 1:
        raise click.BadParameter(f"{' and '.join(values)} are given, and this command speaks to one")
    return values


def _named(found: Sequence[Running], name: str) -> Path:
    from fluxmq.app.admin_client import AdminError

    named = [one for one in found if name in (one.node, str(one.pid))]
    if len(named) == 1:
        return named[0].socket
    there = "; ".join(map(str, named or found)) or "none runs, or it is another user's"
    if named:
        raise AdminError(f"{len(named)} brokers here have the name {name}: {there}", "give the process id")
    raise AdminError(f"no broker of the name {name} runs here: {there}",
                     "--socket PATH or --config FILE finds one of another user, or one without an admin socket")


def _not_listening(path: Path) -> Running | None:
    """Its owner, if nobody listens there yet, or any more."""
    return None if (one := owner(path)) is None or listens(path) else one


def _await_start(path: Path) -> Path:
    """Until somebody listens there, the broker stops, or START_S are over: then whoever asks it hears why it does not
    answer. Says what it waits for."""
    began, told = time.monotonic(), False
    while (one := _not_listening(path)) is not None and not one.stops:
        waited_s = time.monotonic() - began
        if waited_s >= START_S:
            break
        if waited_s >= TOLD_S and not told:
            told = True
            click.echo(f"the broker at {path} (process {one.pid}) is {one.now}; waiting (Ctrl-C ends this)", err=True)
        time.sleep(_LOOK_S)
    return path
