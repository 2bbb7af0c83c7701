"""The writer of a recording: reads entries from the ring, writes rows into parts. It is a process of its own, so the
broker does not wait for it.

    ring ──► RecordRows ──► batches ──► a thread that writes, syncs and renames parts
             this thread    at most 2

`python -P -m fluxmq.record.writer --ring FD --alive FD --dir DIR --options JSON --about JSON` is the broker's child. It
ends with status 0 when the recording does, 3 when it has reached its cap, 1 with a sentence on stderr when it cannot
go on.
"""
import argparse
import enum
import errno
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa

from fluxmq._core.errors import CorruptError, FluxError
from fluxmq._core.record.ring import RingReader
from fluxmq._core.record.rows import RecordRows
from fluxmq.record.files import RecordingFiles, batch_of_columns, prepare_directory
from fluxmq.record.manifest import Manifest, new_manifest
from fluxmq.record.options import BrokerAbout, Progress, RecordOptions
from fluxmq.record.ring import open_ring

__all__ = ["POLL_S", "RowsWriter", "main", "rows_for", "run_writer"]

POLL_S = 0.003              # interval of checks of an empty ring; grows while it stays empty
IDLE_S = 0.05
TICK_S = 0.5                # interval of progress reports and of checks of the part's age
FLUSH_S = 10.0              # rows wait in memory no longer; as RecordOptions.max_seconds: a part is one row group
TAKE_BYTES = 1 << 20
BATCH_ROWS = 131_072
BATCH_BYTES = 64 << 20
BATCHES_WAITING = 2

CAP_REACHED = "cap reached"
BROKER_ENDED = "broker ended"


class _Word(enum.Enum):
    """What the thread that writes is told between batches."""

    LOOK = 0        # is the open part old enough?
    END = 1         # the last command


