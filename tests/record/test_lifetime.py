"""A recording from begin to end, broker and writer each a process: by configuration, attached, killed."""
from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.broker import Broker, BrokerDied
from kit.brokers import Brokers
from kit.client import Client
from kit.python import environment
from kit.standstill import stand_still
from kit.watch import metric, wait_until

from fluxmq.record.reading import Recording, RecordingError, open_recording

END_SECONDS = 60  # of a command; only a failing test waits for it

Start = Callable[..., Broker]
Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(brokers: Brokers, tmp_path: Path) -> Start:
    """start({"record.enabled": True}): a broker in memory with an admin socket, recordings in tmp_path/recordings."""
    def begin(settings: dict[str, object] | None = None) -> Broker:
        given: dict[str, object] = {
            "storage.type": "memory", "server.admin_socket": tmp_path / "admin.sock",
            "record.dir": tmp_path / "recordings", "record.payload": "full", "record.ring_size": "4MiB"}
        return brokers.start(Broker, given | (settings or {}))

    return begin


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Command]:
    """record("--dir", …): the command, attached to the broker of `start`."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str | Path, attach: bool = True) -> subprocess.Popen[str]:
        where = ("--attach", tmp_path / "admin.sock") if attach else ()
        command = [sys.executable, "-P", "-m", "fluxmq", "record", *map(str, (*where, *arguments))]
        running.append(subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True))
        return running[-1]

    yield begin
    for one in running:
        if one.poll() is None:
            one.kill()
        one.communicate()


class Delayed:
    """A socket that leads to the admin socket of `start`, for one request. The broker's answer waits for `answer`."""

    def __init__(self, directory: Path) -> None:
        self.path, self.answer = directory / "delayed.sock", threading.Event()
        self._sockets = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        self._sockets[0].bind(str(self.path))
        self._sockets[0].listen()
        self._sockets[1].connect(str(directory / "admin.sock"))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):      # __exit__
            client, broker = self._sockets[0].accept()[0], self._sockets[1]
            self._sockets.append(client)
            self._threads.append(threading.Thread(target=self._copy, args=(broker, client, self.answer)))
            self._threads[1].start()
            self._copy(client, broker)

    def _copy(self, source: socket.socket, to: socket.socket, when: threading.Event | None = None) -> None:
        if when is not None:
            when.wait()
        with contextlib.suppress(OSError):      # the other end has gone
            while data := source.recv(1 << 16):
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Delayed:
        return self

    def __exit__(self, *error: object) -> None:
        self.answer.set()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()


def recording(broker: Broker) -> bool:
    return metric(broker, "fluxmq_recording") == 1


def session(broker: Broker, name: str, payloads: list[bytes]) -> None:
    """A client that publishes to itself."""
    client = Client(broker.address)
    client.connect(name)
    client.subscribe("t", qos=1)
    for payload in payloads:
        client.publish("t", payload, 1)
        client.receive("t", payload)
    client.disconnect()


def recordings(directory: Path) -> list[Path]:
    """Those that have begun, in the order of their begin."""
    return sorted(found for found in directory.iterdir() if (found / "_manifest.json").exists())


def published(found: Recording, direction: str = "in") -> list[bytes]:
    rows = found.table(["kind", "direction", "payload"]).to_pylist()
    return [row["payload"] for row in rows if row["kind"] == "PUBLISH" and row["direction"] == direction]


def kinds(found: Recording) -> Counter[str]:
    return Counter(found.table(["kind"]).column("kind").to_pylist())


