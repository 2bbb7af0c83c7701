"""Captures become recordings: every form of file and link, TCP as it comes, what is missing, other people's brokers."""
from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.broker import free_port
from kit.captures import compared, direct, imported, imported_file, open_talk
from kit.pcap import ACK, FORMS, IN, LINKS, OUT, RST, START, Talk, write_capture
from kit.python import environment
from kit.rabbitmq import RabbitNode
from kit.record_entries import AMQP091, MQTT
from kit.tools import require_tool

from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
)
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect, PubAck, Publish, Subscribe, Subscription
from fluxmq._core.record.rows import whole_packets
from fluxmq.record.importer import import_capture
from fluxmq.record.manifest import RecordingError
from fluxmq.record.options import RecordOptions
from fluxmq.record.reading import open_recording
from fluxmq.record.tcp import Stream

CHATTER: list[tuple[int, Any]] = [
    (IN, Connect(client_id="dev", keep_alive=30)), (OUT, ConnAck()), (IN, Subscribe(1, [Subscription("a/#", qos=1)])),
    *((way, packet) for n in range(1, 20) for way, packet in (
        (IN, Publish(f"a/{n}", payload=bytes([n]) * n * 10, qos=1, packet_id=n)), (OUT, PubAck(n))))]


def wire(version: int = 5) -> list[tuple[int, bytes]]:
    return [(way, encode_packet(packet, version)) for way, packet in CHATTER]


def whole_talk(**words: Any) -> Talk:
    talk = Talk(**words)
    talk.opened()
    for way, data in wire():
        talk.sent(way, data)
    talk.closed()
    return talk


@pytest.mark.parametrize(("form", "link"), [*((form, "ethernet") for form in FORMS),
                                            *(("pcapng-big", link) for link in LINKS), ("pcap", "null")])
def test_every_form_and_link(tmp_path: Path, form: str, link: str) -> None:
    talk = whole_talk()
    done, rows = imported(tmp_path, [talk], form=form, link=link)
    assert compared(rows) == compared(direct(wire()))
    assert done.notes == [] and done.manifest.source == "pcap" and done.manifest.end == "capture ended"
    assert [row["kind"] for row in rows[:4]] == ["opened", "CONNECT", "accepted", "CONNACK"]
    assert rows[-1]["kind"] == "closed" and json.loads(rows[-1]["detail"])["by"] == "broker"
    assert json.loads(rows[2]["detail"])["client_id"] == "dev"
    assert rows[1]["time"] == talk.packets[3][0]


def test_ipv6(tmp_path: Path) -> None:
    _, rows = imported(tmp_path, [whole_talk(client=("::1", 4000), server=("fe80::2", 1883))])
    assert compared(rows) == compared(direct(wire()))
    assert json.loads(rows[0]["detail"])["peer"] == "[0:0:0:0:0:0:0:1]:4000"


def test_any_port_and_many_connections(tmp_path: Path) -> None:
    talks = [whole_talk(client=("10.0.0.1", 4000 + n), server=("10.0.0.9", 9), start=1_700_000_000_000_000_000 + n * 77)
             for n in range(5)]
    done, rows = imported(tmp_path, talks)
    assert done.connections == 5
    for number in range(1, 6):
        assert compared([row for row in rows if row["connection"] == number]) == compared(direct(wire()))


