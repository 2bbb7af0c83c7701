"""A recording and a live view at the same time: each has what it would have alone, whatever becomes of the other."""
from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire
from kit.client import Client
from kit.entries import ACCEPTED, CLOSED, IN, LOST, OPENED, OUT, Entry
from kit.node import Node
from kit.recording import Recorded, Wiretap
from kit.websocket import WebSocket
from oracle.mqtt import Publish

from fluxmq._core.memory.tap import Tap
from fluxmq.app.server import Server
from fluxmq.engine.ports.record import RecordRefused
from fluxmq.record.ring import make_ring

V5 = 5
LARGE = 8 << 20     # the largest ring of a view: it cuts long runs as a recording does
SMALL = 64 << 10


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, {"storage.type": "memory", "server.amqp091.plain.addr": "127.0.0.1:0",
                           "server.mqtt.websocket.plain.addr": "127.0.0.1:0",
                           "queue_manager.auto_create": "classic"})
    yield made
    made.stop()


def connected(node: Node, name: str) -> tuple[Client, Wiretap]:
    raw = socket.create_connection(node.listens("mqtt.tcp.plain"), 10)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire = Wiretap(raw)
    client = Client(wire, V5)
    client.connect(name)
    return client, wire


def traffic(client: Client, payloads: tuple[int, ...] = (0, 100, 5000, 70_000, 400_000)) -> None:
    """A client that is subscribed to t/# hears itself."""
    for qos in (0, 1, 2):
        for size in payloads:
            client.publish("t/x", bytes(size), qos)
            client.receive("t/x")


def told(entries: list[Entry]) -> list[tuple[object, ...]]:
    """All but the times of events, which are read for each reader."""
    return [(entry.kind, entry.protocol, entry.flags, entry.connection, entry.data,
             entry.time if entry.kind in (IN, OUT) else 0) for entry in entries]


def test_both_have_the_same_entries(node: Node) -> None:
    recorded = Recorded(node, LARGE)
    view = Recorded(node, LARGE, view=True)
    client, _ = connected(node, "c")
    client.subscribe(("t/#", 2))
    traffic(client)
    client.disconnect()
    amqp = Wire(node.listens("amqp091.plain")).login()
    amqp.open_channel()
    amqp.call(1, "queue.declare", queue="q", auto_delete=True)
    amqp.publish(1, "", "q", bytes(100_000))
    amqp.close()
    recorded.until(lambda it: sum(entry.kind == CLOSED for entry in it.entries) == 2)
    assert told(recorded.end()) == told(view.end())
    assert {entry.kind for entry in view.entries} == {OPENED, ACCEPTED, IN, OUT, CLOSED}


def test_both_have_what_goes_through_a_websocket(node: Node) -> None:
    """Without its frames, and without the answer to the upgrade."""
    recorded, view = Recorded(node, LARGE), Recorded(node, LARGE, view=True)
    wire = Wiretap(WebSocket.open(node.listens("mqtt.websocket.plain")))
    client = Client(wire, V5)
    client.connect("c")
    client.subscribe(("t/#", 2))
    traffic(client, (0, 100, 5000))
    client.disconnect()
    for one in (recorded, view):
        one.until(lambda it: it.closed(it.number("c")))
        one.end()
        assert one.sent(one.number("c")) == wire.sent
        assert one.got(one.number("c")) == wire.got


def test_a_recording_does_not_see_views_come_and_go(node: Node) -> None:
    """Every byte once, no entry that is for the view alone, and the end as it was."""
    recorded = Recorded(node, 64 << 20)
    client, wire = connected(node, "c")
    client.subscribe(("t/#", 2))
    traffic(client)
    for _ in range(2):
        view = Recorded(node, SMALL, view=True)     # too small, and nobody takes anything
        traffic(client)
        view.end()
        traffic(client, (10,))
    client.disconnect()
    recorded.until(lambda it: it.closed(it.number("c")))
    recorded.end()
    number = recorded.number("c")
    assert recorded.sent(number) == wire.sent
    assert recorded.got(number) == wire.got
    recorded.check_order(number)
    assert {entry.flags for entry in recorded.entries} == {0}
    assert LOST not in {entry.kind for entry in recorded.entries}
    assert recorded.of(number, CLOSED)[0].json == {"by": "client", "reason": "client", "code": 0, "unsent": 0}


