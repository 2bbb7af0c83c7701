"""The process of a broker on this machine, and samples of its CPU time and memory during a replay."""
from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fluxmq.client.options import Address

__all__ = ["Samples", "listening_process", "process_seconds", "resident_bytes", "sampled"]

EVERY_S = 0.1
LISTENING = "0A"        # st in /proc/net/tcp
CPU_CLOCK = 2           # time on a processor, of all threads
PAGE = os.sysconf("SC_PAGE_SIZE")


def _host_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Decodes an address in /proc/net/tcp or tcp6: words of 32 bits in the machine's byte order."""
    raw = b"".join(struct.pack("=I", int(text[at:at + 8], 16)) for at in range(0, len(text), 8))
    return ipaddress.ip_address(raw)


def _inodes(port: int, hosts: set[str]) -> set[str]:
    """Inodes of sockets that listen on that port, on one of the hosts or on all."""
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


def _is_local(hosts: set[str]) -> bool:
    """Whether one of the addresses belongs to this machine: a socket can be bound to it."""
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
    """The process that listens there, if it is on this machine and accessible; the oldest of several."""
    place = Address.of(address)
    if place.path or not Path("/proc/net/tcp").exists():
        return None
    try:
        hosts = {str(entry[4][0]) for entry in socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    if not _is_local(hosts):
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
    """CPU seconds of all threads of a process so far, including ended ones; None when it has ended."""
    try:
        # The clock of another process (Linux: pid and kind in one number); exact, where /proc/PID/stat counts ticks
        # and /proc/PID/task forgets a thread that ended.
        return time.clock_gettime((~pid << 3) | CPU_CLOCK)
    except OSError:
        return None


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process in bytes, including shared memory; None when it has ended."""
    try:
        pages = int(Path("/proc", str(pid), "statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * PAGE or None         # a process that has ended and waits to be reaped has none


@dataclass(slots=True)
class Samples:
    """[instant, seconds on CPU so far] and [instant, resident bytes]; instants in ns since 1970."""

    cpu: list[tuple[int, float]] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)

    def take(self, pid: int) -> bool:
        """Takes one sample of each. False when the process has ended."""
        now, seconds, resident = time.time_ns(), process_seconds(pid), resident_bytes(pid)
        if seconds is not None:
            self.cpu.append((now, seconds))
        if resident is not None:
            self.memory.append((now, resident))
        return seconds is not None


@contextmanager
def sampled(pid: int | None) -> Iterator[Samples]:
    """Samples every EVERY_S while the block runs, and one at its end; none without a process."""
    samples = Samples()
    if pid is None:
        yield samples
        return
    over = threading.Event()

    def look() -> None:
        while samples.take(pid) and not over.wait(EVERY_S):
            pass

    thread = threading.Thread(target=look, name="broker process", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        samples.take(pid)
