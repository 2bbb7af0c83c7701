"""What the data source reads, without Spark around it: from a broker, from its directory, and what is left out."""
from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.source import QueueBroker, row
from kit.tools import missing_tool
from oracle.mqtt import Puback, Publish
from oracle.stored import crc32c
from unit.test_small_logs import Small

from fluxmq.storage import staged
from fluxmq.storage.view import open_view, read_all
from fluxmq.storage.view_repair import write

try:
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        Not,
        StringContains,
        StringStartsWith,
    )

    from fluxmq.spark.source.columns import SCHEMA, SourceError
    from fluxmq.spark.source.data_source import FluxDataSource, FluxReader
    from fluxmq.spark.source.place import LogRange
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

Start = Callable[..., QueueBroker]
STREAM = {"name": "s", "type": "stream", "partitions": 3}


def reader(*filters: Filter, **options: object) -> FluxReader:
    options |= {"pushdown": bool(filters)}
    made = FluxDataSource({name: str(value) for name, value in options.items()}).reader(SCHEMA)
    assert isinstance(made, FluxReader)
    made.left = list(made.pushFilters(list(filters)))  # type: ignore[attr-defined]
    return made


def read(made: FluxReader) -> list[dict[str, Any]]:
    """All rows; every batch is what Arrow allows."""
    found = []
    for part in made.partitions():
        for batch in made.read(part):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def rows(*filters: Filter, **options: object) -> list[tuple[Any, ...]]:
    return sorted(map(row, read(reader(*filters, **options))))


def payloads(*filters: Filter, **options: object) -> list[int]:
    return sorted(int(found["payload"]) for found in read(reader(*filters, **options)))


def varied(world: QueueBroker, queue: str, count: int, first: int = 0) -> None:
    world.put(queue, count, first, key=lambda n: f"k/{n % 5}", content_type="text/plain", expiry_s=lambda n: 3600 + n,
              user_properties=lambda n: [["partition-key", str(n % 11)], ["a", "1"], ["a", "2"], ["n", str(n)]])


def test_broker_and_directory_give_what_the_admin_api_shows(start_queues: Start) -> None:
    world = start_queues(STREAM, busy=True)
    varied(world, "s", 3000)
    admin = world.admin
    for payload in (b"", b"\xff\0", b"x" * 300_000):
        admin.ask("POST", "queues", "s", "messages", body={
            "payload": base64.b64encode(payload).decode(), "encoding": "base64"})
    shown = world.shown("s")
    assert len(shown) == 3003
    assert rows(queue="s", admin=world.socket) == shown
    assert rows(queue="s", logs=world.data) == shown
    world.broker.kill()
    assert rows(queue="s", logs=world.data) == shown
    world.broker.start()
    assert rows(queue="s", logs=world.data) == shown
    world.broker.terminate()
    assert rows(queue="s", logs=world.data) == shown


def test_keys_and_formats(start_queues: Start) -> None:
    world = start_queues(STREAM)
    varied(world, "s", 3)
    found = sorted(read(reader(queue="s", admin=world.socket)), key=lambda one: int(one["payload"]))
    assert [one["key"] for one in found] == ["0", "1", "2"]
    assert {(one["queue"], one["format"], one["qos"]) for one in found} == {("s", "mqtt", 1)}
    assert dict(found[1]["headers"]) == {"partition-key": "1", "a": "1", "n": "1"}, "the first of a name"


