"""What consumers say about retries holds for their group: the limit, the delays; and for how long."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from crash.process import CrashBroker
from kit.broker import Broker
from kit.client import Client
from kit.watch import wait_until
from oracle.mqtt import Publish, Suback, Subscribe
from queues.conftest import ack, admin, consume, order, put, users

from fluxmq.engine.queues.records import GroupRecord
from fluxmq.engine.queues.retry import RetryPolicy
from fluxmq.engine.sessions.state import Consume

Start = Callable[..., Broker]
Connect = Callable[..., Client]

# Nothing comes a second time of itself within a test: what does is what the test is about.
SLOW = {"name": "orders", "retry": {"max_retries": 1, "initial_backoff": "1h", "max_backoff": "2h"}}
QUICK = {"name": "orders", "retry": {"max_retries": 1, "initial_backoff": "0s", "max_backoff": "0s"}}


def group_of(broker: Broker, name: str = "default", queue: str = "orders") -> dict[str, Any]:
    groups = admin(broker, "GET", "queues", queue, "groups")["groups"]
    return next(group for group in groups if group["name"] == name)


def deliveries(client: Client, payload: bytes, count: int) -> list[str]:
    """So many deliveries in a row, each refused; what they said of their number."""
    counts = []
    for _ in range(count):
        packet = client.expect(Publish, payload=payload)
        counts.append(users(packet)["delivery-count"])
        ack(client, packet, reason=0x80)
    return counts


def refused(client: Client, queue: str, **asked: object) -> str:
    """The Reason String of a subscription that is refused with 0x83."""
    pairs = [("user_property", (name.replace("_", "-"), str(value))) for name, value in asked.items()]
    packet_id = client.next_packet_id()
    client.send(Subscribe(packet_id=packet_id, filters=[(f"$queue/{queue}", 1)], properties=pairs))
    return str(client.expect(Suback, packet_id=packet_id, reasons=[0x83]).prop("reason_string"))


# ---------------------------------------------------------------- the limit


def test_groups_of_one_queue_have_limits_of_their_own(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(QUICK)
    asked: dict[str, dict[str, object]] = {"patient": {"max_retries": 4}, "strict": {"max_retries": 2}, "silent": {}}
    consumers = {name: connect(broker) for name in asked}
    for name, said in asked.items():
        consume(consumers[name], "orders", consumer_group=name, **said)
    put(connect(broker), "orders", b"poison")
    for name, count in (("patient", 5), ("strict", 3), ("silent", 2)):
        assert deliveries(consumers[name], b"poison", count) == [str(number + 1) for number in range(count)]
        consumers[name].expect_quiet()
    dead = connect(broker)
    consume(dead, "orders.dlq")
    told = [users(dead.receive(payload=b"poison")) for _ in asked]
    assert {one["x-death-group"]: one["x-death-count"] for one in told} == {
        "patient": "5", "strict": "3", "silent": "2"}
    assert {one["x-death-reason"] for one in told} == {"max_retries"}


def test_without_a_limit_it_comes_again_as_often_as_it_takes(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(QUICK)
    consumer = connect(broker)
    consume(consumer, "orders", max_retries=0)
    put(connect(broker), "orders", b"poison")
    assert deliveries(consumer, b"poison", 30) == [str(number + 1) for number in range(30)]
    ack(consumer, consumer.expect(Publish, payload=b"poison"))
    consumer.expect_quiet()
    assert admin(broker, "GET", "queues", "orders")["dead_letters"] == 0


def test_a_smaller_limit_holds_for_what_was_delivered_before(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(QUICK)
    first, second = connect(broker), connect(broker)
    consume(first, "orders", max_retries=0, prefetch=1)
    put(connect(broker), "orders", b"poison")
    deliveries(first, b"poison", 4)
    packet = first.expect(Publish, payload=b"poison")
    consume(second, "orders", max_retries=3)
    ack(first, packet, reason=0x80)
    wait_until(lambda: admin(broker, "GET", "queues", "orders")["dead_letters"] == 1)
    first.expect_quiet()
    second.expect_quiet()


# ---------------------------------------------------------------- the delay


def test_groups_of_one_queue_wait_as_they_said(start_broker: Start, connect: Connect) -> None:
    """By $nack and by a PUBACK with an error."""
    broker = start_broker(SLOW)
    quick, slow, manual = connect(broker), connect(broker), connect(broker)
    consume(quick, "orders", consumer_group="quick", initial_backoff=0.01, max_retries=0)
    consume(manual, "orders", consumer_group="manual", initial_backoff=0, max_retries=0, ack="manual")
    consume(slow, "orders", consumer_group="slow", max_retries=0)
    put(connect(broker), "orders", b"x")
    assert deliveries(slow, b"x", 1) == ["1"]
    assert deliveries(quick, b"x", 3) == ["1", "2", "3"]
    for count in ("1", "2", "3"):
        packet = manual.expect(Publish, payload=b"x")
        assert users(packet)["delivery-count"] == count
        order(manual, "nack", packet)
    slow.expect_quiet()
    assert group_of(broker, "slow")["claimed"] == 1


def test_the_delay_grows_as_they_said(start_broker: Start, connect: Connect) -> None:
    """So fast that the third delivery is hours away; and in the other group not at all."""
    broker = start_broker(QUICK)
    growing, level = connect(broker), connect(broker)
    common: dict[str, object] = {"initial_backoff": "0.2", "max_backoff": 86400, "max_retries": 0}
    consume(growing, "orders", consumer_group="growing", backoff_multiplier=100, **common)
    consume(level, "orders", consumer_group="level", backoff_multiplier=1, **common)
    put(connect(broker), "orders", b"x")
    assert deliveries(growing, b"x", 2) == ["1", "2"]
    assert deliveries(level, b"x", 4) == ["1", "2", "3", "4"]
    growing.expect_quiet()


def test_max_backoff_bounds_the_delay(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(SLOW)
    consumer = connect(broker)
    consume(consumer, "orders", initial_backoff="0.01", max_backoff="0.02", backoff_multiplier=100, max_retries=0)
    put(connect(broker), "orders", b"x")
    assert deliveries(consumer, b"x", 6) == ["1", "2", "3", "4", "5", "6"]


# ---------------------------------------------------------------- whose it is, and for how long


def test_who_says_so_last_decides_and_who_says_nothing_changes_nothing(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(SLOW)
    one, two = connect(broker), connect(broker)
    consume(one, "orders")
    assert group_of(broker)["contract"] == []
    assert group_of(broker)["retry"] == {
        "max_retries": 1, "initial_backoff": "1h", "max_backoff": "2h", "multiplier": 2}
    consume(one, "orders", max_retries=7, backoff_multiplier="1.5")
    consume(two, "orders", max_retries=3, initial_backoff=30)
    consume(one, "orders")
    two.close()
    one.close()
    assert group_of(broker)["contract"] == ["max_retries", "initial_backoff", "multiplier"]
    assert group_of(broker)["retry"] == {
        "max_retries": 3, "initial_backoff": "30s", "max_backoff": "2h", "multiplier": 1.5}


def test_a_client_that_is_back_does_not_say_it_again(start_broker: Start, connect: Connect) -> None:
    """Its subscription was kept, with what it had said: that was before somebody else said something."""
    broker = start_broker(SLOW)
    kept: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    one = connect(broker, "one", **kept)
    consume(one, "orders", max_retries=7)
    one.close()
    two = connect(broker)
    consume(two, "orders", max_retries=3)
    one = connect(broker, "one", **kept)
    wait_until(lambda: len(group_of(broker)["members"]) == 2)
    assert group_of(broker)["retry"]["max_retries"] == 3
    # But a group that is made for it is made as it said.
    two.close()
    one.close()
    wait_until(lambda: not group_of(broker)["members"])
    admin(broker, "DELETE", "queues", "orders", "groups", "default")
    connect(broker, "one", **kept)
    wait_until(lambda: admin(broker, "GET", "queues", "orders", "groups")["groups"] != [])
    assert group_of(broker)["retry"]["max_retries"] == 7


def test_a_group_deleted_forgets_its_contract(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(SLOW)
    one = connect(broker)
    consume(one, "orders", max_retries=7)
    one.close()
    wait_until(lambda: not group_of(broker)["members"])
    admin(broker, "DELETE", "queues", "orders", "groups", "default")
    consume(connect(broker), "orders")
    assert group_of(broker)["contract"] == []
    assert group_of(broker)["retry"]["max_retries"] == 1


def test_a_changed_queue_changes_only_what_nobody_said(start_broker: Start, connect: Connect) -> None:
    broker = start_broker()
    admin(broker, "PUT", "queues", "jobs", body={"retry": {"max_retries": 1}})
    consume(connect(broker), "jobs", max_retries=3, consumer_group="own")
    consume(connect(broker), "jobs", consumer_group="common")
    admin(broker, "PUT", "queues", "jobs", body={"retry": {"max_retries": 5, "max_backoff": "1h"}})
    for name, retries in (("own", 3), ("common", 5)):
        retry = group_of(broker, name, "jobs")["retry"]
        assert (retry["max_retries"], retry["max_backoff"]) == (retries, "1h")


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_it_survives(how: str, start_broker: Start, connect: Connect) -> None:
    """Said with the group's first subscription, and of a group that was there; twice, from journal and from view."""
    broker = start_broker(QUICK)
    made, there = connect(broker), connect(broker)
    consume(made, "orders", consumer_group="made", max_retries=2, backoff_multiplier=3)
    consume(there, "orders", consumer_group="there")
    consume(there, "orders", consumer_group="there", max_retries=4, max_backoff=60)
    for _ in range(2):
        if how == "kill":
            broker.kill()
            broker.start()
        else:
            broker.restart()
        assert group_of(broker, "made")["retry"] == {
            "max_retries": 2, "initial_backoff": "0s", "max_backoff": "0s", "multiplier": 3}
        assert group_of(broker, "there")["retry"] == {
            "max_retries": 4, "initial_backoff": "0s", "max_backoff": "1m", "multiplier": 2}
    put(connect(broker), "orders", b"poison")
    for name, count in (("made", 3), ("there", 5)):
        consumer = connect(broker)
        consume(consumer, "orders", consumer_group=name)
        assert deliveries(consumer, b"poison", count)[-1] == str(count)
        consumer.expect_quiet()
    wait_until(lambda: admin(broker, "GET", "queues", "orders")["dead_letters"] == 2)


