"""Errors of the client.

    ClientError
    ├── NotConnected                      there is no connection
    │   └── ConnectionLost(reason, text)  the connection ended unexpectedly
    ├── ConnectRefused(reason, text)      the server answered CONNECT with a refusal
    ├── PublishRefused(reason, text)      the server refused a message
    ├── SubscribeRefused(reason, text)    the server refused a topic filter
    ├── SessionLost                       the server has lost the session and its unacknowledged messages
    ├── WindowFull                        more unacknowledged publishes than the server permits
    └── QueueFull                         more waiting publishes than this client permits

`reason` is the code of MQTT 5.0 section 2.4, in 3.1.1 the return code of CONNACK or SUBACK. As everywhere
in fluxmq, a violation by the server is a ProtocolError, an invalid argument a UsageError.
"""
from __future__ import annotations

from fluxmq._core.errors import ClientError, FluxError, NotConnected, ProtocolError, UsageError, WindowFull

__all__ = ["ClientError", "ConnectRefused", "ConnectionLost", "FluxError", "NotConnected", "ProtocolError",
           "PublishRefused", "QueueFull", "SessionLost", "SubscribeRefused", "UsageError", "WindowFull"]


class _WithReason(ClientError):
    """reason: the code; text: the server's reason string, or the meaning of the code. reference: Server Reference,
    where another server is; "": none was given. MQTT 5.0 section 4.13."""

    def __init__(self, reason: int, text: str, reference: str = "") -> None:
        super().__init__(f"{text} (0x{reason:02X})" if reason else text)
        self.reason = reason
        self.text = text
        self.reference = reference

    def __reduce__(self) -> tuple[type, tuple[int, str, str]]:
        return type(self), (self.reason, self.text, self.reference)


class ConnectionLost(_WithReason, NotConnected):
    """The connection ended without being closed by this side."""


class ConnectRefused(_WithReason):
    """CONNACK with a reason other than success. MQTT 5.0 section 3.2.2.2; before 5 the return code, 1 to 5."""


class PublishRefused(_WithReason):
    """PUBACK, PUBREC or PUBCOMP with 0x80 or above."""


class SubscribeRefused(_WithReason):
    """SUBACK or UNSUBACK with 0x80 or above for a filter."""


class SessionLost(ClientError):
    """The server has lost the session: it is unknown whether it had the message (lost="fail")."""


class QueueFull(ClientError):
    """max_pending publishes wait already."""
