"""What may come to a fast consumer while it has no room: as many messages as it is done with in 4 ms. A consumer that
stops then gives them back."""
from __future__ import annotations

import pytest
from unit.test_queue_relay import Pair, settle

from fluxmq._core.peer.queue_relay import QueueRelay, RelayMember
from fluxmq._core.queue.member import PyMember

pytestmark = pytest.mark.usefixtures("nothing_is_left")

ROOM = 20


class Fast(Pair):
    """A consumer with this room, which settles all that it holds once a millisecond, `rounds` times."""

    def __init__(self, rounds: int, room: int = ROOM, messages: int = 4000, **spec: object) -> None:
        super().__init__(**spec)
        for number in range(messages):
            self.publish(number)
        self.run()
        self.first = self.join("first", room)
        self.done: list[int] = []
        self.most = 0
        for _ in range(rounds):
            self.settle_all()
        self.a.to("b").return_stalled()         # it has been getting messages until now

    @property
    def one(self) -> RelayMember:
        relay = self.queue.relay
        assert isinstance(relay, QueueRelay)
        return next(one for one in relay.consumers if one.member is self.first)

    def settle_all(self) -> None:
        self.a.now_ms += 1
        self.most = max(self.most, self.first.held)
        for name, offset, count in self.seen():
            assert (name, count) == ("first", 1)
            settle(self.first, offset)
            self.done.append(offset)
        self.run()

    def second(self, room: int = 1000) -> PyMember:
        """Another consumer, which gets what there is but for what the first one has."""
        member = self.join("second", room)
        self.run()
        return member

    def of(self, name: str) -> list[tuple[int, int]]:
        return [(offset, count) for who, offset, count in self.seen() if who == name]

    def look(self) -> None:
        """A second later."""
        self.a.now_ms += 1000
        self.a.to("b").return_stalled()
        self.run()


def test_more_than_it_has_room_for_comes_to_a_fast_consumer_and_in_order() -> None:
    pair = Fast(40)
    assert pair.one.ahead >= 4 * ROOM and pair.most == ROOM
    assert pair.done == list(range(len(pair.done))) and len(pair.done) > 30 * ROOM
    assert pair.first.held == ROOM and pair.one.waiting_count > 0
    assert pair.group.held == ROOM + pair.one.waiting_count <= ROOM + 2 * pair.one.ahead
    pair.end()


@pytest.mark.parametrize(("room", "ahead"), [(3, 0), (4, 16)])
def test_nothing_comes_ahead_to_a_consumer_that_is_done_with_fewer_than_16_in_4_ms(room: int, ahead: int) -> None:
    pair = Fast(40, room)
    assert pair.one.ahead == ahead
    assert pair.group.held == room + pair.one.waiting_count and bool(pair.one.waiting_count) == bool(ahead)
    pair.end()


def test_what_waits_for_a_consumer_that_stops_is_for_others_uncounted() -> None:
    pair = Fast(40)
    waiting = pair.one.waiting_count
    next_one = pair.done[-1] + 1 + ROOM         # the first holds as many, which it has seen
    pair.second(1)
    assert [offset for offset, _ in pair.of("second")] == [next_one + waiting]
    pair.look()
    assert pair.one.waiting_count == waiting    # the owner has only been told that there is no room
    pair.look()
    assert pair.one.waiting_count == 0 and pair.group.held == ROOM + 1
    third = pair.join("third", waiting)
    pair.run()
    assert pair.of("third") == [(next_one + number, 1) for number in range(waiting)]
    assert third.held == waiting and pair.first.held == ROOM
    pair.end()


def test_a_consumer_that_goes_on_gets_what_it_gave_back_in_order() -> None:
    pair = Fast(40)
    pair.look()
    for number in range(200):                   # nothing of it may overtake what is given back
        pair.publish(number)
    pair.run()
    pair.look()
    assert pair.one.waiting_count == 0 and pair.group.held == ROOM
    for _ in range(20):
        pair.settle_all()
    assert pair.done == list(range(len(pair.done))) and pair.one.ahead >= 4 * ROOM
    pair.end()


