"""The metrics of the broker: names, help, units and labels, once. admin/metrics.py renders them, $SYS reads some.

A snapshot maps a metric's name to a number, or, with labels, to a mapping of label values to numbers; a summary is a
mapping with the keys ("sum",) and ("count",). A label's values are closed sets: a series exists from the start, at 0,
and no client can invent one.
"""
from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = ["METRICS", "Label", "Metric", "Snapshot"]

Snapshot = Mapping[str, float | Mapping[tuple[str, ...], float]]


class Label(NamedTuple):
    """values: all there are; () = one value that is not known beforehand, such as a version."""

    name: str
    values: tuple[str, ...]


class Metric(NamedTuple):
    """kind: counter (its name ends in _total), gauge, or summary (sum and count). unit: "" for plain numbers."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    help: str
    unit: str = ""
    labels: tuple[Label, ...] = ()


_QOS = Label("qos", ("0", "1", "2"))
_PACKET = Label("type", (
    "connect", "connack", "publish", "puback", "pubrec", "pubrel", "pubcomp", "subscribe", "suback", "unsubscribe",
    "unsuback", "pingreq", "pingresp", "disconnect", "auth"))
_DISCONNECTION = Label("reason", (
    "client",  # DISCONNECT from the client
    "lost",  # the connection ended without one
    "keep_alive", "takeover", "protocol_error", "not_authorized", "receive_maximum", "packet_too_large",
    "send_buffer_full", "write_timeout", "session_removed", "shutdown", "error"))
_REFUSAL = Label("reason", (
    "malformed", "protocol_version", "client_id", "credentials", "not_authorized", "authentication_method",
    "max_connections", "max_sessions", "timeout", "tls", "websocket", "shutdown", "error"))
_DROP = Label("reason", (
    "buffer_full",  # QoS 0 for a client whose send buffer is above session.send_buffer_high
    "queue_full",  # session.max_offline_queue_size or _bytes
    "expired",  # Message Expiry Interval
    "too_large",  # for the Maximum Packet Size of its receiver
    "no_connection"))  # QoS 0 for a session that is not connected

METRICS: tuple[Metric, ...] = (
    Metric("fluxmq_info", "gauge", "Always 1; the label says which version runs.", labels=(Label("version", ()),)),
    Metric("fluxmq_uptime_seconds", "gauge", "Time since start.", "seconds"),
    Metric("fluxmq_connections", "gauge", "MQTT connections now, CONNECT accepted."),
    Metric("fluxmq_connections_total", "counter", "MQTT connections accepted."),
    Metric("fluxmq_disconnections_total", "counter", "MQTT connections ended.", labels=(_DISCONNECTION,)),
    Metric("fluxmq_connect_refused_total", "counter", "Connections ended before CONNECT was accepted.",
           labels=(_REFUSAL,)),
    Metric("fluxmq_accept_failures_total", "counter",
           "Failures to accept a connection, such as for want of descriptors."),
    Metric("fluxmq_packets_received_total", "counter", "MQTT packets received.", labels=(_PACKET,)),
    Metric("fluxmq_packets_sent_total", "counter", "MQTT packets sent.", labels=(_PACKET,)),
    Metric("fluxmq_messages_received_total", "counter", "PUBLISH accepted from clients.", labels=(_QOS,)),
    Metric("fluxmq_messages_sent_total", "counter", "PUBLISH sent to clients.", labels=(_QOS,)),
    Metric("fluxmq_bytes_received_total", "counter", "MQTT bytes received.", "bytes"),
    Metric("fluxmq_bytes_sent_total", "counter", "MQTT bytes sent.", "bytes"),
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
    Metric("fluxmq_journal_sync_seconds", "summary", "Time of syncs of the journal.", "seconds"),
    Metric("fluxmq_protocol_errors_total", "counter", "Connections ended because the client broke the protocol."),
    Metric("fluxmq_auth_failures_total", "counter", "Wrong passwords, unknown users, failed SCRAM exchanges."),
    Metric("fluxmq_acl_denied_total", "counter", "What the ACL did not allow.",
           labels=(Label("action", ("publish", "subscribe")),)),
)
