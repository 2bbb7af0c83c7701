"""Keys that people may write because other versions or other brokers have them, and what to write instead.

They are refused, not skipped: a setting without effect would mislead its user. `*` stands for one name.
Remove a key from this table when you add it to the schema; a test compares the two.
"""
from collections.abc import Mapping

__all__ = ["ALIASES", "REFUSED", "REFUSED_VALUES", "TLS_KEYS", "refusal"]

# Alternative name → name in the schema, for keys with the same meaning and values.
ALIASES: Mapping[str, str] = {"storage.badger_dir": "storage.dir"}

# What only the tls and mtls slots have.
TLS_KEYS = ("cert_file", "key_file", "ca_file", "client_auth", "min_version", "cipher_suites", "username_from")

_SLOT = "server.mqtt.*.*"
_AMQP_SLOT = "server.amqp091.*"
_LATER = "not in this version"
_OTEL = f"{_LATER}; metrics are served for Prometheus at /metrics of server.health_addr"

REFUSED: Mapping[str, str] = {
    "broker.retry_interval": "nothing is sent again on a live connection (MQTT 5.0 section 4.4 forbids it); what was "
                             "not acknowledged is sent again when the client reconnects. Leave it out",
    "broker.max_retries": "nothing is sent again on a live connection, so there is nothing to count; how long what was "
                          "not acknowledged is kept, session.max_expiry_interval bounds",
    "broker.async_fan_out": "every delivery is gathered and sent once per turn of the loop; there is no other way to "
                            "choose. Leave it out",
    "broker.fan_out_workers": "delivery is not spread over threads. Leave it out",
    "session.inflight_overflow": "messages beyond session.max_inflight_messages always wait in the session's queue: "
                                 "set session.max_offline_queue_size and session.offline_queue_policy",
    "session.pending_queue_size": "one queue holds what waits, connected or not: set session.max_offline_queue_size",
    "session.max_send_queue_size": "the bound is in bytes: set session.send_buffer_high and session.send_buffer_low",
    "session.default_expiry_interval": "without the property an MQTT 5 session ends with its connection, and a 3.1.1 "
                                       "session with CleanSession 0 is kept: cap both with session.max_expiry_interval",
    "storage.badger_sync_writes": "set storage.session_durability to fsync or buffered",
    "storage.queue_ack_durability": "queues and sessions share one journal: set storage.session_durability",
    "storage.queue_sync_interval": "queues and sessions share one journal: set storage.sync_interval",
    **{f"{slot}.{name}": reason for slot in (_SLOT, _AMQP_SLOT) for name, reason in (
        ("prefer_server_cipher_suites", "the server's order always decides. Leave it out"),
        ("server_ca_file", "put the intermediate certificates into cert_file, after the server's own"),
        ("ocsp", f"checking revocation by OCSP is {_LATER}"),
        ("crl", f"checking revocation by lists is {_LATER}"))},
    f"{_AMQP_SLOT}.handshake_timeout": "the time until connection.open is read_timeout",
    f"{_AMQP_SLOT}.path": "AMQP has no WebSocket here. Leave it out",
    "server.tcp": "the listeners are server.mqtt.tcp.plain, v3, v5, tls and mtls",
    "server.websocket": "the listeners are server.mqtt.websocket.plain, v3, v5, tls and mtls",
    "server.http": f"the HTTP bridge is {_LATER}",
    "server.coap": f"CoAP is {_LATER}",
    "server.amqp": f"AMQP 1.0 is {_LATER}",
    **{f"server.amqp091.{slot}": f"local principals are {_LATER}; the listeners are server.amqp091.plain, tls and mtls"
       for slot in ("local", "internal", "service")},
    "server.admin_api_addr": f"the admin API is {_LATER}; server.health_addr serves /health, /ready, /metrics "
                             "and /cluster",
    "server.metrics_enabled": _OTEL,
    "server.metrics_addr": _OTEL,
    **{f"server.otel_{name}": _OTEL for name in (
        "service_name", "service_version", "metrics_enabled", "traces_enabled", "trace_sample_rate", "insecure",
        "ca_file", "cert_file", "key_file")},
    "auth.external": f"asking another service who may connect is {_LATER}; set auth.users_file",
    "auth.url": f"asking another service who may connect is {_LATER}; set auth.users_file",
    "auth.local_principals": f"local principals are {_LATER}; set auth.users_file and auth.acl_file",
    **{f"cluster.transport.{name}": "batches grow with the load by themselves: there is nothing to set. Leave it out"
       for name in ("route_batch_max_size", "route_batch_max_delay", "route_batch_flush_workers")},
    "cluster.transport.route_publish_timeout": "write cluster.route_publish_timeout, which subscriptions have too",
    "cluster.transport.tls_enabled": "TLS is on when cluster.transport.tls has its three files",
    **{f"cluster.transport.tls_{name}": f"write cluster.transport.tls.{name}"
       for name in ("cert_file", "key_file", "ca_file")},
    "queue_manager.capture_workers": "captures are appended where they arrive, in order. Leave it out",
    "queue_manager.capture_queue_depth": "there is no line between a publish and its capture. Leave it out",
    "queue_manager.capture_drain_timeout": "there is no line between a publish and its capture. Leave it out",
    "webhook": f"webhooks are {_LATER}",
    "hooks": f"hooks are {_LATER}",
    "ratelimit": f"rate limits are {_LATER}; broker.receive_maximum, max_connections, "
                 f"server.max_connections_per_address and auth.ban_after bound what clients can do",
    **{f"server.mqtt.{transport}.{slot}.{name}": f"a {slot} slot has no TLS: use server.mqtt.{transport}.tls or mtls"
       for transport in ("tcp", "websocket") for slot in ("plain", "v3", "v5") for name in TLS_KEYS},
    **{f"server.amqp091.plain.{name}": "a plain slot has no TLS: use server.amqp091.tls or mtls" for name in TLS_KEYS},
    **{f"server.mqtt.tcp.*.{name}": f"{name} is for WebSocket: use the same slot of server.mqtt.websocket"
       for name in ("path", "allowed_origins")},
}

