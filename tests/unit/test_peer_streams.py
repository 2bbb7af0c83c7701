"""Both ends of a stream between two nodes: when frames are made, sent again and acknowledged, what each record does,
and what a peer may not do."""
from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from kit.journals import Ops, wait_durable, writing
from kit.peers import START_MS, PeerNode, Wire

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.hub.moving import MovingSession
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.testing.frames_probe import decode, encode
from fluxmq._core.testing.peer_probe import forward_many, queued

pytestmark = pytest.mark.usefixtures("nothing_is_left")

HEADER = {"version": 1, "epoch": 1, "to_epoch": 2}
BEGIN, AGAIN, AWAITED = 1, 2, 4
ROOT = (1, 1, b"/")


def pair(window_bytes: int = 1 << 24) -> tuple[PeerNode, PeerNode, Wire]:
    """Node b wants `t/#` and `u` of node a; the stream from a to b is open."""
    a, b = PeerNode("a", 1, window_bytes=window_bytes), PeerNode("b", 2)
    a.to("b", b"t/#", b"u")
    wire = Wire(a, b).dial()
    assert headers(wire) == [(BEGIN, 0)]
    wire.deliver()
    wire.idle()
    return a, b, wire


def headers(wire: Wire) -> list[tuple[int, int]]:
    """(flags, sequence) of the frames that were sent and not delivered."""
    return [(header["flags"] & ~AWAITED, header["sequence"]) for header, _ in map(decode, wire.frames)]


def records(wire: Wire) -> list[tuple[object, ...]]:
    return [record for frame in wire.frames for record in decode(frame)[1]]


def payloads(b: PeerNode, wire: Wire, filter_: bytes = b"#") -> list[bytes]:
    """What a session gets of the frames that are under way."""
    session = b.session(b"reader", filter_)
    wire.deliver()
    found = [payload for _, payload, *_ in queued(session)]
    b.hub.unsubscribe(session, filter_)
    session.clear()
    return found


def message(payload: bytes, flags: int = 1, left_ms: int = -1, topic: bytes = b"t/a") -> tuple[object, ...]:
    return 2, 1, flags, left_ms, topic, b"", payload


# ---------------------------------------------------------------- frames are made


def test_what_a_turn_gave_is_one_frame() -> None:
    a, _, wire = pair()
    for number in range(5):
        a.publish(b"t/a", b"%d" % number, number % 3)
    assert not wire.frames
    a.turn()
    assert headers(wire) == [(0, 1)]
    assert records(wire) == [ROOT, *(message(b"%d" % number, number % 3) for number in range(5))]


def test_a_stream_that_is_not_idle_gathers() -> None:
    a, _, wire = pair()
    for number in range(4):
        a.publish(b"t/a", b"%d" % number)
        a.turn()
    assert headers(wire) == [(0, 1)]
    wire.idle()
    assert headers(wire) == [(0, 1), (0, 2)]
    assert len(decode(wire.frames[1])[1]) == 3
    wire.idle()
    assert len(wire.frames) == 2            # nothing has gathered


def test_frames_are_made_at_256_kib_idle_or_not() -> None:
    a, _, wire = pair()
    for _ in range(10):
        a.publish(b"t/a", bytes(100_000))
    a.turn()
    sizes = [len(frame) for frame in wire.frames]
    assert len(sizes) == 3 and all(300_000 < size < 301_000 for size in sizes)
    wire.idle()
    assert len(wire.frames) == 4


def test_a_node_without_news_sends_nothing() -> None:
    a, _, wire = pair()
    for _ in range(3):
        a.turn()
        wire.idle()
    assert not wire.frames


def test_a_message_that_nobody_wants_there_is_not_sent() -> None:
    a, _, wire = pair()
    a.publish(b"other", b"")
    a.turn()
    assert not wire.frames and a.hub.commits.tickets == 0


def test_a_namespace_gets_its_number_once() -> None:
    a, b, wire = pair()
    for name in (b"one", b"two"):
        b.hub.namespaces.add(name)
        a.hub.targets.add_peer(a.to("b"), b"t/#", a.hub.namespaces.add(name))
        for payload in (b"1", b"2"):
            a.hub.publish_message(b"t/a", payload, 1, namespace=a.hub.namespaces[name])
    a.publish(b"t/a", b"root")
    a.turn()
    assert [record[:3] for record in records(wire)] == [
        (1, 1, b"one"), (2, 1, 1), (2, 1, 1), (1, 2, b"two"), (2, 2, 1), (2, 2, 1), (1, 3, b"/"), (2, 3, 1)]
    tenant = b.hub.new_session(b"s", 0, b.hub.namespaces[b"two"])
    tenant.queue_max = 10
    b.hub.subscribe(tenant, b"t/#", 1, 0)
    wire.deliver()
    assert [payload for _, payload, *_ in queued(tenant)] == [b"1", b"2"]
    b.hub.unsubscribe(tenant, b"t/#")
    tenant.clear()


