"""One segment file: what it holds, read from its footer or, where it has none, from its batches.

The format is drawn in `_core/disk/segment_format.pyx`. The policy, like that of `journal_files.py`:

  - Before a file is begun, all of the one before is synced, footer included. So in any file but the last of its log a
    batch that does not hold is damage; a footer that does not is made again when the batches reach the next file.
  - In the last file the first batch that does not hold is the end, unless a later header says that it had been synced.
  - Which offsets files have the view says (`l`, engine/queues/recovery/store.py), before one that it needs no more is
    removed. So a file that is missing of them, first, last or only one, is damage.
  - A file's header lies in one sector: after a crash it is there, or the file is empty or zeros (then nothing in it was
    ever synced, and it goes).
"""
from __future__ import annotations

import errno
import threading
from dataclasses import dataclass
from pathlib import Path

import zstandard

from fluxmq._core.disk.segment_format import (
    HEADER_SIZE,
    INDEX_HEADER_SIZE,
    STORED_PLAIN,
    STORED_ZSTD,
    TRAILER_SIZE,
    SegmentIndex,
    batch_at,
    batch_holds,
    decode_header,
    decode_index,
    decode_trailer,
    due_pairs,
    find_batch,
    walk,
)
from fluxmq._core.errors import CorruptError
from fluxmq.storage.files import SYSTEM, FileOps
from fluxmq.storage.reading import close_quietly, read_whole

__all__ = ["Block", "Damage", "FileOps", "SegmentFile", "files_of", "never_synced", "no_space",
           "read_at", "read_file", "read_header", "rebuilt_index", "unpack", "unpacked"]

# (first, last, count, time_min, time_max, due_min, due_max, messages), as an Export gives it.
Block = tuple[int, int, int, int, int, int, int, bytes]

_local = threading.local()


