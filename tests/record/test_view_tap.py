"""A recording and a live view at the same time: each has what it would have alone, whatever becomes of the other."""
from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.amqp_wire import Wire
from kit.client import Client
from kit.entries import ACCEPTED, CLOSED, IN, LOST, OPENED, OUT, Entry
from kit.node import Node
from kit.recording import Recorded, Wiretap
from oracle.mqtt import Publish

from fluxmq.app.server import Server
from fluxmq.engine.ports.record import RecordRefused

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
    assert node.call(lambda server: any(connection.pending for connection in server.poller.connections.values()))
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
    recorded = Recorded(node)
    assert node.call(lambda server: recorded.recording.counters()) is None
    recorded.end()


def test_a_view_ends_when_its_reader_has_gone(node: Node) -> None:
    recorded = Recorded(node)
    view = Recorded(node, SMALL, view=True)
    view.reader.stop()
    node.call(lambda server: server.recording.recorder.tick())
    assert not node.call(lambda server: server.recording.recorder.viewed)
    assert node.call(lambda server: server.recording.recorder.recording)
    assert view.reader.ended
    recorded.end()
