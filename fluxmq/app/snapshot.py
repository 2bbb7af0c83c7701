"""What health, readiness and metrics show, read from the running server."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any

from fluxmq import __version__
from fluxmq._core.memory.namespace import Namespace
from fluxmq.app.cluster_views import cluster_check, cluster_metrics
from fluxmq.engine.namespaces import in_order
from fluxmq.engine.queues.amqp.admin import named
from fluxmq.engine.queues.statistics import as_metrics, counts_of, group_lags, numbers_of, totals
from fluxmq.model import limits
from fluxmq.model.metrics import METRICS, QueueSnapshot, Snapshot

if TYPE_CHECKING:
    from fluxmq._core.disk.journal import Journal
    from fluxmq.access.guard import Guard
    from fluxmq.app.amqp091 import Amqp091
    from fluxmq.app.listeners import Listeners
    from fluxmq.app.queue_setup import Queues
    from fluxmq.app.recording import Recording
    from fluxmq.edge.asking import Asking
    from fluxmq.edge.mqtt.tally import Tally
    from fluxmq.engine.broker import Broker
    from fluxmq.engine.ports.overview import ClusterOverview
    from fluxmq.engine.stalls import Stalls
    from fluxmq.model.config import Config

__all__ = ["Snapshots"]

# Counts for each namespace.
_OF_NAMESPACE: dict[str, Callable[[Namespace], int]] = {
    "connections": lambda one: one.connections, "sessions": lambda one: one.sessions, "queues": lambda one: one.queues,
    "retained": lambda one: one.topics.retained_count, "retained_bytes": lambda one: one.topics.retained_bytes,
    "kept_bytes": lambda one: one.bytes, "refused_total": lambda one: (
        one.refused_connections + one.refused_sessions + one.refused_queues + one.refused_bytes + one.held_back)}
PACKETS = next(m for m in METRICS if m.name == "fluxmq_packets_received_total").labels[0].values
DROPS = ("buffer_full", "queue_full", "expired", "too_large", "no_connection", "peer_full")


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """The parts of the output. journal: None if nothing is stored on disk. stalls: of its disk. stopped: set when the
    node stops. tally: of MQTT."""

    config: Config
    journal: Journal | None
    stalls: Stalls
    stopped: asyncio.Event
    broker: Broker
    queues: Queues
    asking: Asking
    guard: Guard
    listeners: Listeners
    tally: Tally
    amqp091: Amqp091
    recording: Recording
    cluster: ClusterOverview
    started: float = field(default_factory=time.monotonic)

    def health(self) -> dict[str, Any]:
        """The process is alive and its loop runs."""
        return {"status": "healthy"}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether clients can be served: the broker is running, its disk accepts writes, and it is in its cluster. The
        mode is degraded if that is so, but something else of it does not work."""
        journal, refusing = self.journal, self.queues.refusing
        storage = journal is None or (journal.status == 0 and not refusing)
        checks = {"broker": {"status": "up" if not self.stopped.is_set() else "down"},
                  "storage": {"status": "up" if storage else "down"}}
        if journal is not None and not storage:
            checks["storage"]["details"] = (journal.status_text if journal.status else
                                            f"{refusing}: queues refuse what is published")
        elif self.stalls.problem:
            checks["storage"] = {"status": "degraded", "details": self.stalls.problem}
        cluster = cluster_check(self.cluster.snapshot())
        if cluster is not None:
            checks["cluster"] = cluster
        found = {check["status"] for check in checks.values()}
        if "down" not in found:
            return True, {"status": "ready", "mode": "degraded" if "degraded" in found else "nominal", "checks": checks}
        return False, {"status": "not_ready", "details": "see checks", "checks": checks}

    def metrics(self) -> Snapshot:
        """All metrics of model/metrics.py."""
        broker, guard, asking, tally, journal = self.broker, self.guard, self.asking, self.tally, self.journal
        c = broker.hub.counters()
        by_packet = {kind: number for number, kind in enumerate(PACKETS, 1)}
        return {
            "fluxmq_info": {(__version__,): 1},
            "fluxmq_uptime_seconds": time.monotonic() - self.started,
            "fluxmq_connections": broker.connected,
            "fluxmq_connections_total": tally.accepted,
            "fluxmq_disconnections_total": {(reason,): n for reason, n in tally.disconnections.items()},
            "fluxmq_connect_refused_total": {(reason,): n for reason, n in tally.refusals.items()},
            "fluxmq_accept_failures_total": self.listeners.accept_failures,
            "fluxmq_packets_received_total": {(k,): c["packets_received"][i] for k, i in by_packet.items()},
            "fluxmq_packets_sent_total": {(k,): c["packets_sent"][i] for k, i in by_packet.items()},
            "fluxmq_messages_received_total": {(str(q),): c["messages_received"][q] for q in range(3)},
            "fluxmq_messages_sent_total": {(str(q),): c["messages_sent"][q] for q in range(3)},
            "fluxmq_bytes_received_total": c["bytes_received"],
            "fluxmq_bytes_sent_total": c["bytes_sent"],
            "fluxmq_messages_dropped_total": {(reason,): c[f"dropped_{reason}"] for reason in DROPS},
            "fluxmq_messages_unrouted_total": c["unrouted"],
            "fluxmq_sessions": len(broker.sessions),
            "fluxmq_subscriptions": (
                c["subscriptions"] - len(broker.hub.groups) + sum(map(len, broker.hub.groups.values()))),
            "fluxmq_retained_messages": c["retained"],
            "fluxmq_retained_bytes": c["retained_bytes"],
            "fluxmq_inflight_messages": c["inflight"],
            "fluxmq_queued_messages": c["queued"],
            "fluxmq_queued_bytes": c["queued_bytes"],
            "fluxmq_route_cache_hits_total": c["route_hits"],
            "fluxmq_route_cache_misses_total": c["route_misses"],
            "fluxmq_journal_batches_total": journal.batches_total if journal is not None else 0,
            "fluxmq_journal_records_total": c["records"],
            "fluxmq_journal_bytes_total": journal.bytes_total if journal is not None else 0,
            "fluxmq_journal_stalled_seconds": self.stalls.seconds,
            "fluxmq_journal_sync_seconds": {("sum",): journal.sync_ns / 1e9 if journal is not None else 0,
                                            ("count",): journal.syncs if journal is not None else 0},
            "fluxmq_protocol_errors_total": c["protocol_errors"],
            "fluxmq_auth_failures_total": tally.auth_failures + self.amqp091.tally.auth_failures,
            "fluxmq_login_refusals_delayed_total": guard.delayed,
            "fluxmq_login_bans_total": {(of,): number for of, number in guard.begun.items()},
            "fluxmq_login_bans": guard.standing,
            "fluxmq_decisions_total": {(answer,): n for answer, n in asking.answers.items()},
            "fluxmq_connections_asking": asking.waiting,
            "fluxmq_acl_denied_total": {("publish",): c["publish_denied"], ("subscribe",): tally.subscribe_denied},
        } | self._amqp091() | self.recording.metrics() | self._namespaces() | self._queues() | (
            cluster_metrics(self.cluster.snapshot()))

    def _namespaces(self) -> dict[str, Any]:
        """Metrics of a bounded number of namespaces, one by one."""
        known = self.broker.hub.namespaces
        some = nsmallest(limits.NAMESPACE_METRICS_MAX, known.values(), key=in_order)
        return {"fluxmq_namespaces": len(known)} | {
            f"fluxmq_namespace_{name}": {(one.text,): read(one) for one in some}
            for name, read in _OF_NAMESPACE.items()}

    def _amqp091(self) -> dict[str, Any]:
        """Metrics of AMQP 0-9-1."""
        tally, clients = self.amqp091.tally, self.amqp091.clients.open.values()
        return {
            "fluxmq_amqp_connections": len(clients),
            "fluxmq_amqp_connections_total": tally.accepted,
            "fluxmq_amqp_disconnections_total": {(reason,): n for reason, n in tally.disconnections.items()},
            "fluxmq_amqp_refused_total": {(reason,): n for reason, n in tally.refusals.items()},
            "fluxmq_amqp_channels": sum(len(client.connection.channels) for client in clients),
            "fluxmq_amqp_blocked_connections": sum(client.blocked for client in clients),
        }

    def _queues(self) -> dict[str, Any]:
        """Metrics of all queues."""
        manager = self.queues.manager
        happened, now, kinds = totals(manager)
        happened["refused_unknown_queue"] = manager.refused_unknown
        happened["refused_away"] = self.broker.hub.ledger.refused_away
        happened["refused_elsewhere"] = self.broker.hub.ledger.refused_elsewhere
        counters = self.broker.hub.counters()
        return {"fluxmq_queues": {(kind,): number for kind, number in kinds.items()},
                "fluxmq_queues_damaged": sum(queue.damage is not None for queue in manager.states),
                "fluxmq_queues_away": len(manager.away),
                "fluxmq_queues_claims": counters["claims"],
                "fluxmq_queues_consumers_limited": counters["limited"]} | {
            f"fluxmq_queues_{name}": value for name, value in as_metrics(happened, now).items()}

    def queue_metrics(self, asked: Sequence[str]) -> list[QueueSnapshot]:
        """Metrics of single queues: of those in `asked` that exist, or else of up to queue_manager.metrics_queues
        queues, configured ones first; for each of as many groups."""
        manager, bound = self.queues.manager, self.config.queue_manager.metrics_queues
        chosen = {}
        for found in ([named(manager, name) for name in asked] or
                      [manager.queues.get(spec.address) for spec in self.config.queues]):
            if found is not None:
                chosen[found.queue.address] = found
        if not asked:
            here = (address for address, state in manager.queues.items() if state.here)
            for address in nsmallest(bound, here) if len(chosen) < bound else ():
                chosen.setdefault(address, manager.queues[address])
        return [QueueSnapshot(state.spec.shown, as_metrics(counts_of(state), numbers_of(state)),
                              dict(islice(sorted(group_lags(state).items()), None if asked else bound)))
                for state in islice(chosen.values(), None if asked else bound)]
