"""Directories that earlier versions wrote open, with everything in them (tests/stored/make.py says how they came)."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from kit.amqp_wire import Wire
from kit.client import Client
from kit.node import Node
from oracle.mqtt import Pubcomp, Publish, Pubrec, Pubrel
from stored.make import HERE, LASTING, SETTINGS, VHOSTS, unpack

from fluxmq.app.cli import cli

ARCHIVES = sorted(HERE.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=[one.name.partition(".")[0] for one in ARCHIVES])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(request.param, tmp_path)
    return tmp_path


def start(directory: Path) -> Node:
    return Node(directory, {**SETTINGS, "server.admin_socket": directory / "s"})


def bodies(wire: Wire, queue: str) -> Iterator[str]:
    while (got := wire.get(1, queue)) is not None:
        yield got.body.decode()


def numbered(begin: str, numbers: range) -> list[str]:
    return [f"{begin} {number}" for number in numbers]


def check_sessions(node: Node) -> None:
    away = Client(node.listens("mqtt.tcp.plain"), 5)
    assert away.connect("away", clean_start=False, properties=LASTING).session_present
    found = [away.receive().payload for _ in range(8)]
    assert found == [b"first 3", b"first 4", b"half", *(b"second %d" % number for number in range(5))]
    sender = Client(node.listens("mqtt.tcp.plain"), 5)
    assert sender.connect("sender", clean_start=False, properties=LASTING).session_present
    sender.send(Publish(topic="news/b", payload=b"half", qos=2, packet_id=77, dup=True))    # it is known already
    sender.expect(Pubrec, packet_id=77)
    sender.send(Pubrel(packet_id=77))
    sender.expect(Pubcomp, packet_id=77)
    away.expect_quiet()
    sender.publish("news/x", b"live", 1)
    away.receive(payload=b"live")
    sender.subscribe("kept/#")
    assert sorted(sender.receive(retain=True).payload for _ in range(2)) == [b"first", b"second"]
    for client in (away, sender):
        client.drop()


def check_queues(node: Node) -> None:
    consumer = Client(node.listens("mqtt.tcp.plain"), 5)
    consumer.connect("consumer")
    consumer.subscribe("$queue/orders", qos=1)
    assert [consumer.receive().payload.decode() for _ in range(10)] == [
        *numbered("first", range(5)), *numbered("second", range(5))]
    consumer.subscribe("$queue/events", qos=1, properties=[("user_property", ("offset", "first"))])
    assert [consumer.receive().payload.decode() for _ in range(10)] == [
        *numbered("first", range(5)), *numbered("second", range(5))]
    consumer.drop()


def check_amqp(node: Node, vhost: str) -> None:
    wire = Wire(node.listens("amqp091.plain")).login(vhost=vhost)
    wire.open_channel(1)
    first, second = f"{vhost} first", f"{vhost} second"
    wire.publish(1, "work", "job.later", b"routed")
    wire.publish(1, "work", "copy.x", b"copied")
    assert list(bodies(wire, "jobs")) == [*numbered(second, range(4)), "routed"]
    of_mqtt = [*numbered("second", range(5)), "half", "live"] if vhost == "/" else []
    assert sorted(bodies(wire, "dead")) == sorted([
        *numbered(first, range(4)), *numbered(second, range(4)), f"{first} 1", f"{first} 3", *of_mqtt, "copied"])
    assert list(bodies(wire, "ranked")) == [f"{one} {priority}" for priority in (3, 2, 1, 0) for one in (first, second)]
    wire.call(1, "basic.qos", prefetch_count=100)
    wire.call(1, "basic.consume", queue="lines", arguments={"x-stream-offset": "first"})
    assert [wire.expect_content(1).body.decode() for _ in range(8)] == [
        *numbered(first, range(4)), *numbered(second, range(4))]
    # What they were declared as is what they are.
    wire.call(1, "queue.declare", queue="jobs", durable=True, arguments={"x-dead-letter-exchange": "inner"})
    wire.call(1, "exchange.declare", exchange="work", type="topic", durable=True)
    wire.close()


def check(node: Node) -> None:
    check_sessions(node)
    check_queues(node)
    for vhost in VHOSTS:
        check_amqp(node, vhost)


def test_it_opens(directory: Path) -> None:
    node = start(directory)
    try:
        check(node)
    finally:
        node.stop()


def test_what_was_read_is_written_and_read_again(directory: Path) -> None:
    """In this version's own formats, the view's and the journal's."""
    node = start(directory)
    try:
        node.wait(lambda server: server.keeper.checkpoint())
    finally:
        node.stop()
    node = start(directory)
    try:
        check(node)
    finally:
        node.stop()


def test_the_log_tools_find_nothing_wrong_with_it(directory: Path) -> None:
    found = CliRunner().invoke(cli, ["log", "verify", str(directory / "data")])
    assert found.exit_code == 0, found.output
