"""What histories have found, as short as it can be told: scripts for one simulated node."""
from __future__ import annotations

import errno
import random

import pytest
from oracle.mqtt import NEVER, Connack, Connect, Packet, Puback, Publish, Subscribe, Will, parse
from simulator.amqp_client import AmqpClient
from simulator.disk import Disk
from simulator.judge import Books, QueueBook
from simulator.node import Clock, Node, Options, Pipe

from fluxmq._core.errors import StorageError
from fluxmq.model.queues import QueueSpec


class Script:
    """One machine, whose disk loses what was not synced."""

    def __init__(self) -> None:
        self.disk, self.clock = Disk(random.Random(1)), Clock()
        self.start()

    def start(self) -> None:
        self.node = Node(self.disk, self.clock, Options(queues=[QueueSpec(name="q")]), random.Random(2),
                         lambda *told: None)
        self.node.start()
        self.write()

    def crash(self) -> None:
        self.disk.crash("kill")
        self.start()

    def write(self) -> None:
        """Everything that is recorded becomes durable."""
        for _ in range(6):
            self.node.turn()
            self.node.write_journal()
            while self.node.driver.threads:
                self.node.driver.run_thread()

    def connect(self, name: str, *, quiet: bool = True) -> Pipe:
        """quiet: what comes with CONNACK is thrown away."""
        pipe = self.node.accept_mqtt()
        self.send(pipe, Connect(client_id=name, clean_start=False, keep_alive=0,
                                properties={"session_expiry_interval": NEVER}))
        self.write()
        if quiet:
            received(pipe)
        return pipe

    def send(self, pipe: Pipe, *packets: Packet) -> None:
        for packet in packets:
            pipe.to_broker += packet.encode(5)
        self.node.turn()


def received(pipe: Pipe) -> list[Packet]:
    packets, data = [], bytes(pipe.to_client)
    pipe.to_client.clear()
    while (found := parse(data)) is not None:
        packet, data = found
        packets.append(packet)
    return packets


@pytest.fixture
def script() -> Script:
    return Script()


def test_a_repeated_publish_is_answered_when_the_first_one_is_on_disk(script: Script) -> None:
    """Another connection may publish it again while the first is still being written."""
    first, second = script.connect("first"), script.connect("second")
    sent = {"topic": "$queue/q", "payload": b"once", "qos": 1,
            "properties": {"user_property": [("producer-id", "p"), ("producer-sequence", "1")]}}
    script.send(first, Publish(packet_id=1, **sent))      # type: ignore[arg-type]
    script.send(second, Publish(packet_id=1, **sent))     # type: ignore[arg-type]
    assert received(first) == received(second) == []
    script.write()
    assert [type(one) for one in [*received(first), *received(second)]] == [Puback, Puback]
    third = script.connect("third")
    script.send(third, Publish(packet_id=1, **sent))      # type: ignore[arg-type]
    assert [type(one) for one in received(third)] == [Puback]      # nothing is under way: at once


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_identifier_that_a_client_has_not_released_is_not_given_again(script: Script, checkpoint: bool) -> None:
    """Of a QoS 2 delivery of a queue: after a crash the queue gives it again, and something else before it perhaps."""
    consumer = script.connect("consumer")
    script.send(consumer, Subscribe(packet_id=1, filters=[("$queue/q", 2)]))
    script.write()
    used: set[int | None] = set()
    for life in range(3):
        publisher = script.connect("publisher")
        script.send(publisher, *(Publish(topic="$queue/q", payload=b"%d" % number, qos=1, packet_id=number + 1)
                                 for number in range(5)))
        script.write()
        came = [one.packet_id for one in received(consumer) if isinstance(one, Publish)]
        assert len(came) == 5 * (life + 1)
        assert not used & set(came)
        used |= set(came)
        if checkpoint:
            script.node.checkpoint()
            for _ in range(20):
                script.write()
                script.clock.advance(5)
            assert script.node.keeper.checkpoints == 1
        script.crash()
        consumer = script.connect("consumer", quiet=False)


def test_a_checkpoint_takes_nothing_over_that_a_broken_writer_never_got(script: Script) -> None:
    """The writer has failed, and the loop has not heard of it yet."""
    publisher = script.connect("publisher")
    script.node.journal.rotate()
    script.disk.failing.append(("rename", errno.EIO))
    script.node.journal.work()
    assert script.node.journal.broken
    script.send(publisher, Publish(topic="$queue/q", payload=b"gathers", qos=1, packet_id=1))
    checkpoint = script.node.driver.start(script.node.keeper.checkpoint())
    for _ in range(20):
        script.node.driver.run_ready()
        script.clock.advance(5)
        while script.node.driver.threads:
            script.node.driver.run_thread()
    assert isinstance(checkpoint.exception(), StorageError)
    assert not script.disk.view


def test_what_another_client_declares_is_there_when_it_is_on_disk(script: Script) -> None:
    books, told = Books(), list[str]()
    first, second = (AmqpClient(name, "/", books, random.Random(1), lambda: 0) for name in ("first", "second"))
    for client in (first, second):
        client.connect(script.node)
        for _ in range(5):
            script.write()
            client.read()
        assert client.open
    for client in (first, second):
        client.declare("q1", {}, QueueBook("/|q1"), lambda name=client.name: told.append(name))     # type: ignore[misc]
        script.node.turn()
        client.read()
    assert told == []
    script.write()
    for client in (first, second):
        client.read()
    assert told == ["first", "second"]


def test_a_session_that_was_stored_for_its_will_only_is_not_gone_on_with(script: Script) -> None:
    """It ended when the broker was stopped. As a kept session it would have messages, and none of them on disk."""
    pipe = script.node.accept_mqtt()
    script.send(pipe, Connect(client_id="c", keep_alive=0, will=Will(topic="gone", payload=b"x")))
    script.write()
    script.node.stop()
    script.crash()
    pipe = script.connect("c", quiet=False)
    assert [one.session_present for one in received(pipe) if isinstance(one, Connack)] == [False]
    script.send(pipe, Subscribe(packet_id=1, filters=[("t", 1)]))
    script.write()
    pipe.client_closed = True
    script.write()
    script.send(script.connect("publisher"), Publish(topic="t", payload=b"kept", qos=1, packet_id=1))
    script.write()
    script.crash()
    pipe = script.connect("c", quiet=False)
    assert [one.payload for one in received(pipe) if isinstance(one, Publish)] == [b"kept"]
