"""Messages of small queues stay in the view: no file is made for them, nothing of them is lost or comes twice, and they
go to segments when there are more, or away when they are settled."""
from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from kit.stored_node import StoredNode
from unit.test_repair import flip, good

from fluxmq._core.errors import CorruptError, ShortageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.export import restore_unflushed, unflushed
from fluxmq._core.queue.log import Log, envelope_of
from fluxmq._core.queue.member import PyMember
from fluxmq.engine import durability
from fluxmq.engine.queues.recovery.store import QueueExport
from fluxmq.model import limits
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.repair import dump, repair, verify_state
from fluxmq.storage.state_repair import mend

SMALL = limits.QUEUE_SMALL_BYTES
SIZE = 100  # of a message's payload, padded: each is SIZE + 52 bytes or the like


def test_a_message_of_an_unknown_format_is_refused() -> None:
    """As a later version may write it: what is not known cannot be read as something else."""
    log = Log(Hub(None).ledger, 1)
    log.append_message(b"t", b"payload")
    message = bytearray(unflushed(log))
    assert bytes(message) and envelope_of(bytes(message)).format == 0
    message[46] = 2 << 4    # record_t.qos, the high half
    with pytest.raises(CorruptError, match="format 2, which this version does not know"):
        envelope_of(bytes(message))
    other = Log(Hub(None).ledger, 1)
    with pytest.raises(CorruptError):
        restore_unflushed(other, (1).to_bytes(8, "big") + bytes(message))


def payload(number: int) -> bytes:
    return (b"%d." % number).ljust(SIZE, b".")


class Small(StoredNode):
    """A node with one queue, `q`, and a group `g` of it."""

    left = contextlib.ExitStack()       # of the test

    def __init__(self, directory: Path, identity: int = 1, small: int = SMALL) -> None:
        super().__init__(directory, identity, small=small)
        self.left.callback(self.close)
        self.directory, self.identity = directory, identity
        self.queue = self.manager.declare(QueueSpec(name="q"))[0]
        self.group = self.manager.group(self.queue, b"g")
        self.log = self.queue.logs[0]

    def append(self, *numbers: int) -> None:
        for number in numbers:
            self.queue.append_message(b"t", payload(number))
        self.sync()

    def settle(self, *offsets: int) -> None:
        for offset in offsets:
            by_offset.settle_any(self.group, self.log.number, offset)
        self.queue.notify()
        self.sync()

    @property
    def held(self) -> list[int]:
        """The messages that are there for the group, wherever they are."""
        found = []
        for offset in range(self.log.first, self.log.next):
            if self.queue.is_needed(self.log, offset):
                message = self.log.get(offset)
                if message is None:
                    first, covers, blocks = self.segments.read(self.log.number, offset)
                    self.log.load(min(first, offset), covers, blocks)
                    message = self.log.get(offset)
                if message is not None:
                    assert message.payload == payload(offset), "each under its offset"
                    found.append(offset)
        return found

    @property
    def kinds(self) -> str:
        """Of the view's keys of this log."""
        number = self.log.number.to_bytes(8, "big")
        return "".join(key[:1].decode() for key, _ in self.store.load() if key[1:] == number)

    @property
    def files(self) -> int:
        return len(list((self.directory / "queues").rglob("*.seg")))

    def again(self, small: int = SMALL) -> Small:
        """After a kill: the journal is there, no last checkpoint was taken."""
        self.close()
        return Small(self.directory, self.identity + 1, small)


@pytest.fixture()
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    """Closes what comes after it, too: the thread of a journal keeps a node that is left."""
    with contextlib.ExitStack() as left:
        monkeypatch.setattr(Small, "left", left)
        yield Small(tmp_path)


