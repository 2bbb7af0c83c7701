"""Number of open connections per address, over all listeners, and the addresses exempt from this limit.

Each counted connection refers to an Origin (Transport.origin) until its end is reported to the edge. The table contains
only addresses with open connections, so the limits of connections bound its size.
"""
from __future__ import annotations

from fluxmq.model.origins import Networks, origin_of

__all__ = ["Origin", "Origins"]


class Origin:
    """One address, or one IPv6 /64. key: made by model/origins.py. connections: open now."""

    __slots__ = ("_table", "connections", "key")

    def __init__(self, key: bytes, table: dict[bytes, Origin]) -> None:
        self.key = key
        self.connections = 0
        self._table = table

    def enter(self) -> None:
        """Counts a connection from this origin."""
        self.connections += 1
        self._table[self.key] = self

    def leave(self) -> None:
        """Subtracts a counted connection that has ended."""
        self.connections -= 1
        if not self.connections:
            del self._table[self.key]


class Origins:
    """Machine. exempt: addresses whose connections and failed logins are not counted. connections_max: limit per
    origin."""

    def __init__(self, exempt: Networks, connections_max: int) -> None:
        self.connections_max = connections_max
        self._exempt = exempt
        self._open: dict[bytes, Origin] = {}

    def find(self, address: bytes) -> Origin | None:
        """The Origin of a new connection's address, which has 4 or 16 bytes. None: the address is exempt. All open
        connections of one address have the same Origin."""
        if address in self._exempt:
            return None
        key = origin_of(address)
        return (self._open.get(key) or Origin(key, self._open)) if key else None

    def __len__(self) -> int:
        """Number of origins with an open connection."""
        return len(self._open)
