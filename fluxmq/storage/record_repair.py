"""Finds and removes records of the journal with impossible contents, in batches whose CRCs hold.

A start refuses such a record (fluxmq/engine/stored.py). A repair writes the file anew without it, every other record at
its place and under its batch's number, as journal_repair.py does for batches.
"""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fluxmq._core.disk.journal_format import (
    FILE_HEADER_SIZE,
    batch_at,
    decode_file_header,
    encode_batch,
    encode_header,
    file_name,
    file_number,
    iter_records,
    synced_at,
)
from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq.engine.stored import record_problem
from fluxmq.storage.journal_files import read_batches
from fluxmq.storage.journal_repair import replace_file
from fluxmq.storage.reading import read_whole

__all__ = ["drop_records", "wrong_records"]

_HEADER = 5  # of a record: kind u8, length u32
_KINDS = set(RecordKind)


def wrong_records(journal: Path, after: int) -> Iterator[tuple[int, int, str]]:
    """(batch, which record of it from 1 on, what is wrong in a sentence) of a journal whose batches hold, above batch
    `after`. Raises CorruptError, OSError."""
    for number, batch in read_batches(journal, after) if journal.is_dir() else ():
        for at, problem in _sound(batch)[1]:
            yield number, at, f"batch {number}: {problem}"


def _sound(batch: bytes) -> tuple[list[tuple[int, bytes]], list[tuple[int, str]]]:
    """The records of a batch that hold, and of the others which they are and what is wrong."""
    try:
        records = iter_records(batch)
        behind = ""
    except CorruptError:
        records = _divided(batch)
        behind = f"behind record {len(records)} it does not divide into records"
    kept, wrong = [], []
    for at, (kind, body) in enumerate(records, 1):
        problem = record_problem(kind, body) if kind in _KINDS else "this version does not know the kind"
        if problem:
            wrong.append((at, f"record {at} of {len(records)}, of kind {kind} and {len(body)} bytes, is not what a "
                              f"broker writes there: {problem}"))
        else:
            kept.append((kind, body))
    if behind:
        wrong.append((len(records) + 1, behind))
    return kept, wrong


def _divided(batch: bytes) -> list[tuple[int, bytes]]:
    """Records up to where the bytes do not divide any more."""
    records, at = [], 0
    while at + _HEADER <= len(batch):
        end = at + _HEADER + int.from_bytes(batch[at + 1:at + _HEADER], "little")
        if end > len(batch):
            break
        records.append((batch[at], bytes(batch[at + _HEADER:end])))
        at = end
    return records


def drop_records(journal: Path, after: int, given_up: list[str], kept_aside: list[str]) -> bool:
    """Writes each file of a journal whose batches hold anew that has records of the wrong shape above batch `after`.
    Adds to the two lists what went and where the file is kept. Returns whether there was one. The caller holds the
    lock. Raises OSError; CorruptError for a kind of record that this version does not know."""
    wrong_ones = list(wrong_records(journal, after))
    newer = next((problem for _, _, problem in wrong_ones if "does not know" in problem), "")
    if newer:
        raise CorruptError(f"{journal}: {newer}. Use the program that wrote it")
    wrong = {number for number, _, _ in wrong_ones}
    for number in sorted(n for path in journal.iterdir() if (n := file_number(path.name)) is not None):
        path = journal / file_name(number)
        data = read_whole(path)
        number_in_header, first, file_id = decode_file_header(data)
        pieces, end, batch, lines = [encode_header(number_in_header, first, file_id)], FILE_HEADER_SIZE, first, []
        while (stands := batch_at(data, end, file_id, batch)) is not None:
            begin, behind = stands
            if batch in wrong:
                kept, problems = _sound(bytes(data[begin:behind]))
                lines += [f"{path}: batch {batch}: {problem}" for _, problem in problems]
                pieces.append(encode_batch(batch, synced_at(data, end), kept, file_id))
            else:
                pieces.append(bytes(data[end:behind]))
            end, batch = behind, batch + 1
        if lines:
            aside = path.with_suffix(".log.damaged")
            replace_file(path, pieces, str(aside) not in kept_aside)    # what it was before this repair
            if str(aside) not in kept_aside:
                kept_aside.append(str(aside))
            given_up += lines
    return bool(wrong_ones)
