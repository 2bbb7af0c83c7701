"""Groups of a queue by example: turns, exclusive and single groups, leases, what is dropped when there is no room."""
from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from kit.settling import settle_upto

from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.state import RECORD_OFFSETS_MAX, export_state, replay, restore_state
from fluxmq._core.queue.stats import queue_counts
from fluxmq._core.testing.probes import claims_of, pump_queues
from fluxmq.app.queue_text import as_groups
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.positions import NOTHING
from fluxmq.engine.queues.properties import encode_users
from fluxmq.model.queues import QueueLimits, QueueSpec, Retry

Got = list[tuple[str, int]]


class Bench:
    """One queue in memory. got: (member, offset) in the order of delivery."""

    def __init__(self, **spec: object) -> None:
        self.hub = Hub(None)
        self.hub.set_clock(1_000_000, 0)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.clock = QueueClock(self.manager)
        self.queue: Queue = self.manager.declare(QueueSpec(name="q", **spec))[0]  # type: ignore[arg-type]
        self.state = self.manager.queues[b"/", b"q"]
        self.admin = QueueAdmin(self.manager)
        self.got: Got = []

    def put(self, count: int = 1, **asked: object) -> None:
        for _ in range(count):
            assert self.queue.append_message(b"$queue/q", b"x", **asked) == 0  # type: ignore[arg-type]

    def group(self, mode: str = "shared") -> Group:
        return self.manager.group(self.queue, mode.encode(), mode=mode)

    def join(self, group: Group, name: str, room: int = 1, takes: Callable[[], bool] = lambda: True,
             lease_ms: int = 0) -> PyMember:
        def deliver(log: int, offset: int, count: int) -> bool:
            if takes():
                self.got.append((name, offset))
                return True
            return False

        member = PyMember(deliver, None, room, lease_ms)
        group.join(member)
        return member

    def pump(self) -> Got:
        pump_queues(self.hub)
        got, self.got = self.got, []
        return got

    def dead(self) -> list[dict[bytes, bytes]]:
        log, found = self.manager.queues[b"/", b"q.dlq"].queue.logs[0], []
        for offset in range(log.first, log.next):
            record = log.get(offset)
            assert record is not None
            found.append(dict(record.envelope.headers()))
        return found


def test_members_take_turns_also_when_messages_come_one_by_one() -> None:
    bench = Bench()
    group = bench.group()
    for name in "ab":
        bench.join(group, name)
    seen = []
    for offset in range(6):
        bench.put()
        (who, what), = bench.pump()
        assert what == offset
        seen.append(who)
        by_offset.settle_at(group, bench.queue.logs[0].number, offset)
        bench.pump()
    assert seen == list("ababab")


@pytest.mark.parametrize("partitions", [1, 3])
def test_who_takes_nothing_holds_up_nobody(partitions: int) -> None:
    bench = Bench(partitions=partitions)
    group = bench.group()
    bench.join(group, "says so", 5, takes=lambda: False)
    bench.join(group, "does so", 5)
    bench.put(4)
    assert len(bench.pump()) == 4


def owners(group: Group, *members: PyMember) -> list[int]:
    """Index of the owner of every partition."""
    found = group.owners()
    return [members.index(found[partition]) for partition in sorted(found)]  # type: ignore[arg-type]


def test_partitions_are_balanced_and_stay_where_they_are() -> None:
    bench = Bench(partitions=5)
    group = bench.group("exclusive")
    a = bench.join(group, "a")
    assert owners(group, a) == [0] * 5
    b = bench.join(group, "b")
    assert owners(group, a, b) == [0, 0, 0, 1, 1]
    c = bench.join(group, "c")
    assert owners(group, a, b, c) == [0, 0, 2, 1, 1]
    others = [bench.join(group, name) for name in "def"]
    assert sorted(owners(group, a, b, c, *others)) in ([0, 1, 2, 3, 4],)        # f is the hot standby
    group.leave(b)
    assert sorted(owners(group, a, c, *others)) == [0, 1, 2, 3, 4]
    for member in (c, *others):
        group.leave(member)
    assert owners(group, a) == [0] * 5
    group.leave(a)
    assert set(group.owners().values()) == {None}


