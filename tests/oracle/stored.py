"""What stands on the disk, written and read by hand as docs/log-format.md says: messages, batches and footers of
segments, batches of the journal. Shares nothing with the product but the drawings in `disk/segment_format.pyx`,
`queue/log.pxd` and `disk/journal_format.pyx`, which it thereby checks. All integers are little-endian.
"""
from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import zstandard

__all__ = ["AMQP091", "JOURNAL_BEGIN", "MQTT", "Batch", "Block", "JournalBatch", "Stored", "batches_of_journal",
           "batches_of_journals", "batches_of_segment", "block_of", "blocks_of", "crc32c", "footer_of_segment",
           "header_of_journal", "journal_batch", "journal_header", "journal_record", "message", "messages",
           "offsets", "page", "records", "records_of_journal", "seed_of", "segment_header"]

MQTT, AMQP091 = 0, 1            # formats of a message's topic and properties
MESSAGE = struct.Struct("<IIQqqqIHBB")  # size, payload, offset, time, expires, due, properties, topic, qos, priority
BATCH = struct.Struct("<QQqqqqQIIIII")      # first, last, times, dues, synced, count, raw, stored, how, CRC of stored
JOURNAL_BEGIN = 40                          # where the first batch of a file of the journal is
JOURNAL_BATCH = struct.Struct("<QQIII")     # number, synced, length, records, CRC of the records
ENTRY = struct.Struct("<QQQqqqII")          # of an index: first, last, position, time max, dues, raw, count
TRAILER = struct.Struct("<QQQQQqq4s")       # index position, reach, last, messages, raw bytes, time max, due max


class Stored(NamedTuple):
    """A message as it stands in a chunk, a batch and an APPEND record."""

    offset: int
    time_ms: int
    expires_at: int
    not_before: int
    qos: int
    format: int
    priority: int
    topic: bytes
    properties: bytes
    payload: bytes


# First and last offset, how many, earliest and latest time, earliest and latest due time (0: none), the messages.
Block = tuple[int, int, int, int, int, int, int, bytes]


class Batch(NamedTuple):
    """A batch of a segment: where its header begins, its block, what it says was synced, whether it was packed."""

    position: int
    block: Block
    synced: int
    packed: bool


class JournalBatch(NamedTuple):
    """A batch of the journal: where it begins and ends in its file, what it says was synced, (kind, body) of each of
    its records."""

    begin: int
    end: int
    number: int
    synced: int
    records: list[tuple[int, bytes]]


def _table() -> list[int]:
    made = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        made.append(number)
    return made


CRC_TABLE = _table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """Castagnoli's CRC, continued from a finished one."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def sealed(data: bytes, seed: int = 0) -> bytes:
    return data + struct.pack("<I", crc32c(data, seed))


def seed_of(file_id: int) -> int:
    """Where every CRC of a file begins that is not its header's."""
    return crc32c(struct.pack("<Q", file_id))


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def message(offset: int, time_ms: int, topic: bytes, payload: bytes, *, properties: bytes = b"", expires_at: int = 0,
            not_before: int = 0, qos: int = 0, format: int = MQTT, priority: int = 0) -> bytes:
    """48 bytes, topic, properties, payload, and zeros up to a multiple of 8."""
    used = MESSAGE.size + len(topic) + len(properties) + len(payload)
    size = (used + 7) // 8 * 8
    return MESSAGE.pack(size, len(payload), offset, time_ms, expires_at, not_before, len(properties), len(topic),
                        qos | format << 4, priority) + topic + properties + payload + bytes(size - used)


def messages(raw: bytes) -> list[Stored]:
    """Raises AssertionError where these are no messages in ascending order of offset."""
    found: list[Stored] = []
    at = 0
    while at < len(raw):
        size, payload, offset, time, expires, due, properties, topic, qos, priority = MESSAGE.unpack_from(raw, at)
        assert size % 8 == 0 and at + size <= len(raw) and (not found or offset > found[-1].offset)
        begins = at + MESSAGE.size
        cuts = [begins, begins + topic, begins + topic + properties, begins + topic + properties + payload]
        assert 0 <= at + size - cuts[3] < 8 and not any(raw[cuts[3]:at + size])
        found.append(Stored(offset, time, expires, due, qos & 15, qos >> 4, priority, raw[cuts[0]:cuts[1]],
                            raw[cuts[1]:cuts[2]], raw[cuts[2]:cuts[3]]))
        at += size
    return found


def offsets(raw: bytes) -> list[int]:
    """Of messages."""
    return [one.offset for one in messages(raw)]


def block_of(raw: bytes) -> Block:
    """What a batch says of its messages; there must be some."""
    told = messages(raw)
    dues = [one.not_before for one in told if one.not_before]
    times = [one.time_ms for one in told]
    return (told[0].offset, told[-1].offset, len(told), min(times), max(times), min(dues, default=0),
            max(dues, default=0), raw)


def blocks_of(raws: Sequence[bytes], per_block: int) -> list[Block]:
    """Messages, each as its bytes, so many in a block."""
    return [block_of(b"".join(raws[at:at + per_block])) for at in range(0, len(raws), per_block)]


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────


def segment_header(log: int, first: int, follows: int, file_id: int) -> bytes:
    return sealed(b"FMQS" + struct.pack("<IQQQQI", 1, log, first, follows, file_id, 0))


def file_id_of(data: bytes) -> int:
    return int(struct.unpack_from("<Q", data, 32)[0])


