"""Streams by example: where a reader begins, where its group goes on, retention that overtakes both."""
from __future__ import annotations

import pytest

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.testing.probes import ReaderProbe, pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueSpec, Retention

START_MS = 1_700_000_000_000


class Stream:
    """A stream of `count` messages in memory, one per second."""

    def __init__(self, count: int = 10, **retention: float) -> None:
        self.hub = Hub(None)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.clock = QueueClock(self.manager)
        self.time(0)
        self.queue = self.manager.declare(QueueSpec(
            name="s", type="stream", retention=Retention(**retention)))[0]  # type: ignore[arg-type]
        self.state = self.manager.queues[b"/", b"s"]
        self.log: Log = self.queue.logs[0]
        for second in range(count):
            self.time(second)
            self.put()

    def time(self, second: float) -> None:
        self.hub.set_clock(START_MS + int(second * 1000), int(second * 1000))

    def put(self, **asked: int) -> None:
        assert self.queue.append_message(b"s/t", b"%d" % self.log.next, **asked) == 0  # type: ignore[arg-type]

    def position(self, text: str, group: Group | None = None) -> int:
        return self.manager.position(self.queue, self.log, text, group)

    def reader(self, position: str, room: int = 100, keeping: bool = True, group: Group | None = None,
               manual: bool = False) -> ReaderProbe:
        probe = ReaderProbe(self.log, self.position(position, group), room=room, keeping=keeping, group=group,
                            manual=manual)
        self.queue.add_reader(probe)
        return probe

    def pump(self, probe: ReaderProbe) -> list[int]:
        """What it got by this turn."""
        before = len(probe.seen)
        self.queue.notify()
        pump_queues(self.hub)
        return probe.seen[before:]


@pytest.mark.parametrize(("text", "offset"), [
    ("first", 0), ("last", 9), ("next", 10), ("", 10), ("4", 4), ("offset=4", 4), ("400", 10), ("-3", 7), ("-400", 0),
    (f"timestamp={START_MS + 3000}", 3), (f"timestamp={START_MS + 3001}", 4), ("timestamp=0", 0),
    (f"timestamp={START_MS + 99_000}", 10), (f"timestamp={'9' * 30}", 10),
    ("timestamp=2023-11-14T22:13:25Z", 5), ("timestamp=2023-11-14T22:13:25", 5),
    ("timestamp=2023-11-15T00:13:25.001+02:00", 6), ("resume", 10),
])
def test_where_a_reader_begins(text: str, offset: int) -> None:
    stream = Stream()
    assert stream.position(text) == offset
    assert stream.pump(stream.reader(text)) == list(range(offset, 10))


def test_a_time_is_found_although_the_clock_was_set_back() -> None:
    """Whoever asks for what came since then gets some that is older, and nothing of it is left out."""
    stream = Stream(4)
    stream.time(1)
    stream.put()
    assert stream.position(f"timestamp={START_MS + 2000}") == 2
    assert stream.position(f"timestamp={START_MS + 3000}") == 3
    assert stream.position(f"timestamp={START_MS + 3001}") == 5


@pytest.mark.parametrize("text", ["nowhere", "--3", "-", "offset=", "offset=-1", "timestamp=yesterday", "1.5", "٣"])
def test_a_position_that_is_none(text: str) -> None:
    with pytest.raises(QueueRefused):
        Stream().position(text)


@pytest.mark.parametrize("text", ["first", "last", "next", "0", "-5", "timestamp=0", "resume"])
def test_an_empty_stream_begins_with_what_comes(text: str) -> None:
    stream = Stream(0)
    probe = stream.reader(text)
    assert stream.pump(probe) == []
    stream.put()
    assert stream.pump(probe) == [0]


def test_a_stream_that_forgot_its_beginning() -> None:
    stream = Stream(10, max_length_messages=4)
    stream.clock.tick()
    assert (stream.log.first, stream.log.next) == (6, 10)
    assert [stream.position(text) for text in ("first", "0", "-100", "timestamp=0", "last", "8")] == [6, 6, 6, 6, 9, 8]


def test_a_reader_takes_what_it_has_room_for() -> None:
    stream = Stream()
    slow, quick = stream.reader("first", room=2), stream.reader("first")
    assert (stream.pump(slow), quick.seen) == ([0, 1], list(range(10)))
    slow.acknowledge_at(1)
    assert slow.acknowledged == 0                   # 0 is still on its way
    assert stream.pump(slow) == [2]
    slow.acknowledge_at(0)
    assert slow.acknowledged == 2 and slow.outstanding == [2]
    assert stream.pump(slow) == [3]


