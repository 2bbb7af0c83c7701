"""The processor time of a broker on this machine, sampled while a replay runs; which process it is, from /proc."""
from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fluxmq.client.options import Address

__all__ = ["listening_process", "process_seconds", "sampled"]

EVERY_S = 0.1
LISTENING = "0A"        # st in /proc/net/tcp
CPU_CLOCK = 2           # time on a processor, of all threads


def _host_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as /proc/net/tcp and tcp6 write it: words of 32 bits in the machine's order."""
    raw = b"".join(struct.pack("=I", int(text[at:at + 8], 16)) for at in range(0, len(text), 8))
    return ipaddress.ip_address(raw)


def _inodes(port: int, hosts: set[str]) -> set[str]:
    """Sockets that listen on that port, on one of the hosts or on all."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            host, _, number = words[1].rpartition(":")
            if words[3] == LISTENING and int(number, 16) == port:
                where = _host_of(host)
                if where.is_unspecified or str(where) in hosts or str(getattr(where, "ipv4_mapped", "")) in hosts:
                    found.add(words[9])
    return found


def _is_here(hosts: set[str]) -> bool:
    """Whether one of the addresses is this machine's: a socket can be bound to it."""
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((host, 0))
            return True
        except OSError:
            continue
    return False


def listening_process(address: str) -> int | None:
    """The process that listens there, when that is on this machine and may be looked at; of several the oldest."""
    place = Address.of(address)
    if place.path or not Path("/proc/net/tcp").exists():
        return None
    try:
        hosts = {str(entry[4][0]) for entry in socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    if not _is_here(hosts):
        return None
    wanted = {f"socket:[{inode}]" for inode in _inodes(place.port, hosts)}
    found = []
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        try:
            if any(os.readlink(entry) in wanted for entry in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:
            continue
    return min(found, default=None)


def process_seconds(pid: int) -> float | None:
    """Seconds on a processor of all threads of a process so far, those that ended too; None when it is gone."""
    try:
        # The clock of another process (Linux: pid and kind in one number); exact, where /proc/PID/stat counts ticks
        # and /proc/PID/task forgets a thread that ended.
        return time.clock_gettime((~pid << 3) | CPU_CLOCK)
    except OSError:
        return None


@contextmanager
def sampled(pid: int | None) -> Iterator[list[tuple[int, float]]]:
    """Samples (ns since 1970, seconds) every EVERY_S while the block runs; none without a process."""
    samples: list[tuple[int, float]] = []
    if pid is None:
        yield samples
        return
    over = threading.Event()

    def look() -> None:
        while (seconds := process_seconds(pid)) is not None:
            samples.append((time.time_ns(), seconds))
            if over.wait(EVERY_S):
                break

    def last() -> None:
        if (seconds := process_seconds(pid)) is not None:
            samples.append((time.time_ns(), seconds))

    thread = threading.Thread(target=look, name="broker cpu", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        last()
