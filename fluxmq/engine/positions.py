"""Which frames of other nodes this node has applied, on disk: Hub.positions across restarts.

A PEER_POSITION record is in the batch of the journal that has what the frame caused (_core/peer/inbox.pxd). The view
has a row for each sender:

    'p' node    u64 epoch, u64 sequence, big-endian
"""
from __future__ import annotations

import struct
from collections.abc import Iterable

from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub

__all__ = ["PeerPositions", "read_position"]

_ROW = struct.Struct(">QQ")


def read_position(node: bytes, value: bytes) -> tuple[str, tuple[int, int]]:
    """(name of the node, (epoch, sequence)) of a row. Raises CorruptError."""
    if len(value) != _ROW.size or not node:
        raise CorruptError(f"the position of a node has {len(value)} bytes, its name {len(node)}")
    try:
        return node.decode(), _ROW.unpack(value)
    except UnicodeDecodeError:
        raise CorruptError("the name of a node is no text") from None


class PeerPositions:
    """Machine. hub: whose positions these are."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._stored: dict[str, tuple[int, int]] = {}  # what the view has

    def load(self, node: bytes, value: bytes) -> None:
        """Reads a row of the view. Raises CorruptError."""
        name, position = read_position(node, value)
        self._stored[name] = position
        self._seen(name, position)

    def replay(self, epoch: int, body: bytes) -> None:
        """Applies a PEER_POSITION record of the journal. Raises CorruptError."""
        self._seen(*read_position(body[8:], epoch.to_bytes(8, "big") + body[:8]))

    def _seen(self, name: str, position: tuple[int, int]) -> None:
        """Keeps the latest: epochs grow, and the view may be newer than a batch that is replayed on top of it."""
        self._hub.positions[name] = max(position, self._hub.positions.get(name, (0, 0)))

    def export(self) -> tuple[Iterable[tuple[bytes, bytes]], Iterable[bytes]]:
        """(puts, deletes) for the view: what changed since the last call."""
        now = dict(self._hub.positions)
        puts = [(b"p" + name.encode(), _ROW.pack(*position)) for name, position in now.items()
                if self._stored.get(name) != position]
        deletes = [b"p" + name.encode() for name in self._stored.keys() - now.keys()]
        self._stored = now
        return puts, deletes