def test_who_acknowledges_nothing_needs_none() -> None:
    stream = Stream()
    probe = stream.reader("5", room=3, keeping=False)
    assert stream.pump(probe) == [5, 6, 7] and probe.acknowledged == probe.next == 8
    assert stream.pump(probe) == [8, 9] and probe.acknowledged == 10


def test_a_group_goes_on_where_it_was_acknowledged() -> None:
    stream = Stream()
    group = stream.manager.group(stream.queue, b"g")
    probe = stream.reader("first", room=4, group=group)
    probe.commit(0)
    assert stream.pump(probe) == [0, 1, 2, 3]
    for offset in (0, 1, 3):
        probe.acknowledge_at(offset)
    stream.clock.tick()
    assert group.cursors[0].next == 2
    probe.hang_up()
    stream.queue.remove_reader(probe)
    assert stream.position("resume", group) == stream.position("", group) == 2
    assert stream.pump(stream.reader("", group=group)) == list(range(2, 10))


def test_between_two_commits_there_is_the_interval() -> None:
    """The first one comes at once, however long nothing was read; and what was read in between comes with the next."""
    stream = Stream()
    stream.clock = QueueClock(stream.manager, auto_commit_ms=5000)
    groups = [stream.manager.group(stream.queue, name) for name in (b"one", b"two")]
    probes = [stream.reader("first", group=group) for group in groups]
    for probe in probes:
        probe.commit(0)
    stream.pump(probes[0])
    assert [probe.seen for probe in probes] == [list(range(10))] * 2

    def positions(second: float) -> list[int]:
        pump_queues(stream.hub)         # with what was acknowledged the queue had its turn
        stream.time(second)
        stream.clock.tick()
        return [group.cursors[0].next for group in groups]

    probes[0].acknowledge_at(0)
    probes[1].acknowledge_at(0)
    assert positions(100) == [1, 1]
    probes[0].acknowledge_at(1)
    assert positions(100.25) == [1, 1]
    probes[1].acknowledge_at(1)
    probes[0].acknowledge_at(2)
    assert positions(104.75) == [1, 1]
    assert positions(105) == [3, 2]
    assert positions(111) == [3, 2]
    probes[1].acknowledge_at(2)
    assert positions(111.25) == [3, 3]


def test_a_manual_group_goes_on_where_it_committed() -> None:
    stream = Stream()
    group = stream.manager.group(stream.queue, b"g")
    probe = stream.reader("first", group=group, manual=True)
    stream.pump(probe)
    for offset in list(probe.outstanding):
        probe.acknowledge_at(offset)
    stream.clock.tick()
    assert stream.position("resume", group) == 10       # where the group was made, nothing was committed
    probe.commit(4)
    assert stream.position("resume", group) == 4
    with pytest.raises(UsageError):
        stream.reader("first").commit(3)


def test_what_expired_is_passed_over() -> None:
    stream = Stream(3)
    stream.put(expires_at=START_MS + 5000)
    stream.put()
    group = stream.manager.group(stream.queue, b"g")
    stream.time(6)
    probe = stream.reader("first", group=group)
    assert stream.pump(probe) == [0, 1, 2, 4]
    for offset in list(probe.outstanding):
        probe.acknowledge_at(offset)
    assert probe.acknowledged == 5


@pytest.mark.parametrize("retention", [{"max_length_messages": 5}, {"max_age": 5.5}])
def test_retention_overtakes_a_reader(retention: dict[str, float]) -> None:
    """It goes on with the oldest kept, whatever it had in hand; and so does its group."""
    stream = Stream(10, **retention)
    group = stream.manager.group(stream.queue, b"g")
    probe = stream.reader("first", room=2, group=group)
    probe.commit(0)
    assert stream.pump(probe) == [0, 1]
    stream.clock.tick()
    first = stream.log.first
    assert 3 < first < 8
    probe.acknowledge_at(0)
    assert stream.pump(probe) == [first]
    probe.acknowledge_at(1)
    assert stream.pump(probe) == [first + 1]
    probe.acknowledge_at(first)
    stream.clock.tick()
    assert stream.position("resume", group) == first + 1
    for second in range(30, 60):
        stream.time(second)
        stream.put()
    assert stream.pump(probe) == [first + 2]
    stream.clock.tick()
    assert stream.log.first > first + 2
    assert stream.position("resume", group) == stream.log.first
    probe.acknowledge_at(first + 1)
    assert stream.pump(probe) == [stream.log.first]


def test_a_stream_without_caps_forgets_nothing() -> None:
    stream = Stream(10)
    stream.time(10_000_000)
    stream.clock.tick()
    assert stream.log.first == 0


def test_a_cap_in_bytes_is_kept() -> None:
    stream = Stream(100, max_length_bytes=2000)
    stream.clock.tick()
    assert 0 < stream.log.first < 100 and stream.log.kept_bytes <= 2000
