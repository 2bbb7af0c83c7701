"""What carries a client of the engine: a connection without a network."""
from __future__ import annotations

__all__ = ["Carrier"]


class Carrier:
    """A ClientConnection. told: the reasons with which its session was taken away. stays: that must not happen."""

    def __init__(self, *, stays: bool = False) -> None:
        self.stays = stays
        self.told: list[int] = []

    def displaced(self, reason: int) -> None:
        assert not self.stays, reason
        self.told.append(reason)