def test_a_view_begins_in_the_middle(node: Node) -> None:
    """It is told who is there, has whole packets from then on, and nothing of the recording."""
    recorded = Recorded(node, 16 << 20)
    client, wire = connected(node, "c")
    client.subscribe(("t/#", 1))
    traffic(client, (100, 70_000))
    half = Publish(topic="t/half", payload=bytes(90_000), qos=0).encode(V5)
    client.send(half[:80_000])
    node.call(lambda server: server.poller.turn())
    heard = len(wire.got)
    view = Recorded(node, LARGE, view=True)
    client.send(half[80_000:])
    client.receive("t/half")
    client.disconnect()
    view.until(lambda it: it.closed(it.number("c")))
    view.end()
    recorded.end()
    number = view.number("c")
    opened, accepted = view.of(number)[:2]
    assert (opened.kind, accepted.kind, opened.flags, accepted.flags) == (OPENED, ACCEPTED, 1, 1)
    assert accepted.json["subscriptions"] == [["t/#", 1]]
    assert view.sent(number).startswith(half)
    assert view.got(number) == bytes(wire.got[heard:])
    assert recorded.sent(number) == wire.sent
    assert recorded.got(number) == wire.got
    assert {entry.flags for entry in recorded.entries} == {0}


def test_a_recording_begins_beside_a_view(node: Node) -> None:
    """As before a view existed: nothing of what was there already."""
    view = Recorded(node, LARGE, view=True)
    client, wire = connected(node, "c")
    client.subscribe(("t/#", 1))
    traffic(client, (100, 70_000))
    sent, heard = len(wire.sent), len(wire.got)
    recorded = Recorded(node, 16 << 20)
    traffic(client, (100, 70_000))
    client.disconnect()
    for one in (view, recorded):
        one.until(lambda it: it.closed(it.number("c")))
        one.end()
    number = view.number("c")
    assert recorded.sent(number) == bytes(wire.sent[sent:])
    assert recorded.got(number) == bytes(wire.got[heard:])
    assert view.sent(number) == wire.sent
    assert view.got(number) == wire.got
    assert [entry.flags for entry in recorded.of(number)][:3] == [1, 1, 0]
    assert {entry.flags for entry in view.entries} == {0}


def test_what_waits_behind_a_full_socket_is_each_readers_own(node: Node) -> None:
    """The view begins while bytes wait that the recording has had, and others that it has not had yet."""
    recorded = Recorded(node, 64 << 20)
    sub, heard = connected(node, "slow")
    heard.transport.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sub.subscribe(("t/#", 0))
    pub, _ = connected(node, "pub")
    for number in range(60):
        pub.publish(f"t/{number}", number.to_bytes(4, "big") * 20_000)
    pub.expect_quiet()
    assert node.call(lambda server: any(connection.pending for connection in server.poller.connections))
    view = Recorded(node, LARGE, view=True)
    for number in range(60, 120):
        pub.publish(f"t/{number}", number.to_bytes(4, "big") * 500)
    for number in range(120):
        sub.receive(f"t/{number}")
    sub.disconnect()
    for one in (view, recorded):
        one.until(lambda it: it.closed(it.number("slow")))
        one.end()
    number = recorded.number("slow")
    assert recorded.got(number) == heard.got
    assert bytes(heard.got).endswith(view.got(number))
    assert b"t/119" in view.got(number)
    assert b"t/0" not in view.got(number)


def test_a_view_without_a_recording_is_told_what_was_not_sent(node: Node) -> None:
    view = Recorded(node, LARGE, view=True)
    sub, heard = connected(node, "slow")
    heard.transport.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sub.subscribe(("t/#", 0))
    pub, _ = connected(node, "pub")
    for _ in range(80):
        pub.publish("t/x", bytes(80_000))
        view.take()
    pub.expect_quiet()
    assert node.call(lambda server: any(connection.pending for connection in server.poller.connections))
    heard.close()
    view.until(lambda it: it.closed(it.number("slow")))
    view.end()
    number = view.number("slow")
    [closed] = view.of(number, CLOSED)
    assert 0 < closed.json["unsent"] < len(view.got(number))


@pytest.mark.parametrize("full", ["view", "recording"])
def test_one_that_is_full_does_not_hurt_the_other(node: Node, full: str) -> None:
    recorded = Recorded(node, 4 << 20 if full == "recording" else 64 << 20)
    view = Recorded(node, SMALL if full == "view" else LARGE, view=True)
    client, wire = connected(node, "c")
    client.subscribe(("t", 0))
    whole, cut = (recorded, view) if full == "view" else (view, recorded)
    for _ in range(100):
        client.publish("t", bytes(60_000))
        client.receive("t")
        whole.take()
    client.disconnect()
    whole.until(lambda it: it.closed(it.number("c")))
    whole.end()
    cut.end()
    number = whole.number("c")
    assert whole.sent(number) == wire.sent
    assert whole.got(number) == wire.got
    assert whole.recording.tap.lost_entries == 0
    assert cut.recording.tap.lost_entries > 50
    lost = [entry.lost for entry in cut.entries if entry.kind == LOST]
    assert sum(entries for entries, _ in lost) == cut.recording.tap.lost_entries
    kept = sum(len(entry.data) for entry in cut.entries if entry.kind in (IN, OUT))
    events = sum(len(entry.data) for entry in whole.entries if entry.kind not in (IN, OUT))
    spoken = len(wire.sent) + len(wire.got)
    assert spoken <= kept + sum(size for _, size in lost) <= spoken + events


