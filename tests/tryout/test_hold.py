"""A try-out that is held: what it offers while it runs, what its commands do, and that it leaves nothing."""
from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kit.tryout import Tryout, lives, processes_of
from kit.watch import wait_until

from fluxmq.app import tryout_cli
from fluxmq.tryout.asking import TryoutError
from fluxmq.tryout.control import ControlClient

SECONDS = 60.0


def states(tryout: Tryout) -> dict[str, str]:
    return {node["node"]: node["state"] for node in tryout.status()["nodes"]}


def client(control: ControlClient, name: str) -> dict[str, Any]:
    return next(one for one in control.clients() if one["client"] == name)


def grows(control: ControlClient, name: str, what: str, by: int = 1) -> None:
    """Waits until a count of a client has grown."""
    goal = client(control, name)[what] + by
    wait_until(lambda: client(control, name)[what] >= goal, SECONDS)


@pytest.mark.timeout(300)
def test_three_nodes_their_traffic_and_their_faults(base: Path) -> None:
    with Tryout(base, "--nodes", "3", "--hold") as tryout:
        nodes = {node["node"]: node for node in tryout.up["nodes"]}
        assert list(nodes) == ["node-1", "node-2", "node-3"]
        assert {node["state"] for node in nodes.values()} == {"up"}
        assert len({node[name] for node in nodes.values() for name in ("mqtt", "amqp", "websocket", "health")}) == 12
        page = tryout_cli.as_page(tryout.up)
        assert all(node["mqtt"] in page and node["amqp"] in page and node["health"] in page for node in nodes.values())
        assert f"kill -9 {nodes['node-3']['pid']}" in page and nodes["node-1"]["config"] in page
        for node in nodes.values():
            with urllib.request.urlopen(node["cluster"], timeout=SECONDS) as answer:
                assert b'"state":"serving"' in answer.read()
        with ControlClient(tryout.directory / "control.sock") as control:
            for name in (one["client"] for one in control.clients()):
                grows(control, name, "confirmed" if "-pub-" in name else "settled")
            steer(control)
            # A node that is killed takes its member of etcd with it, and comes back.
            pids = nodes["node-2"]["pid"], nodes["node-2"]["etcd_pid"]
            assert all(map(lives, pids))
            assert tryout.command("kill", "node-2") == (0, "node-2 is killed\n")
            assert states(tryout) == {"node-1": "up", "node-2": "down", "node-3": "up"}
            assert not any(map(lives, pids))
            assert tryout.command("kill", "2")[0] == 1
            assert tryout.command("restart", "node-2") == (0, "node-2 serves\n")
            grows(control, "mqtt-pub-2", "confirmed")
        # So does one that somebody else kills.
        os.kill(nodes["node-3"]["pid"], signal.SIGKILL)
        wait_until(lambda: states(tryout)["node-3"] == "down", SECONDS)
        assert tryout.command("stop", "1") == (0, "node-1 hangs\n")
        assert states(tryout)["node-1"] == "stopped"
        assert tryout.end(signal.SIGINT) == 0


def steer(control: ControlClient) -> None:
    """Every order about the demo traffic does what it says."""
    assert control.change_rate(0.5) == 10.0
    assert control.confirms() is False and control.confirms(True) is True
    assert control.keyed() is False and control.keyed(True) is True
    control.pause_client("amqp-pub-1")
    assert client(control, "amqp-pub-1")["state"] == "paused"
    control.resume_client("amqp-pub-1")
    grows(control, "amqp-pub-1", "published")
    control.kill_client("mqtt-sub-1")
    assert client(control, "mqtt-sub-1")["state"] == "killed"
    control.restart_client("mqtt-sub-1")
    for consumer in ("mqtt-sub-1", "amqp-sub-1"):
        assert control.nack_next(consumer) == consumer
        wait_until(lambda consumer=consumer: client(control, consumer)["returned"] == 1, SECONDS)
    assert control.nack_next().split("-")[1] == "sub"
    for wrong in (lambda: control.repartition("orders", 8), lambda: control.ask("dance"), lambda: control.ask("kill"),
                  lambda: control.kill_node("node-9"), lambda: control.pause_client("nobody"),
                  lambda: control.nack_next("mqtt-pub-1"), lambda: control.ask("rate", rate="much"),
                  lambda: control.ask("rate"), lambda: control.change_rate(0)):
        with pytest.raises(TryoutError):
            wrong()
    assert control.status()["traffic"] == {"rate": 10.0, "confirms": True, "keyed": True}


def test_two_beside_each_other(base: Path) -> None:
    """A variable that configures brokers is not for these."""
    elsewhere = {"FLUXMQ__SERVER__HEALTH_ADDR": "203.0.113.1:1"}
    with Tryout(
            base, "--nodes", "1", "--hold", environ=elsewhere) as one, Tryout(base, "--nodes", "1", "--hold") as other:
        places = one.up["dir"], other.up["dir"]
        # What is printed can be pasted: the second one knew that it is not alone.
        page = tryout_cli.as_page(other.up)
        assert f"fluxmq tryout status --dir {places[1]}" in page and f"fluxmq viz --dir {places[1]}" in page
        code, said = one.command("status")
        assert code == 1 and all(place in said for place in places)
        code, said = one.command("status", "--dir", places[0])
        assert code == 0 and "mqtt-pub-1" in said
        assert one.command("end", "--dir", places[1])[0] == 0
        assert other.process.wait(SECONDS) == 0
        assert not Path(places[1]).exists() and not processes_of(Path(places[1]))
        assert one.end(signal.SIGHUP) == 0


def test_a_try_out_that_is_killed_leaves_no_process(base: Path) -> None:
    with Tryout(base, "--nodes", "1", "--hold") as tryout:
        place = tryout.directory
        wait_until(lambda: len(processes_of(place)) >= 2, SECONDS)      # the node, and its member of etcd
        tryout.process.kill()
        tryout.process.wait()
        wait_until(lambda: not processes_of(place), SECONDS)
        assert place.exists()
    # The next one removes what it has left. This one is ended while it starts.
    with Tryout(base, "--nodes", "1") as tryout:
        wait_until(lambda: not place.exists() and processes_of(tryout.directory), SECONDS)
        assert tryout.end(signal.SIGTERM) == 130
        assert "ends" in tryout.progress