def test_ranges_of_offsets(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 100)
    for place in ({"admin": world.socket}, {"logs": world.data}):
        assert payloads(queue="s", startingOffsets='{"0": 90}', **place) == list(range(90, 100))
        assert payloads(queue="s", startingOffsets='{"s": {"0": 5}}', endingOffsets='{"0": 8}', **place) == [5, 6, 7]
        assert payloads(queue="s", startingOffsets="latest", **place) == []
        assert payloads(queue="s", endingOffsets="earliest", **place) == []
        with pytest.raises(SourceError, match="offset 101 of partition 0 of queue s is not there; there are 0 to 100"):
            read(reader(queue="s", startingOffsets='{"0": 101}', **place))
        assert payloads(queue="s", startingOffsets='{"0": 101}', failOnDataLoss="false", **place) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_ranges_of_time(start_queues: Start, stopped: bool) -> None:
    world = start_queues({"name": "s", "type": "stream"}, busy=True)
    times = []
    for first in range(0, 300, 100):
        world.put("s", 100, first)
        times.append(world.browse("s")[-1]["time_ms"])
        while world.admin.ask("POST", "queues", "s", "messages", body={"payload": "-1"}) and (
                world.browse("s")[-1]["time_ms"] <= times[-1]):
            pass                                        # the clock of the broker moves on
    if stopped:
        world.broker.terminate()
    places = [{"logs": world.data}] + ([] if stopped else [{"admin": world.socket}])
    for place in places:
        found = payloads(queue="s", startingTimestamp=times[0] + 1, endingTimestamp=times[1], **place)
        assert [number for number in found if number >= 0] == list(range(100, 200))
        told = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
        assert [number for number in payloads(queue="s", endingTimestamp=told, **place) if number >= 0] == list(
            range(200))
        after = datetime.fromtimestamp(times[0] / 1000, UTC)
        made = reader(GreaterThan(("time",), after), LessThan(("time",), after + timedelta(days=1)), queue="s", **place)
        assert [n for n in sorted(int(one["payload"]) for one in read(made)) if n >= 0] == list(range(100, 300))
        assert made.left == []  # type: ignore[attr-defined]
        assert made.counters["read"] < 300, "what is older is not even looked at"


def test_filters_are_pushed_down(start_queues: Start) -> None:
    world = start_queues(STREAM)
    varied(world, "s", 1000)
    place = {"queue": "s", "admin": world.socket}
    kept = [StringContains(("topic",), "x"), EqualTo(("payload",), b"1"), Not(EqualTo(("topic",), "y"))]
    made = reader(EqualTo(("topic",), "$queue/s/k/3"), IsNotNull(("topic",)), *kept, **place)
    assert made.left == kept, "the rest is Spark's"  # type: ignore[attr-defined]
    assert sorted(int(one["payload"]) for one in read(made)) == list(range(3, 1000, 5))
    assert made.counters == {"read": 1000, "rows": 200, "lost": 0}
    assert payloads(StringStartsWith(("topic",), "$queue/s/k/4"), **place) == list(range(4, 1000, 5))
    assert payloads(StringStartsWith(("topic",), "$queue/s/"), StringStartsWith(("topic",), "$SYS"), **place) == []
    assert payloads(In(("topic",), ("$queue/s/k/1", "nope")), **place) == list(range(1, 1000, 5))
    assert payloads(topic="$queue/s/k/1", **place) == list(range(1, 1000, 5))
    assert payloads(topicPrefix="$queue/s/k/1", **place) == list(range(1, 1000, 5))
    made = reader(GreaterThanOrEqual(("offset",), 10), LessThan(("offset",), 20), EqualTo(("partition",), 2), **place)
    assert [one["offset"] for one in read(made)] == list(range(10, 20))
    assert made.counters["read"] == 10, "offsets decide what is read at all"
    assert payloads(EqualTo(("queue",), "other"), **place) == []


