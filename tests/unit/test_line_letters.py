"""A message that dies in a queue of one line, for a target in another: it stays in its own line, as a letter, until the
target's line has it."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kit.journals import wait_durable, writing
from kit.peers import Wire
from unit.lines_world import GROUP, QUEUES, Led, appended, kinds

from fluxmq._core.amqp091.properties import encode_properties
from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.envelope.envelope import FORMAT_AMQP091
from fluxmq._core.queue import by_offset
from fluxmq.engine.queues.amqp.dead_letters import DeadLetterer
from fluxmq.engine.queues.recovery.snapshot import snapshot
from fluxmq.engine.queues.replay import Replay
from fluxmq.model.queue_arguments import Declared, read_arguments, spec_of


def rejected(node: Led) -> None:
    node.consume("rejects")
    node.publish("rejects", b"x")
    node.commit("G")
    node.reject("rejects")


def returned(node: Led) -> None:
    node.consume("rejects")
    node.publish("rejects", b"x")
    node.commit("G")
    state = node.state("rejects")
    for _ in range(2):
        assert by_offset.give_back_at(state.groups[GROUP, b""], state.queue.logs[0].number, 0, 0, True)
        node.turn()


def expired(node: Led) -> None:
    node.publish("rejects", b"x", expires_at=node.hub.steady_ms + 100)
    node.commit("G")
    node.goes_on(node.now_ms + 1000)
    node.consume("rejects")


def dropped(node: Led) -> None:
    for payload in (b"x", b"y", b"z"):
        node.publish("drops", payload)


@pytest.mark.parametrize("dies", [rejected, returned, expired, dropped])
def test_what_dies_is_a_letter_in_its_line_until_the_target_has_it(dies: Callable[[Led], None]) -> None:
    node = Led("G", "H")
    dies(node)
    batch = node.commit("G")
    [letters] = node.under_way()
    assert letters.queue.line is node.lines["G"].line and letters.queue.waiting == 1
    assert RecordKind.SETTLE in kinds(batch) or RecordKind.TRIM in kinds(batch)
    assert len(appended(batch, letters.queue)) == 1, "it is in the batch that ends the message"
    node.turn()
    assert node.payloads("dead-in-h") == [] or letters.queue.waiting == 1
    node.commit("G")                    # that the letter was claimed
    node.turn()
    assert node.payloads("dead-in-h") == [b"x"]
    assert node.letters() == 1, "the target's line has not committed it"
    node.commit("G")
    assert node.letters() == 1
    there = node.commit("H")
    assert kinds(there) == [RecordKind.APPEND, RecordKind.QUEUE_ORIGIN]
    node.settle_down()
    assert node.letters() == 0 and node.payloads("dead-in-h") == [b"x"]
    assert kinds(node.records["H"][-1]) == [RecordKind.QUEUE_ORIGIN], "the letter does not come again"
    assert len(node.hub.origins) == 0 and node.hub.ledger.in_lines == {}


def test_what_dies_in_the_line_of_its_target_is_in_one_batch() -> None:
    node = Led("G", "H")
    node.consume("stays")
    node.publish("stays", b"x")
    node.commit("G")
    before = len(node.records["G"])
    node.reject("stays")
    node.settle_down()
    batches = node.records["G"][before:]
    assert node.payloads("dead-in-g") == [b"x"] and node.under_way() == []
    [batch] = [batch for batch in batches if RecordKind.SETTLE in kinds(batch)]
    assert appended(batch, node.state("dead-in-g").queue) == [b"x"]


def test_a_letter_is_not_sent_before_its_line_has_it() -> None:
    """Who led when the message died may not lead any more, and then it has not died."""
    node = Led("G", "H")
    rejected(node)
    for _ in range(5):
        node.commit("H")
    assert node.letters() == 1 and node.payloads("dead-in-h") == []
    node.give_up("G")
    node.commit("H")
    assert node.payloads("dead-in-h") == [] and node.under_way() == []


def test_the_message_lives_if_its_death_was_not_committed() -> None:
    node = Led("G", "H")
    rejected(node)
    node.turn()
    node.give_up("G")
    node.lines["G"].lead()
    assert node.payloads("rejects") == [b"x"] and node.state("rejects").queue.waiting == 1
    node.settle_down()
    assert node.letters() == 0 and node.payloads("dead-in-h") == []


def test_a_letter_that_the_targets_line_gives_up_is_sent_again() -> None:
    node = Led("G", "H")
    rejected(node)
    for _ in range(3):
        node.commit("G")
    assert node.payloads("dead-in-h") == [b"x"]
    node.give_up("H")
    node.commit("G")
    assert node.letters() == 1
    node.lines["H"].lead()
    assert node.payloads("dead-in-h") == []
    node.settle_down()
    assert node.letters() == 1, "it waits"
    node.goes_on(node.now_ms + 1500)
    node.settle_down()
    assert node.letters() == 0 and node.payloads("dead-in-h") == [b"x"]


def test_a_letter_of_a_deleted_queue_is_dropped() -> None:
    node, told = Led("G", "H"), list[str]()
    node.manager.log = lambda level, cause, what, fields: told.append(what)
    rejected(node)
    node.manager.delete((b"/", b"dead-in-h"))
    node.settle_down()
    assert node.letters() == 0 and "a dead letter is dropped: its queue was deleted" in told


@pytest.mark.parametrize("has", [False, True])
def test_the_next_leader_goes_on_under_the_same_name(has: bool) -> None:
    """has: the target has committed the letter, and the end of the letter is not committed."""
    former, new = Led("G", "H"), Led(name="b", epoch=2)
    former.commit("H")
    rejected(former)
    former.commit("G")
    former.commit("G")
    if has:
        former.commit("H")
        former.turn()       # settles it
    for written in former.raw["G"]:
        new.lines["G"].apply(written)
    for written in former.raw["H"]:
        new.lines["H"].apply(written)
    assert new.under_way() == [], "a copy is no queue of the node"
    former.give_up("G")
    former.give_up("H")
    assert former.under_way() == []
    former.settle_down()
    new.lines["H"].lead()
    kept = new.lines["G"].lead()
    assert kept == [], "what the former leader's letters hold is for nobody else"
    [letters] = new.under_way()
    assert letters.queue.waiting == 1
    new.settle_down()
    assert letters.queue.waiting == 0 and new.payloads("dead-in-h") == [b"x"]
    assert len(new.hub.origins) == 1, "the former leader's may still come: it is known"


@pytest.mark.parametrize("learned", [True, False])
def test_the_next_leader_may_not_know_the_target_yet(learned: bool) -> None:
    """A definition is heard of at different times. After a minute it is one that was deleted."""
    former, new = Led("G", "H"), Led(name="b", epoch=2)
    told = list[str]()
    new.manager.log = lambda level, cause, what, fields: told.append(what)
    rejected(former)
    former.commit("G")
    for written in former.raw["G"]:
        new.lines["G"].apply(written)
    new.lines["G"].lead()
    for _ in range(3):
        new.goes_on(new.now_ms + 1500)
        new.settle_down()
    assert new.letters() == 1 and told == []
    if learned:
        for written in former.raw["H"]:
            new.lines["H"].apply(written)
        new.lines["H"].lead()
    for _ in range(2):
        new.goes_on(new.now_ms + 60_000)
        new.settle_down()
    assert new.letters() == 0
    if learned:
        assert new.payloads("dead-in-h") == [b"x"]
    else:
        assert told == ["a dead letter is dropped: its queue was deleted"]


def test_a_new_node_has_the_letters_of_the_line() -> None:
    node, new = Led("G", "H"), Led("H", name="b", epoch=2)
    rejected(node)
    node.commit("G")
    for state in node.manager.queues.values():
        if state.queue.line is node.lines["G"].line:
            new.lines["G"].restore(snapshot(node.manager, state))
    new.lines["G"].lead()
    new.settle_down()
    assert new.letters() == 0 and new.payloads("dead-in-h") == [b"x"]


def test_no_number_of_leaders_drops_a_letter() -> None:
    """Each change is a delivery."""
    node = Led("G", "H")
    rejected(node)
    node.manager.delete((b"/", b"dead-in-h"))
    node.manager.make_relay(QUEUES["dead-in-h"][1], None, QUEUES["dead-in-h"][2])       # which nobody has
    for _ in range(15):
        for _ in range(4):
            node.commit("G")
        node.goes_on(node.now_ms + 1500)
        node.give_up("G")
        node.lines["G"].lead()
    assert node.letters() == 1


# ---------------------------------------------------------------- the journal, and other nodes


def test_a_letter_for_a_queue_of_the_journal(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        node = Led("G", journal=journal)
        node.manager.declare(QUEUES["dead-in-h"][1])
        node.defined.identify((b"/", b"dead-in-h"), QUEUES["dead-in-h"][2])
        rejected(node)
        node.commit("G")
        node.commit("G")
        node.turn(journal=False)
        assert node.payloads("dead-in-h") == [b"x"] and node.letters() == 1
        assert len(node.hub.origins) == 1
        for _ in range(2):
            node.turn()
            wait_durable(journal, journal.gathering - 1)
        node.settle_down()
        assert node.letters() == 0 and len(node.hub.origins) == 0


def test_a_letter_of_the_journal_for_a_line(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        node = Led("H", journal=journal)
        node.manager.declare(QUEUES["rejects"][1])
        node.consume("rejects")
        node.publish("rejects", b"x")
        node.turn()
        node.reject("rejects")
        for _ in range(3):
            node.turn()
            wait_durable(journal, journal.gathering - 1)
        node.turn()
        [letters] = node.under_way()
        assert letters.queue.line.number == 0 and letters.queue.waiting == 1
        assert node.payloads("dead-in-h") == [b"x"]
        node.settle_down()
        assert node.letters() == 0


def test_a_letter_for_a_line_that_another_node_leads() -> None:
    source, target = Led("G"), Led("H", name="b", epoch=2)
    source.life_of = target.life_of = lambda name: 2 if name == "b" else 1
    wires = [Wire(source, target).dial(), Wire(target, source).dial()]
    source.listens_to("b")
    target.listens_to("a")
    source.relays_of("H")
    source.hears("H", "b")
    rejected(source)
    for _ in range(4):
        source.commit("G")
        target.turn()
        for wire in wires:
            wire.idle()
            wire.deliver()
    assert target.payloads("dead-in-h") == [b"x"] and source.letters() == 1
    for _ in range(6):
        source.commit("G")
        target.commit("H")
        for wire in wires:
            wire.idle()
            wire.deliver()
    assert source.letters() == 0 and target.payloads("dead-in-h") == [b"x"] and len(target.hub.origins) == 0


def amqp(node: Led) -> None:
    """A queue of line G whose dead letters go by an exchange to queues of both lines; it has room for one message."""
    dead = DeadLetterer(node.manager, lambda vhost, exchange, key, headers: [
        node.state("dead-in-g").queue, node.state("dead-in-h").queue])
    node.manager.amqp_dead_letters = dead
    declared = Declared(b"/", b"amqp", durable=True, arguments={
        "x-dead-letter-exchange": "both", "x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    node.manager.make(spec_of(declared, read_arguments(declared)), declared, node.lines["G"].line)
    node.consume("amqp")
    node.commit("G")


def publish_amqp(node: Led, payload: bytes) -> int:
    return node.state("amqp").queue.append_message(b"\x00amqp", payload, properties=encode_properties({}),
                                                   format=FORMAT_AMQP091)


def test_an_exchange_has_targets_in_two_lines() -> None:
    node = Led("G", "H")
    amqp(node)
    assert publish_amqp(node, b"x") == 0
    node.commit("G")
    node.reject("amqp")
    batch = node.commit("G")
    [letters] = node.under_way()
    assert appended(batch, node.state("dead-in-g").queue) == [b"x"]
    assert len(appended(batch, letters.queue)) == 1 and RecordKind.SETTLE in kinds(batch)
    node.settle_down()
    assert node.letters() == 0
    assert node.payloads("dead-in-g") == [b"x"] and node.payloads("dead-in-h") == [b"x"]


def test_what_a_full_queue_refuses_goes_to_both_lines() -> None:
    node = Led("G", "H")
    amqp(node)
    node.state("amqp").groups[GROUP, b""].disband()
    assert publish_amqp(node, b"x") == 0
    assert publish_amqp(node, b"y") != 0
    batch = node.commit("G")
    [letters] = node.under_way()
    assert appended(batch, node.state("dead-in-g").queue) == [b"y"] and len(appended(batch, letters.queue)) == 1
    node.settle_down()
    assert node.payloads("dead-in-g") == [b"y"] and node.payloads("dead-in-h") == [b"y"] and node.letters() == 0


def test_a_replay_to_a_queue_of_another_line_is_a_letter() -> None:
    node = Led("G", "H")
    rejected(node)
    node.settle_down()
    assert node.payloads("dead-in-h") == [b"x"]
    moved = Replay(node.manager).step(node.state("rejects"), node.state("dead-in-h"), None, 10)
    assert moved.moved == 1
    batch = node.commit("H")
    letters, = [state for state in node.under_way() if state.queue.line is node.lines["H"].line]
    assert RecordKind.SETTLE in kinds(batch) and len(appended(batch, letters.queue)) == 1
    node.settle_down()
    assert node.letters() == 0 and node.payloads("dead-in-h") == []
    assert node.state("rejects").queue.waiting == 1