@given(st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_segments_repeated_reordered_overlapping(tmp_path_factory: pytest.TempPathFactory, rng: Random) -> None:
    """As long as every byte is there, the rows are the same."""
    tmp_path = tmp_path_factory.mktemp("pcap")
    talk = Talk()
    talk.opened()
    for way, data in wire():
        start, count = talk.seq[way], len(talk.packets)
        talk.sent(way, data, sizes=[rng.randint(1, 60) for _ in range(rng.randint(0, 4))])
        if rng.random() < 0.4:      # again, another part of it
            a = rng.randint(0, len(data) - 1)
            b = rng.randint(a + 1, len(data))
            talk.packet(way, ACK, data[a:b], seq=start + a)
        if rng.random() < 0.4 and len(talk.packets) - count >= 2:       # the last two change places
            talk.packets[-2:] = talk.packets[:-3:-1]
    write_capture(tmp_path / "c.pcap", talk.packets)
    _, rows = imported_file(tmp_path)
    assert compared(rows) == compared(direct(wire()))
    assert not [row for row in rows if row["kind"] in ("lost", "malformed")]


@given(st.randoms(use_true_random=False), st.binary(min_size=1, max_size=400))
def test_a_stream_is_put_together_or_says_what_is_missing(rng: Random, data: bytes) -> None:
    stream = Stream()
    stream.begin(0xFFFFFF80)
    segments = []
    for _ in range(rng.randint(1, 12)):
        a = rng.randint(0, len(data) - 1)
        segments.append((a, data[a:a + rng.randint(1, 60)]))
    there = {n for a, part in segments for n in range(a, a + len(part))}
    pieces = [piece for a, part in segments for piece in stream.segment(0xFFFFFF80 + a, part)]
    pieces += stream.rest()
    at = 0
    for piece in pieces:
        if piece.gap:
            assert not there & set(range(at, at + piece.gap))
            at += piece.gap
        else:
            assert piece.data == data[at:at + len(piece.data)]
            at += len(piece.data)
    assert at == max(there) + 1


def test_what_is_missing_is_lost_and_the_rest_goes_on(tmp_path: Path) -> None:
    talk = Talk()
    talk.opened()
    for way, data in wire():
        talk.sent(way, data)
    del talk.packets[10]        # the publish of a/4
    talk.closed()
    done, rows = imported(tmp_path, [talk])
    topics = [row["topic"] for row in rows if row["kind"] == "PUBLISH"]
    assert topics == [f"a/{n}" for n in range(1, 20) if n != 3]
    [lost] = [row for row in rows if row["kind"] == "lost"]
    assert lost["connection"] == 1 and json.loads(lost["detail"])["bytes"] == len(wire()[7][1])
    assert done.notes == [f"{len(wire()[7][1])} bytes of these connections are not in the capture"]


def test_a_connection_that_began_before_the_capture_is_picked_up(tmp_path: Path) -> None:
    talk = whole_talk()
    talk.packets = talk.packets[6:]
    _, rows = imported(tmp_path, [talk])
    topics = [row["topic"] for row in rows if row["kind"] == "PUBLISH"]
    assert topics == [f"a/{n}" for n in range(1, 20)]
    assert {row["direction"] for row in rows if row["kind"] == "PUBLISH"} == {"in"}
    assert rows[0]["kind"] == "opened" and {row["version"] for row in rows} == {None}


def test_the_middle_of_a_packet_is_not_taken_for_the_beginning_of_one(tmp_path: Path) -> None:
    talk = Talk()
    talk.packet(IN, ACK, b"\x30" * 50)
    talk.packet(IN, ACK, b"\xff" * 50)
    write_capture(tmp_path / "c.pcap", talk.packets)
    with pytest.raises(RecordingError, match="skipped: 1 connections that began before the capture"):
        imported_file(tmp_path)


def test_snap_length(tmp_path: Path) -> None:
    """Small packets are whole, of larger ones the end is missing."""
    done, rows = imported(tmp_path, [whole_talk()], snap=110)
    assert [row["topic"] for row in rows if row["kind"] == "PUBLISH"] == [f"a/{n}" for n in range(1, 5)]
    assert any("are not in the capture" in note for note in done.notes)


def test_reset_ends_it(tmp_path: Path) -> None:
    talk = Talk()
    talk.opened()
    talk.sent(IN, wire()[0][1])
    talk.packet(OUT, RST)
    _, rows = imported(tmp_path, [talk])
    assert (rows[-1]["kind"], json.loads(rows[-1]["detail"])) == (
        "closed", {"by": "broker", "reason": "reset", "code": 0})


@pytest.mark.parametrize("keep", [0.5, 0.9])
@pytest.mark.parametrize("form", ["pcap", "pcapng"])
def test_a_file_that_is_cut_off_gives_what_is_there(tmp_path: Path, keep: float, form: str) -> None:
    write_capture(tmp_path / "c.pcap", whole_talk().packets, form=form)
    data = (tmp_path / "c.pcap").read_bytes()
    (tmp_path / "c.pcap").write_bytes(data[:int(len(data) * keep) | 1])
    done, rows = imported_file(tmp_path)
    whole = compared(direct(wire()))
    assert compared(rows) == whole[:len(compared(rows))] and len(rows) > 5
    assert "the file ends within a packet; what came before it is there" in done.notes


@pytest.mark.parametrize(("content", "says"), [
    (b"", "neither a pcap nor a pcapng file"),
    (b"PK\x03\x04" + bytes(40), "neither a pcap nor a pcapng file"),
    (b"\xd4\xc3\xb2\xa1" + bytes(16) + b"\x69\0\0\0", "captures of link type 105 are not read"),
    (b"\xd4\xc3\xb2\xa1" + bytes(16) + b"\x01\0\0\0", "there is no MQTT and no AMQP 0-9-1 in it"),
])
def test_what_is_no_capture(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "c.pcap").write_bytes(content)
    with pytest.raises(RecordingError, match=says) as raised:
        imported_file(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("first", "says"), [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), "1 connections with TLS"),
    (b"GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", "1 connections of HTTP"),
    (b"AMQP\x00\x01\x00\x00" + bytes(20), "1 connections of another version of AMQP"),
    (b"SSH-2.0-OpenSSH_9.9\r\n", "1 connections of other protocols"),
])
def test_what_is_skipped_is_told(tmp_path: Path, first: bytes, says: str) -> None:
    other = Talk(client=("10.0.0.7", 5555))
    other.opened()
    other.sent(IN, first)
    done, rows = imported(tmp_path, [whole_talk(), other])
    assert any(says in note for note in done.notes)
    assert compared(rows) == compared(direct(wire()))