def writers(broker: Broker) -> list[int]:
    """The broker's children."""
    assert broker.process is not None
    found = []
    for task in Path(f"/proc/{broker.process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


def test_by_configuration_from_start_to_stop(start: Start, tmp_path: Path) -> None:
    broker = start({"record.enabled": True})
    payloads = [f"{number}".encode() * 50 for number in range(20)]
    session(broker, "one", payloads)
    client = Client(broker.address)
    client.connect("there at the end")
    assert recording(broker)
    wait_until(lambda: metric(broker, "fluxmq_record_bytes_total") > 2 * sum(map(len, payloads)))
    assert broker.terminate() == 0
    [directory] = recordings(tmp_path / "recordings")
    found = open_recording(directory)
    assert published(found) == published(found, "out") == payloads
    seen = kinds(found)
    assert (seen["opened"], seen["accepted"], seen["closed"]) == (2, 2, 2)
    assert seen["DISCONNECT"] == 2          # of the client, and of the broker that stops
    manifest = found.manifest
    assert (manifest.end, manifest.rows, manifest.lost_entries) == ("broker ended", found.rows, 0)
    assert manifest.ended is not None and len(manifest.config_digest) == 64
    assert stat.S_IMODE((tmp_path / "recordings").stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}


def test_a_writer_that_is_killed_is_replaced(start: Start, tmp_path: Path) -> None:
    broker = start({"record.enabled": True, "record.max_time": "200ms"})
    base = tmp_path / "recordings"
    session(broker, "before", [b"1"])

    def closed() -> bool:
        return any(b"1" in published(open_recording(directory)) for directory in recordings(base))

    wait_until(closed)
    [writer] = writers(broker)
    os.kill(writer, signal.SIGKILL)
    wait_until(lambda: metric(broker, "fluxmq_record_writer_restarts_total") == 1 and recording(broker))
    session(broker, "after", [b"2"])
    assert broker.terminate() == 0
    first, second = (open_recording(directory) for directory in recordings(base))
    assert published(first) == [b"1"]
    assert first.manifest.ended is None
    assert published(second) == [b"2"]
    assert second.manifest.end == "broker ended"
    assert "writer of the recording died" in broker.stderr()


def test_what_a_dead_writer_left_in_the_ring_is_counted_as_lost(start: Start, tmp_path: Path) -> None:
    broker = start({"record.enabled": True})
    [writer] = writers(broker)
    stand_still(writer)
    session(broker, "unread", [bytes(1000)] * 5)
    os.kill(writer, signal.SIGKILL)
    wait_until(lambda: metric(broker, "fluxmq_record_writer_restarts_total") == 1 and recording(broker))
    lost = metric(broker, "fluxmq_record_lost_bytes_total")
    assert lost > 10_000
    session(broker, "read", [b"x"])
    assert broker.terminate() == 0
    found = open_recording(recordings(tmp_path / "recordings")[-1])
    assert found.manifest.lost_bytes == lost
    assert kinds(found)["lost"] == 1


def test_a_broker_that_is_killed_leaves_a_whole_recording(start: Start, tmp_path: Path) -> None:
    """What the ring holds outlives the broker, and the writer takes it to the end."""
    broker = start({"record.enabled": True})
    session(broker, "one", [b"last words"])
    broker.kill()
    wait_until(lambda: recordings(tmp_path / "recordings"))     # it may not even have begun
    [directory] = recordings(tmp_path / "recordings")
    wait_until(lambda: open_recording(directory).manifest.ended is not None)
    found = open_recording(directory)
    assert published(found) == [b"last words"]
    assert found.manifest.end == "broker ended"


def test_the_cap_on_disk_ends_it_for_good(start: Start, tmp_path: Path) -> None:
    broker = start({"record.enabled": True, "record.max_disk": "100KiB", "record.max_size": "64KiB"})
    client = Client(broker.address)
    client.connect("writer")

    def full() -> bool:
        client.publish("t", os.urandom(50_000), 1)
        return not recording(broker)

    wait_until(full)
    client.expect_quiet()
    wait_until(lambda: "record.max_disk is reached" in broker.stderr())     # once the writer has gone
    assert writers(broker) == []
    assert broker.terminate() == 0
    [directory] = recordings(tmp_path / "recordings")
    assert open_recording(directory).manifest.end == "cap reached"
    again = start({"record.enabled": True, "record.max_disk": "100KiB"})
    assert not recording(again)
    assert "record.max_disk is used up" in again.stderr()


def test_a_directory_that_cannot_be_used_is_said_at_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerDied, match=r"recording cannot begin in .*Not a directory \(record.dir\)"):
        start({"record.enabled": True, "record.dir": tmp_path / "file" / "below"})


def test_no_broker_to_attach_to(record: Command, tmp_path: Path) -> None:
    """It names the option that this command has."""
    command = record("--dir", tmp_path / "dir")
    _, said = command.communicate(timeout=30)
    assert command.returncode == 1 and "no broker answers" in said and "--config FILE or --attach PATH" in said


def test_attached_until_it_is_interrupted(start: Start, record: Command, tmp_path: Path) -> None:
    broker = start()
    session(broker, "before", [b"0"])
    client = Client(broker.address)
    client.connect("there")
    client.subscribe("other/#")
    directory = tmp_path / "mine"
    command = record("--dir", directory, "--payload", "full", "--client", "on*", "--client", "there")
    wait_until(lambda: recording(broker))
    session(broker, "one", [b"1", b"2"])
    session(broker, "two", [b"3"])
    client.publish("other/x", b"4")
    client.receive("other/x")
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=END_SECONDS)
    assert (command.returncode, err) == (0, "")
    assert out.startswith(f"{directory}: ") and out.endswith(" rows in 1 files (stopped)\n")
    wait_until(lambda: not recording(broker))
    found = open_recording(directory)
    assert published(found) == [b"1", b"2", b"4"]
    assert found.manifest.end == "stopped"
    assert list(found.manifest.options["clients"]) == ["on*", "there"]
    accepted = [row for row in found.table(["kind", "client_id", "detail"]).to_pylist() if row["kind"] == "accepted"]
    assert '"other/#"' in next(row["detail"] for row in accepted if row["client_id"] == "there")
    session(broker, "later", [b"5"])