def rows_for(options: RecordOptions, *, go_on: bool = False) -> RecordRows:
    """What makes rows as these options ask for; go_on: as of RecordRows. Four batches are on their way when the cap is
    noticed: with a low cap they are small."""
    cap = options.cap_bytes or 1 << 62
    return RecordRows(payload=options.payload, topics=options.topics, clients=options.clients,
                      protocols=options.protocols, sample=options.sample,
                      batch_rows=min(BATCH_ROWS, options.max_rows, max(cap // 1024, 1024)),
                      batch_bytes=min(BATCH_BYTES, options.max_bytes, max(cap // 16, 1 << 16)), go_on=go_on)


class RowsWriter:
    """Machine. Takes batches of `rows` away and has a thread write them.

    Its verbs are one thread's. error: what the disk refused; from then on nothing is written any more.
    """

    def __init__(self, directory: Path, manifest: Manifest, options: RecordOptions, rows: RecordRows) -> None:
        self.rows = rows
        self.error: OSError | None = None
        self._files = RecordingFiles(directory, manifest, options, self._count)
        self._batches: queue.Queue[pa.RecordBatch | _Word] = queue.Queue(BATCHES_WAITING)
        self._since = 0.0           # when the oldest row of the batch came
        self._flush_s = min(FLUSH_S, options.max_seconds)
        self._thread = threading.Thread(target=self._write, name="parts")
        self._thread.start()

    def _count(self, manifest: Manifest) -> None:
        manifest.lost_entries = self.rows.lost_entries
        manifest.lost_bytes = self.rows.lost_bytes
        manifest.filtered_rows = self.rows.filtered_rows
        manifest.undecoded_bytes = self.rows.undecoded_bytes

    def _write(self) -> None:
        while (batch := self._batches.get()) is not _Word.END:
            if self.error is not None:
                continue
            try:
                if batch is _Word.LOOK:
                    self._files.rotate()
                else:
                    self._files.write(batch)
            except OSError as error:
                self.error = error
            except Exception as error:      # a bug: it ends the recording, and no caller waits for this thread
                self.error = OSError(0, f"{type(error).__name__}: {error}")

    def flush(self) -> None:
        """Hands the batch to the thread. Waits while it has enough to do."""
        if self.rows.rows:
            self._batches.put(batch_of_columns(*self.rows.take()))
        self._since = 0.0

    def feed(self, entries: bytes | memoryview) -> None:
        """Whole entries. CorruptError."""
        at = 0
        while at < len(entries):
            at = self.rows.feed(entries, at)
            if self.rows.full:
                self.flush()
        if self.rows.rows and not self._since:
            self._since = time.monotonic()

    def tick(self) -> None:
        """To be called now and then: rows that waited long enough are written, a part that is old enough is closed."""
        if self._since and time.monotonic() - self._since >= self._flush_s:
            self.flush()
        elif self._batches.empty():
            self._batches.put(_Word.LOOK)

    @property
    def capped(self) -> bool:
        return self._files.capped

    def progress(self) -> Progress:
        rows = self.rows
        return Progress(rows=rows.seq, bytes=self._files.bytes, parts=self._files.parts,
                        filtered_rows=rows.filtered_rows, lost_entries=rows.lost_entries, lost_bytes=rows.lost_bytes)

    def close(self, end: str) -> Manifest:
        """Writes what is there and ends the recording. end: why, unless the disk has a say. Raises nothing of the
        disk: `error` and the manifest's `end` tell."""
        self.flush()
        self._batches.put(_Word.END)
        self._thread.join()
        try:
            return self._files.close(end if self.error is None else _refused(self.error))
        except OSError as error:
            self.error = error
            return self._files.close(_refused(error))


def _refused(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk full"
    if error.errno == errno.ENOENT:
        return "its directory is gone"
    return f"the disk refused: {error.strerror or error}"


def _take_all(source: RingReader, writer: RowsWriter) -> None:
    """Takes the entries in the ring and counts those that did not fit. The broker goes on, the recording ends."""
    waiting_max = source.waiting
    while waiting_max > 0 and (entries := source.take(TAKE_BYTES)):
        waiting_max -= len(entries)
        writer.feed(entries)
    # Where there was a gap, the broker tells of it in its next entry, if it has not done so meanwhile.
    writer.feed(source.take_lost() or source.take(1))
    source.release()


def _run(source: RingReader, writer: RowsWriter, stop: Callable[[], str | None],
         progress: Callable[[Progress], None] | None) -> str:
    """Until something ends it. Returns what."""
    pause = POLL_S
    tick = time.monotonic() + TICK_S
    while True:
        entries = source.take(TAKE_BYTES)
        if entries:
            writer.feed(entries)
            pause = POLL_S
        elif source.ended:
            return BROKER_ENDED
        now = time.monotonic()
        if now >= tick:
            tick = now + TICK_S
            writer.tick()
            if progress is not None:
                progress(writer.progress())
        if writer.error is not None:
            return "disk"
        if writer.capped:
            return CAP_REACHED
        if (why := stop()) is not None:
            _take_all(source, writer)
            return why
        if not entries:
            time.sleep(pause)
            pause = min(pause * 1.5, IDLE_S)


def run_writer(source: RingReader, options: RecordOptions, directory: Path, *, about: BrokerAbout,
               stop: Callable[[], str | None], progress: Callable[[Progress], None] | None = None) -> Manifest:
    """Writes a recording into that directory (new, or empty) until the broker ends it, `stop` gives a reason, the cap
    is reached or the disk refuses; the manifest's `end` says which, and what was written by then is kept.

    stop: asked every few milliseconds. progress: told twice a second, and at the end. Raises RecordingError for a
    directory that cannot be used, CorruptError for a ring that is damaged (what came before it is kept).
    """
    prepare_directory(directory)
    writer = RowsWriter(directory, new_manifest(options, about), options, rows_for(options))
    end = "the ring was damaged"
    try:
        end = _run(source, writer, stop, progress)
    finally:
        manifest = writer.close(end)
        source.stop()
        if progress is not None:
            progress(writer.progress())
    return manifest


def _stop_of(alive: int) -> Callable[[], str | None]:
    """SIGTERM, or the broker's end of the pipe closed."""
    ended: list[str] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append("stopped"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poll = select.poll()
    poll.register(alive, 0)

    def stop() -> str | None:
        return ended[0] if ended else BROKER_ENDED if poll.poll(0) else None

    return stop


def main(arguments: list[str] | None = None) -> int:
    """The broker's child."""
    parser = argparse.ArgumentParser(prog="python -m fluxmq.record.writer", description="Writes what a broker records.")
    parser.add_argument("--ring", type=int, required=True, help="descriptor of the ring")
    parser.add_argument("--alive", type=int, required=True, help="descriptor of a pipe that the broker holds open")
    parser.add_argument("--dir", type=Path, required=True, help="directory of this recording, new or empty")
    parser.add_argument("--options", required=True, help="RecordOptions, JSON")
    parser.add_argument("--about", required=True, help="BrokerAbout, JSON")
    asked = parser.parse_args(arguments)
    os.umask(0o077)
    stop = _stop_of(asked.alive)
    try:
        options = msgspec.json.decode(asked.options, type=RecordOptions)
        about = msgspec.json.decode(asked.about, type=BrokerAbout)
        manifest = run_writer(open_ring(asked.ring), options, asked.dir, about=about, stop=stop)
    except (FluxError, CorruptError, msgspec.DecodeError, OSError) as error:
        print(f"fluxmq record: {error}", file=sys.stderr)
        return 1
    if manifest.end == CAP_REACHED:
        return 3
    if manifest.end in (BROKER_ENDED, "stopped"):
        return 0
    print(f"fluxmq record: {asked.dir}: the recording ended: {manifest.end}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
