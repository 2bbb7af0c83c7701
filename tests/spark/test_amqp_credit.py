"""Since when a broker could have delivered on an AMQP channel, against a broker that never waits."""
from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.replay_rows import NO_VALUE
from fluxmq.spark.player.amqp_channel import AmqpChannel
from fluxmq.spark.player.amqp_credit import ChannelCredit, Credit


def deliver(tag: str = "c") -> Any:
    return m.BasicDeliver(consumer_tag=tag, delivery_tag=1)


def consume(credit: ChannelCredit, now: int, prefetch: int = 0, tag: str = "c", no_ack: bool = False) -> None:
    credit.learn(m.BasicQos(prefetch_count=prefetch), now)
    credit.learn(m.BasicConsume(queue="q", consumer_tag=tag, no_ack=no_ack), now)


steps = st.lists(st.one_of(st.tuples(st.just("settle"), st.integers(1, 4)),
                           st.tuples(st.just("limit"), st.integers(1, 6))), max_size=40)


@given(st.integers(1, 6), steps)
def test_a_broker_that_delivers_at_once_is_never_late(limit: int, changes: list[tuple[str, int]]) -> None:
    """There is always a message, and it leaves as soon as there is room: so that is since when it could."""
    credit, held = Credit(0, limit), 0
    for now, (what, number) in enumerate([("", 0), *changes]):
        if what == "limit":
            limit = number
            credit.change(now, limit)
        for _ in range(min(number, held) if what == "settle" else 0):
            held -= 1
            credit.settled(now)
        while held < limit:
            held += 1
            assert credit.delivered() == now


@given(st.integers(1, 6), st.lists(st.integers(0, 4), max_size=40))
def test_a_broker_that_is_late_is_told_by_how_much(limit: int, rounds: list[int]) -> None:
    """One delivers at once, the other the same with everything else going on a hundred instants later."""
    credit, held, room = Credit(0, limit), 0, [0] * limit
    for number, count in enumerate(rounds):
        delivered_at = 1000 * number + 100
        expected, room = room, []
        for since in expected:
            held += 1
            assert credit.delivered() == since < delivered_at
        for step in range(min(count, held)):
            held -= 1
            credit.settled(delivered_at + step)
            room.append(delivered_at + step)


def test_the_first_could_come_with_the_consumer_and_each_other_with_a_settlement() -> None:
    credit = ChannelCredit()
    consume(credit, 10, prefetch=2)
    assert [credit.delivered(rank, deliver(), True) for rank in range(2)] == [10, 10]
    credit.settled([1], 20)
    credit.settled([0], 30)
    assert [credit.delivered(rank, deliver(), True) for rank in (2, 3)] == [20, 30]


def test_without_prefetch_or_acknowledgements_the_consumer_decides() -> None:
    credit = ChannelCredit()
    consume(credit, 10)
    consume(credit, 20, prefetch=1, tag="quick", no_ack=True)
    assert [credit.delivered(rank, deliver(), True) for rank in range(3)] == [10] * 3
    assert [credit.delivered(rank, deliver("quick"), False) for rank in range(3, 6)] == [20] * 3
    assert credit.delivered(6, deliver("nobody"), True) == NO_VALUE


def test_the_prefetch_of_a_channel_is_shared_and_holds_for_those_who_are_there() -> None:
    credit = ChannelCredit()
    consume(credit, 10, tag="a")
    consume(credit, 11, tag="b", prefetch=3)
    credit.learn(m.BasicQos(prefetch_count=2, global_=True), 20)
    assert credit.delivered(0, deliver("a"), True) == 20
    assert credit.delivered(1, deliver("b"), True) == 20
    credit.settled([0], 30)
    assert credit.delivered(2, deliver("b"), True) == 30        # b has room since 11, its channel since 30
    credit.learn(m.BasicQos(prefetch_count=0, global_=True), 40)
    assert credit.delivered(3, deliver("a"), True) == 10        # and now a limit is nowhere
    assert credit.delivered(4, deliver("b"), True) == 11


def test_a_consumer_keeps_the_prefetch_that_it_was_made_with() -> None:
    credit = ChannelCredit()
    consume(credit, 10, prefetch=1)
    credit.learn(m.BasicQos(prefetch_count=5), 20)
    assert credit.delivered(0, deliver(), True) == 10
    credit.settled([0], 30)
    assert credit.delivered(1, deliver(), True) == 30


def test_in_a_transaction_the_commit_makes_room() -> None:
    credit = ChannelCredit()
    credit.learn(m.TxSelect(), 5)
    consume(credit, 10, prefetch=2)
    for rank in range(2):
        credit.delivered(rank, deliver(), True)
    credit.settled([0], 20)
    credit.learn(m.TxRollback(), 21)
    credit.settled([1], 30)
    credit.commit(40)
    assert credit.delivered(2, deliver(), True) == 40


def test_what_the_broker_has_back_makes_room() -> None:
    for recover in (m.BasicRecover(requeue=True), m.BasicRecoverAsync(requeue=True)):
        credit = ChannelCredit()
        consume(credit, 10, prefetch=1)
        credit.delivered(0, deliver(), True)
        credit.learn(recover, 20)
        assert credit.delivered(1, deliver(), True) == 20


def test_a_get_could_be_answered_when_it_was_asked() -> None:
    credit = ChannelCredit()
    consume(credit, 10, prefetch=1)
    credit.delivered(0, deliver(), True)
    credit.get_sent = 50
    assert credit.delivered(1, m.BasicGetOk(delivery_tag=2), True) == 50
    credit.settled([1], 60)                                     # it used none of the consumer's room
    credit.settled([0], 70)
    assert credit.delivered(2, deliver(), True) == 70


def test_a_channel_says_each_delivery_that_it_settles_once() -> None:
    channel = AmqpChannel(1, known=True)
    for tag in range(1, 5):
        channel.arrived(tag, True)
    channel.settle(2, "basic.reject", {})
    channel.settle(3, "basic.ack", {"multiple": True})
    channel.settle(5, "basic.ack", {})
    channel.arrived(5, True)
    channel.release()
    assert sorted(channel.freed) == [0, 1, 2, 3, 4]


def test_a_channel_in_place_of_another_has_nothing_of_its_credit() -> None:
    channel = AmqpChannel(1, known=True)
    channel.credit.learn(m.BasicQos(prefetch_count=1, global_=True), 1)
    consume(channel.credit, 2, prefetch=1)
    channel.credit.delivered(0, deliver(), True)
    channel.reopened()
    channel.credit.settled([0], 5)
    consume(channel.credit, 10)
    assert [channel.credit.delivered(rank, deliver(), True) for rank in range(1, 4)] == [10] * 3
