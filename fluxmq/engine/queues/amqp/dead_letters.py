"""Dead letters as AMQP 0-9-1 clients know them from RabbitMQ: to an exchange, with a header `x-death` that says
why the message was dead-lettered, and in which queue.

    rejected            by a consumer, without requeue      expired            it expired at the queue's head
    delivery_limit      it was returned too often           maxlen             there was no room

A dead letter is appended to the queues to which the exchange routes it, in the same batch that removes it from its own
queue; for those of other nodes and lines that batch has a letter (forwarding.py). A message that was in a queue before,
and has not been rejected since, is not put into that queue again, because it would circulate for ever.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluxmq._core.amqp091.fields import Integer, Timestamp, encode_table
from fluxmq._core.amqp091.properties import decode_properties, encode_properties
from fluxmq._core.bridge.translate import mqtt_to_amqp
from fluxmq._core.envelope.envelope import FORMAT_AMQP091
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.queues.dead_letters import in_one_batch, note_dead_letter, note_death
from fluxmq.model.amqp import text
from fluxmq.model.queue_arguments import NAME_BYTES_MAX

if TYPE_CHECKING:
    from fluxmq.engine.queues.state import QueueState
    from fluxmq.engine.queues.table import QueueTable

__all__ = ["DeadLetterer", "Route", "is_cycle", "with_death"]

# (virtual host, exchange, routing key, header table without its length) -> queues, each once
Route = Callable[[bytes, bytes, bytes, bytes], list[Queue]]

REASONS = {"expired": "expired", "maxlen": "maxlen", "max_retries": "delivery_limit"}
QOS = 1
COUNT_MAX = (1 << 63) - 1


class DeadLetterer:
    """Machine. route: None knows only the default exchange."""

    def __init__(self, table: QueueTable, route: Route | None = None) -> None:
        self.table = table
        self.route = route or self._default
        # (virtual host, exchange, routing key, headers, properties, payload, queues that have it already); amq.topic
        # also routes to MQTT clients
        self.on_published: Callable[[bytes, bytes, bytes, bytes, bytes, bytes, list[Queue]], None] | None = None

    def _default(self, vhost: bytes, exchange: bytes, key: bytes, headers: bytes) -> list[Queue]:
        state = self.table.queues.get((vhost, key)) if not exchange else None
        return [state.queue] if state is not None else []

    def bury(self, state: QueueState, log: Log, offset: int, reason: str) -> None:
        """Dead-letters a message that is in memory; the caller settles it."""
        if state.arguments is None or state.arguments.dead_exchange is None:
            return
        message = log.get(offset)
        if message is not None:
            self._publish(state, message.topic, message.properties, message.payload, message.format,
                          REASONS.get(reason, "rejected"))

    def refused(self, state: QueueState, topic: bytes, properties: bytes, payload: bytes, format_: int) -> None:
        """Dead-letters a message that was refused because the queue is full."""
        note_death(self.table, state, "overflow")
        self._publish(state, topic, properties, payload, format_, "maxlen")

    def _publish(self, state: QueueState, topic: bytes, properties: bytes, payload: bytes, format_: int,
                 reason: str) -> None:
        assert state.arguments is not None and state.arguments.dead_exchange is not None
        vhost, name = state.queue.address
        if format_ != FORMAT_AMQP091:
            topic, properties = mqtt_to_amqp(topic, properties, QOS)
        exchange, key, fields = topic[1:1 + topic[0]], topic[1 + topic[0]:], decode_properties(properties)
        headers = fields.pop("headers", {})
        keys = [key, *carbon_copies(headers)]
        headers = with_death(headers, name=text(name), reason=reason, exchange=text(exchange),
                             keys=[text(one) for one in keys], expiration=fields.pop("expiration", None),
                             time_s=self.table.hub.now_ms // 1000)
        if state.arguments.dead_key is not None:
            keys = [state.arguments.dead_key]
            headers.pop("CC", None)
        headers = dict(sorted(headers.items()))  # in RabbitMQ's order
        target = state.arguments.dead_exchange
        table = encode_table(headers)
        found = {queue: None for one in keys for queue in self.route(vhost, target, one, table)}
        written = encode_properties(fields | {"headers": headers})
        for queue in found:
            if reason != "rejected" and is_cycle(text(queue.name), headers["x-death"]):
                continue
            address = bytes((len(target),)) + target + keys[0]
            if not in_one_batch(state.queue, queue):
                taken = self.table.forwarders.of(state.queue.line).forward(queue, address, payload, written, QOS,
                                                                          FORMAT_AMQP091)
            else:
                taken = queue.append_message(address, payload, properties=written, qos=QOS,
                                             priority=fields.get("priority", 0), format=FORMAT_AMQP091) == 0
            if taken:
                note_dead_letter(self.table, state)
        if self.on_published is not None:
            for one in keys:
                if len(one) <= NAME_BYTES_MAX:  # otherwise it is too long for a topic
                    self.on_published(vhost, target, one, table, written, payload, list(found))


def carbon_copies(headers: dict[str, Any]) -> list[bytes]:
    """Further routing keys, from the publisher's header CC."""
    keys = headers.get("CC")
    return [one.encode("utf-8", "surrogateescape") for one in keys if isinstance(one, str)] if isinstance(
        keys, list) else []


def with_death(headers: dict[str, Any], *, name: str, reason: str, exchange: str, keys: list[str],
               expiration: str | None, time_s: int) -> dict[str, Any]:
    """Returns the headers with a death in the queue `name` added. There is one entry for each queue and reason, with a
    count; the last death comes first, and the first death of all has headers of its own."""
    found = dict(headers)
    entry: dict[str, Any] = {"count": Integer(1, "l"), "reason": reason, "queue": name, "time": Timestamp(time_s),
                             "exchange": exchange, "routing-keys": keys}
    if expiration is not None:
        entry["original-expiration"] = expiration
    deaths = headers.get("x-death")
    if deaths is not None and not isinstance(deaths, list):
        found["x-death"] = [entry]  # the header was not written by a broker
        return found
    if deaths is None:
        found |= {"x-first-death-reason": reason, "x-first-death-queue": name, "x-first-death-exchange": exchange,
                  "x-death": [entry]}
        return found
    others = []
    for death in deaths:
        if not isinstance(death, dict):
            continue
        if death.get("queue") == name and death.get("reason") == reason:
            count = death.get("count")  # a publisher may have written it
            counted = death | {"count": Integer(min((count if isinstance(count, int) else 0) + 1, COUNT_MAX), "l")}
            entry = {field: counted[field] for field in sorted(counted)}
        else:
            others.append(death)
    found["x-death"] = [entry, *others]
    return found


def is_cycle(name: str, deaths: list[Any]) -> bool:
    """Whether a message with these deaths has been in the queue before without being rejected since."""
    for death in deaths:
        if not isinstance(death, dict) or death.get("reason") == "rejected":
            return False
        if death.get("queue") == name:
            return True
    return False