def test_a_packet_without_end_is_malformed_whoever_sends_it(tmp_path: Path) -> None:
    """A CONNACK whose length has no last byte: what follows is not looked at for who is connected."""
    talk = open_talk()
    talk.sent(IN, encode_packet(Connect(client_id="c"), 5))
    talk.sent(OUT, b"\x20\xff\xff\xff\xff")
    _, rows = imported(tmp_path, [talk])
    assert [row["kind"] for row in rows] == ["opened", "CONNECT", "malformed"]


def test_the_largest_delivery_tag_there_is(tmp_path: Path) -> None:
    """A broker never gives it; a capture may say so, and nobody counts on from there."""
    talk = open_talk(server=("10.0.0.2", 5672))
    talk.sent(IN, b"AMQP\0\0\x09\x01")
    deliver = BasicDeliver(consumer_tag="c", delivery_tag=2**64 - 1, exchange="", routing_key="k").frame(1)
    talk.sent(OUT, deliver + b"\x02\0\1\0\0\0\x0e\0\x3c\0\0" + bytes(8) + b"\0\0\xce")
    talk.sent(IN, BasicAck(delivery_tag=2**64 - 1, multiple=True).frame(1))
    _, rows = imported(tmp_path, [talk])
    assert [row["kind"] for row in rows] == ["opened", "protocol-header", "basic.deliver", "basic.ack"]


@pytest.mark.parametrize("response", [b"user\0SECRET", b"\0user\0SECRET\0more", b"SECRET", b"a\0SECRET"])
def test_a_sasl_response_that_is_none_gives_no_user(tmp_path: Path, response: bytes) -> None:
    """Which part of it is the password, nobody knows."""
    talk = open_talk(server=("10.0.0.2", 5672))
    talk.sent(IN, b"AMQP\0\0\x09\x01")
    talk.sent(IN, ConnectionStartOk(mechanism="PLAIN", response=response).frame(0))
    talk.sent(IN, ConnectionOpen(virtual_host="/").frame(0))
    talk.sent(OUT, ConnectionOpenOk().frame(0))
    _, rows = imported(tmp_path, [talk])
    [accepted] = [row for row in rows if row["kind"] == "accepted"]
    assert json.loads(accepted["detail"])["user"] == ""
    assert "SECRET" not in str(rows)


def test_a_time_that_cannot_be_and_a_header_that_is_none_are_passed_over(tmp_path: Path) -> None:
    talk = whole_talk()
    rows_before = len(CHATTER) + 3          # opened, accepted, closed
    whole = len(talk.packets)
    talk.packets.append((0xFFFFFFFF << 32, talk.packets[-1][1]))
    broken = bytearray(talk.packets[-1][1])
    broken[20 + 12] = 4 << 4
    talk.packets.append((talk.clock, bytes(broken)))
    write_capture(tmp_path / "c.pcap", talk.packets, form="pcapng")
    done, rows = imported_file(tmp_path)
    assert done.packets == whole + 1 and len(rows) == rows_before
    assert [note for note in done.notes if note.startswith("passed over")] == [
        "passed over: 1 packets cut within their headers", "passed over: 1 packets of a time that cannot be"]


