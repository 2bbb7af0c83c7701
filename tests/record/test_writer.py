"""The writer: rows of a ring in parts, rotated, counted, ended in order; alone, and as the broker's child."""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from kit.python import environment
from kit.record_entries import ACCEPTED, CLOSED, IN, MQTT, entry
from kit.smalldisk import small_disk

from fluxmq._core.memory.tap import Tap
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Connect, Publish
from fluxmq.record.files import OPEN, RecordingFiles, batch_of_rows
from fluxmq.record.manifest import RecordingError, new_manifest, read_manifest
from fluxmq.record.options import BrokerAbout, Progress, RecordOptions
from fluxmq.record.reading import open_recording
from fluxmq.record.ring import make_ring, open_ring
from fluxmq.record.writer import RowsWriter, rows_for, run_writer

CAPACITY = 1 << 20
ABOUT = BrokerAbout(version="9.9", config_digest="ab" * 32)
WAIT_S = 20.0


@pytest.fixture
def ring() -> Iterator[tuple[int, Tap]]:
    descriptor = make_ring(CAPACITY)
    yield descriptor, Tap(descriptor, CAPACITY)
    os.close(descriptor)


def fill(tap: Tap, messages: int, *, first: int = 0, payload: bytes = b"x" * 64) -> None:
    if first == 0:
        tap.write(IN, MQTT, 0, 1, encode_packet(Connect(client_id="c"), 5))
    for n in range(first, first + messages):
        tap.write(IN, MQTT, 0, 1, encode_packet(Publish(f"t/{n}", payload=payload), 5))


def topics(path: Path) -> list[str]:
    return [name for name in open_recording(path).table(["topic"])["topic"].to_pylist() if name]


def test_a_ring_that_ends_is_written_whole(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    fill(tap, 1_000)
    tap.write(CLOSED, MQTT, 0, 1, b'{"by":"client","reason":"","code":0}')
    tap.end()
    told: list[Progress] = []
    manifest = run_writer(open_ring(descriptor), RecordOptions(max_rows=300), tmp_path / "r", about=ABOUT,
                          stop=lambda: None, progress=told.append)
    assert (manifest.end, manifest.rows, [part.rows for part in manifest.parts]) == (
        "broker ended", 1_002, [300, 300, 300, 102])
    assert (manifest.broker.version, manifest.config_digest) == ("9.9", "ab" * 32)
    assert topics(tmp_path / "r") == [f"t/{n}" for n in range(1_000)]
    assert told[-1] == Progress(rows=1_002, bytes=sum(part.bytes for part in manifest.parts), parts=4)
    assert read_manifest(tmp_path / "r") == manifest
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "r").glob("part-*")} == {0o600}
    assert tap.left