def test_a_namespace_that_is_made_anew_is_the_new_one() -> None:
    a, b, wire = pair()
    a.hub.targets.add_peer(a.to("b"), b"t/#", a.hub.namespaces.add(b"x"))
    for _ in range(2):
        session = b.hub.new_session(b"s", 0, b.hub.namespaces.add(b"x"))
        session.queue_max = 10
        b.hub.subscribe(session, b"t/#", 1, 0)
        a.hub.publish_message(b"t/a", b"", 1, namespace=a.hub.namespaces[b"x"])
        wire.settle()
        assert session.queued == 1
        b.hub.unsubscribe(session, b"t/#")
        session.clear()
        b.hub.namespaces.end(b.hub.namespaces[b"x"])
        a.hub.publish_message(b"t/a", b"", 1, namespace=a.hub.namespaces[b"x"])
        wire.settle()
    assert wire.inbox.position == 4


def test_records_of_the_cold_half_stay_in_order() -> None:
    a, b, wire = pair()
    out = wire.outbox
    out.interest(b"/", b"x/#", b"", 2)
    a.publish(b"t/a", b"between")
    out.interest(b"tenant", b"y", b"group", 0)
    out.interest_end()
    out.control(b"said")
    wire.settle()
    assert b.heard == [("a", "interest", b"/", b"x/#", b"", 2), ("a", "interest", b"tenant", b"y", b"group", 0),
                       ("a", "interest end"), ("a", "control", b"said")]
    assert wire.inbox.records == 7          # with the numbers of two namespaces


def test_a_message_for_a_group_names_it() -> None:
    _, b, wire = pair()
    group = (b"/", b"g", b"t/+", b"t/a", b"x", b"", 1, False)
    forward_many(wire.outbox, b"t/a", b"x", 1, 1, b"g", b"t/+", expires_at=START_MS + 5000)
    wire.settle()
    assert b.heard == [("a", "group message", *group, START_MS + 5000)]


# ---------------------------------------------------------------- tickets


def test_a_publish_is_answered_when_its_frame_is_acknowledged() -> None:
    a, _, wire = pair()
    a.publish(b"t/a", b"", 1, number=1)
    a.publish(b"t/a", b"", 0, number=2)
    assert a.outcomes == {2: None}
    a.turn()
    a.publish(b"t/a", b"", 2, number=3)
    a.turn()
    wire.outbox.acknowledged(1)
    a.turn()
    assert a.outcomes == {2: None, 1: None}
    wire.idle()
    wire.outbox.acknowledged(2)
    a.turn()
    assert a.outcomes == {1: None, 2: None, 3: None}
    assert wire.outbox.unacknowledged_bytes == 0 and wire.outbox.line.committed == 2


def test_interest_control_and_barrier_give_tickets() -> None:
    a, _, wire = pair()
    out = wire.outbox
    for number, give in enumerate((lambda: out.interest(b"/", b"x", b"", 1), lambda: out.control(b"", True),
                                   out.barrier), 1):
        since = a.hub.commits.mark
        give()
        assert not a.hub.when_durable(lambda number=number: a.outcomes.update({number: None}), since)
        a.turn()
        assert headers(wire) == [(0, number)]
        wire.deliver()
        wire.idle()
        out.acknowledged(number)
        a.turn()
        assert number in a.outcomes
    since = a.hub.commits.mark
    out.control(b"")
    out.interest_end()
    assert a.hub.when_durable(lambda: None, since)


def test_a_barrier_alone_is_an_empty_frame() -> None:
    a, b, wire = pair()
    wire.outbox.barrier()
    a.turn()
    assert headers(wire) == [(0, 1)] and records(wire) == []
    wire.deliver()
    assert b.applied[-1] == ("a", 1)


def test_time_limits_give_up_what_is_older_than_a_cut() -> None:
    a, _, wire = pair()
    wire.lose()
    a.publish(b"t/a", b"old", 1, number=1)
    a.turn()
    cut = wire.outbox.cut()
    a.publish(b"t/a", b"new", 1, number=2)
    a.turn()
    wire.outbox.give_up_before(cut, "late")
    wire.outbox.give_up_before(cut, "later")
    a.turn()
    assert a.outcomes == {1: "late"}
    with pytest.raises(UsageError):
        wire.outbox.give_up_before(cut + 2, "?")
    wire.dial()
    assert headers(wire) == [(BEGIN, 0), (0, 1)]        # it is delivered all the same
    wire.settle()
    wire.outbox.acknowledged(2)
    a.turn()
    assert a.outcomes == {1: "late", 2: None}


def test_who_will_not_come_back_is_given_up() -> None:
    a, _, wire = pair()
    a.publish(b"t/a", b"", 1, number=1)
    a.turn()
    a.publish(b"t/a", b"", 1, number=2)
    wire.outbox.abandon("node b has left")
    a.publish(b"t/a", b"", 2, number=3)
    a.publish(b"t/a", b"", 0)
    a.turn()
    a.turn()
    assert a.outcomes == dict.fromkeys((1, 2, 3), "node b has left")
    assert wire.outbox.unacknowledged_bytes == 0 and wire.outbox.dropped == 1 and wire.outbox.gone == "node b has left"
    with pytest.raises(UsageError):
        wire.dial()


# ---------------------------------------------------------------- acknowledgements ride on frames