def batches_of_segment(data: bytes) -> tuple[list[Batch], bytes]:
    """The batches of a file, and what stands behind them: nothing, or the footer. Raises AssertionError where a CRC or
    a summary does not hold."""
    assert data[:8] == b"FMQS\x01\0\0\0" and data[:48] == sealed(data[:44])
    seed = seed_of(file_id_of(data))
    found: list[Batch] = []
    at = 48
    while at < len(data) and data[at:at + 4] != b"FMQI":
        header = data[at:at + 80]
        assert header == sealed(header[:76], seed)
        *told, synced, count, raw, stored, how, crc = BATCH.unpack(header[:76])
        bytes_ = data[at + 80:at + 80 + stored]
        assert len(bytes_) == stored and crc32c(bytes_, seed) == crc and how in (0, 1) and synced <= at
        block = block_of(zstandard.ZstdDecompressor().decompress(bytes_, max_output_size=raw) if how else bytes_)
        assert block[:7] == (*told[:2], count, *told[2:]) and len(block[7]) == raw
        found.append(Batch(at, block, synced, bool(how)))
        at += 80 + stored
    return found, data[at:]


def footer_of_segment(batches: Sequence[Batch], end: int, reach: int, file_id: int, pairs: bool) -> bytes:
    """What seals a file whose batches end at `end`. pairs: of a delay log."""
    seed = seed_of(file_id)
    entries = b"".join(ENTRY.pack(one.block[0], one.block[1], one.position, one.block[4], one.block[5], one.block[6],
                                  len(one.block[7]), one.block[2]) for one in batches)
    dues = b"".join(struct.pack("<qQ", told.not_before, told.offset) for one in batches
                    for told in messages(one.block[7]) if told.not_before and pairs)
    index = sealed(b"FMQI" + struct.pack("<IQIII", len(batches), len(dues) // 16, crc32c(entries, seed),
                                         crc32c(dues, seed), 0), seed)
    blocks = [one.block for one in batches]
    trailer = TRAILER.pack(end, reach, blocks[-1][1], sum(block[2] for block in blocks),
                           sum(len(block[7]) for block in blocks), max(block[4] for block in blocks),
                           max(block[6] for block in blocks), b"FMQT")
    return index + entries + dues + sealed(trailer, seed)


# ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────


def journal_header(number: int, first_batch: int, file_id: int) -> bytes:
    return sealed(b"FMQJ" + struct.pack("<IQQQI", 1, number, first_batch, file_id, 0))


def journal_record(kind: int, body: bytes) -> bytes:
    return struct.pack("<BI", kind, len(body)) + body


def journal_batch(number: int, synced: int, records: Iterable[tuple[int, bytes]], file_id: int) -> bytes:
    made = [journal_record(kind, body) for kind, body in records]
    raw, seed = b"".join(made), seed_of(file_id)
    return sealed(JOURNAL_BATCH.pack(number, synced, len(raw), len(made), crc32c(raw, seed)), seed) + raw


def header_of_journal(data: bytes) -> tuple[int, int, int]:
    """(number, first batch, id) of a file."""
    assert data[:8] == b"FMQJ\x01\0\0\0" and data[:JOURNAL_BEGIN] == sealed(data[:JOURNAL_BEGIN - 4])
    number, first_batch, file_id = struct.unpack_from("<QQQ", data, 8)
    return number, first_batch, file_id


def records(raw: bytes) -> list[tuple[int, bytes]]:
    """(kind, body) of each record of a batch. Raises AssertionError where it does not divide into records."""
    found, at = [], 0
    while at < len(raw):
        assert at + 5 <= len(raw)
        kind, size = struct.unpack_from("<BI", raw, at)
        found.append((kind, raw[at + 5:at + 5 + size]))
        at += 5 + size
    assert at == len(raw)
    return found


def batches_of_journal(data: bytes, torn: bool = False) -> Iterator[JournalBatch]:
    """Of a file, up to its end or to the zeros that end a recycled one. torn: or up to what does not hold, as a crash
    leaves it; else that raises AssertionError. So does a batch whose CRCs hold and whose content cannot be."""
    _, following, file_id = header_of_journal(data)
    seed, at = seed_of(file_id), JOURNAL_BEGIN
    while at < len(data) and any(data[at:at + 32]):
        head = data[at:at + 32]
        holds = len(head) == 32 and head == sealed(head[:28], seed)
        number, synced, length, count, crc = JOURNAL_BATCH.unpack(head[:28].ljust(28, b"\0"))
        raw = data[at + 32:at + 32 + length]
        holds = holds and number == following and len(raw) == length and crc32c(raw, seed) == crc
        if torn and not holds:
            return
        assert holds, f"batch {following} at {at} does not hold"
        told = records(raw)
        assert synced < number and len(told) == count
        yield JournalBatch(at, at + 32 + length, number, synced, told)
        at, following = at + 32 + length, following + 1


def batches_of_journals(directory: Path, after: int = 0) -> list[JournalBatch]:
    """Those above `after` of all files of a journal, which must continue each other; the last file may end torn."""
    paths = sorted(directory.glob("journal-*.log"))
    found: list[JournalBatch] = []
    for path in paths:
        data = path.read_bytes()
        assert path.name == f"journal-{header_of_journal(data)[0]:016x}.log"
        for one in batches_of_journal(data, torn=path == paths[-1]):
            if one.number > after:
                assert not found or one.number == found[-1].number + 1
                found.append(one)
    return found


def records_of_journal(data: bytes) -> list[tuple[int, list[tuple[int, bytes]]]]:
    """(number, records) of every batch of a file that ends with its last batch."""
    return [(one.number, one.records) for one in batches_of_journal(data)]


def page(data: bytes) -> tuple[int, int, int, int, list[Stored]]:
    """(log, first, end, next, messages) of a page as the admin socket gives it (`queue/page.pyx`)."""
    assert data[:8] == b"FMQM\x01\0\0\0"
    log, first, end, following = struct.unpack_from("<QQQQ", data, 8)
    return log, first, end, following, messages(data[40:])
