"""Ports of loopback that are nobody's, held until the node that is to have them starts.

They are outside of the range from which the kernel takes the ports of clients: a node that was killed and is started
again wants its ports back.
"""
from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

from fluxmq.tryout.asking import TryoutError

__all__ = ["HeldPorts"]

HOST = "127.0.0.1"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, LAST = 10_000, 65_535
ENOUGH = 1000       # fewer outside of the kernel's range: then any will do


def _candidates() -> Iterator[int]:
    """In an order of chance, so that two try-outs that begin together seldom want the same."""
    try:
        low, high = map(int, EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        low, high = 32_768, 60_999
    found = [port for port in range(FIRST, LAST + 1) if not low <= port <= high]
    if len(found) < ENOUGH:
        found = list(range(FIRST, LAST + 1))
    random.Random().shuffle(found)
    yield from found


class HeldPorts:
    """names: what each port is for. Raises TryoutError if there are not as many."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._sockets: list[socket.socket] = []
        self.numbers: dict[str, int] = {}
        left = list(names)
        for port in _candidates():
            if not left:
                return
            if self._hold(port, again=False):
                self.numbers[left.pop(0)] = port
        if left:
            self.release()
            raise TryoutError(f"{HOST} has no free port left for {left[0]}: end what listens there, such as another "
                              "try-out")

    def address(self, name: str) -> str:
        """HOST:PORT."""
        return f"{HOST}:{self.numbers[name]}"

    def release(self) -> None:
        """For the node that starts now."""
        while self._sockets:
            self._sockets.pop().close()

    def hold_again(self) -> None:
        """The node has ended, and may start again."""
        for port in self.numbers.values():
            self._hold(port, again=True)

    def _hold(self, port: int, *, again: bool) -> bool:
        """again: also while connections of the former owner of the port are fading away."""
        holder = socket.socket()
        if again:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((HOST, port))
        except OSError:
            holder.close()
            return False
        self._sockets.append(holder)
        return True
