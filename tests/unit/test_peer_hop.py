"""A message to another node is one hop of its route, and a route stays as it is while it is walked, whatever a hop does
to the subscriptions."""
from __future__ import annotations

import gc

import pytest

from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.session import Session
from fluxmq._core.testing.peer_probe import PeerProbe

ENTRIES = 64            # of the route cache


pytestmark = pytest.mark.usefixtures("nothing_is_left")


def new_hub() -> Hub:
    """Not a fixture: pytest would keep it longer than nothing_is_left can wait."""
    hub = Hub(None, ENTRIES)
    hub.set_clock(1_000_000, 1_000)
    return hub


def subscriber(hub: Hub, name: bytes, filter_: bytes = b"a/#") -> Session:
    session = hub.new_session(name, 0)
    session.queue_max = 100
    hub.subscribe(session, filter_, 1, 0)
    return session


def end(hub: Hub, session: Session) -> None:
    hub.unsubscribe(session, b"a/#")
    session.clear()


# ---------------------------------------------------------------- what a peer gets

def test_it_gets_a_message_once_however_many_filters_match() -> None:
    hub = new_hub()
    peer, other = PeerProbe(hub), PeerProbe(hub)
    assert [hub.targets.add_peer(peer, f) for f in (b"a/#", b"a/+", b"a/b", b"a/b")] == [True, True, True, False]
    hub.targets.add_peer(other, b"a/b")
    assert hub.publish_message(b"a/b", b"x") == 2
    assert len(peer.forwarded) == len(other.forwarded) == 1


def test_it_sees_all_of_the_message() -> None:
    hub = new_hub()
    peer = PeerProbe(hub)
    hub.targets.add_peer(peer, b"a/#")
    publisher = hub.new_session(b"publisher", 0)
    hub.publish_message(b"a/b", b"x" * 5000, 1, True, b"\x03\x00\x01t", 2_000_000, publisher)
    hub.publish_message(b"a/c", b"", 0)
    assert peer.forwarded == [(b"a/b", b"x" * 5000, 1, True, b"\x03\x00\x01t", 2_000_000, b"publisher", False),
                              (b"a/c", b"", 0, False, b"", 0, None, False)]


def test_what_came_from_a_peer_goes_to_sessions_only() -> None:
    hub = new_hub()
    peer, session = PeerProbe(hub), subscriber(hub, b"s")
    hub.targets.add_peer(peer, b"a/#")
    assert hub.publish_message(b"a/b", b"x", 1, from_peer=True) == 2
    assert hub.publish_message(b"a/b", b"x", 1) == 2
    assert (len(peer.forwarded), session.queued) == (1, 2)
    end(hub, session)


@pytest.mark.parametrize("alone", [True, False])
def test_only_qos_1_and_2_have_tickets(alone: bool) -> None:
    hub = new_hub()
    peer = PeerProbe(hub, hub.commits.open_line("peer b"))
    hub.targets.add_peer(peer, b"a/#")
    session = None if alone else subscriber(hub, b"s")
    for qos, tickets in ((0, 0), (1, 1), (2, 2)):
        hub.publish_message(b"a/b", b"x", qos)
        assert hub.commits.tickets == tickets
    if session is not None:
        end(hub, session)


def test_what_is_removed_gets_nothing_more() -> None:
    hub = new_hub()
    peer = PeerProbe(hub)
    for filter_ in (b"a/#", b"a/b", b"b"):
        hub.targets.add_peer(peer, filter_)
    assert hub.targets.remove_peer(peer, b"a/#") and not hub.targets.remove_peer(peer, b"a/#")
    assert hub.publish_message(b"a/b", b"") == 1 and hub.publish_message(b"a/c", b"") == 0
    assert hub.targets.remove_peer(peer) and not hub.targets.remove_peer(peer)
    assert hub.publish_message(b"a/b", b"") == hub.publish_message(b"b", b"") == 0
    assert len(peer.forwarded) == 1 and hub.root.topics.trie.filters == 0


def test_the_hub_keeps_it_alive() -> None:
    hub = new_hub()
    forwarded = (peer := PeerProbe(hub)).forwarded
    hub.targets.add_peer(peer, b"a")
    del peer
    gc.collect()
    hub.publish_message(b"a", b"")
    assert len(forwarded) == 1


# ---------------------------------------------------------------- a route that is walked

