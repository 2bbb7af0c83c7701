"""The error tree. Every ring may import this file; nothing else is imported by it.

    FluxError
    ├── ProtocolError(reason, text)   the peer broke the protocol; `reason` is the code to answer with
    │   └── AuthError                 the peer is refused: its login, its permission, or because the broker is busy
    ├── UsageError                    our own caller broke a contract: a bug in this process
    ├── ConfigError(path, text)       the configuration cannot be used; `path` is the key, dotted
    ├── ClientError                   base of the errors of fluxmq.client; fluxmq/client/errors.py has the others
    │   ├── NotConnected              there is no connection
    │   └── WindowFull                the server must acknowledge publishes before it takes more
    ├── FencedError                   this node must not serve any more: its lease in the cluster has ended
    └── StorageError                  the disk failed, or a file cannot be used
        ├── CorruptError              a file does not hold what was written to it
        └── ShortageError             space or descriptors have run out for now

A codec raises ProtocolError and nothing else. An error says whose fault it is and carries the code for the wire, so
that outer layers guess neither.
"""
__all__ = ["AuthError", "ClientError", "ConfigError", "CorruptError", "FencedError", "FluxError", "NotConnected",
           "ProtocolError", "ShortageError", "StorageError", "UsageError", "WindowFull"]


class FluxError(Exception):
    """Root of every error that FluxMQ raises on purpose."""


class ProtocolError(FluxError):
    """The peer sent what the specification forbids.

    reason: MQTT 5 reason code, 0x80 to 0xFF (MQTT 5.0 section 2.4); 3.1.1 has no codes, there the edge only closes. In
    AMQP 0-9-1 the reply code, 311 to 541.
    text: one sentence for the log and for the Reason String or the reply text.
    """

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.reason, self.text)


class AuthError(ProtocolError):
    """The broker refuses a login or an operation: bad credentials (0x86), no permission (0x87), the password cannot be
    checked now (0x88), too many logins wait (0x89), a ban (0x8A), an unknown authentication method (0x8C)."""


class ClientError(FluxError):
    """Root of what a client raises."""


class NotConnected(ClientError):
    """There is no connection, not yet or no more."""


class WindowFull(ClientError):
    """The server takes no more publishes with QoS 1 or 2 before it has acknowledged some (Receive Maximum)."""


class UsageError(FluxError):
    """A contract inside this process was broken. Never the peer's fault."""


class ConfigError(FluxError):
    """A configuration that cannot be used.

    path: dotted key, "" for the document as a whole. text: what is wrong and what is allowed.
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}" if path else text)
        self.path = path
        self.text = text


class FencedError(FluxError):
    """The node's lease in the cluster has ended, by the clock: it handles and sends nothing any more."""


class StorageError(FluxError):
    """The disk refused, or a file cannot be used."""


class CorruptError(StorageError):
    """A file holds something else than what was written to it. The text names the file and the repair."""


class ShortageError(StorageError):
    """Space, quota, file size or descriptors have run out. Nothing was done by halves: the same may be tried again when
    somebody has made room. The text has the system's words for what is missing."""
