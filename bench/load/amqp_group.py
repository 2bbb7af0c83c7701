"""The rows of the side-by-side table in which both sides speak AMQP 0-9-1: the same client against FluxMQ and RabbitMQ.

Where FluxMQ syncs, RabbitMQ's side is its quorum queue: its classic queue confirms before anything is on the disk.
FluxMQ takes `x-queue-type: quorum` for a durable queue, so the load is the same on both sides. See scenarios.py for
what a row is, amqp_options.py for the fields of a load.
"""
from __future__ import annotations

from typing import Any

from fluxmq.bench.load.parts import Goal, Row, Side

__all__ = ["AMQP_GROUP"]

OURS = Side(broker="ours")
BOTH = {"ours": OURS, "theirs": Side(broker="rabbitmq")}
TRANSIENT: dict[str, Any] = {"queue": "classic", "durable": False, "persistent": False, "confirms": False}
DURABLE: dict[str, Any] = {"queue": "quorum", "size": 256}


def faster(bound: float, metric: Any = "rate") -> Goal:
    return Goal(metric=metric, of="ours", to="theirs", bound=bound)


def at_least(bound: float, metric: Any = "rate") -> Goal:
    return Goal(metric=metric, of="ours", bound=bound)


LOWER_P99 = Goal(metric="p99", of="ours", to="theirs", at_least=False, bound=1)
LOWER_ACK_P99 = Goal(metric="ack_p99", of="ours", to="theirs", at_least=False, bound=1)

AMQP_GROUP: tuple[Row, ...] = (
    Row(key="amqp-transient", work="AMQP 0-9-1, transient, 16 B, 1 → 1, automatic acknowledgement", group="amqp",
        kind="amqp", load=TRANSIENT | {"size": 16, "ack_every": 0}, sides=BOTH,
        goals=(faster(10), LOWER_P99, at_least(880_000))),
    Row(key="amqp-pairs", work="the same, 50 → 50 over 50 queues", group="amqp", kind="amqp",
        load=TRANSIENT | {"size": 16, "ack_every": 0, "queues": "pairs", "pubs": 50, "subs": 50},
        smoke={"pubs": 4, "subs": 4}, sides=BOTH, goals=(faster(10), LOWER_P99)),
    Row(key="amqp-durable", work="AMQP 0-9-1, durable, 256 B, confirmed, 1 publisher, 1 000 in flight", group="amqp",
        kind="amqp", load=DURABLE | {"subs": 0}, sides=BOTH,
        goals=(faster(10, "confirmed"), LOWER_ACK_P99, at_least(260_000, "confirmed"))),
    Row(key="amqp-one", work="the same, one message in flight", group="amqp", kind="amqp",
        load=DURABLE | {"subs": 0, "window": 1}, slices=4,
        sides=BOTH | {"floor": Side(broker="", kind="fsync", load={"block": 360})},
        goals=(faster(2, "confirmed"), LOWER_ACK_P99, at_least(4_200, "confirmed"),
               Goal(metric="confirmed", of="ours", to="floor", bound=0.5))),
    Row(key="amqp-prefetch-1", work="AMQP 0-9-1, transient, 256 B, 1 → 1, prefetch 1", group="amqp", kind="amqp",
        load=TRANSIENT | {"prefetch": 1, "ack_every": 1}, sides=BOTH, goals=(faster(2), LOWER_P99)),
    Row(key="amqp-prefetch-250", work="the same, prefetch 250", group="amqp", kind="amqp",
        load=TRANSIENT | {"prefetch": 250, "ack_every": 1}, sides=BOTH, goals=(faster(10), LOWER_P99)),
    Row(key="amqp-fanout", work="AMQP 0-9-1, transient, 256 B, a fanout exchange to 100 queues; rate of deliveries",
        group="amqp", kind="amqp", load=TRANSIENT | {"queues": "fanout", "subs": 100, "ack_every": 0},
        smoke={"subs": 8}, sides=BOTH, goals=(faster(10), LOWER_P99)),
    Row(key="amqp-idle", work="1 000 idle AMQP connections with a channel each; 1 000 channels of one connection",
        group="amqp", kind="amqp-idle", load={}, smoke={"connections": 50, "channels": 50, "first": 10}, sides=BOTH,
        goals=(Goal(metric="idle_bytes", of="ours", to="theirs", at_least=False, bound=1),
               Goal(metric="channel_bytes", of="ours", to="theirs", at_least=False, bound=1))),
)
