"""The metrics of the broker: names, help, units and labels, once. admin/metrics.py renders them, $SYS reads some.

A snapshot maps a metric's name to a number, or, with labels, to a mapping of label values to numbers; a summary is a
mapping with the keys ("sum",) and ("count",). A label's values are closed sets: a series exists from the start, at 0,
and no client can invent one. Names of namespaces and nodes are the operator's, and limits.NAMESPACE_METRICS_MAX bounds
the number of namespaces on a page.
"""
from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = ["METRICS", "QUEUE_METRICS", "Label", "Metric", "QueueSnapshot", "Snapshot"]

Snapshot = Mapping[str, float | Mapping[tuple[str, ...], float]]


class QueueSnapshot(NamedTuple):
    """One queue. values: as a Snapshot, of QUEUE_METRICS without the label `queue` and the beginning of their names.
    lags: by group."""

    name: str
    values: Mapping[str, float | Mapping[tuple[str, ...], float]]
    lags: Mapping[str, int]


class Label(NamedTuple):
    """values: all there are; () = such as are not known beforehand: a version, the name of a namespace."""

    name: str
    values: tuple[str, ...]


class Metric(NamedTuple):
    """kind: counter (its name ends in _total), gauge, or summary (sum and count). unit: "" for plain numbers.
    clustered: only a node of a cluster has it."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    help: str
    unit: str = ""
    labels: tuple[Label, ...] = ()
    clustered: bool = False


_QOS = Label("qos", ("0", "1", "2"))
_PACKET = Label("type", (
    "connect", "connack", "publish", "puback", "pubrec", "pubrel", "pubcomp", "subscribe", "suback", "unsubscribe",
    "unsuback", "pingreq", "pingresp", "disconnect", "auth"))
_DISCONNECTION = Label("reason", (
    "client",  # DISCONNECT from the client
    "lost",  # the connection ended without one
    "keep_alive", "takeover", "protocol_error", "not_authorized", "receive_maximum", "packet_too_large",
    "send_buffer_full", "write_timeout", "session_removed", "administrator", "shutdown", "error"))
_REFUSAL = Label("reason", (
    "malformed", "protocol_version", "client_id", "credentials", "not_authorized", "authentication_method",
    "max_connections",
    "descriptors",  # the limit of open files leaves no more
    "connections_per_address",  # server.max_connections_per_address
    "banned",  # auth.ban_after, auth.ban_address_after
    "not_serving",  # the node is joining its cluster
    "proxy",  # a balancer (server.proxy_networks) did not say for whom the connection is
    "quota", "timeout", "tls", "websocket", "shutdown", "error"))
_AMQP_DISCONNECTION = Label("reason", (
    "client",  # connection.close from the client
    "lost",  # the connection ended without one
    "too_slow",  # its unfinished message delayed others while memory for unfinished messages was short
    "heartbeat", "protocol_error", "not_authorized", "write_timeout", "administrator", "shutdown", "error"))
_AMQP_REFUSAL = Label("reason", (
    "protocol",  # the first bytes were not the header of AMQP 0-9-1
    "malformed", "credentials", "max_connections",
    "descriptors", "connections_per_address", "banned", "not_serving", "proxy",  # as of MQTT
    "timeout", "tls", "shutdown", "error"))
_DROP = Label("reason", (
    "buffer_full",  # QoS 0 for a client whose send buffer is above session.send_buffer_high
    "queue_full",  # session.max_offline_queue_size or _bytes
    "expired",  # Message Expiry Interval
    "too_large",  # larger than the Maximum Packet Size of its receiver
    "no_connection",  # QoS 0 for a session that is not connected
    "peer_full"))  # QoS 0 for another node that has not acknowledged enough

_NAMESPACE = Label("namespace", ())
_QUEUE = Label("queue", ())
_QUEUE_STATE = Label("state", (
    "ready",  # not delivered yet; of a stream, all
    "unsettled",  # delivered and not settled
    "delayed"))  # not due yet, or not due again after a delivery that failed
_QUEUE_REFUSAL = Label("reason", (
    "full",  # limits.max_depth, limits.max_bytes
    "disk",  # there is no room on it
    "away",  # the node that has its messages is away
    "elsewhere",  # another node has its messages, and this one forwards no publishes
    "too_large",  # limits.max_message_size
    "properties",  # a user property with an invalid request
    "unknown_queue"))
_DEATH = Label("reason", ("rejected", "max_retries", "expired", "overflow"))
_PEER = Label("peer", ())
# Between this node and another. Name, kind, help, unit.
_OF_A_PEER: tuple[tuple[str, Literal["counter", "gauge"], str, str], ...] = (
    ("connected", "gauge", "Whether the streams from and to the other node are open: 1, or 0.", ""),
    ("sent_batches_total", "counter", "Batches sent to the other node.", ""),
    ("received_batches_total", "counter", "Batches received from the other node.", ""),
    ("sent_messages_total", "counter", "Publishes sent to the other node.", ""),
    ("received_messages_total", "counter", "Publishes received from the other node.", ""),
    ("sent_bytes_total", "counter", "Bytes of the batches sent to the other node.", "bytes"),
    ("received_bytes_total", "counter", "Bytes of the batches received from the other node.", "bytes"),
    ("credit_bytes", "gauge", "Bytes that may be sent before the other node acknowledges something.", "bytes"),
    ("unacknowledged_bytes", "gauge", "Bytes sent, or waiting to be, that the other node has not acknowledged.",
     "bytes"),
    ("errors_total", "counter", "Streams to the other node that broke or were refused, and calls that failed.", ""),
)
# Name for one queue, kind, help, unit, labels.
_Row = tuple[str, Literal["counter", "gauge"], str, str, tuple[Label, ...]]
_OF_A_QUEUE: tuple[_Row, ...] = (
    ("fluxmq_queue_messages", "gauge", "Messages that the group with the largest backlog has not settled.", "",
     (_QUEUE_STATE,)),
    ("fluxmq_queue_bytes", "gauge", "Bytes of messages kept.", "bytes", ()),
    ("fluxmq_queue_appended_total", "counter", "Messages appended; delayed ones when they are due.", "", ()),
    ("fluxmq_queue_refused_total", "counter", "Publishes that were refused.", "", (_QUEUE_REFUSAL,)),
    ("fluxmq_queue_repeated_total", "counter", "Publishes that deduplication knew already.", "", ()),
    ("fluxmq_queue_capture_lost_total", "counter",
     "Publishes to ordinary topics that were to be captured and could not be.", "", ()),
    ("fluxmq_queue_delivered_total", "counter", "Messages handed to consumers.", "", ()),
    ("fluxmq_queue_redelivered_total", "counter", "Of these, those that had been handed out before.", "", ()),
    ("fluxmq_queue_settled_total", "counter", "Messages settled by consumers.", "", ()),
    ("fluxmq_queue_died_total", "counter", "Messages given up, once for each group that did.", "", (_DEATH,)),
    ("fluxmq_queue_dead_lettered_total", "counter", "Of these, those that were moved to a dead letter queue.", "", ()),
)
_PER_QUEUE: tuple[_Row, ...] = (
    ("fluxmq_queue_groups", "gauge", "Groups.", "", ()),
    ("fluxmq_queue_consumers", "gauge", "Consumers; one of a stream counts once per partition.", "", ()),
    *((name, kind, text, unit, tuple(
        label if label is not _QUEUE_REFUSAL else label._replace(values=label.values[:-1]) for label in labels))
      for name, kind, text, unit, labels in _OF_A_QUEUE),
)

METRICS: tuple[Metric, ...] = (
    Metric("fluxmq_info", "gauge", "Always 1; the label says which version runs.", labels=(Label("version", ()),)),
    Metric("fluxmq_uptime_seconds", "gauge", "Time since start.", "seconds"),
    Metric("fluxmq_connections", "gauge", "MQTT connections now, CONNECT accepted."),
    Metric("fluxmq_connections_total", "counter", "MQTT connections accepted."),
    Metric("fluxmq_disconnections_total", "counter", "MQTT connections ended.", labels=(_DISCONNECTION,)),
    Metric("fluxmq_connect_refused_total", "counter", "MQTT connections ended before CONNECT was accepted.",
           labels=(_REFUSAL,)),
    Metric("fluxmq_amqp_connections", "gauge", "AMQP 0-9-1 connections now, connection.open accepted."),
    Metric("fluxmq_amqp_connections_total", "counter", "AMQP 0-9-1 connections accepted."),
    Metric("fluxmq_amqp_disconnections_total", "counter", "AMQP 0-9-1 connections ended.",
           labels=(_AMQP_DISCONNECTION,)),
    Metric("fluxmq_amqp_refused_total", "counter", "AMQP 0-9-1 connections ended before connection.open was accepted.",
           labels=(_AMQP_REFUSAL,)),
    Metric("fluxmq_amqp_channels", "gauge", "Channels of all AMQP 0-9-1 connections."),
    Metric("fluxmq_amqp_blocked_connections", "gauge", "AMQP 0-9-1 connections that were told not to publish."),
    Metric("fluxmq_accept_failures_total", "counter",
           "Failures to accept a connection, such as for want of descriptors."),
    Metric("fluxmq_packets_received_total", "counter", "MQTT packets received.", labels=(_PACKET,)),
    Metric("fluxmq_packets_sent_total", "counter", "MQTT packets sent.", labels=(_PACKET,)),
    Metric("fluxmq_messages_received_total", "counter", "PUBLISH accepted from clients.", labels=(_QOS,)),
    Metric("fluxmq_messages_sent_total", "counter", "PUBLISH sent to clients.", labels=(_QOS,)),
    Metric("fluxmq_bytes_received_total", "counter", "Bytes received from clients.", "bytes"),
    Metric("fluxmq_bytes_sent_total", "counter", "Bytes sent to clients.", "bytes"),
    Metric("fluxmq_messages_dropped_total", "counter", "Messages for one subscriber that were not delivered.",
           labels=(_DROP,)),
    Metric("fluxmq_messages_unrouted_total", "counter", "Messages that no subscription matched."),
    Metric("fluxmq_sessions", "gauge", "Sessions, connected or not."),
    Metric("fluxmq_subscriptions", "gauge", "Subscriptions of all sessions, shared ones counted once per member."),
    Metric("fluxmq_retained_messages", "gauge", "Retained messages kept."),
    Metric("fluxmq_retained_bytes", "gauge", "Their payloads and topics.", "bytes"),
    Metric("fluxmq_inflight_messages", "gauge", "QoS 1 and 2 messages sent and not acknowledged yet."),
    Metric("fluxmq_queued_messages", "gauge", "Messages that wait in sessions' queues."),
    Metric("fluxmq_queued_bytes", "gauge", "Their payloads, topics and properties.", "bytes"),
    Metric("fluxmq_route_cache_hits_total", "counter", "Topics routed without a look into the trie."),
    Metric("fluxmq_route_cache_misses_total", "counter", "Topics matched in the trie."),
    Metric("fluxmq_journal_batches_total", "counter", "Batches written to the journal, each with one sync or less."),
    Metric("fluxmq_journal_records_total", "counter", "Records in them."),
    Metric("fluxmq_journal_bytes_total", "counter", "Bytes of them.", "bytes"),
    Metric("fluxmq_journal_stalled_seconds", "gauge",
           "For how long the disk has not completed what the journal has given it; 0: it does.", "seconds"),
    Metric("fluxmq_journal_sync_seconds", "summary", "Time of syncs of the journal.", "seconds"),
    Metric("fluxmq_protocol_errors_total", "counter", "Connections ended because the client broke the protocol."),
    Metric("fluxmq_auth_failures_total", "counter", "Wrong passwords, unknown users, failed SCRAM exchanges."),
    Metric("fluxmq_login_refusals_delayed_total", "counter",
           "Failed logins that were refused later (auth.delay_after)."),
    Metric("fluxmq_login_bans_total", "counter", "Bans for failed logins: of a user at an address, of an address.",
           labels=(Label("of", ("user", "address")),)),
    Metric("fluxmq_login_bans", "gauge", "Bans in force."),
    Metric("fluxmq_acl_denied_total", "counter", "What the ACL did not allow.",
           labels=(Label("action", ("publish", "subscribe")),)),
    Metric("fluxmq_decisions_total", "counter", "Permissions that an external authority was asked for: allowed, "
                                                "refused, not answered in time, or the question failed.",
           labels=(Label("answer", ("allowed", "refused", "late", "failed")),)),
    Metric("fluxmq_connections_asking", "gauge", "Connections that are not read because they wait for such an answer."),
    Metric("fluxmq_recording", "gauge", "Whether traffic is being recorded: 1, or 0."),
    Metric("fluxmq_record_entries_total", "counter", "Reads, writes and events handed to the writer of a recording."),
    Metric("fluxmq_record_bytes_total", "counter", "Bytes of them.", "bytes"),
    Metric("fluxmq_record_lost_entries_total", "counter", "Entries that are in no recording: the writer was too slow, "
                                                          "or died."),
    Metric("fluxmq_record_lost_bytes_total", "counter", "Bytes of them.", "bytes"),
    Metric("fluxmq_record_writer_restarts_total", "counter", "Writers started anew because one had died."),
    Metric("fluxmq_namespaces", "gauge", "Namespaces. Those below are of the first hundred, \"/\" and then by name."),
    Metric("fluxmq_namespace_connections", "gauge", "Connections to a namespace, of MQTT and AMQP.",
           labels=(_NAMESPACE,)),
    Metric("fluxmq_namespace_sessions", "gauge", "Sessions of a namespace, connected or not.", labels=(_NAMESPACE,)),
    Metric("fluxmq_namespace_queues", "gauge", "Queues and streams of a namespace.", labels=(_NAMESPACE,)),
    Metric("fluxmq_namespace_retained", "gauge", "Retained messages of a namespace.", labels=(_NAMESPACE,)),
    Metric("fluxmq_namespace_retained_bytes", "gauge", "Their payloads and topics.", "bytes", labels=(_NAMESPACE,)),
    Metric("fluxmq_namespace_kept_bytes", "gauge", "What limits.bytes of a namespace counts: retained messages, what "
           "waits in its sessions and queues.", "bytes", labels=(_NAMESPACE,)),
    Metric("fluxmq_namespace_refused_total", "counter", "How often a limit of a namespace refused or held back "
           "something.", labels=(_NAMESPACE,)),
    Metric("fluxmq_queues", "gauge", "Queues and streams.",
           labels=(Label("type", ("classic", "stream", "ephemeral")),)),
    Metric("fluxmq_queues_away", "gauge", "Queues of the cluster whose messages are at a node that is away."),
    Metric("fluxmq_queues_damaged", "gauge", "Queues that are stopped because a file of theirs cannot be read."),
    Metric("fluxmq_queues_groups", "gauge", "Groups of all queues."),
    Metric("fluxmq_queues_consumers", "gauge", "Consumers of all queues; one of a stream counts once per partition."),
    Metric("fluxmq_queues_claims", "gauge", "Messages that consumers have, or that wait to be delivered again: what "
                                            "queue_manager.max_unsettled bounds."),
    Metric("fluxmq_queues_consumers_limited", "gauge", "Consumers that get no more until they settle some."),
    *(Metric(name.replace("_queue_", "_queues_"), kind, f"Of all queues: {text[0].lower()}{text[1:]}", unit, labels)
      for name, kind, text, unit, labels in _OF_A_QUEUE),
    Metric("fluxmq_cluster_state", "gauge", "State of this node: 1 for the one that it is in, 0 for others.", labels=(
        Label("state", ("joining", "serving", "without_quorum", "leaving", "fenced")),), clustered=True),
    Metric("fluxmq_cluster_nodes", "gauge", "Nodes that have a lease, this one too.", clustered=True),
    Metric("fluxmq_cluster_leader", "gauge", "Whether this node is the leader: 1, or 0.", clustered=True),
    Metric("fluxmq_cluster_epoch", "gauge", "Epoch of this node; it grows with each start.", clustered=True),
    Metric("fluxmq_cluster_lease_left_seconds", "gauge", "How long this node may serve without a further renewal.",
           "seconds", clustered=True),
    Metric("fluxmq_cluster_revisions_behind", "gauge", "Revisions of etcd that the caches of this node lack.",
           clustered=True),
    Metric("fluxmq_cluster_without_quorum_seconds", "gauge",
           "For how long etcd has not renewed the lease of this node, which serves on; 0: it has.", "seconds",
           clustered=True),
    Metric("fluxmq_cluster_quorum_lost_total", "counter",
           "How often this node has served on without a quorum of etcd.", clustered=True),
    Metric("fluxmq_cluster_degraded", "gauge",
           "What of this node does not work although it serves clients; /ready and GET /cluster say what.",
           clustered=True),
    Metric("fluxmq_cluster_retained_pending", "gauge", "Topics whose retained message etcd does not have yet.",
           clustered=True),
    Metric("fluxmq_cluster_retained_left_out_total", "counter",
           "Retained messages that a subscriber was not sent, because no node that was there had the payload.",
           clustered=True),
    Metric("fluxmq_cluster_share_in_doubt", "gauge",
           "QoS 2 messages of share groups that wait for a node which is away and may have delivered them.",
           clustered=True),
    Metric("fluxmq_cluster_share_repeated_total", "counter",
           "Those of them that another member was given because the node did not come back in time.", clustered=True),
    Metric("fluxmq_cluster_share_unwanted_total", "counter",
           "Messages of share groups that were dropped because no member came for an hour.", clustered=True),
    Metric("fluxmq_cluster_sessions", "gauge", "Sessions that a node owns, connected or not.",
           labels=(Label("node", ()),), clustered=True),
    Metric("fluxmq_cluster_sessions_adopted", "gauge",
           "Those of them that it has adopted from a node that died, and whose client has not connected since.",
           labels=(Label("node", ()),), clustered=True),
    *(Metric(f"fluxmq_cluster_peer_{name}", kind, text, unit, (_PEER,), clustered=True)
      for name, kind, text, unit in _OF_A_PEER),
)

# The same of one queue, and of one group: how many of them a page shows is bounded (admin/queue_metrics.py).
QUEUE_METRICS: tuple[Metric, ...] = (
    *(Metric(name, kind, text, unit, (_QUEUE, *labels))
      for name, kind, text, unit, labels in _PER_QUEUE),
    Metric("fluxmq_queue_group_lag", "gauge",
           "Consumer lag: messages that a group has not settled; of a stream, not read.",
           labels=(_QUEUE, Label("group", ()))),
)