def test_stop_takes_what_is_there(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    fill(tap, 100)
    manifest = run_writer(open_ring(descriptor), RecordOptions(), tmp_path / "r", about=ABOUT, stop=lambda: "stopped")
    assert (manifest.end, manifest.rows) == ("stopped", 101)


def test_a_part_is_closed_when_it_is_old(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    fill(tap, 10)
    waited = 0

    def stop() -> str | None:
        nonlocal waited
        waited += 1
        if waited > 20 and not list((tmp_path / "r").glob("part-000001.parquet")):
            fill(tap, 1, first=10 + waited)
            return None
        return "stopped" if waited > 20 else None

    options = RecordOptions(max_seconds=0.001, max_rows=5)
    manifest = run_writer(open_ring(descriptor), options, tmp_path / "r", about=ABOUT, stop=stop)
    assert len(manifest.parts) > 1 and manifest.rows == open_recording(tmp_path / "r").rows >= 11


def test_the_cap_ends_it(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    sent = 0

    def stop() -> str | None:
        nonlocal sent
        if tap.waiting < CAPACITY // 2:
            fill(tap, 200, first=sent, payload=os.urandom(512))
            sent += 200
        return None

    options = RecordOptions(payload="full", cap_bytes=200_000, max_bytes=50_000)
    manifest = run_writer(open_ring(descriptor), options, tmp_path / "r", about=ABOUT, stop=stop)
    assert manifest.end == "cap reached" and manifest.ended is not None
    assert sum(part.bytes for part in manifest.parts) >= 200_000
    assert open_recording(tmp_path / "r").rows == manifest.rows


def test_what_was_lost_and_left_out_is_counted(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    fill(tap, 20_000)
    tap.end()
    assert tap.lost_entries
    manifest = run_writer(open_ring(descriptor), RecordOptions(topics=("t/1",)), tmp_path / "r", about=ABOUT,
                          stop=lambda: None)
    assert (manifest.lost_entries, manifest.lost_bytes) == (tap.lost_entries, tap.lost_bytes)
    assert manifest.filtered_rows == 20_001 - tap.lost_entries - 2
    kinds = open_recording(tmp_path / "r").table(["kind"])["kind"].to_pylist()
    assert kinds == ["CONNECT", "PUBLISH", "lost"]


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    (tmp_path / "other").write_text("x")
    with pytest.raises(RecordingError, match="there is something in it already"):
        run_writer(open_ring(ring[0]), RecordOptions(), tmp_path, about=ABOUT, stop=lambda: None)


class Child:
    """The writer as the broker starts it."""

    def __init__(self, ring: int, path: Path, options: RecordOptions) -> None:
        alive, self.alive = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fluxmq.record.writer", "--ring", str(ring), "--alive", str(alive), "--dir",
             str(path), "--options", msgspec.json.encode(options).decode(), "--about",
             msgspec.json.encode(ABOUT).decode()],
            env=environment(), pass_fds=(ring, alive), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        os.close(alive)

    def hang_up(self) -> None:
        os.close(self.alive)
        self.alive = -1

    def ended(self) -> tuple[int, str]:
        _, error = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, error

    def close(self) -> None:
        if self.alive >= 0:
            self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(WAIT_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


def until(true: object, child: Child) -> None:
    """Waits for what the child does; it says nothing, so somebody looks."""
    deadline = time.monotonic() + WAIT_S
    while not true():  # type: ignore[operator]
        assert child.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("how", ["ring", "pipe", "SIGTERM"])
def test_the_child_ends_in_order(tmp_path: Path, ring: tuple[int, Tap], how: str) -> None:
    descriptor, tap = ring
    fill(tap, 500)
    child = Child(descriptor, tmp_path / "r", RecordOptions())
    try:
        until(lambda: tap.waiting == 0, child)
        if how == "ring":
            tap.end()
        elif how == "pipe":
            child.hang_up()
        else:
            child.process.send_signal(signal.SIGTERM)
        assert child.ended() == (0, "")
    finally:
        child.close()
    assert read_manifest(tmp_path / "r").end == ("stopped" if how == "SIGTERM" else "broker ended")
    assert topics(tmp_path / "r") == [f"t/{n}" for n in range(500)]


def test_the_child_says_that_it_is_full(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    fill(tap, 1_000)
    child = Child(descriptor, tmp_path / "r", RecordOptions(cap_bytes=1_000, max_rows=100))
    try:
        assert child.ended() == (3, "")
    finally:
        child.close()
    assert read_manifest(tmp_path / "r").end == "cap reached"


@pytest.mark.parametrize("parts", [1, 3])
def test_kill_leaves_every_closed_part(tmp_path: Path, ring: tuple[int, Tap], parts: int) -> None:
    """kill -9 at an instant that nothing chose: whatever has its final name is read, in order, from the first row."""
    descriptor, tap = ring
    path = tmp_path / "r"
    child = Child(descriptor, path, RecordOptions(max_rows=50))
    sent = 0
    try:
        while len(list(path.glob("part-*.parquet"))) < parts:
            assert child.process.poll() is None
            if tap.waiting < CAPACITY // 2:
                fill(tap, 20, first=sent)
                sent += 20
        child.process.kill()
        child.process.wait()
    finally:
        child.close()
    recording = open_recording(path)
    found = topics(path)
    assert len(recording.parts) >= parts and found == [f"t/{n}" for n in range(len(found))]
    assert recording.manifest.ended is None
    assert recording.table(["seq"])["seq"].to_pylist() == list(range(recording.rows))
    assert len(list(path.glob(f"*{OPEN}"))) <= 1


def test_accepted_tells_who_it_is(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    tap.write(ACCEPTED, MQTT, 1, 7, b'{"client_id":"old","version":4}')
    tap.write(IN, MQTT, 0, 7, encode_packet(Publish("a", payload=b"1"), 4))
    tap.end()
    run_writer(open_ring(descriptor), RecordOptions(), tmp_path / "r", about=ABOUT, stop=lambda: None)
    rows = open_recording(tmp_path / "r").table().to_pylist()
    assert [(row["kind"], row["client_id"], row["version"], row["size"]) for row in rows] == [
        ("accepted", "old", 4, None), ("PUBLISH", "old", 4, 1)]


def test_a_full_disk_ends_it_with_a_note_and_keeps_the_parts(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    descriptor, tap = ring
    sent = 0

    def stop() -> str | None:
        nonlocal sent
        if tap.waiting < CAPACITY // 2:
            fill(tap, 100, first=sent, payload=os.urandom(2_000))
            sent += 100
        return None

    with small_disk(tmp_path / "disk", "2m") as disk:
        options = RecordOptions(payload="full", max_bytes=300_000, max_rows=200)
        manifest = run_writer(open_ring(descriptor), options, disk / "r", about=ABOUT, stop=stop)
        assert manifest.end == "disk full" and manifest.ended is not None
        recording = open_recording(disk / "r")
        assert recording.rows == manifest.rows > 0 and recording.manifest.end == "disk full"
        assert manifest.lost_entries == 0
        assert topics(disk / "r") == [f"t/{n}" for n in range(manifest.rows - 1)]


def test_the_last_rows_are_written_though_the_age_of_a_part_is_looked_at(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes while the thread that writes is busy, and behind a tick that it has not heard of yet."""
    looking, looked = threading.Event(), threading.Event()
    rotate = RecordingFiles.rotate

    def slow(files: RecordingFiles) -> None:
        looking.set()
        assert looked.wait(WAIT_S)
        rotate(files)

    monkeypatch.setattr(RecordingFiles, "rotate", slow)
    (tmp_path / "r").mkdir()
    options = RecordOptions()
    writer = RowsWriter(tmp_path / "r", new_manifest(options, ABOUT), options, rows_for(options))
    writer.tick()
    assert looking.wait(WAIT_S)
    writer.tick()
    writer.feed(entry(IN, 1, encode_packet(Connect(client_id="c"), 5)))
    ending = threading.Thread(target=writer.close, args=("stopped",))
    ending.start()
    while not writer._batches.full():
        time.sleep(0.001)
    looked.set()
    ending.join(WAIT_S)
    assert open_recording(tmp_path / "r").rows == 1


def test_how_large_a_recording_is_may_be_asked_while_a_part_is_closed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    close = pq.ParquetWriter.close

    def closing(parquet: pq.ParquetWriter) -> None:
        asked.append(files.bytes)
        close(parquet)
        asked.append(files.bytes)

    monkeypatch.setattr(pq.ParquetWriter, "close", closing)
    options = RecordOptions(cap_bytes=1 << 30)
    files = RecordingFiles(tmp_path, new_manifest(options, ABOUT), options)
    files.write(batch_of_rows([{"seq": 0, "time": 1, "connection": 1, "kind": "opened"}]))
    files.close("stopped")
    assert len(asked) == 2 and 0 < asked[0] == asked[1] < files.bytes == files.manifest.parts[0].bytes


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_was_lost_before_it_was_stopped_is_counted(
        tmp_path: Path, ring: tuple[int, Tap], goes_on: bool) -> None:
    """The ring is full, and no entry tells of what did not fit: the broker is busy, or was killed."""
    descriptor, tap = ring
    fill(tap, 20_000)
    lost = (tap.lost_entries, tap.lost_bytes)
    assert lost[0]
    reader = open_ring(descriptor)
    asked = 0

    def stop() -> str:
        nonlocal asked
        asked += 1
        if goes_on:         # there is room again, and it tells of the gap before the writer looks for it
            reader.release()
            tap.write(IN, MQTT, 0, 2, encode_packet(Connect(client_id="d"), 5))
        return "stopped"

    manifest = run_writer(reader, RecordOptions(), tmp_path / "r", about=ABOUT, stop=stop)
    assert asked == 1
    assert (manifest.lost_entries, manifest.lost_bytes) == lost
    kinds = open_recording(tmp_path / "r").table(["kind"])["kind"].to_pylist()
    assert kinds.count("lost") == 1


def test_a_disk_without_room_for_a_beginning_is_said_in_a_sentence(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        with pytest.raises(RecordingError, match="a recording cannot begin there: No space left on device"):
            run_writer(open_ring(ring[0]), RecordOptions(), disk / "r", about=ABOUT, stop=lambda: None)
        assert list((disk / "r").iterdir()) == []


@pytest.mark.parametrize("rows", [1, 300])
def test_a_directory_that_is_removed_ends_it(tmp_path: Path, ring: tuple[int, Tap], rows: int) -> None:
    """With rows that are in no part yet, or behind one that was closed."""
    descriptor, tap = ring
    asked = 0

    def stop() -> str | None:
        nonlocal asked
        asked += 1
        if asked == 1:
            fill(tap, rows)
            return None
        if tap.waiting or (rows > 100 and not list((tmp_path / "r").glob("part-*"))):
            return None
        (tmp_path / "r").rename(tmp_path / "gone")  # in one step: the writer renames its parts meanwhile
        return "stopped"

    manifest = run_writer(open_ring(descriptor), RecordOptions(max_rows=100), tmp_path / "r", about=ABOUT, stop=stop)
    assert manifest.end == "its directory is gone"
    assert not (tmp_path / "r").exists()


def test_all_files_are_their_owners_alone(tmp_path: Path, ring: tuple[int, Tap]) -> None:
    """Whatever the umask, and while it runs as well as afterwards."""
    descriptor, tap = ring
    modes: set[int] = set()

    def stop() -> str | None:
        modes.update(path.stat().st_mode & 0o777 for path in (tmp_path / "r").iterdir())
        return "stopped"

    fill(tap, 10)
    before = os.umask(0)
    try:
        run_writer(open_ring(descriptor), RecordOptions(), tmp_path / "r", about=ABOUT, stop=stop)
    finally:
        os.umask(before)
    modes.update(path.stat().st_mode & 0o777 for path in (tmp_path / "r").iterdir())
    assert modes == {0o600}
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700


def test_the_cap_is_not_passed_by_far(tmp_path: Path) -> None:
    """A writer that has more than enough to do, and batches that could be larger than the cap."""
    capacity, cap = 1 << 24, 4 << 20
    descriptor = make_ring(capacity)
    tap = Tap(descriptor, capacity)
    fill(tap, 1)

    def stop() -> None:
        while tap.waiting < capacity // 2:
            tap.write(IN, MQTT, 0, 1, encode_packet(Publish("t", payload=os.urandom(2_000)), 5))

    manifest = run_writer(open_ring(descriptor), RecordOptions(payload="full", cap_bytes=cap), tmp_path / "r",
                          about=ABOUT, stop=stop)
    os.close(descriptor)
    assert manifest.end == "cap reached"
    assert cap <= sum(part.bytes for part in manifest.parts) < 2 * cap