def test_an_acknowledgement_rides_on_a_frame_or_leaves_alone() -> None:
    a, b, wire = pair()
    b.to("a", b"#")
    back = Wire(b, a).dial()
    back.deliver()
    back.idle()
    a.publish(b"t/a", b"", 1, number=1)
    wire.settle()
    assert back.outbox.needs_ack and not back.frames
    back.outbox.send_ack()
    back.outbox.send_ack()
    assert headers(back) == [(0, 0)] and not back.outbox.needs_ack
    back.deliver()
    back.idle()
    a.turn()
    assert a.outcomes == {1: None}
    a.publish(b"t/a", b"", 1, number=2)
    wire.settle()
    b.publish(b"x", b"")
    b.turn()
    assert [decode(frame)[0]["acknowledged"] for frame in back.frames] == [2] and not back.outbox.needs_ack
    back.deliver()
    a.turn()
    assert a.outcomes == {1: None, 2: None}


def both() -> tuple[PeerNode, PeerNode, Wire, Wire]:
    """As pair(), with the stream back, which is idle."""
    a, b, wire = pair()
    back = Wire(b, a).dial()
    back.deliver()
    back.idle()
    return a, b, wire, back


@pytest.mark.parametrize(("qos", "awaited"), [(0, False), (1, True), (2, True)])
def test_a_frame_says_whether_somebody_waits_for_it(qos: int, awaited: bool) -> None:
    a, b, wire, _ = both()
    a.publish(b"t/a", b"", qos)
    a.turn()
    assert [bool(decode(frame)[0]["flags"] & AWAITED) for frame in wire.frames] == [awaited]
    wire.lose()                             # also when it is sent again
    b.epoch += 1
    wire.dial()
    assert [decode(frame)[0]["flags"] for frame in wire.frames] == [BEGIN, AGAIN | (AWAITED if awaited else 0)]


def test_a_node_of_the_former_version_is_not_told_that_a_frame_is_awaited() -> None:
    """It would close the connection."""
    a, _, wire = pair()
    wire.outbox.attach(wire.frames.append, 2, 0, 5)
    wire.outbox.on_idle()
    a.publish(b"t/a", b"", 1)
    a.turn()
    assert [decode(frame)[0]["flags"] for frame in wire.frames] == [BEGIN, 0]


def test_a_barrier_is_awaited() -> None:
    _, _, wire, _ = both()
    wire.outbox.barrier()
    wire.source.turn()
    assert [decode(frame)[0]["flags"] for frame in wire.frames] == [AWAITED]


def test_an_acknowledgement_that_is_awaited_leaves_when_the_turn_ends() -> None:
    _, b, _, back = both()
    back.outbox.ack(1, 1, True)
    back.outbox.ack(1, 2, True)
    assert back.frames == []
    b.turn()
    assert [(header["sequence"], header["acknowledged"]) for header, _ in map(decode, back.frames)] == [(0, 2)]
    back.idle()
    b.turn()
    assert len(back.frames) == 1


def test_an_acknowledgement_that_is_awaited_rides_with_what_leaves_in_the_turn() -> None:
    _, b, _, back = both()
    b.to("a", b"#")
    back.outbox.ack(1, 3, True)
    b.publish(b"x", b"")
    b.turn()
    assert [(header["sequence"], header["acknowledged"]) for header, _ in map(decode, back.frames)] == [(1, 3)]
    back.idle()
    b.turn()
    assert len(back.frames) == 1


def test_an_acknowledgement_that_is_awaited_leaves_when_the_stream_is_idle() -> None:
    """A frame is under way: it leaves behind that, with what has gathered meanwhile if there is such a thing."""
    for more in (False, True):
        _, b, _, back = both()
        b.to("a", b"#")
        b.publish(b"x", b"")
        b.turn()
        back.frames.clear()
        back.outbox.ack(1, 4, True)
        if more:
            b.publish(b"x", b"")
        b.turn()
        assert back.frames == []
        back.idle()
        assert [(header["sequence"], header["acknowledged"]) for header, _ in map(decode, back.frames)] == [
            (2 if more else 0, 4)]


def test_an_acknowledgement_that_is_awaited_passes_by_what_is_halted() -> None:
    _, b, _, back = both()
    b.to("a", b"#")
    back.outbox.halt()
    b.publish(b"x", b"")
    back.outbox.ack(1, 5, True)
    b.turn()
    assert [(header["sequence"], header["acknowledged"]) for header, _ in map(decode, back.frames)] == [(0, 5)]
    back.idle()
    back.outbox.resume()
    b.turn()
    assert headers(back)[-1] == (0, 1)


def test_an_acknowledgement_does_not_wait_with_a_frame_that_is_halted() -> None:
    """A frame is under way when it is asked for, and another one is made, which has to wait."""
    _, b, _, back = both()
    b.to("a", b"#")
    b.publish(b"x", b"")
    b.turn()
    back.frames.clear()
    back.outbox.halt()
    b.publish(b"x", b"")
    back.outbox.ack(1, 6, True)
    back.outbox.cut()
    b.turn()
    back.idle()
    assert [(header["sequence"], header["acknowledged"]) for header, _ in map(decode, back.frames)] == [(0, 6)]


def test_frames_for_which_somebody_waits_are_known_when_they_are_committed() -> None:
    """In order, although lines commit in any."""
    _, b, wire = pair()
    slow = b.hub.commits.open_line("slow")
    ear = b.ears["a"]
    ear.on_control = lambda data: slow.give()    # type: ignore[method-assign, assign]
    ear.awaited.clear()
    wire.inbox.apply(encode({**HEADER, "sequence": 1, "records": 1}, [(6, b"waits")]))
    wire.inbox.apply(encode({**HEADER, "sequence": 2, "records": 0, "flags": AWAITED}, []))
    slow.submit()
    b.turn()
    assert ear.awaited == []
    slow.commit(1)
    b.turn()
    assert ear.awaited == [True]
    wire.inbox.apply(encode({**HEADER, "sequence": 3, "records": 0}, []))
    assert ear.awaited == [True, False]


