"""What the gate loads both brokers with: a few rows of the compiled load generator, the replay of a workload, many idle
connections, a start with much to read, messages that cross from a node of a cluster to another.

A row is chosen so that its figure depends on what the broker does and as little as can be on chance: on the disk, and
on how many messages it finds at a time, which the scheduler decides.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ROWS", "GateRow", "chosen"]

Kind = Literal["load", "amqp", "replay", "idle", "start", "nodes"]


@dataclass(slots=True, frozen=True, kw_only=True)
class GateRow:
    """kind: the MQTT generator, the AMQP generator, the replay, idle connections, a start, or the MQTT generator with
    publishers at one node of a cluster and subscribers at the other. load: fields of the generator's options; of a
    start, how many there are of each kind of thing.

    queue: the type that a publish to an unknown queue makes. rate: which figure is the throughput. settings: of the
    brokers, where not as they ship. passes: how often each broker is loaded in a round. times: pairs of this row for
    each round that was asked for; a figure that is quiet, of turns that are short, gets its power from more of them.
    stretch: how many times as long as was asked for a turn is, where little happens in a second.
    """

    key: str
    work: str
    kind: Kind = "load"
    load: dict[str, Any] = field(default_factory=dict)
    queue: str = ""
    rate: Literal["delivered", "acked"] = "delivered"
    settings: dict[str, str] = field(default_factory=dict)
    passes: int = 2
    times: int = 1
    stretch: float = 1.0

    @property
    def transports(self) -> tuple[str, ...]:
        return {"amqp": ("amqp",), "start": ("tcp", "amqp")}.get(self.kind, ("tcp",))


ROWS: tuple[GateRow, ...] = (
    GateRow(key="qos0", work="1 → 1, QoS 0, 64 B, 1 000 in flight", load={"window": 1000}, times=2),
    GateRow(key="qos1-pairs", work="50 pairs, QoS 1 both ways",
            load={"pubs": 50, "subs": 50, "topics": "pairs", "qos": 1}, times=2),
    GateRow(key="fan-out", work="1 → 100, QoS 0", load={"subs": 100, "window": 200}),
    # With a sync before every confirm the disk decides how many messages each sync has, and so what a message costs.
    GateRow(key="queue", work="queue on the disk, 256 B, confirmed when written, 1 000 in flight", queue="classic",
            rate="acked", settings={"storage.session_durability": "buffered"}, times=2,
            load={"queue": "classic", "prefix": "gate", "qos": 1, "subs": 0, "size": 256}),
    GateRow(key="amqp", work="AMQP 0-9-1, transient, 1 → 1, 256 B", kind="amqp", times=2,
            load={"queue": "classic", "durable": False, "persistent": False, "confirms": False, "ack_every": 0}),
    GateRow(key="amqp-durable", work="AMQP 0-9-1, durable, confirmed and acknowledged, 1 → 1, 256 B", kind="amqp",
            load={"queue": "classic"}),
    GateRow(key="replay", work="a recorded plant, replayed: 71 clients, QoS 0, 1, 2, sessions, a queue", kind="replay",
            queue="classic", settings={"storage.session_durability": "buffered"}, passes=1),
    # The first half fills what the start has left free of its memory, which differs with what else is installed.
    GateRow(key="idle", work="6 000 connections are made and stay idle", kind="idle", passes=1,
            load={"connections": 6000, "first": 3000}),
    GateRow(key="start", work="a start that finds 2 000 queues, a message in each, and 2 000 retained messages",
            kind="start", passes=1, load={"queues": 2000, "retained": 2000}),
    # One by one, as most traffic is, each message costs the whole way; in batches it would cost a hundredth.
    GateRow(key="two-nodes", work="2 000 messages/s from one node to another, one by one, QoS 0", kind="nodes",
            stretch=2.0, load={"rate": 2000.0, "pubs": 5, "subs": 5, "topics": "pairs"}),
)


def chosen(keys: tuple[str, ...]) -> tuple[GateRow, ...]:
    """The rows of those keys, all when there are none. Raises KeyError with the key that no row has."""
    known = {row.key: row for row in ROWS}
    return tuple(known[key] for key in keys) if keys else ROWS
