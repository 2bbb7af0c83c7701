"""What is asked of a recording: the section `record`, the admin stream, the command's progress line."""
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kit.fake_queues import FakeQueues

from fluxmq.admin.socket import AdminSocket
from fluxmq.app import record_cli
from fluxmq.app.config import InvalidConfig, load
from fluxmq.engine.ports.record import RecordRefused
from fluxmq.model.record import Record
from fluxmq.record.options import Progress, RecordOptions
from fluxmq.record.supervisor import disk_used, recording_name, recording_options

# ── the configuration ────────────────────────────────────────────────────────────────────────────────────────

# Keys that are the broker's own business, and shown by test_lifetime.py.
OWN = {"enabled", "dir", "max_disk", "ring_size"}


@pytest.mark.parametrize(("key", "value", "option", "wanted"), [
    ("topics", ("a/#",), "topics", ("a/#",)), ("clients", ("x*",), "clients", ("x*",)),
    ("protocols", ("mqtt",), "protocols", ("mqtt",)), ("sample", 25, "sample", 0.25),
    ("payload", "size", "payload", "size"), ("max_rows", 7, "max_rows", 7), ("max_size", 1 << 20, "max_bytes", 1 << 20),
    ("max_time", 2.5, "max_seconds", 2.5)])
def test_every_key_reaches_the_writer(key: str, value: object, option: str, wanted: object) -> None:
    options = recording_options(msgspec.structs.replace(Record(), **{key: value}))
    assert getattr(options, option) == wanted
    usual = recording_options(Record())
    assert msgspec.structs.replace(options, **{option: getattr(usual, option)}) == usual
    assert recording_options(Record(), 9).cap_bytes == 9


def test_no_key_is_left_out() -> None:
    reached = {"topics", "clients", "protocols", "sample", "payload", "max_rows", "max_size", "max_time"}
    assert set(Record.__struct_fields__) == OWN | reached


def test_options_travel_as_json() -> None:
    options = RecordOptions(topics=("a/#",), protocols=("amqp091",), sample=0.5)
    assert msgspec.json.decode(msgspec.json.encode(options), type=RecordOptions) == options


@pytest.mark.parametrize(("setting", "part"), [
    ("record.protocols=[http]", "'http' is no protocol; there are: mqtt, amqp091"),
    ("record.topics=[a/#/b]", "'a/#/b' is no filter of topics"),
    ("record.topics=[$share/g/a]", "is no filter of topics"),
    ("record.clients=['']", "a client id may not be empty"),
    ("record.sample=0", "1 to 100"), ("record.ring_size=1MiB", "4MiB"), ("record.payload=none", "full, hash, size"),
    (f"record.dir={__file__}", "is not a directory")])
def test_what_cannot_be_is_refused(setting: str, part: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(sets=[setting])
    assert part in str(caught.value)


def test_without_pyarrow_recording_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxmq.app.config_checks.importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidConfig, match=r"pip install '\.\[record\]'"):
        load(sets=["record.enabled=true"])
    assert not load(sets=["record.enabled=false"])[0].record.enabled


def test_directories_are_named_by_time_and_weighed(tmp_path: Path) -> None:
    assert recording_name(0) == "19700101T000000.000000Z"
    assert recording_name(1_763_731_440_123_456_789) < recording_name(1_763_731_440_124_456_789)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "part").write_bytes(bytes(1000))
    (tmp_path / "manifest").write_bytes(bytes(10))
    assert disk_used(tmp_path) == 1010


# ── the stream ───────────────────────────────────────────────────────────────────────────────────────────────


class Attached:
    def __init__(self, view: bool = False) -> None:
        self.running = True
        self.view = view
        self.ended = asyncio.Event()

    @property
    def about(self) -> dict[str, Any]:
        return {"ring": "/proc/1/fd/9"}

    def counters(self) -> dict[str, int] | None:
        return {"received": 7} if self.view else None

    def end(self) -> None:
        self.running = False
        self.ended.set()


