"""`$SYS/broker/…`: the broker's statistics as retained messages, under the names that mosquitto gave them, and further
ones."""
from __future__ import annotations

import math

from fluxmq.engine.broker import Broker
from fluxmq.engine.queues.statistics import DEATHS, totals

__all__ = ["Loads", "SysTopics"]

PREFIX = "$SYS/broker/"
MINUTES = (1, 5, 15)
MINUTE_MS = 60_000
# Whose moving averages per minute are below `load/`.
LOADS = ("messages/received", "messages/sent", "messages/publish/received", "messages/publish/sent",
         "messages/publish/dropped", "bytes/received", "bytes/sent")


class Loads:
    """Moving averages per minute of counters, over 1, 5 and 15 minutes, as exponential decay: an hour ago counts for
    nothing, now for most. They begin at 0."""

    def __init__(self) -> None:
        self._then_ms: int | None = None
        self._counted: dict[str, int] = {}
        self._averages = {(name, minutes): 0.0 for name in LOADS for minutes in MINUTES}

    def take(self, values: dict[str, str], mono_ms: int) -> dict[str, str]:
        """values: of the counters as of now. Returns topic below `$SYS/broker/` -> value, with two decimals."""
        counted = {name: int(values[name]) for name in LOADS}
        passed_ms = mono_ms - self._then_ms if self._then_ms is not None else 0
        if passed_ms > 0:
            for (name, minutes), before in self._averages.items():
                now = (counted[name] - self._counted[name]) * MINUTE_MS / passed_ms
                self._averages[name, minutes] = now + (before - now) * math.exp(-passed_ms / (minutes * MINUTE_MS))
        if passed_ms > 0 or self._then_ms is None:
            self._then_ms, self._counted = mono_ms, counted
        # mosquitto calls messages/publish/received load/publish/received.
        return {f"load/{name.removeprefix('messages/') if '/publish/' in name else name}/{minutes}min": f"{average:.2f}"
                for (name, minutes), average in self._averages.items()}


class SysTopics:
    """Publishes the statistics; they are kept in memory only and start again after a restart."""

    def __init__(self, broker: Broker, version: str) -> None:
        self.broker = broker
        self.version = version
        self._due_ms = 0
        self._loads = Loads()
        self._last: dict[str, str] = {}

    def values(self) -> dict[str, str]:
        """Topic below `$SYS/broker/` -> value."""
        broker = self.broker
        counters = broker.hub.counters()
        uptime = (broker.hub.mono_ms - broker.started_ms) // 1000
        total = len(broker.sessions)
        numbers = {
            "uptime": uptime,
            "clients/connected": broker.connected,
            "clients/disconnected": total - broker.connected,
            "clients/total": total,
            "clients/maximum": broker.connected_max,
            "messages/received": sum(counters["packets_received"]),
            "messages/sent": sum(counters["packets_sent"]),
            "messages/publish/received": sum(counters["messages_received"]),
            "messages/publish/sent": sum(counters["messages_sent"]),
            "messages/publish/dropped": sum(counters[name] for name in (
                "dropped_buffer_full", "dropped_queue_full", "dropped_expired", "dropped_too_large",
                "dropped_no_connection", "dropped_peer_full")),
            "messages/inflight": counters["inflight"],
            "messages/queued": counters["queued"],
            "bytes/received": counters["bytes_received"],
            "bytes/sent": counters["bytes_sent"],
            "subscriptions/count": counters["subscriptions"],
            "retained/count": counters["retained"],
            "errors/protocol": counters["protocol_errors"],
            "errors/authz": counters["publish_denied"],
        } | self._queues()
        return {"version": f"FluxMQ {self.version}"} | {name: str(number) for name, number in numbers.items()}

    def _queues(self) -> dict[str, int]:
        """Statistics of all queues together, below `queues/`."""
        if self.broker.consumers is None:
            return {}
        manager = self.broker.consumers.manager
        happened, now, kinds = totals(manager)
        numbers = {"count": sum(kinds.values())} | now
        for name in ("appended", "repeated", "delivered", "redelivered", "settled", "dead_lettered", "capture_lost"):
            numbers[name] = happened[name]
        numbers["refused"] = manager.refused_unknown + sum(
            number for name, number in happened.items() if name.startswith("refused_"))
        numbers["died"] = sum(happened[f"died_{reason}"] for reason in DEATHS)
        return {f"queues/{name}": number for name, number in numbers.items()}

    def tick(self, mono_ms: int, interval_ms: int) -> None:
        """Publishes what has changed, once the interval has passed."""
        if mono_ms < self._due_ms:
            return
        self._due_ms = mono_ms + interval_ms
        values = self.values()
        for name, value in (values | self._loads.take(values, mono_ms)).items():
            if self._last.get(name) != value:
                self._last[name] = value
                self.broker.hub.publish_message((PREFIX + name).encode(), value.encode(), 0, True)