def test_a_connection_of_nothing_known_in_tiny_pieces(tmp_path: Path) -> None:
    talk = Talk(server=("127.0.0.1", 4000), client=("127.0.0.1", 4001))
    for _ in range(5_000):
        talk.sent(IN, b"z")
    other = open_talk()
    other.sent(IN, encode_packet(Connect(client_id="c"), 5))
    done, _ = imported(tmp_path, [talk, other])
    assert done.skipped == {"connections of other protocols": 1}


def test_ports_that_were_skipped_may_be_used_again(tmp_path: Path) -> None:
    """The end of the first connection is not in the capture."""
    first, second = open_talk(), open_talk(start=START + 10**9)
    first.sent(IN, b"\x16\x03\x01" + bytes(100))
    second.sent(IN, encode_packet(Connect(client_id="c"), 5))
    done, rows = imported(tmp_path, [first, second])
    assert [row["kind"] for row in rows] == ["opened", "CONNECT"]
    assert done.skipped == {"connections with TLS, whose bytes say nothing": 1}


def test_an_import_says_how_far_it_is(tmp_path: Path) -> None:
    talks = [whole_talk(client=("127.0.0.1", 20_000 + n)) for n in range(20)]
    packets = [packet for talk in talks for packet in talk.packets]
    write_capture(tmp_path / "c.pcap", packets)
    told: list[tuple[float, int]] = []
    done = import_capture(tmp_path / "c.pcap", tmp_path / "r", RecordOptions(),
                          progress=lambda *far: told.append(far))
    assert told == sorted(told) and told[-1][1] == done.packets == len(packets)
    assert 0.0 == told[0][0] < told[-1][0] <= 1.0


def test_a_capture_with_nothing_in_it_leaves_the_directory_free(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.pcap", [])
    for _ in range(2):
        with pytest.raises(RecordingError, match="there is no MQTT and no AMQP 0-9-1 in it"):
            imported_file(tmp_path)


def test_the_command(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.pcap", whole_talk().packets[:-3])
    command = [sys.executable, "-P", "-m", "fluxmq", "record"]

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *map(str, words)], env=environment(), capture_output=True, text=True,
                              timeout=60)

    done = run("import", tmp_path / "c.pcap", tmp_path / "r")
    assert (done.returncode, done.stderr) == (0, "") and "1 connections" in done.stdout
    shown = run("show", tmp_path / "r")
    assert shown.returncode == 0 and "a capture" in shown.stdout and "capture ended" in shown.stdout
    as_json = run("show", "--json", tmp_path / "r")
    assert json.loads(as_json.stdout)["files"] == ["part-000001.parquet"]
    again = run("import", tmp_path / "c.pcap", tmp_path / "r")
    assert again.returncode != 0 and "there is something in it already" in again.stderr
    assert "Traceback" not in again.stderr


# ── other people's brokers ───────────────────────────────────────────────────────────────────────────────────


class Relay:
    """A TCP relay for one connection, that writes down what passes."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.pieces: list[tuple[int, int, bytes]] = []      # time, way, bytes
        self.lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        near, _ = self.listener.accept()
        self.listener.close()
        far = socket.create_connection(("127.0.0.1", self.target))
        ways = [threading.Thread(target=self.carry, args=args) for args in ((near, far, IN), (far, near, OUT))]
        for way in ways:
            way.start()
        for way in ways:
            way.join()
        near.close()
        far.close()

    def carry(self, source: socket.socket, target: socket.socket, kind: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self.lock:
                    self.pieces.append((time.time_ns(), kind, data))
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def capture(self, path: Path, port: int) -> None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        talk = Talk(client=("127.0.0.1", 45678), server=("127.0.0.1", port))
        talk.opened()
        for when, kind, data in self.pieces:
            talk.sent(kind, data, sizes=[1400] * (len(data) // 1400), time=when)
        talk.closed()
        write_capture(path, talk.packets, form="pcap-ns")

    def rows(self, protocol: int) -> list[dict[str, Any]]:
        """What a tap's entries of the same bytes give. Whole packets: a read may end anywhere."""
        rest = {IN: b"", OUT: b""}
        pieces = []
        for _, kind, data in self.pieces:
            held = rest[kind] + data
            whole = max(whole_packets(held, protocol == AMQP091), 0)
            rest[kind] = held[whole:]
            if whole:
                pieces.append((kind, held[:whole]))
        assert rest == {IN: b"", OUT: b""}
        return direct(pieces, protocol)