def test_ephemeral_queues_have_it_too(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(QUICK | {"type": "ephemeral"})
    consumer = connect(broker)
    consume(consumer, "orders", max_retries=2)
    put(connect(broker), "orders", b"poison")
    assert deliveries(consumer, b"poison", 3) == ["1", "2", "3"]
    consumer.expect_quiet()


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(("name", "values"), [
    ("max-retries", ("", "-1", "many", "65001", "1.5", "\u0663")),
    ("initial-backoff", ("", "-1", "nan", "inf", "604801", "1s")),
    ("max-backoff", ("", "-1", "nan", "inf", "604801", "1s")),
    ("backoff-multiplier", ("", "0.99", "100.1", "nan", "inf", "twice"))])
def test_a_value_that_cannot_be_is_refused(name: str, values: tuple[str, ...], start_broker: Start,
                                           connect: Connect) -> None:
    broker = start_broker(SLOW)
    client = connect(broker)
    for value in values:
        said = refused(client, "orders", **{name: value})
        assert f": {name} is " in said and repr(value) in said
    assert admin(broker, "GET", "queues", "orders", "groups")["groups"] == []


def test_the_first_delay_is_not_longer_than_the_longest(start_broker: Start, connect: Connect) -> None:
    """Also where one of them is the queue's, or was said before."""
    broker = start_broker(SLOW)
    client = connect(broker)
    for asked in ({"initial_backoff": 2, "max_backoff": 1}, {"initial_backoff": 7201}, {"max_backoff": 3599}):
        said = refused(client, "orders", **asked)
        assert "initial-backoff" in said and "max-backoff" in said
    consume(client, "orders", initial_backoff=5)
    consume(client, "orders", max_backoff=10)
    assert "max-backoff" in refused(client, "orders", initial_backoff=11)
    assert group_of(broker)["retry"]["initial_backoff"] == "5s"


@pytest.mark.parametrize("asked", [{"max_retries": 3}, {"initial_backoff": 1}, {"max_backoff": 1},
                                   {"backoff_multiplier": 2}])
def test_a_stream_has_no_retries(asked: dict[str, object], start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "events", "type": "stream"})
    said = refused(connect(broker), "events", **asked)
    assert next(iter(asked)).replace("_", "-") in said and "stream" in said