def test_it_is_repeated_when_a_stream_begins() -> None:
    a, b, wire = pair()
    b.to("a")
    back = Wire(b, a).dial()
    a.publish(b"t/a", b"", 1, number=1)
    wire.settle()
    back.outbox.send_ack()
    back.lose()                             # with the acknowledgement
    back.dial()
    assert [decode(frame)[0]["acknowledged"] for frame in back.frames] == [1]
    back.deliver()
    a.turn()
    assert a.outcomes == {1: None}
    wire.lose()
    wire.dial().deliver()
    assert back.outbox.needs_ack            # nothing was applied, but who knows what got lost


def test_a_life_is_not_told_what_its_former_life_sent() -> None:
    """Node b acknowledged frame 1 of a's first life; a's second life, which has made no frame, would be confused."""
    a, b, wire = pair()
    b.to("a", b"#")
    Wire(b, a).dial()
    a.publish(b"t/a", b"")
    wire.settle()
    b.publish(b"x", b"kept")
    a2 = PeerNode("a", 5)
    a2.to("b")
    back = Wire(b, a2).dial()
    b.turn()
    back.idle()
    assert [decode(frame)[0]["acknowledged"] for frame in back.frames] == [0, 0]
    Wire(a2, b).dial().deliver()
    back.deliver()


# ---------------------------------------------------------------- reconnects


def test_frames_that_the_other_does_not_have_are_sent_again() -> None:
    a, b, wire = pair()
    for number in range(1, 6):
        a.publish(b"t/a", b"%d" % number)
        a.turn()
        wire.idle()
    wire.deliver(2)
    wire.lose()
    wire.dial()
    assert headers(wire) == [(BEGIN, 2), (0, 3), (0, 4), (0, 5)]
    assert payloads(b, wire) == [b"3", b"4", b"5"]
    assert wire.inbox.repeated == 0


def test_what_comes_twice_is_skipped() -> None:
    a, b, wire = pair()
    a.publish(b"t/a", b"1")
    a.turn()
    [frame] = wire.frames
    assert payloads(b, wire) == [b"1"]
    wire.frames.append(frame)
    assert payloads(b, wire) == [] and wire.inbox.repeated == 1


def test_what_was_forwarded_without_a_stream_is_sent_when_there_is_one() -> None:
    a, b = PeerNode("a", 1), PeerNode("b", 2)
    out = a.to("b", b"t/#")
    a.publish(b"t/a", b"early", 0)
    a.publish(b"t/a", b"early", 1)
    a.turn()
    assert out.newest_sequence == 0
    wire = Wire(a, b).dial()
    assert headers(wire) == [(BEGIN, 0)]
    wire.idle()
    assert headers(wire) == [(BEGIN, 0), (0, 1)]
    session = b.session(b"s", b"#")
    wire.deliver()
    assert [payload for _, payload, *_ in queued(session)] == [b"early"]    # whose client is away: QoS 1 only
    session.clear()


def test_a_receiver_that_restarted_understands_what_was_made_for_its_former_life() -> None:
    a, _, wire = pair()
    for number, qos in enumerate((1, 0, 1), 1):
        a.publish(b"t/a", b"%d" % number, qos)
        a.turn()
        wire.idle()
    wire.deliver(1)
    wire.outbox.acknowledged(1)
    a.publish(b"t/a", b"4", 0)              # never sent to the former life
    b2 = PeerNode("b", 9)
    again = Wire(a, b2).dial()
    again.idle()
    assert [(*pair_, decode(frame)[0]["to_epoch"]) for pair_, frame in zip(headers(again), again.frames, strict=True)
            ] == [(BEGIN, 1, 9), (AGAIN, 2, 9), (AGAIN, 3, 9), (0, 4, 9)]
    assert payloads(b2, again) == [b"3"]
    assert again.inbox.position == 4
    assert (b2.hub.root.topics.routes.misses, b2.hub.root.topics.routes.hits) == (1, 1)     # nobody looked frame 2 up
    a.publish(b"t/a", b"5")
    again.idle()
    assert headers(again) == [(0, 5)]
    again.lose()
    again.dial()
    assert headers(again) == [(BEGIN, 4), (0, 5)]       # the same life: not AGAIN


def test_a_gap_closes_the_stream() -> None:
    a, _, wire = pair()
    for _ in range(3):
        a.publish(b"t/a", b"")
        a.turn()
        wire.idle()
    del wire.frames[1]
    with pytest.raises(ProtocolError, match="frame 3 of a behind 1"):
        wire.deliver()
    wire.dial()
    assert headers(wire) == [(BEGIN, 1), (0, 2), (0, 3)]
    wire.deliver()
    assert wire.inbox.position == 3


