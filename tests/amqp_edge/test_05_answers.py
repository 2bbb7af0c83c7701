"""Who does not read what it asked for costs the broker a bounded amount of memory, loses nothing, and holds nobody up;
what waits for the disk is neither shown nor settled before it is there."""
from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker
from kit.node import Node
from kit.python import TESTS, environment
from kit.slowdisk import SlowDisk
from kit.standstill import stand_still
from oracle.amqp091 import METHOD, encode_frame, encode_method

HIGH, LOW = 256 * 1024, 64 * 1024
BODY = bytes(50_000)
PATIENCE_SECONDS = 30.0             # only a failing test waits for it
PERSISTENT = {"delivery_mode": 2}
PAUSE_ANSWERS = 4                   # of _core/net/transport.pxd


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path, {"server.amqp091.plain.addr": "127.0.0.1:0", "session.send_buffer_high": HIGH,
                          "session.send_buffer_low": LOW, "server.shutdown_timeout": "1s"})
    yield one
    one.stop()


def connect(where: tuple[str, int]) -> Wire:
    wire = Wire(where).login()
    wire.open_channel(1)
    return wire


def address(node: Node) -> tuple[str, int]:
    return next(bound[0] for path, _, bound in node.server.listeners.opened if "amqp091" in path)


def connections(node: Node) -> list[tuple[int, bool]]:
    """(bytes that wait to be sent, whether it is not read because nobody takes answers) of all connections."""
    return node.call(lambda server: [(client.connection.pending, bool(client.connection.paused & PAUSE_ANSWERS))
                                     for client in server.amqp091.clients.open.values()])


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def fill(wire: Wire, queue: str, count: int, body: bytes = BODY, **arguments: Any) -> None:
    wire.call(1, "queue.declare", queue=queue, **arguments)
    wire.open_channel(9)
    wire.call(9, "confirm.select")
    wire.send_raw(b"".join(wire.encode_publish(9, "", queue, b"%06d" % n + body, PERSISTENT) for n in range(count)))
    while wire.expect(9, "basic.ack")["delivery_tag"] < count:
        pass


def send_and_do_not_read(node: Node, wire: Wire, raw: bytes) -> threading.Thread:
    """Sends all of it as far as the broker reads, until the broker stops to."""
    wire.socket.settimeout(None)
    sender = threading.Thread(target=wire.send_raw, args=(raw,), daemon=True)
    sender.start()
    until(lambda: any(paused for _, paused in connections(node)), "it is read although it does not read")
    return sender


def test_returns_that_nobody_reads(node: Node) -> None:
    wire = connect(address(node))
    one = wire.encode_publish(1, "", "nowhere", BODY, mandatory=True)
    sender = send_and_do_not_read(node, wire, one * 400)
    assert max(connections(node))[0] <= 2 * HIGH + 2 * len(one)
    for _ in range(400):
        assert wire.expect_content(1, "basic.return").body == BODY
    sender.join(PATIENCE_SECONDS)
    wire.close()


@pytest.mark.parametrize("durable", [False, True])
def test_a_hundred_basic_gets_in_one_breath(node: Node, durable: bool) -> None:
    wire = connect(address(node))
    fill(wire, "q", 200, durable=durable)
    get = encode_frame(METHOD, 1, encode_method("basic.get", queue="q"))
    sender = send_and_do_not_read(node, wire, get * 200)
    assert max(connections(node))[0] <= 2 * HIGH + 2 * len(BODY)
    assert [int(wire.expect_content(1, "basic.get-ok").body[:6]) for _ in range(200)] == list(range(200))
    sender.join(PATIENCE_SECONDS)
    wire.close()


