"""Rows of the state and records of the journal whose checksums hold and whose content cannot be: every kind, each in
eight ways, of which CI plays four. `verify` says which and why, a start refuses with the same, `repair` gives up that
one, and a start has the rest; `dump` shows the row."""
from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from kit.carrier import Carrier
from kit.stored_node import StoredNode
from oracle.stored import (
    JOURNAL_BEGIN,
    batches_of_journal,
    crc32c,
    header_of_journal,
    journal_batch,
    journal_header,
    seed_of,
)

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.state import RECORD_OFFSETS_MAX
from fluxmq.app.log_commands import log
from fluxmq.cluster.solo import solo
from fluxmq.engine import broker as engine
from fluxmq.engine.clock import CLOCK_KEY
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.retained_revisions import Known
from fluxmq.engine.sessions.transfer import Arrival, freeze
from fluxmq.engine.stored import KINDS_OF_ROWS, shown
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.repair import repair
from fluxmq.storage.view import open_view, read_all
from fluxmq.storage.view_repair import write

KINDS = {*KINDS_OF_ROWS, b"t", b"p", b"h", b"o", CLOCK_KEY} - {b"x"}    # the value of `x` is empty


class Broker(StoredNode):
    """With exchanges, whose rows are the state's too."""

    def before(self) -> None:
        self.exchanges = ExchangeManager(self.hub, cluster=solo())
        self.keeper.exchanges = ExchangeKeeper(self.exchanges, self.manager)


def fill(node: Broker, part: str) -> None:
    connection = Carrier(stays=True)
    node.hub.namespaces.add(f"{part}-tenant".encode())
    node.manager.declare(QueueSpec(name="theirs", namespace=f"{part}-tenant"))
    for who in ("one", "two"):
        name = f"{part}-{who}".encode()
        node.broker.connect(name, version=5, clean_start=False, expiry_s=1 << 20, keep_alive_s=0, will=None,
                            username=None, connection=connection)
        session = node.broker.sessions[b"/", name]
        node.broker.subscribe(session, b"s/" + name, 1, 0)
        node.broker.disconnect(session, connection, publish_will=False)
        node.hub.publish_message(b"s/" + name, b"waits", 1)
    node.hub.publish_message(b"kept/" + part.encode(), b"retained", 1, retain=True)
    for kind in ("classic", "stream"):
        state = node.manager.declare(QueueSpec(name=f"{part}-{kind}", type=kind))
        queue = state[0]
        queue.append_message(b"t", b"settled", properties=USERS)
        queue.append_message(b"t", b"left")
        if kind == "classic":
            group = node.manager.group(queue, b"workers")
            by_offset.settle_any(group, queue.logs[0].number, queue.logs[0].first)
            group.flush_records()
    node.exchanges.declare(b"/", f"{part}-exchange".encode(), b"topic", durable=True)
    node.exchanges.bind(b"/", f"{part}-exchange".encode(), f"{part}-classic".encode(), b"key.*")
    node.hub.positions[f"{part}-peer"] = (5, 7)
    node.hub.ledger.write(RecordKind.PEER_POSITION, struct.pack(">QQ", 5, 7) + f"{part}-peer".encode())
    one = node.broker.sessions[b"/", f"{part}-one".encode()]
    node.broker.subscribe(one, b"once", 1, 0)
    node.hub.publish_message(b"once", b"x", 1, identity=1 + len(part))
    node.broker.revisions.note((b"/", f"{part}-retained".encode()), Known(9, True))
    arrive(node, f"{part}-moved".encode())
    node.hub.ledger.write_clock()
    node.sync()


def arrive(node: Broker, name: bytes) -> None:
    """A session of this client comes from another broker."""
    other = engine.Broker(Hub(None), cluster=solo())
    connection = Carrier()
    session, _ = other.connect(name, version=5, clean_start=False, expiry_s=1 << 20, keep_alive_s=0, will=None,
                               username=None, connection=connection)
    departure = freeze(other, session)
    assert departure is not None
    arrival = Arrival(node.broker, node.hub.root, name)
    other.subscribe(session, b"s", 1, 0)
    other.hub.publish_message(b"s", b"moved", 1)
    for each in departure.parts():
        arrival.feed(each)
    arrival.activate()


def follow(node: Broker) -> None:
    """It has a copy of a queue that another node leads."""
    leader = QueueManager(Hub(None), cluster=solo())
    line = leader.hub.commits.open_line("group 7", 7)
    leader.declare(QueueSpec(name="copied"), line)[0].append_message(b"t", b"committed")
    copies = QueueLine(node.manager, node.hub.commits.open_line("group 7", 7))
    assert node.keeper.queues is not None
    node.keeper.queues.copies.add(copies)
    copies.apply(line.submit()[1], 0, 1)


def user(name: bytes, value: bytes) -> bytes:
    return b"\x26" + b"".join(len(text).to_bytes(2, "big") + text for text in (name, value))