def test_a_stream_does_not_continue_behind_what_is_missing_in_this_life() -> None:
    a, _, wire = pair()
    for _ in range(2):
        a.publish(b"t/a", b"")
        a.turn()
        wire.idle()
    wire.deliver(1)
    frame = encode({**HEADER, "flags": BEGIN, "sequence": 2}, [])
    with pytest.raises(ProtocolError, match="continues behind frame 2"):
        wire.inbox.apply(frame)


def test_a_record_that_raised_is_applied_when_the_frame_comes_again() -> None:
    a, b, wire = pair()
    out = wire.outbox
    a.publish(b"t/a", b"before")
    out.control(b"raise")
    a.publish(b"t/a", b"behind")
    a.turn()
    session = b.session(b"s", b"#")
    with pytest.raises(ZeroDivisionError):
        wire.deliver()
    assert session.queued == 1 and wire.inbox.position == 0
    b.inboxes["a"].close()
    with pytest.raises(ProtocolError, match="closed"):
        wire.inbox.apply(out.unacknowledged()[0])
    session.clear()


def test_it_goes_on_where_it_was() -> None:
    _, b, wire = pair()
    session = b.session(b"s", b"#")
    with pytest.raises(ZeroDivisionError):
        wire.inbox.apply(encode({**HEADER, "sequence": 1, "records": 4},
                                [ROOT, message(b"1"), (6, b"raise"), message(b"2")]))
    wire.inbox.apply(encode({**HEADER, "sequence": 1, "records": 4}, [ROOT, message(b"1"), (6, b"now"), message(b"2")]))
    assert [payload for _, payload, *_ in queued(session)] == [b"1", b"2"]
    session.clear()


@pytest.mark.parametrize("given_up", [False, True])
def test_a_frame_that_comes_again_waits_for_what_it_caused_itself(given_up: bool) -> None:
    """In the turn in which one of its records raised, and in the one in which it went on; for no line that others use
    meanwhile."""
    _, b, wire = pair()
    first, second, others = (b.hub.commits.open_line(name) for name in ("first", "second", "others"))

    def on_control(data: bytes) -> None:
        if data == b"raise":
            raise ZeroDivisionError
        (first if data == b"first" else second).give()

    b.ears["a"].on_control = on_control     # type: ignore[method-assign]
    header = {**HEADER, "sequence": 1, "records": 3}
    with pytest.raises(ZeroDivisionError):
        wire.inbox.apply(encode(header, [(6, b"first"), (6, b"raise"), (6, b"second")]))
    others.give()
    first.submit()
    b.turn()
    others.give()
    wire.inbox.apply(encode(header, [(6, b"first"), (6, b"first"), (6, b"second")]))
    others.give()
    for line in (first, second, others):
        line.submit()
    b.turn()
    b.applied.clear()
    second.commit(1)
    first.commit(1)         # of the first turn
    b.turn()
    assert b.applied == []
    if given_up:
        first.give_up("it has no leader")
    else:
        first.commit(2)
    b.turn()
    assert (b.applied, b.heard) == (([], [("a", "refused", 1, "it has no leader")]) if given_up else ([("a", 1)], []))


def test_a_frame_that_comes_again_is_refused_with_what_was_given_up_meanwhile() -> None:
    _, b, wire = pair()
    line = b.hub.commits.open_line("group 7")

    def on_control(data: bytes) -> None:
        line.give()
        if data == b"raise":
            raise ZeroDivisionError

    b.ears["a"].on_control = on_control     # type: ignore[method-assign]
    header = {**HEADER, "sequence": 1, "records": 2}
    with pytest.raises(ZeroDivisionError):
        wire.inbox.apply(encode(header, [(6, b"goes"), (6, b"raise")]))
    line.submit()
    b.turn()
    line.give_up("it has no leader")
    b.turn()
    b.applied.clear()
    wire.inbox.apply(encode(header, [(6, b"goes"), (6, b"goes")]))
    assert (b.applied, b.heard) == ([], [("a", "refused", 1, "it has no leader")])


def test_an_outbox_that_follows_an_abandoned_one_uses_other_numbers(tmp_path: Path) -> None:
    """The receiver restarts, and finds the position of the former outbox in its journal; the sender has a new one."""
    a = PeerNode("a", 1)
    with writing(tmp_path) as journal:
        b = PeerNode("b", 2, journal)
        a.to("b", b"#")
        wire = Wire(a, b).dial()
        session = b.session(b"s", b"#", number=1)
        a.publish(b"t/a", b"1")
        wire.settle()
        wire.outbox.acknowledged(1)
        a.publish(b"t/a", b"dropped", 1, number=1)
        a.turn()
        wire.idle()
        a.hub.targets.remove_peer(a.outboxes["b"])
        a.outboxes.pop("b").abandon("it has gone")
        position = b.hub.positions["a"]
        assert position == (1, 1)
        session.clear()
        wait_durable(journal, journal.gathering - 1)
        del b, wire
    b2 = PeerNode("b", 3)
    b2.hub.positions["a"] = position
    a.to("b", b"#")
    again = Wire(a, b2).dial()
    again.deliver()
    again.idle()
    a.publish(b"t/a", b"2", 1, number=2)
    a.turn()
    assert payloads(b2, again) == [b"2"] and a.outcomes == {1: "it has gone"}
    again.outbox.acknowledged(again.inbox.position)
    a.turn()
    assert a.outcomes == {1: "it has gone", 2: None} and again.inbox.position == again.outbox.newest_sequence == 3


