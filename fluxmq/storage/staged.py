"""A checkpoint too large for one write of RocksDB: laid down in parts first, then brought to its places.

The binding keeps the interpreter's lock while RocksDB takes a batch, half a microsecond for each row, and the event
loop stands still. Smaller batches alone would not do: a crash between two of them would leave half a checkpoint. So

    part 0, part 1, … part n-1 ─► READY: n, the batch reached ─► flush        the checkpoint counts from here on
    rows of part 0, … rows of part n-1 ─► applied, parts and READY deleted ─► flush

each ─► a batch of its own. With its log off RocksDB keeps a prefix of what was written to it, so where READY is all
parts are; where READY is gone again all rows are in their places. Until then readers of the view read the parts
over it (merged()), and settle() may be done again from the beginning. Parts without READY never counted.

A part is a msgpack array: keys and values in turn, then keys to delete. Its number in the key is a u32, big-endian, as
are the two u64 of READY.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
from rocksdict import Rdict, WriteBatch, WriteOptions

from fluxmq._core.errors import UsageError
from fluxmq.model.limits import VIEW_PART_BYTES_MAX, VIEW_PART_ROWS_MAX

__all__ = ["APPLIED_KEY", "PART", "READY", "Part", "add_rows", "drop_unready", "merged", "parts_of", "ready_of",
           "settle", "unpacked", "unsynced", "write_part", "write_ready"]

APPLIED_KEY = b"\x00applied"
PART = b"\x00staged"
READY = b"\x00staging"       # behind all parts

# Rows of the view and keys to delete: what one batch changes.
Part = tuple[list[bytes], list[bytes]]

_decode = msgspec.msgpack.Decoder(Part).decode
_encode = msgspec.msgpack.Encoder().encode


def parts_of(puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> Iterator[Part]:
    """All of it, a bounded number of rows and bytes at a time. Raises UsageError for a key that is none."""
    flat: list[bytes] = []
    size = 0
    for key, value in puts:
        _check_key(key)
        flat.append(key)
        flat.append(value)
        size += len(value)
        if len(flat) >= 2 * VIEW_PART_ROWS_MAX or size >= VIEW_PART_BYTES_MAX:
            yield flat, []
            flat, size = [], 0
    gone = iter(deletes)
    while keys := list(islice(gone, VIEW_PART_ROWS_MAX - len(flat) // 2)):
        for key in keys:
            _check_key(key)
        yield flat, keys
        flat = []
    if flat:
        yield flat, []


def unsynced() -> WriteOptions:
    """For a write that the next flush makes durable."""
    how = WriteOptions()
    how.disable_wal = True  # type: ignore[assignment, method-assign]  # a property, whatever its stub says
    return how


def add_rows(batch: WriteBatch, part: Part) -> None:
    """What a part changes."""
    flat, keys = part
    for at in range(0, len(flat), 2):
        batch.put(flat[at], flat[at + 1])
    for key in keys:
        batch.delete(key)


def write_part(view: Rdict, number: int, part: Part) -> None:
    """Lays down one part. Raises what RocksDB raises."""
    batch = WriteBatch(raw_mode=True)
    batch.put(PART + number.to_bytes(4, "big"), _encode(part))
    view.write(batch, unsynced())


def write_ready(view: Rdict, parts: int, upto: int) -> None:
    """All parts are down: from now on they count. Waits for the disk. Raises what RocksDB raises."""
    batch = WriteBatch(raw_mode=True)
    batch.put(READY, parts.to_bytes(8, "big") + upto.to_bytes(8, "big"))
    view.write(batch, unsynced())
    view.flush(wait=True)


def ready_of(value: bytes) -> tuple[int, int] | None:
    """How many parts there are and the batch they reach, as READY says; None: it says nothing that makes sense."""
    return (int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")) if len(value) == 16 else None


def unpacked(value: bytes) -> Part | None:
    """A part that was laid down; None: it was never written like this."""
    try:
        flat, keys = _decode(value)
    except msgspec.DecodeError:
        return None
    return (flat, keys) if len(flat) % 2 == 0 else None


def settle(view: Rdict, parts: Iterable[Part], upto: int) -> None:
    """Brings parts to their places and forgets them; can be done again if it is cut short. Waits for the disk. Raises
    what RocksDB raises."""
    how = unsynced()
    for part in parts:
        batch = WriteBatch(raw_mode=True)
        add_rows(batch, part)
        view.write(batch, how)
    batch = WriteBatch(raw_mode=True)
    batch.put(APPLIED_KEY, upto.to_bytes(8, "little"))
    batch.delete_range(PART, READY + b"\0")
    view.write(batch, how)
    view.flush(wait=True)


def drop_unready(view: Rdict) -> None:
    """Forgets parts that never counted. Raises what RocksDB raises."""
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(PART, READY)
    view.write(batch, unsynced())


def merged(rows: Iterator[tuple[bytes, bytes]], parts: Iterable[Part]) -> Iterator[tuple[bytes, bytes]]:
    """Rows of a view in the order of their keys, as they are when the parts are in their places."""
    changes: dict[bytes, bytes | None] = {}
    for flat, keys in parts:
        changes.update(zip(flat[::2], flat[1::2], strict=True))
        changes.update(dict.fromkeys(keys))
    order = iter(sorted(changes))
    new = next(order, None)
    for key, value in rows:
        while new is not None and new < key:
            if (changed := changes[new]) is not None:
                yield new, changed
            new = next(order, None)
        if new != key:
            yield key, value
    while new is not None:
        if (changed := changes[new]) is not None:
            yield new, changed
        new = next(order, None)


def _check_key(key: bytes) -> None:
    if not key or key[0] == 0:
        raise UsageError(f"{key!r} is no key of the view: keys are not empty and do not begin with a zero byte")
