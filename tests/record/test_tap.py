"""The tap against what clients sent and got: every byte, once, in order, whatever the transport and the chunks."""
from __future__ import annotations

import gc
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.amqp_wire import Wire
from kit.certs import issue, make_ca
from kit.client import Client
from kit.entries import ACCEPTED, CLOSED, IN, LOST, OPENED, OUT
from kit.node import Node
from kit.recording import Recorded, Wiretap
from kit.websocket import WebSocket
from oracle.mqtt import Connect, Disconnect, Pingreq, Pingresp, Publish, parse

from fluxmq._core.record.rows import RecordRows
from fluxmq._core.testing.probes import live_objects
from fluxmq.app.server import Server
from fluxmq.engine.ports.record import RecordRefused
from fluxmq.record.files import batch_of_columns

V3, V5 = 4, 5
SIZES = (0, 1, 100, 5000, 70_000, 400_000)  # nothing, small, a blob, larger than what is carried, than one read


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    certificate, key = issue(make_ca(tmp_path_factory.mktemp("ca")), "localhost")
    return Path(certificate), Path(key)


@pytest.fixture
def node(tmp_path: Path, certificates: tuple[Path, Path]) -> Iterator[Node]:
    certificate, key = certificates
    made = Node(tmp_path, {
        "storage.type": "memory", "server.mqtt.websocket.plain.addr": "127.0.0.1:0",
        "server.amqp091.plain.addr": "127.0.0.1:0", "server.mqtt.tcp.tls.addr": "127.0.0.1:0",
        "server.mqtt.tcp.tls.cert_file": certificate, "server.mqtt.tcp.tls.key_file": key,
        "server.mqtt.websocket.tls.addr": "127.0.0.1:0", "server.mqtt.websocket.tls.cert_file": certificate,
        "server.mqtt.websocket.tls.key_file": key, "queue_manager.auto_create": "classic"})
    yield made
    made.stop()


def plain(node: Node, slot: str) -> socket.socket:
    raw = socket.create_connection(node.listens(slot), 10)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return raw


def secured(node: Node, slot: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain(node, slot))


def open_transport(node: Node, slot: str) -> socket.socket | WebSocket:
    if slot.startswith("mqtt.websocket"):
        if slot.endswith("plain"):
            return WebSocket.open(node.listens(slot))
        pytest.fail("the kit has no WebSocket over TLS")
    return secured(node, slot) if slot.endswith("tls") else plain(node, slot)


def connected(node: Node, name: str, version: int = V5, slot: str = "mqtt.tcp.plain", chunk: int = 0,
              aliases: int = 0) -> tuple[Client, Wiretap]:
    wire = Wiretap(open_transport(node, slot), chunk)
    client = Client(wire, version)
    client.connect(name, properties={"topic_alias_maximum": aliases} if aliases else ())
    return client, wire


@pytest.mark.parametrize("chunk", [0, 7, 3000])
@pytest.mark.parametrize(("slot", "version"), [
    ("mqtt.tcp.plain", V3), ("mqtt.tcp.plain", V5), ("mqtt.tcp.tls", V5), ("mqtt.websocket.plain", V5)])
def test_mqtt_is_recorded_byte_for_byte(node: Node, slot: str, version: int, chunk: int) -> None:
    recorded = Recorded(node, 16 << 20)
    client, wire = connected(node, "c", version, slot, chunk)
    client.subscribe(("t/#", 2))
    for qos in (0, 1, 2):
        for size in SIZES if chunk != 7 else SIZES[:4]:
            payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
            client.publish("t/x", payload, qos)
            client.receive("t/x", payload)
    client.send(Pingreq())
    client.expect(Pingresp)
    client.disconnect()
    recorded.until(lambda it: any(entry.kind == CLOSED for entry in it.entries))
    recorded.end()
    number = recorded.number("c")
    assert recorded.sent(number) == wire.sent
    assert recorded.got(number) == wire.got
    recorded.check_order(number)
    opened, *_, closed = recorded.of(number)
    assert opened.json == {"listener": slot, "peer": opened.json["peer"], "tls": slot.endswith("tls"),
                           "websocket": "websocket" in slot}
    assert opened.json["peer"].startswith("127.0.0.1:")
    assert closed.json == {"by": "client", "reason": "client", "code": 0, "unsent": 0}
    [accepted] = recorded.of(number, ACCEPTED)
    assert accepted.json == {"client_id": "c", "version": version, "clean_start": True, "session_present": False,
                             "keep_alive_s": accepted.json["keep_alive_s"], "session_expiry_s": 0}
    assert {entry.protocol for entry in recorded.of(number)} == {1}
    assert {entry.flags for entry in recorded.of(number)} == {0}
    for entry in recorded.of(number, IN, OUT):
        whole_packets(entry.data, version)


