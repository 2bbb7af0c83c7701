"""A client that measures the broker's latency under load: PINGREQ after PINGREQ, each with the time until its answer.

Runs in a process of its own (`python -m fluxmq.bench.load.bystander HOST:PORT`), so that the load generator does not
delay it. Writes a line "<sent> <waited>" for each answer, in seconds of the monotonic clock; ends when the broker
disconnects it.
"""
from __future__ import annotations

import socket
import subprocess
import sys
import time
from itertools import pairwise

from fluxmq.bench.load.packets import connect

__all__ = ["Bystander"]

PAUSE_SECONDS = 0.005
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
TIMEOUT_SECONDS = 600.0


def watch(address: str) -> None:
    """Until the connection ends."""
    host, _, port = address.rpartition(":")
    sent = time.monotonic()
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(connect("bystander", level=5))
        if sock.recv(4096)[:1] != b"\x20":
            raise ConnectionError("CONNECT was refused")
        print(f"{sent:.6f} {time.monotonic() - sent:.6f}", flush=True)
        while True:
            sent = time.monotonic()
            try:
                sock.sendall(PINGREQ)
                answer = sock.recv(4096)
            except OSError:
                answer = b""
            # A DISCONNECT or the end of the connection ends the wait as well.
            print(f"{sent:.6f} {time.monotonic() - sent:.6f}", flush=True)
            if not answer.startswith(PINGRESP):
                return
            time.sleep(PAUSE_SECONDS)


class Bystander:
    """Runs beside the caller until the broker has ended. address: of MQTT over TCP. It connects when it is made."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "fluxmq.bench.load.bystander", address],
                                         stdout=subprocess.PIPE, text=True)
        self.phases: list[tuple[float, str]] = []
        assert self._process.stdout is not None
        self._first = self._process.stdout.readline()

    def begin(self, phase: str) -> None:
        """Requests from now on belong to this phase."""
        self.phases.append((time.monotonic(), phase))

    def end(self) -> dict[str, float]:
        """Called when the broker has ended: the longest wait of each phase, seconds."""
        said, _ = self._process.communicate()
        answers = [tuple(map(float, line.split())) for line in (self._first + said).splitlines()]
        ends = [*self.phases, (float("inf"), "")]
        # A request that is answered in the next phase counts for both.
        return {phase: max((waited for sent, waited in answers if sent + waited >= first and sent < last), default=0.0)
                for (first, phase), (last, _) in pairwise(ends)}


if __name__ == "__main__":
    watch(sys.argv[1])