def test_one_view_at_a_time_and_it_has_a_name(node: Node) -> None:
    view = Recorded(node, SMALL, view=True, who="ann, on a train")
    with pytest.raises(RecordRefused, match="being viewed already by ann, on a train") as caught:
        Recorded(node, SMALL, view=True)
    assert caught.value.kind == "conflict"
    recorded = Recorded(node)                       # a recording may run beside it
    with pytest.raises(RecordRefused, match="being recorded already"):
        Recorded(node)
    view.end()
    Recorded(node, SMALL, view=True).end()
    recorded.end()
    for size in (SMALL - 1, LARGE + 1):
        with pytest.raises(RecordRefused, match="a ring has 65536 to 8388608 bytes"):
            Recorded(node, size, view=True)


def test_a_view_is_no_recording_of_the_metrics(node: Node) -> None:
    def metrics(server: Server) -> dict[str, float]:
        return {name: value for name, value in server.recording.metrics().items() if "record" in name}

    before = node.call(metrics)
    view = Recorded(node, LARGE, view=True)
    client, _ = connected(node, "c")
    client.disconnect()
    view.until(lambda it: it.closed(it.number("c")))
    assert node.call(metrics) == before
    counters = node.call(lambda server: view.recording.counters())
    assert counters is not None and counters["entries"] == len(view.entries)
    view.end()
    assert node.call(metrics) == before
    recorded = Recorded(node)
    assert node.call(lambda server: recorded.recording.counters()) is None
    recorded.end()


@pytest.mark.parametrize("first", ["view", "recording"])
def test_who_has_ended_gets_nothing_more(node: Node, first: str) -> None:
    """Its tap is gone from the list that the broker writes to, which would write into memory that is freed."""
    recorded, view = Recorded(node, LARGE), Recorded(node, LARGE, view=True)
    client, _ = connected(node, "c")
    ended, other = (view, recorded) if first == "view" else (recorded, view)
    ended.end()
    before, there = ended.recording.tap.entries, other.recording.tap.entries
    client.publish("t", b"x", 1)
    assert ended.recording.tap.entries == before
    assert other.recording.tap.entries > there
    other.end()
    client.publish("t", b"x", 1)
    assert ended.recording.tap.entries == before
    client.disconnect()


def test_a_connection_is_in_a_new_ring_only_when_it_is_told_there(node: Node) -> None:
    """Each ring has a number of its own: a view before it says nothing about it."""
    view = Recorded(node, LARGE, view=True)
    client, _ = connected(node, "c")
    view.end()
    descriptor = make_ring(SMALL)
    tap = Tap(descriptor, SMALL)
    node.call(lambda server: server.poller.record(tap, True))       # and nobody is told who is there
    client.publish("t", b"x", 1)
    node.call(lambda server: server.poller.record(None, True))
    assert (tap.entries, tap.lost_entries) == (0, 0)
    os.close(descriptor)
    client.disconnect()


@pytest.mark.parametrize("view", [False, True])
def test_two_that_begin_at_once(node: Node, view: bool) -> None:
    """While the pages of a ring are made, its place is taken already."""

    async def both(server: Server) -> list[Any]:
        recorder = server.recording.recorder
        return await asyncio.gather(recorder.attach(LARGE, view=view), recorder.attach(LARGE, view=view),
                                    return_exceptions=True)

    first, second = node.wait(both)
    assert isinstance(second, RecordRefused)
    node.call(lambda server: server.recording.recorder.end(first))


def test_a_broker_that_stops_ends_both(node: Node) -> None:
    recorded, view = Recorded(node), Recorded(node, SMALL, view=True)
    client, _ = connected(node, "c")
    client.disconnect()
    node.stop()
    for one in (recorded, view):
        one.take()
        assert one.reader.ended
        assert one.closed(one.number("c"))


def test_a_view_ends_when_its_reader_has_gone(node: Node) -> None:
    recorded = Recorded(node)
    view = Recorded(node, SMALL, view=True)
    view.reader.stop()
    node.call(lambda server: server.recording.recorder.tick())
    assert not node.call(lambda server: server.recording.recorder.viewed)
    assert node.call(lambda server: server.recording.recorder.recording)
    assert view.reader.ended
    recorded.end()
