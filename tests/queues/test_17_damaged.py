"""A file of one queue is damaged: that queue stops and says so, the others go on."""
from __future__ import annotations

import random
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from crash.process import CrashBroker
from kit.client import Client, Nothing
from kit.command import run
from kit.watch import wait_until
from oracle.mqtt import Puback, Publish
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError
from queues.conftest import admin, consume, order, put

from fluxmq.app import exit_codes
from fluxmq.app.admin_client import AdminError

Connect = Callable[..., Client]

UNSPECIFIED = 0x80
MESSAGES = 160
END = b"the end"
DAMAGED = 80        # behind what one read brings in; not in the last file, which a start reads as a whole


def metric(broker: CrashBroker, name: str) -> float:
    host, port = broker.health
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name + " ")).split()[1])


def payload(queue: str, number: int) -> bytes:
    return random.Random(f"{queue} {number}").randbytes(20_000)


def flip(data: Path, wanted: bytes) -> Path:
    """Changes a bit of the message with this payload, in a segment. Returns which."""
    file = next(path for path in (data / "queues").glob("*/*.seg") if wanted in path.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.index(wanted) + 500] ^= 1
    file.write_bytes(content)
    return file


def stored(tmp_path: Path, connect: Connect, more: dict[str, str] | None = None,
           type: str = "classic") -> CrashBroker:
    """A broker that is down, with queues whose messages only segments have; type: of the one that is to be damaged."""
    broker = CrashBroker(tmp_path / "broker", {
        "queues": '[{"name": "good"}]', "queue_manager.segment_size": "1MiB", "queue_manager.compression": "none",
        **(more or {})}, {"FLUXMQ_TEST_FILE_BYTES": "100000"})
    broker.start()
    admin(broker, "PUT", "queues", "bad", body={"type": type})
    for name in ("bad", "good"):
        put(connect(broker), name, *(payload(name, number) for number in range(MESSAGES)))
    broker.restart()        # with a last checkpoint: nothing of it is in the journal
    broker.kill()
    return broker


@pytest.fixture
def broker(tmp_path: Path, connect: Connect) -> CrashBroker:
    """A byte of one message of `bad` is another now."""
    broker = stored(tmp_path, connect)
    flip(tmp_path / "broker" / "data", payload("bad", DAMAGED))
    broker.start()
    return broker


def read_all(broker: CrashBroker, connect: Connect, queue: str) -> list[bytes]:
    """Until END comes."""
    consumer = connect(broker)
    consumer.timeout = 30.0
    consume(consumer, queue, ack="manual", prefetch=5)
    came = []
    while END not in came:
        packet = consumer.receive()
        came.append(packet.payload)
        order(consumer, "ack", packet)
        consumer.transcript.clear()
    return came


def test_it_alone_stops(broker: CrashBroker, connect: Connect) -> None:
    try:
        consumer = connect(broker)
        consume(consumer, "bad", ack="manual", prefetch=2)
        consumer.timeout = 30.0
        held = consumer.receive()
        consumer.timeout = 0.3
        while admin(broker, "GET", "queues", "bad")["state"] == "running":
            try:
                packet = consumer.receive()
            except Nothing:
                continue
            consumer.timeout = 30.0
            order(consumer, "ack", packet)
            consumer.transcript.clear()
            consumer.timeout = 0.3
        consumer.timeout = 30.0
        described = admin(broker, "GET", "queues", "bad")
        assert ".seg is damaged at offset" in described["damage"] and "fluxmq log repair" in described["damage"]
        assert "a queue is stopped, the others go on" in broker.stderr()
        assert metric(broker, "fluxmq_queues_damaged") == 1
        order(consumer, "ack", held)        # what was in hand
        publisher = connect(broker)
        packet_id = publisher.next_packet_id()
        publisher.send(Publish(topic="$queue/bad", payload=b"x", qos=1, packet_id=packet_id))
        answer = publisher.answer(Puback, packet_id=packet_id)
        assert answer.reason == UNSPECIFIED and "damaged" in str(answer.prop("reason_string"))
        publisher.subscribe("$queue/bad", qos=1, expect=[UNSPECIFIED])
        with pytest.raises(AdminError, match="is stopped"):
            admin(broker, "POST", "queues", "bad", "messages", body={"payload": "x"})
        before = broker.checkpoints()
        other = connect(broker)
        other.timeout = 30.0
        consume(other, "good", ack="manual", prefetch=5)
        for _ in range(MESSAGES):
            order(other, "ack", other.receive())
            other.transcript.clear()
        put(connect(broker), "good", *(payload("good", number) for number in range(20)))
        wait_until(lambda: broker.checkpoints() > before)
        assert broker.terminate() == 0
        broker.start()
        assert admin(broker, "GET", "queues", "bad")["state"] == "running", "until somebody reads it"
        admin(broker, "DELETE", "queues", "bad")
        with pytest.raises(AdminError, match="no queue"):
            admin(broker, "GET", "queues", "bad")
        broker.check()
    finally:
        broker.stop()


