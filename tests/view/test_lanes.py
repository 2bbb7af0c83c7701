"""Which lane a topic belongs to, and what becomes of lanes when queues change."""
from __future__ import annotations

import pytest

from fluxmq._core.record.counts import LANES_MAX
from fluxmq.view.lanes import CONNECTIONS, OTHERS, Lanes


def titles(lanes: Lanes) -> list[str]:
    return [lane.title for lane in lanes.shown()]


def queue(name: str, *owners: str, backlog: int = 0, away: bool = False) -> tuple[str, list[tuple[str, int, bool]]]:
    return name, [(owner, backlog, away) for owner in owners]


def test_topics_are_grouped_by_their_first_level() -> None:
    lanes = Lanes()
    first = lanes.lane_of(b"plant/1/temperature", None)
    assert lanes.lane_of(b"plant/2/humidity", None) == first
    assert lanes.lane_of(b"plant", None) != first
    assert lanes.lane_of(b"plant.7.temperature", b"amq.topic") == first      # what the bridge makes of it
    assert lanes.lane_of(b"plant.7.temperature", b"mine") != first
    assert titles(lanes) == ["mine:plant/…", "plant", "plant/…"]
    deep = Lanes(levels=2)
    assert deep.lane_of(b"plant/1/temperature", None) != deep.lane_of(b"plant/2/temperature", None)


def test_a_queue_is_the_same_by_either_protocol() -> None:
    lanes = Lanes()
    assert lanes.lane_of(b"$queue/orders/eu", None) == lanes.lane_of(b"orders", b"") == lanes.lane_of(
        b"$queue/orders", None)
    assert titles(lanes) == ["orders"]


def test_partitions_have_lanes_of_their_own() -> None:
    lanes = Lanes()
    one = lanes.lane_of(b"$queue/orders", None)
    lanes.learn_queues([queue("orders", "n1", "n2", "n1", backlog=7)], 1.0)
    assert lanes.changes == 1
    first, width = lanes.lane_of(b"$queue/orders", None)
    assert (first, width) != one
    assert width == 3
    assert titles(lanes) == ["orders/0", "orders/1", "orders/2"]
    assert [(lane.owner, lane.backlog) for lane in lanes.shown()] == [("n1", 7), ("n2", 7), ("n1", 7)]
    lanes.learn_queues([queue("orders", "n1", "n2", "n1", "n2", "n1", "n1")], 2.0)      # repartitioned
    assert lanes.changes == 2
    assert len(titles(lanes)) == 6
    lanes.learn_queues([], 3.0)
    assert titles(lanes) == []
    assert lanes.changes == 3


def test_a_move_is_noticed_once() -> None:
    lanes = Lanes()
    lanes.learn_queues([queue("orders", "n1", "n2")], 1.0)
    assert lanes.moves == []
    lanes.learn_queues([queue("orders", "n1", "n3")], 4.0)
    lanes.learn_queues([queue("orders", "n1", "n3")], 5.0)
    assert lanes.moves == [("orders/1", "n2", "n3")]
    moved = lanes.shown()[1]
    assert (moved.owner_before, moved.owner, moved.moved_at) == ("n2", "n3", 4.0)
    lanes.learn_queues([queue("orders", "n1", "", away=True)], 6.0)     # nobody knows: the colour stays
    assert lanes.shown()[1].owner == "n3"
    assert lanes.shown()[1].away


def test_only_what_was_asked_for_in_that_order() -> None:
    lanes = Lanes(["plant/+/temperature", "orders", "a/#"])
    for topic in (b"plant/1/temperature", b"plant/1/humidity", b"$queue/orders", b"$queue/emails", b"a", b"a/b/c"):
        lanes.lane_of(topic, None)
    lanes.learn_queues([queue("orders", "", ""), queue("emails", "")], 0.0)
    assert titles(lanes) == ["plant/+/temperature", "orders/0", "orders/1", "a/#"]
    assert lanes.lane_of(b"plant/1/humidity", None) == lanes.lane_of(b"$queue/emails", None) == (OTHERS, 1)
    assert lanes.lane_of(b"ab", None) == (OTHERS, 1)


def test_lanes_do_not_run_out() -> None:
    lanes = Lanes()
    for number in range(2000):
        first, width = lanes.lane_of(b"t%d/x" % number, None)
        assert first + width <= LANES_MAX
    assert lanes.lane_of(b"t1999/x", None) == (OTHERS, 1)
    lanes.learn_queues([queue(f"q{number}", *["n"] * 16) for number in range(100)], 0.0)
    assert len(lanes.lanes) <= LANES_MAX
    assert lanes.lane_of(b"q99", b"") == (OTHERS, 1)


def test_what_belongs_nowhere_is_last_and_only_if_there_is_something() -> None:
    lanes = Lanes()
    lanes.lane_of(b"b", None)
    lanes.lane_of(b"$queue/z", None)
    assert titles(lanes) == ["z", "b"]
    for number in (CONNECTIONS, OTHERS):
        lanes.lanes[number].used = True
    assert titles(lanes) == ["z", "b", "other topics", "connections"]


@pytest.mark.parametrize("topic", [b"\xff\xfe", b"", b"/", b"$queue/", b"$queue//x"])
def test_any_topic_has_a_lane(topic: bytes) -> None:
    for exchange in (None, b"", b"amq.topic", b"\xff"):
        first, width = Lanes().lane_of(topic, exchange)
        assert first > 0 and width == 1
