"""Names of the cluster's keys in etcd, and back (docs/internals/cluster.md, "Keys in etcd").

A part of a name that clients choose is percent-encoded where it has `%` or `/`, so that the number of slashes tells the
parts apart and a scan of a prefix is exact.
"""
from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BAN_ADDRESS", "BAN_USER", "BINDING", "DATA", "DOCUMENTS", "EXCHANGE", "GROUP", "LEADER", "NODES", "OWNER", "QUEUE",
    "QUEUE_DATA", "QUEUE_OWNER", "RETAINED_DATA", "RETAINED_INDEX", "ROOT", "SUBSCRIPTION", "WILL_DATA",
    "Name", "ban_key", "binding_key", "client_key", "document_key", "exchange_key", "group_key", "node_key", "node_of",
    "parse", "queue_key", "storage_key", "subscription_key", "topic_key", "voteless_key",
]

ROOT = b"/mqtt/"
NODES = ROOT + b"nodes/"
LEADER = ROOT + b"leader"

OWNER, DATA, SUBSCRIPTION = "owner", "data", "subscription"
RETAINED_DATA, RETAINED_INDEX = "retained-data", "retained-index"
WILL_DATA = "will-data"
QUEUE, QUEUE_DATA, QUEUE_OWNER = "queues", "queue-data", "queue-owners"
EXCHANGE, BINDING = "exchanges", "bindings"
GROUP = "groups"
BAN_ADDRESS, BAN_USER = "bans/address", "bans/user"
USER, USER_DECOY, PERMISSION = "users", "user-decoy", "permissions"
DOCUMENTS = frozenset({USER, USER_DECOY, PERMISSION})  # engine/ports/documents.py
TO_QUEUE, TO_EXCHANGE = b"q", b"e"

ONE_NAME = (RETAINED_DATA, RETAINED_INDEX, WILL_DATA, QUEUE, QUEUE_DATA, QUEUE_OWNER, EXCHANGE)

# Client identifiers of AMQP connections begin with these; an MQTT client that uses one is encoded differently.
AMQP_PREFIXES = (b"amqp:", b"amqp091-")


class Name(NamedTuple):
    """What a key is about. kind: one of the constants of this module. name: the client identifier, the topic, the
    queue, the exchange, the address of a ban; of a binding its source. filter: of a subscription; of a BAN_USER the
    user; else b""."""

    kind: str
    namespace: bytes
    name: bytes
    filter: bytes = b""


def encode(name: bytes) -> bytes:
    """Percent-encodes `%` and `/`."""
    return name.replace(b"%", b"%25").replace(b"/", b"%2F")


def decode(text: bytes) -> bytes:
    """The reverse of encode and encode_client. Raises ValueError for a `%` without two hexadecimal digits."""
    if b"%" not in text:
        return text
    first, *rest = text.split(b"%")
    parts = [first]
    for part in rest:
        if len(part) < 2:
            raise ValueError(f"% without two digits in {text!r}")
        parts += (bytes([int(part[:2], 16)]), part[2:])
    return b"".join(parts)


def encode_client(client_id: bytes) -> bytes:
    """As encode; but of an MQTT client identifier that begins like one of AMQP, the first byte too."""
    if client_id.startswith(AMQP_PREFIXES):
        return b"%%%02X" % client_id[0] + encode(client_id[1:])
    return encode(client_id)


def base(namespace: bytes) -> bytes:
    """The prefix of all keys of a namespace."""
    return ROOT if namespace == b"/" else ROOT + b"ns/" + encode(namespace) + b"/"


def node_key(node: str) -> bytes:
    """Of a node's registration."""
    return NODES + encode(node.encode())


def node_of(key: bytes) -> str | None:
    """The node whose registration this key is; None: it is another key."""
    return decode(key[len(NODES):]).decode(errors="replace") if key.startswith(NODES) else None


def storage_key(node: str) -> bytes:
    """Of the record of the storage directory that a node had last: claim.py."""
    return ROOT + b"storage/" + encode(node.encode())


def voteless_key(node: str) -> bytes:
    """It exists if an operator has taken a node's vote in etcd: etcd/own_member.py."""
    return ROOT + b"voteless/" + encode(node.encode())