def test_an_owner_that_may_send_more_is_told_that_there_is_no_room() -> None:
    pair = Fast(40, messages=39 * ROOM)         # there was nothing more to send
    for number in range(ROOM + 5):
        pair.publish(number)
    pair.run()
    assert pair.first.held == ROOM and pair.one.waiting_count == 5
    pair.look()
    for number in range(10):
        pair.publish(number)
    pair.run()
    assert pair.one.waiting_count == 5 and pair.group.held == ROOM + 5
    pair.look()
    assert pair.one.waiting_count == 0 and pair.group.held == ROOM
    for _ in range(3):
        pair.settle_all()
    assert pair.done == list(range(40 * ROOM + 15)) and pair.group.lag == 0
    pair.end()


def test_a_consumer_that_goes_on_in_time_gives_nothing_back() -> None:
    pair = Fast(40)
    pair.look()
    for _ in range(10):
        pair.settle_all()
    pair.look()
    assert pair.one.waiting_count
    for _ in range(20):
        pair.settle_all()
        pair.look()
    assert pair.done == list(range(len(pair.done)))
    pair.end()


def test_what_waits_for_a_consumer_that_becomes_slow_is_for_others_uncounted() -> None:
    """From 20000 messages a second to one: others do not wait until it has done with what came ahead. It keeps as many
    as it gets in a second."""
    pair = Fast(40)
    waiting = pair.one.waiting_count
    assert waiting >= 3 * ROOM
    mine = [offset for offset, _ in pair.of("first")]
    for number in range(3):
        pair.a.now_ms += 500
        settle(pair.first, mine[number])
        pair.run()
        mine += [offset for offset, _ in pair.of("first")]
        assert len(mine) == ROOM + number + 1       # it has got one of those that wait
        pair.a.now_ms += 500
        pair.a.to("b").return_stalled()
        pair.run()
    assert pair.one.waiting_count <= 1 and pair.group.held == ROOM + pair.one.waiting_count
    pair.second(ROOM)
    first = mine[-1] + 1 + pair.one.waiting_count
    assert pair.of("second") == [(first + number, 1) for number in range(ROOM)]
    pair.end()


def test_nothing_is_given_back_before_the_owner_is_known_to_send_no_more() -> None:
    pair = Fast(40)
    waiting = pair.one.waiting_count
    for _ in range(3):                          # the stream brings nothing there and back
        pair.a.to("b").return_stalled()
        assert pair.one.waiting_count == waiting
    pair.run()
    assert pair.one.waiting_count == waiting and pair.group.held == ROOM + waiting
    pair.look()
    assert pair.one.waiting_count == 0
    pair.end()


def test_what_waits_for_a_consumer_that_leaves_is_for_others_uncounted() -> None:
    pair = Fast(40)
    held = [offset for offset, _ in pair.of("first")]
    waiting = pair.one.waiting_count
    pair.first.group.leave(pair.first)
    pair.run()
    pair.second(ROOM + waiting)
    assert pair.of("second") == [(offset, 2) for offset in held] + [
        (held[-1] + 1 + number, 1) for number in range(waiting)]
    pair.end()


def test_an_owner_that_is_asked_anew_knows_what_waits() -> None:
    """The consumer is attached again while the owner knows that it gets nothing more."""
    pair = Fast(40)
    pair.look()
    relay = pair.queue.relay
    assert isinstance(relay, QueueRelay)
    before = pair.group.held
    relay.set_owner("", None)
    [member] = pair.b.to("a").hosted.values()
    member.end()
    relay.set_owner("b", pair.a.to("b"))
    pair.a.relays.owner_changed(pair.queue)
    pair.run()
    assert pair.group.held == before
    for _ in range(20):
        pair.a.now_ms += 1
        for _, offset, _ in pair.seen():
            settle(pair.first, offset)
            pair.done.append(offset)
        pair.run()
    assert sorted(set(pair.done)) == list(range(max(pair.done) + 1))
    pair.end()