def test_tasks_are_of_about_one_size(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream", "partitions": 2})
    for partition, count in ((0, 3000), (1, 1000)):
        key = next(str(n) for n in range(50) if _partition_of(world, str(n)) == partition)
        world.put("s", count, user_properties=[["partition-key", key]])
    world.admin.ask("GET", "queues", "s")
    for place in ({"admin": world.socket}, {"logs": world.data}):
        parts = [part for part in reader(queue="s", minPartitions=8, **place).partitions()
                 if isinstance(part, LogRange)]
        sizes = {partition: [part.end - part.start for part in parts if part.log.partition == partition]
                 for partition in (0, 1)}
        assert 6 <= len(sizes[0]) <= 7 and 2 <= len(sizes[1]) <= 3
        assert max(sizes[0] + sizes[1]) < 2 * min(sizes[0] + sizes[1])
        assert len(reader(queue="s", **place).partitions()) == 2
        assert len(reader(queue="s", maxPartitionBytes=50_000, **place).partitions()) > 4
        found = read(reader(queue="s", minPartitions=8, **place))
        assert len({(one["partition"], one["offset"]) for one in found}) == len(found) >= 4000


def _partition_of(world: QueueBroker, key: str) -> int:
    placed = world.admin.ask("POST", "queues", "s", "messages",
                             body={"payload": "0", "user_properties": [["partition-key", key]]})
    return int(placed["messages"][0]["partition"])


def test_a_classic_queue_is_browsed(start_queues: Start) -> None:
    """Settled messages are not shown, also those settled out of order; and reading settles nothing."""
    world = start_queues({"name": "c"}, busy=True)
    world.put("c", 20)
    client = Client(world.broker.address)
    client.connect("worker")
    client.subscribe("$queue/c", qos=1, properties=[("user_property", ("prefetch", "20"))])
    packets = {int(packet.payload): packet for packet in (client.expect(Publish) for _ in range(20))}
    for number in (0, 1, 2, 7, 9, 10):
        packet_id = packets[number].packet_id
        assert packet_id is not None
        client.send(Puback(packet_id=packet_id))
    client.expect_quiet()
    client.disconnect()
    left = [number for number in range(20) if number not in (0, 1, 2, 7, 9, 10)]
    before = world.admin.ask("GET", "queues", "c")
    assert payloads(queue="c", admin=world.socket) == left
    assert payloads(queue="c", logs=world.data) == left
    after = world.admin.ask("GET", "queues", "c")
    assert {key: after[key] for key in ("messages", "ready", "unsettled", "counts", "group_list")} == {
        key: before[key] for key in ("messages", "ready", "unsettled", "counts", "group_list")}
    world.broker.kill()
    assert payloads(queue="c", logs=world.data) == left
    world.broker.start()
    world.broker.terminate()
    assert payloads(queue="c", logs=world.data) == left


def test_priorities_are_lanes(start_queues: Start) -> None:
    world = start_queues({"name": "p", "max_priority": 200})
    world.put("p", 30, user_properties=lambda n: [["priority", str((n % 3) * 100)]])
    for place in ({"admin": world.socket}, {"logs": world.data}):
        found = read(reader(queue="p", **place))
        assert sorted((one["priority"], int(one["payload"])) for one in found) == sorted(
            (n % 3 * 100, n) for n in range(30))
        assert {one["offset"] >> 56 & 255: one["priority"] for one in found} == {0: 0, 100: 100, 200: 200}
        low = min(one["offset"] for one in found)
        assert low < 0 and payloads(LessThan(("offset",), 0), queue="p", **place) == list(range(2, 30, 3))
        assert payloads(queue="p", startingOffsets=json.dumps({"0/100": (100 << 56) + 8}),
                        endingOffsets='{"0": 0, "0/200": "earliest"}', **place) == [25, 28]


def test_messages_of_amqp(start_queues: Start) -> None:
    pika = pytest.importorskip("pika")
    world = start_queues()
    host, port = world.broker.addresses["amqp091/plain"]
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.queue_declare("a", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "a", b"body", pika.BasicProperties(
        content_type="text/x", headers={"partition-key": "k1", "n": 7}, correlation_id="c1", delivery_mode=2))
    connection.close()
    shown = world.shown("a")
    for place in ({"admin": world.socket}, {"logs": world.data}):
        (found,) = read(reader(queue="a", **place))
        assert [row(found)] == shown
        assert (found["format"], found["key"], found["content_type"]) == ("amqp091", "k1", "text/x")
        assert dict(found["headers"]) == {"partition-key": "k1", "n": "7"}
        assert {"exchange": "", "routing-key": "a", "correlation-id": "c1"}.items() <= dict(found["properties"]).items()


@pytest.mark.parametrize("kind", ["admin", "logs"])
def test_what_retention_takes_while_tasks_read(start_queues: Start, kind: str) -> None:
    """Planned, then gone: a sentence, or what is left and a count."""
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 1000)
    world.broker.restart()                      # its start takes a checkpoint: they are in a segment
    place = {"queue": "s", kind: world.socket if kind == "admin" else world.data}
    strict, lax = reader(**place), reader(failOnDataLoss="false", **place)
    plans = [made.partitions() for made in (strict, lax)]
    world.admin.ask("POST", "queues", "s", "purge")
    if kind == "logs":                          # retention removes whole files
        world.broker.terminate()
        for segment in (world.data / "queues").rglob("*.seg"):
            segment.unlink()
    with pytest.raises(SourceError, match=r"has lost the messages from offset 0 to 999 of partition 0"):
        list(strict.read(plans[0][0]))
    assert list(lax.read(plans[1][0])) == []
    assert lax.counters["lost"] == 1000
    assert payloads(**place) == []


