"""Results for tests: rows written by hand or by chance, with a summary beside them."""
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluxmq.spark.result import SCHEMA, EventsWriter, Result, Summary, create_result, open_result

__all__ = ["START", "connect", "delivery", "publish", "random_rows", "result_of", "subscribe"]

START = 1_700_000_000_000_000_000
EMPTY: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def row(event: str, number: int, **more: Any) -> dict[str, Any]:
    """Instants of `more` are µs after START."""
    for name in ("due", "sent", "acked"):
        if more.get(name) is not None:
            more[name] = START + int(more[name] * 1000)
    return EMPTY | {"event": event, "client": f"c{number}", "client_number": number, "connection": 0, "op": 0} | more


def connect(number: int, acked: float = 0, **more: Any) -> dict[str, Any]:
    return row("connect", number, sent=acked, acked=acked, **more)


def subscribe(number: int, topic: str, **more: Any) -> dict[str, Any]:
    return row("subscribe", number, topic=topic, qos=1, sent=0, acked=0, **more)


def publish(number: int, op: int, sent: float | None, qos: int = 1, **more: Any) -> dict[str, Any]:
    return row("publish", number, **{"op": op, "sent": sent, "qos": qos, "topic": "t", "retain": False, "dup": False,
                                     "size": 16, "acked": sent, "reason": 0} | more)


def delivery(number: int, op: int, sent: float, publisher: int | None, publisher_op: int | None,
             **more: Any) -> dict[str, Any]:
    return row("delivery", number, **{"op": op, "sent": sent, "publisher": publisher, "publisher_op": publisher_op,
                                      "qos": 1, "topic": "t", "retain": False, "dup": False, "size": 16} | more)


def result_of(path: Path, rows: list[dict[str, Any]], **summary: Any) -> Result:
    """Written and read again."""
    place = create_result(path, Summary(**{"complete": True, "started": START} | summary))
    writer = EventsWriter(place, 0)
    if rows:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    writer.close()
    return open_result(path)


def random_rows(seed: int, publishes: int = 400, slower: float = 1.0) -> list[dict[str, Any]]:
    """Two publishers, four subscribers, everything that goes wrong now and then. slower: factor of latencies."""
    chance = random.Random(seed)
    rows = [connect(number, 0) for number in range(6)]
    rows += [delivery(5, 90_000 + op, 50_000 + op, 0, op, due=49_000 + op * 7, topic="$queue/q") for op in range(9)]
    rows += [connect(2, 30_000, connection=1), subscribe(2, "t/#"), subscribe(3, "t/+"), subscribe(4, "#"),
             subscribe(5, chance.choice(["$share/g/t/#", "$queue/q", "t/0"]))]
    if chance.random() < 0.5:
        rows.append(row("unsubscribe", 4, topic="#", sent=50_000, acked=50_010))
    inbox: list[tuple[float, int, dict[str, Any]]] = []
    for number in range(publishes):
        publisher, op, qos, topic = number % 2, number // 2, chance.choice([0, 1, 1, 2]), f"t/{chance.randrange(3)}"
        sent = number * 100 + chance.random() * 50
        rows.append(publish(publisher, op, None if chance.random() < 0.02 else sent, qos, topic=topic,
                            due=None if chance.random() < 0.2 else sent - chance.randrange(-5, 100),
                            acked=None if chance.random() < 0.05 else sent + 90,
                            reason=135 if chance.random() < 0.02 else chance.choice([None, 0, 16])))
        for subscriber in range(2, 6):
            for copy in range(chance.choices([0, 1, 2], [1, 20, 1])[0]):
                wait = slower * chance.lognormvariate(4, 1)
                inbox.append((sent + wait + copy, subscriber, {
                    "publisher": None if chance.random() < 0.02 else publisher, "publisher_op": op, "topic": topic,
                    "qos": min(qos, 1), "retain": chance.random() < 0.03, "dup": chance.random() < 0.05}))
    ops = dict.fromkeys(range(6), 0)
    for sent, subscriber, more in sorted(inbox, key=lambda entry: entry[0]):
        ops[subscriber] += 1
        rows.append(delivery(subscriber, ops[subscriber], sent, more.pop("publisher"), more.pop("publisher_op"),
                             connection=int(subscriber == 2 and sent > 30_000), **more))
    chance.shuffle(rows)
    return rows