def test_a_partition_changes_hands_when_the_hands_are_empty() -> None:
    """In every lane: else a message could overtake one that its former owner still has."""
    bench = Bench(partitions=2, max_priority=1)
    group = bench.group("exclusive")
    bench.join(group, "a", 100)
    for key in range(8):
        bench.put(partition_key=b"%d" % key)
    logs = bench.queue.logs
    taken = bench.pump()
    assert len(taken) == 8
    second = {offset for offset in range(logs[2].first, logs[2].next)}
    assert second
    bench.join(group, "b", 10)
    for key in range(8):
        bench.put(partition_key=b"%d" % key, priority=1)
    assert {who for who, _ in bench.pump()} == {"a"}        # of its own partition only
    for offset in second:
        by_offset.settle_at(group, logs[2].number, offset)
    assert {who for who, _ in bench.pump()} == {"b"}


def test_a_single_active_member_and_its_standby() -> None:
    bench = Bench(partitions=3)
    group = bench.group("single")
    first, _ = bench.join(group, "first", 2), bench.join(group, "second", 10)
    bench.put(6)
    assert [who for who, _ in bench.pump()] == ["first"] * 2
    group.leave(first)
    got = bench.pump()
    assert [who for who, _ in got] == ["second"] * 6
    bench.join(group, "third", 10)
    bench.put(1)
    assert [who for who, _ in bench.pump()] == ["second"]


def test_a_lease_that_is_extended_ends_later() -> None:
    bench = Bench()
    group = bench.group()
    bench.join(group, "slow", 1, lease_ms=1000)
    bench.put()
    number = bench.queue.logs[0].number
    assert bench.pump() == [("slow", 0)]
    bench.hub.set_clock(1_000_900, 900)
    assert by_offset.extend(group, number, 0, 1000)
    bench.hub.set_clock(1_001_500, 1500)
    bench.clock.tick()
    assert bench.pump() == []
    bench.hub.set_clock(1_001_901, 1901)
    bench.clock.tick()
    assert bench.pump() == [("slow", 0)]
    assert by_offset.claim_of(group, number, 0) == (2, group.members[0])
    assert by_offset.extend(group, number, 0, 0)
    bench.hub.set_clock(9_000_000, 9_000_000)
    bench.clock.tick()
    assert bench.pump() == []                               # for as long as its member stays


def test_what_a_member_did_not_take_was_not_delivered() -> None:
    bench = Bench()
    group = bench.group()
    willing = False
    bench.join(group, "a", 1, takes=lambda: willing, lease_ms=1000)
    bench.put()
    assert bench.pump() == []
    number = bench.queue.logs[0].number
    assert claims_of(group) == {(number, 0): ("ready", 0, 0, None)}
    willing = True
    bench.queue.notify()
    assert bench.pump() == [("a", 0)]
    assert claims_of(group)[number, 0][:2] == ("held", 1)


def test_a_seek_past_messages_in_hand_is_refused() -> None:
    bench = Bench()
    group = bench.group()
    bench.join(group, "a", 1)
    bench.put(3)
    bench.pump()
    number = bench.queue.logs[0].number
    with pytest.raises(UsageError):
        by_offset.seek(group, number, 2)
    by_offset.give_back_at(group, number, 0)
    by_offset.seek(group, number, 2)
    assert bench.pump() == [("a", 2)]
    with pytest.raises(UsageError):
        by_offset.seek(group, 4711, 2)


def test_after_a_purge_the_slow_one_holds_up_nothing() -> None:
    bench = Bench()
    group = bench.group()
    bench.join(group, "slow", 1)
    bench.put(3)
    bench.pump()
    assert bench.manager.purge(bench.state) == 3
    bench.join(group, "quick", 1)
    bench.put(1)
    assert bench.pump() == [("quick", 3)]
    number = bench.queue.logs[0].number
    assert by_offset.settle_at(group, number, 3)
    bench.pump()
    assert bench.queue.depth == 0
    assert by_offset.settle_at(group, number, 0)


# ── no room ──────────────────────────────────────────────────────────────────────────────────────────────


def test_drop_head_makes_as_much_room_as_is_needed() -> None:
    bench = Bench(overflow="drop-head", limits=QueueLimits(max_bytes=4000))
    for size in (500, 500, 500, 500, 3000):
        bench.queue.append_message(b"t", b"x" * size)
    log = bench.queue.logs[0]
    assert log.kept_bytes <= 4000 and log.first == 3
    assert [told[b"x-death-reason"] for told in bench.dead()] == [b"maxlen"] * 3
    assert bench.queue.append_message(b"t", b"x" * 5000) == 0x97        # it fits in no empty queue either