def whole_packets(data: bytes, version: int) -> int:
    """How many they are; fails when the last is not whole."""
    count = 0
    while data:
        if data[0] >> 4 == 1:       # CONNECT and its kin are for a broker to read
            data = data[2 + data[1]:] if data[1] < 128 else data[3 + (data[1] & 127) + data[2] * 128:]
        else:
            found = parse(data, version) if data[0] >> 4 in (2, 3, 4, 5, 6, 7, 9, 11, 13) else None
            if found is None:       # what only clients send: SUBSCRIBE, PINGREQ, DISCONNECT
                size, shift, at = 0, 0, 1
                while True:
                    size |= (data[at] & 127) << shift
                    shift += 7
                    at += 1
                    if data[at - 1] < 128:
                        break
                assert len(data) >= at + size
                data = data[at + size:]
            else:
                data = found[1]
        count += 1
    return count


def test_amqp_is_recorded_byte_for_byte(node: Node) -> None:
    recorded = Recorded(node, 16 << 20)
    wire = Wiretap(plain(node, "amqp091.plain"), 5000)
    client = Wire(wire).login()
    client.open_channel()
    client.call(1, "queue.declare", queue="q", auto_delete=True)
    client.call(1, "basic.consume", queue="q", consumer_tag="tag")
    for size in (0, 10, 100_000):
        client.publish(1, "", "q", bytes(size))
        client.send(1, "basic.ack", delivery_tag=client.expect_content(1).delivery_tag)
    client.close()
    recorded.until(lambda it: any(entry.kind == CLOSED for entry in it.entries))
    recorded.end()
    [accepted] = [entry for entry in recorded.entries if entry.kind == ACCEPTED]
    number = accepted.connection
    assert recorded.sent(number) == wire.sent
    assert recorded.got(number) == wire.got
    recorded.check_order(number)
    assert accepted.json == {"client_id": accepted.json["client_id"], "vhost": "/", "user": None, "version": 91}
    assert accepted.json["client_id"].startswith("amqp091-127.0.0.1:")
    assert recorded.of(number, CLOSED)[0].json == {"by": "client", "reason": "client", "code": 200, "unsent": 0}
    assert {entry.protocol for entry in recorded.of(number)} == {2}


@pytest.mark.parametrize("version", [V3, V5])
def test_runs_that_are_passed_on_are_recorded(node: Node, version: int) -> None:
    recorded = Recorded(node)
    sub, heard = connected(node, "sub", version)
    sub.subscribe(("t", 0))
    pub, wire = connected(node, "pub", version)
    packet = Publish(topic="t", payload=b"x" * 30, qos=0)
    pub.send(packet)
    sub.receive("t")
    for _ in range(20):
        pub.send(*[packet] * 50)
    for _ in range(1000):
        sub.receive("t")
    for client in (pub, sub):
        client.disconnect()
    recorded.until(lambda it: sum(entry.kind == CLOSED for entry in it.entries) == 2)
    recorded.end()
    assert node.call(lambda server: server.hub.counters()["passed_on"]) > 900
    assert recorded.sent(recorded.number("pub")) == wire.sent
    assert recorded.got(recorded.number("sub")) == heard.got