def test_mosquitto(tmp_path: Path) -> None:
    import paho.mqtt.client as paho

    program = require_tool("mosquitto", package="mosquitto")
    port = free_port()
    config = tmp_path / "m.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    broker = subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert broker.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
        relay = Relay(port)
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "paho-1", protocol=paho.MQTTv5)
        client.username_pw_set("user", "s3cret-word")
        got: list[bytes] = []
        subscribed, done = threading.Event(), threading.Event()
        client.on_subscribe = lambda *words: subscribed.set()
        client.on_message = lambda _, __, message: (got.append(message.payload), len(got) == 30 and done.set())
        client.connect("127.0.0.1", relay.port)
        client.loop_start()
        client.subscribe("p/#", qos=2)
        assert subscribed.wait(20)
        for n in range(30):
            client.publish(f"p/{n % 3}", bytes([n]) * 100 * n, qos=n % 3).wait_for_publish(20)
        assert done.wait(20)
        client.disconnect()
        client.loop_stop()
        relay.capture(tmp_path / "c.pcap", 1883)
    finally:
        broker.terminate()
        broker.wait(20)
    _, rows = imported_file(tmp_path)
    assert compared(rows) == compared(relay.rows(MQTT))
    kinds = [row["kind"] for row in rows]
    assert kinds.count("PUBLISH") == 60 and kinds.count("PUBCOMP") == 20 and "malformed" not in kinds
    assert all(row["answers"] is not None for row in rows if row["kind"] in ("PUBACK", "PUBREC", "PUBCOMP", "SUBACK"))
    assert not any(b"s3cret" in part.read_bytes() for part in open_recording(tmp_path / "r").parts)
    assert "s3cret" not in repr(rows)


def test_rabbitmq(tmp_path: Path) -> None:
    import pika

    node = RabbitNode(tmp_path / "rabbit").start()
    try:
        relay = Relay(node.amqp[1])
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", relay.port, heartbeat=0))
        channel = connection.channel()
        channel.queue_declare("orders")
        channel.confirm_delivery()
        for n in range(20):
            channel.basic_publish("", "orders", bytes([n]) * 10_000 * (n % 3), pika.BasicProperties(
                content_type="text/plain", delivery_mode=2, headers={"n": n, "deep": {"list": [1, "x", None]}}))
        for got, (method, _, _) in enumerate(channel.consume("orders"), 1):
            channel.basic_ack(method.delivery_tag, multiple=True)
            if got == 20:
                break
        channel.cancel()
        connection.close()
        relay.capture(tmp_path / "c.pcap", 5672)
    finally:
        node.stop()
    _, rows = imported_file(tmp_path)
    # The tap's connection is not called what the capture's is.
    leave = ("client_id", "version")
    assert compared(rows, leave=leave) == compared(relay.rows(AMQP091), leave=leave)
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("basic.publish"), kinds.count("basic.deliver"), kinds.count("malformed")) == (20, 20, 0)
    assert [row["packet_id"] for row in rows if row["kind"] == "basic.publish"] == list(range(1, 21))
    assert all(row["answers"] is not None and row["ack_latency"] >= 0 for row in rows if row["kind"] == "basic.ack")
    published = [row for row in rows if row["kind"] == "basic.publish"]
    assert [row["digest"] for row in published] == [row["digest"] for row in rows if row["kind"] == "basic.deliver"]
    assert json.loads(published[3]["properties"])["headers"] == {"n": 3, "deep": {"list": [1, "x", None]}}
    assert "PLAIN" in repr(rows) and "guest\\x00guest" not in repr(rows) and "response" not in repr(
        [row["detail"] for row in rows])
    accepted = [json.loads(row["detail"]) for row in rows if row["kind"] == "accepted"]
    assert accepted == [{"client_id": "amqp091-1", "user": "guest", "vhost": "/", "version": 91}]
