"""Brokers that run on this machine are found without their configuration, and waited for while they start
(fluxmq/app/broker_notes.py, running.py)."""
from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from kit.broker import Broker
from kit.python import environment
from kit.watch import wait_until

from fluxmq.app import broker_notes
from fluxmq.app import running as app_running
from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.app.broker_notes import Note, running
from fluxmq.app.cli import cli
from fluxmq.app.running import broker_sockets


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where notes of this test are; no other place has any."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(broker_notes, "RUN", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "fluxmq"


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A socket that takes connections: listen("a") → its path."""
    opened: list[socket.socket] = []

    def open_(name: str) -> Path:
        opened.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        opened[-1].bind(str(tmp_path / name))
        opened[-1].listen()
        return tmp_path / name

    yield open_
    for one in opened:
        one.close()


def note(place: Path, pid: int, node: str, path: Path) -> Path:
    place.mkdir(exist_ok=True, parents=True, mode=0o755)
    file = place / f"{pid}.json"
    file.write_text(json.dumps({"pid": pid, "node": node, "socket": str(path)}))
    return file


def found(*nodes: str, given: tuple[Path, ...] = (), file: Path | None = None) -> list[Path]:
    return broker_sockets(given, file, nodes, "--socket")


def test_a_note_lives_as_long_as_the_broker(place: Path, listen: Callable[[str], Path]) -> None:
    path = listen("a")
    mine = Note("node-1", path)
    mine.serves()
    assert [one[:4] for one in running()] == [(os.getpid(), "node-1", path, "")] and found() == [path]
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    mine.remove()
    assert running() == [] and not list(place.iterdir())
    mine.remove()
    mine.stops("it ends")       # too late: nobody is to find it
    assert not list(place.iterdir())


def test_a_note_of_a_broker_that_was_killed_goes(place: Path, tmp_path: Path) -> None:
    dead = note(place, 7, "", tmp_path / "nobody")
    assert running() == [] and not dead.exists()


def test_what_is_no_note_is_left(place: Path, listen: Callable[[str], Path]) -> None:
    note(place, 7, "", listen("a"))
    for number, text in enumerate(("", "[]", "{}", '{"pid": "x", "node": 1, "socket": 2}', "\0")):
        (place / f"wrong-{number}.json").write_text(text)
    assert len(running()) == 1 and len(list(place.iterdir())) == 6


def test_one_is_found_and_of_several_one_is_named(place: Path, listen: Callable[[str], Path]) -> None:
    paths = [listen(name) for name in "abc"]
    note(place, 11, "node-1", paths[0])
    assert found() == [paths[0]]
    note(place, 12, "node-2", paths[1])
    note(place, 13, "", paths[2])
    with pytest.raises(AdminError, match=r"^3 brokers run here: 13 \(.*/c\); node-1 \(process 11, .*; node-2 .*"
                                         r"\(say which by --node, --socket PATH or --config FILE\)$"):
        found()
    assert found("node-2") == [paths[1]] and found("13", "node-1") == [paths[2], paths[0]]
    with pytest.raises(AdminError, match=r"no broker of the name node-3 runs here: 13 .*--config FILE finds one"):
        found("node-3")
    note(place, 14, "node-1", listen("d"))
    with pytest.raises(AdminError, match=r"2 brokers here have the name node-1: .*process 11, .*process 14, .*"
                                         r"\(give the process id\)"):
        found("node-1")
    assert found("14")[0].name == "d"


def test_what_is_given_counts_before_what_runs(place: Path, listen: Callable[[str], Path], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    note(place, 11, "node-1", listen("a"))
    assert found(given=(tmp_path / "b",)) == [tmp_path / "b"]
    file = tmp_path / "fluxmq.yaml"
    file.write_text("storage:\n  dir: elsewhere\n")
    assert found(file=file) == [Path("elsewhere/admin.sock")]
    for more in ({"given": (tmp_path / "b",)}, {"file": file}):
        with pytest.raises(click.UsageError, match="--node says where the broker is, and so does --"):
            found("node-1", **more)
    monkeypatch.setenv("FLUXMQ__STORAGE__DIR", "of-the-environment")
    assert found() == [Path("of-the-environment/admin.sock")]
    monkeypatch.delenv("FLUXMQ__STORAGE__DIR")
    default = found(file=Path(os.devnull))[0]
    assert found() == [tmp_path / "a"]      # nothing is at `default`
    default.parent.mkdir(parents=True)
    default.touch()
    assert found() == [default]


def test_a_directory_where_others_write_is_no_place(place: Path, listen: Callable[[str], Path]) -> None:
    one = note(place, 11, "node-1", listen("a"))
    place.chmod(0o777)
    assert running() == [] and one.exists()
    mine = Note("node-2", listen("b"))
    mine.serves()
    assert not (place / f"{os.getpid()}.json").exists() and found()[0].name == "b"      # it is where temporary files go
    mine.remove()
    place.chmod(0o755)
    place.rename(place.with_name("real"))
    place.symlink_to(place.with_name("real"))       # lstat: somebody else may have made it
    assert running() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a directory to another user")
def test_a_service_is_found_by_root_where_root_made_its_place(tmp_path: Path, listen: Callable[[str], Path]) -> None:
    service = tmp_path / "run" / "fluxmq"
    note(service, 11, "", listen("a"))
    os.chown(service, 12345, 12345)
    assert [one.pid for one in running()] == [11]
    (tmp_path / "run").chmod(0o777)
    assert running() == []
    (tmp_path / "run").chmod(0o755)
    os.chown(tmp_path / "run", 12345, 12345)
    assert running() == []


def test_without_a_place_a_broker_runs_all_the_same(tmp_path: Path, listen: Callable[[str], Path],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has not logged in, where /tmp is another's, too."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.devnull)
    monkeypatch.setenv("TMPDIR", os.devnull)
    one = Note("node-1", listen("a"))
    one.serves()
    assert running() == []
    one.remove()


def test_commands_find_a_broker_that_runs(start_broker: Callable[..., Broker], place: Path) -> None:
    def said(*words: str) -> Any:
        done = CliRunner().invoke(cli, list(words), standalone_mode=False)
        return done.exception or done.output

    assert "no broker answers at " in str(said("queue", "list"))
    first = start_broker({"server.admin_socket": str(place.with_name("first.sock"))})
    assert said("queue", "list", "--json").startswith("{")
    second = start_broker({"server.admin_socket": str(place.with_name("second.sock"))})
    assert "2 brokers run here" in str(said("queue", "list"))
    assert said("queue", "list", "--json", "--node", str(second.process.pid)).startswith("{")
    first.kill()
    assert said("queue", "list", "--json").startswith("{")
    second.stop()
    assert "no broker answers at " in str(said("queue", "list")) and not list(place.iterdir())


# ── a broker that starts, or stops ───────────────────────────────────────────────────────────────────────────


class Clock:
    """Time that goes on when somebody sleeps. then: what happens at which second."""

    def __init__(self, then: dict[float, Callable[[], object]] | None = None) -> None:
        self.now, self.then = 0.0, dict(then or {})

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for due in [at for at in self.then if at <= self.now]:
            self.then.pop(due)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(app_running, "time", made)
    return made


def answer_of(path: Path) -> str:
    """What a command that finds the broker says."""
    with pytest.raises(AdminError) as raised:
        AdminClient(found(given=(path,))[0]).ask("GET", "queues")
    return str(raised.value)


def test_a_command_waits_for_a_broker_that_starts(place: Path, tmp_path: Path, listen: Callable[[str], Path],
                                                  clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    mine = Note("node-1", tmp_path / "a")
    mine.starts("it recovers its state from disk")
    assert str(running()[0]) == f"node-1 (process {os.getpid()}, {tmp_path / 'a'}, starting)"
    clock.then = {5.0: lambda: listen("a")}
    assert found("node-1") == found() == [tmp_path / "a"] and clock.now == pytest.approx(5.0, abs=0.2)
    assert capsys.readouterr().err == (f"the broker at {tmp_path / 'a'} (process {os.getpid()}) is starting: it "
                                       "recovers its state from disk; waiting (Ctrl-C ends this)\n")
    assert clock.now < app_running.START_S and found(given=(tmp_path / "a",)) and capsys.readouterr().err == ""


def test_the_wait_ends_with_what_the_broker_does(place: Path, tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    mine = Note("", tmp_path / "a")
    mine.starts("it opens its storage")
    assert answer_of(tmp_path / "link" / "a") == (
        f"the broker at {tmp_path / 'link' / 'a'} (process {os.getpid()}) is starting: it opens its storage "
        "(try again; its log may say more)")
    assert clock.now == pytest.approx(app_running.START_S, abs=0.2)
    mine.serves()
    mine.starts("it opens its storage")
    assert "is joining its cluster again: it opens its storage (try again" in answer_of(tmp_path / "a")
    # It is stopped meanwhile: there is nothing to wait for.
    clock.now, clock.then = 0.0, {2.0: lambda: mine.stops("it writes")}
    assert answer_of(tmp_path / "a").endswith("is stopping: it writes (its log may say more)")
    assert clock.now == pytest.approx(2.0, abs=0.2)
    clock.now = 0.0
    assert "is stopping" in answer_of(tmp_path / "a") and clock.now == 0.0
    mine.remove()
    assert answer_of(tmp_path / "a").startswith("no broker answers at ")


def test_one_that_stops_is_in_nobody_s_way(place: Path, tmp_path: Path, listen: Callable[[str], Path]) -> None:
    Note("", tmp_path / "a").stops("it ends")
    assert found() == [tmp_path / "a"]      # it says so itself
    note(place, 7, "", listen("b"))
    assert found() == [tmp_path / "b"]


def test_the_broker_of_this_directory_is_found_while_it_starts(place: Path, tmp_path: Path, clock: Clock,
                                                              listen: Callable[[str], Path]) -> None:
    default = found(file=Path(os.devnull))[0]
    note(place, 7, "", listen("a"))
    Note("", default).starts()
    assert found() == [default]


def test_nobody_waits_for_a_process_that_was_killed(place: Path, tmp_path: Path, clock: Clock) -> None:
    """Whether its number belongs to another process now, or to nobody, or its end has not been asked for."""
    Note("", tmp_path / "a").starts()
    mine = place / f"{os.getpid()}.json"
    about = json.loads(mine.read_text())
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    for changed in ({"began": about["began"] - 1}, {"began": 0}, {"pid": ended.pid}, {"pid": 1 << 30}):
        mine.write_text(json.dumps(about | changed))
        assert answer_of(tmp_path / "a").startswith("no broker answers at ") and clock.now == 0.0, changed
        assert running() == [] and not mine.exists()
    ended.wait()


def test_of_two_with_one_configuration_the_first_speaks(place: Path, tmp_path: Path, clock: Clock,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is about to be refused."""
    began = {11: 200, 12: 100}
    monkeypatch.setattr(broker_notes, "_began", lambda pid: began.get(pid, 0))
    for pid in began:
        about = {"pid": pid, "began": began[pid], "node": "", "socket": str(tmp_path / "a"), "state": "starting"}
        note(place, pid, "", tmp_path / "a").write_text(json.dumps(about | {"doing": f"it is {pid}"}))
    assert "is starting: it is 12 (" in answer_of(tmp_path / "a")
    assert [one.pid for one in running()] == [12]
    del began[12]
    assert "is starting: it is 11 (" in answer_of(tmp_path / "a")


