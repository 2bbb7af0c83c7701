"""Queues as AMQP declares them: arguments, equivalence, exclusive, auto-delete, expiry. The texts are those that
RabbitMQ 3.10 answered the same declarations with."""
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from unit.amqp_world import Consumer, World, refused

from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.amqp_head import PULL_EMPTY, PULL_GIVEN
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.queue import Queue
from fluxmq.app.queue_text import as_queue
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.records import QueueRecord
from fluxmq.engine.queues.table import QueueListener
from fluxmq.model.queue_arguments import Declared, QueueArguments, read_arguments
from fluxmq.model.queues import QueueSpec

NAMED = "for queue 'q' in vhost '/': "
DURABLE = {"durable": True}
QUORUM = {"durable": True, "queue_type": "quorum"}
STREAM = {"durable": True, "queue_type": "stream"}
LOCKED = ("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally "
          "declared on another connection or the exclusive property value does not match that of the original "
          "declaration.")

# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(("given", "said"), [
    ({"message_ttl": -1}, "invalid arg 'x-message-ttl' " + NAMED + "{value_negative,-1}"),
    ({"message_ttl": "a"}, "invalid arg 'x-message-ttl' " + NAMED + '"expected integer, got longstr"'),
    ({"message_ttl": True}, "invalid arg 'x-message-ttl' " + NAMED + '"expected integer, got bool"'),
    ({"message_ttl": 2**40}, "invalid arg 'x-message-ttl' " + NAMED + "{value_too_large,1099511627776}"),
    ({"expires": 0}, "invalid arg 'x-expires' " + NAMED + "{value_zero,0}"),
    ({"expires": -1}, "invalid arg 'x-expires' " + NAMED + "{value_negative,-1}"),
    ({"expires": "s"}, "invalid arg 'x-expires' " + NAMED + '"expected integer, got longstr"'),
    ({"max_length": -1}, "invalid arg 'x-max-length' " + NAMED + "{value_negative,-1}"),
    ({"max_length": "5"}, "invalid arg 'x-max-length' " + NAMED + '"expected integer, got longstr"'),
    ({"max_length_bytes": -5}, "invalid arg 'x-max-length-bytes' " + NAMED + "{value_negative,-5}"),
    ({"overflow": "foo"}, "invalid arg 'x-overflow' " + NAMED + "invalid_overflow"),
    ({"overflow": 5}, "invalid arg 'x-overflow' " + NAMED + "{unacceptable_type,signedint}"),
    ({"dead_letter_exchange": 5},
     "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"),
    ({"dead_letter_routing_key": "k"},
     "invalid arg 'x-dead-letter-routing-key' " + NAMED + "routing_key_but_no_dlx_defined"),
    ({"dead_letter_routing_key": 5},
     "invalid arg 'x-dead-letter-routing-key' " + NAMED + "{unacceptable_type,signedint}"),
    ({"max_priority": 256}, "invalid arg 'x-max-priority' " + NAMED + "{max_value_exceeded,256}"),
    ({"max_priority": -1}, "invalid arg 'x-max-priority' " + NAMED + "{value_negative,-1}"),
    ({"max_priority": "x"}, "invalid arg 'x-max-priority' " + NAMED + '"expected integer, got longstr"'),
    ({"single_active_consumer": 1},
     "invalid arg 'x-single-active-consumer' " + NAMED + "{unacceptable_type,signedint}"),
    ({"delivery_limit": 3}, "invalid arg 'x-delivery-limit' for queue 'q' in vhost '/' of queue type "
                            "rabbit_classic_queue"),
    ({"queue_type": "foo"}, "invalid arg 'x-queue-type' " + NAMED + "\"unsupported queue type 'foo'\""),
    ({"queue_type": 5}, "invalid arg 'x-queue-type' " + NAMED + "{unacceptable_type,signedint}"),
    ({"queue_mode": "foo"}, "invalid arg 'x-queue-mode' " + NAMED + "\"unsupported queue mode 'foo'\""),
    ({"queue_mode": 5}, "invalid arg 'x-queue-mode' " + NAMED + "{unacceptable_type,signedint}"),
    ({"queue_version": 3}, "invalid arg 'x-queue-version' " + NAMED + "\"unsupported queue version '3'\""),
    ({"queue_version": "a"}, "invalid arg 'x-queue-version' " + NAMED + '"expected integer, got longstr"'),
    ({"max_age": "1h"}, "invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"),
    ({"queue_type": "quorum"}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
    ({**QUORUM, "auto_delete": True}, "invalid property 'auto-delete' for queue 'q' in vhost '/'"),
    ({**QUORUM, "exclusive": True}, "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"),
    ({**QUORUM, "max_priority": 5}, "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type "
                                    "rabbit_quorum_queue"),
    ({**STREAM, "max_age": "1x"}, "invalid arg 'x-max-age' " + NAMED + "invalid_max_age"),
    ({**STREAM, "max_age": "h"}, "invalid arg 'x-max-age' " + NAMED + "invalid_max_age"),
    ({**STREAM, "max_age": 5}, "invalid arg 'x-max-age' " + NAMED + "{unacceptable_type,signedint}"),
    ({**STREAM, "message_ttl": 5}, "invalid arg 'x-message-ttl' for queue 'q' in vhost '/' of queue type "
                                   "rabbit_stream_queue"),
    ({**STREAM, "stream_max_segment_size_bytes": -5},
     "invalid arg 'x-stream-max-segment-size-bytes' " + NAMED + "{value_negative,-5}"),
    ({**STREAM, "stream_max_segment_size_bytes": 4_000_000_000},
     "Exceeded max value for x-stream-max-segment-size-bytes"),
])
def test_arguments_that_are_refused(given: dict[str, Any], said: str) -> None:
    world = World()
    with refused(406, f"PRECONDITION_FAILED - {said}"):
        world.declare(owner=world, **given)
    assert not world.there()


