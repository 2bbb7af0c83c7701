"""Everything that the core allocates by hand is given back."""
from __future__ import annotations

import pytest

from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.session import Session
from fluxmq._core.pubsub.share_group import ShareGroup
from fluxmq._core.testing.probes import live_objects

SMALL, LARGE = b"x" * 100, b"x" * 100_000


pytestmark = pytest.mark.usefixtures("nothing_is_left")


def new_hub() -> Hub:
    """Not a fixture: pytest would keep it longer than nothing_is_left can wait."""
    hub = Hub(None, 64)
    hub.set_clock(1_000_000, 1_000)
    return hub


def subscriber(hub: Hub, name: bytes, filter_: bytes = b"a/#", identifier: int = 0) -> Session:
    session = hub.new_session(name, 0)
    session.queue_max = 10
    hub.subscribe(session, filter_, 1, identifier)
    return session


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["copied", "counted"])
def test_messages_that_wait(payload: bytes) -> None:
    hub = new_hub()
    sessions = [subscriber(hub, b"s%d" % n, identifier=n) for n in range(3)]
    for n in range(20):                                     # the older half is evicted
        assert hub.publish_message(b"a/%d" % n, payload, 1) == 3
    assert [session.queued for session in sessions] == [10, 10, 10]
    assert live_objects()["messages"] >= 10
    for session in sessions:
        hub.unsubscribe(session, b"a/#")
        session.clear()


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["copied", "counted"])
def test_retained_messages(payload: bytes) -> None:
    hub = new_hub()
    for n in range(10):
        hub.publish_message(b"a/%d" % (n % 5), payload, 1, True, b"", 2_000_000 if n % 2 else 0)
    session = subscriber(hub, b"s", identifier=7)
    hub.deliver_retained(session, b"a/#", 1, 7)
    hub.publish_message(b"a/0", b"", 0, True)               # clears it
    hub.set_clock(3_000_000, 2_000_000)
    assert hub.namespaces.expire_retained() == 2
    hub.unsubscribe(session, b"a/#")


def test_routes_that_are_evicted_and_made_again() -> None:
    hub = new_hub()
    session = subscriber(hub, b"s", identifier=1)
    for n in range(1_000):
        hub.publish_message(b"b/%d" % n, SMALL)
    for _ in range(3):
        hub.publish_message(b"a/1", SMALL, 1)
        hub.unsubscribe(session, b"a/#")
        hub.subscribe(session, b"a/#", 1, 2)
    hub.unsubscribe(session, b"a/#")


def test_share_groups() -> None:
    hub = new_hub()
    group = ShareGroup(b"g", b"a/#")
    hub.add_group(group)
    members = [hub.new_session(b"m%d" % n, 0) for n in range(5)]
    for session in members:
        assert group.join(session, 1, 3)
    assert not group.join(members[0], 0, 4)
    for _ in range(10):
        hub.publish_message(b"a/1", LARGE, 1)
    assert group.leave(members[1])
    hub.remove_group(group)
