"""RocksDB's manifest, checked before RocksDB reads it: it would take some damage for the end of what was written.

A record that a crash cut short is no damage: it counts for nothing, as with RocksDB, and is cut off before a start.
"""
from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

from fluxmq._core.disk.journal_format import crc32c
from fluxmq.storage.reading import close_quietly, read_whole

__all__ = ["ViewDamage", "check_manifest", "cut_torn"]

# A manifest is a log of RocksDB: blocks of 32 KiB; a record is CRC u32, length u16, kind u8, bytes. Only a record that
# does not fit into its block is in pieces. Kinds: 0 padding, 1 whole, 2 first, 3 middle, 4 last piece.
_BLOCK_BYTES = 32 * 1024
_RECORD_HEADER_BYTES = 7
_PIECES = range(1, 5)
_CRC_MASK = 0xA282EAD8
_SECTOR_BYTES = 512         # a disk writes all of it or nothing


class ViewDamage(Exception):
    """The view is not what was written. text: what is wrong, with the file."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def check_manifest(state: Path) -> Path:
    """The manifest that CURRENT names, if both hold. A record at its end that a crash cut short counts for nothing, as
    with RocksDB. Raises ViewDamage, OSError."""
    current = state / "CURRENT"
    try:
        named = read_whole(current)
    except FileNotFoundError:
        raise ViewDamage(f"{current} is missing") from None
    if not re.fullmatch(rb"MANIFEST-\d{6,20}\n", bytes(named)):
        raise ViewDamage(f"{current} does not name a manifest" + ("; it is empty" if not named else ""))
    path = state / bytes(named).decode().strip()
    try:
        data = read_whole(path)
    except FileNotFoundError:
        raise ViewDamage(f"{path} is missing, which {current.name} names") from None
    end = _records_end(data)
    if end < len(data) and not _torn(data, end):
        raise ViewDamage(f"{path} is damaged at offset {end}: the record there does not hold")
    return path


def cut_torn(manifest: Path) -> None:
    """Cuts off what a crash left of the last write, if check_manifest() finds the manifest good: RocksDB passes over a
    record that the file ends in, and refuses one whose first bytes arrived without the others. Raises OSError."""
    data = read_whole(manifest)
    end = _records_end(data)
    if end == len(data):
        return
    fd = os.open(manifest, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, end)
        os.fsync(fd)
    finally:
        close_quietly(fd)


def _records_end(data: memoryview) -> int:
    """Where the records that hold end, from the first on."""
    at = 0
    while at < len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _RECORD_HEADER_BYTES:
            at += left
            continue
        end = _record_end(data, at)
        if end is None:
            break
        at = end
    return at


def _record_end(data: memoryview, at: int, length: int | None = None) -> int | None:
    """Where the record at `at` ends, if it holds; length: instead of what it says itself."""
    if at + _RECORD_HEADER_BYTES > len(data):
        return None
    if length is None:
        length = int.from_bytes(data[at + 4:at + 6], "little")
    end = at + _RECORD_HEADER_BYTES + length
    if data[at + 6] not in _PIECES or end > len(data):
        return None
    crc = crc32c(data[at + 6:end])
    masked = ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF
    return end if masked == int.from_bytes(data[at:at + 4], "little") else None


def _torn(data: memoryview, at: int) -> bool:
    """Whether what stands from `at` on can be the rest of a write that a crash cut short: nothing behind it holds, and
    it is longer than the file, or one of its sectors never arrived and is zeros. (A record with another length than was
    written would hold with what is left.)"""
    if not any(data[at:]):
        return True
    left = len(data) - at - _RECORD_HEADER_BYTES
    if left >= 0 and not _sector_missing(data, at):
        if int.from_bytes(data[at + 4:at + 6], "little") <= left or _record_end(data, at, left) is not None:
            return False
        if data[at + 6] not in _PIECES:
            return False
    return all(_record_end(data, behind) is None for behind in range(at + 1, len(data) - _RECORD_HEADER_BYTES))


def _sector_missing(data: memoryview, at: int) -> bool:
    ends = [*range(at - at % _SECTOR_BYTES + _SECTOR_BYTES, len(data), _SECTOR_BYTES), len(data)]
    return any(not any(data[begin:end]) for begin, end in pairwise([at, *ends]))