@pytest.mark.parametrize("given", [
    {"message_ttl": 0}, {"message_ttl": 2**32}, {"max_length": 0}, {"max_priority": 0}, {"max_priority": 255},
    {"overflow": "reject-publish-dlx"}, {"dead_letter_exchange": "amq.direct", "dead_letter_routing_key": "k"},
    {"single_active_consumer": True}, {"queue_mode": "lazy"}, {"queue_version": 2},
    {"queue_master_locator": "min-masters"}, {"foo": {"a": [1, None]}}, {"ha_policy": "all"},
    {**QUORUM, "delivery_limit": 0}, {**QUORUM, "delivery_limit": -3},
    {**QUORUM, "queue_leader_locator": "client-local"}, {**QUORUM, "max_in_memory_length": 4},
    {**STREAM, "max_age": "7D", "max_length_bytes": 500, "stream_max_segment_size_bytes": 500},
])
def test_arguments_that_are_taken(given: dict[str, Any]) -> None:
    world = World()
    assert world.declare(**given).name == b"q"
    world.declare(**given)  # the same again is no difference


def test_what_arguments_mean() -> None:
    given = {"x-queue-type": "quorum", "x-message-ttl": 5, "x-expires": 7, "x-max-length": 3, "x-max-length-bytes": 9,
             "x-overflow": "reject-publish", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": b"k",
             "x-single-active-consumer": True, "x-delivery-limit": 2}
    assert read_arguments(Declared(b"/", b"q", durable=True, arguments=given)) == QueueArguments(
        kind="quorum", ttl_ms=5, expires_ms=7, length_max=3, bytes_max=9, overflow="reject-publish", dead_exchange=b"",
        dead_key=b"k", single=True, delivery_limit=2)
    assert read_arguments(Declared(b"/", b"q", durable=True, arguments={
        "x-queue-type": "stream", "x-max-age": "2M"})).age_s == 60 * 86400


@pytest.mark.parametrize(("first", "then", "said"), [
    ({}, {"durable": True}, "'durable' " + NAMED + "received 'true' but current is 'false'"),
    ({}, {"auto_delete": True}, "'auto_delete' " + NAMED + "received 'true' but current is 'false'"),
    ({}, {"message_ttl": 5},
     "'x-message-ttl' " + NAMED + "received the value '5' of type 'signedint' but current is none"),
    ({"message_ttl": 100}, {"message_ttl": 101}, "'x-message-ttl' " + NAMED + "received '101' but current is '100'"),
    ({"message_ttl": 100}, {"message_ttl": "100"}, "'x-message-ttl' " + NAMED + "received '100' but current is '100'"),
    ({"message_ttl": 100}, {},
     "'x-message-ttl' " + NAMED + "received none but current is the value '100' of type 'signedint'"),
    ({"message_ttl": 2**32}, {},
     "'x-message-ttl' " + NAMED + "received none but current is the value '4294967296' of type 'long'"),
    ({"overflow": "drop-head"}, {"overflow": "reject-publish"},
     "'x-overflow' " + NAMED + "received 'reject-publish' but current is 'drop-head'"),
    ({"single_active_consumer": True}, {},
     "'x-single-active-consumer' " + NAMED + "received none but current is the value 'true' of type 'bool'"),
    ({"single_active_consumer": True}, {"single_active_consumer": False},
     "'x-single-active-consumer' " + NAMED + "received 'false' but current is 'true'"),
    (DURABLE, QUORUM, "'x-queue-type' " + NAMED + "received the value 'quorum' of type 'longstr' but current is none"),
    (QUORUM, DURABLE, "'x-queue-type' " + NAMED + "received none but current is the value 'quorum' of type 'longstr'"),
    ({"dead_letter_exchange": "a"}, {"dead_letter_exchange": "a", "dead_letter_routing_key": "b"},
     "'x-dead-letter-routing-key' " + NAMED + "received the value 'b' of type 'longstr' but current is none"),
])
def test_what_is_declared_again_otherwise(first: dict[str, Any], then: dict[str, Any], said: str) -> None:
    world = World()
    world.declare(**first)
    with refused(406, f"PRECONDITION_FAILED - inequivalent arg {said}"):
        world.declare(**then)
    world.declare(passive=True, **then)  # which asks for nothing
    world.declare(**first)


