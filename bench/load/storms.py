"""A connection storm: open many connections, hold them idle, weigh them."""
from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fluxmq.bench.load import packets
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.options import OptionsError
from fluxmq.bench.load.procinfo import memory
from fluxmq.bench.load.sockets import PORTS_AT_EASE, PORTS_PER_ADDRESS, raise_descriptor_limit
from fluxmq.bench.load.storm import Storm

__all__ = ["StormOptions", "run_storm"]

SPARE_DESCRIPTORS = 64
SETTLE_SECONDS = 0.5  # the broker's last CONNACK is sent before its buffers have shrunk


@dataclass(slots=True, kw_only=True)
class StormOptions:
    """One storm. first: connections after which memory is read for the first time, so that what a broker takes for
    its first connections is not charged to the others. hold: seconds to keep all open. tag: what the client identifiers
    have besides the number of the connection, eight characters; "": of this storm alone."""

    addr: str = "127.0.0.1:1883"
    version: Literal["3.1.1", "5"] = "3.1.1"
    connections: int = 1000
    at_once: int = 100
    first: int = 1000
    hold: float = 0.0
    timeout: float = 120.0
    keep_alive: int = 0
    username: str | None = None
    password: str | None = None
    broker_pid: int | None = None
    tag: str = ""


def connect_template(options: StormOptions) -> tuple[bytes, int]:
    """A CONNECT and where in it the eight digits of the connection's number stand."""
    run = options.tag or secrets.token_hex(4)
    packet = packets.connect(f"i{run}-00000000", level=5 if options.version == "5" else 4,
                             keep_alive=options.keep_alive, username=options.username, password=options.password)
    return packet, packet.index(f"i{run}-".encode()) + len(run) + 2


def run_storm(options: StormOptions, opened: Callable[[], None] | None = None) -> dict[str, Any]:
    """Open the connections and return the rate, latencies and, given the broker's process, bytes per connection.
    opened: called when all are open, before they are closed.

    Raises OptionsError, OSError (the address is unknown), LoadError when a connection fails.
    """
    host, _, port = options.addr.rpartition(":")
    if not host or not port.isdigit() or options.connections < 1 or options.at_once < 1:
        raise OptionsError("a storm needs HOST:PORT and at least one connection, one at a time")
    limit = raise_descriptor_limit(options.connections + SPARE_DESCRIPTORS)
    if limit < options.connections + SPARE_DESCRIPTORS:
        raise OptionsError(f"{options.connections} connections need {options.connections + SPARE_DESCRIPTORS} open "
                           f"files and the hard limit is {limit}: raise it (ulimit -Hn) or ask for fewer")
    address = int(ipaddress.IPv4Address(socket.gethostbyname(host)))
    loopback = ipaddress.IPv4Address(address).is_loopback
    block = PORTS_AT_EASE if loopback else PORTS_PER_ADDRESS
    blocks = -(-options.connections // block)
    if blocks > 1 and not loopback:
        raise OptionsError(f"from one address at most {PORTS_PER_ADDRESS} connections can be opened")
    # All of 127.0.0.0/8 is ours to connect from, and each storm takes a place of its own: the ports of an earlier one
    # are in TIME_WAIT for a minute, and to find a free one among them takes the kernel longer and longer.
    first_source = int(ipaddress.IPv4Address("127.0.0.1")) + (secrets.randbelow(0xFFFF) + 1 << 8)
    sources = [first_source + i for i in range(blocks)] if loopback else [0]
    packet, digits_at = connect_template(options)
    storm = Storm(options.connections, address, int(port), packet, digits_at, sources, block)
    try:
        figures = weigh(storm, options)
        if opened is not None:
            opened()
        return figures
    finally:
        storm.close()


def open_some(storm: Storm, options: StormOptions, count: int) -> dict[str, Any]:
    figures = storm.open(count, options.at_once, options.timeout)
    if figures["failed"]:
        cause = (os.strerror(figures["errno"]) if figures["errno"]
                 else f"CONNACK code {figures['refused']}" if figures["refused"] else "the broker closed them")
        raise LoadError(f"{figures['failed']} of {count} connections failed: {cause}")
    return figures


def weigh(storm: Storm, options: StormOptions) -> dict[str, Any]:
    pid = options.broker_pid
    empty = memory(pid) if pid else None
    first_count = min(options.first, options.connections)
    figures = open_some(storm, options, first_count)
    rates = [figures]
    light = None
    if pid:
        storm.hold(SETTLE_SECONDS)
        light = memory(pid)
    if options.connections > first_count:
        rates.append(open_some(storm, options, options.connections - first_count))
    storm.hold(max(options.hold, SETTLE_SECONDS if pid else 0.0))
    closed = storm.hold(0.0)
    seconds = sum(part["seconds"] for part in rates)
    latency = rates[0]["latency"]
    for part in rates[1:]:
        latency.merge(part["latency"])
    result: dict[str, Any] = {
        "connections": options.connections, "seconds": seconds, "per_second": options.connections / seconds,
        "latency_us": latency.summary(), "closed_while_idle": closed,
    }
    if pid and empty and light:
        heavy = memory(pid)
        beyond = options.connections - first_count
        result["broker_memory"] = {
            "rss_before": empty.rss, "rss_first": light.rss, "rss_all": heavy.rss, "peak": heavy.peak,
            "bytes_per_connection": (heavy.rss - light.rss) / beyond if beyond else
            (heavy.rss - empty.rss) / options.connections,
        }
    return result
