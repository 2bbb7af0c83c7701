"""Measures the memory of an idle AMQP 0-9-1 connection, and of a further channel: resident size before and after.

Blocking, one connection after the other: nothing but memory is measured. Each connection has one channel.
"""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fluxmq._core.amqp091.methods import ChannelOpen
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_session import Session
from fluxmq.bench.load.options import OptionsError
from fluxmq.bench.load.procinfo import memory
from fluxmq.bench.load.sockets import raise_descriptor_limit

__all__ = ["IdleOptions", "run_amqp_idle"]

SETTLE_SECONDS = 1.5            # Erlang's virtual machine frees memory a little later
SPARE_DESCRIPTORS = 100


@dataclass(slots=True, kw_only=True)
class IdleOptions:
    """first: connections and channels that are opened before the measurement, because a broker's first ones cost
    more."""

    addr: str = "127.0.0.1:5672"
    connections: int = 1000
    channels: int = 1000
    first: int = 100
    broker_pid: int | None = None


def run_amqp_idle(options: IdleOptions) -> dict[str, Any]:
    """Raises OptionsError, OSError, SessionError when the broker refuses."""
    if options.broker_pid is None or min(options.connections, options.channels, options.first) < 1:
        raise OptionsError("memory needs the broker's process, and at least one connection and one channel")
    raise_descriptor_limit(options.first + options.connections + SPARE_DESCRIPTORS)
    pid = options.broker_pid
    sessions: list[Session] = []

    def weighed() -> int:
        time.sleep(SETTLE_SECONDS)
        return memory(pid).rss

    try:
        began = time.monotonic()
        grow(sessions, options, options.first)
        light = weighed()
        grow(sessions, options, options.connections)
        heavy = weighed()
        one = Session(AmqpOptions(addr=options.addr), None, channel_max=options.first + options.channels + 1)
        sessions.append(one)
        open_channels(one, 2, options.first)
        few = weighed()
        open_channels(one, 2 + options.first, options.channels)
        many = weighed()
        return {"seconds": time.monotonic() - began, "broker_memory": {
            "rss": many, "peak": memory(pid).peak, "bytes_per_connection": (heavy - light) / options.connections,
            "bytes_per_channel": (many - few) / options.channels}}
    finally:
        for session in sessions:
            session.sock.close()


def grow(sessions: list[Session], options: IdleOptions, count: int) -> None:
    for _ in range(count):
        sessions.append(Session(AmqpOptions(addr=options.addr), None))


def open_channels(session: Session, first: int, count: int) -> None:
    for number in range(first, first + count):
        session.call(ChannelOpen(), number)