def test_a_checkpoint_makes_no_files(node: Small) -> None:
    queues = [node.manager.declare(QueueSpec(name=f"q{number}"))[0] for number in range(200)]
    for queue in queues:
        queue.append_message(b"t", payload(0))
    node.append(0, 1, 2)
    node.checkpoint()
    node.checkpoint()                   # the journal's first files are gone now
    assert not node.files and node.kinds == "k"
    node = node.again()
    assert node.keeper.store.applied and node.held == [0, 1, 2]
    assert node.kept == 203
    node.close()
    assert good(node.directory)


def test_what_is_settled_does_not_come_back_and_no_offset_is_used_twice(node: Small) -> None:
    node.append(0, 1, 2, 3, 4)
    node.settle(1, 3, 4)
    node.checkpoint()
    node = node.again()
    assert node.held == [0, 2] and node.log.next == 5
    node.append(5)
    node.settle(0)
    node.checkpoint()
    node = node.again()
    assert node.held == [2, 5] and node.log.next == 6
    node.settle(2, 5)
    node.checkpoint()
    assert node.kinds == "l", "nothing is left to keep"
    node = node.again()
    assert node.held == [] and node.log.next == 6
    node.append(6)
    assert node.again().held == [6]


@pytest.mark.parametrize("started", [False, True])
def test_what_grows_goes_to_segments(node: Small, started: bool) -> None:
    node.append(0, 1, 2)
    node.checkpoint()
    assert node.kinds == "k"
    if started:
        node = node.again()
    node.append(*range(3, 30))
    node.checkpoint()
    assert node.kinds == "l" and node.files == 1
    node.append(30, 31)
    node.checkpoint()
    assert node.kinds == "kl" and node.files == 1
    node.append(32)
    node = node.again()
    assert node.held == [*range(33)]
    node.append(*range(33, 60))
    node.checkpoint()
    node = node.again()
    assert node.kinds == "l" and node.held == [*range(60)]


def test_a_directory_of_the_version_before_opens(node: Small) -> None:
    """It has everything in segments, as small=0 makes it."""
    node = node.again(0)
    node.append(0, 1)
    node.checkpoint()
    assert node.kinds == "l" and node.files == 1
    node = node.again()
    node.append(2)
    node.checkpoint()
    assert node.kinds == "kl" and node.files == 1
    node = node.again(0)
    assert node.held == [0, 1, 2]
    node.append(3)
    node.checkpoint()
    assert node.kinds == "l"
    assert node.again().held == [0, 1, 2, 3]


def test_a_deleted_queue_leaves_nothing(node: Small) -> None:
    node.append(0)
    node.checkpoint()
    node = node.again()
    assert node.kinds == "k"
    node.manager.delete((b"/", b"q"))
    node.checkpoint()
    assert node.kinds == ""


def grow(node: Small) -> None:
    for number in range(node.log.next, node.log.next + 30):
        node.queue.append_message(b"t", payload(number))


def shrink(node: Small) -> None:
    for offset in range(node.log.first, node.log.next):
        by_offset.settle_any(node.group, node.log.number, offset)
    node.queue.notify()


def nothing(node: Small) -> None:
    pass


@pytest.mark.parametrize("before", [0, 2, 30])
@pytest.mark.parametrize("at_first", [0, 1, 30])
@pytest.mark.parametrize("meanwhile", [nothing, grow, shrink], ids=lambda step: step.__name__)
def test_a_shortage_between_two_attempts(node: Small, monkeypatch: pytest.MonkeyPatch, before: int, at_first: int,
                                         meanwhile: Callable[[Small], None]) -> None:
    """What the first attempt decided about a log does not stand in the way of what the next decides."""
    assert node.keeper.queues is not None
    monkeypatch.setattr(durability, "SPACE_RETRIES_S", 0)
    node.append(*range(before))
    node.checkpoint()
    node.append(*range(before, before + at_first))
    write, refused = node.keeper.queues.write, []

    async def refuse_once(made: QueueExport) -> AsyncIterator[None]:
        if not refused:
            refused.append(made)
            meanwhile(node)
            raise ShortageError("no space")
        async for step in write(made):
            yield step

    monkeypatch.setattr(node.keeper.queues, "write", refuse_once)
    node.checkpoint()
    assert refused
    expected, following = node.held, node.log.next
    node = node.again()
    assert node.held == expected and node.log.next == following
    node.append(following)
    node.checkpoint()
    assert ("k" in node.kinds) == (0 < node.log.unflushed_bytes <= SMALL)
    assert node.again().held == [*expected, following]


