"""Entries of the edges in a recording: connection opened, and client accepted. See docs/internals/recording.md.

Transport records the end of a connection, with `end_why` and `end_code`, which the edges set. Without a recording no
data is collected.
"""
from __future__ import annotations

from typing import Any

import msgspec

from fluxmq._core.net.transport import Transport

__all__ = ["PRESENT", "record_accepted", "record_opened"]

# As in fluxmq/_core/memory/tap.pxd.
_OPENED = 1
_ACCEPTED = 2
PRESENT = 1  # flag: the connection was open when the recording began


def record_opened(connection: Transport, listener: str, flags: int = 0) -> None:
    """Records that a listener accepted a connection, or (PRESENT) that it is open. The recording of its bytes begins
    here."""
    if connection.hub.recording:
        connection.record_event(_OPENED, msgspec.json.encode({
            "listener": listener, "peer": connection.peer, "tls": connection.secure,
            "websocket": connection.websocket}), flags)


def record_accepted(connection: Transport, who: dict[str, Any], flags: int = 0) -> None:
    """Records that CONNACK or connection.open-ok was written, now or (PRESENT) earlier. who: describes the client."""
    connection.record_event(_ACCEPTED, msgspec.json.encode(who), flags)