def test_drop_head_loses_no_dead_letter_that_is_on_disk_only() -> None:
    bench = Bench(overflow="drop-head", limits=QueueLimits(max_depth=3))
    bench.put(3)
    log = bench.queue.logs[0]
    blocks = [block[7] for block in Export(log, 1 << 60)]
    log.exported()
    log.evict(1 << 30)
    asked: list[Queue] = []
    bench.manager.disk.read_for = asked.append  # type: ignore[method-assign]
    bench.put(1)
    assert asked == [bench.queue] and log.wanted == 0
    assert bench.queue.depth == 4 and (b"/", b"q.dlq") not in bench.manager.queues
    log.load(0, 3, blocks)
    bench.put(1)
    assert log.wanted == NOTHING and bench.queue.depth == 3
    assert [told[b"x-death-message-id"] for told in bench.dead()] == [b"0:0", b"0:1"]


def test_what_is_settled_gives_way_without_a_dead_letter() -> None:
    bench = Bench(overflow="drop-head", limits=QueueLimits(max_depth=3))
    group = bench.group()
    bench.join(group, "a", 3)
    bench.put(3)
    bench.pump()
    number = bench.queue.logs[0].number
    by_offset.settle_at(group, number, 0)
    bench.put(1)                            # in the turn in which it was settled
    assert bench.queue.waiting == 3 and (b"/", b"q.dlq") not in bench.manager.queues
    by_offset.settle_at(group, number, 2)              # behind one that is in hand
    bench.put(1)
    assert bench.queue.waiting == 3 and (b"/", b"q.dlq") not in bench.manager.queues
    bench.put(1)
    assert [told[b"x-death-message-id"] for told in bench.dead()] == [b"0:1"]


def test_room_that_was_made_in_this_turn_is_room() -> None:
    bench = Bench(limits=QueueLimits(max_depth=1))
    group = bench.group()
    bench.join(group, "a")
    bench.put(1)
    bench.pump()
    assert bench.queue.append_message(b"t", b"x") == 0x97
    by_offset.settle_at(group, bench.queue.logs[0].number, 0)
    bench.put(1)


# ── dead letters, delays ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limits", [QueueLimits(max_depth=1), QueueLimits(max_message_size=1)])
def test_a_dead_letter_is_never_refused(limits: QueueLimits) -> None:
    """Somebody gave the queue of dead letters a limit: that is for publishers."""
    bench = Bench()
    bench.manager.declare(QueueSpec(name="q.dlq", limits=limits))
    group = bench.group()
    bench.join(group, "a", 3)
    for _ in range(3):
        bench.queue.append_message(b"t", b"payload")
    bench.pump()
    for offset in range(3):
        assert by_offset.reject_at(group, bench.queue.logs[0].number, offset, "no")
    assert len(bench.dead()) == 3


@pytest.mark.parametrize("held", [True, False])
def test_a_message_that_must_be_read_first_is_not_rejected_into_nothing(held: bool) -> None:
    """It is a dead letter when it has been read, whether there are consumers or not, and goes to nobody meanwhile."""
    bench = Bench(retry=Retry(max_retries=0))
    group = bench.group()
    member = bench.join(group, "a", 1)
    bench.put(1)
    bench.pump()
    log = bench.queue.logs[0]
    if not held:
        group.leave(member)
    blocks = [block[7] for block in Export(log, 1 << 60)]
    log.exported()
    assert log.evict(1 << 30), "a message in hand is in memory for nobody"
    assert by_offset.reject_at(group, log.number, 0, "no")
    assert claims_of(group)[log.number, 0][0] == "dying" and member.held == 0
    # Dead is dead: what is said of it afterwards does not make it ready again.
    assert by_offset.claim_of(group, log.number, 0) is None
    assert not by_offset.give_back_at(group, log.number, 0) and not by_offset.settle_at(group, log.number, 0)
    assert claims_of(group)[log.number, 0][0] == "dying"
    assert bench.pump() == [] and group.stalled and log.wanted == 0
    assert (b"/", b"q.dlq") not in bench.manager.queues
    log.load(0, 1, blocks)
    bench.queue.notify()
    assert bench.pump() == []
    assert [(told[b"x-death-count"], told[b"x-death-reason"]) for told in bench.dead()] == [(b"1", b"no")]
    assert group.claims == 0 and bench.queue.depth == 0


