"""A broker whose wall clock is set while it runs, whose machine sleeps, and that is killed in between: what waits,
waits as long as it was told to, and no expiry that is delivered is above the published one.

Time is counted in units of ten days, so that what the test itself takes is nothing.
"""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Refused, Wire
from kit.broker import Broker
from kit.client import Client
from kit.setclock import Clocks
from oracle.mqtt import Will

HOUR = 3600
UNIT = 10 * 24 * HOUR


class Node:
    """A broker by clocks that the test sets, and somebody who listens to what becomes due."""

    def __init__(self, directory: Path) -> None:
        self.clocks = Clocks(directory)
        self.broker = Broker(directory / "broker", {"queue_manager.auto_create": "classic"},
                             self.clocks.environ).start()
        self.markers = 0
        self.opened: list[Client | Wire] = []
        self.watch()

    def watch(self) -> None:
        self.watcher = self.client("watcher")
        self.watcher.subscribe("will/#", "$queue/late", qos=1)
        self.marks = self.client("marks")
        self.marks.subscribe("$queue/marks", qos=1)

    def client(self, name: str, expiry: int = 0, present: bool | None = None, **options: Any) -> Client:
        client = Client(self.broker.address)
        self.opened.append(client)
        connack = client.connect(name, clean_start=False, properties={"session_expiry_interval": expiry}, **options)
        assert present is None or connack.session_present is present
        return client

    def wire(self) -> Wire:
        wire = Wire(self.broker.addresses["amqp091/plain"])
        self.opened.append(wire)
        wire.login()
        wire.open_channel(1)
        return wire

    def count(self, queue: str) -> int | None:
        """Messages in a queue; None: there is no such queue."""
        try:
            found = self.wire().call(1, "queue.declare", queue=queue, passive=True)
        except Refused as refused:
            assert refused.code == 404
            return None
        return int(found["message_count"])

    def settle(self) -> None:
        """Whatever is due by the clocks as they are now has happened: all of it comes with a tick, of which there are
        four a second, or before, and a message that waits for 300 ms comes behind one."""
        for _ in range(2):
            self.markers += 1
            mark = b"%d" % self.markers
            self.marks.publish("$queue/marks", mark, 1, properties={"user_property": ("x-delay", "300")})
            self.marks.receive(payload=mark)

    def restart(self) -> None:
        self.broker.kill()
        self.broker.start()
        self.watch()

    def retained(self) -> int | None:
        """What is left of the retained message's expiry, as a new subscriber gets it."""
        reader = self.client("reader")
        reader.subscribe("kept/#")
        reader.publish("kept/end")
        got = reader.receive()
        reader.close()
        return got.prop("message_expiry_interval") if got.topic == "kept/it" else None

    def close(self) -> None:
        for one in self.opened:
            one.drop() if isinstance(one, Wire) else one.close()
        self.broker.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def begin(node: Node) -> None:
    """Everything that waits: two units each, but for messages that expire after three."""
    amqp = node.wire()
    for name, arguments in (("ttl", {"x-message-ttl": 2 * UNIT * 1000}), ("unused", {"x-expires": 2 * UNIT * 1000}),
                            ("kept", {"x-expires": 20 * UNIT * 1000})):
        amqp.call(1, "queue.declare", queue=name, durable=True, arguments=arguments)
    amqp.call(1, "confirm.select")
    amqp.publish(1, "", "ttl", b"x", {"delivery_mode": 2})
    amqp.expect(1, "basic.ack")
    publisher = node.client("publisher")
    stays = node.client("stays", 9 * UNIT)
    stays.subscribe("t/#", qos=1)
    stays.disconnect()
    node.client("short", 2 * UNIT).disconnect()
    will = Will(topic="will/w", payload=b"x", qos=1, properties=[("will_delay_interval", 2 * UNIT)])
    node.client("speaks", 9 * UNIT, will=will).drop()
    publisher.publish("t/1", b"x", 1, properties={"message_expiry_interval": 3 * UNIT})
    publisher.publish("kept/it", b"x", 1, retain=True, properties={"message_expiry_interval": 3 * UNIT})
    publisher.publish("$queue/late", b"x", 1, properties={"user_property": ("x-delay", str(2 * UNIT * 1000))})
    publisher.close()


def nothing_is_over(node: Node, units: int) -> None:
    node.settle()
    node.watcher.expect_quiet()
    assert node.count("ttl") == 1
    left = node.retained()
    assert left is not None and (units - 1) * UNIT < left <= units * UNIT


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("step", [-HOUR, -50 * UNIT, 50 * UNIT])
def test_what_waits_waits_as_long_as_it_was_told_to(node: Node, step: int, killed: bool) -> None:
    begin(node)
    nothing_is_over(node, 3)
    node.clocks.step(step)
    nothing_is_over(node, 3)
    if killed:
        node.restart()
        nothing_is_over(node, 3)
    node.clocks.sleep(UNIT)
    nothing_is_over(node, 2)
    if killed:
        node.restart()
        nothing_is_over(node, 2)
    node.client("short", 2 * UNIT, present=True).disconnect()
    node.clocks.sleep(UNIT + HOUR)
    node.settle()
    assert {node.watcher.receive().topic for _ in range(2)} == {"will/w", "$queue/late"}
    assert node.count("ttl") == 0 and node.count("kept") == 0
    assert killed or node.count("unused") is None
    left = node.client("stays", 9 * UNIT, present=True).receive("t/1").prop("message_expiry_interval")
    assert 0 < left <= UNIT and (node.retained() or 0) <= UNIT
    node.clocks.sleep(UNIT)
    node.settle()
    assert node.retained() is None and node.count("unused") is None     # a restart counts as use
    node.client("short", 0, present=False)


def test_a_clock_that_went_back_while_the_broker_was_down(node: Node) -> None:
    begin(node)
    nothing_is_over(node, 3)
    node.broker.kill()
    node.clocks.step(-50 * UNIT)
    node.broker.start()
    node.watch()
    nothing_is_over(node, 3)
    node.clocks.sleep(2 * UNIT + HOUR)
    node.settle()
    assert {node.watcher.receive().topic for _ in range(2)} == {"will/w", "$queue/late"}
    left = node.client("stays", 9 * UNIT, present=True).receive("t/1").prop("message_expiry_interval")
    assert 0 < left <= UNIT
    assert "clock was set back" in node.broker.stderr()
