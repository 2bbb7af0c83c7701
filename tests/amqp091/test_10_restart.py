"""What a restart of the broker leaves: durable queues, exchanges, bindings, persistent messages and their order;
nothing else."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.amqp_wire import Refused, Wire

QUORUM = {"x-queue-type": "quorum"}


def connect(broker: Any) -> Wire:
    wire = Wire(broker.amqp).login()
    wire.open_channel(1)
    return wire


def is_there(broker: Any, kind: str, name: str) -> bool:
    wire = connect(broker)
    try:
        wire.call(1, f"{kind}.declare", **{kind: name}, passive=True)
    except Refused as refused:
        assert refused.code == 404, refused
        return False
    finally:
        wire.drop()
    return True


def publish_confirmed(wire: Wire, *publications: tuple[str, str, bytes, dict[str, Any]]) -> None:
    """On channel 2, which is in confirm mode; waits until all are acknowledged."""
    wire.open_channel(2)
    wire.call(2, "confirm.select")
    for exchange, key, body, properties in publications:
        wire.publish(2, exchange, key, body, properties)
    confirmed: set[int] = set()
    while len(confirmed) < len(publications):
        ack = wire.expect(2, "basic.ack")
        confirmed |= set(range(1, ack["delivery_tag"] + 1)) if ack["multiple"] else {ack["delivery_tag"]}
    wire.call(2, "channel.close", reply_code=200)


def prepare(wire: Wire) -> None:
    for name, durable in (("kept", True), ("transient", False)):
        wire.call(1, "exchange.declare", exchange=f"x-{name}", type="topic", durable=durable)
        wire.call(1, "queue.declare", queue=f"q-{name}", durable=durable, arguments={"x-max-length": 1000})
        wire.call(1, "queue.bind", queue=f"q-{name}", exchange=f"x-{name}", routing_key="a.#", arguments={"k": "v"})
    wire.call(1, "exchange.bind", destination="x-kept", source="amq.topic", routing_key="b.*")
    wire.call(1, "queue.declare", queue="q-exclusive", durable=True, exclusive=True)
    wire.call(1, "queue.declare", queue="q-quorum", durable=True, arguments=QUORUM)
    wire.call(1, "queue.declare", queue="q-dying", durable=True,
              arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q-dead"})
    wire.call(1, "queue.declare", queue="q-dead", durable=True)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_what_is_durable_is_there_again(own_broker: Any, how: str) -> None:
    """Ended in order, or killed: what was declared durable and published persistent and confirmed is there, in its
    order, with its headers; what was transient is not. What was acknowledged stays away, what was held comes back."""
    wire = connect(own_broker)
    prepare(wire)
    headers = {"headers": {"k": "v"}, "delivery_mode": 2, "message_id": "m"}
    publish_confirmed(wire, *(("x-kept", "a.b", b"%d" % number, headers if number % 2 == 0 else {"delivery_mode": 1})
                              for number in range(20)),
                      ("", "q-dying", b"dies", {"delivery_mode": 2}),
                      *(("", "q-quorum", b"%d" % number, {}) for number in range(3)))
    for tag in range(1, 6):
        assert wire.get(1, "q-kept", no_ack=False).delivery_tag == tag      # type: ignore[union-attr]
    wire.send(1, "basic.ack", delivery_tag=1)
    assert wire.get(1, "q-dying", no_ack=False) is not None
    wire.send(1, "basic.reject", delivery_tag=6, requeue=False)
    wire.call(1, "tx.select")
    wire.call(1, "tx.commit")           # acknowledgements before it are done with
    if how == "restart":
        own_broker.restart()
    else:
        own_broker.kill()
        own_broker.start()
    assert [is_there(own_broker, kind, f"{kind[0].replace('e', 'x')}-{name}") for kind in ("exchange", "queue")
            for name in ("kept", "transient")] == [True, False, True, False]
    assert not is_there(own_broker, "queue", "q-exclusive")
    wire = connect(own_broker)
    wire.call(1, "queue.declare", queue="q-kept", durable=True, arguments={"x-max-length": 1000})
    found = []
    while (message := wire.get(1, "q-kept")) is not None:
        found.append(message)
    bodies = [int(message.body) for message in found]
    persistent = [body for body in bodies if body % 2 == 0]
    # killed, the ack may not have been on the disk of RabbitMQ; an ack that is followed by tx.commit is on ours
    assert persistent in (list(range(2, 20, 2)), list(range(0, 20, 2)))
    if own_broker.kind == "rabbitmq":
        assert bodies == persistent, "transient messages are gone"
    else:
        assert [body for body in bodies if body % 2] == list(range(1, 20, 2)), "what a durable queue holds is durable"
    assert all(message.properties["message_id"] == "m" for message in found if int(message.body) % 2 == 0)
    dead = wire.get(1, "q-dead") or wire.get(1, "q-dying")      # RabbitMQ may forget the rejection when it is killed
    assert dead is not None and dead.body == b"dies"
    # A message of a quorum queue is durable whatever its delivery mode. (RabbitMQ 3.10 cannot open a quorum queue that
    # was declared shortly before it was killed.)
    if (own_broker.kind, how) != ("rabbitmq", "kill"):
        assert [wire.get(1, "q-quorum").body for _ in range(3)] == [b"0", b"1", b"2"]       # type: ignore[union-attr]
    publish_confirmed(wire, ("x-kept", "a.b.c", b"by the binding", {}), ("amq.topic", "b.x", b"goes nowhere", {}),
                      ("amq.topic", "b.a", b"by two", {}))
    assert wire.get(1, "q-kept").body == b"by the binding"      # type: ignore[union-attr]


def test_in_flight_at_a_restart(own_broker: Any, name: Callable[[str], str]) -> None:
    """A consumer that comes back after the restart gets what it held, redelivered, in order, then the rest."""
    wire = connect(own_broker)
    wire.call(1, "queue.declare", queue="q", durable=True)
    publish_confirmed(wire, *(("", "q", b"%d" % number, {"delivery_mode": 2}) for number in range(6)))
    wire.call(1, "basic.qos", prefetch_count=3)
    wire.call(1, "basic.consume", queue="q")
    for _ in range(3):
        wire.expect_content(1)
    own_broker.restart()
    wire = connect(own_broker)
    wire.call(1, "basic.consume", queue="q", no_ack=True)
    found = [wire.expect_content(1) for _ in range(6)]
    assert [(message.body, message.redelivered) for message in found] == [(b"%d" % number, number < 3)
                                                                          for number in range(6)]