# ---------------------------------------------------------------- what the other may not do


VALID = message(b"valid")


@pytest.mark.parametrize(("header", "content", "what"), [
    ({"version": 2}, [], "version 2"), ({"flags": 8}, [], "flags"), ({"epoch": 3}, [], "life"),
    ({"to_epoch": 3}, [], "life"), ({}, [ROOT], "without a number"), ({"flags": AGAIN}, [ROOT], "without a number"),
    ({"sequence": 1, "records": 3}, [ROOT, VALID], "3 records has 2"),
    ({"sequence": 1, "records": 1}, [ROOT, VALID], "1 records has 2"),
    ({"sequence": 1}, [VALID], "namespace 1 was not defined"),
    ({"sequence": 1}, [ROOT, VALID, (4, 7, 1, b"", b"f", 0)], "namespace 7 was not defined"),
    ({"sequence": 1}, [ROOT, VALID, (2, 0, 0, -1, b"t", b"", b"")], "namespace 0 was not defined"),
    ({"sequence": 1}, [ROOT, VALID, (1, 1, b"other")], "two names"),
    ({"sequence": 1}, [ROOT, VALID, (1, 3, b"x")], "behind 1"), ({"sequence": 1}, [(1, 0, b"x")], "behind 0"),
    ({"flags": BEGIN}, [ROOT, (6, b"x")], "first frame"),
    ({"sequence": 1}, [ROOT, VALID, message(b"", topic=b"a/+")], "topic name"),
    ({"sequence": 1}, [ROOT, VALID, message(b"", topic=b"")], "topic name"),
    ({"sequence": 1}, [ROOT, VALID, (4, 1, 1, b"", b"a#", 0)], "topic filter"),
    ({"sequence": 1}, [ROOT, VALID, (3, 1, 1, -1, b"t", b"", b"", b"g", b"")], "topic filter"),
    ({"sequence": 1}, [ROOT, VALID, (3, 1, 1, -1, b"t", b"", b"", b"\xff", b"f")], "UTF-8"),
    ({"sequence": 1}, [ROOT, VALID, (2, 1, 0, -1, b"t", b"\x01", b"")], "malformed properties"),
    ({"sequence": 1}, [ROOT, VALID, (2, 1, 0, -1, b"t", b"\x23\0\1", b"")], "property of one connection"),
    ({"sequence": 1}, [ROOT, VALID, (1, 2, b"\xff")], "UTF-8"),
    ({"sequence": 1}, [ROOT, VALID, (7, 7, 1, -1, b"t", b"", b"", 5)], "namespace 7 was not defined"),
    ({"sequence": 1}, [ROOT, VALID, (22, b"")], "unknown kind 22"),
    ({"sequence": 1}, [ROOT, VALID, (0, b"")], "unknown kind 0"),
    ({"flags": BEGIN}, [ROOT, (15, 1, 0)], "kind 15 in the first frame"),
    ({"sequence": 1}, [ROOT, VALID, (9, 1, 0, 0, 0, -1, b"a/+", b"", b"")], "topic name"),
    ({"sequence": 1}, [ROOT, VALID, (9, 1, 0, 0, 0, -1, b"", b"\x01", b"")], "malformed properties"),
    ({"sequence": 1}, [ROOT, VALID, (9, 1, 0, 0, 0, -1, b"t", b"\x23\0\1", b"")], "property of one connection"),
    ({"sequence": 1}, [ROOT, VALID, (9, 1, 0, 1, 0, -1, b"\4amq", b"\0\0", b"")], "invalid address"),
    ({"sequence": 1}, [ROOT, VALID, (9, 1, 0, 1, 0, -1, b"\0q", b"\0\1", b"")], "malformed properties"),
    ({"sequence": 1}, [ROOT, VALID, (9, 1, 0, 4, 0, -1, b"t", b"", b"")], "kind 9"),
    ({"sequence": 1}, [ROOT, VALID, (10, 1, 4, 1, 0, 0, 1, 0, b"")], "kind 10"),
    ({"sequence": 1}, [ROOT, VALID, (10, 1, 0, 1, 0, 0, 0, 0, b"")], "kind 10"),
    ({"sequence": 1}, [ROOT, VALID, (10, 1, 2, 1, 0, 0, 1, 0, b"\xff")], "UTF-8"),
    ({"sequence": 1}, [ROOT, VALID, (16, 1, 1, 0, 0, bytes(48))], "kind 16"),
    ({"sequence": 1}, [ROOT, VALID, (20, 1, 0, b"why", 0)], "kind 20"),
    ({"sequence": 1}, [ROOT, VALID, (20, 1, 0x80, b"\xff", 0)], "UTF-8"),
], ids=str)
def test_it_is_refused_and_has_no_effect(header: dict[str, int], content: list[tuple[object, ...]], what: str) -> None:
    _, b, wire = pair()
    session = b.session(b"s", b"#")
    with pytest.raises(ProtocolError, match=what):
        wire.inbox.apply(encode({**HEADER, "records": len(content), **header}, content))
    assert session.queued == 0 and wire.inbox.position == 0
    session.clear()


@pytest.mark.parametrize("sequence", [1, 2, 1 << 63])
def test_nobody_has_what_was_never_sent(sequence: int) -> None:
    _, _, wire = pair()
    with pytest.raises(ProtocolError):
        wire.outbox.acknowledged(sequence)
    with pytest.raises(ProtocolError):
        wire.outbox.attach(wire.frames.append, 2, sequence)
    assert wire.outbox.attached