@pytest.mark.parametrize(("first", "then"), [
    ({}, {"queue_type": "classic"}), ({"queue_type": "classic"}, {}), ({"foo": "a"}, {"foo": "b"}), ({}, {"bar": 1}),
    ({"max_length": 5}, {"max_length": 5, "foo": 1}), ({"overflow": "drop-head"}, {"overflow": b"drop-head"}),
])
def test_what_makes_no_difference(first: dict[str, Any], then: dict[str, Any]) -> None:
    world = World()
    assert world.declare(**first).queue is world.declare(**then).queue


# ---------------------------------------------------------------- names


def test_a_server_names_a_queue() -> None:
    world = World()
    names = {world.declare("").name for _ in range(3)}
    assert len(names) == 3 and all(name.startswith(b"amq.gen-") and len(name) == 30 for name in names)
    for name in names:
        assert world.declare(name.decode()).name == name  # which is there, so its prefix is nobody's business
    with refused(404, "NOT_FOUND - no queue '' in vhost '/'"):
        world.declare("", passive=True)


def test_names() -> None:
    world = World()
    with refused(403, "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'"):
        world.declare("amq.foo")
    with refused(404, "NOT_FOUND - no queue 'nope' in vhost '/'"):
        world.declare("nope", passive=True)
    with refused(406):
        world.declare("n" * 256)
    for name in ("n" * 255, "a/b+c#", "$sys", "\udcff\udcfe", "a\0b", "\0v\0w", " x ", "ü"):
        world.declare(name)
        world.declare(name, vhost="v")
        raw = name.encode("utf-8", "surrogateescape")
        for vhost in (b"/", b"v"):
            queue = world.amqp.find(vhost, raw)
            assert world.amqp.name_of(queue) == (vhost, raw)
    listed = {row["name"] for row in world.admin.list_queues()}
    assert {"a/b+c#", "v/a/b+c#", "v/ü", "ü"} <= listed
    for name in ("v/ü", "v/a/b+c#", "a/b+c#"):
        assert world.admin.describe(name)["name"] == name
    assert world.hub.targets.queues[world.queue("ü")] == ("$queue/ü/#".encode(),)
    assert world.hub.targets.queues[world.queue("ü", "v")] == ("$queue/ü/#".encode(),)
    assert world.hub.targets.queues[world.queue("a/b+c#")] == ()


