"""Entries of the edges in a recording: connection opened, and client accepted. See docs/internals/recording.md.

Transport records the end of a connection, with `end_why` and `end_code`, which the edges set. Without a recording no
data is collected.
"""
from __future__ import annotations

from typing import Any

import msgspec

from fluxmq._core.net.transport import Transport

__all__ = ["record_accepted", "record_opened"]

# As in fluxmq/_core/memory/tap.pxd.
_OPENED = 1
_ACCEPTED = 2
_PRESENT = 1  # flag: the connection was open when the recording began


def record_opened(connection: Transport, listener: str, present: int | None = None) -> None:
    """Records that a listener accepted a connection. The recording of its bytes begins here. present: one reader
    (memory/tap.pxd), which has begun while the connection was open; None: all are told."""
    if connection.hub.recording:
        _record(connection, _OPENED, {"listener": listener, "peer": connection.peer, "tls": connection.secure,
                                      "websocket": connection.websocket}, present)


def record_accepted(connection: Transport, who: dict[str, Any], present: int | None = None) -> None:
    """Records that CONNACK or connection.open-ok was written, earlier if `present`. who: describes the client."""
    _record(connection, _ACCEPTED, who, present)


def _record(connection: Transport, kind: int, what: dict[str, Any], present: int | None) -> None:
    data = msgspec.json.encode(what)
    if present is None:
        connection.record_event(kind, data)
    else:
        connection.record_event(kind, data, _PRESENT, present)
