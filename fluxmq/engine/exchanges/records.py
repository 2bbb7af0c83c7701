"""Exchanges and bindings on disk: records of the journal, which are also the values of the view.

    journal    EXCHANGE, EXCHANGE_END, BIND, UNBIND (_core/disk/record_kinds.pxd)
    view       e<number> StoredExchange    b<number> BindingRecord

Only durable exchanges are stored, and bindings whose source and destination are durable. A binding refers to both by
number, and numbers are not reused: so the end of a queue (QUEUE_END) or of an exchange ends its bindings without
further records, and a later queue with the same name inherits none.
"""
from __future__ import annotations

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind

__all__ = ["BindingRecord", "ExchangeRecord", "StoredExchange", "view_key"]


class ExchangeRecord(msgspec.Struct, array_like=True, frozen=True):
    """An exchange. vhost: name of the virtual host. arguments: a field table as received, without its length. id: its
    identity in the cluster, 0 if no other node knows it."""

    vhost: bytes
    name: bytes
    type: bytes
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b""
    id: int = 0


class StoredExchange(msgspec.Struct, array_like=True, frozen=True):
    """An exchange on disk. namespace: its number in the journal; an earlier version wrote its name. id: not written if
    it is 0."""

    namespace: int | bytes
    name: bytes
    type: bytes
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b""
    id: int = 0

    def encoded(self) -> bytes:
        """As MessagePack."""
        return msgspec.msgpack.encode(self if self.id else msgspec.structs.astuple(self)[:-1])


class BindingRecord(msgspec.Struct, array_like=True, frozen=True):
    """A binding. source: number of an exchange. destination: of a queue, or of an exchange with to_exchange."""

    source: int
    destination: int
    to_exchange: bool
    key: bytes
    arguments: bytes = b""


def view_key(kind: int, number: int) -> bytes:
    """The view's key for a record of this kind."""
    prefix = b"e" if kind in (RecordKind.EXCHANGE, RecordKind.EXCHANGE_END) else b"b"
    return prefix + number.to_bytes(8, "big")
