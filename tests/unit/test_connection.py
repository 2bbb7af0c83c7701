"""Connections driven by hand: a real socket, a real Poller, a handler of the test's own. Each test is a corner that
once was wrong, or that a stranger would try."""
from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import socket
import ssl
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.certs import issue, make_ca
from kit.python import environment

from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.connection import Connection
from fluxmq._core.net.poller import Poller

CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"  # only its first byte is looked at here
COLD = b"\xf0\x00"  # an empty AUTH: goes to the handler
UPGRADE = b"GET /mqtt HTTP/1.1\r\nHost: here\r\n\r\n"


class Handler:
    """What the edge would be: remembers, and does what the test hangs on it."""

    def __init__(self) -> None:
        self.packets: list[tuple[int, bytes]] = []
        self.errors: list[tuple[int, str]] = []
        self.crashes: list[BaseException] = []
        self.ended = 0
        self.on_first: Callable[[Connection], None] = lambda connection: None
        self.on_upgrade: Callable[[], None] = lambda: None

    def on_packet(self, connection: Connection, first: int, body: bytes) -> None:
        self.packets.append((first, body))
        if connection.state is None:
            connection.state = "connected"
            self.on_first(connection)

    def on_http(self, connection: Connection, head: bytes) -> tuple[bool, bytes]:
        self.on_upgrade()
        return True, b"HTTP/1.1 101 Switching Protocols\r\n\r\n"

    def on_error(self, connection: Connection, reason: int, text: str) -> None:
        self.errors.append((reason, text))

    def on_crash(self, connection: Connection, error: BaseException) -> None:
        self.crashes.append(error)

    def on_end(self, connection: Connection) -> None:
        self.ended += 1


