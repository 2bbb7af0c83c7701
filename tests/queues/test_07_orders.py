"""`$ack`, `$nack`, `$reject`, `$extend`, `$commit`: whatever a client says in them, and when."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel
from queues.conftest import ack, consume, order, put, take, users

Start = Callable[..., Broker]
Connect = Callable[..., Client]

ORDERS = {"name": "orders"}


def names(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(count)]


def say(client: Client, verb: str, *, queue: str = "orders", qos: int = 1, **asked: object) -> tuple[int, str]:
    """Publish an order; (reason code, Reason String) of its answer."""
    packet_id = client.next_packet_id()
    pairs = [("user_property", (name.replace("_", "-"), str(value))) for name, value in asked.items()]
    client.send(Publish(topic=f"$queue/{queue}/{verb}", payload=b"", qos=qos, packet_id=packet_id, properties=pairs))
    answer = client.answer(Puback if qos == 1 else Pubrec, packet_id=packet_id)
    return answer.reason, answer.prop("reason_string") or ""


@pytest.mark.parametrize("mode", ["auto", "manual"])
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "extend"])
def test_an_order_may_come_before_the_puback(mode: str, verb: str, start_broker: Start, connect: Connect) -> None:
    """Client libraries acknowledge when the callback returns, and the order is published in the callback."""
    broker = start_broker(ORDERS | {"dlq": {"enabled": False}})
    put(connect(broker), "orders", *names(5))
    consumer = connect(broker)
    consume(consumer, "orders", ack=mode, prefetch=2)
    first, second = take(consumer, *names(2))
    order(consumer, verb, first, **({"delay": 3_600_000} if verb == "nack" else {"lease": 60_000} if verb == "extend"
                                    else {}))
    put(connect(broker), "orders", b"m5")  # whatever was given back has other uses by now
    ack(consumer, first, reason=0)
    ack(consumer, second)
    if mode == "manual":
        order(consumer, "ack", second)
        if verb == "extend":
            order(consumer, "ack", first)
    assert [consumer.receive().payload for _ in range(2)] == [b"m2", b"m3"]
    consumer.close()
    later = connect(broker)
    consume(later, "orders")
    expected = [b"m4", b"m5"] if mode == "auto" else [b"m2", b"m3", b"m4", b"m5"]
    assert [later.receive().payload for _ in expected] == expected
    later.expect_quiet()


def test_upto_is_about_ones_own(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(6))
    one, two = connect(broker), connect(broker)
    consume(one, "orders", ack="manual", prefetch=3)
    mine = [one.receive() for _ in range(3)]
    consume(two, "orders", ack="manual", prefetch=3)
    others = [two.receive() for _ in range(3)]
    order(two, "ack", others[1], upto="true")  # m3 and m4, not what the other client has
    two.unsubscribe("$queue/orders")
    one.close()
    left = connect(broker)
    consume(left, "orders")
    assert [left.receive().payload for _ in range(4)] == [*(packet.payload for packet in mine), b"m5"]
    left.expect_quiet()


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_ranges_are_for_every_verb(verb: str, start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS | {"dlq": {"topic": "lost"}})
    put(connect(broker), "orders", *names(4))
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual", prefetch=4)
    packets = [consumer.receive() for _ in range(4)]
    order(consumer, verb, packets[2], upto="true", **({"delay": 0} if verb == "nack" else {}))
    if verb == "nack":
        assert [users(consumer.receive())["delivery-count"] for _ in range(3)] == ["2", "2", "2"]
    consumer.expect_quiet()
    dead = connect(broker)
    consume(dead, "lost") if verb == "reject" else None
    assert [dead.receive().payload for _ in range(3 * (verb == "reject"))] == names(3 * (verb == "reject"))


def test_upto_false_is_one_message(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(2))
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual")
    packets = [consumer.receive() for _ in range(2)]
    order(consumer, "ack", packets[1], upto="false")
    consumer.close()
    later = connect(broker)
    consume(later, "orders")
    later.receive(payload=b"m0")
    later.expect_quiet()


def test_a_client_with_several_filters_settles_what_it_has(start_broker: Start, connect: Connect) -> None:
    """Each filter is a group of its own; for the one a message is nothing, the other has it in hand."""
    broker = start_broker(ORDERS)
    consumer, publisher = connect(broker), connect(broker)
    for area in ("eu", "us"):
        consume(consumer, f"orders/{area}/#", ack="manual")
    for area in ("us", "eu"):
        put(publisher, f"orders/{area}/1", area.encode())
    packets = [consumer.receive() for _ in range(2)]
    for packet in packets:
        order(consumer, "ack", packet)
    consumer.close()
    later = connect(broker)
    for area in ("eu", "us"):
        consume(later, f"orders/{area}/#")
    later.expect_quiet()


def test_extend_gives_time(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(2))
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual", visibility_timeout=5)
    long, short = (consumer.receive() for _ in range(2))
    order(consumer, "extend", long, lease=3_600_000)
    assert consumer.receive().payload == short.payload  # its time is over
    order(consumer, "ack", long)
    consumer.expect_quiet()


def test_orders_by_qos_0_and_2(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(2))
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual")
    one, two = (consumer.receive() for _ in range(2))
    consumer.publish("$queue/orders/$ack", b"", 0, properties=[
        ("user_property", ("message-id", users(one)["message-id"]))])
    packet_id = consumer.next_packet_id()
    for _ in range(2):  # the second time is a repetition, and answered alike
        consumer.send(Publish(topic="$queue/orders/$ack", payload=b"", qos=2, packet_id=packet_id, properties=[
            ("user_property", ("message-id", users(two)["message-id"]))]))
        consumer.expect(Pubrec, packet_id=packet_id, reason=0)
    consumer.send(Pubrel(packet_id=packet_id))
    consumer.expect(Pubcomp, packet_id=packet_id)
    consumer.close()
    later = connect(broker)
    consume(later, "orders")
    later.expect_quiet()


@pytest.mark.parametrize(("verb", "asked", "reason", "said"), [
    ("$dance", {"message_id": "0:0"}, 0x90, "there are $ack, $nack"),
    ("$commit", {"message_id": "0:0"}, 0x90, "for streams"),
    ("$ack", {}, 0x83, "message-id"),
    ("$ack", {"message_id": "first"}, 0x83, "message-id"),
    ("$ack", {"message_id": "0:-1"}, 0x83, "message-id"),
    ("$ack", {"message_id": "7:0"}, 0x83, "1 partitions"),
    ("$ack", {"message_id": f"0:{1 << 63}"}, 0x83, "no such message"),
    ("$ack", {"message_id": "0:99"}, 0x83, "does not have this message"),
    ("$ack", {"message_id": "0:0", "group_id": "other"}, 0x83, "in the group other"),
    ("$ack", {"message_id": "0:0", "upto": "perhaps"}, 0x83, "upto is true or false"),
    ("$nack", {"message_id": "0:0", "delay": "soon"}, 0x83, "delay is a number of milliseconds"),
    ("$nack", {"message_id": "0:0", "delay": "9" * 15}, 0x83, "delay is a number of milliseconds"),
    ("$extend", {"message_id": "0:0"}, 0x83, "lease is a number of milliseconds"),
    ("$extend", {"message_id": "0:0", "lease": "-1"}, 0x83, "lease is a number of milliseconds"),
    ("$nack", {"message_id": "0:1"}, 0x83, "settled already"),
    ("$reject", {"message_id": "0:1"}, 0x83, "settled already")])
def test_what_cannot_be_is_refused_with_a_reason(verb: str, asked: dict[str, str], reason: int, said: str,
                                                 start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", *names(2))
    consumer = connect(broker)
    consume(consumer, "orders", ack="manual")
    consumer.receive()
    order(consumer, "ack", consumer.receive())
    code, text = say(consumer, verb, **asked)
    assert (code, said in text) == (reason, True), text
    consumer.expect_quiet()  # and nothing has happened to the message
    order_again = say(consumer, "$ack", partition=0, offset=0)
    assert order_again == (0, "")


def test_orders_to_who_is_not_there(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS, **{"queue_manager.auto_create": "classic"})
    client = connect(broker)
    assert say(client, "$ack", queue="nowhere", message_id="0:0") == (0x90, "there is no such queue")
    assert say(client, "$ack", message_id="0:0")[0] == 0x83
    assert say(client, "$ack", qos=2, message_id="0:0")[0] == 0x83
    # An order makes no queue.
    assert say(client, "$ack", queue="nowhere", message_id="0:0") == (0x90, "there is no such queue")


def test_what_another_has_by_now_is_refused(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(ORDERS)
    put(connect(broker), "orders", b"x")
    # A client that has acknowledged nothing has no room: what its time is over for goes to the other.
    slow, quick = connect(broker, properties={"receive_maximum": 1}), connect(broker)
    consume(slow, "orders", ack="manual", visibility_timeout=0.2)
    packet = take(slow, b"x")[0]
    consume(quick, "orders", ack="manual")
    assert users(quick.receive(payload=b"x"))["delivery-count"] == "2"
    for verb in ("$ack", "$nack", "$reject", "$extend"):
        code, text = say(slow, verb, message_id=users(packet)["message-id"], lease=1000)
        assert code == 0x83 and "another consumer" in text
    assert say(quick, "$ack", message_id="0:0") == (0, "")


def test_commits_that_cannot_be(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "events", "type": "stream"})
    put(connect(broker), "events", *names(3))
    reader = connect(broker)
    consume(reader, "events", offset="first")
    reader.receive()
    assert "consumer-group" in say(reader, "$commit", queue="events", message_id="0:0")[1]
    assert say(reader, "$ack", queue="events", message_id="0:0")[0] == 0x90
    named = connect(broker)
    consume(named, "events", offset="first", consumer_group="g", ack="manual")
    assert say(named, "$commit", queue="events", message_id="0:3") == (
        0x83, "there is no message 3; the next one will be 3")
    assert say(named, "$commit", queue="events", message_id="0:2") == (0, "")
    assert say(named, "$commit", queue="events", message_id="0:0") == (0, "")  # back again
    named.close()
    again = connect(broker)
    consume(again, "events", consumer_group="g")
    take(again, *names(3)[1:])
