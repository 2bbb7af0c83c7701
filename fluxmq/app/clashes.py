"""What other programs have of what a broker needs, all of it at once, when a start has failed for one of these things:
a second broker on a machine would find one of its ports taken, then the next, then the directory.
"""
from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from fluxmq._core.errors import StorageError
from fluxmq.app.exit_codes import BindError
from fluxmq.model.address import parse_address
from fluxmq.model.config import Config

__all__ = ["Clashes", "tell_clashes"]

_WHAT_TO_DO = ("Another broker perhaps. `fluxmq run --port-offset N` adds N to the port of every listener, "
               "`--set storage.dir=DIR` gives this one a directory of its own")


class Clashes(BindError):
    """Several at once. found: a line each."""

    def __init__(self, found: list[str]) -> None:
        Exception.__init__(self, "\n".join([f"{len(found)} things are in use by other programs:", *found, _WHAT_TO_DO]))
        self.found = tuple(found)

    def __reduce__(self) -> tuple[type, tuple[list[str]]]:
        return type(self), (list(self.found),)


def tell_clashes(config: Config, error: BindError | StorageError) -> None:
    """error: why the broker has not started; it has let go of what it had. Raises Clashes if that is one of several."""
    taken, locked = [*_taken(config)], [*_locked(config)]
    if len(taken) + len(locked) > 1 and (locked or isinstance(error, BindError)):
        raise Clashes([*taken, *locked]) from error


def _taken(config: Config) -> Iterator[str]:
    listening = [(f"{path}.addr", slot.addr) for path, slot in config.listeners()]
    if config.server.serves_health:
        listening.append(("server.health_addr", config.server.health_addr))
    for path, text in listening:
        address = parse_address(text)
        if address.port and _is_taken(address.host, address.port):
            yield f"{path}: {text}"


def _is_taken(host: str, port: int) -> bool:
    """Whether somebody listens there. Anything else that is wrong with it is for the listener to say."""
    try:
        places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    for family, _, _, _, place in places:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                trial.bind(place)
                trial.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


def _locked(config: Config) -> Iterator[str]:
    if config.storage.type == "memory":
        return
    try:
        fd = os.open(Path(config.storage.dir) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        yield f"storage.dir: {config.storage.dir}"
    finally:
        os.close(fd)
