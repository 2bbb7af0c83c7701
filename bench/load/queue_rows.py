"""The rows of the side-by-side table that are about queues and streams. See scenarios.py for what a row is."""
from __future__ import annotations

from typing import Any

from fluxmq.bench.load.parts import Goal, Row, Side

__all__ = ["QUEUE_ROWS"]

CLASSIC: dict[str, Any] = {"queue": "classic", "prefix": "bench", "qos": 1, "subs": 0, "size": 256}
STREAM: dict[str, Any] = {"queue": "stream", "prefix": "bench", "qos": 1, "size": 256}
OURS = Side(broker="ours")
RABBITMQ = Side(broker="rabbitmq", kind="amqp")     # see amqp_rows.py
WITH_RABBITMQ = {"ours": OURS, "theirs": RABBITMQ}


def confirmed(bound: float) -> Goal:
    return Goal(metric="confirmed", of="ours", bound=bound)


TEN_TIMES = Goal(metric="confirmed", of="ours", to="theirs", bound=10)
LOWER_ACK_P99 = Goal(metric="ack_p99", of="ours", to="theirs", at_least=False, bound=1)

QUEUE_ROWS: tuple[Row, ...] = (
    Row(key="queue-256", work="classic queue, 256 B, confirmed and fsynced, 1 publisher, 1 000 in flight",
        group="queues", load=CLASSIC, sides=WITH_RABBITMQ,
        goals=(confirmed(300_000), Goal(metric="ack_p99", of="ours", at_least=False, bound=10_000), TEN_TIMES,
               LOWER_ACK_P99)),
    Row(key="queue-1k", work="the same, 1 KiB", group="queues", load=CLASSIC | {"size": 1024}, sides=WITH_RABBITMQ,
        goals=(confirmed(150_000), TEN_TIMES, LOWER_ACK_P99)),
    # The floor writes what the journal writes for such a message: 256 bytes of payload, 104 of headers and topic.
    Row(key="queue-one", work="the same, 256 B, one message in flight", group="queues", load=CLASSIC | {"window": 1},
        slices=4, sides={"ours": OURS, "floor": Side(broker="", kind="fsync", load={"block": 360})},
        goals=(Goal(metric="confirmed", of="ours", to="floor", bound=0.7),)),
    Row(key="queue-64", work="the same, 64 publishers, one message in flight each", group="queues",
        load=CLASSIC | {"pubs": 64, "window": 64}, smoke={"pubs": 8, "window": 8}, sides={"ours": OURS},
        goals=(confirmed(20_000),)),
    Row(key="queue-work", work="publish + consume + acknowledge, 1 KiB, 4 publishers, 4 consumers, durable",
        group="queues", load=CLASSIC | {"pubs": 4, "subs": 4, "size": 1024}, sides=WITH_RABBITMQ,
        goals=(Goal(metric="rate", of="ours", bound=80_000), Goal(metric="rate", of="ours", to="theirs", bound=10),
               Goal(metric="p99", of="ours", to="theirs", at_least=False, bound=1))),
    Row(key="stream-tail", work="stream, 256 B, 1 publisher, 8 readers from the tail", group="queues",
        load=STREAM | {"subs": 8}, sides=WITH_RABBITMQ, goals=(Goal(metric="rate", of="ours", bound=400_000),)),
    Row(key="stream-cold", work="stream, 1 KiB, replay from disk, page cache dropped", group="queues", kind="replay",
        load={"size": 1024, "messages": 3_000_000}, smoke={"messages": 20_000}, sides={"ours": OURS},
        goals=(Goal(metric="megabytes", of="ours", bound=300),)),
)
