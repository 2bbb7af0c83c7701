"""The AMQP side of the rows about queues: RabbitMQ's setup for the same work.

The keys are those of the rows. RabbitMQ's durable queue that loses nothing is the quorum queue; messages are persistent
and confirmed, and what is in flight is bounded as on the other side: by confirm and delivery. Where acknowledging in
batches, or not bounding what readers are behind, makes RabbitMQ faster, it has that.
"""
from __future__ import annotations

from typing import Any

__all__ = ["AMQP_ROWS", "AMQP_SMOKE"]

QUORUM: dict[str, Any] = {"queue": "quorum", "subs": 0, "size": 256}

# row → fields of AmqpOptions
AMQP_ROWS: dict[str, dict[str, Any]] = {
    "queue-256": QUORUM,
    "queue-1k": QUORUM | {"size": 1024},
    "queue-one": QUORUM | {"window": 1},
    "queue-64": QUORUM | {"pubs": 64, "window": 64},
    "queue-work": QUORUM | {"pubs": 4, "subs": 4, "size": 1024},
    "stream-tail": {"queue": "stream", "subs": 8, "size": 256, "lag": 0, "ack_every": 100},
    # Messages that are not stored.
    "transient": {"queue": "classic", "durable": False, "persistent": False, "confirms": False, "ack_every": 0},
}

# row → fields changed at smoke size
AMQP_SMOKE: dict[str, dict[str, Any]] = {"queue-64": {"pubs": 8, "window": 8}}