def test_retention_and_a_directory(start_queues: Start) -> None:
    """A segment file that is removed between a look at the directory and its opening is looked up again."""
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 2000)
    world.broker.terminate()
    made = reader(queue="s", logs=world.data)
    parts = made.partitions()
    (segment,) = (world.data / "queues").rglob("*.seg")
    opened = segment.with_name("aside")
    listed = made.place._files                  # type: ignore[attr-defined]
    looks: list[int] = []

    def files(log: int) -> list[Path]:
        found: list[Path] = listed(log)
        looks.append(log)
        if len(looks) == 1:
            segment.rename(opened)              # now: listed, and gone
        elif len(looks) == 2:
            opened.rename(segment)
            found = listed(log)
        return found

    made.place._files = files                   # type: ignore[attr-defined]
    assert sum(batch.num_rows for part in parts for batch in made.read(part)) == 2000
    assert len(looks) >= 2


def test_a_newer_format_and_damage(start_queues: Start) -> None:
    # The last checkpoint has all the time it wants. A journal file may outlive it, if the writer was slow to begin the
    # next one; with it nothing would be lost.
    world = start_queues({"name": "s", "type": "stream"}, **{"server.shutdown_timeout": "60s"})
    world.put("s", 100)
    world.broker.terminate()
    for journal in (world.data / "journal").glob("journal-*.log"):
        journal.unlink()
    (segment,) = (world.data / "queues").rglob("*.seg")
    good = segment.read_bytes()
    head = good[:4] + (2).to_bytes(4, "little") + good[8:44]
    segment.write_bytes(head + crc32c(head).to_bytes(4, "little") + good[48:])
    with pytest.raises(SourceError, match="its format is version 2, this program reads version 1"):
        read(reader(queue="s", logs=world.data))
    segment.write_bytes(good[:200] + bytes((good[200] ^ 1,)) + good[201:])
    with pytest.raises(SourceError, match="messages from offset 0 to 99 of partition 0 of queue s are in no file"):
        read(reader(queue="s", logs=world.data))


def test_a_torn_tail(start_queues: Start) -> None:
    """Of a journal that ends in the middle of a batch, as after a loss of power, what came before it is read."""
    world = start_queues({"name": "s", "type": "stream"}, {"name": "c"})
    for first in range(0, 50, 10):
        world.put("s", 10, first)
        world.put("c", 10, first)
    world.broker.kill()
    (journal,) = (world.data / "journal").glob("journal-*.log")
    whole = journal.read_bytes()
    used = len(whole.rstrip(b"\0"))
    for torn in (1, 100, 900, 2500):
        journal.write_bytes(whole[:used - torn] + bytes(len(whole) - used + torn))
        for queue in ("s", "c"):
            found = payloads(queue=queue, logs=world.data)
            assert found == list(range(len(found))) and (len(found) < 50 or queue == "s")
    assert payloads(queue="s", logs=world.data), "what is whole is there"
    journal.write_bytes(whole)
    assert payloads(queue="s", logs=world.data) == list(range(50))


def test_a_broker_that_goes_away(start_queues: Start) -> None:
    """In the middle it is waited for; when it does not come back, a sentence says so."""
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 1500, user_properties=[["pad", "x" * 5000]])
    made = reader(queue="s", admin=world.socket)
    (part,) = made.partitions()
    batches = made.read(part)
    world.broker.kill()
    world.broker.start()
    assert sum(batch.num_rows for batch in batches) == 1500
    short = reader(queue="s", admin=world.socket, timeoutSeconds=1)
    (part,) = short.partitions()
    world.broker.terminate()
    with pytest.raises(SourceError, match=r"no broker answers at .*admin.sock for 1 s: start it"):
        list(short.read(part))
    with pytest.raises(SourceError, match=r"no broker answers at .*admin.sock: start it"):
        reader(queue="s", admin=world.socket).partitions()


