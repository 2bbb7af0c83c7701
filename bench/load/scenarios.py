"""The rows of the side-by-side table: loads, opponents and goals. See parts.py for what a row is."""
from __future__ import annotations

from typing import Any

from fluxmq.bench.load.amqp_group import AMQP_GROUP
from fluxmq.bench.load.parts import Goal, Row, Side
from fluxmq.bench.load.queue_rows import QUEUE_ROWS

__all__ = ["ROWS"]

OURS = Side(broker="ours")
THEIRS = Side(broker="theirs")
BOTH = {"ours": OURS, "theirs": THEIRS}


def faster(bound: float) -> Goal:
    return Goal(metric="rate", of="ours", to="theirs", bound=bound)


PAIRS: dict[str, Any] = {"pubs": 50, "subs": 50, "topics": "pairs"}
FEW_PAIRS: dict[str, Any] = {"pubs": 5, "subs": 5}
NEAR_FLOOR = Goal(metric="cpu", of="ours", to="floor", at_least=False, bound=3)

ROWS: tuple[Row, ...] = (
    Row(key="one-to-one", work="1 → 1, QoS 0, 64 B", load={},
        sides=BOTH | {"floor": Side(broker="relay")}, goals=(faster(15), NEAR_FLOOR)),
    Row(key="many-to-one", work="50 → 1, QoS 0, 64 B", load={"pubs": 50}, smoke={"pubs": 5},
        sides=BOTH | {"floor": Side(broker="relay")}, goals=(faster(15), NEAR_FLOOR)),
    Row(key="pairs-qos1", work="50 pairs, QoS 1 both ways, clean sessions", load=PAIRS | {"qos": 1}, smoke=FEW_PAIRS,
        sides=BOTH, goals=(faster(10),)),
    Row(key="pairs-qos2", work="50 pairs, QoS 2", load=PAIRS | {"qos": 2}, smoke=FEW_PAIRS,
        sides=BOTH, goals=(faster(8),)),
    Row(key="fresh-topics", work="1 → 1, QoS 0, every message on a new topic",
        load={"topics": "fresh", "filter": "hash", "prefix": "f"}, sides=BOTH, goals=(faster(5),)),
    Row(key="churn", work="1 → 1, QoS 0, while 1 000 subscriptions a second come and go", load={"churn": 1000.0},
        sides=BOTH | {"undisturbed": Side(broker="ours", load={"churn": 0.0})},
        goals=(Goal(metric="rate", of="ours", to="undisturbed", bound=0.8),)),
    Row(key="fanout-200", work="1 → 200, QoS 0", load={"subs": 200}, smoke={"subs": 20}, sides=BOTH,
        goals=(faster(10),)),
    Row(key="fanout-1000", work="1 → 1000, QoS 0", load={"subs": 1000}, smoke={"subs": 50}, sides=BOTH,
        goals=(faster(10),)),
    Row(key="rate-5000", work="5 000 messages/s over 10 connections (5 pairs)",
        load={"pubs": 5, "subs": 5, "topics": "pairs", "rate": 5000.0}, smoke={"rate": 1000.0},
        sides=BOTH | {"floor": Side(broker="relay")},
        goals=(Goal(metric="p99", of="ours", to="theirs", at_least=False, bound=1.0),
               Goal(metric="cpu", of="ours", to="theirs", at_least=False, bound=0.85))),
    Row(key="properties", work="1 → 1, QoS 0, MQTT 5 with content type and two user properties",
        load={"version": "5", "properties": True},
        sides=BOTH | {"v3": Side(broker="ours", load={"version": "3.1.1", "properties": False})},
        goals=(Goal(metric="cpu", of="ours", to="v3", at_least=False, bound=1.5),)),
    # In flight is what fits a machine: 1 000 payloads of 256 KiB on the way to 20 subscribers would be 5 GB.
    Row(key="payload-16k", work="16 KiB payloads, 1 → 20", load={"size": 16384, "subs": 20, "window": 100},
        sides=BOTH | {"floor": Side(broker="fanout")},
        goals=(faster(1), Goal(metric="rate", of="ours", to="floor", bound=0.8))),
    Row(key="payload-256k", work="256 KiB payloads, 1 → 20", load={"size": 262144, "subs": 20, "window": 20},
        smoke={"window": 4}, sides=BOTH | {"floor": Side(broker="fanout")},
        goals=(faster(1), Goal(metric="rate", of="ours", to="floor", bound=0.8))),
    Row(key="tls-one-to-one", work="TLS, 1 → 1, QoS 0", load={"transport": "tls"}, sides=BOTH, goals=(faster(3),)),
    Row(key="tls-pairs", work="TLS, 50 pairs, QoS 1", load=PAIRS | {"qos": 1, "transport": "tls"}, smoke=FEW_PAIRS,
        sides=BOTH, goals=(faster(3),)),
    Row(key="ws-one-to-one", work="WebSocket, 1 → 1, QoS 0", load={"transport": "ws"},
        sides=BOTH | {"tcp": Side(broker="ours", load={"transport": "tcp"})},
        goals=(Goal(metric="cpu", of="ours", to="tcp", at_least=False, bound=2),)),
    Row(key="ws-pairs", work="WebSocket, 50 pairs, QoS 1", load=PAIRS | {"qos": 1, "transport": "ws"}, smoke=FEW_PAIRS,
        sides=BOTH | {"tcp": Side(broker="ours", load={"transport": "tcp"})},
        goals=(Goal(metric="cpu", of="ours", to="tcp", at_least=False, bound=2),)),
    Row(key="durable-pairs", work="50 pairs of persistent sessions, QoS 1, fsync, 20 in flight each",
        load=PAIRS | {"qos": 1, "persistent": True}, smoke=FEW_PAIRS | {"window": 100}, sides={"ours": OURS},
        goals=(Goal(metric="rate", of="ours", bound=20_000),
               Goal(metric="ack_p99", of="ours", at_least=False, bound=10_000))),
    Row(key="idle-18000", work="18 000 idle connections, and the storm that opens them", kind="storm",
        load={"connections": 18_000}, smoke={"connections": 400, "first": 200}, sides=BOTH,
        goals=(Goal(metric="idle_bytes", of="ours", at_least=False, bound=3072),
               Goal(metric="storm", of="ours", bound=10_000))),
    *QUEUE_ROWS,
    *AMQP_GROUP,
)