@pytest.mark.parametrize("number", [DAMAGED, MESSAGES - 1], ids=["sealed file", "last file"])
def test_after_a_repair_the_rest_is_delivered(tmp_path: Path, connect: Connect, number: int) -> None:
    """Damage in the last batch of the file that is not sealed is found at the start, which reads what no later batch
    shows to have been synced: that stops nothing else either."""
    broker = stored(tmp_path, connect)
    data = tmp_path / "broker" / "data"
    file = flip(data, payload("bad", number))
    with broker:
        found_at_start = admin(broker, "GET", "queues", "bad")
        if number != DAMAGED:
            assert found_at_start["state"] == "damaged" and str(file) in found_at_start["damage"]
            publisher = connect(broker)
            publisher.subscribe("$queue/bad", qos=1, expect=[UNSPECIFIED])
        else:
            reader = connect(broker)
            consume(reader, "bad", ack="manual", prefetch=1000)
            wait_until(lambda: admin(broker, "GET", "queues", "bad")["state"] == "damaged")
        assert metric(broker, "fluxmq_queues_damaged") == 1
        put(connect(broker), "good", END)
        assert len(read_all(broker, connect, "good")) == MESSAGES + 1
        before = broker.checkpoints()
        put(connect(broker), "good", *(payload("good", each) for each in range(30)))
        wait_until(lambda: broker.checkpoints() > before)
        broker.kill()
        code, said = run("log", "repair", str(data))
        assert code == exit_codes.OK and str(file) in said, said
        broker.start()
        assert admin(broker, "GET", "queues", "bad")["state"] == "running"
        put(connect(broker), "bad", END)
        came = read_all(broker, connect, "bad")
        lost = [each for each in range(MESSAGES) if payload("bad", each) not in came]
        assert number in lost and lost[-1] - lost[0] == len(lost) - 1 <= 4, "one batch: 64 KiB"


@pytest.mark.parametrize("which", [0, -1, None], ids=["first file", "last file", "directory"])
def test_files_that_are_gone(tmp_path: Path, connect: Connect, which: int | None) -> None:
    """A checker of file systems took them, or a hand."""
    broker = stored(tmp_path, connect)
    data = tmp_path / "broker" / "data"
    wanted = payload("bad", 0)
    directory = next(path.parent for path in (data / "queues").glob("*/*.seg") if wanted in path.read_bytes())
    files = sorted(directory.glob("*.seg"))
    gone = files if which is None else [files[which]]
    content = b"".join(path.read_bytes() for path in gone)
    lost = [number for number in range(MESSAGES) if payload("bad", number) in content]
    assert len(files) > 2 and lost
    for path in gone:
        path.unlink()
    if which is None:
        directory.rmdir()
    code, said = run("log", "verify", str(data))
    assert code == exit_codes.FAILURE and directory.name in said and "missing" in said, said
    with broker:
        described = admin(broker, "GET", "queues", "bad")
        assert described["state"] == "damaged" and "missing" in described["damage"]
        assert str(directory) in described["damage"] and "fluxmq log repair" in described["damage"]
        put(connect(broker), "good", END)
        assert len(read_all(broker, connect, "good")) == MESSAGES + 1
        broker.restart()        # with a last checkpoint, which forgets nothing of it
        assert admin(broker, "GET", "queues", "bad")["state"] == "damaged"
        broker.kill()
        code, said = run("log", "repair", str(data))
        assert code == exit_codes.OK and "missing" in said, said
        assert run("log", "verify", str(data))[0] == exit_codes.OK
        broker.start()
        assert admin(broker, "GET", "queues", "bad")["state"] == "running"
        put(connect(broker), "bad", END)
        assert read_all(broker, connect, "bad") == [
            *(payload("bad", number) for number in range(MESSAGES) if number not in lost), END]


def test_a_stream_alone_stops_and_is_read_on_after_a_repair(tmp_path: Path, connect: Connect) -> None:
    broker = stored(tmp_path, connect, type="stream")
    data = tmp_path / "broker" / "data"
    file = flip(data, payload("bad", DAMAGED))
    with broker:
        reader = connect(broker)
        reader.timeout = 30.0
        consume(reader, "bad", consumer_group="g", offset="first")
        for number in range(20):        # those in front of the damage are not held back
            packet = reader.receive()
            assert packet.payload == payload("bad", number)
            reader.send(Puback(packet_id=packet.packet_id))
        wait_until(lambda: admin(broker, "GET", "queues", "bad")["state"] == "damaged")
        assert str(file) in admin(broker, "GET", "queues", "bad")["damage"]
        put(connect(broker), "good", END)
        assert len(read_all(broker, connect, "good")) == MESSAGES + 1
        broker.kill()
        code, said = run("log", "repair", str(data))
        assert code == exit_codes.OK and str(file) in said, said
        broker.start()
        put(connect(broker), "bad", END)
        again = connect(broker)
        again.timeout = 30.0
        consume(again, "bad", consumer_group="other", offset="first")
        came: list[bytes] = []
        while END not in came:
            packet = again.receive()
            came.append(packet.payload)
            again.send(Puback(packet_id=packet.packet_id))
        lost = [each for each in range(MESSAGES) if payload("bad", each) not in came]
        assert DAMAGED in lost and lost[-1] - lost[0] == len(lost) - 1 <= 4, "one batch: 64 KiB"
        assert came == [*(payload("bad", each) for each in range(MESSAGES) if each not in lost), END], "in order"


