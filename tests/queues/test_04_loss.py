"""The ways in which queues of another broker lost data, one test for each and named after it: none of them here.

What only shows over time (retention, leases, checkpoints) is tested on a node whose clock ticks often and whose journal
files are small; what a crash shows, by a crash.
"""
from __future__ import annotations

import random
import shutil
from collections.abc import Callable

import pytest
from crash.process import CrashBroker
from kit.broker import Broker
from kit.client import Client
from kit.watch import wait_until
from oracle.mqtt import Puback, Publish
from queues.conftest import ack, admin, consume, lag, order, put, take, users

Start = Callable[..., Broker]
StartNode = Callable[..., CrashBroker]
Connect = Callable[..., Client]

ORDERS = {"name": "orders"}


def names(first: int, end: int) -> list[bytes]:
    return [b"m%03d" % number for number in range(first, end)]


def checkpoints(broker: CrashBroker, client: Client, queue: str, count: int = 2) -> None:
    """Publishes to another queue until the journal has been checkpointed so many times."""
    wanted = broker.checkpoints() + count

    def there() -> bool:
        client.publish(f"$queue/{queue}", random.Random(1).randbytes(20_000), 1, expect=0)
        client.transcript.clear()
        return broker.checkpoints() >= wanted

    wait_until(there)


# ---------------------------------------------------------------- 1: retention takes what nobody has read


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_retention_truncates_what_has_no_group_or_no_limits(kind: str, start_node: StartNode,
                                                            connect: Connect) -> None:
    """A queue that nobody consumed yet and a stream without limits keep everything, in whatever files it stands."""
    broker = start_node({"name": "q", "type": kind}, {"name": "filler", "type": "stream"})
    publisher = connect(broker)
    put(publisher, "q", *names(0, 50))
    checkpoints(broker, publisher, "filler")
    put(publisher, "q", *names(50, 60))
    broker.kill()
    broker.start()
    consumer = connect(broker)
    consume(consumer, "q", offset="first")
    for payload in names(0, 60):
        consumer.receive(payload=payload)
    consumer.expect_quiet()


def test_retention_is_a_cap_for_streams_only(start_node: StartNode, connect: Connect) -> None:
    """A stream forgets what is above its limits, whoever lags; a classic queue keeps what one group has not settled."""
    broker = start_node({"name": "s", "type": "stream", "retention": {"max_length_messages": 10}}, {"name": "q"})
    lagging, quick, publisher = connect(broker), connect(broker), connect(broker)
    consume(lagging, "q", consumer_group="lagging", prefetch=1)
    consume(quick, "q", consumer_group="quick")
    put(publisher, "q", *names(0, 30))
    put(publisher, "s", *names(0, 30))
    for payload in names(0, 30):
        quick.receive(payload=payload)
    wait_until(lambda: lag(broker, "q", "quick") == 0 and admin(broker, "GET", "queues", "s")["messages"] == 10)
    for payload in names(0, 30):
        lagging.receive(payload=payload)
    reader = connect(broker)
    consume(reader, "s", offset="first")
    for payload in names(20, 30):
        reader.receive(payload=payload)


# ---------------------------------------------------------------- 2: a nack that does nothing


def test_nack_is_a_no_op(start_broker: Start, connect: Connect) -> None:
    """What is given back comes again, also to the one that gave it back, counted, and the count outlives a crash."""
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x", b"y")
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual")
    packet, other = consumer.receive(payload=b"x"), consumer.receive(payload=b"y")
    for count in ("2", "3"):
        order(consumer, "nack", packet, delay=0)
        packet = consumer.receive(payload=b"x")
        assert (users(packet)["delivery-count"], users(packet)["redelivered"]) == (count, "true")
    order(consumer, "nack", packet, delay=1)
    packet = consumer.receive(payload=b"x")
    assert users(packet)["delivery-count"] == "4"
    broker.kill()
    broker.start()
    again = connect(broker)
    consume(again, "orders")
    assert [(packet.payload, users(packet)["delivery-count"]) for packet in (again.receive(), again.receive())] == [
        (b"x", "5"), (b"y", "2")]
    assert users(other)["delivery-count"] == "1"


# ---------------------------------------------------------------- 3: a single consumer never gets it again


def test_a_single_consumer_is_never_redelivered_to(start_broker: Start, connect: Connect) -> None:
    """One consumer in the group: what it left unsettled comes back when its time is over, and when the same client
    connects again under its name."""
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    consumer = connect(broker, "only", properties={"receive_maximum": 2})       # no room for a third
    consume(consumer, "orders", visibility_timeout=0.2)
    take(consumer, b"x")
    packet = consumer.expect(Publish, payload=b"x")
    assert users(packet)["delivery-count"] == "2"
    consumer.close()
    consumer = connect(broker, "only")
    consume(consumer, "orders")
    packet = take(consumer, b"x")[0]
    assert int(users(packet)["delivery-count"]) >= 3        # its time may have passed once more before it left
    ack(consumer, packet)
    consumer.expect_quiet()