# ---------------------------------------------------------------- messages


def test_a_message_is_delivered_whole() -> None:
    a, b, wire = pair()
    session = b.session(b"s", b"#")
    properties = b"\x03\x00\x01t"
    a.hub.publish_message(b"t/\xc3\xa4", b"x" * 10_000, 2, False, properties, START_MS + 7000)
    wire.settle()
    assert queued(session) == [(b"t/\xc3\xa4", b"x" * 10_000, 2, properties, START_MS + 7000)]
    session.clear()


def test_what_is_left_of_its_time_goes_with_it() -> None:
    """The clocks of two nodes have nothing in common."""
    a, b, wire = pair()
    b.now_ms = 50 * START_MS
    b.turn()
    session = b.session(b"s", b"#")
    wire.lose()
    a.publish(b"t/a", b"short", expires_at=START_MS + 3000)
    a.publish(b"t/a", b"long", expires_at=START_MS + 60_000)
    a.turn()
    a.now_ms += 5000
    a.turn()
    wire.dial()
    wire.idle()
    wire.deliver()
    assert [(payload, expires_at - b.now_ms) for _, payload, _, _, expires_at in queued(session)] == [(b"long", 55_000)]
    assert b.hub.counters()["dropped_expired"] == 1
    session.clear()


def test_a_message_of_a_peer_goes_to_sessions_only() -> None:
    from fluxmq._core.pubsub.share_group import ShareGroup

    a, b, wire = pair()
    b.to("a", b"#")
    b.to("c", b"#")
    member = b.session(b"member")
    group = ShareGroup(b"g", b"t/#")
    group.join(member, 1, 0)
    b.hub.add_group(group)
    a.hub.publish_message(b"t/a", b"x", 1, True)
    wire.settle()
    b.turn()
    assert member.queued == 0 and b.hub.retained.count == 0 and a.hub.retained.count == 1
    assert b.outboxes["a"].unacknowledged_bytes == b.outboxes["c"].unacknowledged_bytes == 0
    b.hub.publish_message(b"t/a", b"x", 1)
    assert member.queued == 1
    b.hub.remove_group(group)
    group.leave(member)
    member.clear()


# ---------------------------------------------------------------- bounds


def test_beyond_the_window_qos_0_is_dropped_and_counted() -> None:
    a, b, wire = pair(10_000)
    for _ in range(20):
        a.publish(b"t/a", bytes(1000), 0)
        a.turn()
        wire.idle()
    assert wire.outbox.dropped == 10 and a.hub.counters()["dropped_peer_full"] == 10
    a.publish(b"t/a", b"taken", 1)
    a.publish(b"t/a", b"dropped", 0)
    a.turn()
    wire.deliver()
    wire.outbox.acknowledged(b.applied[-1][1])
    a.publish(b"t/a", b"taken", 0)
    assert wire.outbox.dropped == 11


def test_acknowledged_frames_leave_nothing() -> None:
    a, _, wire = pair()
    b_applied = wire.target.applied
    for _ in range(2000):
        a.publish(b"t/a", b"x" * 100)
        wire.settle()
        wire.outbox.acknowledged(b_applied[-1][1])
    assert wire.outbox.unacknowledged_bytes == 0 and wire.outbox.unacknowledged() == []
    assert wire.outbox.acknowledged_upto == wire.outbox.newest_sequence == 2000


# ---------------------------------------------------------------- the journal


@pytest.fixture
def held_back() -> Iterator[tuple[Ops, Event]]:
    """A disk whose syncs wait while an event is not set."""
    ops, event = Ops(), Event()
    event.set()
    ops.fdatasync = lambda fd: event.wait(30) and None
    yield ops, event
    event.set()


def test_it_is_acknowledged_when_the_receivers_journal_has_it(tmp_path: Path, held_back: tuple[Ops, Event]) -> None:
    ops, event = held_back
    a = PeerNode("a", 1)
    with writing(tmp_path, ops=ops) as journal:
        event.clear()
        b = PeerNode("b", 2, journal)
        a.to("b", b"#")
        wire = Wire(a, b).dial()
        wire.deliver()
        durable, volatile = b.session(b"d", b"durable", number=1), b.session(b"v", b"volatile")
        for number, topic in enumerate((b"durable", b"volatile", b"durable", b"nobody"), 1):
            a.publish(topic, b"", 1, number)
            wire.settle()
        assert (durable.queued, volatile.queued, wire.inbox.position) == (2, 1, 4)
        assert b.applied == [("a", 0)] and wire.inbox.committed == 0      # frame 2 waits for its elder
        assert b.hub.positions == {"a": (1, 3)}
        event.set()
        while wire.inbox.committed < 4:
            wait_durable(journal, journal.gathering - 1)
            b.turn()
        assert b.applied[-1] == ("a", 4)
        wire.outbox.acknowledged(4)
        a.turn()
        assert a.outcomes == dict.fromkeys(range(1, 5))
        for session in (durable, volatile):
            session.clear()
        wait_durable(journal, journal.gathering - 1)
        del b, wire
        gc.collect()


# ---------------------------------------------------------------- a node that has died