# ---------------------------------------------------------------- on disk


def test_records_of_earlier_versions_say_nothing() -> None:
    """Neither a group's nor that of a subscription."""
    group = msgspec.msgpack.decode(msgspec.msgpack.encode([7, b"g", "exclusive", b"eu/#"]), type=GroupRecord)
    assert group == GroupRecord(7, b"g", "exclusive", b"eu/#", RetryPolicy())
    asked = msgspec.msgpack.decode(msgspec.msgpack.encode([b"g", True, 5, "", 1000, False]), type=Consume)
    assert asked == Consume(b"g", True, 5, "", 1000, False, RetryPolicy())


def test_a_record_keeps_what_was_said() -> None:
    """0 is something that was said."""
    said = RetryPolicy(max_retries=0, max_backoff=0.0)
    record = GroupRecord(7, b"g", retry_policy=said)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=GroupRecord) == record
    assert said.specified() == {"max_retries": 0, "max_backoff": 0.0}


def test_it_is_in_the_view_when_the_journal_file_has_gone(start_node: Callable[..., CrashBroker],
                                                          connect: Connect) -> None:
    """A retry policy that changed, and nothing else of the group since the view had it."""
    broker = start_node(QUICK, {"name": "filler"})
    client = connect(broker)

    def files() -> set[str]:
        return {path.name for path in (broker.directory / "data").rglob("journal-*.log")}

    for asked in ({}, {"max_retries": 5}):
        consume(client, "orders", **asked)
        before = files()
        assert before
        while not before.isdisjoint(files()):
            put(client, "filler", bytes(100_000))
    broker.kill()
    broker.start()
    assert group_of(broker)["retry"]["max_retries"] == 5