def test_a_start_that_takes_long_is_told(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From before it has its storage until it serves; and a second process of the same configuration, which is refused,
    changes nothing of that. The access list does not end until it is written."""
    rules = tmp_path / "rules"
    os.mkfifo(rules)
    data = tmp_path / "data"
    words = [sys.executable, "-m", "fluxmq", "run", "--set", f"storage.dir={data}",
             *(word for key, value in {"mqtt.tcp.plain.addr": "127.0.0.1:0", "mqtt.websocket.plain.addr": "",
                                       "amqp091.plain.addr": "", "health_enabled": "false"}.items()
               for word in ("--set", f"server.{key}={value}"))]
    monkeypatch.setattr(app_running, "START_S", 0.0)
    with (tmp_path / "log").open("w") as log, subprocess.Popen(
            [*words, "--set", f"auth.acl_file={rules}"], stdout=log, stderr=log, env=environment()) as first:
        try:
            wait_until(lambda: "it opens its storage" in answer_of(data / "admin.sock"))
            second = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
            assert second.returncode and "in use by another broker" in second.stderr
            assert f"(process {first.pid}) is starting: it opens its storage" in answer_of(data / "admin.sock")
            assert [one.pid for one in running()] == [first.pid]
            rules.write_text("version: 1\nrules: []\n")
            wait_until(lambda: not running()[0].state)
            assert AdminClient(found()[0]).ask("GET", "queues")["queues"] == []
        finally:
            first.kill()