def test_dump_shows_them(node: Small) -> None:
    node.append(*range(30))
    node.checkpoint()
    node.append(30, 31)
    node.checkpoint()
    number = node.log.number
    node.close()
    assert [(log, message[0]) for log, message in dump(node.directory)] == [(number, at) for at in range(32)]
    assert [message[0] for _, message in dump(node.directory, number)] == [*range(32)]
    assert [*dump(node.directory, number + 100)] == []


def test_messages_whose_queue_is_lost_get_one(node: Small) -> None:
    node.append(0, 1, 2)
    node.checkpoint()
    number, log = node.queue.number, node.log.number
    keys = [b"q" + number.to_bytes(8, "big"), b"g" + node.group.number.to_bytes(8, "big")]
    asyncio.run(node.store.checkpoint((), keys, node.store.applied))
    node.close()
    assert any(f"{log:016x}" in line for line in verify_state(node.directory).state)
    other = StoredNode(node.directory, 5, small=SMALL)
    assert other.kept == 0
    other.checkpoint()
    other.close()
    assert any("recovered-" in line for line in repair(node.directory).given_up)
    assert good(node.directory)
    other = StoredNode(node.directory, 6, small=SMALL)
    assert other.kept == 3
    other.close()


@pytest.mark.parametrize("stored", [False, True], ids=["in the journal", "in the view"])
def test_what_nobody_had_before_one_that_was_settled_out_of_turn_still_goes_out(node: Small, stored: bool) -> None:
    """As of dead letters, when one of the younger goes back to its queue."""
    node.append(0, 1, 2, 3)
    if stored:
        node.checkpoint()
    node.settle(2)
    node = node.again()
    got: list[int] = []

    def deliver(log: int, offset: int, deliveries: int) -> bool:
        got.append(offset)
        return True

    node.group.join(PyMember(deliver, room=100))
    node.sync()
    assert got == [0, 1, 3]
    node.close()


def test_where_they_are_lost_what_comes_next_is_not(node: Small) -> None:
    """The group has settled what the view has lost: a log that begins again below that would swallow what comes."""
    node.append(*range(30))
    node.checkpoint()
    node.append(30, 31, 32)
    member = PyMember(lambda log, offset, deliveries: None, room=100)
    node.group.join(member)
    node.queue.notify()
    node.settle(30, 31, 32)
    node.checkpoint()
    assert node.kinds == "kl" and node.log.first == 0
    lost = b"k" + node.log.number.to_bytes(8, "big")
    items = [(key, value) for key, value in node.store.load() if key != lost]
    found = mend(items, node.directory, node.store.applied, True)
    assert [key[:1] for key, _ in found.puts] == [b"l"]
    asyncio.run(node.store.checkpoint(found.puts, [lost], node.store.applied))
    node = node.again()
    assert node.log.next == 33, "as far as the group had come"
    node.append(33)
    assert node.held == [*range(30), 33]