def in_order(hub: Hub, count: int) -> tuple[PeerProbe, list[Session]]:
    """A peer, and sessions whose hops come behind it. A route is in the order of addresses, and the allocator places
    objects where it likes: both are made until enough sessions are behind one peer, and those that do not fit go."""
    peers, sessions = [PeerProbe(hub)], [hub.new_session(b"s0", 0)]
    while sum(id(session) > id(peers[0]) for session in sessions) < count:
        assert len(sessions) < 100_000
        peers.extend(PeerProbe(hub) for _ in range(len(peers)))
        peers.sort(key=id)
        sessions.extend(hub.new_session(b"s%d" % n, 0) for n in range(len(sessions), 2 * len(sessions)))
    peer = peers[0]
    behind = [session for session in sessions if id(session) > id(peer)][:count]
    hub.targets.add_peer(peer, b"a/#")
    for session in behind:
        session.queue_max = 100
        hub.subscribe(session, b"a/#", 1, 0)
    return peer, behind


def test_it_is_evicted_meanwhile() -> None:
    hub = new_hub()
    peer, sessions = in_order(hub, 5)

    def evict(topic: bytes) -> None:
        peer.then = None
        for n in range(10 * ENTRIES):
            hub.publish_message(b"b/%d" % n, b"")

    peer.then = evict
    assert hub.publish_message(b"a/b", b"x", 1) == 6
    assert [session.queued for session in sessions] == [1] * 5
    assert hub.publish_message(b"a/b", b"x", 1) == 6
    for session in sessions:
        end(hub, session)


def test_what_a_hop_publishes_while_a_message_comes_again_is_no_copy_of_it() -> None:
    """Who has had that message gets the other one."""
    hub = new_hub()
    hub.begin_identities(1)
    peer, [session] = in_order(hub, 1)
    hub.subscribe(session, b"b", 1, 0)
    identity = hub.next_identity()
    hub.publish_message(b"a/b", b"x", 1, identity=identity)
    assert session.queued == 1

    def more(topic: bytes) -> None:
        peer.then = None
        hub.publish_message(b"b", b"inner", 1)

    peer.then = more
    hub.publish_message(b"a/b", b"x", 1, identity=identity)
    assert session.queued == 2
    end(hub, session)


def test_it_is_filled_again_meanwhile() -> None:
    """Somebody subscribes, and the same topic is published again by a hop."""
    hub = new_hub()
    peer, sessions = in_order(hub, 5)
    others: list[Session] = []

    def more(topic: bytes) -> None:
        peer.then = None
        others.extend(subscriber(hub, b"more%d" % n) for n in range(50))
        assert hub.publish_message(topic, b"inner", 1) == 56

    peer.then = more
    assert hub.publish_message(b"a/b", b"outer", 1) == 6
    assert [session.queued for session in sessions] == [2] * 5
    assert [session.queued for session in others] == [1] * 50       # who came meanwhile has only what came after
    assert hub.publish_message(b"a/b", b"x", 1) == 56
    for session in sessions + others:
        end(hub, session)


def test_sessions_end_meanwhile() -> None:
    hub = new_hub()
    peer, sessions = in_order(hub, 6)

    def drop(topic: bytes) -> None:
        peer.then = None
        for session in sessions[1::2]:
            end(hub, session)
        del sessions[1::2]
        gc.collect()

    peer.then = drop
    assert hub.publish_message(b"a/b", b"x", 1) == 7
    assert [session.queued for session in sessions] == [1] * 3
    for session in sessions:
        end(hub, session)


def test_each_hop_changes_what_is_left() -> None:
    """Of ten peers each removes the next, which is freed, and subscribes somebody."""
    hub = new_hub()
    peers: list[PeerProbe] = sorted((PeerProbe(hub) for _ in range(10)), key=id)
    noted = [peer.forwarded for peer in peers]
    added: list[Session] = []

    def remove(topic: bytes) -> None:
        hub.targets.remove_peer(peers.pop(1))
        peers.pop(0).then = None
        added.append(subscriber(hub, b"s%d" % len(added)))
        hub.publish_message(b"b", b"")

    for peer in peers:
        peer.then = remove
        hub.targets.add_peer(peer, b"a/b")
    del peer
    assert hub.publish_message(b"a/b", b"x", 1) == 10
    assert [len(each) for each in noted] == [1, 0] * 5
    assert [session.queued for session in added] == [0] * 5
    hub.targets.remove_peer(PeerProbe(hub))
    for session in added:
        end(hub, session)


def test_what_a_hop_raises_leaves_the_route_in_order() -> None:
    hub = new_hub()
    peer, sessions = in_order(hub, 2)

    def fail(topic: bytes) -> None:
        peer.then = None
        sessions.append(subscriber(hub, b"more"))
        raise ZeroDivisionError

    peer.then = fail
    with pytest.raises(ZeroDivisionError):
        hub.publish_message(b"a/b", b"x", 1)
    assert hub.publish_message(b"a/b", b"x", 1) == 4
    assert [session.queued for session in sessions] == [1, 1, 1]
    for session in sessions:
        end(hub, session)
