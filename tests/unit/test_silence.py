"""How long a peer may be silent, to the millisecond: a broker as `fluxmq run` builds it, its clock set by hand.

The clock is moved and the connection asked within one turn of the loop, so nothing else sees that time.
"""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire
from kit.client import Client
from kit.node import Node
from kit.watch import wait_until
from oracle.mqtt import V5, V311, Pingreq, Pingresp

from fluxmq.app.server import Server

READ_TIMEOUT_S = 7


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, {"server.amqp091.plain.addr": "127.0.0.1:0", "broker.server_keep_alive_max": "90s",
                           "server.mqtt.tcp.plain.read_timeout": f"{READ_TIMEOUT_S}s",
                           "server.amqp091.plain.read_timeout": f"{READ_TIMEOUT_S}s"})
    yield node
    node.stop()


def only(server: Server) -> Any:
    [connection] = server.poller.connections
    return connection


def said(node: Node, since: str, *silences: int) -> list[str]:
    """What the connection answers so many ms after `since`: last_received_ms, or (what deadline_ms counts from) 0."""
    def ask(server: Server) -> list[str]:
        hub, connection, told = server.hub, only(server), []
        wall, mono = hub.now_ms, hub.mono_ms
        for silence in silences:
            at = getattr(connection, since) + silence
            hub.set_clock(wall + at - mono, at)
            told.append(connection.tick())
        hub.set_clock(wall, mono)
        return told
    return node.call(ask)


@pytest.mark.parametrize(("version", "asked", "granted"), [
    (V311, 10, 10), (V5, 10, 10), (V5, 60_000, 90), (V311, 60_000, 60_000), (V5, 0, 90)])
def test_keep_alive_is_one_and_a_half_times_what_was_agreed(node: Node, version: int, asked: int, granted: int) -> None:
    """Section 3.1.2.10 of MQTT 5.0 and of 3.1.1; [MQTT-3.1.2-22], [MQTT-3.1.2-24]."""
    client = Client(node.address, version)
    client.connect("c", keep_alive=asked)
    client.send(Pingreq())
    client.expect(Pingresp)
    assert said(node, "last_received_ms", 0, 1500 * granted, 1500 * granted + 1) == ["", "", "keep_alive"]
    client.send(Pingreq())
    client.expect(Pingresp)
    assert said(node, "last_received_ms", 1500 * granted) == [""], "each packet begins it anew"
    client.close()


def test_no_keep_alive_is_for_ever(node: Node) -> None:
    client = Client(node.address, V311)
    client.connect("c", keep_alive=0)
    assert said(node, "last_received_ms", 10 ** 12) == [""]
    client.close()


@pytest.mark.parametrize("heartbeat", [20, 30])
def test_heartbeats_are_twice_what_was_agreed(node: Node, heartbeat: int) -> None:
    """AMQP 0-9-1, section 4.2.7: a peer that is silent for two intervals is gone."""
    client = Wire(node.listens("amqp091.plain")).login(heartbeat=heartbeat)
    wait_until(lambda: node.call(lambda server: only(server).heartbeat_s) == heartbeat)
    assert said(node, "last_received_ms", 0, 2000 * heartbeat, 2000 * heartbeat + 1) == ["", "", "heartbeat"]
    client.drop()


@pytest.mark.parametrize("slot", ["mqtt.tcp.plain", "amqp091.plain"])
def test_who_never_says_who_it_is_has_the_read_timeout(node: Node, slot: str) -> None:
    began = node.call(lambda server: server.hub.mono_ms)
    client = Client(node.listens(slot))
    wait_until(lambda: node.call(lambda server: len(server.poller.connections)) == 1)
    assert said(node, "deadline_ms", -1, 0) == ["", "connect"]
    now, deadline = node.call(lambda server: (server.hub.mono_ms, only(server).deadline_ms))
    assert began + 1000 * READ_TIMEOUT_S <= deadline <= now + 1000 * READ_TIMEOUT_S
    client.close()