# ---------------------------------------------------------------- 4: stealing that burns the deliveries


def test_stealing_ping_pongs_until_the_message_is_dead(start_node: StartNode, connect: Connect) -> None:
    """Two idle members and a message whose time is over: each delivery has its whole lease, however many members are
    waiting for work. Before the lease of the second delivery ends there is no third."""
    broker = start_node({"name": "orders", "retry": {"max_retries": 2}, "dlq": {"enabled": True}})
    # Who has acknowledged nothing has no room for it when its time is over: it waits for the other one.
    one, two = connect(broker, properties={"receive_maximum": 1}), connect(broker)
    consume(one, "orders", visibility_timeout=0.1)
    put(connect(broker), "orders", b"x")
    first = take(one, b"x")[0]
    consume(two, "orders", visibility_timeout=60)
    second = take(two, b"x")[0]
    ack(one, first)                  # too late: it has room now, and that is all
    one.unsubscribe("$queue/orders")
    consume(one, "orders", visibility_timeout=60)
    for _ in range(10):              # the clock ticks meanwhile
        two.expect_quiet()
        one.expect_nothing(0.03)
    assert users(first)["delivery-count"] == "1" and users(second)["delivery-count"] == "2"
    assert lag(broker, "orders") == 1
    ack(two, second)
    two.expect_quiet()
    assert lag(broker, "orders") == 0


# ---------------------------------------------------------------- 5: dead letters that get lost on the way


@pytest.mark.parametrize("seed", [1, 2])
def test_a_dead_letter_is_dropped_between_two_queues(seed: int, start_node: StartNode, connect: Connect) -> None:
    """Killed at any moment of many rejections, a message is in the queue or among the dead letters, never in neither
    and never in both; and what was answered is where the answer says."""
    broker = start_node(ORDERS)
    chance = random.Random(seed)
    put(connect(broker), "orders", *names(0, 400))
    rejected: set[bytes] = set()
    for _ in range(4):
        consumer = connect(broker)
        consume(consumer, "orders", ack="manual", prefetch=90)
        asked = {}
        for packet_id in range(1, chance.randrange(20, 80)):
            packet = consumer.receive()
            properties = [("user_property", ("message-id", users(packet)["message-id"]))]
            consumer.send(Publish(topic="$queue/orders/$reject", qos=1, packet_id=packet_id, properties=properties))
            asked[packet_id] = packet.payload
        # Some answers have come, others are under way when the end comes.
        for packet_id in list(asked)[:len(asked) // 2]:
            consumer.answer(Puback, packet_id=packet_id, reason=0)
            rejected.add(asked[packet_id])
        broker.kill()
        broker.start()
    dead = drain(connect(broker), "orders.dlq", lag(broker, "orders.dlq"))
    rest = drain(connect(broker), "orders", lag(broker, "orders"))
    assert len(rejected) > 40 and rejected <= set(dead)
    assert sorted(dead + rest) == names(0, 400)


def drain(client: Client, queue: str, count: int) -> list[bytes]:
    """The payloads of all that a queue has, which must be so many."""
    consume(client, queue)
    found = []
    for _ in range(count):
        found.append(client.receive().payload)
        client.transcript.clear()
    client.expect_quiet()
    return found


def test_dead_letters_are_not_found_again_after_a_restart(start_broker: Start, connect: Connect) -> None:
    """Their queue comes back with them, by its own name and by that of the queue they come from."""
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual")
    order(consumer, "reject", consumer.receive(), reason="bad")
    broker.restart()
    found = admin(broker, "GET", "queues", "orders", "dlq")["messages"]
    assert [message["payload"] for message in found] == ["x"]
    assert drain(connect(broker), "orders.dlq", 1) == [b"x"]


# ---------------------------------------------------------------- 6: a catch-all queue that swallows messages


def test_a_default_queue_swallows_messages_meant_for_another(start_broker: Start, connect: Connect) -> None:
    """A publish to a queue that is not there yet is refused, so its publisher knows; once the queue is there it gets
    all that is meant for it, once, and nobody else does."""
    broker = start_broker({"name": "mqtt"}, {"name": "capture", "topics": ["orders/#"]})
    publisher = connect(broker)
    put(publisher, "orders", b"early", expect=0x90)
    admin(broker, "PUT", "queues", "orders", body={})
    put(publisher, "orders", b"late")
    assert [message["payload"] for message in admin(broker, "GET", "queues", "orders", "messages")["messages"]] == [
        "late"]
    for other in ("mqtt", "capture"):
        assert admin(broker, "GET", "queues", other)["messages"] == 0


# ---------------------------------------------------------------- further ways


def test_an_acknowledgement_is_forgotten_by_a_crash(start_broker: Start, connect: Connect) -> None:
    """`$ack` is answered when it is on the disk: what it settled does not come again."""
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(0, 20))
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual")
    deliveries = [consumer.receive() for _ in range(20)]
    for packet in deliveries[::2]:
        order(consumer, "ack", packet)
    broker.kill()
    broker.start()
    assert drain(connect(broker), "orders", 10) == names(0, 20)[1::2]


