"""Blocks of a stream's messages for another node."""
from __future__ import annotations

from struct import unpack_from

import pytest
from unit.test_queue_relay import Pair

from fluxmq._core.peer.feed import PeerFeed
from fluxmq._core.queue.queue import Queue
from fluxmq.model.queues import QueueSpec

pytestmark = pytest.mark.usefixtures("nothing_is_left")

Blocks = list[tuple[int, int, list[int]]]  # start, covers, offsets of the messages


def offsets(block: bytes) -> list[int]:
    """Of the messages in a block."""
    found, at = [], 0
    while at < len(block):
        size, offset = unpack_from("<I4xQ", block, at)
        found.append(offset)
        at += size
    return found


def feed(pair: Pair) -> tuple[PeerFeed, Blocks]:
    blocks: Blocks = []

    def encode(first: int, end: int, start: int, covers: int, block: bytes) -> bytes:
        blocks.append((start, covers, offsets(block)))
        return block

    made = pair.b.to("a").feeds[pair.state.queue] = PeerFeed(pair.b.to("a"), pair.state.queue, encode)
    pair.state.queue.add_feed(made)
    return made, blocks


def fill(queue: Queue, *sizes: int) -> None:
    for size in sizes:
        assert not queue.publish(b"$queue/q", bytes(size))


def test_a_block_has_as_many_messages_as_fit_and_one_at_least() -> None:
    pair = Pair(type="stream")
    made, blocks = feed(pair)
    fill(pair.state.queue, 500, 500, 5000, 500, 900)
    for number, start in enumerate((0, 2, 3, 4, 5)):
        made.ask(number + 1, 0, start, 1300)
    pair.b.turn()
    assert blocks == [(0, 2, [0, 1]), (2, 3, [2]), (3, 4, [3]), (4, 5, [4])]
    fill(pair.state.queue, 10)
    pair.b.turn()
    assert blocks[4:] == [(5, 6, [5])] and not made.end()
    pair.b.to("a").feeds.clear()
    pair.state.queue.remove_feed(made)
    pair.end()


def test_a_question_waits_for_room_in_the_window() -> None:
    pair = Pair(window_bytes=100_000, type="stream")
    made, blocks = feed(pair)
    fill(pair.state.queue, *[60_000] * 4)
    for start in range(4):
        made.ask(start + 1, 0, start, 1)
    pair.b.turn()
    assert [start for start, _, _ in blocks] == [0, 1]  # one is begun while there is room
    pair.run()
    assert [start for start, _, _ in blocks] == [0, 1, 2, 3]
    pair.b.to("a").feeds.clear()
    pair.state.queue.remove_feed(made)
    pair.end()


def test_one_turn_gives_about_a_megabyte() -> None:
    """So that clients of this node do not wait for those who read its streams from the beginning."""
    pair = Pair(type="stream")
    made, blocks = feed(pair)
    fill(pair.state.queue, *[400_000] * 6)
    for start in range(6):
        made.ask(start + 1, 0, start, 1)
    turns = []
    for _ in range(4):
        pair.b.turn()
        turns.append(len(blocks))
    assert turns == [3, 6, 6, 6] and [start for start, _, _ in blocks] == [0, 1, 2, 3, 4, 5]
    pair.b.to("a").feeds.clear()
    pair.state.queue.remove_feed(made)
    pair.end()


def test_what_a_message_has_left_does_not_depend_on_the_clock_of_its_line() -> None:
    pair = Pair()
    line = pair.b.hub.commits.open_line("group")
    line.hear(10**12, pair.b.hub.steady_ms)
    queue = pair.b.manager.declare(QueueSpec(name="s", type="stream"), line)[0]
    assert queue.append_message(b"$queue/s", b"x", expires_at=pair.b.hub.steady_ms + 5000) == 0
    line.commit(line.submit()[0])
    blocks: list[bytes] = []

    def encode(first: int, end: int, start: int, covers: int, block: bytes) -> bytes:
        blocks.append(block)
        return block

    made = PeerFeed(pair.b.to("a"), queue, encode)
    queue.add_feed(made)
    made.ask(1, 0, 0, 1300)
    pair.b.turn()
    assert [unpack_from("<q", block, 24) for block in blocks] == [(5000,)]
    queue.remove_feed(made)
    pair.end()
