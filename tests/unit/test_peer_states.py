"""The states of a stream to another node: the table on top of `_core/peer/stream.pxd`, row by row."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.peers import PeerNode, Wire

from fluxmq._core.envelope.envelope import FORMAT_MQTT
from fluxmq._core.errors import UsageError
from fluxmq._core.peer.stream import STATES

pytestmark = pytest.mark.usefixtures("nothing_is_left")
WHY = "the node has gone"


def fresh() -> tuple[PeerNode, Wire]:
    """Node b wants `t/#` of node a, and has not been connected."""
    a = PeerNode("a", 1)
    a.to("b", b"t/#")
    return a, Wire(a, PeerNode("b", 2))


def busy(wire: Wire) -> None:
    wire.dial()


def idle(wire: Wire) -> None:
    wire.dial()
    wire.idle()


def detached(wire: Wire) -> None:
    wire.dial()
    wire.lose()


def lost(wire: Wire) -> None:
    wire.dial()
    wire.outbox.give_up_queues(WHY)


def parked(wire: Wire) -> None:
    lost(wire)
    wire.outbox.park()


def abandoned(wire: Wire) -> None:
    lost(wire)
    wire.outbox.abandon(WHY)


REACHED: list[Callable[[Wire], None]] = [detached, busy, idle, lost, parked, abandoned]
state = pytest.mark.parametrize("reach", REACHED, ids=lambda reach: reach.__name__)


def name(reach: Callable[[Wire], None]) -> str:
    return reach.__name__.upper()


def test_each_state_is_tried() -> None:
    assert [name(reach) for reach in REACHED] == list(STATES)
    _, wire = fresh()
    assert wire.outbox.state_name == "DETACHED"


@state
def test_a_message_is_kept_or_given_up_or_dropped(reach: Callable[[Wire], None]) -> None:
    a, wire = fresh()
    reach(wire)
    assert wire.outbox.state_name == name(reach)
    sent = len(wire.frames)
    a.publish(b"t/a", b"1", 1, number=1)
    a.publish(b"t/a", b"0", 0)
    a.turn()
    a.turn()                                                # gives up what it could not take
    ended = reach is abandoned
    assert a.outcomes == ({1: WHY} if ended else {})
    assert wire.outbox.dropped == int(ended)
    assert len(wire.frames) - sent == int(reach is idle)    # of what has gathered
    wire.outbox.cut()
    kept = b"".join(wire.outbox.unacknowledged())
    assert (b"1" in kept) != ended                          # its payload; the frame has no other
    assert (wire.outbox.unacknowledged_bytes == 0) == ended
    a.turn()
    assert (len(wire.frames) > sent) == (reach in (busy, idle))     # of what has become a frame
    wire.outbox.give_up_before(wire.outbox.newest_sequence + 1, WHY)
    a.turn()
    a.hub.targets.remove_peer(wire.outbox)


@state
def test_records_of_queues_are_for_who_can_get_them(reach: Callable[[Wire], None]) -> None:
    a, wire = fresh()
    reach(wire)
    alive = reach in (detached, busy, idle)
    wire.outbox.result(7, b"an answer")
    assert (wire.outbox.unacknowledged_bytes > 0) == alive and wire.outbox.late_bytes == 0
    assert (wire.outbox.ask(7, b"how many") != 0) == alive
    assert wire.outbox.publish_to(7, b"\0", b"", b"reply", format=FORMAT_MQTT) == alive
    wire.outbox.give_up_queues(WHY)
    a.turn()
    a.turn()
    assert wire.outbox.state_name == (name(reach) if reach in (parked, abandoned) else "LOST")
    a.hub.targets.remove_peer(wire.outbox)


@state
def test_a_connection_comes_while_the_node_lives(reach: Callable[[Wire], None]) -> None:
    a, wire = fresh()
    reach(wire)
    if reach in (lost, parked, abandoned):
        with pytest.raises(UsageError, match="has ended: the node has"):
            wire.dial()
        assert not wire.outbox.attached
        wire.outbox.detach()                    # of the transport, which hears of it late
        wire.outbox.on_idle()
        assert wire.outbox.state_name == name(reach)
    else:
        wire.dial()                             # also in place of one that has not broken yet
        assert wire.outbox.attached and wire.outbox.state_name == "BUSY"
    a.hub.targets.remove_peer(wire.outbox)


@state
def test_interest_is_kept_or_refused_or_given_up(reach: Callable[[Wire], None]) -> None:
    a, wire = fresh()
    heard: list[str] = []
    reach(wire)
    if reach is parked:
        with pytest.raises(UsageError, match="it is closed"):
            wire.outbox.interest(b"/", b"x", b"", 1)
    else:
        since = a.hub.commits.mark
        wire.outbox.interest(b"/", b"x", b"", 1)
        a.hub.when_durable(lambda: heard.append("committed"), since, heard.append)
    a.turn()
    a.turn()
    assert heard == ([WHY] if reach is abandoned else [])
    wire.outbox.give_up_before(wire.outbox.cut(), WHY)
    a.turn()
    a.hub.targets.remove_peer(wire.outbox)


@state
def test_an_end_is_the_last(reach: Callable[[Wire], None]) -> None:
    a, wire = fresh()
    reach(wire)
    if reach in (parked, abandoned):
        for again in (wire.outbox.park, lambda: wire.outbox.abandon("again")):
            with pytest.raises(UsageError, match=f"is {name(reach)} already: it cannot become"):
                again()
        assert wire.outbox.gone == (WHY if reach is abandoned else None)
    else:
        wire.outbox.park()
        assert wire.outbox.parked and not wire.outbox.attached
    a.hub.targets.remove_peer(wire.outbox)


@pytest.mark.parametrize("size", [1, 300_000])
def test_what_is_abandoned_makes_no_frame(size: int) -> None:
    """Neither by cut(), nor because so much has gathered."""
    a, wire = fresh()
    abandoned(wire)
    wire.outbox.control(bytes(size))
    upto = wire.outbox.newest_sequence
    assert wire.outbox.cut() == upto + 1
    assert not wire.outbox.unacknowledged() and wire.outbox.unacknowledged_bytes == 0
    a.turn()
    a.hub.targets.remove_peer(wire.outbox)


def test_what_is_halted_waits_over_a_connection_that_breaks() -> None:
    a, wire = fresh()
    idle(wire)
    wire.outbox.halt()
    wire.outbox.halt()
    a.publish(b"t/a", b"1", 1)
    a.turn()
    wire.lose()
    wire.dial()
    wire.idle()
    wire.outbox.resume()
    a.turn()
    assert len(wire.frames) == 1                # BEGIN
    wire.outbox.resume()
    a.turn()
    assert len(wire.frames) == 2
    a.hub.targets.remove_peer(wire.outbox)