def adopted(node: PeerNode, name: bytes, life: int, filter_: bytes = b"t/#") -> MovingSession:
    """A session that was adopted from a life of a node, and takes nothing of any source yet."""
    session = node.session(name, filter_)
    session.keep_subscription(filter_, 2, 0)
    return MovingSession(session, False, [life])


def texts(moving: MovingSession) -> list[bytes]:
    return [payload for _, payload, *_ in queued(moving.session)]


def clear(node: PeerNode, *movings: MovingSession) -> None:
    for moving in movings:
        moving.restore()
        node.hub.unsubscribe(moving.session, b"t/#")
        moving.session.clear()


def test_what_a_parked_stream_keeps_goes_to_the_sessions_of_that_life() -> None:
    a, _, wire = pair()
    c = PeerNode("c", 3)
    a.to("c", b"nothing")
    other = Wire(a, c).dial()
    other.deliver()
    other.idle()
    theirs, strange, ours = adopted(c, b"s", 7), adopted(c, b"x", 8), adopted(a, b"o", 7)
    a.publish(b"t/a", b"sent", 1, number=1)
    a.publish(b"t/a", b"sent, 0", 0)
    a.turn()
    wire.idle()
    a.publish(b"t/a", b"gathered", 2, number=2)
    wire.outbox.interest(b"/", b"t/#", b"", 1)
    wire.outbox.park()
    a.hub.when_gathered(lambda: a.outcomes.update({9: None}), wire.outbox.interest_line)
    assert wire.outbox.parked and a.outcomes == {9: None}        # nobody waits for interest
    a.publish(b"t/b", b"later", 1, number=3)
    a.publish(b"t/b", b"later, 0", 0)
    a.publish(b"t/b", b"expired", 1, expires_at=START_MS + 1)
    a.publish(b"t/b", b"expires", 1, expires_at=START_MS + 60_000)
    a.turn()
    assert wire.outbox.dropped == 0
    a.hub.set_clock(1_700_000_000_000, START_MS + 1000)
    since = a.hub.commits.mark
    wire.outbox.direct(7, [other.outbox], True)
    upto = wire.outbox.cut() - 1
    a.hub.when_durable(lambda: wire.outbox.line.commit(upto), since)
    a.turn()
    assert wire.outbox.unacknowledged() == [] and a.outcomes == {9: None}
    other.settle()
    other.outbox.acknowledged(other.inbox.committed)
    a.turn()                                    # the call
    a.turn()                                    # what the call has committed
    wanted = [b"sent", b"gathered", b"later", b"expires"]
    assert texts(theirs) == texts(ours) == wanted and texts(strange) == []
    assert a.outcomes == {9: None, 1: None, 2: None, 3: None}
    assert a.hub.when_durable(lambda: None, 0)          # nothing is left undecided
    clear(c, theirs, strange)
    clear(a, ours)
    a.hub.targets.remove_peer(wire.outbox)
    a.hub.targets.remove_peer(other.outbox)


def test_what_was_on_its_way_to_an_adopter_goes_on_as_of_both_lives() -> None:
    """The adopter has died, too: it had sessions of its own, and adopted ones."""
    a, _, wire = pair()
    c = PeerNode("c", 3)
    a.to("c", b"t/#")
    lost = Wire(a, c).dial()
    lost.deliver()
    lost.idle()
    a.publish(b"t/a", b"1", 1)
    wire.outbox.park()
    wire.outbox.direct(7, [lost.outbox], False)
    a.hub.targets.remove_peer(wire.outbox)
    a.publish(b"t/a", b"2", 1)
    of_c, of_b = adopted(a, b"c", 3), adopted(a, b"b", 7)
    lost.outbox.park()
    lost.outbox.direct(3, [], True)
    assert texts(of_c) == [b"1", b"2"] and texts(of_b) == [b"1"]
    clear(a, of_c, of_b)
    a.hub.targets.remove_peer(lost.outbox)


def test_a_parked_stream_pauses_its_publishers_and_gives_up() -> None:
    a, _, wire = pair(window_bytes=1000)
    wire.outbox.park()
    for number in range(20):
        a.publish(b"t/a", b"x" * 100, 1, number=number + 1)
    assert wire.outbox.unacknowledged_bytes > 1000
    wire.outbox.give_up_before(wire.outbox.cut(), "nobody has adopted it")
    a.turn()
    assert a.outcomes == {number + 1: "nobody has adopted it" for number in range(20)}
    session = adopted(a, b"s", 7)
    wire.outbox.direct(7, [], True)
    assert len(texts(session)) == 20 and wire.outbox.unacknowledged_bytes == 0
    clear(a, session)
    a.hub.targets.remove_peer(wire.outbox)


def test_a_parked_stream_uses_no_number_of_the_next_one() -> None:
    a, _, wire = pair()
    a.publish(b"t/a", b"1", 1)
    a.turn()
    wire.idle()
    wire.outbox.park()
    again = PeerOutbox(a.hub, "b", 1)
    for _ in range(5):
        again.control(b"x")
        again.cut()
    a.publish(b"t/a", b"2", 1)
    wire.outbox.direct(7, [], False)
    assert PeerOutbox(a.hub, "b", 1).newest_sequence == again.newest_sequence == 6
    again.abandon("")
    a.hub.targets.remove_peer(wire.outbox)