def test_a_directory_while_its_broker_works(start_queues: Start) -> None:
    """Checkpoints move messages and take journal files away all the time: no hole is read, and nothing twice."""
    world = start_queues({"name": "s", "type": "stream"}, busy=True)
    done = threading.Event()
    failed: list[BaseException] = []

    def publish() -> None:
        try:
            for first in range(0, 12_000, 500):
                world.put("s", 500, first, user_properties=[["pad", "x" * 200]])
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        counts = []
        while not done.is_set():
            found = payloads(queue="s", logs=world.data, minPartitions=3)
            assert found == list(range(len(found)))
            counts.append(len(found))
    finally:
        publisher.join()
    assert not failed and counts == sorted(counts)
    assert payloads(queue="s", logs=world.data) == list(range(12_000))
    assert len(list((world.data / "journal").glob("journal-*.log"))) >= 1
    assert list((world.data / "queues").rglob("*.seg")), "a checkpoint came between"


def test_a_queue_that_is_made_again_is_another(start_queues: Start) -> None:
    world = start_queues()
    world.admin.ask("PUT", "queues", "s", body={"type": "stream"})
    world.put("s", 10)
    made = reader(queue="s", admin=world.socket)
    (part,) = made.partitions()
    world.admin.ask("DELETE", "queues", "s")
    world.admin.ask("PUT", "queues", "s", body={"type": "stream"})
    world.put("s", 20)
    with pytest.raises(SourceError, match="queue s was deleted and made again while it was read"):
        list(made.read(part))


def test_several_queues(start_queues: Start) -> None:
    world = start_queues({"name": "in-1"}, {"name": "in-2", "type": "stream"}, {"name": "other"})
    for number, name in enumerate(("in-1", "in-2", "other")):
        world.put(name, 10, 10 * number)
    for place in ({"admin": world.socket}, {"logs": world.data}):
        assert payloads(queue="in-*", **place) == list(range(20))
        assert payloads(queue="in-2, other", **place) == list(range(10, 30))
        assert payloads(queue="in-*", startingOffsets='{"in-1": {"0": 9}}', **place) == list(range(9, 20))
        assert payloads(queue="nothing-*", **place) == []


