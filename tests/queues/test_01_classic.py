"""Work queues over MQTT: what is published is consumed, by one of those who share it, until it is settled."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import Disconnect, Pubcomp, Publish, Pubrec, Pubrel
from queues.conftest import ack, admin, consume, order, put, take, users

Start = Callable[..., Broker]
Connect = Callable[..., Client]

ORDERS = {"name": "orders"}


def names(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_published_consumed_settled(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(3))
    consumer = connect(broker)
    consume(consumer, "orders")
    deliveries = take(consumer, *names(3))
    for number, packet in enumerate(deliveries):
        assert packet.topic == "$queue/orders"
        told = users(packet)
        assert (told["queue"], told["group-id"], told["offset"], told["message-id"], told["delivery-count"]) == (
            "orders", "default", str(number), f"0:{number}", "1")
    ack(consumer, *deliveries)
    consumer.expect_quiet()
    consumer.close()
    later = connect(broker)
    consume(later, "orders")
    later.expect_quiet()


def test_the_topic_below_the_queue_is_kept(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    connect(broker).publish("$queue/orders/eu/images", b"x", 1, expect=0)
    consumer = connect(broker)
    consume(consumer, "orders")
    assert consumer.receive().topic == "$queue/orders/eu/images"


def test_consumers_share_by_credit(start_broker: Start, connect: Connect) -> None:
    """Who settles nothing gets its prefetch and no more; the others get on."""
    broker = start_broker(ORDERS)
    stuck, quick = connect(broker), connect(broker)
    consume(stuck, "orders", prefetch=2)
    consume(quick, "orders", prefetch=5)
    put(connect(broker), "orders", *names(50))
    got = [stuck.expect(Publish).payload for _ in range(2)]
    stuck.expect_quiet()
    for _ in range(48):
        got.append(quick.receive().payload)
    assert sorted(got) == sorted(names(50))
    stuck.close()
    again = [quick.receive() for _ in range(2)]
    assert {packet.payload for packet in again} == set(got[:2])
    assert {users(packet)["delivery-count"] for packet in again} == {"2"}


def test_groups_are_independent(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    consumers = [connect(broker) for _ in range(2)]
    for consumer, group in zip(consumers, ("billing", "shipping"), strict=True):
        consume(consumer, "orders", consumer_group=group)
    put(connect(broker), "orders", *names(3))
    for consumer in consumers:
        ack(consumer, *take(consumer, *names(3)))
        consumer.expect_quiet()
    # What all groups have settled is gone: a new one begins with what comes now.
    late = connect(broker)
    consume(late, "orders", consumer_group="late")
    late.expect_quiet()
    put(connect(broker), "orders", b"new")
    take(late, b"new")


@pytest.mark.parametrize("version", [4, 5])
def test_receive_maximum_bounds_a_consumer(version: int, start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, **{"session.max_inflight_messages": 3})
    consumer = connect(broker, version=version)
    consume(consumer, "orders")
    put(connect(broker), "orders", *names(10))
    first = take(consumer, *names(3))
    consumer.expect_quiet()
    ack(consumer, first[1])
    take(consumer, b"m3")
    consumer.expect_quiet()


def test_qos_2_is_settled_by_pubcomp(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    consumer = connect(broker)
    consume(consumer, "orders", qos=2)
    packet = take(consumer, b"x")[0]
    assert packet.qos == 2
    consumer.send(Pubrec(packet_id=packet.packet_id))
    consumer.expect(Pubrel, packet_id=packet.packet_id)
    consumer.send(Pubcomp(packet_id=packet.packet_id))
    consumer.expect_quiet()
    consumer.close()
    later = connect(broker)
    consume(later, "orders")
    later.expect_quiet()


def test_qos_0_is_refused(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    connect(broker).subscribe("$queue/orders", qos=0, expect=[0x83])
    connect(broker, version=4).subscribe("$queue/orders", qos=0, expect=[0x80])


def test_unknown_queues_are_refused(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    client = connect(broker)
    put(client, "nowhere", b"x", expect=0x90)
    client.subscribe("$queue/nowhere", qos=1, expect=[0x8F])
    client.publish("$queue/orders", b"still here", 1, expect=0)
    old = connect(broker, version=4)
    old.send(Publish(topic="$queue/nowhere", payload=b"x", qos=1, packet_id=1))
    old.expect_closed()


def test_a_queue_is_made_where_the_configuration_says_so(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(**{"queue_manager.auto_create": "classic"})
    put(connect(broker), "fresh", b"x")
    consumer = connect(broker)
    consume(consumer, "fresh")
    take(consumer, b"x")


def test_an_ordinary_topic_is_captured_once(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "all", "topics": ["m/#", "m/+/t"]})
    subscriber, consumer = connect(broker), connect(broker)
    subscriber.subscribe("m/#", qos=1)
    consume(consumer, "all")
    connect(broker).publish("m/1/t", b"x", 1, expect=0)
    subscriber.receive("m/1/t", b"x")
    packet = consumer.receive()
    assert (packet.topic, users(packet)["x-source-topic"]) == ("$queue/all/m/1/t", "m/1/t")
    consumer.expect_quiet()


# ---------------------------------------------------------------- manual: $ack, $nack, $reject


def test_manual_acknowledgement(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(3))
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual", prefetch=2)
    one, two = (consumer.receive() for _ in range(2))  # PUBACK is a receipt: the third does not come for it
    consumer.expect_quiet()
    order(consumer, "ack", one)
    third = consumer.receive()
    assert third.payload == b"m2"
    order(consumer, "nack", two, delay=0)
    again = consumer.receive()
    assert (again.payload, users(again)["delivery-count"]) == (b"m1", "2")
    order(consumer, "ack", again)
    order(consumer, "ack", again)  # settled already, and that is what it wants
    order(consumer, "nack", again, expect=0x83)
    consumer.close()
    later = connect(broker)
    consume(later, "orders")
    take(later, b"m2")
    later.expect_quiet()


def test_reject_goes_to_the_dead_letters(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "dlq": {"enabled": True, "topic": "lost"}})
    put(connect(broker), "orders", b"poison", b"good")
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual")
    poison, good = (consumer.receive() for _ in range(2))
    order(consumer, "reject", poison, reason="cannot parse")
    order(consumer, "ack", good)
    dead = connect(broker)
    consume(dead, "lost")
    told = users(dead.receive(payload=b"poison"))
    assert told["x-death-reason"] == "rejected" or "cannot parse" in told.values()
    assert told["x-death-queue"] == "orders"


def test_retries_end_in_the_dead_letters(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "retry": {"max_retries": 2, "initial_backoff": "1ms"},
                           "dlq": {"enabled": True, "topic": "lost"}})
    put(connect(broker), "orders", b"poison")
    consumer = connect(broker)
    consume(consumer, "orders")
    counts = []
    for _ in range(3):
        packet = take(consumer, b"poison")[0]
        counts.append(users(packet)["delivery-count"])
        ack(consumer, packet, reason=0x80)  # the client says that it failed
    assert counts == ["1", "2", "3"]
    consumer.expect_quiet()
    dead = connect(broker)
    consume(dead, "lost")
    dead.receive(payload=b"poison")


def test_the_visibility_timeout_gives_it_to_anybody(start_broker: Start, connect: Connect) -> None:
    """Also to the same consumer, when it is the only one."""
    broker = start_broker(ORDERS | {"retry": {"max_retries": 0}})       # however often, on a busy machine
    put(connect(broker), "orders", b"x")
    consumer, other = connect(broker), connect(broker)
    consume(consumer, "orders", visibility_timeout=0.3)
    first = take(consumer, b"x")[0]
    second = consumer.expect(Publish, payload=b"x")
    assert (users(second)["delivery-count"], users(second)["redelivered"]) == ("2", "true")
    assert "redelivered" not in users(first)
    assert second.packet_id != first.packet_id
    consumer.unsubscribe("$queue/orders")       # who knows how often it has come by now
    consume(other, "orders")
    ack(other, other.expect(Publish, payload=b"x"))
    other.expect_quiet()


def test_a_full_queue_refuses(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "limits": {"max_depth": 3}})
    publisher = connect(broker)
    put(publisher, "orders", *names(3))
    put(publisher, "orders", b"one too many", expect=0x97)
    consumer = connect(broker)
    consume(consumer, "orders")
    ack(consumer, *take(consumer, *names(3)))
    consumer.expect_quiet()
    put(publisher, "orders", b"room again")
    take(consumer, b"room again")


def test_drop_head_lets_the_oldest_go(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "limits": {"max_depth": 3}, "overflow": "drop-head"})
    put(connect(broker), "orders", *names(5))
    consumer = connect(broker)
    consume(consumer, "orders")
    take(consumer, *names(5)[2:])
    consumer.expect_quiet()


def test_priorities(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "max_priority": 9})
    publisher = connect(broker)
    for number, priority in enumerate([0, 9, 5, 9, 0]):
        put(publisher, "orders", f"{priority}-{number}".encode(), priority=priority)
    consumer = connect(broker)
    consume(consumer, "orders", prefetch=1)
    assert [consumer.receive().payload for _ in range(5)] == [b"9-1", b"9-3", b"5-2", b"0-0", b"0-4"]


def test_a_delayed_message_comes_when_it_is_due(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    publisher, consumer = connect(broker), connect(broker)
    consume(consumer, "orders")
    put(publisher, "orders", b"later", x_delay=6000)
    put(publisher, "orders", b"now")
    consumer.receive(payload=b"now")
    consumer.receive(payload=b"later")


def test_a_producer_that_repeats_itself(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    publisher = connect(broker)
    for sequence in (1, 2, 2, 1, 3):
        put(publisher, "orders", b"%d" % sequence, producer_id="p", producer_sequence=sequence)
    consumer = connect(broker)
    consume(consumer, "orders")
    assert [consumer.receive().payload for _ in range(3)] == [b"1", b"2", b"3"]
    consumer.expect_quiet()


def test_partition_keys_keep_their_order(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "partitions": 4})
    publisher = connect(broker)
    for number in range(40):
        put(publisher, "orders", b"%d" % number, partition_key=f"k{number % 5}")
    consumer = connect(broker)
    consume(consumer, "orders")
    seen: dict[int, list[int]] = {}
    for _ in range(40):
        number = int(consumer.receive().payload)
        seen.setdefault(number % 5, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in seen.values()) and len(seen) == 5


def test_bad_requests_say_what_is_wrong(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    client = connect(broker)
    for asked in ({"ack": "perhaps"}, {"prefetch": "many"}, {"offset": "yesterday"}, {"visibility-timeout": "-1"}):
        client.subscribe("$queue/orders", qos=1, expect=[0x83],
                         properties=[("user_property", pair) for pair in asked.items()])
    client.subscribe("$queue/+", qos=1, expect=[0x8F])
    put(client, "orders", b"x", expect=0x83, x_delay="soon")
    put(client, "orders", b"x", expect=0x83, priority="high")
    put(client, "orders/$ack", b"", expect=0x83)
    put(client, "orders/$dance", b"", expect=0x90)


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_nothing_is_lost_or_forgotten_by_a_restart(how: str, start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "max_priority": 3}, **{"storage.type": "rocksdb"})
    put(connect(broker), "orders", *names(10))
    consumer = connect(broker)
    consume(consumer, "orders", prefetch=6)
    deliveries = take(consumer, *names(6))
    ack(consumer, deliveries[0], deliveries[2])
    take(consumer, b"m6", b"m7")
    if how == "kill":
        # The acknowledgements are on disk when what they made room for has come: it left behind their batch.
        broker.kill()
        broker.start()
    else:
        broker.restart()
    later = connect(broker)
    consume(later, "orders")
    got = [later.receive() for _ in range(8)]
    assert [(packet.payload, users(packet)["delivery-count"]) for packet in got] == [
        (b"m1", "2"), (b"m3", "2"), (b"m4", "2"), (b"m5", "2"), (b"m6", "2"), (b"m7", "2"), (b"m8", "1"), (b"m9", "1")]
    later.expect_quiet()


def test_a_kept_session_goes_on_consuming(start_broker: Start, connect: Connect) -> None:
    """Its subscription comes back with it, also after a restart; nobody sends SUBSCRIBE again."""
    kept = {"clean_start": False, "properties": {"session_expiry_interval": 120}}
    broker = start_broker(ORDERS, **{"storage.type": "rocksdb"})
    consumer = connect(broker, "kept", **kept)
    consume(consumer, "orders", consumer_group="g", prefetch=2)
    consumer.close()
    put(connect(broker), "orders", *names(3))
    consumer = connect(broker, "kept", **kept)
    take(consumer, *names(2))
    consumer.close()
    broker.restart()
    consumer = connect(broker, "kept", **kept)
    assert [users(consumer.receive())["delivery-count"] for _ in range(3)] == ["2", "2", "1"]


def test_unsubscribe_gives_back(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    first, second = connect(broker), connect(broker)
    consume(first, "orders")
    packet = take(first, b"x")[0]
    consume(second, "orders")
    second.expect_quiet()
    first.unsubscribe("$queue/orders")
    take(second, b"x")
    ack(first, packet)  # too late, and nobody minds
    first.expect_quiet()


def test_a_queue_takes_no_orders_from_strangers(start_broker: Start, connect: Connect) -> None:
    """Only who has a message may settle it."""
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    consumer, stranger = connect(broker), connect(broker)
    consume(consumer, "orders", ack="manual")
    packet = consumer.receive()
    order(stranger, "ack", packet, expect=0x83)
    consumer.close()
    consume(stranger, "orders")
    take(stranger, b"x")


def test_the_owner_of_a_session_is_told_at_disconnect(start_broker: Start, connect: Connect) -> None:
    """A second client of the same name takes over: what the first had is delivered again, to the second."""
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    first = connect(broker, "same")
    consume(first, "orders")
    take(first, b"x")
    second = connect(broker, "same")
    first.expect(Disconnect)
    consume(second, "orders")
    assert users(take(second, b"x")[0])["delivery-count"] == "2"


def test_what_a_group_had_settled_is_gone_when_the_group_is(start_broker: Start, connect: Connect) -> None:
    """Deleting the only group of a queue, and a kill: settlements end with it, and its messages do not come back."""
    broker = start_broker({"name": "work"})
    consumer, producer = connect(broker), connect(broker)
    consume(consumer, "work")
    put(producer, "work", b"1", b"2", b"3")
    for payload in (b"1", b"2", b"3"):
        consumer.receive(payload=payload)
    consumer.disconnect()
    consumer.expect_closed()
    admin(broker, "DELETE", "queues", "work", "groups", "default")
    put(producer, "work", b"4")
    broker.kill()
    broker.start()
    again = connect(broker)
    consume(again, "work")
    again.receive(payload=b"4")
    again.expect_quiet()
