"""The configuration of a Broker's sessions."""
from __future__ import annotations

import msgspec

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds, 0 = no bound where a bound is optional. state_bytes_max: of the topic filters and
    wills of all sessions."""

    sessions_max: int = 100_000
    expiry_max_s: int = 0
    subscriptions_max: int = 10_000
    state_bytes_max: int = 512 << 20
    topic_levels_max: int = 32
    queue_max: int = 1000
    queue_bytes_max: int = 64 << 20
    queue_rejects: bool = False
    qos_max: int = 2