def test_what_comes_after_a_lost_message_is_not_taken_for_settled(tmp_path: Path, connect: Connect) -> None:
    """The batches with some messages went bad; that they were settled stands in others, and is kept."""
    broker = CrashBroker(tmp_path / "broker", {"queues": '[{"name": "q"}]'})
    broker.start()
    publisher, consumer = connect(broker), connect(broker)
    consumer.timeout = 30.0
    consume(consumer, "q", ack="manual", prefetch=50)
    for number in range(3):
        put(publisher, "q", b"lost %d" % number)
        order(consumer, "ack", consumer.receive())
    broker.kill()
    data = tmp_path / "broker" / "data"
    [path] = (data / "journal").glob("journal-*.log")
    content = path.read_bytes()
    assert content.count(b"lost ") == 3
    path.write_bytes(content.replace(b"lost ", b"LOST "))
    code, said = run("log", "repair", str(data))
    assert code == exit_codes.OK and "given up" in said, said
    with broker:
        put(connect(broker), "q", *(b"%d" % number for number in range(5)), END)
        assert read_all(broker, connect, "q") == [*(b"%d" % number for number in range(5)), END]


def test_a_log_without_files_may_be_deleted(tmp_path: Path, connect: Connect) -> None:
    broker = stored(tmp_path, connect)
    wanted = payload("bad", 0)
    directory = next(path.parent for path in (tmp_path / "broker/data/queues").glob("*/*.seg")
                     if wanted in path.read_bytes())
    shutil.rmtree(directory)
    with broker:
        assert admin(broker, "GET", "queues", "bad")["state"] == "damaged"
        admin(broker, "DELETE", "queues", "bad")
        broker.restart()
        assert "bad" not in {queue["name"] for queue in admin(broker, "GET", "queues")["queues"]}
        assert run("log", "verify", str(tmp_path / "broker" / "data"))[0] == exit_codes.OK


def test_a_log_that_cannot_be_opened_may_be_deleted(tmp_path: Path, connect: Connect) -> None:
    broker = stored(tmp_path, connect)
    file = flip(tmp_path / "broker" / "data", payload("bad", MESSAGES - 1))
    with broker:
        assert admin(broker, "GET", "queues", "bad")["state"] == "damaged"
        admin(broker, "DELETE", "queues", "bad")
        broker.restart()        # with a last checkpoint
        assert not file.parent.exists()


def amqp(broker: CrashBroker) -> pika.BlockingConnection:
    host, port = broker.addresses["amqp091/plain"]
    return pika.BlockingConnection(pika.ConnectionParameters(host, port))


@pytest.fixture
def damaged(tmp_path: Path, connect: Connect) -> Iterator[CrashBroker]:
    """With AMQP."""
    broker = stored(tmp_path, connect, {"server.amqp091.plain.addr": "127.0.0.1:0"})
    flip(tmp_path / "broker" / "data", payload("bad", DAMAGED))
    with broker:
        yield broker


def test_amqp_consumers_are_told(damaged: CrashBroker) -> None:
    connection = amqp(damaged)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    came = []
    for method, _, _ in channel.consume("bad"):     # until the broker cancels it
        came.append(method.delivery_tag)
        if len(came) > 1:
            channel.basic_ack(method.delivery_tag)
    assert 0 < len(came) <= DAMAGED
    channel.basic_ack(came[0])      # what was in hand; the channel goes on
    assert channel.queue_declare("good", passive=True).method.message_count == MESSAGES
    before = admin(damaged, "GET", "queues", "bad")
    assert (before["state"], before["unsettled"], before["consumers"]) == ("damaged", 0, 0)
    refusals: list[Callable[[BlockingChannel], object]] = [
        lambda channel: channel.queue_declare("bad", passive=True), lambda channel: channel.basic_get("bad"),
        lambda channel: channel.basic_consume("bad", lambda *_: None)]
    for refused in refusals:
        with pytest.raises(ChannelClosedByBroker, match=r"damaged.*fluxmq log repair") as said:
            refused(connection.channel())
        assert said.value.reply_code == 404
    publisher = connection.channel()
    publisher.confirm_delivery()
    with pytest.raises(NackError):
        publisher.basic_publish("", "bad", b"x")
    publisher.basic_publish("", "good", b"x")
    connection.close()


def test_who_gets_finds_out(damaged: CrashBroker) -> None:
    """It is not empty, which is what basic.get-empty would say."""
    connection = amqp(damaged)
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker, match="damaged") as said:
        for _ in range(MESSAGES):
            assert channel.basic_get("bad", auto_ack=True)[0] is not None
    assert said.value.reply_code == 404
    assert connection.channel().basic_get("good", auto_ack=True)[2] == payload("good", 0)
    connection.close()