USERS = user(b"producer-id", b"p") + user(b"producer-sequence", b"7")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One part in the view, one in the journal; messages of a queue in segments and of one in the state."""
    directory = tmp_path_factory.mktemp("rows")
    node = Broker(directory, small=1 << 20)
    fill(node, "view")
    state = node.manager.queues[b"/", b"view-classic"]
    state.note_produced(b"p", (7, 1))
    node.manager.changed.add(state)
    follow(node)
    node.checkpoint()
    fill(node, "journal")
    node.close()
    return directory


@pytest.fixture()
def directory(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def rows(directory: Path) -> dict[bytes, bytes]:
    view = open_view(directory / "state")
    try:
        return {key: value for key, value in read_all(view, directory / "state") if key[:1] != b"\0"}
    finally:
        view.close()


def put(directory: Path, key: bytes, value: bytes) -> None:
    view = open_view(directory / "state")
    write(view, [(key, value)])
    view.close()


def without_field(value: bytes) -> bytes:
    try:
        fields = msgspec.msgpack.decode(value)
    except (msgspec.MsgspecError, ValueError):
        return value[:len(value) // 2]
    return msgspec.msgpack.encode(fields[:1] if isinstance(fields, list) else 5)


def with_wrong_field(value: bytes) -> bytes:
    try:
        fields = msgspec.msgpack.decode(value)
    except (msgspec.MsgspecError, ValueError):
        return value        # nothing but numbers and lengths: there are no types
    return msgspec.msgpack.encode([{"a": 1}, *fields[1:]] if isinstance(fields, list) else [1, 2])


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda value: b"",
    "a zero byte": lambda value: b"\0",
    "cut": lambda value: value[:len(value) * 2 // 3],
    "cut at the end": lambda value: value[:-1],
    "another type": lambda value: msgspec.msgpack.encode({"a": [1, 2.5, None]}),
    "a field less": without_field,
    "a field of another type": with_wrong_field,
    "chance": lambda value: random.Random(3).randbytes(max(len(value), 21)),
}


def in_turns(kinds: Sequence[bytes | int]) -> list[Any]:
    """Every kind in every way, for parametrize. CI has four ways of each kind, and each way at every other kind; the
    rest is marked `soak`."""
    return [pytest.param(kind, how, id=f"{kind.decode() if isinstance(kind, bytes) else kind}-{how}",
                         marks=[pytest.mark.soak] if (at + way) % 2 else [])
            for at, kind in enumerate(kinds) for way, how in enumerate(WRONG)]


def start(directory: Path, identity: int = 2) -> Broker:
    return Broker(directory, identity, small=1 << 20)


def told(directory: Path, *command: str) -> tuple[int, str]:
    result = CliRunner().invoke(log, [command[0], str(directory), *command[1:]], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value or 0, result.output


def mended(directory: Path, name: str) -> None:
    """What everybody must find in a directory where only `name` is wrong."""
    status, said = told(directory, "verify")
    assert status == 1 and name in said, said
    with pytest.raises(CorruptError) as refusal:
        start(directory)
    assert "fluxmq log repair" in str(refusal.value) and str(directory) in str(refusal.value)
    assert name in str(refusal.value)
    status, said = told(directory, "repair")
    assert "given up: " in said and name in said, said
    status, said = told(directory, "verify")
    assert status == 0, said
    assert not repair(directory).anything
    node = start(directory, 3)
    try:
        left = {*node.manager.queues, *node.broker.sessions}
        assert len(left) >= 9      # of six queues and four sessions
    finally:
        node.close()


def test_the_whole_one_has_all_kinds(whole: Path, directory: Path) -> None:
    assert {key[:1] for key in rows(directory)} >= KINDS
    assert told(directory, "verify")[0] == 0
    start(directory).close()


@pytest.mark.parametrize(("kind", "how"), in_turns(sorted(KINDS)))
def test_a_row_of_the_wrong_shape(directory: Path, kind: bytes, how: str) -> None:
    key, value = next((key, value) for key, value in rows(directory).items() if key[:1] == kind)
    wrong = WRONG[how](value)
    if wrong == value:
        pytest.skip("that is the row as it is")
    put(directory, key, wrong)
    name = f"log {key[1:].hex()}" if kind == b"k" else shown(key)
    status, said = told(directory, "dump")
    assert status == 1
    assert any(line.startswith(f"DAMAGED {shown(key)}: ") and f"key {key.hex()} value {wrong.hex()}" in line
               for line in said.splitlines()), said
    mended(directory, name)


# -------------------------------------------------------------------------------------------------------- the journal


def journal(directory: Path) -> Path:
    return max((directory / "journal").glob("*.log"))


def replaced(path: Path, number: int, which: int, body: bytes) -> None:
    """The file with another body for one record, and CRCs that hold."""
    data = path.read_bytes()
    said, first, file_id = header_of_journal(data)
    pieces = [journal_header(said, first, file_id)]
    for batch in batches_of_journal(data):
        if batch.number == number:
            batch.records[which] = (batch.records[which][0], body)
        pieces.append(journal_batch(batch.number, batch.synced, batch.records, file_id))
    path.write_bytes(b"".join(pieces))


SHAPED = (1, 3, 5, 12, 13, 14, 15, 18, 20, 22, 24, 26, 32, 34)      # kinds that `fill` writes and that have a content


@pytest.mark.parametrize(("kind", "how"), in_turns(SHAPED))
def test_a_record_of_the_wrong_shape(directory: Path, kind: int, how: str) -> None:
    path = journal(directory)
    number, which, body = next((batch.number, at, body) for batch in batches_of_journal(path.read_bytes())
                               for at, (each, body) in enumerate(batch.records) if each == kind)
    head = b"" if kind == 5 else body[:8]
    wrong = head + WRONG[how](body[len(head):])
    if wrong == body:
        pytest.skip("that is the record as it is")
    replaced(path, number, which, wrong)
    mended(directory, f"batch {number}")


def test_a_record_about_more_messages_than_one_may_be(directory: Path) -> None:
    path = journal(directory)
    number, which, body = next((batch.number, at, body) for batch in batches_of_journal(path.read_bytes())
                               for at, (kind, body) in enumerate(batch.records) if kind == RecordKind.SETTLE)
    replaced(path, number, which, body[:24] + struct.pack(">I", RECORD_OFFSETS_MAX + 1))
    mended(directory, f"batch {number}")


def test_a_batch_that_does_not_divide_into_records(directory: Path) -> None:
    """Its last record says that it is longer than it is; those in front of it are kept."""
    path = journal(directory)
    data = path.read_bytes()
    _, first, file_id = header_of_journal(data)
    begin, end, _, _, records = next(batches_of_journal(data))
    raw = bytearray(data[begin + 32:end])
    at = len(raw) - len(records[-1][1]) - 4
    raw[at:at + 4] = (len(records[-1][1]) + 1).to_bytes(4, "little")
    sealed = bytearray(journal_batch(first, 0, [(1, bytes(len(raw) - 5))], file_id))
    sealed[-len(raw):] = raw
    header = sealed[:-len(raw)]
    header[20:24] = len(records).to_bytes(4, "little")
    header[24:28] = crc32c(bytes(raw), seed_of(file_id)).to_bytes(4, "little")
    header[28:32] = crc32c(bytes(header[:28]), seed_of(file_id)).to_bytes(4, "little")
    path.write_bytes(bytes(data[:JOURNAL_BEGIN]) + header + raw)
    mended(directory, f"batch {first}")


@pytest.mark.parametrize("body", [bytes(15), bytes(16), bytes(16) + b"\xff"], ids=["cut", "no name", "no text"])
def test_a_position_of_no_node(directory: Path, body: bytes) -> None:
    path = journal(directory)
    number, which = next((batch.number, at) for batch in batches_of_journal(path.read_bytes())
                         for at, (kind, _) in enumerate(batch.records) if kind == RecordKind.PEER_POSITION)
    replaced(path, number, which, body)
    mended(directory, f"batch {number}")


def test_positions_are_there_after_a_start(directory: Path) -> None:
    node = start(directory)
    try:
        assert node.hub.positions == {"view-peer": (5, 7), "journal-peer": (5, 7)}
    finally:
        node.close()


@pytest.mark.parametrize("body", [bytes(17), bytes(26), bytes(26) + b"\x10", bytes(28), bytes(26) + b"\4\0\0\0\1"],
                         ids=["cut", "no flags", "unknown flags", "half a session", "no session"])
def test_an_origin_of_no_message(directory: Path, body: bytes) -> None:
    path = journal(directory)
    number, which = next((batch.number, at) for batch in batches_of_journal(path.read_bytes())
                         for at, (kind, _) in enumerate(batch.records) if kind == RecordKind.ORIGIN)
    replaced(path, number, which, body)
    mended(directory, f"batch {number}")


@pytest.mark.parametrize("body", [bytes(9), bytes(8) + b"\x10\0\1/t", bytes(9) + b"\0\1/"],
                         ids=["cut", "unknown flags", "no topic"])
def test_a_revision_of_no_retained_message(directory: Path, body: bytes) -> None:
    path = journal(directory)
    number, which = next((batch.number, at) for batch in batches_of_journal(path.read_bytes())
                         for at, (kind, _) in enumerate(batch.records) if kind == RecordKind.RETAINED_REVISION)
    replaced(path, number, which, body)
    mended(directory, f"batch {number}")


def test_revisions_are_there_after_a_start(directory: Path) -> None:
    node = start(directory)
    try:
        assert node.broker.revisions.known == {(b"/", b"view-retained"): Known(9, True),
                                               (b"/", b"journal-retained"): Known(9, True)}
    finally:
        node.close()