class Recorders:
    """Gives one recording at a time. viewers: who asked for a view."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.recordings: list[Attached] = []
        self.viewers: list[str] = []

    async def attach(self, ring_bytes: int, *, view: bool = False, who: str = "") -> Attached:
        if self.recordings and self.recordings[-1].running:
            raise RecordRefused("conflict", "one runs", "wait")
        self.asked.append(ring_bytes)
        self.viewers += [who] if view else []
        self.recordings.append(Attached(view))
        return self.recordings[-1]


async def post(path: Path, body: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"POST /api/v1/record HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    return reader, writer, head.split(b"\r\n")[0]


def served(tmp_path: Path, scenario: Callable[[Path, Recorders], Any], **bounds: Any) -> None:
    async def run() -> None:
        recorders, path = Recorders(), tmp_path / "admin.sock"
        server = AdminSocket(path, FakeQueues(), recorders, **bounds)
        await server.start()
        try:
            async with asyncio.timeout(30):
                await scenario(path, recorders)
        finally:
            await server.stop()
        assert not any(recording.running for recording in recorders.recordings)

    asyncio.run(run())


def test_a_view_is_asked_for_by_name_and_told_the_counters(tmp_path: Path) -> None:
    async def scenario(path: Path, recorders: Recorders) -> None:
        reader, writer, status = await post(path, b'{"view": true, "who": "ann", "ring_size": 65536}')
        assert status == b"HTTP/1.1 200 "
        assert recorders.viewers == ["ann"]
        await reader.readuntil(b"fd/9\"}\n")
        await reader.readuntil(b'{"received":7}\n')
        await reader.readuntil(b'{"received":7}\n')
        writer.close()
        await recorders.recordings[0].ended.wait()

    served(tmp_path, scenario)


def test_the_recording_lasts_as_long_as_the_stream(tmp_path: Path) -> None:
    async def scenario(path: Path, recorders: Recorders) -> None:
        reader, writer, status = await post(path, b'{"ring_size": 8388608}')
        assert status == b"HTTP/1.1 200 "
        line = await reader.readuntil(b"}\n")
        assert json.loads(line[line.index(b"{"):]) == {"ring": "/proc/1/fd/9"}
        assert recorders.asked == [8 << 20]
        refused = await post(path)
        assert refused[2].startswith(b"HTTP/1.1 409")
        refused[1].close()
        writer.close()
        await recorders.recordings[0].ended.wait()
        reader, writer, _ = await post(path)
        assert recorders.asked == [8 << 20, 0]
        recorders.recordings[1].end()                   # by the broker: the stream ends, too
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        left, writer, _ = await post(path)              # what still runs ends with the server
        assert await left.readuntil(b"}\n")

    served(tmp_path, scenario)


def test_a_stream_that_finds_no_place_ends_its_recording(tmp_path: Path) -> None:
    async def scenario(path: Path, recorders: Recorders) -> None:
        _, writer, status = await post(path)
        assert status.startswith(b"HTTP/1.1 503")
        assert recorders.recordings[0].ended.is_set()
        writer.close()

    served(tmp_path, scenario, connections_max=1)       # half of which are streams


@pytest.mark.parametrize("body", [b"[]", b'{"ring": 1}', b'{"ring_size": "4MiB"}', b"{"])
def test_a_wrong_body_is_told(tmp_path: Path, body: bytes) -> None:
    async def scenario(path: Path, recorders: Recorders) -> None:
        _, writer, status = await post(path, body)
        assert status.startswith(b"HTTP/1.1 400")
        assert recorders.recordings == []
        writer.close()

    served(tmp_path, scenario)


# ── the progress line ────────────────────────────────────────────────────────────────────────────────────────


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                               ) -> None:
    progress = Progress(rows=1234, bytes=5 << 20, lost_entries=2)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    record_cli._Shown(None)(progress)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown = record_cli._Shown(60.0)
    shown(progress)
    shown.done()
    err = capsys.readouterr().err
    assert "0 of 60 s: 1234 rows, 5.0 MiB, 2 entries lost" in err
    assert err.endswith("\r\x1b[K")