def test_an_operator_sees_what_was_declared() -> None:
    world = World()
    world.declare("q", vhost="v", durable=True, max_length=5, overflow="reject-publish")
    found = world.admin.describe("v/q")
    assert found["amqp"] == {"vhost": "v", "durable": True, "exclusive": False, "auto_delete": False,
                             "arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}}
    assert found["spec"]["limits"] == {"max_depth": 5}
    assert "as an AMQP client declared it\n  vhost: v\n  durable: yes" in as_queue(found)
    with pytest.raises(QueueRefused, match="AMQP client"):
        world.declare("p")
        world.admin.declare({"name": "p", "type": "ephemeral"})
    assert world.admin.delete("v/q", if_unused=True, if_empty=True) == 0
    assert not world.there("q", "v")


def test_a_queue_of_the_configuration() -> None:
    world = World()
    world.admin.declare({"name": "q", "limits": {"max_depth": 5}, "max_priority": 3})
    world.admin.declare({"name": "s", "type": "stream"})
    assert world.declare(durable=True).queue is world.declare(durable=True, max_priority=3).queue
    assert world.declare("s", durable=True).queue is world.declare("s", **STREAM).queue
    with refused(406, "inequivalent arg 'durable'"):
        world.declare()
    with refused(406, "inequivalent arg 'x-max-length'"):
        world.declare(durable=True, max_length=5)
    with refused(406, "inequivalent arg 'x-queue-type'"):
        world.declare(**STREAM)
    world.put("1", "2")
    assert world.counts() == (2, 0, 0)
    world.manager.queues[b"/", b"q"].configured = True
    with refused(406, "is in the configuration"):
        world.amqp.delete(b"/", b"q")


# ---------------------------------------------------------------- delete, purge, count


def test_counts_delete_purge() -> None:
    world = World()
    assert world.declare().messages == 0
    world.put("1", "2", "3", "4")
    consumer = Consumer(world, room=2)
    assert world.declare().messages == 2 and world.declare(passive=True).consumers == 1
    assert world.counts() == (2, 2, 1)
    assert world.amqp.purge(b"/", b"q") == 2
    world.turn()
    assert world.counts() == (0, 2, 1) and world.bodies() == ["1", "2"]
    consumer.requeue("1")
    assert consumer.take() == ["1", "2", "1"]
    world.put("5")
    consumer.ack("1")
    assert consumer.take() == ["5"]
    for flags in ({"if_unused": True}, {"if_unused": True, "if_empty": True}):
        with refused(406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"):
            world.amqp.delete(b"/", b"q", **flags)
    world.put("6")
    for flags in ({"if_empty": True}, {"if_unused": True, "if_empty": True}):
        with refused(406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"):
            world.amqp.delete(b"/", b"q", **flags)
    gone: list[Any] = []

    class Listener(QueueListener):
        def queue_deleted(self, queue: Queue, members: list[Member]) -> None:
            gone.append((queue, members))

    world.manager.listeners.append(Listener())
    queue = world.queue()
    assert world.amqp.delete(b"/", b"q") == 1 and gone == [(queue, [consumer.member])]
    assert consumer.held == {} and consumer.member.group is None
    assert world.amqp.delete(b"/", b"q", if_empty=True) == 0  # it is gone already
    with refused(404, "NOT_FOUND - no queue 'q' in vhost '/'"):
        world.amqp.purge(b"/", b"q")


def test_a_stream() -> None:
    world = World()
    queue = world.declare(**STREAM, max_age="7D", max_length_bytes=1000).queue
    assert world.manager.states[queue].spec.retention.max_age == 7 * 86400
    world.put("1", "2")
    assert world.counts() == (2, 0, 0)
    with refused(540, "NOT_IMPLEMENTED - queue.purge not supported by stream queues queue 'q' in vhost '/'"):
        world.amqp.purge(b"/", b"q")
    with refused(540, "NOT_IMPLEMENTED - basic.get not supported by stream queues queue 'q' in vhost '/'"):
        Consumer(world, asks=True)


def test_a_purge_leaves_what_is_delayed() -> None:
    world = World()
    world.declare()
    world.put("now")
    world.put("later", headers={"x-delay": 1000})
    assert world.amqp.purge(b"/", b"q") == 1
    world.after(2)
    assert world.bodies() == ["later"]


# ---------------------------------------------------------------- exclusive


def test_an_exclusive_queue_is_its_connections_own() -> None:
    world, mine, other = World(), object(), object()
    world.declare(owner=mine, exclusive=True, durable=True)
    assert world.declare(owner=mine, exclusive=True, durable=True).name == b"q"
    attempts: list[Any] = [
        lambda: world.declare(owner=other, exclusive=True), lambda: world.declare(owner=other),
        lambda: world.declare(owner=mine), lambda: world.declare(owner=other, passive=True),
        lambda: world.amqp.delete(b"/", b"q", other), lambda: world.amqp.purge(b"/", b"q", other),
        lambda: world.amqp.find(b"/", b"q", other), lambda: Consumer(world, owner=other)]
    for attempt in attempts:
        with refused(405, LOCKED):
            attempt()
    world.declare(owner=mine, passive=True)
    world.put("1")
    consumer = Consumer(world, owner=mine)
    assert consumer.take() == ["1"]
    assert not [*world.amqp.connection_closed(other)]
    assert world.there()
    assert len([*world.amqp.connection_closed(mine)]) == 1
    assert not world.there() and consumer.member.group is None
    assert not [*world.amqp.connection_closed(mine)]
    world.declare()
    with refused(405, LOCKED):
        world.declare(owner=mine, exclusive=True)


# ---------------------------------------------------------------- queues that go by themselves


def test_auto_delete_waits_for_the_first_consumer_and_goes_with_the_last() -> None:
    world = World()
    world.declare(auto_delete=True)
    world.after(1000)
    first, second = Consumer(world), Consumer(world)
    asker = Consumer(world, asks=True)
    asker.leave()
    first.cancel()
    first.leave()
    world.after(10)
    assert world.there()
    second.cancel()  # though it still has what it has
    assert not world.there()
    second.leave()


def test_a_queue_that_nobody_uses_expires() -> None:
    world = World()
    world.declare(durable=True, expires=1000)
    world.after(0.9)
    world.declare(durable=True, expires=1000)
    world.after(0.9)
    world.declare(passive=True)
    world.after(0.9)
    asker = Consumer(world, asks=True)
    assert asker.ask() == PULL_EMPTY
    asker.leave()
    world.after(0.9)
    consumer = Consumer(world)
    world.after(100)
    consumer.leave()
    world.after(0.9)
    assert world.there()
    world.put("1")  # which is no use of it
    world.after(0.5)
    assert not world.there()


def test_a_transient_queue_does_not_go_by_itself() -> None:
    world = World()
    world.declare()
    Consumer(world).leave()
    world.after(3600)
    assert world.there()


# ---------------------------------------------------------------- consumers


def test_an_exclusive_consumer() -> None:
    world = World()
    world.declare()
    first = Consumer(world)
    with refused(403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"):
        Consumer(world, exclusive=True)
    first.leave()
    alone = Consumer(world, exclusive=True)
    for exclusive in (False, True):
        with refused(403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"):
            Consumer(world, exclusive=exclusive)
    alone.cancel()
    Consumer(world)
    world.declare("single", single_active_consumer=True)
    with refused(403, "in exclusive use"):
        Consumer(world, "single", exclusive=True)


def test_basic_get() -> None:
    world = World()
    world.declare()
    asker, other = Consumer(world, asks=True), Consumer(world, asks=True)
    assert asker.ask() == PULL_EMPTY
    world.put("1", "2", "3")
    assert asker.take() == []
    assert asker.ask() == PULL_GIVEN and other.ask() == PULL_GIVEN
    assert (asker.take(), other.take()) == (["1"], ["2"]) and world.counts() == (1, 2, 0)
    other.requeue("2")
    assert asker.ask() == PULL_GIVEN and asker.take() == ["2"] and asker.counts == [1, 2]
    asker.ack("1")
    asker.leave()
    assert other.ask() == PULL_GIVEN and other.take() == ["2"]
    assert world.counts() == (1, 1, 0)


def test_a_consumer_that_was_cancelled_keeps_what_it_has() -> None:
    world = World()
    world.declare()
    first = Consumer(world, room=2)
    world.put("1", "2", "3")
    first.cancel()
    assert world.counts() == (1, 2, 0)
    second = Consumer(world)
    assert second.take() == ["3"]
    first.ack("1")
    first.leave()
    assert second.take() == ["2"] and world.counts() == (0, 2, 1)


@pytest.mark.parametrize("told", [(None,), (QueueSpec(name=""),)], ids=["now", "before"])
def test_a_record_says_what_was_declared(told: tuple[QueueSpec | None]) -> None:
    """Before, the record of a queue of AMQP had a `spec`, too, which said nothing."""
    declared = Declared(b"/", b"q\xff", durable=True, arguments={"x-max-length": 5})
    raw = msgspec.msgpack.encode((*told, [(2, 0)], 0, 0, declared))
    record = msgspec.msgpack.decode(raw, type=QueueRecord)
    assert record.declaration().raw == b"q\xff" and record.declaration().limits.max_depth == 5
    assert len(msgspec.msgpack.encode((None, [(2, 0)], 0, 0, declared))) < 50
    with pytest.raises(CorruptError, match="does not say what the queue is"):
        msgspec.msgpack.decode(msgspec.msgpack.encode((None, [(2, 0)])), type=QueueRecord).declaration()


def test_a_stale_route_to_a_deleted_queue_that_is_full() -> None:
    world = World()
    world.declare(overflow="reject-publish-dlx", max_length=0, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    queue = world.queue("q")
    world.put("kept by the other")
    assert world.bodies("dead") == ["kept by the other"]
    world.manager.delete((b"/", b"q"))
    queue.publish(b"\0q", b"late", b"\0\0", format=1)
    assert world.bodies("dead") == ["kept by the other"]