@pytest.mark.parametrize("slot", ["mqtt.tcp.plain", "mqtt.tcp.tls", "mqtt.websocket.plain"])
def test_what_a_slow_reader_gets_in_pieces_is_recorded_once(node: Node, slot: str) -> None:
    """The socket is full again and again, and what waits behind it is appended meanwhile."""
    recorded = Recorded(node, 64 << 20)
    sub, heard = connected(node, "slow", slot=slot)
    getattr(heard.transport, "raw", heard.transport).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    sub.subscribe(("t/#", 0))
    pub, _ = connected(node, "pub")
    for number in range(300):
        size = (80_000, 100, 3000)[number % 3]
        pub.publish(f"t/{number}", number.to_bytes(4, "big") * (size // 4))
    pub.expect_quiet()
    assert node.call(lambda server: any(connection.pending for connection in server.poller.connections))
    for number in range(300):
        sub.receive(f"t/{number}")
    sub.disconnect()
    recorded.until(lambda it: it.closed(it.number("slow")))
    recorded.end()
    assert recorded.got(recorded.number("slow")) == heard.got


def test_what_did_not_leave_is_counted_at_the_end(node: Node) -> None:
    recorded = Recorded(node, 64 << 20)
    sub, heard = connected(node, "gone")
    sub.subscribe(("t", 0))
    pub, _ = connected(node, "pub")
    for _ in range(50):
        pub.publish("t", bytes(200_000))
        pub.expect_quiet()
    raw = heard.transport
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()                                 # reset: what waits cannot leave
    recorded.until(lambda it: it.closed(it.number("gone")))
    recorded.end()
    number = recorded.number("gone")
    closed = recorded.of(number, CLOSED)[0].json
    written = recorded.got(number)
    assert (closed["by"], closed["reason"]) == ("client", "lost")
    assert 0 < closed["unsent"] < len(written)
    assert written.startswith(bytes(heard.got))
    for entry in recorded.of(number, OUT):
        whole_packets(entry.data, V5)


def test_those_who_are_there_already_are_told_of_first(node: Node) -> None:
    early, wire = connected(node, "early", V3)
    early.subscribe(("a/+", 1), ("b", 0))
    amqp = Wire(node.listens("amqp091.plain")).login()
    idle = plain(node, "mqtt.tcp.plain")        # has not said who it is
    half = Publish(topic="a/b", payload=bytes(90_000), qos=0).encode(V3)
    early.send(half[:80_000])
    node.call(lambda server: server.poller.turn())
    before = len(wire.got)
    recorded = Recorded(node)
    early.send(half[80_000:])
    early.receive("a/b")
    early.disconnect()
    idle.sendall(Connect(client_id="late").encode(V3))
    recorded.until(lambda it: it.closed(it.number("early")) and any(
        entry.kind == ACCEPTED and entry.json["client_id"] == "late" for entry in it.entries))
    recorded.end()
    number = recorded.number("early")
    opened, accepted = recorded.of(number)[:2]
    assert (opened.kind, accepted.kind, opened.flags, accepted.flags) == (OPENED, ACCEPTED, 1, 1)
    assert accepted.json["subscriptions"] == [["a/+", 1], ["b", 0]]
    assert (accepted.json["version"], accepted.json["clean_start"]) == (4, True)
    assert recorded.sent(number) == half + b"\xe0\x00"       # the packet that was under way is whole
    assert recorded.got(number) == bytes(wire.got[before:])
    [other] = [entry for entry in recorded.entries if entry.kind == ACCEPTED and entry.protocol == 2]
    assert (other.flags, other.json["vhost"]) == (1, "/")
    late = recorded.number("late")
    assert [(entry.kind, entry.flags) for entry in recorded.of(late)][:2] == [(OPENED, 1), (IN, 0)]
    idle.close()
    amqp.drop()


def test_topic_aliases_in_force_are_told_at_the_start(node: Node) -> None:
    client, _ = connected(node, "c", aliases=10)
    client.subscribe(("long/#", 0))
    client.publish("long/er", b"1", properties={"topic_alias": 3})
    client.receive(payload=b"1")
    recorded = Recorded(node)
    client.publish("", b"2", properties={"topic_alias": 3})
    second = client.receive(payload=b"2")
    client.disconnect()
    recorded.until(lambda it: it.closed(it.number("c")))
    recorded.end()
    accepted = recorded.of(recorded.number("c"), ACCEPTED)[0].json
    assert accepted["aliases_in"] == [[3, "long/er"]]
    assert accepted["aliases_out"] == [[second.prop("topic_alias"), "long/er"]]
    rows = RecordRows(payload="full")
    for entry in recorded.entries:
        rows.feed(entry.raw, 0)
    topics = batch_of_columns(*rows.take()).column("topic").to_pylist()
    assert [topic for topic in topics if topic is not None] == ["long/er", "long/er"]


def test_a_packet_that_is_refused_is_the_last_one(node: Node) -> None:
    recorded = Recorded(node)
    client, wire = connected(node, "twice")
    bad = Connect(client_id="twice").encode(V5)
    client.send(Pingreq(), bad, Pingreq())
    client.expect(Pingresp)
    wire.read_to_the_end()
    wire.close()
    recorded.until(lambda it: it.closed(it.number("twice")))
    number = recorded.number("twice")
    assert recorded.sent(number) == bytes(wire.sent[:-2])   # not what stood behind it
    assert recorded.got(number) == wire.got
    assert recorded.of(number, CLOSED)[0].json == {"by": "broker", "reason": "protocol_error", "code": 0x82,
                                                   "unsent": 0}
    garbage = Wiretap(plain(node, "mqtt.tcp.plain"))
    garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
    garbage.read_to_the_end()
    garbage.close()
    recorded.until(lambda it: sum(entry.kind == CLOSED for entry in it.entries) == 2)
    recorded.end()
    assert recorded.sent(recorded.entries[-1].connection) == garbage.sent
    assert recorded.entries[-1].json["reason"] == "refused"


def test_a_full_ring_loses_whole_entries_and_counts_them(node: Node) -> None:
    recorded = Recorded(node)
    sub, heard = connected(node, "sub")
    sub.subscribe(("t", 0))
    pub, wire = connected(node, "pub")
    for _ in range(100):
        pub.publish("t", bytes(100_000))
        sub.receive("t")
    tap = recorded.recording.tap
    lost = (tap.lost_entries, tap.lost_bytes)
    assert lost[0] > 100
    recorded.take()
    pub.publish("t", b"after")
    sub.receive("t", b"after")
    for client in (pub, sub):
        client.disconnect()
    recorded.until(lambda it: sum(entry.kind == CLOSED for entry in it.entries) == 2)
    recorded.end()
    told = [entry.lost for entry in recorded.entries if entry.kind == LOST]
    assert told == [lost]
    recorded_bytes = sum(len(entry.data) for entry in recorded.entries if entry.kind in (IN, OUT))
    assert recorded_bytes + lost[1] == len(wire.sent) + len(wire.got) + len(heard.sent) + len(heard.got)
    at = next(i for i, entry in enumerate(recorded.entries) if entry.kind == LOST)
    assert b"after" in recorded.entries[at + 1].data
    assert node.call(lambda server: server.recording.recorder.totals()["lost_entries"]) == lost[0]


def test_one_recording_at_a_time(node: Node) -> None:
    recorded = Recorded(node)
    with pytest.raises(RecordRefused, match="recorded already"):
        Recorded(node)
    recorded.end()
    Recorded(node).end()


def test_a_reader_that_takes_no_more_ends_the_recording(node: Node) -> None:
    recorded = Recorded(node)
    recorded.reader.stop()
    node.call(lambda server: server.recording.recorder.tick())
    assert not node.call(lambda server: server.recording.recorder.recording)
    assert recorded.reader.ended


def test_nothing_of_the_core_stays_behind(node: Node) -> None:
    def live(server: Server) -> dict[str, int]:
        return {what: count for what, count in live_objects().items() if what != "routes"}     # a cache keeps those

    gc.collect()                # of nodes of other tests
    before = node.call(live)
    recorded = Recorded(node, 16 << 20)
    for slot in ("mqtt.tcp.plain", "mqtt.tcp.tls", "mqtt.websocket.plain"):
        client, _ = connected(node, "c", slot=slot)
        client.subscribe(("t", 1))
        for size in SIZES:
            client.publish("t", bytes(size), 1)
            client.receive("t")
        client.disconnect()
    recorded.until(lambda it: sum(entry.kind == CLOSED for entry in it.entries) == 3)
    recorded.end()
    assert node.call(live) == before


def hammer(address: tuple[str, int], stop: threading.Event, failures: list[BaseException]) -> None:
    """Publishes, subscribes, comes and goes, until told to stop."""
    try:
        while not stop.is_set():
            client = Client(address, V5)
            client.connect()
            client.subscribe(("load/#", 1))
            for _ in range(20):
                client.publish("load/x", bytes(300), 1)
            client.send(Disconnect())
            client.rest()
            client.close()
    except BaseException as error:
        failures.append(error)


def test_recordings_begin_and_end_under_load(node: Node) -> None:
    stop, failures = threading.Event(), list[BaseException]()
    threads = [threading.Thread(target=hammer, args=(node.address, stop, failures)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            recorded = Recorded(node, 32 << 20)
            recorded.until(lambda it: failures or sum(entry.kind == CLOSED for entry in it.entries) >= 3)
            recorded.end()
            check_connections(recorded)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert failures == []


def check_connections(recorded: Recorded) -> None:
    """Each begins with OPENED, what comes of it is whole packets, after CLOSED nothing comes."""
    begun: Callable[[int], bool] = lambda number: recorded.of(number)[0].kind == OPENED  # noqa: E731
    numbers = {entry.connection for entry in recorded.entries}
    assert all(begun(number) for number in numbers)
    for number in numbers:
        kinds = [entry.kind for entry in recorded.of(number)]
        assert CLOSED not in kinds[:-1]
        for entry in recorded.of(number, IN, OUT):
            whole_packets(entry.data, V5)
