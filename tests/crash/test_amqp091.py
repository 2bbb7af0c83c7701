"""Who was promised what over AMQP 0-9-1, and what came of it, over kill -9 and losses of power: sets of identities.

    confirmed − (delivered ∪ left over) = ∅, delivered − sent = ∅
    what was settled, and is on disk, never comes again; what comes again says so
    a transaction is all or nothing: taken from one queue and put into two others, each message is in exactly one
    place, and in both of them; so is a dead letter
    exchanges, bindings (to exchanges too) and queues with their arguments are there, what is transient is not

A broker of small journal files, so that checkpoints and segments take part. `tox -e soak` does the same for longer.
"""
from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from crash.amqp_actors import PERSISTENT, Actor, Book, Mover, Publisher, Settler, Undertaker, drain, number_of
from crash.process import CrashBroker, PoweredBroker
from kit.amqp_wire import Wire
from kit.client import Client
from kit.journals import contents
from kit.sizes import some

PATIENCE_SECONDS = 40.0             # without anything new for anybody: only a test that fails needs them
QUEUES: dict[str, dict[str, object]] = {
    "plain": {}, "copies": {"x-max-priority": 3}, "left": {}, "right": {}, "marks": {"x-max-length": 10}, "graves": {},
    "dying": {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "grave"},
}
EXCHANGES = {"in": "topic", "again": "fanout", "dead": "direct"}
BINDINGS = (("in", "plain", "a.#"), ("in", "dying", "b.*"), ("again", "copies", ""), ("dead", "graves", "grave"))


def amqp(broker: CrashBroker) -> tuple[str, int]:
    return broker.addresses["amqp091/plain"]


def connect(broker: CrashBroker) -> Wire:
    wire = Wire(amqp(broker)).login()
    wire.open_channel(1)
    return wire


def declare(wire: Wire) -> None:
    for name, kind in EXCHANGES.items():
        wire.call(1, "exchange.declare", exchange=name, type=kind, durable=True)
    for name, arguments in QUEUES.items():
        wire.call(1, "queue.declare", queue=name, durable=True, arguments=arguments)
    for exchange, queue, key in BINDINGS:
        wire.call(1, "queue.bind", exchange=exchange, queue=queue, routing_key=key)
    wire.call(1, "exchange.bind", source="in", destination="again", routing_key="a.#")


def declare_fleeting(wire: Wire) -> None:
    wire.call(1, "exchange.declare", exchange="brief", type="fanout")
    wire.call(1, "queue.declare", queue="brief")
    wire.call(1, "queue.declare", queue="mine", durable=True, exclusive=True)
    wire.call(1, "queue.bind", exchange="in", queue="brief", routing_key="nobody")
    wire.publish(1, "", "brief", b"soon gone", {"delivery_mode": 2})


def check_declared(broker: CrashBroker) -> None:
    """After a start: what is durable is as it was, what is not is not there."""
    wire = connect(broker)
    for name, arguments in QUEUES.items():
        wire.call(1, "queue.declare", queue=name, durable=True, arguments=arguments)
        wire.send(1, "queue.declare", queue=name, durable=True, arguments={**arguments, "x-message-ttl": 77})
        assert wire.expect_refusal(1).code == 406
        wire.open_channel(1)
    for method, field in (("queue.declare", "brief"), ("queue.declare", "mine"), ("exchange.declare", "brief")):
        wire.send(1, method, **{method.split(".")[0]: field}, passive=True)
        assert wire.expect_refusal(1).code == 404
        wire.open_channel(1)
    for name, kind in EXCHANGES.items():
        wire.call(1, "exchange.declare", exchange=name, type=kind, durable=True)
    wire.close()


def wait(actors: list[Actor], book: Book, more: int) -> None:
    """Until so many more messages are confirmed, of each kind."""
    wanted = {key: len(book.confirmed.get(key, ())) + more for key in "ab"}
    before, deadline = -1, 0.0
    while any(len(book.confirmed.get(key, ())) < n for key, n in wanted.items()):
        for actor in actors:
            if actor.failure is not None:
                raise actor.failure
        now = sum(map(len, book.confirmed.values()))
        if now != before:
            before, deadline = now, time.monotonic() + PATIENCE_SECONDS
        assert time.monotonic() < deadline, "nobody gets a confirm"
        time.sleep(0.02)


def run(broker: CrashBroker, seed: int, kills: int) -> None:
    chance, book = random.Random(seed), Book()

    def lot() -> random.Random:
        return random.Random(chance.random())

    with broker:
        where, wire = amqp(broker), connect(broker)
        declare(wire)
        publishers: list[Actor] = [Publisher(book, where, lot(), ("a", "b")) for _ in range(2)]
        consumers: list[Actor] = [Settler(book, where, lot(), "plain"), Settler(book, where, lot(), "plain"),
                                  Mover(book, where, lot(), "copies"), Mover(book, where, lot(), "copies"),
                                  Undertaker(book, where, lot(), "dying")]
        everybody = publishers + consumers
        for actor in everybody:
            actor.start()
        for _ in range(kills):
            declare_fleeting(wire)
            wait(everybody, book, 60)
            time.sleep(chance.uniform(0, 0.3))
            wire.drop()
            broker.crash()
            broker.start()
            check_declared(broker)
            wire = connect(broker)
        wire.drop()
        wait(everybody, book, 60)
        for actor in [*publishers, *consumers]:
            actor.finish()
        broker.check()
        broker.crash()
        broker.start()
        check_declared(broker)
        judge(broker, book)