@pytest.mark.parametrize("durable", [False, True])
def test_a_consumer_that_does_not_read(node: Node, durable: bool) -> None:
    """Prefetch 0: it gets what its buffer takes; another one gets the rest."""
    wire, lazy = connect(address(node)), connect(address(node))
    fill(wire, "q", 600, durable=durable)
    lazy.call(1, "basic.consume", queue="q")
    until(lambda: max(connections(node))[0] > LOW, "nothing is sent")
    wire.call(1, "basic.consume", queue="q")
    got = set()

    def take() -> None:
        content = wire.expect_content(1)
        assert int(content.body[:6]) not in got
        got.add(int(content.body[:6]))
        wire.send(1, "basic.ack", delivery_tag=content.arguments["delivery_tag"])

    for _ in range(50):
        take()
    assert max(connections(node))[0] <= HIGH + 2 * len(BODY)
    lazy.drop()
    while len(got) < 600:
        take()
    wire.close()


def test_a_consumer_that_never_acknowledges(node: Node) -> None:
    """It keeps what its prefetch lets it have, and gets nothing more; others go on."""
    wire, miser = connect(address(node)), connect(address(node))
    fill(wire, "q", 100, b"", durable=True)
    miser.call(1, "basic.qos", prefetch_count=7)
    miser.call(1, "basic.consume", queue="q")
    kept = {int(miser.expect_content(1).body) for _ in range(7)}
    assert miser.nothing_waits()
    wire.call(1, "basic.consume", queue="q", no_ack=True)
    assert {int(wire.expect_content(1).body) for _ in range(93)} == set(range(100)) - kept
    miser.drop()
    again = [wire.expect_content(1) for _ in range(7)]
    assert {int(content.body) for content in again} == kept
    assert all(content.arguments["redelivered"] for content in again)
    wire.close()


# ── a disk that stands still ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SlowDisk, Broker]]:
    disk = SlowDisk(tmp_path, monkeypatch)
    broker = Broker(tmp_path / "broker").start()
    yield disk, broker
    try:
        broker.check()
    finally:
        broker.stop()


def test_what_nobody_has_seen_is_not_settled(slow: tuple[SlowDisk, Broker]) -> None:
    """Ack 0 with multiple means what was delivered, and not what waits for the disk yet."""
    disk, broker = slow
    wire = connect(broker.addresses["amqp091/plain"])
    fill(wire, "q", 10, b"", durable=True)
    wire.call(1, "basic.consume", queue="q", consumer_tag="c")
    seen = [wire.expect_content(1) for _ in range(10)]
    with disk.held():
        wire.send(1, "basic.nack", delivery_tag=seen[4].arguments["delivery_tag"], requeue=True)
        assert wire.nothing_waits()
        wire.send(1, "basic.ack", delivery_tag=0, multiple=True)
        assert wire.nothing_waits()
    back = wire.expect_content(1)
    assert (back.body, back.arguments["redelivered"]) == (seen[4].body, True)
    wire.send(1, "basic.ack", delivery_tag=back.arguments["delivery_tag"])
    assert wire.nothing_waits()
    wire.call(1, "basic.cancel", consumer_tag="c")
    assert wire.get(1, "q") is None


@pytest.mark.parametrize("publishes", [0, 1])
def test_commit_is_answered_when_it_is_on_disk(slow: tuple[SlowDisk, Broker], publishes: int) -> None:
    disk, broker = slow
    wire = connect(broker.addresses["amqp091/plain"])
    fill(wire, "q", 3, b"", durable=True)
    wire.call(1, "tx.select")
    last = [wire.get(1, "q", no_ack=False) for _ in range(3)][-1]
    assert last is not None
    with disk.held():
        wire.send(1, "basic.ack", delivery_tag=last.arguments["delivery_tag"], multiple=True)
        for _ in range(publishes):
            wire.publish(1, "", "q", b"new", PERSISTENT)
        wire.send(1, "tx.commit")
        wire.call(2, "channel.open")
        assert wire.nothing_waits(2)
        assert not [name for channel, name, _ in wire._waiting if channel == 1]
    wire.expect(1, "tx.commit-ok")
    broker.kill()
    broker.start()
    wire = connect(broker.addresses["amqp091/plain"])
    assert wire.call(1, "queue.declare", queue="q", passive=True)["message_count"] == publishes


