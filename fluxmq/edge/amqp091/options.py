"""The configuration of AMQP 0-9-1 clients, as the edge needs it."""
import msgspec

__all__ = ["FrontOptions"]


class FrontOptions(msgspec.Struct, frozen=True, kw_only=True):
    """frame_max: bytes. heartbeat_s: 0 = none is proposed. Times named ms: milliseconds."""

    frame_max: int = 131_072
    channel_max: int = 2047
    heartbeat_s: int = 60
    write_timeout_ms: int = 60_000
