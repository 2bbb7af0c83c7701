"""How this node calls another: options of gRPC, and the channels for calls."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import grpc.aio

from fluxmq._core.peer.http2 import WINDOW_BYTES
from fluxmq.cluster.rpc.tls import Tls

__all__ = ["Channels", "Settings", "Shared", "open_channel"]

# A message is a frame and its envelope: a tag and a length.
_ENVELOPE_BYTES_MAX = 16
# Calls to a node come in groups (a takeover, the questions of a voter). After that time without any, the connection for
# them is closed.
CHANNEL_IDLE_S = 60.0


class Settings(NamedTuple):
    """keepalive_s: how often an idle connection is checked, and how long an answer may take before it counts as broken.
    hello_s: how long a stream may take to open, from dial() and from its acceptance. frame_bytes_max: of a frame, a
    body or a part."""

    keepalive_s: float = 10.0
    hello_s: float = 5.0
    frame_bytes_max: int = 257 << 20  # any message of MQTT, and what has gathered in front of it


def _options(settings: Settings) -> list[tuple[str, int]]:
    check_ms = max(1, round(settings.keepalive_s * 1000))
    return [
        ("grpc.max_receive_message_length", settings.frame_bytes_max + _ENVELOPE_BYTES_MAX),
        ("grpc.max_send_message_length", settings.frame_bytes_max + _ENVELOPE_BYTES_MAX),
        # A window of a fixed size, so that what another node may send unread does not depend on what gRPC has measured.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.keepalive_time_ms", check_ms),
        # The time limit of a ping is a minute, whatever keepalive_timeout_ms says (grpc issue 39239, version 1.85).
        ("grpc.keepalive_timeout_ms", check_ms),
        ("grpc.http2.ping_timeout_ms", check_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # By default a peer that gets more pings than data closes the connection.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _client_options(settings: Settings) -> list[tuple[str, int]]:
    """Options of a channel. Each has a connection of its own: channels that share one would share its backoff too, and
    a dial would fail without an attempt. Nothing is sent twice by gRPC itself."""
    return [
        *_options(settings),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]


def open_channel(address: str, settings: Settings, tls: Tls | None) -> grpc.aio.Channel:
    """A channel; it connects when it is used."""
    if tls is None:
        return grpc.aio.insecure_channel(address, _client_options(settings))
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.aio.secure_channel(address, credentials, _client_options(settings))


@dataclass(eq=False)
class Shared:
    """A channel and the calls that use it. idle: set while there are none."""

    address: str
    channel: grpc.aio.Channel
    users: int = 0
    idle: asyncio.TimerHandle | None = None


class Channels:
    """The channels for calls: one to an address, while there are calls and some time after the last."""

    def __init__(self, open_: Callable[[str], grpc.aio.Channel], start: Callable[[Any], object]) -> None:
        """open_: makes a channel to an address. start: runs a coroutine."""
        self._open = open_
        self._start = start
        self._current: dict[str, Shared] = {}
        self._all: set[Shared] = set()

    def take(self, address: str) -> Shared:
        """A channel for one call; give it back."""
        shared = self._current.get(address)
        if shared is None:
            shared = self._current[address] = Shared(address, self._open(address))
            self._all.add(shared)
        if shared.idle is not None:
            shared.idle.cancel()
            shared.idle = None
        shared.users += 1
        return shared

    def give_back(self, shared: Shared, connected: bool) -> None:
        """The call is over. connected: whether there was a connection. If not, later calls get another channel, which
        connects at once; this one would wait first."""
        shared.users -= 1
        current = self._current.get(shared.address) is shared
        if not connected and current:
            del self._current[shared.address]
            current = False
        if shared.users or shared not in self._all:
            return
        if current:
            shared.idle = asyncio.get_running_loop().call_later(CHANNEL_IDLE_S, self._expire, shared)
        else:
            self._all.remove(shared)
            self._start(shared.channel.close())

    def _expire(self, shared: Shared) -> None:
        del self._current[shared.address]
        self._all.remove(shared)
        self._start(shared.channel.close())

    async def close(self) -> None:
        """Closes all; calls that are under way are cancelled."""
        closing, self._all, self._current = self._all, set(), {}
        for shared in closing:
            if shared.idle is not None:
                shared.idle.cancel()
            await shared.channel.close()