def judge(broker: CrashBroker, book: Book) -> None:
    wire = connect(broker)
    left_over = {}
    for queue in QUEUES:
        if queue != "marks":
            contents = drain(wire, queue)
            counted = Counter(map(number_of, contents))
            assert not counted or max(counted.values()) == 1, f"twice in {queue}"
            left_over[queue] = set(counted)
            if queue in book.delivered:
                for content in contents:
                    book.came(queue, content)
    wire.close()
    sent, confirmed = book.sent, book.confirmed
    for queue, key in (("plain", "a"), ("copies", "a"), ("dying", "b")):
        seen = book.delivered[queue] | left_over[queue]
        assert not confirmed[key] - seen, f"lost from {queue}"
        assert seen <= sent[key]
    # Each is in exactly one place, before or behind.
    assert left_over["left"] == left_over["right"]
    assert not left_over["left"] & left_over["copies"]
    assert confirmed["a"] <= left_over["left"] | left_over["copies"]
    assert book.settled["copies"] <= left_over["left"]
    assert not left_over["graves"] & left_over["dying"]
    assert confirmed["b"] <= left_over["graves"] | left_over["dying"]
    assert book.committed > 10, "too few transactions to mean anything"
    assert len(left_over["graves"]) > 50, "too few dead letters to mean anything"
    assert book.came_back > 10, "too little came back to mean anything"
    assert len(book.settled["plain"]) > 100, "too little is known of what was settled"
    assert broker.checkpoints() > 2, "too few checkpoints to have met any"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", some(1, [1, 2]))
def test_kill(tmp_path: Path, seed: int) -> None:
    run(CrashBroker(tmp_path), seed, 3)


@pytest.mark.timeout(600)
def test_loss_of_power(tmp_path: Path) -> None:
    run(PoweredBroker(tmp_path, random.Random(3)), 3, 2)


@pytest.mark.parametrize("how", ["rejected", "expired", "refused"])
def test_a_dead_letter_for_mqtt_is_of_the_batch_of_its_death(tmp_path: Path, how: str) -> None:
    """Of amq.topic's two halves, the queues' and that of a session that is away, no crash keeps only one: the journal
    has both in one batch, and that is not the one in which the message was published."""
    broker = CrashBroker(tmp_path)
    with broker:
        mourner = Client(broker.address)
        mourner.connect(client_id="mourner", clean_start=False, properties=[("session_expiry_interval", 3600)])
        mourner.subscribe("grave", qos=1)
        mourner.disconnect()
        wire = connect(broker)
        arguments: dict[str, object] = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "grave"}
        arguments |= {"expired": {"x-message-ttl": 300}, "rejected": {},
                      "refused": {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}}[how]
        wire.call(1, "queue.declare", queue="dying", durable=True, arguments=arguments)
        for name in ("graves", "after"):
            wire.call(1, "queue.declare", queue=name, durable=True)
        wire.call(1, "queue.bind", queue="graves", exchange="amq.topic", routing_key="grave")
        wire.call(1, "confirm.select")
        wire.publish(1, "", "dying", b"here lies", PERSISTENT)
        wire.expect(1, "basic.nack" if how == "refused" else "basic.ack")
        if how == "rejected":
            content = wire.get(1, "dying", no_ack=False)
            assert content is not None
            wire.send(1, "basic.reject", delivery_tag=content.arguments["delivery_tag"], requeue=False)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wire.call(1, "queue.declare", queue="graves", passive=True)["message_count"] == 0:
            assert time.monotonic() < deadline, "it does not die"
        # What is taken is confirmed when all of before is on the disk; a basic.nack need not wait for that.
        wire.publish(1, "", "after", b"the next", PERSISTENT)
        wire.expect(1, "basic.ack")
        wire.drop()
        broker.crash()
        found = [[body for _, body in records if b"here lies" in body]
                 for _, records in contents(tmp_path / "data" / "journal")]
        assert [len(bodies) for bodies in found if bodies] == ([2] if how == "refused" else [1, 2])
        broker.start()
        mourner = Client(broker.address)
        mourner.connect(client_id="mourner", clean_start=False, properties=[("session_expiry_interval", 3600)])
        mourner.receive("grave", b"here lies")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_loss_of_power_for_long(tmp_path: Path, seed: int) -> None:
    run(PoweredBroker(tmp_path, random.Random(seed)), seed, 40)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kill_for_long(tmp_path: Path, seed: int) -> None:
    run(CrashBroker(tmp_path), seed, 60)
