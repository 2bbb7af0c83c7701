"""Connections that cannot be accepted, never speak, speak too slowly, or come all at once."""
from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.broker import Broker, add_user
from kit.client import KEPT, TIMEOUT, Client, Closed
from kit.readable import is_readable
from kit.watch import Memory, a_handful, metric, metrics, wait_until
from kit.websocket import WebSocket
from oracle.mqtt import Connack, Connect, Publish, Will, parse

from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller

Start = Callable[..., Broker]
Connected = Callable[..., Client]


@pytest.fixture
def sockets() -> Iterator[Callable[[Broker, int], list[socket.socket]]]:
    """Opens many plain connections."""
    opened: list[socket.socket] = []

    def open_(broker: Broker, count: int) -> list[socket.socket]:
        new = [socket.create_connection(broker.address, TIMEOUT) for _ in range(count)]
        opened.extend(new)
        return new

    yield open_
    for raw in opened:
        raw.close()


def closed(raw: socket.socket) -> bool:
    """The broker has closed it, whatever it said before."""
    raw.settimeout(TIMEOUT)
    with contextlib.suppress(ConnectionError):
        while raw.recv(65536):
            pass
    return True


def limit_descriptors(broker: Broker, soft: int) -> None:
    assert broker.process is not None
    _, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (soft, hard))


def descriptors(broker: Broker) -> int:
    assert broker.process is not None
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def test_no_descriptors_left(start_broker: Start, connect: Connected,
                             sockets: Callable[[Broker, int], list[socket.socket]]) -> None:
    """EMFILE: no spinning, a line and a count, and whoever waited gets in when there is room again."""
    broker = start_broker()
    inside = connect(broker)
    metric(broker, "fluxmq_connections")
    before = descriptors(broker)
    limit_descriptors(broker, before + 5)
    outside = sockets(broker, 12)
    wait_until(lambda: "cannot accept connections" in broker.stderr())
    assert descriptors(broker) <= before + 5
    inside.publish("t", b"x", 1)            # who is in is served
    # One attempt per second, as one line per second: the number of attempts tells whether it spins, a spin makes
    # thousands of them.
    wait_until(lambda: broker.stderr().count("cannot accept") >= 3)
    for raw in outside[:8]:
        raw.close()
    waiting = Client(outside[-1])
    waiting.connect("waited")
    waiting.expect_quiet()
    failures = metric(broker, "fluxmq_accept_failures_total")
    assert 3 <= failures <= 100
    assert broker.stderr().count("cannot accept") <= failures
    assert "raise the limit of open files" in broker.stderr()


def test_all_sockets_of_a_listener_accept() -> None:
    """A name with several addresses is one listener with several sockets; an event does not say which of them it is."""
    class Listening:
        def __init__(self) -> None:
            self.got = 0

        def accepted(self, fd: int, address: bytes) -> None:
            os.close(fd)
            self.got += 1

    poller, listener = Poller(Hub(None, 16, 0)), Listening()
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    for each in listening:
        each.setblocking(False)
        poller.add_listener(each.fileno(), listener)
    try:
        for count, each in enumerate(listening, 1):
            with socket.create_connection(each.getsockname()):
                wait_until(lambda: poller.turn() or listener.got == count)      # noqa: B023
    finally:
        for each in listening:
            poller.remove_listener(each.fileno())
            each.close()