def test_what_is_dying_is_dying_after_a_restart_too() -> None:
    bench = Bench()
    group = bench.group()
    bench.join(group, "a", 3)
    bench.put(3)
    bench.pump()
    log = bench.queue.logs[0]
    list(Export(log, 1 << 60))
    log.exported()
    log.evict(1 << 30)
    for offset in (0, 2):
        by_offset.reject_at(group, log.number, offset, "rejected")
    again = Group(bench.hub.ledger, 99, b"again")
    again.add_cursor(log)
    restore_state(again, export_state(group))
    assert {offset: claim[0] for (_, offset), claim in claims_of(again).items()} == {
        0: "dying", 1: "ready", 2: "dying"}
    replayed = Group(bench.hub.ledger, 100, b"replayed")
    replayed.add_cursor(log)
    replay(replayed, 23, struct.pack(">QQQHq", 100, log.number, 1, 7, -2))
    assert claims_of(replayed)[log.number, 1][:2] == ("dying", 7)


def test_a_delayed_message_is_appended_once_for_its_producer() -> None:
    bench = Bench()
    told = encode_users([("producer-id", "p"), ("producer-sequence", "1"), ("x-delay", "500")])
    for _ in range(2):
        assert bench.queue.publish(b"$queue/q", b"x", told) == 0
    assert queue_counts(bench.queue)["repeated"] == 1
    bench.hub.set_clock(1_001_000, 1000)
    bench.clock.tick()
    bench.pump()
    assert bench.queue.depth == 1


def test_a_changed_retry_limit_holds_for_groups_that_are_there() -> None:
    bench = Bench()
    group = bench.group()
    bench.manager.declare(QueueSpec(name="q", retry=Retry(max_retries=1)))
    assert group.deliveries_max == 2


@pytest.mark.parametrize("how", ["refused", "lease", "left"])
def test_the_last_failed_delivery_makes_a_dead_letter_at_once(how: str) -> None:
    """Without a consumer there, and without the delay that a further delivery would have had."""
    bench = Bench(retry=Retry(max_retries=1, initial_backoff=60, max_backoff=60))
    group = bench.group()
    log = bench.queue.logs[0]
    bench.put()

    def fail() -> None:
        if how == "refused":
            assert by_offset.give_back_at(group, log.number, 0, 60_000)
            group.leave(member)
        elif how == "lease":
            bench.hub.set_clock(1_000_000, bench.hub.mono_ms + 1000)
            group.tick()
            group.leave(member)
        else:
            group.leave(member)

    for delivery in (1, 2):
        if how == "refused" and delivery == 2:
            bench.hub.set_clock(1_060_000, bench.hub.mono_ms + 60_000)
            group.tick()
        member = bench.join(group, "m", 1000, lease_ms=1000)
        assert bench.pump() == [("m", 0)]
        assert (b"/", b"q.dlq") not in bench.manager.queues
        fail()
        assert not group.members and not group.pullers
    assert [one[b"x-death-reason"] for one in bench.dead()] == [b"max_retries"]
    assert group.claims == group.lag == 0 and bench.queue.depth == 1
    bench.pump()
    assert bench.queue.depth == 0


# ── too many claims ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_consumer_at_its_limit_stands_still_alone() -> None:
    bench = Bench()
    group = bench.group()
    greedy, other = bench.join(group, "greedy", 1000), bench.join(group, "other", 1000)
    greedy.held_max = 3
    bench.put(10)
    got = bench.pump()
    assert [what for who, what in got if who == "greedy"] == [0, 2, 4]
    assert [what for who, what in got if who == "other"] == [1, 3, 5, 6, 7, 8, 9]
    assert greedy.limited and not other.limited
    settle_upto(group, bench.queue.logs[0].number, 9, other)
    bench.put(2)
    assert bench.pump() == [("other", 10), ("other", 11)]
    settle_upto(group, bench.queue.logs[0].number, 11)
    bench.put(2)
    assert sorted(who for who, _ in bench.pump()) == ["greedy", "other"]
    assert not greedy.limited


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_thousand_consumers_that_settle_nothing_leave_the_group_going(partitions: int) -> None:
    """More claims than any number that a group as a whole was once allowed."""
    bench = Bench(partitions=partitions)
    group = bench.group()
    for number in range(6):
        bench.join(group, f"greedy {number}", 1 << 30).held_max = 10_000
    bench.join(group, "other", 1 << 30).held_max = 1 << 31
    bench.hub.ledger.limit_claims(10_000, 10_000_000)
    bench.put(130_000)
    got = bench.pump()
    assert len(got) == 130_000 and group.claims == group.held == 130_000
    assert sum(who == "other" for who, _ in got) == 70_000