class Bench:
    """One hub, one poller, and connections between the test and it."""

    def __init__(self) -> None:
        self.hub = Hub(None)
        self.poller = Poller(self.hub)
        self.handler = Handler()
        self.clients: list[socket.socket] = []

    def connect_tls(self, folder: Path) -> tuple[ssl.SSLSocket, Connection]:
        certificate, key = issue(make_ca(folder), "localhost")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate, key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_server(("127.0.0.1", 0)) as listening:
            raw = socket.create_connection(listening.getsockname(), 10)
            accepted, _ = listening.accept()
        accepted.setblocking(False)
        secure = server.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        connection = Connection(self.hub, secure.fileno(), self.poller.epoll, self.handler, secure)
        self.poller.adopt(connection)
        client = context.wrap_socket(raw, do_handshake_on_connect=False, suppress_ragged_eofs=False)
        client.setblocking(False)

        def done() -> bool:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                return False
            return True

        self.turn_until(done)
        client.settimeout(10)
        self.clients.append(client)
        return client, connection

    def connect(self, *, websocket: bool = False, receive_buffer: int = 0,
                server_buffer: int = 0) -> tuple[socket.socket, Connection]:
        with socket.socket() as listening:
            if receive_buffer:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, receive_buffer)
            if server_buffer:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, server_buffer)
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            client = socket.socket()
            if receive_buffer:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            client.connect(listening.getsockname())
            client.settimeout(10)
            accepted, _ = listening.accept()
        accepted.setblocking(False)
        connection = Connection(self.hub, accepted.detach(), self.poller.epoll, self.handler, None, websocket)
        self.poller.adopt(connection)
        self.clients.append(client)
        return client, connection

    def turn_until(self, done: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if done():
                return
            self.poller.turn()
        pytest.fail("it never came about")


@contextlib.contextmanager
def accepting() -> Iterator[Bench]:
    """A bench that accepts each CONNECT, with a session of its own."""
    made = Bench()

    def accept(connection: Connection) -> None:
        connection.accept(made.hub.new_session(b"c%d" % connection.number, 0), 100, 1 << 20, 0)

    made.handler.on_first = accept
    yield made
    assert not made.handler.crashes
    for client in made.clients:
        client.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert not made.handler.crashes
    for client in made.clients:
        client.close()


def arrived(connection: Connection) -> int:
    """Bytes that wait in the broker's socket."""
    return int(struct.unpack("i", fcntl.ioctl(connection.fd, termios.FIONREAD, bytes(4)))[0])


def masked(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A WebSocket frame of a client; the mask is zero."""
    n = len(payload)
    length = bytes((0x80 | min(n, 126),))
    if n >= 126:
        length = b"\xfe" + struct.pack(">H", n) if n < 65536 else b"\xff" + struct.pack(">Q", n)
    return bytes(((0x80 if fin else 0) | opcode,)) + length + bytes(4) + payload


def unmasked(data: bytes) -> list[tuple[int, bytes]]:
    """The frames of a server."""
    frames = []
    while data:
        n, at = data[1], 2
        if n == 126:
            n, at = struct.unpack(">H", data[2:4])[0], 4
        frames.append((data[0] & 0x0F, data[at:at + n]))
        data = data[at + n:]
    return frames


# ---------------------------------------------------------------- input

def test_the_clock_of_a_hub_is_read_between_turns() -> None:
    """A frame of another node comes when no turn was for long: what it brings expires from then on."""
    hub = Hub(None)
    hub.set_clock(1000, 2000)
    hub.refresh_clock()                 # nobody reads the machine's clocks here
    assert hub.now_ms == 1000
    poller = Poller(hub)
    hub.set_clock(1000, 2000)
    hub.refresh_clock()
    assert hub.now_ms > 1_700_000_000_000
    del poller


def test_what_waited_while_paused_comes_before_what_arrives(bench: Bench) -> None:
    """resume() outside of a turn, more bytes in the socket: they must not be read on top of a full carry."""
    bench.handler.on_first = lambda connection: connection.pause()
    client, connection = bench.connect(server_buffer=1 << 20)
    number = 115_000  # twice that is more than the buffer that all connections share
    for data in (CONNECT + COLD * number, COLD * number):
        client.sendall(data)
        while arrived(connection) < len(data):
            pass
        bench.poller.turn()
        assert connection.paused
    assert arrived(connection) == 2 * number
    connection.resume()
    bench.turn_until(lambda: len(bench.handler.packets) - 1 == 2 * number)
    assert set(bench.handler.packets[1:]) == {(0xF0, b"")}
    assert not bench.handler.errors


def test_a_pause_in_a_large_packet_holds_what_follows(bench: Bench) -> None:
    bench.handler.on_first = lambda connection: connection.pause()
    client, connection = bench.connect(websocket=True)
    large = b"\x10\xf0\xa2\x04" + bytes(70_000)  # received in memory of its own
    frame = masked(2, large + COLD)
    client.sendall(UPGRADE)
    bench.turn_until(lambda: connection.phase == 2)
    client.sendall(frame[:1000])
    for _ in range(10):
        bench.poller.turn()
    client.sendall(frame[1000:])
    bench.turn_until(lambda: connection.paused)
    assert [first for first, _ in bench.handler.packets] == [0x10]
    connection.resume()
    bench.turn_until(lambda: len(bench.handler.packets) == 2)
    assert not bench.handler.errors


def test_two_sockets_of_one_listener(bench: Bench) -> None:
    class Two:
        accepted_from = 0

        def accepted(self, fd: int, address: bytes) -> None:
            self.accepted_from += 1
            os.close(fd)

        def accept_failed(self, code: int) -> None:
            raise AssertionError(code)

    listener = Two()
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    try:
        for listening in sockets:
            listening.setblocking(False)
            bench.poller.add_listener(listening.fileno(), listener)
        for listening in sockets:
            bench.clients.append(socket.create_connection(listening.getsockname()))
        bench.turn_until(lambda: listener.accepted_from == 2)
        for listening in sockets:
            bench.poller.remove_listener(listening.fileno())
    finally:
        for listening in sockets:
            listening.close()


# ---------------------------------------------------------------- WebSocket

def test_a_peer_that_resets_during_the_upgrade_is_closed_once(bench: Bench) -> None:
    client, connection = bench.connect(websocket=True)

    def reset() -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    bench.handler.on_upgrade = reset
    number = connection.fd
    client.sendall(UPGRADE)
    bench.turn_until(lambda: bench.handler.ended == 1)
    bench.turn_until(lambda: not bench.poller.connections)
    assert connection.phase == 5
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]  # one of them has the number now
    assert number in others
    connection.state = None
    del connection
    gc.collect()
    for other in others:
        os.close(other)  # EBADF if somebody else has closed it


def test_frames_right_behind_the_upgrade(bench: Bench) -> None:
    client, _ = bench.connect(websocket=True)
    payloads = [bytes(3), b"x" * 200, b"y" * 1000]
    lengths = [b"\x03", b"\xc8\x01", b"\xe8\x07"]
    packets = CONNECT + b"".join(b"\xf0" + length + payload for length, payload in zip(lengths, payloads, strict=True))
    client.sendall(UPGRADE + masked(2, packets))
    bench.turn_until(lambda: len(bench.handler.packets) == 4)
    assert [body for _, body in bench.handler.packets[1:]] == payloads


def test_pongs_answer_the_latest_ping_and_no_data_follows_a_close(bench: Bench) -> None:
    client, connection = bench.connect(websocket=True)
    client.sendall(UPGRADE)
    bench.turn_until(lambda: connection.phase == 2)
    assert client.recv(1000).startswith(b"HTTP/1.1 101")
    bench.handler.on_first = lambda connection: connection.write(b"answer")
    client.sendall(masked(9, b"one") + masked(9, b"two") + masked(8, b"\x03\xe8bye") + masked(2, CONNECT))
    bench.turn_until(lambda: connection.ended)
    bench.turn_until(lambda: connection.pending == 0)
    assert unmasked(client.recv(1000)) == [(10, b"two"), (8, b"\x03\xe8")]
    client, connection = bench.connect(websocket=True)
    client.sendall(UPGRADE)
    bench.turn_until(lambda: connection.phase == 2)
    assert client.recv(1000).startswith(b"HTTP/1.1 101")
    client.sendall(masked(2, CONNECT) + masked(8, b""))
    bench.turn_until(lambda: connection.ended and connection.pending == 0)
    assert unmasked(client.recv(1000)) == [(2, b"answer"), (8, b"")]


# ---------------------------------------------------------------- output

@pytest.mark.parametrize("websocket", [False, True])
def test_a_client_that_reads_no_answers_is_not_read(bench: Bench, websocket: bool) -> None:
    bench.hub.set_limits(buffer_high=4096, buffer_low=4096)
    session = bench.hub.new_session(b"c", 0)
    bench.handler.on_first = lambda connection: connection.accept(session, 10, 0xFFFFFFFF, 0)
    client, connection = bench.connect(websocket=websocket, receive_buffer=8192)
    if websocket:
        client.sendall(UPGRADE)
        bench.turn_until(lambda: connection.phase == 2)
        assert client.recv(1000).startswith(b"HTTP/1.1 101")
    pings = b"\xc0\x00" * 500
    wrap: Callable[[bytes], bytes] = (lambda data: masked(2, data)) if websocket else (lambda data: data)
    flood = wrap(pings) * 100
    client.sendall(wrap(CONNECT))
    client.setblocking(False)
    sent, idle = 0, 0
    while idle < 50 and sent < 40_000_000:
        try:
            sent += client.send(flood[sent % len(flood):])
            idle = 0
        except BlockingIOError:
            idle += 1
        bench.poller.turn()
    assert connection.pending < 4 << 20, "what it does not read grows without a bound"
    assert connection.paused
    got = 0
    for _ in range(2000):
        try:
            got += len(client.recv(1 << 20))
        except BlockingIOError:
            bench.poller.turn()
    assert connection.pending == 0 and not connection.paused
    assert got >= sent * 9 // 10


def test_what_is_repeated_after_its_expiry_has_none_left(bench: Bench) -> None:
    session = bench.hub.new_session(b"c", 0)
    bench.hub.subscribe(session, b"t", 1, 0)

    def accept(connection: Connection) -> None:
        connection.set_version(5)
        connection.accept(session, 10, 0xFFFFFFFF, 0)

    bench.handler.on_first = accept
    client, connection = bench.connect()
    client.sendall(CONNECT)
    bench.turn_until(lambda: connection.open)
    bench.hub.publish_message(b"t", b"x", 1, expires_at=bench.hub.steady_ms + 5000)
    bench.poller.turn()
    assert client.recv(100) == b"\x32\x0c\x00\x01t\x00\x01\x05\x02\x00\x00\x00\x05x"
    connection.abort()
    client, connection = bench.connect()
    client.sendall(CONNECT)
    bench.handler.on_first = lambda connection: None
    bench.turn_until(lambda: connection.state is not None)
    bench.hub.resume_clock(bench.hub.steady_ms + 10_000, bench.hub.now_ms)
    accept(connection)
    bench.poller.turn()
    assert client.recv(100) == b"\x3a\x0c\x00\x01t\x00\x01\x05\x02\x00\x00\x00\x00x"


def test_an_expiry_that_is_longer_than_mqtt_can_say_is_the_longest(bench: Bench) -> None:
    """Other protocols count in milliseconds of 64 bits. MQTT 5.0 section 3.3.2.3.3: four bytes of seconds."""
    session = bench.hub.new_session(b"c", 0)
    bench.hub.subscribe(session, b"t", 0, 0)

    def accept(connection: Connection) -> None:
        connection.set_version(5)
        connection.accept(session, 10, 0xFFFFFFFF, 0)

    bench.handler.on_first = accept
    client, connection = bench.connect()
    client.sendall(CONNECT)
    bench.turn_until(lambda: connection.open)
    bench.hub.publish_message(b"t", b"x", 0, expires_at=bench.hub.steady_ms + ((1 << 32) + 5) * 1000)
    bench.poller.turn()
    assert client.recv(100) == b"\x30\x0a\x00\x01t\x05\x02\xff\xff\xff\xffx"


@pytest.mark.parametrize("unread", [0, 100_000])
def test_tls_ends_with_a_close_notify(bench: Bench, tmp_path: Path, unread: int) -> None:
    """Also when the client has sent what nobody will read: it gets our last bytes, and their end, all the same."""
    client, connection = bench.connect_tls(tmp_path)
    client.sendall(CONNECT)
    bench.turn_until(lambda: connection.state is not None)
    client.sendall(bytes(unread))
    connection.write(b"the last word")
    connection.end()
    bench.turn_until(lambda: connection.pending == 0)
    got = b""
    while data := client.recv(1000):
        got += data
    assert got == b"the last word"
    client.close()
    bench.turn_until(lambda: connection.phase == 5)


# ---------------------------------------------------------------- memory

LIFETIMES = """
import gc
from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.share_group import ShareGroup
class Cold: pass
hub = Hub(None)
for qos in (1, 2):
    session = hub.new_session(b"c", 0)
    session.data = Cold()
    session.data.session = session
    session.data.group = ShareGroup(b"g", b"f")
    session.data.group.join(session, 1, 7)
    hub.subscribe(session, b"t", qos, 3)
    for _ in range(100):
        hub.publish_message(b"t", b"x" * 100, qos)
    assert session.queued == 100
    hub.unsubscribe(session, b"t")
    session.data.hub = hub if qos == 2 else None
hub = None
del session
gc.collect()
print("well")
"""


def test_the_collector_takes_a_session_with_messages() -> None:
    """A session in a cycle, and then a whole hub in one, with messages still in line."""
    done = subprocess.run([sys.executable, "-P", "-c", LIFETIMES], env=environment(),
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")




def test_runs_of_one_topic_are_passed_on(bench: Bench) -> None:
    """QoS 0 PUBLISH of the last topic reach a subscriber as they came, a run at a time."""
    def open_(connection: Connection) -> None:
        session = bench.hub.new_session(b"c%d" % connection.fd, 0)
        connection.accept(session, 10, 1 << 20, 0)
        bench.hub.subscribe(session, b"t", 0, 0)

    bench.handler.on_first = open_
    clients = [bench.connect() for _ in range(2)]
    for client, connection in clients:
        connection.set_version(4)
        client.sendall(CONNECT)
        bench.turn_until(lambda c=connection: c.open)  # type: ignore[misc]
    packet = b"\x30\x07\x00\x01tabcd"
    (publisher, _), (subscriber, _) = clients
    publisher.sendall(packet * 1000)
    bench.turn_until(lambda: bench.hub.counters()["messages_received"][0] == 1000)
    got = b""
    while len(got) < len(packet) * 1000:
        got += subscriber.recv(65536)
    assert got == packet * 1000
    assert bench.hub.counters()["passed_on"] >= 990  # but the first of each topic, and those that a read cuts
