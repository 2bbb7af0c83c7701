"""What a try-out says when it cannot be had: one clear sentence, before anything runs, and nothing is left."""
from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.command import run
from kit.etcd import etcd_binary
from kit.python import environment
from kit.smalldisk import small_disk
from kit.tryout import Tryout, processes_of
from kit.watch import wait_until

from fluxmq.app import cluster_checks
from fluxmq.tryout import place, ports
from fluxmq.tryout.asking import TryoutError
from fluxmq.tryout.nodes import Node, Nodes
from fluxmq.tryout.place import Place
from fluxmq.tryout.ports import HeldPorts


@pytest.fixture(autouse=True)
def temporary(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Try-outs of this process are made in `base`, and none is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    yield
    assert not list(base.glob("fluxmq-tryout-*"))


def refused(*words: str, status: int = 1) -> str:
    """What `fluxmq tryout WORDS…` says, in one line."""
    code, said = run("tryout", *words)
    assert code == status, said
    assert said.count("\n") == 1, said
    return said


def test_without_etcd(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setenv("PATH", str(base))
    assert "apt-get install etcd-server" in refused() and "--etcd" in refused()
    assert "nowhere" in refused("--etcd", "nowhere")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_checks, "_MODULES", ("grpc", "no_such_module"))
    said = refused()
    assert "no_such_module cannot be found" in said and "'.[cluster]'" in said


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    etcd_binary()
    monkeypatch.setattr("fluxmq.app.tryout_cli.find_spec", lambda name: None)
    assert "'.[record]'" in refused("--record", str(base / "recording"))


def test_a_recording_that_is_there(base: Path) -> None:
    pytest.importorskip("pyarrow")
    etcd_binary()
    (base / "old").mkdir()
    (base / "old" / "file").touch()
    assert "something in it" in refused("--record", str(base / "old"))


def test_repartition_has_a_status_of_its_own() -> None:
    assert "later version" in refused("--repartition-smoke", status=8)
    assert json.loads(refused("--repartition-smoke", "--json", status=8))["ok"] is None


def test_too_few_nodes_for_a_failover() -> None:
    code, said = run("tryout", "--nodes", "2", "--failover-verify")
    assert code == 2 and "--nodes 3" in said


@pytest.mark.parametrize(("words", "why"), [
    (["--rounds", "4"], "--rounds says how often --failover-verify kills"),
    (["--viz", "--json"], "--viz takes the terminal"),
    (["--viz", "--failover-verify"], "--viz takes the terminal"),
])
def test_options_that_do_not_go_together(words: list[str], why: str) -> None:
    status, said = run("tryout", *words)
    assert (status, why in said) == (2, True), said


def test_a_directory_that_is_used(base: Path) -> None:
    etcd_binary()
    used = base / "used"
    used.mkdir()
    (used / "letter").touch()
    assert "has something in it" in refused("--dir", str(used))
    assert (used / "letter").exists()
    assert "too long a name" in refused("--dir", str(base / ("x" * 90)))
    assert not (base / ("x" * 90)).exists()
    blocked = base / "file"
    blocked.touch()
    assert "Not a directory" in refused("--dir", str(blocked / "below"))


def test_a_disk_without_room(base: Path) -> None:
    etcd_binary()
    with small_disk(base / "small") as small:
        said = refused("--dir", str(small / "tryout"))
        assert "MiB free" in said and "--dir" in said
        assert list(small.iterdir()) == []


def test_a_disk_that_fills_up(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a node starts: the sentence says so, and has its last words."""
    etcd = etcd_binary()
    with small_disk(base / "small", "40m") as small:
        monkeypatch.setattr(place, "NODE_BYTES", 0)
        where = Place(small / "tryout", 1)
        nodes = Nodes(where.path, 1, etcd, lambda line: None)
        try:
            with pytest.raises(TryoutError, match="is full"):
                asyncio.run(nodes.start())
        finally:
            nodes.end()
            where.remove()
        assert not processes_of(small) and list(small.iterdir()) == []


def test_no_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(ports, "_candidates", lambda: iter([taken.getsockname()[1]]))
        with pytest.raises(TryoutError, match="no free port"):
            HeldPorts(("mqtt",))


def test_ports_are_held_until_they_are_needed() -> None:
    held = HeldPorts(("mqtt", "amqp"))
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", held.numbers["mqtt"]))
    held.release()
    with socket.socket() as node:
        node.bind(("127.0.0.1", held.numbers["mqtt"]))
    held.hold_again()
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", held.numbers["amqp"]))
    held.release()


def test_a_port_that_was_taken_meanwhile(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ports are tried."""
    etcd = etcd_binary()
    said: list[str] = []
    thieves: list[socket.socket] = []
    start = Node.start

    def stolen(node: Node) -> None:
        node.ports.release()
        if not thieves:
            thieves.append(socket.create_server(("127.0.0.1", node.ports.numbers["amqp"])))
        start(node)

    monkeypatch.setattr(Node, "start", stolen)
    where = Place(None, 1)
    nodes = Nodes(where.path, 1, etcd, said.append)
    try:
        asyncio.run(nodes.start())
        assert [node.state for node in nodes] == ["up"]
        assert next(iter(nodes)).ports.numbers["amqp"] != thieves[0].getsockname()[1]
    finally:
        thieves[0].close()
        nodes.end()
        where.remove()
    assert any("another program has taken one of its ports" in line for line in said)
    assert not processes_of(base)


def test_commands_without_a_try_out(base: Path) -> None:
    assert "no try-out runs here" in refused("status")
    assert "no try-out answers" in refused("kill", "node-1", "--dir", str(base))


def test_a_directory_that_lives_is_not_swept(base: Path) -> None:
    first = Place(None, 0)
    assert place.running() == [first.path]
    second = Place(None, 0)
    assert sorted(place.running()) == sorted([first.path, second.path])
    first.remove()
    assert place.running() == [second.path]
    left = base / "fluxmq-tryout-left"
    left.mkdir()
    (left / place.LOCK).touch()
    other = base / "fluxmq-tryout-foreign"       # without a lock: not ours
    other.mkdir()
    third = Place(None, 0)
    assert not left.exists() and other.exists()
    for one in (second, third):
        one.remove()
    shutil.rmtree(other)


def test_how_many_vote(base: Path) -> None:
    for count, voters in ((1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)):
        nodes = Nodes(base, count, "etcd", lambda line: None)
        assert nodes.voters == voters
        nodes.end()


def test_without_hold_it_is_checked_and_ends(base: Path) -> None:
    """As people see it."""
    etcd_binary()
    done = subprocess.run([sys.executable, "-m", "fluxmq", "tryout", "--nodes", "1"], env=environment(TMPDIR=str(base)),
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 node serves" in done.stdout and "That is all, and it ends. Add --hold to keep it running" in done.stdout
    assert "127.0.0.1" not in done.stdout and "fluxmq " not in done.stdout      # nothing to paste: it has gone
    assert "every node serves MQTT and AMQP" in done.stderr and not processes_of(base)


def test_a_recording(base: Path, tmp_path: Path) -> None:
    """Of all nodes, also if they are ended by a signal."""
    pytest.importorskip("pyarrow")
    recording = tmp_path / "recording"
    with Tryout(base, "--nodes", "2", "--hold", "--record", str(recording)) as tryout:
        assert tryout.up["clients"]
        found = [recording / f"node=node-{number}" for number in (1, 2)]

        def rows() -> bool:
            clients = tryout.status()["clients"]
            return all(one["confirmed"] or one["received"] for one in clients) and all(map(Path.exists, found))

        wait_until(rows, 60.0)
        # A node that was killed is recorded again when it is back.
        assert tryout.command("kill", "node-2")[0] == 0
        assert tryout.command("restart", "node-2")[0] == 0
        again = recording / "node=node-2.2"
        wait_until(again.exists, 60.0)
        assert tryout.end() == 0
    code, said = run("record", "show", str(recording))
    assert code == 0, said
    assert said.count(" node-1: 2") == 1 and said.count("0 entries lost, stopped") == 2, said
    assert said.count(" node-2: 2") == 2 and "broker ended" in said and f"stopped, {again}" in said, said


@pytest.mark.parametrize(("outputs", "status"), [
    ("> /dev/full", 1), ("2>&1 >/dev/null | head -1 >&2", 0), (">&- 2>/dev/null", 0)])
def test_outputs_that_take_nothing(base: Path, outputs: str, status: int) -> None:
    """It ends with everything, or goes on; no traceback."""
    etcd_binary()
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {sys.executable} -m fluxmq tryout --nodes 1 {outputs}"],
                          env=environment(TMPDIR=str(base)), capture_output=True, text=True, check=False)
    assert done.returncode == status and "Traceback" not in done.stderr
    assert ("standard output: No space left on device" in done.stderr) == (status == 1)
    assert not processes_of(base) and not list(base.iterdir())