def test_what_was_returned_and_waits_is_bounded_for_the_group() -> None:
    """By whomever: what is ready again goes out first, so only what waits for its time holds up what is new."""
    bench = Bench()
    group = bench.group()
    group.returned_max = 4
    bench.join(group, "refuses", 1)
    log = bench.queue.logs[0].number
    bench.put(10)
    for offset in range(4):
        assert bench.pump() == [("refuses", offset)]
        by_offset.give_back_at(group, log, offset, 5_000, True)
    assert bench.pump() == []
    assert group.limited and bench.hub.ledger.take_limited() == [group]
    bench.hub.set_clock(1_006_000, 6_000)
    bench.clock.tick()
    assert bench.pump() == [("refuses", 0)]


def test_all_claims_of_a_node_are_bounded_and_counted() -> None:
    bench = Bench()
    counters = bench.hub.counters
    group = bench.group()
    members = [bench.join(group, name, 5) for name in "ab"]
    bench.put(8)
    bench.pump()
    assert counters()["claims"] == group.claims == 8
    group.leave(members[0])
    assert counters()["claims"] == 8
    bench.pump()
    settle_upto(group, bench.queue.logs[0].number, 100)
    bench.pump()
    assert counters()["claims"] == group.claims
    bench.manager.delete((b"/", b"q"))
    assert counters()["claims"] == counters()["limited"] == 0


def test_a_limited_consumer_that_leaves_is_none_any_more() -> None:
    bench = Bench()
    group = bench.group()
    greedy = bench.join(group, "greedy", 1000)
    greedy.held_max = 3
    bench.put(10)
    bench.pump()
    assert bench.hub.counters()["limited"] == 1 and bench.hub.ledger.take_limited() == [greedy]
    group.leave(greedy)
    assert bench.hub.counters()["limited"] == 0 and not greedy.limited


def test_describe_names_who_is_limited() -> None:
    bench = Bench()
    group = bench.group()
    bench.join(group, "other", 2).client = "other"
    greedy = bench.join(group, "greedy", 1000)
    greedy.held_max, greedy.client = 3, "greedy"
    bench.put(10)
    bench.pump()
    groups = bench.admin.describe("q")["group_list"]
    assert {member["client"]: (member["held"], member["limited"]) for member in groups[0]["members"]} == {
        "other": (2, False), "greedy": (3, True)}
    last = as_groups(groups).splitlines()[-1]
    assert last == ("greedy of group shared has 3 unsettled messages and gets no more until it settles some: "
                    "set a prefetch")


def test_what_consumers_hold_is_told_from_what_waits_to_come_again() -> None:
    bench = Bench(max_priority=4)
    group = bench.group()
    bench.put(3)
    bench.put(2, priority=4)
    slow = bench.join(group, "slow", 4)
    slow.client = "slow"
    bench.pump()
    bench.hub.set_clock(1_200_000, 200_000)
    quick = bench.join(group, "quick", 1)
    bench.pump()
    told = bench.admin.groups("q")
    assert [(one["unsettled"], one["returned"], one["claimed"]) for one in told] == [(5, 0, 5)]
    assert {one["client"]: (one["held"], one["oldest_s"]) for one in told[0]["members"]} == {
        "slow": (4, 200), "": (1, 0)}
    text = as_groups(told).splitlines()
    assert text[0].split()[:6] == ["GROUP", "MEMBERS", "UNSETTLED", "RETURNED", "LAG", "NEXT"]
    assert text[1].split()[:10] == ["shared", "2", "5", "0", "5", "0/p4:2", "0/p3:0", "0/p2:0", "0/p1:0", "0/p0:3"]
    assert text[3].split() == ["GROUP", "CONSUMER", "UNSETTLED", "OLDEST"]
    assert [line.split() for line in text[4:]] == [["shared", "slow", "4", "3", "m"], ["shared", "-", "1", "0", "s"]]
    group.leave(slow)
    assert [(one["unsettled"], one["returned"], one["claimed"]) for one in bench.admin.groups("q")] == [(1, 4, 5)]
    group.leave(quick)
    assert as_groups(bench.admin.groups("q")).splitlines()[1].split()[:5] == ["shared", "0", "0", "5", "5"]


