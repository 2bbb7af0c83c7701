"""What happens at the head of a queue that AMQP declared: expiry, limits, priorities, who is served first. What
RabbitMQ 3.10 does with the same messages was looked at."""
from __future__ import annotations

from typing import Any

import pytest
from unit.amqp_world import Consumer, World

from fluxmq._core.queue.amqp_head import PULL_EMPTY, PULL_GIVEN
from fluxmq.engine.queues.amqp.queues import DELETE_WORK, PURGE_WORK

FULL = 0x97
QUORUM = {"durable": True, "queue_type": "quorum"}

# ---------------------------------------------------------------- expiry


def test_messages_expire_without_a_consumer() -> None:
    world = World()
    world.declare(message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    world.put("1")
    world.after(0.6)
    world.put("2")
    world.put("short", expiration="100")  # which is behind others
    world.after(0.5)
    assert world.bodies() == ["2", "short"] and world.bodies("dead") == ["1"]
    world.after(0.5)
    assert world.counts() == (0, 0, 0) and world.bodies("dead") == ["1", "2", "short"]
    world.after(3600)
    assert world.counts("dead") == (3, 0, 0)


def test_what_a_consumer_has_does_not_expire_until_it_is_back() -> None:
    world = World()
    world.declare(message_ttl=1000)
    world.put("1", "2")
    consumer = Consumer(world, room=1)
    world.after(5)
    assert world.counts() == (0, 1, 1)
    consumer.requeue("1")
    assert world.counts() == (0, 0, 1) and consumer.take() == ["1"]


def test_expiry_is_asked_for_by_the_message_too() -> None:
    world = World()
    world.declare()
    world.put("long", expiration="60000")
    world.put("short", expiration="100")
    world.put("none")
    world.after(30)
    assert world.bodies() == ["long", "short", "none"]
    world.after(31)
    assert world.bodies() == ["none"]


def test_a_time_to_live_of_nothing() -> None:
    world = World()
    world.declare(message_ttl=0)
    world.declare("asked")
    world.put("1")
    world.put("1", to="asked", expiration="0")
    assert world.counts() == world.counts("asked") == (0, 0, 0)
    consumers = [Consumer(world, room=1), Consumer(world, "asked", room=1)]
    world.put("2", "3")
    world.put("2", "3", to="asked", expiration="0")
    assert [consumer.take() for consumer in consumers] == [["2"], ["2"]]
    assert world.counts() == world.counts("asked") == (0, 1, 1)


def test_only_the_head_expires_and_with_priorities_there_is_one_head() -> None:
    world = World()
    world.declare(max_priority=5)
    world.put("high", priority=5)
    world.put("low", priority=0, expiration="50")
    world.after(1)
    assert world.counts() == (2, 0, 0)
    asker = Consumer(world, asks=True)
    assert asker.ask() == PULL_GIVEN and asker.take() == ["high"]
    assert world.counts() == (0, 1, 0)


def test_thousands_that_expire_at_once_do_so_in_turns() -> None:
    world = World()
    world.declare(message_ttl=100)
    world.put(*map(str, range(5000)))
    world.after(0.1)
    assert 0 < world.counts()[0] < 5000
    world.after(1)
    assert world.counts() == (0, 0, 0)


def test_delayed_messages_live_from_when_they_are_in_the_queue() -> None:
    world = World()
    world.declare()
    world.put("later", headers={"x-delay": 1000}, expiration="500")
    world.after(1.3)
    assert world.bodies() == ["later"]
    world.after(0.5)
    assert world.bodies() == []


# ---------------------------------------------------------------- limits


def test_max_length_counts_what_is_ready() -> None:
    world = World()
    world.declare(max_length=2)
    consumer = Consumer(world, room=1)
    world.put("1", "2", "3", "4")
    assert consumer.take() == ["1"] and world.bodies() == ["1", "3", "4"]
    consumer.requeue("1")  # and is one too many; nobody else is there, so it comes again
    assert consumer.take() == ["1"]
    consumer.leave()
    assert world.bodies() == ["3", "4"] and world.counts() == (2, 0, 0)


def test_max_length_of_nothing() -> None:
    world = World()
    world.declare(max_length=0, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    world.put("1")
    consumer = Consumer(world, room=1)
    world.put("2", "3")
    assert consumer.take() == ["2"] and world.bodies("dead") == ["1", "3"]


def test_max_length_bytes_counts_bodies() -> None:
    world = World()
    world.declare(max_length_bytes=10)
    world.put(*[f"{i}...." for i in range(4)], headers={"a": "x" * 100})
    assert world.bodies() == ["2....", "3...."]
    consumer = Consumer(world, room=1)
    assert consumer.take() == ["2...."]
    world.put("4....")
    assert world.bodies() == ["2....", "3....", "4...."]
    consumer.leave()
    assert world.bodies() == ["3....", "4...."]
    assert world.amqp.purge(b"/", b"q") == 2
    world.put("5.........")
    assert world.bodies() == ["5........."]
    world.put("y" * 20)
    assert world.bodies() == []


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_reject_publish(limit: dict[str, Any]) -> None:
    world = World()
    world.declare(overflow="reject-publish", **limit)
    assert world.put("1", "2", "3") == [0, 0, FULL]
    consumer = Consumer(world, room=2)
    assert world.put("4", "5", "6") == [0, 0, FULL]
    consumer.ack("1")
    assert consumer.take() == ["1", "2", "4"]
    # Who waits gets it at once, so there is room for the next, in one turn too.
    consumer.ack("2", "4")
    consumer.ack("5")
    assert world.put("7", "8", "9", "a", "b") == [0, 0, 0, 0, FULL]
    assert world.bodies() == ["7", "8", "9", "a"]


def test_reject_publish_dlx() -> None:
    world = World()
    world.declare(overflow="reject-publish-dlx", max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    assert world.put("1", "2", "3") == [0, FULL, FULL]
    assert [(body, told["headers"]["x-death"][0]["reason"]) for body, told in world.letters("dead")] == [
        ("2", "maxlen"), ("3", "maxlen")]


def test_of_priorities_the_highest_is_the_head() -> None:
    world = World()
    world.declare(max_priority=10, max_length=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    for priority in (1, 5, 9, 2):
        world.put(f"p{priority}", priority=priority)
    assert world.bodies("dead") == ["p9", "p5"] and sorted(world.bodies()) == ["p1", "p2"]


def test_a_delivery_limit() -> None:
    world = World()
    world.declare(**QUORUM, delivery_limit=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    world.put("1")
    asker = Consumer(world, asks=True)
    for _ in range(3):
        assert asker.ask() == PULL_GIVEN
        asker.requeue("1")
    assert asker.ask() == PULL_EMPTY and asker.counts == [1, 2, 3]
    [(_, told)] = world.letters("dead")
    assert told["headers"]["x-first-death-reason"] == "delivery_limit"
    world.put("2")
    for _ in range(3):
        Consumer(world).leave()  # a channel that closes counts too
    assert world.bodies("dead") == ["1", "2"]


def test_without_a_delivery_limit_there_is_none() -> None:
    world = World()
    world.declare()
    world.put("1")
    asker = Consumer(world, asks=True)
    for _ in range(100):
        assert asker.ask() == PULL_GIVEN
        asker.requeue("1")
    assert world.bodies() == ["1"]


# ---------------------------------------------------------------- who is served first


def test_priorities_up_to_255() -> None:
    world = World()
    world.declare(max_priority=255)
    for priority in (0, 255, 7, 254, 100, 7):
        world.put(f"{priority}", priority=priority)
    world.put("none")
    consumer = Consumer(world)
    assert consumer.take() == ["255", "254", "100", "7", "7", "0", "none"]
    consumer.requeue("100")
    assert consumer.take() == ["100"]


def test_consumers_of_higher_priority_first() -> None:
    world = World()
    world.declare()
    low, high, other = Consumer(world, priority=-1), Consumer(world, priority=5, room=2), Consumer(
        world, priority=5, room=2)
    world.put(*"abcdefg")
    assert sorted(high.take() + other.take()) == ["a", "b", "c", "d"] and low.take() == ["e", "f", "g"]
    assert len(high.held) == len(other.held) == 2
    for body in list(high.held):
        high.ack(body)
    world.put("h")
    assert high.take() == ["h"]
    high.leave()
    other.leave()
    assert sorted(low.take() + list(low.held)) == sorted(["h", "b", "d"] * 2 + ["e", "f", "g"])


def test_turns_among_equals() -> None:
    world = World()
    world.declare()
    consumers = [Consumer(world, priority=priority) for priority in (3, 3, 1, 3)]
    for number in range(9):
        world.put(str(number))
    assert [len(consumer.take()) for consumer in consumers] == [3, 3, 0, 3]


def test_a_single_active_consumer_and_its_hand_over() -> None:
    world = World()
    world.declare(single_active_consumer=True)
    first, second, third = Consumer(world, room=2), Consumer(world), Consumer(world, priority=9)
    world.put("1", "2", "3")
    assert (first.take(), second.take(), third.take()) == (["1", "2"], [], [])
    asker = Consumer(world, asks=True)
    assert asker.ask() == PULL_GIVEN and asker.take() == ["3"]
    first.ack("1")
    world.put("4")
    assert first.take() == ["4"]  # whoever asked is in nobody's way
    first.cancel()
    world.put("5")
    assert (second.take(), third.take()) == ([], ["5"])
    first.leave()
    assert third.take() == ["2", "4"] and second.take() == []
    third.leave()
    assert sorted(second.take()) == ["2", "4", "5"]


def test_a_client_of_mqtt_does_not_make_a_single_active_consumer_one_of_many() -> None:
    world = World()
    queue = world.declare(single_active_consumer=True).queue
    assert world.manager.group(queue, b"default", exclusive=True).mode == "single"
    assert Consumer(world).group.mode == "single"


def test_what_is_deleted_with_its_queue_is_no_dead_letter() -> None:
    world = World()
    world.declare(**QUORUM, delivery_limit=0, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    world.put("1", "2")
    consumer = Consumer(world, room=1)
    world.amqp.delete(b"/", b"q")
    assert consumer.held == {} and world.bodies("dead") == []


def test_delayed_messages_and_a_queue_that_refuses() -> None:
    world = World()
    world.declare(max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key="dead")
    world.declare("dead")
    assert world.put("1", "2", "3", headers={"x-delay": 1000}) == [0, 0, 0]
    world.after(1.5)
    assert world.bodies() == ["1"] and world.bodies("dead") == []
    consumer = Consumer(world, room=2)
    world.after(0.5)
    assert consumer.take() == ["1", "2"] and world.bodies() == ["1", "2", "3"]


def test_an_operator_purges_what_has_a_limit_of_bytes() -> None:
    world = World()
    world.declare(max_length_bytes=5, overflow="reject-publish")
    assert world.put("1234", "56") == [0, FULL]
    assert world.admin.purge("q") == 1
    world.turn()
    assert world.put("1234", "56") == [0, FULL]


def test_what_is_thrown_away_is_work_of_who_asks() -> None:
    """One method may do a million of something: its connection's share of the round is charged for each."""
    costs: dict[tuple[str, int], int] = {}
    for count in (10, 500):
        for how in ("purge", "delete"):
            world = World()
            world.declare()
            world.put(*map(str, range(count)))
            before = world.hub.work
            assert getattr(world.amqp, how)(b"/", b"q") == count
            costs[how, count] = world.hub.work - before
    assert costs["purge", 500] - costs["purge", 10] == 490 * PURGE_WORK
    assert costs["delete", 500] - costs["delete", 10] == 490 * DELETE_WORK