def test_connections_that_never_speak(start_broker: Start, connect: Connected,
                                      sockets: Callable[[Broker, int], list[socket.socket]]) -> None:
    """2 000 of them: others are served, then read_timeout ends them all, and nothing stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(2000, (hard if hard > 0 else 2500) - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    broker = start_broker({"server.mqtt.tcp.plain.read_timeout": 3})
    inside = connect(broker)
    metric(broker, "fluxmq_connections")
    before = descriptors(broker)
    silent = sockets(broker, count)
    inside.publish("t", b"x", 1)
    assert all(closed(raw) for raw in silent)
    wait_until(lambda: descriptors(broker) <= before)
    assert metric(broker, "fluxmq_connect_refused_total", reason="timeout") == count
    told = [line for line in broker.stderr().splitlines() if "no CONNECT within" in line]
    assert len(told) <= a_handful(told)
    inside.expect_quiet()


def test_slow_loris(start_broker: Start) -> None:
    """One byte now and then does not prolong the time for CONNECT, over TCP and WebSocket."""
    broker = start_broker({"server.mqtt.tcp.plain.read_timeout": 2, "server.mqtt.websocket.plain.read_timeout": 2})
    data = Connect(client_id="x" * 500).encode()
    request = b"GET /mqtt HTTP/1.1\r\n" + b"X-Header: x\r\n" * 100
    for address, text in ((broker.address, data), (broker.websocket, request)):
        raw = socket.create_connection(address, TIMEOUT)
        try:
            for at in range(len(text)):
                with contextlib.suppress(ConnectionError):
                    raw.send(text[at:at + 1])
                if is_readable(raw, 0.02):
                    break
            else:
                pytest.fail("it stays open")
            assert closed(raw)
        finally:
            raw.close()
    assert metric(broker, "fluxmq_connect_refused_total", reason="timeout") == 2
    upgraded = WebSocket.open(broker.websocket)
    assert closed(upgraded.raw)         # and neither does an upgrade without a CONNECT
    upgraded.close()


def test_half_a_packet_then_silence(start_broker: Start, connect: Connected) -> None:
    """Keep alive ends it [MQTT-3.1.2-22], small and large packets alike; the will is published."""
    broker = start_broker()
    watcher = connect(broker)
    watcher.subscribe("will")
    clients = []
    for version in (4, 5):
        for half in (b"\x30\x64\x00\x01t", b"\x30\x80\x80\x08\x00\x01t" + bytes(100_000)):
            client = connect(broker, version=version, keep_alive=3, will=Will(topic="will", payload=b"gone"))
            client.send(half)
            clients.append(client)
    for client in clients:
        client.expect_closed(*((0x8D,) if client.version == 5 else ()))
        watcher.receive("will", b"gone")
    assert metric(broker, "fluxmq_disconnections_total", reason="keep_alive") == 4


def test_a_storm_of_takeovers(start_broker: Start, connect: Connected) -> None:
    """The same client identifier 200 times at once: one stays, the others are told, the session has one subscriber."""
    broker = start_broker()
    first = connect(broker, "same", **KEPT)
    first.subscribe("t", qos=1)
    packet = Connect(client_id="same", **KEPT).encode()
    raws = [socket.create_connection(broker.address, TIMEOUT) for _ in range(200)]
    try:
        for raw in raws:
            raw.sendall(packet)
        wait_until(lambda: metric(broker, "fluxmq_disconnections_total", reason="takeover") == 200)
        assert metric(broker, "fluxmq_connections") == 1
        assert metric(broker, "fluxmq_sessions") == 1
        publisher = connect(broker, "pub")
        publisher.publish("t", b"once", 1)
        alive = 0
        for raw in raws:
            raw.settimeout(TIMEOUT)
            data = raw.recv(65536)
            found = parse(data)
            assert found is not None and isinstance(found[0], Connack) and found[0].reason == 0
            data = found[1]
            while not data:
                data = raw.recv(65536)
            found = parse(data)
            assert found is not None
            if isinstance(found[0], Publish):
                alive += 1
            else:
                assert found[0].reason == 0x8E       # type: ignore[attr-defined]
        assert alive == 1
    finally:
        for raw in raws:
            raw.close()


@pytest.mark.soak
def test_a_storm_with_passwords(start_broker: Start, tmp_path: Path) -> None:
    """Hashes cost time: those that may wait are bounded, the others hear "busy" at once, and the broker goes on."""
    add_user(tmp_path / "users", "anna", "right")
    broker = start_broker({"auth.users_file": tmp_path / "users"})
    raws = [socket.create_connection(broker.address, TIMEOUT) for _ in range(400)]
    try:
        for number, raw in enumerate(raws):
            raw.sendall(Connect(client_id=f"c{number}", username="anna", password=b"wrong %d" % number).encode())
        assert metric(broker, "fluxmq_connections") == 0        # the page comes while the hashes are made
        reasons = []
        for raw in raws:
            client = Client(raw)
            client.timeout = 60
            try:
                reasons.append(client.expect(Connack).reason)
            except Closed:
                reasons.append(0)
        assert set(reasons) == {0x86, 0x89}
        seen = metrics(broker)
        assert seen['fluxmq_connect_refused_total{reason="credentials"}'] == reasons.count(0x86)
        assert reasons.count(0x86) < 300
    finally:
        for raw in raws:
            raw.close()
    good = Client(broker.address)
    good.connect("good", username="anna", password=b"right")
    good.close()
    assert broker.stderr().count("\n") < 40


def test_reconnects_leave_nothing_behind(start_broker: Start) -> None:
    """A session that comes and goes 3 000 times, each time to be kept for a day: its timers do not pile up."""
    broker = start_broker()
    packet = Connect(client_id="again", clean_start=False, properties={"session_expiry_interval": 86400},
                     will=Will(topic="w", payload=b"", properties={"will_delay_interval": 3600})).encode()

    def again(times: int) -> None:
        for _ in range(times):
            raw = socket.create_connection(broker.address, TIMEOUT)
            raw.sendall(packet)
            assert raw.recv(100)[0] == 0x20
            raw.close()

    again(500)
    memory = Memory(broker)
    again(2500)
    assert memory.grown < 400_000       # 5 000 timers alone would be more than that
    assert metric(broker, "fluxmq_sessions") == 1
