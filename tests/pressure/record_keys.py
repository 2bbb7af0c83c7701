"""For each key of `record`, what differs between two of its values: a broker that records, and what it wrote."""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kit.broker import Broker
from kit.watch import metric, wait_until

from fluxmq.record.reading import Recording, open_recording

if TYPE_CHECKING:
    from test_07_configuration_keys import Pair

__all__ = ["RECORD"]


def recorded(pair: Pair, value: object, work: Callable[[Broker], None], **more: object) -> Recording:
    """What a broker with that value writes of some work."""
    base = pair.directory / f"recordings{len(pair.started)}"
    broker = pair.start(value, **({"record__enabled": True, "record__dir": base} | more))
    work(broker)
    broker.terminate()
    [directory] = (value if pair.key == "record.dir" else base).iterdir()     # type: ignore[union-attr]
    return open_recording(directory)


def rows(found: Recording, kind: str = "PUBLISH") -> list[dict[str, Any]]:
    names = ["kind", "client_id", "topic", "payload", "digest", "protocol"]
    return [row for row in found.table(names).to_pylist() if row["kind"] == kind]


def publish(pair: Pair, *messages: tuple[str, str], client_ids: tuple[str, ...] = ("one",),
            ) -> Callable[[Broker], None]:
    def work(broker: Broker) -> None:
        for client_id in client_ids:
            client = pair.client(broker, client_id)
            for topic, payload in messages or (("t", "x"),):
                client.publish(topic, payload.encode(), 1)
            client.disconnect()
    return work


def enabled(pair: Pair) -> None:
    for value in (True, False):
        broker = pair.start(value, record__dir=pair.directory / "recordings")
        assert metric(broker, "fluxmq_recording") == value


def directory(pair: Pair) -> None:
    for name in ("here", "there"):
        assert len(rows(recorded(pair, pair.directory / name, publish(pair)))) == 1


def topics(pair: Pair) -> None:
    work = publish(pair, ("a/b", "1"), ("b/a", "2"))
    assert [row["topic"] for row in rows(recorded(pair, "[a/#]", work))] == ["a/b"]
    assert len(rows(recorded(pair, "[]", work))) == 2


def clients(pair: Pair) -> None:
    work = publish(pair, client_ids=("one", "two"))
    assert [row["client_id"] for row in rows(recorded(pair, "['on*']", work))] == ["one"]
    assert len(rows(recorded(pair, "[]", work))) == 2


def protocols(pair: Pair) -> None:
    assert rows(recorded(pair, "[amqp091]", publish(pair))) == []
    assert len(rows(recorded(pair, "[mqtt]", publish(pair)))) == 1


def sample(pair: Pair) -> None:
    work = publish(pair, client_ids=tuple(f"client-{number}" for number in range(30)))
    assert len(rows(recorded(pair, 100, work))) == 30
    assert 0 < len(rows(recorded(pair, 50, work))) < 30


def payload(pair: Pair) -> None:
    for value, has_payload, has_digest in (("full", True, True), ("hash", False, True), ("size", False, False)):
        [row] = rows(recorded(pair, value, publish(pair)))
        assert (row["payload"] is not None, row["digest"] is not None) == (has_payload, has_digest)


def max_rows(pair: Pair) -> None:
    assert len(recorded(pair, 3, publish(pair)).parts) > 1
    assert len(recorded(pair, 1000, publish(pair)).parts) == 1


def big(pair: Pair) -> Callable[[Broker], None]:
    def work(broker: Broker) -> None:
        client = pair.client(broker, "big")
        for number in range(20):
            client.publish("t", number.to_bytes(2, "big") + os.urandom(20_000), 1)
    return work


def max_size(pair: Pair) -> None:
    assert len(recorded(pair, "64KiB", big(pair), record__payload="full").parts) > 1
    assert len(recorded(pair, "64MiB", big(pair), record__payload="full").parts) == 1


def max_time(pair: Pair) -> None:
    base = pair.directory / "quick"
    broker = pair.start("100ms", record__enabled=True, record__dir=base)
    publish(pair)(broker)
    wait_until(lambda: list(base.glob("*/part-*.parquet")))     # while it runs
    assert len(recorded(pair, "1h", publish(pair)).parts) == 1


def max_disk(pair: Pair) -> None:
    base = pair.directory / "full"
    base.mkdir()
    (base / "old").write_bytes(bytes(10_000))
    for value, records in (("5KiB", 0), ("1GiB", 1)):
        assert metric(pair.start(value, record__enabled=True, record__dir=base), "fluxmq_recording") == records


def ring_size(pair: Pair) -> None:
    """A payload of 2 MiB is more than a quarter of a ring of 4 MiB."""
    def work(broker: Broker) -> None:
        pair.client(broker, "large").publish("t", bytes(2 << 20), 1)

    for value, lost in (("4MiB", 1), ("32MiB", 0)):
        assert recorded(pair, value, work, broker__max_message_size="4MiB").manifest.lost_entries == lost


RECORD: dict[str, Callable[[Any], None]] = {
    "record.enabled": enabled, "record.dir": directory, "record.topics": topics, "record.clients": clients,
    "record.protocols": protocols, "record.sample": sample, "record.payload": payload, "record.max_rows": max_rows,
    "record.max_size": max_size, "record.max_time": max_time, "record.max_disk": max_disk,
    "record.ring_size": ring_size,
}