def test_a_log_takes_back_what_it_gave(node: Small) -> None:
    ledger = node.hub.ledger
    log = Log(ledger, 7, lane=2)
    base = log.first
    for number in range(5):
        log.append_message(b"t", payload(number))
    log.trim(base + 1)
    raw = unflushed(log)
    for first, reach, held in ((base, base, [1, 2, 3, 4]), (base + 3, base + 3, [3, 4]), (base, base + 5, [])):
        other = Log(ledger, 7, lane=2, first=first, next=reach)
        other.replay(raw, log.next + 2)
        assert [at for at in range(5) if other.get(base + at)] == held
        assert other.next == log.next + 2 and other.append_message(b"t", b"") == log.next + 2
        following = other.at_or_above(log.next)
        # where nothing of it is left, all below is on disk for all it knows
        assert (following is not None and following.offset == log.next + 2) == bool(held)
    for broken, following in ((raw[:-8], log.next), (raw, log.next - 1), (b"x", log.next)):
        with pytest.raises(CorruptError, match="the state holds what is no message"):
            Log(ledger, 7, lane=2).replay(broken, following)
    with pytest.raises(CorruptError, match="an APPEND record"):
        Log(ledger, 7, lane=2).replay(raw)
    with pytest.raises(CorruptError, match="an APPEND record"):
        Log(ledger, 7, lane=2).replay(b"")
    for cut in range(8):
        with pytest.raises(CorruptError, match=f"has {cut} bytes"):
            restore_unflushed(Log(ledger, 7, lane=2), bytes(cut))
    other = Log(ledger, 7, lane=2)
    restore_unflushed(other, log.next.to_bytes(8, "big") + raw)
    assert (other.next, other.kept_upto, other.get(base), other.get(base + 4) is not None) == (
        log.next, log.next, None, True)


def rewritten(node: Small, value: bytes) -> None:
    """The view has this for the log's messages, with checksums that hold. The node is closed."""
    key = b"k" + node.log.number.to_bytes(8, "big")
    asyncio.run(node.store.checkpoint([(key, value)], [], node.store.applied))
    node.close()


@pytest.mark.parametrize(("how", "kept"), [
    ("cut in the last message", [0, 1, 2]), ("a bit of a length", [0]), ("an offset twice", [0, 1]),
    ("ends too early", [0, 1, 2, 3]), ("another lane", [0, 1, 2, 3]), ("too short", []), ("no message holds", [])])
def test_verify_names_messages_in_the_view_that_do_not_hold(node: Small, how: str, kept: list[int]) -> None:
    node.append(0, 1, 2, 3)
    node.checkpoint()
    assert node.kinds == "k"
    key = b"k" + node.log.number.to_bytes(8, "big")
    value = bytearray(dict(node.store.load())[key])
    size = (len(value) - 8) // 4
    if how == "cut in the last message":
        del value[-8:]
    elif how == "a bit of a length":
        value[8 + size] ^= 8
    elif how == "an offset twice":
        value[8 + 2 * size + 8] = 1
    elif how == "ends too early":
        value[7] = 2
    elif how == "another lane":
        value[0] = 3
    elif how == "too short":
        del value[5:]
    else:
        value[8] ^= 1
    rewritten(node, bytes(value))
    name = f"log {node.log.number:016x}"
    assert [line for line in verify_state(node.directory).state if name in line and "do not hold" in line]
    report = repair(node.directory)
    assert [line for line in report.given_up if name in line and f"{len(kept)} messages" in line]
    assert good(node.directory) and not repair(node.directory).anything
    again = node.again()
    assert again.held == kept
    before = again.log.next
    again.append(before)
    assert again.held == [*kept, before], "what comes next counts"
    again.close()


def test_a_flipped_bit_of_the_table_that_holds_them_is_found_and_named(node: Small) -> None:
    body = random.Random(8).randbytes(600)  # compression leaves it as it is
    node.queue.append_message(b"t", body)
    node.sync()
    node.checkpoint()
    assert node.kinds == "k"
    node.close()
    [table] = [path for path in (node.directory / "state").glob("*.sst") if body in path.read_bytes()]
    whole = table.read_bytes()
    begin = whole.index(body)
    for at in range(begin, begin + len(body), 61):
        flip(table, at)
        assert [line for line in verify_state(node.directory).state if table.name in line], at
        table.write_bytes(whole)
    assert good(node.directory)
    flip(table, begin)
    report = repair(node.directory)
    assert [line for line in report.given_up if table.name in line]
    assert good(node.directory)