def test_a_second_one_is_refused(start: Start, record: Command, tmp_path: Path) -> None:
    broker = start()
    first = record("--dir", tmp_path / "first")
    wait_until(lambda: recording(broker))
    second = record("--dir", tmp_path / "second")
    _, err = second.communicate(timeout=END_SECONDS)
    assert second.returncode == 1
    assert "this broker is being recorded already" in err and "Traceback" not in err
    assert not (tmp_path / "second").exists()
    first.kill()                                # the broker notices that it is gone
    first.wait()
    wait_until(lambda: not recording(broker))
    third = record("--dir", tmp_path / "third", "--duration", "0.1")
    out, _ = third.communicate(timeout=END_SECONDS)
    assert third.returncode == 0 and "(stopped)" in out
    with pytest.raises(RecordingError):
        open_recording(tmp_path / "second")


def test_a_broker_that_stops_ends_the_attached_one(start: Start, record: Command, tmp_path: Path) -> None:
    broker = start()
    command = record("--dir", tmp_path / "mine")
    wait_until(lambda: recording(broker))
    client = Client(broker.address)
    client.connect("there")
    assert broker.terminate() == 0
    out, err = command.communicate(timeout=END_SECONDS)
    assert (command.returncode, err) == (0, "")
    assert "(broker ended)" in out
    found = open_recording(tmp_path / "mine")
    assert kinds(found)["closed"] == 1          # the goodbyes are in it
    rows = found.table(["kind", "direction"]).to_pylist()
    assert {"kind": "DISCONNECT", "direction": "out"} in rows


def test_a_broker_that_is_killed_ends_the_attached_one(start: Start, record: Command, tmp_path: Path) -> None:
    broker = start()
    command = record("--dir", tmp_path / "mine")
    wait_until(lambda: recording(broker))
    session(broker, "one", [b"1"])
    broker.kill()
    out, _ = command.communicate(timeout=END_SECONDS)
    assert command.returncode == 0 and "(broker ended)" in out
    assert kinds(open_recording(tmp_path / "mine"))["PUBLISH"] == 2


def test_the_configuration_says_where_and_what(start: Start, record: Command, tmp_path: Path) -> None:
    broker = start()
    file = tmp_path / "broker.yaml"
    file.write_text(f"server:\n  admin_socket: {tmp_path / 'admin.sock'}\n"
                    f"record:\n  dir: {tmp_path / 'there'}\n  payload: size\n  topics: [a/#]\n  sample: 50\n")
    command = record("--config", file, "--sample", "100", attach=False)
    wait_until(lambda: recording(broker))
    client = Client(broker.address)
    client.connect("c")
    client.publish("a/b", b"12345", 1)
    client.publish("b/a", b"1", 1)
    command.send_signal(signal.SIGTERM)
    out, err = command.communicate(timeout=END_SECONDS)
    assert (command.returncode, err) == (0, "") and out.endswith("(stopped)\n")
    [directory] = recordings(tmp_path / "there")
    rows = open_recording(directory).table(["kind", "topic", "payload", "digest", "size"]).to_pylist()
    assert [row for row in rows if row["kind"] == "PUBLISH"] == [
        {"kind": "PUBLISH", "topic": "a/b", "payload": None, "digest": None, "size": 5}]


def test_a_signal_before_the_answer_ends_the_recording_in_order(start: Start, record: Command, tmp_path: Path) -> None:
    """The broker records already, and the command does not know it yet."""
    broker = start()
    with Delayed(tmp_path) as way:
        command = record("--attach", way.path, "--dir", tmp_path / "mine", attach=False)
        wait_until(lambda: recording(broker))
        session(broker, "one", [b"1"])
        command.send_signal(signal.SIGINT)
        way.answer.set()
        out, err = command.communicate(timeout=END_SECONDS)
    assert (command.returncode, err) == (0, "") and out.endswith("(stopped)\n")
    assert kinds(open_recording(tmp_path / "mine"))["PUBLISH"] == 2
    wait_until(lambda: not recording(broker))


def test_a_second_signal_ends_a_command_that_gets_no_answer(start: Start, record: Command, tmp_path: Path) -> None:
    broker = start()
    with Delayed(tmp_path) as way:
        command = record("--attach", way.path, "--dir", tmp_path / "mine", attach=False)
        wait_until(lambda: recording(broker))

        def ended() -> bool:        # one that comes just before a system call takes effect after it, so many are sent
            command.send_signal(signal.SIGTERM)
            return command.poll() is not None

        wait_until(ended)
        assert command.returncode == -signal.SIGTERM
        wait_until(lambda: not recording(broker))
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(("arguments", "text"), [
    (("--duration", "soon"), "duration"), (("--max-size", "much"), "size"), (("--sample", "0"), "sample"),
    (("--topic", "a/#/b"), "'a/#/b' is no filter of topics"), (("--topic", "$share/g/a"), "is no filter of topics"),
    (("--client", ""), "a client id may not be empty"), (("import", "x.pcap", "y", "--mqtt-port", "0"), "mqtt-port"),
    (("--attach", "nowhere.sock"), "no broker answers at nowhere.sock")])
def test_mistakes_are_one_sentence(record: Command, arguments: tuple[str, ...], text: str) -> None:
    command = record(*arguments, attach=False)
    _, err = command.communicate(timeout=END_SECONDS)
    assert command.returncode != 0
    assert text in err and "Traceback" not in err
