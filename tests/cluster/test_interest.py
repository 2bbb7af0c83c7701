"""What the other nodes are told of this node's subscriptions."""
from __future__ import annotations

from fluxmq.cluster.interest import AWAY, Interest


class Told:
    """A Sender."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def interest(self, namespace: bytes, filter_: bytes, group: bytes, count: int, durable: bool, ticket: bool) -> None:
        self.told.append((filter_, group, count, durable, ticket))

    def barrier(self) -> None:
        self.told.append(("barrier",))

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return told


def told_anew(interest: Interest) -> list[tuple[object, ...]]:
    """What a node that comes now is told."""
    new = Told()
    interest.add("new", new)
    interest.remove("new")
    return new.take()


def test_the_first_durable_subscription_is_news_and_so_is_its_end() -> None:
    interest, told = Interest(), Told()
    interest.add("n", told)
    interest.announce(b"/", b"f", b"", False)
    assert told.take() == [(b"f", b"", 1, False, True)]
    interest.announce(b"/", b"f", b"", True)
    assert told.take() == [(b"f", b"", 2, True, True)]
    interest.announce(b"/", b"f", b"", True)
    interest.announce(b"/", b"f", b"", False)
    assert told.take() == [("barrier",)] * 2
    late = Told()
    interest.add("late", late)
    assert late.take() == [(b"f", b"", 4, True, False)]
    interest.withdraw(b"/", b"f", b"", True)
    assert not told.take()
    interest.withdraw(b"/", b"f", b"", True)
    assert told.take() == late.take() == [(b"f", b"", 2, False, False)]
    interest.withdraw(b"/", b"f", b"", False)
    assert not told.take()
    interest.withdraw(b"/", b"f", b"", False)
    assert told.take() == [(b"f", b"", 0, False, False)] and not told_anew(interest)


def test_of_a_group_the_connected_members_are_told_and_of_an_absent_one_the_absent() -> None:
    interest, told = Interest(), Told()
    interest.add("n", told)
    interest.announce(b"/", b"f", b"g", True)
    interest.announce(b"/", b"f", b"g", True)
    assert told.take() == [(b"f", b"g", 1 | AWAY, True, True), (b"f", b"g", 2 | AWAY, True, True)]
    interest.members_connected(b"/", b"f", b"g", 1)
    interest.members_connected(b"/", b"f", b"g", 1)
    assert told.take() == [(b"f", b"g", 1, True, False), (b"f", b"g", 2, True, False)]
    interest.announce(b"/", b"f", b"g", False)          # a third one, which is away
    assert told.take() == [("barrier",)]
    late = Told()
    interest.add("late", late)
    assert late.take() == [(b"f", b"g", 2, True, False)]
    interest.members_connected(b"/", b"f", b"g", -1)
    interest.withdraw(b"/", b"f", b"g", True)
    assert told.take() == late.take() == [(b"f", b"g", 1, True, False)]
    interest.members_connected(b"/", b"f", b"g", -1)
    interest.withdraw(b"/", b"f", b"g", True)
    interest.withdraw(b"/", b"f", b"g", False)
    assert told.take() == [(b"f", b"g", 2 | AWAY, True, False), (b"f", b"g", 1 | AWAY, False, False),
                           (b"f", b"g", 0, False, False)]
    assert not told_anew(interest)


def test_topics_of_each_node_are_its_own() -> None:
    interest, told = Interest(), Told()
    interest.add("n", told)
    interest.announce(b"/", b"$SYS/#", b"", True)
    interest.withdraw(b"/", b"$SYS/#", b"", True)
    assert not told.take()