class Damage(Exception):
    """What is wrong in a file that no crash explains, and where it begins. missing: it is that there is no file."""

    def __init__(self, text: str, offset: int, missing: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.offset = offset
        self.missing = missing

    @classmethod
    def of_missing(cls, first: int, behind: int) -> Damage:
        """Of the file with the messages from offset `first` up to `behind`."""
        return cls(f"the file with the messages from offset {first} to {behind - 1}, which had been synced, is missing",
                   0, True)


@dataclass(slots=True, eq=False)
class SegmentFile:
    """One file. `last`, `messages`, `raw`, `time_max`, `due_max`: of its batches. `end`: where they end. `size`: all of
    it. `reach`: what the next file follows. `index`: None where a sealed file's is not in memory. `pairs`: of an
    unsealed file, None while they are not known. `synced`: bytes known to be on the medium."""

    path: Path
    log: int
    first: int
    follows: int
    file_id: int
    size: int = HEADER_SIZE
    end: int = HEADER_SIZE
    reach: int = 0
    last: int = 0
    messages: int = 0
    raw: int = 0
    time_max: int = 0
    due_max: int = 0
    sealed: bool = False
    index: SegmentIndex | None = None
    pairs: bytearray | None = None
    synced: int = 0

    def take(self, index: SegmentIndex) -> None:
        """What the index says is what the file says."""
        self.index, self.end = index, index.end
        self.last = index.last(len(index) - 1) if len(index) else 0
        self.messages, self.raw, self.time_max, self.due_max = index.messages, index.raw, index.time_max, index.due_max
        self.reach = max(self.reach, self.last + 1 if len(index) else self.first)


def read_at(fd: int, size: int, at: int, ops: FileOps = SYSTEM) -> bytes:
    """So many bytes, less only at the end of the file: the system may give a part. Raises OSError."""
    data = memoryview(bytearray(max(0, size)))
    done = 0
    while done < size:
        got = ops.read_into(fd, data[done:], at + done)
        if not got:
            break
        done += got
    return bytes(data[:done])


def read_header(data: bytes | memoryview, path: Path, log: int, first: int) -> SegmentFile:
    """The file that this header opens. Raises Damage."""
    try:
        said = decode_header(data)
    except CorruptError as error:
        raise Damage(str(error), 0) from None
    if said[:2] != (log, first):
        raise Damage(f"its header says that it is of log {said[0]:016x} from offset {said[1]} on: it has been renamed "
                     f"or copied", 0)
    return SegmentFile(path, log, first, said[2], said[3])


def never_synced(data: bytes | memoryview) -> bool:
    """Whether a file's first bytes are what a crash leaves of one that was just begun."""
    return len(data) < HEADER_SIZE or not any(data[:HEADER_SIZE])


def read_file(file: SegmentFile, following: int | None, ops: FileOps = SYSTEM) -> int:
    """Fill in what `file` holds. following: what the next file says it follows; None: this is the last of its log.

    Returns how many bytes behind `file.end` are to be cut off: in the last file what a crash left, in others a footer
    that does not hold. Raises Damage.
    """
    fd = ops.open_to_read(file.path)
    try:
        size = ops.size(fd)
        trailer = decode_trailer(read_at(fd, TRAILER_SIZE, max(0, size - TRAILER_SIZE), ops), size, file.file_id)
    finally:
        close_quietly(fd, ops)
    file.size = size
    if trailer is not None:
        file.end, file.reach, file.last, file.messages, file.raw, file.time_max, file.due_max = trailer
        file.sealed, file.synced = True, size
        if following is not None and file.reach != following:
            raise Damage(f"it reaches offset {file.reach}, but the next file follows one that reaches {following}: a "
                         f"file between them is missing", file.end)
        return 0
    data = read_whole(file.path, ops)
    index, synced = walk(data, file.file_id)
    if following is None:
        index.cut(index.first_bad(data, file.file_id, synced))
        file.take(index)
        proof = find_batch(data, file.end + 1, file.file_id, file.reach if len(index) else 0, file.end + 1)
        if proof is not None:
            raise Damage(f"the batch at offset {file.end} does not hold, though the batch at offset {proof} shows "
                         f"that it had been written and synced", file.end)
        file.synced = min(synced, file.end)
    else:
        file.take(index)
        if file.reach != following:
            raise Damage(f"the batch at offset {file.end} does not hold, though the next file shows that offsets "
                         f"up to {following - 1} were written", file.end)
        file.sealed, file.synced = True, file.end
    return size - file.end


def rebuilt_index(file: SegmentFile, ops: FileOps = SYSTEM) -> SegmentIndex:
    """The index of a sealed file: from its footer, or from its batches where that does not hold. Raises Damage."""
    if file.size > file.end:
        fd = ops.open_to_read(file.path)
        try:
            data = read_at(fd, file.size - TRAILER_SIZE - file.end, file.end, ops)
        finally:
            close_quietly(fd, ops)
        decoded = decode_index(data, file.end, file.file_id) if len(data) >= INDEX_HEADER_SIZE else None
        if decoded is not None and decoded[0].messages == file.messages:
            return decoded[0]
    index, _ = walk(read_whole(file.path, ops), file.file_id)
    if index.end != file.end or index.messages != file.messages:
        raise Damage(f"the batch at offset {index.end} does not hold, though the footer says that batches reach "
                     f"{file.end}", index.end)
    return index


def files_of(directory: Path, ops: FileOps = SYSTEM) -> list[Path]:
    """The segment files of a log's directory, in order."""
    return sorted(directory / name for name in ops.names(directory) if name.endswith(".seg") and len(name) == 20)


def unpack(data: bytes | memoryview, at: int, file: SegmentFile, base: int = 0) -> tuple[Block, int]:
    """The block whose batch stands at `at` of data, which begins at position `base` of the file; and where the next one
    would stand. Raises Damage."""
    decoded = batch_at(data, at, file.file_id)
    if decoded is None:
        raise Damage(f"the header of the batch at offset {base + at} does not hold", base + at)
    if not batch_holds(data, at, file.file_id):
        raise Damage(f"the batch at offset {base + at} (messages {decoded[0]} to {decoded[1]}) does not hold",
                     base + at)
    *head, length, how, begin, end = decoded
    stored = memoryview(data)[begin:end]
    if how == STORED_PLAIN:
        raw = bytes(stored)
    elif how == STORED_ZSTD:
        unpacker = getattr(_local, "unpacker", None)
        if unpacker is None:
            unpacker = _local.unpacker = zstandard.ZstdDecompressor()
        try:
            raw = unpacker.decompress(stored, max_output_size=length)
        except zstandard.ZstdError as error:
            raise Damage(f"the batch at offset {base + at} cannot be unpacked: {error}", base + at) from None
    else:
        raise Damage(f"the batch at offset {base + at} is packed in a way ({how}) that this program does not know",
                     base + at)
    if len(raw) != length:
        raise Damage(f"the batch at offset {base + at} holds {len(raw)} bytes instead of {length}", base + at)
    return (*head, raw), end  # type: ignore[return-value]


def unpacked(file: SegmentFile, index: SegmentIndex, data: memoryview) -> bytes:
    """(due, offset) pairs of a file, from its batches. Raises Damage."""
    pairs = bytearray()
    for number in range(len(index)):
        if index.due(number):
            block, _ = unpack(data, index.span(number, 0)[1], file)
            pairs += due_pairs(block[7])
    return bytes(pairs)


def no_space(error: OSError) -> bool:
    """Whether the operation can succeed once there is room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)