@pytest.mark.parametrize(("options", "text"), [
    ({"admin": "x"}, "option queue is needed"),
    ({"queue": "s"}, "admin .* or logs"),
    ({"queue": "s", "admin": "x", "logs": "y"}, "admin .* or logs"),
    ({"queue": "s", "admin": "x", "colour": "red"}, "no option colour for reading"),
    ({"queue": "s", "admin": "x", "startingOffsets": "first"}, "startingOffsets is earliest, latest, or JSON"),
    ({"queue": "s", "admin": "x", "startingTimestamp": "noon"}, "startingTimestamp is milliseconds since 1970"),
    ({"queue": "s", "admin": "x", "startingTimestamp": "1", "startingOffsets": "latest"}, "say the same thing"),
    ({"queue": "s", "admin": "x", "minPartitions": "-1"}, "minPartitions is a number from 0 on"),
    ({"queue": "s", "admin": "x", "maxPartitionBytes": "0"}, "maxPartitionBytes is a number from 1 on"),
    ({"queue": "s", "admin": "x", "failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
    ({"queue": "s", "logs": "/nowhere"}, "/nowhere has neither a directory `queues` nor `journal`"),
])
def test_options_that_make_no_sense(options: dict[str, str], text: str) -> None:
    with pytest.raises(SourceError, match=text):
        read(reader(**options))


def test_queues_that_are_not_there(start_queues: Start) -> None:
    world = start_queues({"name": "s"})
    with pytest.raises(SourceError, match="there is no queue zz"):
        read(reader(queue="zz", admin=world.socket))
    with pytest.raises(SourceError, match=r"there is no queue zz in .*; there are: s"):
        read(reader(queue="zz", logs=world.data))
    with pytest.raises(SourceError, match="'x' is no offset of partition 0 of queue s"):
        read(reader(queue="s", admin=world.socket, startingOffsets='{"0": "x"}'))


def test_places_that_are_not_there(start_queues: Start) -> None:
    """A partition or a queue that is misspelt in JSON would else be read from its first message without a word."""
    world = start_queues({"name": "s", "type": "stream"}, {"name": "t", "type": "stream", "partitions": 2})
    world.put("s", 20)
    for place in ({"admin": world.socket}, {"logs": world.data}):
        for option in ("startingOffsets", "endingOffsets"):
            for queue, told, text in (
                    ("s", '{"7": 17}', "names partition '7' of queue s, which has partition 0 only"),
                    ("t", '{"O": 1}', "names partition 'O' of queue t, which has 0 to 1"),
                    ("s", '{"s": {"1": 0}}', "names partition '1' of queue s"),
                    ("s", '{"zz": {"0": 17}}', "names partition 'zz' of queue s"),
                    ("s,t", '{"0": 17}', "names '0', which is none of the queues that are read: s, t"),
                    ("s,t", '{"s": 17}', "17 of queue s is neither earliest nor latest"),
                    ("s", '{"s": 17}', "17 of queue s is neither earliest nor latest")):
                with pytest.raises(SourceError, match=f"{option}:? {text}"):
                    read(reader(queue=queue, **{option: told}, **place))
        assert payloads(queue="s", startingOffsets='{"s": "latest"}', **place) == []
        assert payloads(queue="s", endingOffsets='{"s": -2}', **place) == []
        assert payloads(queue="s", startingTimestamp="9" * 30, **place) == []
        assert payloads(queue="s", startingTimestamp=-5, **place) == list(range(20))
        assert payloads(queue="s", endingTimestamp=-5, **place) == []
        assert payloads(queue="s", endingTimestamp="9" * 30, **place) == list(range(20))


@contextlib.contextmanager
def nobody(folder: Path) -> Iterator[None]:
    """What this process may not read while it is root's, or closed to its user."""
    before = folder.stat().st_mode
    folder.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(before)


def test_what_may_not_be_read(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 10)
    for place in ({"admin": world.socket}, {"logs": world.data}):
        with nobody(world.data), pytest.raises(SourceError, match=r"may not be (opened|read): run this as the user"):
            read(reader(queue="s", **place))
    for folder in ("queues", "journal", "state"):
        with nobody(world.data / folder), pytest.raises(SourceError, match=r"may not be read|cannot be read") as caught:
            read(reader(queue="s", logs=world.data))
        assert "\n" not in str(caught.value)


def test_messages_that_only_the_state_has(tmp_path: Path) -> None:
    """Of a small queue: in no segment, and in the journal no more; then beside a segment and the journal."""
    node = Small(tmp_path)

    def offsets(**options: object) -> list[int]:
        return sorted(found["offset"] for found in read(reader(queue="q", logs=tmp_path, **options)))

    node.append(0, 1, 2, 3)
    node.settle(1)
    node.checkpoint()
    node.checkpoint()
    assert node.kinds == "k" and offsets() == [0, 2, 3]
    node.append(4, 5)
    assert offsets() == [0, 2, 3, 4, 5]
    assert offsets(startingOffsets=json.dumps({"0": 3})) == [3, 4, 5]
    node.append(*range(6, 30))
    node.checkpoint()
    node.append(30, 31)
    node.checkpoint()
    node.append(32)
    assert node.kinds == "kl" and node.files
    assert offsets() == [0, 2, 3, *range(4, 33)]
    node.close()
    assert offsets() == [0, 2, 3, *range(4, 33)]


def test_a_checkpoint_that_is_not_in_its_places_yet(tmp_path: Path) -> None:
    """It counts: a broker that works has it so for a moment, one that was killed until the next start."""
    node = Small(tmp_path)
    node.append(*range(8))
    node.checkpoint()
    node.settle(1, 2)
    node.checkpoint()
    applied = node.store.applied
    node.close()
    state = tmp_path / "state"
    view = open_view(state)
    rows = list(read_all(view, state))
    places = [key for key, _ in rows]
    stale = [(b"q" + bytes(8), b"no queue"), (b"k" + bytes(8), bytes(8))]
    write(view, [*stale, (staged.APPLIED_KEY, bytes(8))], places[::2])
    staged.write_part(view, 0, ([item for row in rows[::2] for item in row], []))
    staged.write_part(view, 1, ([item for row in rows[1::2] for item in row], [key for key, _ in stale]))
    staged.write_ready(view, 2, applied)
    view.close()
    assert sorted(found["offset"] for found in read(reader(queue="q", logs=tmp_path))) == [0, *range(3, 8)]
    view = open_view(state)
    view.delete(staged.PART + (1).to_bytes(4, "big"))
    view.close()
    with pytest.raises(SourceError, match="lacks part 1 of a checkpoint"):
        read(reader(queue="q", logs=tmp_path))