def test_a_client_that_is_stopped(slow: tuple[SlowDisk, Broker], tmp_path: Path) -> None:
    """SIGSTOP of the process of a consumer with prefetch 0: others publish and get their confirms."""
    _, broker = slow
    where = broker.addresses["amqp091/plain"]
    wire = connect(where)
    fill(wire, "q", 10, durable=True)
    program = ("import sys\nfrom kit.amqp_wire import Wire\nwire = Wire(('127.0.0.1', int(sys.argv[1]))).login()\n"
               "wire.open_channel(1)\nwire.call(1, 'basic.consume', queue='q')\nwire.expect_content(1)\n"
               "print('here', flush=True)\nwhile True: wire.expect_content(1)\n")
    with subprocess.Popen([sys.executable, "-c", program, str(where[1])], stdout=subprocess.PIPE,
                          env=environment(TESTS)) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == b"here"
            stand_still(process.pid)
            other = connect(where)
            fill(other, "q", 1000, durable=True)
            other.call(1, "basic.consume", queue="q")
            first = other.expect_content(1)
            assert first.body[6:] == BODY
            count = wire.call(1, "queue.declare", queue="q", durable=True)
            assert count["consumer_count"] == 2
        finally:
            process.kill()


# ── confirms come before the end ──────────────────────────────────────────────────────────────────


def confirms_then(wire: Wire, last: str) -> int:
    """The tag up to which publishes are confirmed by Basic.Acks that come before the method `last`."""
    confirmed = 0
    while True:
        _, name, arguments = wire._waiting.pop(0) if wire._waiting else wire.read_method()
        if name == last:
            return confirmed
        assert name == "basic.ack", name
        assert isinstance(arguments, dict)
        confirmed = arguments["delivery_tag"]


def in_one_write(wire: Wire, key: str, count: int, *then: bytes) -> None:
    wire.send_raw(b"".join([*(wire.encode_publish(1, "", key, b"x", PERSISTENT) for _ in range(count)), *then]))


def frame(channel: int, name: str, **arguments: Any) -> bytes:
    return encode_frame(METHOD, channel, encode_method(name, **arguments))


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("key", ["nowhere", "q"])
def test_confirms_come_before_close_ok(node: Node, key: str, durable: bool) -> None:
    wire = connect(address(node))
    wire.call(1, "queue.declare", queue="q", durable=durable)
    wire.call(1, "confirm.select")
    in_one_write(wire, key, 10, frame(1, "channel.close", reply_code=200))
    assert confirms_then(wire, "channel.close-ok") == 10
    wire.open_channel(1)
    assert wire.nothing_waits()
    wire.call(1, "confirm.select")
    in_one_write(wire, key, 7, frame(1, "queue.declare", queue="missing", passive=True))
    assert confirms_then(wire, "channel.close") == 7
    wire.send(1, "channel.close-ok")
    wire.open_channel(1)
    wire.call(1, "confirm.select")
    in_one_write(wire, key, 5, frame(0, "connection.close", reply_code=200))
    assert confirms_then(wire, "connection.close-ok") == 5


def test_a_close_waits_for_confirms_that_wait_for_the_disk(slow: tuple[SlowDisk, Broker]) -> None:
    """What was published is confirmed when it is there, and only then the channel is closed; a client that opens it
    again without waiting finds it in that order."""
    disk, broker = slow
    wire = connect(broker.addresses["amqp091/plain"])
    wire.call(1, "queue.declare", queue="q", durable=True)
    wire.call(1, "confirm.select")
    with disk.held():
        in_one_write(wire, "q", 3, frame(1, "channel.close", reply_code=200), frame(1, "channel.open"))
        wire.call(2, "channel.open")
        assert not [name for channel, name, _ in wire._waiting if channel == 1]
    assert confirms_then(wire, "channel.close-ok") == 3
    wire.expect(1, "channel.open-ok")
    assert wire.nothing_waits()
    wire.call(1, "confirm.select")
    with disk.held():
        in_one_write(wire, "q", 2, frame(0, "connection.close", reply_code=200))
    assert confirms_then(wire, "connection.close-ok") == 2
