"""What else MQTT has, on queues: properties, aliases, wills, retained messages, shared subscriptions, expiry, 3.1.1."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.broker import Broker
from kit.client import KEPT, Client
from kit.watch import metric
from oracle.mqtt import Connect as ConnectPacket
from oracle.mqtt import Puback, Publish, Pubrec, Suback, Subscribe, Will
from queues.conftest import ack, consume, order, put, take, users

Start = Callable[..., Broker]
Connect = Callable[..., Client]

ORDERS = {"name": "orders"}
EVENTS = {"name": "events", "type": "stream"}


def names(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(count)]


# ---------------------------------------------------------------- what a message carries


@pytest.mark.parametrize("queue", [ORDERS, EVENTS], ids=["classic", "stream"])
@pytest.mark.parametrize("restart", [False, True], ids=["memory", "disk"])
def test_properties_come_out_as_they_went_in(queue: dict[str, Any], restart: bool, start_broker: Start,
                                             connect: Connect) -> None:
    broker = start_broker(queue, **{"storage.type": "rocksdb"})
    mine = [("payload_format_indicator", 1), ("content_type", "text/plain"), ("response_topic", "answers/7"),
            ("correlation_data", b"\0\xff"), ("user_property", ("a", "1")), ("user_property", ("b", "2")),
            ("user_property", ("a", "3")), ("user_property", ("partition-key", "k"))]
    connect(broker).publish(f"$queue/{queue['name']}/eu/1", "gr\u00fc\u00dfe".encode(), 1, properties=mine, expect=0)
    if restart:
        broker.kill()
        broker.start()
    consumer = connect(broker)
    consume(consumer, str(queue["name"]), offset="first")
    packet = consumer.receive(f"$queue/{queue['name']}/eu/1", "gr\u00fc\u00dfe".encode())
    assert packet.properties[:len(mine)] == mine  # the broker's own come behind them
    assert packet.retain is False


def test_message_expiry_goes_on_and_counts_down(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, {"name": "short", "limits": {"message_ttl": "60s"}})
    publisher, consumer = connect(broker), connect(broker)
    for queue, expiry in (("orders", 100), ("short", 100), ("short", 30)):
        publisher.publish(f"$queue/{queue}", b"x", 1, properties={"message_expiry_interval": expiry}, expect=0)
    put(publisher, "orders", b"for ever")
    consume(consumer, "orders")
    consume(consumer, "short")
    left = [consumer.receive().prop("message_expiry_interval") for _ in range(4)]
    assert sorted(value or 0 for value in left)[0] == 0
    assert [bound - 20 < value <= bound for value, bound in zip(
        sorted(value for value in left if value), (30, 60, 100), strict=True)] == [True] * 3


def test_topic_aliases_of_publishers_and_consumers(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    publisher = connect(broker)
    publisher.publish("$queue/orders/a", b"0", 1, properties={"topic_alias": 1}, expect=0)
    publisher.publish("", b"1", 1, properties={"topic_alias": 1}, expect=0)
    publisher.publish("$queue/orders/b", b"2", 2, properties={"topic_alias": 1}, expect=0)
    publisher.publish("", b"3", 0, properties={"topic_alias": 1})
    consumer = connect(broker, properties={"topic_alias_maximum": 5})
    consume(consumer, "orders")
    known: dict[int, str] = {}
    seen = []
    for _ in range(4):
        packet = consumer.receive()
        alias = packet.prop("topic_alias")
        if packet.topic and alias:
            known[alias] = packet.topic
        seen.append((packet.topic or known[alias], packet.payload))
    assert seen == [("$queue/orders/a", b"0"), ("$queue/orders/a", b"1"), ("$queue/orders/b", b"2"),
                    ("$queue/orders/b", b"3")]


def test_subscription_identifiers(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, EVENTS)
    consumer, publisher = connect(broker), connect(broker)
    consumer.subscribe("$queue/orders", qos=1, properties={"subscription_identifier": 7})
    consumer.subscribe("$queue/events", qos=0, properties={"subscription_identifier": 268_435_455})
    put(publisher, "orders", b"x")
    assert consumer.receive().prop("subscription_identifier") == 7
    put(publisher, "events", b"y")
    assert consumer.receive().prop("subscription_identifier") == 268_435_455


def test_redelivery_is_told_with_its_count(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    for times in range(1, 4):
        consumer = connect(broker)
        consume(consumer, "orders")
        packet = take(consumer, b"x")[0]
        told = users(packet)
        assert (told["delivery-count"], told.get("redelivered", "false")) == (str(times), str(times > 1).lower())
        assert packet.dup is False  # for this client it is new
        consumer.close()


# ---------------------------------------------------------------- who gets what


def test_a_message_is_in_each_queue_that_matches_once(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "all", "topics": ["#"]}, {"name": "shop", "topics": ["shop/#", "shop/+/orders"]},
                          {"name": "logs", "type": "stream", "topics": ["shop/1/#"]}, {"name": "none"})
    publisher = connect(broker)
    publisher.publish("shop/1/orders", b"captured", 1, expect=0)
    put(publisher, "none", b"addressed")
    expected = {"all": [b"captured"], "shop": [b"captured"], "logs": [b"captured"], "none": [b"addressed"]}
    for queue, payloads in expected.items():
        consumer = connect(broker)
        consume(consumer, queue, offset="first")
        take(consumer, *payloads)
        consumer.expect_quiet()


def test_no_queue_takes_what_is_meant_for_another(start_broker: Start, connect: Connect) -> None:
    """Neither one with a shorter name, nor one that captures everything."""
    broker = start_broker({"name": "order"}, {"name": "all", "topics": ["#", "+/orders"]})
    publisher = connect(broker)
    for queue in ("orders", "order2", "orders/eu"):
        put(publisher, queue, b"x", expect=0x90)
    for queue in ("order", "all"):
        consumer = connect(broker)
        consume(consumer, queue)
        consumer.expect_quiet()


def test_capture_confirmed_is_a_promise(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "safe", "topics": ["t/#"], "capture": "confirmed", "limits": {"max_depth": 2}},
                          {"name": "loose", "topics": ["t/#"], "limits": {"max_depth": 1}},
                          **{"storage.type": "rocksdb"})
    publisher, subscriber = connect(broker), connect(broker)
    subscriber.subscribe("t/#", qos=1)
    publisher.publish("t/1", b"0", 1, expect=0)
    publisher.publish("t/1", b"1", 2, expect=0)  # the loose one is full, and nobody hears of it
    publisher.publish("t/1", b"2", 1, expect=0x97)
    publisher.publish("t/1", b"3", 2, expect=0x97)
    for payload in (b"0", b"1", b"2", b"3"):  # subscribers are served all the same
        subscriber.receive("t/1", payload)
    broker.kill()
    broker.start()
    consumer = connect(broker)
    consume(consumer, "safe")
    take(consumer, b"0", b"1")
    consumer.expect_quiet()


def test_a_filter_makes_a_group_of_its_own(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    everything, europe, publisher = connect(broker), connect(broker), connect(broker)
    consume(everything, "orders", consumer_group="g")
    consume(europe, "orders/eu/#", consumer_group="g")
    for area in ("eu", "us"):
        put(publisher, f"orders/{area}/1", area.encode())
    assert [everything.receive().payload for _ in range(2)] == [b"eu", b"us"]
    packet = europe.receive()
    assert (packet.payload, users(packet)["group-id"]) == (b"eu", "g")
    europe.expect_quiet()


@pytest.mark.parametrize(("filter_", "payloads"), [
    ("eu/#", [b"eu", b"eu/a", b"eu/a/b"]), ("eu/+", [b"eu/a"]), ("+/a", [b"eu/a", b"us/a"]), ("+", [b"eu"]),
    ("#", [b"", b"eu", b"eu/a", b"eu/a/b", b"us/a"]), ("eu", [b"eu"])])
def test_filters_select_by_routing_key(filter_: str, payloads: list[bytes], start_broker: Start,
                                       connect: Connect) -> None:
    broker = start_broker(ORDERS)
    publisher, consumer = connect(broker), connect(broker)
    for key in ("", "eu", "eu/a", "eu/a/b", "us/a"):
        put(publisher, f"orders/{key}" if key else "orders", key.encode())
    consume(consumer, f"orders/{filter_}")
    take(consumer, *payloads)
    consumer.expect_quiet()


def test_exclusive_groups_have_a_standby(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "partitions": 1})
    first, second, publisher = connect(broker), connect(broker), connect(broker)
    consume(first, "orders", exclusive="true")
    consume(second, "orders", exclusive="true")
    put(publisher, "orders", *names(3))
    assert [first.receive().payload for _ in range(3)] == names(3)
    first.expect_quiet()
    second.expect_quiet()
    first.close()
    put(publisher, "orders", b"m3")
    assert second.receive().payload == b"m3"


# ---------------------------------------------------------------- wills, retained, shared


@pytest.mark.parametrize("retain", [False, True])
def test_a_will_goes_into_the_queue(retain: bool, start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, **{"broker.sys_interval": "0s"})
    client = Client(broker.address, 5)
    client.connect("doomed", will=Will(topic="$queue/orders/wills", payload=b"gone", qos=1, retain=retain, properties=[
        ("user_property", ("k", "v")), ("content_type", "t")]))
    client.drop()
    consumer = connect(broker)
    consume(consumer, "orders")
    packet = consumer.receive("$queue/orders/wills", b"gone")
    assert (users(packet)["k"], packet.prop("content_type")) == ("v", "t")
    assert metric(broker, "fluxmq_retained_messages") == 0  # a queue keeps its messages itself


def test_a_will_makes_its_queue_where_the_configuration_says_so(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(**{"queue_manager.auto_create": "classic"})
    client = Client(broker.address, 5)
    client.connect("doomed", will=Will(topic="$queue/fresh", payload=b"gone", qos=1))
    client.drop()
    consumer = connect(broker)
    consume(consumer, "fresh")
    consumer.receive(payload=b"gone")


def test_a_will_is_no_order(start_broker: Start, connect: Connect) -> None:
    """`$ack` is said by who has a message; nobody is there any more when a will is published."""
    broker = start_broker(ORDERS)
    client = Client(broker.address, 5)
    client.send(ConnectPacket(client_id="doomed", will=Will(topic="$queue/orders/$ack", qos=1)))
    client.expect_refused(0x90)


def test_retained_publishes_to_a_queue_are_kept_once(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "topics": ["t"]})
    publisher, consumer = connect(broker), connect(broker)
    publisher.publish("$queue/orders", b"addressed", 1, retain=True, expect=0)
    publisher.publish("t", b"captured", 1, retain=True, expect=0)
    consume(consumer, "orders")
    packets = [consumer.receive() for _ in range(2)]
    assert [(packet.payload, packet.retain) for packet in packets] == [(b"addressed", False), (b"captured", False)]
    later = connect(broker)
    later.subscribe("t", qos=1)
    assert later.receive("t", b"captured").retain is True  # an ordinary topic's is retained as ever


@pytest.mark.parametrize("version", [4, 5])
def test_shared_subscriptions_name_the_group(version: int, start_broker: Start, connect: Connect) -> None:
    """`$share/<group>/$queue/…` is a way to name it that 3.1.1 has too."""
    broker = start_broker(ORDERS)
    one, two, other = connect(broker, version=version), connect(broker, version=version), connect(broker)
    consume(other, "orders", consumer_group="shipping")
    put(connect(broker), "orders", *names(4))
    one.subscribe("$share/billing/$queue/orders", qos=1)
    got = [one.receive().payload for _ in range(4)]
    assert got == names(4)
    two.subscribe("$share/billing/$queue/orders", qos=1)
    two.expect_quiet()
    packets = [other.receive() for _ in range(4)]
    assert {users(packet)["group-id"] for packet in packets} == {"shipping"}
    other.close()
    same = connect(broker)
    consume(same, "orders", consumer_group="billing")
    same.expect_quiet()  # it is the same group, and that has settled everything
    one.unsubscribe("$share/billing/$queue/orders")
    same.close()
    put(connect(broker), "orders", b"new")
    assert two.receive().payload == b"new"
    one.expect_quiet()


def test_shared_subscriptions_come_back_with_their_session(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, **{"storage.type": "rocksdb"})
    client = connect(broker, "kept", **KEPT)
    client.subscribe("$share/g/$queue/orders/eu/#", qos=1)
    client.close()
    broker.restart()
    put(connect(broker), "orders/eu/1", b"x")
    client = connect(broker, "kept", **KEPT)
    assert users(client.receive(payload=b"x"))["group-id"] == "g"


def test_a_stream_is_not_shared(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS)
    connect(broker).subscribe("$share/g/$queue/events", qos=1, expect=[0x8F])


def test_a_share_and_a_group_must_agree(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    client = connect(broker)
    share = "$share/one/$queue/orders"
    client.subscribe(share, qos=1, properties=[("user_property", ("consumer-group", "two"))], expect=[0x83])
    client.subscribe(share, qos=1, properties=[("user_property", ("consumer-group", "one"))])


# ---------------------------------------------------------------- refusals and their reasons


@pytest.mark.parametrize(("filter_", "qos", "asked", "reason", "said"), [
    ("$queue/orders", 0, {}, 0x83, "QoS 1 or 2"),
    ("$queue/nowhere", 1, {}, 0x8F, "there is no queue nowhere"),
    ("$queue/+", 1, {}, 0x8F, "one queue"),
    ("$queue/#", 1, {}, 0x8F, "one queue"),
    ("$queue/orders/$ack", 1, {}, 0x8F, "there is nothing to receive"),
    ("$queue/orders", 1, {"ack": "perhaps"}, 0x83, "auto or manual"),
    ("$queue/orders", 1, {"prefetch": "many"}, 0x83, "prefetch is a number"),
    ("$queue/orders", 1, {"prefetch": "65536"}, 0x83, "prefetch is a number"),
    ("$queue/orders", 1, {"offset": "yesterday"}, 0x83, "a position is first"),
    ("$queue/orders", 1, {"visibility-timeout": "-1"}, 0x83, "visibility-timeout is"),
    ("$queue/orders", 1, {"visibility-timeout": "nan"}, 0x83, "visibility-timeout is"),
    ("$queue/orders", 1, {"exclusive": "perhaps"}, 0x83, "exclusive is true or false"),
    ("$queue/orders", 1, {"consumer-group": "g" * 256}, 0x83, "longer than 255 bytes"),
    ("$queue/orders", 1, {"consumer-group": "a\u2028b"}, 0x83, "consumer-group")])
def test_a_refused_subscription_says_why(filter_: str, qos: int, asked: dict[str, str], reason: int, said: str,
                                         start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    client = connect(broker)
    client.send(Subscribe(packet_id=1, filters=[(filter_, qos)],
                          properties=[("user_property", pair) for pair in asked.items()]))
    answer = client.expect(Suback, packet_id=1, reasons=[reason])
    assert said in answer.prop("reason_string")
    # Who does not want to hear it does not [MQTT-3.1.2-29].
    quiet = connect(broker, properties={"request_problem_information": 0})
    quiet.send(Subscribe(packet_id=1, filters=[(filter_, qos)],
                         properties=[("user_property", pair) for pair in asked.items()]))
    assert quiet.expect(Suback, packet_id=1, reasons=[reason]).properties == []


@pytest.mark.parametrize(("limits", "payload", "asked", "reason", "said"), [
    ({"max_depth": 1}, b"x", {}, 0x97, "full"),
    ({"max_message_size": 3}, b"long", {}, 0x97, "max_message_size"),
    ({}, b"x", {"x-delay": "soon"}, 0x83, "x-delay"),
    ({}, b"x", {"priority": "-1"}, 0x83, "priority")])
def test_a_refused_publish_says_why(limits: dict[str, int], payload: bytes, asked: dict[str, str], reason: int,
                                    said: str, start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "orders", "limits": limits})
    client = connect(broker)
    put(client, "orders", b"1")
    for qos, kind in ((1, Puback), (2, Pubrec)):
        client.send(Publish(topic="$queue/orders", payload=payload, qos=qos, packet_id=50,
                            properties=[("user_property", pair) for pair in asked.items()]))
        assert said in client.expect(kind, packet_id=50, reason=reason).prop("reason_string")


# ---------------------------------------------------------------- 3.1.1


def test_a_client_of_3_1_1_needs_nothing_but_subscribe(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, EVENTS)
    publisher, consumer = connect(broker, version=4), connect(broker, version=4)
    publisher.publish("$queue/orders/eu", b"before", 1)
    consumer.subscribe("$queue/orders", "$queue/events", qos=1)
    packet = consumer.receive("$queue/orders/eu", b"before")
    assert packet.properties == []
    publisher.publish("$queue/events", b"event", 2)
    consumer.receive("$queue/events", b"event")
    consumer.expect_quiet()
    consumer.close()
    later = connect(broker, version=4)
    later.subscribe("$queue/orders", "$queue/events", qos=1)
    later.expect_quiet()  # settled; and of a stream only what comes next


@pytest.mark.parametrize("topic", ["$queue/nowhere", "$queue/full", "$queue/orders/$ack"])
def test_a_refusal_ends_a_connection_of_3_1_1(topic: str, start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, {"name": "full", "limits": {"max_depth": 1}})
    put(connect(broker), "full", b"x")
    client = connect(broker, version=4)
    client.send(Publish(topic=topic, payload=b"x", qos=1, packet_id=1))
    client.expect_closed()


def test_3_1_1_gets_back_what_it_did_not_acknowledge(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(3))
    first = connect(broker, version=4)
    first.subscribe("$queue/orders", qos=2)
    packets = take(first, *names(3))
    assert {packet.qos for packet in packets} == {2}
    first.close()
    second = connect(broker, version=4)
    second.subscribe("$queue/orders", qos=1)
    ack(second, *take(second, *names(3)))
    second.expect_quiet()


def test_auto_acknowledgement_takes_a_later_ack(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    consumer = connect(broker)
    consume(consumer, "orders")
    packet = consumer.receive()
    consumer.expect_quiet()
    order(consumer, "ack", packet)
    order(consumer, "nack", packet, expect=0x83)  # too late for that