def client_key(kind: str, namespace: bytes, client_id: bytes) -> bytes:
    """kind: OWNER, DATA or WILL_DATA."""
    client = encode_client(client_id)
    if kind in (OWNER, DATA):
        return base(namespace) + b"sessions/" + client + b"/" + kind.encode()
    return base(namespace) + kind.encode() + b"/" + client


def subscription_key(namespace: bytes, client_id: bytes, filter_: bytes = b"") -> bytes:
    """Of one subscription; without a filter, the prefix of all subscriptions of the client."""
    return base(namespace) + b"subscriptions/" + encode_client(client_id) + b"/" + encode(filter_)


def topic_key(kind: str, namespace: bytes, topic: bytes) -> bytes:
    """kind: RETAINED_DATA or RETAINED_INDEX."""
    return base(namespace) + kind.encode() + b"/" + encode(topic)


def queue_key(kind: str, namespace: bytes, queue: bytes) -> bytes:
    """kind: QUEUE, QUEUE_DATA or QUEUE_OWNER."""
    return base(namespace) + kind.encode() + b"/" + encode(queue)


def exchange_key(namespace: bytes, exchange: bytes) -> bytes:
    """Of an exchange that clients declared."""
    return base(namespace) + EXCHANGE.encode() + b"/" + encode(exchange)


def binding_key(namespace: bytes, source: bytes, destination: bytes, identity: int, mark: bytes, *,
                to_exchange: bool) -> bytes:
    """identity: of the destination. mark: tells bindings of the same two ends apart; without `/`."""
    end = TO_EXCHANGE if to_exchange else TO_QUEUE
    return base(namespace) + b"/".join((BINDING.encode(), encode(source), end, encode(destination), b"%d" % identity,
                                        mark))


def group_key(name: str) -> bytes:
    """Of a replication group."""
    return ROOT + GROUP.encode() + b"/" + encode(name.encode())


def ban_key(address: str, user: bytes | None = None) -> bytes:
    """Of the ban of an address, or of a user there. user b"": the prefix of all users there, and the user without a
    name."""
    if user is None:
        return ROOT + BAN_ADDRESS.encode() + b"/" + encode(address.encode())
    return ROOT + BAN_USER.encode() + b"/" + encode(address.encode()) + b"/" + encode(user)


def document_key(kind: str, namespace: bytes, name: bytes) -> bytes:
    """kind: USER, PERMISSION, which has a namespace, or USER_DECOY, which has no name."""
    parts = {USER: (name,), PERMISSION: (namespace, name)}.get(kind, ())
    return ROOT + b"/".join((kind.encode(), *map(encode, parts)))


def parse(key: bytes) -> Name | None:
    """What a key below ROOT is about; None: it is none of these (of a node, of the leader, or somebody else's)."""
    if not key.startswith(ROOT):
        return None
    parts = key[len(ROOT):].split(b"/")
    namespace = b"/"
    try:
        if parts[0] == b"ns" and len(parts) > 2:
            namespace = decode(parts[1])
            parts = parts[2:]
        names = [decode(part) for part in parts[1:]]
    except ValueError:
        return None
    kind = parts[0].decode("latin-1")
    if namespace == b"/" and (kind, len(names)) in ((USER, 1), (PERMISSION, 2), (USER_DECOY, 0)):
        return Name(kind, *names) if kind == PERMISSION else Name(kind, namespace, b"".join(names))
    if kind == "bans" and namespace == b"/":
        if len(names) == 2 and names[0] == b"address":
            return Name(BAN_ADDRESS, namespace, names[1])
        return Name(BAN_USER, namespace, names[1], names[2]) if len(names) == 3 and names[0] == b"user" else None
    if kind == "sessions" and len(names) == 2 and names[1] in (b"owner", b"data"):
        return Name(names[1].decode(), namespace, names[0])
    if kind == "subscriptions" and len(names) == 2:
        return Name(SUBSCRIPTION, namespace, names[0], names[1])
    if kind == GROUP and namespace == b"/" and len(names) == 1:
        return Name(GROUP, namespace, names[0])
    if kind in ONE_NAME and len(names) == 1:
        return Name(kind, namespace, names[0])
    if kind == BINDING and len(names) == 5:
        return Name(BINDING, namespace, names[0])
    return None