# (key, value): values that other brokers and versions accept.
REFUSED_VALUES: Mapping[tuple[str, str | bool], str] = {
    ("storage.type", "badger"): "its files cannot be read here; the embedded store is rocksdb",
    ("cluster.raft.distribution_mode", "replicate"): f"deliveries from every replica's own copy are {_LATER}: with "
                                                    "forward the leader of the group delivers to consumers of all "
                                                    "nodes",
    **{(f"{slot}.{name}", value): reason for slot in (_SLOT, _AMQP_SLOT) for name, value, reason in (
        ("client_auth", "require_any", "a certificate nobody signed proves nothing: use require with ca_file"),
        ("client_auth", "verify_if_given", "that is what request does here: the certificate is checked if given"),
        ("min_version", "tls1.0", "TLS 1.0 is broken and RFC 8996 forbids it: tls1.2 or tls1.3"),
        ("min_version", "tls1.1", "TLS 1.1 is broken and RFC 8996 forbids it: tls1.2 or tls1.3"))},
}


def _by_length() -> dict[int, list[tuple[list[str], str]]]:
    patterns: dict[int, list[tuple[list[str], str]]] = {}
    for pattern, reason in REFUSED.items():
        words = pattern.split(".")
        patterns.setdefault(len(words), []).append((words, reason))
    return patterns


# Number of words → patterns; every key that is read is compared with them.
_PATTERNS = _by_length()


def _matches(wanted: list[str], names: list[str]) -> bool:
    return all(a in ("*", b) for a, b in zip(wanted, names, strict=True))


def refusal(path: str, value: object = None) -> str | None:
    """Why this key (or a section that it lies in), or this value of it, is refused. None when it is not listed."""
    names = path.split(".")
    for length in range(1, len(names) + 1):
        for wanted, reason in _PATTERNS.get(length, ()):
            if _matches(wanted, names[:length]):
                return reason
    for (pattern, refused), reason in REFUSED_VALUES.items():
        words = pattern.split(".")
        if (value == refused and type(value) is type(refused)) and len(words) == len(names) and _matches(words, names):
            return reason
    return None