def test_expired_messages_hold_up_or_bring_back_the_cursor(start_node: StartNode, connect: Connect) -> None:
    """Messages that expire are dead letters, also where nothing else is behind them, and stay so after a crash."""
    broker = start_node({"name": "orders", "limits": {"message_ttl": "100ms"}}, {"name": "other"})
    put(connect(broker), "orders", *names(0, 5))
    consumer = connect(broker)
    consumer.expect_nothing(0.15)       # their time passes
    consume(consumer, "orders")
    wait_until(lambda: lag(broker, "orders.dlq") == 5)
    consumer.expect_quiet()
    put(consumer, "other", b"what is acknowledged after it is on the disk after it")
    broker.kill()
    broker.start()
    assert lag(broker, "orders") == 0
    assert drain(connect(broker), "orders.dlq", 5) == names(0, 5)


def test_replaying_the_log_at_a_restart_doubles_messages(start_node: StartNode, connect: Connect) -> None:
    """Messages that are in the journal and in a segment are one message, under the offset it always had."""
    broker = start_node({"name": "s", "type": "stream"})
    publisher = connect(broker)
    for start in (0, 40):
        put(publisher, "s", *names(start, start + 20))
        checkpoints(broker, publisher, "s/filler", 1)
        put(publisher, "s", *names(start + 20, start + 40))
        count = admin(broker, "GET", "queues", "s")["messages"]
        broker.kill()
        broker.start()
        assert admin(broker, "GET", "queues", "s")["messages"] == count
        publisher = connect(broker)
    reader = connect(broker)
    consume(reader, "s", offset="first")
    found = []
    for number in range(count):
        packet = reader.receive()
        reader.transcript.clear()
        assert users(packet)["offset"] == str(number)
        if packet.topic == "$queue/s":
            found.append(packet.payload)
    assert found == names(0, 80)


@pytest.mark.parametrize("name", ["..", "a..b", "%2e%2e", "con\\x", "ü 1", "a" * 200])
def test_names_become_paths(name: str, start_broker: Start, connect: Connect) -> None:
    """Whatever a queue or group is called, its files are called by numbers, and it is there again after a restart."""
    broker = start_broker()
    admin(broker, "PUT", "queues", name, body={})
    put(connect(broker), name, b"x")
    consumer = connect(broker)
    consume(consumer, name, consumer_group=f"../{name}/..")
    take(consumer, b"x")
    broker.restart()
    later = connect(broker)
    consume(later, name, consumer_group=f"../{name}/..")
    assert users(take(later, b"x")[0])["delivery-count"] == "2"
    made = {path.name for path in broker.directory.iterdir()}
    assert made == {"data", "broker.stdout", "broker.stderr"}


def test_files_that_a_crash_left_behind_are_taken_for_those_of_a_new_queue(start_node: StartNode,
                                                                           connect: Connect) -> None:
    """A queue is deleted, and the broker dies before its files are: they go later, and nothing of a newer queue with
    them."""
    broker = start_node({"name": "filler", "type": "stream"})
    admin(broker, "PUT", "queues", "old", body={})
    client = connect(broker)
    put(client, "old", *names(0, 60))       # more than stay in the view
    checkpoints(broker, client, "filler")
    folders = broker.directory / "data" / "queues"
    kept = broker.directory / "kept"
    shutil.copytree(folders, kept)
    admin(broker, "DELETE", "queues", "old")
    checkpoints(broker, client, "filler")
    broker.terminate()
    left = [folder.name for folder in kept.iterdir() if not (folders / folder.name).exists()]
    assert len(left) == 1
    shutil.copytree(kept / left[0], folders / left[0])
    broker.start()
    admin(broker, "PUT", "queues", "new", body={})
    client = connect(broker)
    put(client, "new", *names(0, 20))
    checkpoints(broker, client, "filler")
    broker.kill()
    broker.start()
    assert not (folders / left[0]).exists()
    assert drain(connect(broker), "new", 20) == names(0, 20)
