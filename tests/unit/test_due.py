"""When a will, the end of a session and the end of a message are due, to the millisecond: a broker as `fluxmq run`
builds it, asked by clients, its clock set by hand. The engine alone is asked in test_engine_broker.py.

The clock is moved, the broker asked and the clock set back within one turn of the loop, so nothing else sees that time.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.node import Node
from kit.watch import wait_until
from oracle.mqtt import V5, V311, Disconnect, Will

from fluxmq.app.server import Server

EXPIRY_MAX_S = 3600
DAY_S = 86_400


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, {"session.max_expiry_interval": f"{EXPIRY_MAX_S}s"})
    yield node
    node.stop()


def at(server: Server, steady_ms: int, what: Callable[[], Any]) -> Any:
    """Does it when the steady clock shows that."""
    hub = server.hub
    wall, mono, steady = hub.now_ms, hub.mono_ms, hub.steady_ms
    hub.set_clock(wall + steady_ms - steady, mono + steady_ms - steady)
    assert hub.steady_ms == steady_ms
    try:
        return what()
    finally:
        hub.set_clock(wall, mono)


def gone(node: Node, name: str) -> None:
    """The broker has seen that its connection ended."""
    def is_away(server: Any) -> bool:
        session = server.broker.session(name.encode())
        return session is None or session.data.connection is None

    wait_until(lambda: node.call(is_away))


def after(node: Node, name: str, *waits_ms: int) -> list[tuple[int, bool]]:
    """So many ms after the connection's end, one after the other: wills published so far, and is the session there?"""
    def ask(server: Server) -> list[tuple[int, bool]]:
        since, told = server.broker.sessions[b"/", name.encode()].data.since_ms, []
        assert since <= server.hub.steady_ms
        for wait in waits_ms:
            at(server, since + wait, server.broker.tick)
            told.append((server.broker.wills_published, (b"/", name.encode()) in server.broker.sessions))
        return told
    return node.call(ask)


def will(delay_s: int) -> Will:
    return Will(topic="gone", payload=b"x", qos=1, properties={"will_delay_interval": delay_s})


def leave(node: Node, *, expiry_s: int, delay_s: int | None = None, last: Disconnect | None = None) -> None:
    client = Client(node.address, V5)
    client.connect("c", will=None if delay_s is None else will(delay_s),
                   properties={"session_expiry_interval": expiry_s})
    if last is not None:
        client.send(last)
    client.close()
    gone(node, "c")


@pytest.mark.parametrize("delay_s", [20, 30, 600])
def test_a_will_is_due_after_its_delay(node: Node, delay_s: int) -> None:
    """MQTT 5.0, section 3.1.3.2.2."""
    leave(node, expiry_s=EXPIRY_MAX_S, delay_s=delay_s)
    assert after(node, "c", 1000 * delay_s - 1, 1000 * delay_s) == [(0, True), (1, True)]
    assert after(node, "c", 1000 * EXPIRY_MAX_S - 1, 1000 * EXPIRY_MAX_S) == [(1, True), (1, False)]


def test_a_will_is_due_at_the_end_of_the_session_at_last(node: Node) -> None:
    """[MQTT-3.1.3-9]."""
    leave(node, expiry_s=30, delay_s=600)
    assert after(node, "c", 29_999, 30_000) == [(0, True), (1, False)]


def test_disconnect_with_will_message_delays_it_too(node: Node) -> None:
    """MQTT 5.0, section 3.14.2.1: reason code 0x04."""
    leave(node, expiry_s=100, delay_s=7, last=Disconnect(reason=4))
    assert after(node, "c", 6_999, 7_000) == [(0, True), (1, True)]


@pytest.mark.parametrize(("asked_s", "granted_s"), [(20, 20), (90, 90), (EXPIRY_MAX_S, EXPIRY_MAX_S),
                                                    (DAY_S, EXPIRY_MAX_S), (0xFFFFFFFF, EXPIRY_MAX_S)])
def test_a_session_ends_when_its_expiry_has_passed(node: Node, asked_s: int, granted_s: int) -> None:
    """MQTT 5.0, section 3.1.2.11.2; no session outlives `session.max_expiry_interval`."""
    leave(node, expiry_s=asked_s)
    assert after(node, "c", 1000 * granted_s - 1, 1000 * granted_s) == [(0, True), (0, False)]


def test_disconnect_may_change_when_a_session_ends(node: Node) -> None:
    """MQTT 5.0, section 3.14.2.2.2."""
    leave(node, expiry_s=10, last=Disconnect(properties={"session_expiry_interval": 50}))
    assert after(node, "c", 49_999, 50_000) == [(0, True), (0, False)]


def test_a_kept_session_of_version_3_has_the_longest_expiry(node: Node) -> None:
    client = Client(node.address, V311)
    client.connect("c", clean_start=False)
    client.close()
    gone(node, "c")
    assert after(node, "c", 1000 * EXPIRY_MAX_S - 1, 1000 * EXPIRY_MAX_S) == [(0, True), (0, False)]


@pytest.mark.parametrize("expiry_s", [20, 40])
def test_a_retained_message_ends_when_its_expiry_has_passed(node: Node, expiry_s: int) -> None:
    """MQTT 5.0, section 3.3.2.3.3: counted from when the broker received it."""
    client = Client(node.address, V5)
    client.connect("c")
    began = node.call(lambda server: server.hub.steady_ms)
    client.publish("kept", b"x", qos=1, retain=True, properties={"message_expiry_interval": expiry_s})

    def ask(server: Server) -> tuple[int, int, list[int]]:
        [(_, kept)] = list(server.hub.root.topics.retained)
        ended = [at(server, kept.expires_at + step, server.hub.namespaces.expire_retained) for step in (-1, 0)]
        return kept.expires_at, server.hub.steady_ms, ended

    expires_at, now, ended = node.call(ask)
    assert began + 1000 * expiry_s <= expires_at <= now + 1000 * expiry_s and ended == [0, 1]
    client.close()