@pytest.mark.parametrize(("records", "next_offset"), [
    ([(22, ">QQQI", 5, 3)], 8),                                 # settled out of turn, above what the log has
    ([(22, ">QQQI", 2, 3), (22, ">QQQI", 200_000, 2)], 200_002),     # pages further on
    ([(21, ">QQQIH", 3, 4, 1)], 7),                              # claimed
    ([(23, ">QQQHq", 9, 1, 0)], 10),                             # given back
    ([(28, ">QQQ", 12)], 12),                                    # a position
    ([(22, ">QQQI", 0, 2)], 2),
], ids=["settled", "settled far on", "claimed", "returned", "moved", "all known"])
def test_offsets_of_messages_that_are_lost_are_not_given_out_again(records: list[tuple[object, ...]],
                                                                   next_offset: int) -> None:
    """A repair gave up the batch with the messages; what became of them stands in a later one."""
    bench = Bench()
    group = bench.group()
    log = bench.queue.logs[0]
    bench.put(2)
    for kind, layout, *rest in records:
        assert isinstance(kind, int) and isinstance(layout, str)
        replay(group, kind, struct.pack(layout, group.number, log.number, *rest))
    bench.queue.restored()
    assert log.next == next_offset
    bench.join(group, "a", 1000)
    before = {offset for _, offset in bench.pump()}
    bench.put(3)
    assert {offset for _, offset in bench.pump()} - before >= set(range(next_offset, next_offset + 3))


@pytest.mark.parametrize("kind", [21, 22, 23, 28])
@pytest.mark.parametrize("offset", [1 << 56, (1 << 64) - 1, 1 << 40, (3 << 56) + 1])
def test_a_record_about_offsets_that_no_log_has_changes_nothing(kind: int, offset: int) -> None:
    bench = Bench()
    group = bench.group()
    log = bench.queue.logs[0]
    bench.put(2)
    rest = {21: (1, 1), 22: (1,), 23: (1, 0), 28: ()}[kind]
    layout = {21: ">QQQIH", 22: ">QQQI", 23: ">QQQHq", 28: ">QQQ"}[kind]
    replay(group, kind, struct.pack(layout, group.number, log.number, offset, *rest))
    bench.queue.restored()
    assert (log.next, group.claims, group.lag) == (2, 0, 2)
    bench.join(group, "a", 10)
    assert len(bench.pump()) == 2


@pytest.mark.parametrize(("kind", "rest"), [(21, b"\0\1"), (22, b"")], ids=["CLAIM", "SETTLE"])
def test_a_record_about_more_messages_than_one_may_be_is_damage(kind: int, rest: bytes) -> None:
    bench = Bench()
    group = bench.group()
    bench.put(2)
    with pytest.raises(CorruptError, match=f"is about {RECORD_OFFSETS_MAX + 1} messages"):
        replay(group, kind, struct.pack(">QQQ", group.number, bench.queue.logs[0].number, 0)
               + struct.pack(">I", RECORD_OFFSETS_MAX + 1) + rest)
    assert (group.claims, group.lag) == (0, 2)


def test_a_command_after_the_end_of_a_lease_counts_no_bytes_twice() -> None:
    """queue_limits_t.ready_bytes_max rests on Group.ready_bytes; the message is ready since its lease ended."""
    bench = Bench()
    group = bench.group()
    log = bench.queue.logs[0].number
    member = bench.join(group, "slow", 3, lease_ms=1000)
    bench.put(3)
    pump_queues(bench.hub)
    member.room = 0
    bench.hub.set_clock(1_002_000, 2000)
    group.tick()
    ready = group.ready_bytes
    assert {state for state, *_ in claims_of(group).values()} == {"ready"}
    assert by_offset.give_back_at(group, log, 0) and group.ready_bytes == ready
    assert by_offset.give_back_at(group, log, 0, 500) and group.ready_bytes == ready
    assert by_offset.give_back_at(group, log, 0, 900) and group.ready_bytes == ready
    assert by_offset.settle_at(group, log, 0) and group.ready_bytes == ready - 1
    assert by_offset.reject_at(group, log, 1, "rejected") and group.ready_bytes == ready - 2
