"""Checks keys against each other and against files, when each value by itself is valid.

Each check yields (paths, text): the first path is reported, the others are those that it was compared with.
Those of a cluster are imported only for one, so that other starts are quick.
"""
import importlib.util
import os
import re
import ssl
from collections.abc import Callable, Iterator
from itertools import combinations

from fluxmq._core.wire.text import check_filter
from fluxmq.app.config_files import Finding, readable
from fluxmq.model import limits
from fluxmq.model.address import Address, parse_address
from fluxmq.model.config import Config
from fluxmq.model.extras import how_to_install
from fluxmq.model.listeners import TlsListener, TlsWebSocket, WebSocketListener
from fluxmq.model.origins import read_network
from fluxmq.model.raft import ClusterRaft
from fluxmq.model.record import RECORD_PROTOCOLS

__all__ = ["check", "is_topic_choice"]

_CIPHER_NAME = re.compile(r"[A-Za-z0-9-]+", re.ASCII)
_ORIGIN = re.compile(r"(?:https?://(?:\[[0-9a-fA-F:.]+\]|[^/\s\[\]:@?#]+)(?::[0-9]{1,5})?|null)", re.ASCII)


def check(config: Config) -> Iterator[Finding]:
    """All findings of all checks."""
    for one in _CHECKS:
        yield from one(config)


def _bound(config: Config) -> list[tuple[str, Address]]:
    """(path of the key, address) of all TCP listeners."""
    bound = [(f"{path}.addr", parse_address(slot.addr)) for path, slot in config.listeners()]
    if config.server.serves_health:
        bound.append(("server.health_addr", parse_address(config.server.health_addr)))
    if config.cluster.enabled:
        from fluxmq.app.cluster_checks import bound_by_cluster

        bound += bound_by_cluster(config)
    return bound


def _addresses(config: Config) -> Iterator[Finding]:
    if next(config.listeners(), None) is None:
        yield ("server",), "nothing listens: give a slot an address, such as server.mqtt.tcp.plain.addr"
    for (first, one), (second, other) in combinations(_bound(config), 2):
        if one.overlaps(other):
            yield (second, first), f"{other} clashes with {first} ({one}): one port cannot be listened on twice"


def _tls(config: Config) -> Iterator[Finding]:
    for path, slot in config.listeners():
        if isinstance(slot, TlsListener):
            yield from _tls_files(path, slot)
            yield from _tls_clients(path, slot)
            yield from _ciphers(path, slot)


def _tls_files(path: str, slot: TlsListener) -> Iterator[Finding]:
    needed = ["cert_file", "key_file"] + (["ca_file"] if slot.client_auth_effective != "none" else [])
    for name in ("cert_file", "key_file", "ca_file"):
        file = getattr(slot, name)
        if file:
            yield from readable(f"{path}.{name}", file)
        elif name in needed:
            why = "client certificates cannot be checked without it" if name == "ca_file" else "TLS needs it"
            yield (f"{path}.{name}", f"{path}.addr"), f"must be set, because {path}.addr is: {why}"


def _tls_clients(path: str, slot: TlsListener) -> Iterator[Finding]:
    if slot.client_auth_effective == "none":
        if slot.ca_file:
            yield (f"{path}.ca_file", f"{path}.client_auth"), (
                "does nothing with client_auth none: leave out one of the two")
        if slot.username_from:
            yield (f"{path}.username_from", f"{path}.client_auth"), (
                "there are no client certificates to take it from: set client_auth to request or require")


def _ciphers(path: str, slot: TlsListener) -> Iterator[Finding]:
    key = f"{path}.cipher_suites"
    if slot.cipher_suites and slot.min_version == "tls1.3":
        yield (key, f"{path}.min_version"), "chooses among suites of TLS 1.2, and min_version is tls1.3: leave it out"
    for name in slot.cipher_suites:
        if name.startswith("TLS_") and "_WITH_" not in name:
            yield (key,), f"{name} is a suite of TLS 1.3; those are strong, always on and not selectable: leave it out"
        elif name.startswith("TLS_"):
            yield (key,), f"{name} is the IANA name: write OpenSSL's, such as ECDHE-RSA-AES128-GCM-SHA256"
        elif not _CIPHER_NAME.fullmatch(name) or not _known_cipher(name):
            yield (key,), f"{name!r} is no cipher suite of this OpenSSL; `openssl ciphers -s -tls1_2` lists them"


def _known_cipher(name: str) -> bool:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers(name)
    except ssl.SSLError:
        return False
    return any(cipher["name"] == name for cipher in context.get_ciphers())


def _websocket(config: Config) -> Iterator[Finding]:
    for path, slot in config.mqtt_listeners():
        if isinstance(slot, (WebSocketListener, TlsWebSocket)):
            for origin in slot.allowed_origins:
                if origin != "*" and not _ORIGIN.fullmatch(origin):
                    yield (f"{path}.allowed_origins",), (
                        f"{origin!r} is not an origin: write scheme://host[:port] without a path, or \"*\"")


def _who_may_connect(config: Config) -> Iterator[Finding]:
    auth = config.auth
    for path, slot in config.listeners():
        address = parse_address(slot.addr)
        names_by_certificate = isinstance(slot, TlsListener) and bool(slot.username_from)
        if config.anonymous_allowed(slot) or auth.has_users or (names_by_certificate and slot.requires_certificate):
            continue
        if auth.allow_anonymous is False:
            yield ("auth.allow_anonymous", "auth.users_file", f"{path}.username_from"), (
                f"nobody could connect to {path}: set auth.users_file (`fluxmq user add NAME --file FILE` makes one)")
        elif not address.is_loopback:
            yield (f"{path}.addr", "auth.users_file", "auth.allow_anonymous", f"{path}.client_auth"), (
                f"{address} can be reached by other machines, and nothing says who may connect: set auth.users_file "
                f"(`fluxmq user add NAME --file FILE` makes one), or use an mtls slot, or listen on "
                f"{_loopback(address)}, or set auth.allow_anonymous to true if everybody may")


def _loopback(address: Address) -> Address:
    return Address("::1" if ":" in address.host else "127.0.0.1", address.port)


def _files(config: Config) -> Iterator[Finding]:
    auth, storage = config.auth, config.storage
    if auth.users_file:
        yield from readable("auth.users_file", auth.users_file, "; `fluxmq user add NAME --file FILE` makes one")
    if auth.users_file and auth.cluster_users:
        yield ("auth.users_file", "auth.cluster_users"), (
            "users are those of a file, or the cluster's: set one of the two (`fluxmq user import FILE` gives the "
            "cluster those of the file)")
    if auth.cluster_users and not config.cluster.enabled:
        yield ("auth.cluster_users", "cluster.enabled"), (
            "there is no cluster that could have users: set cluster.enabled, or auth.users_file instead")
    if auth.acl_file and auth.cluster_permissions:
        yield ("auth.acl_file", "auth.cluster_permissions"), (
            "permissions are those of a file, or the cluster's: set one of the two")
    if auth.cluster_permissions and not config.cluster.enabled:
        yield ("auth.cluster_permissions", "cluster.enabled"), (
            "there is no cluster that could have permissions: set cluster.enabled, or auth.acl_file instead")
    if auth.acl_file:
        yield from readable("auth.acl_file", auth.acl_file)
    if storage.type == "rocksdb" and os.path.exists(storage.dir) and not os.path.isdir(storage.dir):
        yield ("storage.dir",), f"{storage.dir} is not a directory"


def _numbers(config: Config) -> Iterator[Finding]:
    session = config.session
    if session.send_buffer_low >= session.send_buffer_high:
        yield ("session.send_buffer_low", "session.send_buffer_high"), (
            f"must be smaller than session.send_buffer_high, {session.send_buffer_high} bytes")
    if config.broker.server_keep_alive_max != int(config.broker.server_keep_alive_max):
        yield ("broker.server_keep_alive_max",), "must be whole seconds: that is how MQTT 5 tells clients"


def _amqp(config: Config) -> Iterator[Finding]:
    amqp, path = config.amqp091, "amqp091.virtual_hosts"
    if not amqp.virtual_hosts:
        yield (path,), "must name at least one, such as \"/\": nobody could open a connection"
    for name in sorted({name for name in amqp.virtual_hosts if amqp.virtual_hosts.count(name) > 1}):
        yield (path,), f"{name!r} is given twice"
    for name in amqp.virtual_hosts:
        if not name:
            yield (path,), "a name is empty"
        elif len(name.encode()) > limits.AMQP_SHORT_STRING_BYTES_MAX:
            yield (path,), f"{name!r} is longer than {limits.AMQP_SHORT_STRING_BYTES_MAX} bytes, all that AMQP can say"
    if amqp.heartbeat != int(amqp.heartbeat):
        yield ("amqp091.heartbeat",), "must be whole seconds: that is how AMQP tells clients"
    if 0 < amqp.memory_high < limits.AMQP_MEMORY_HIGH_BYTES_MIN:
        yield ("amqp091.memory_high",), "must be 0B or at least 64MiB, or the broker would block all from its start"


def _namespaces(config: Config) -> Iterator[Finding]:
    known = config.namespace_names()
    listed = ", ".join(sorted(known))
    for at, spec in enumerate(config.queues):
        if spec.namespace not in known:
            yield (f"queues[{at}].namespace", "queues", "namespaces"), (
                f"{spec.namespace!r} is no namespace: add it to namespaces, or use one of {listed}")
    for path, slot in config.mqtt_listeners():
        if slot.namespace not in known:
            yield (f"{path}.namespace", "namespaces"), (
                f"{slot.namespace!r} is no namespace: add it to namespaces, or use one of {listed}")


def is_topic_choice(text: str) -> bool:
    """Whether a recording may select by this topic filter: an ordinary subscription's, not a shared subscription's."""
    return check_filter(text.encode("utf-8", "surrogateescape")) == 1 and not text.startswith("$share/")


def _exempt(config: Config) -> Iterator[Finding]:
    server = config.server
    for path, networks in (("server.exempt_networks", server.exempt_networks),
                           ("server.proxy_networks", server.proxy_networks)):
        for text in networks:
            try:
                read_network(text)
            except ValueError as error:
                yield (path,), str(error)
    if server.proxy_usernames and not server.proxy_networks:
        yield ("server.proxy_usernames", "server.proxy_networks"), (
            "no balancer could name a user: set server.proxy_networks to the addresses from which they connect")


def _record(config: Config) -> Iterator[Finding]:
    record = config.record
    for name in record.protocols:
        if name not in RECORD_PROTOCOLS:
            yield ("record.protocols",), f"{name!r} is no protocol; there are: {', '.join(RECORD_PROTOCOLS)}"
    for filter_ in record.topics:
        if not is_topic_choice(filter_):
            yield ("record.topics",), f"{filter_!r} is no filter of topics, such as sensors/+/temperature or plant/#"
    for name in record.clients:
        if not name:
            yield ("record.clients",), "a client id may not be empty"
    if os.path.exists(record.dir) and not os.path.isdir(record.dir):
        yield ("record.dir",), f"{record.dir} is not a directory"
    if record.enabled and importlib.util.find_spec("pyarrow") is None:
        yield ("record.enabled",), f"recordings are Parquet, and pyarrow is not installed: {how_to_install('record')}"


def _dead_letters(config: Config) -> Iterator[Finding]:
    types = {spec.address: spec.type for spec in config.queues}
    for number, spec in enumerate(config.queues):
        letters = spec.address[0], spec.dead_letter_queue.encode("utf-8", "surrogateescape")
        if types.get(letters, "classic") != "classic":
            yield (f"queues[{number}].dlq.topic", "queues"), (
                f"the dead letters of {spec.name} would go to {spec.dead_letter_queue}, which is of type "
                f"{types[letters]}: name a classic queue, from which they can be put back")


def _cluster(config: Config) -> Iterator[Finding]:
    if config.cluster.enabled:
        from fluxmq.app.cluster_checks import check_cluster

        yield from check_cluster(config)


def _replication(config: Config) -> Iterator[Finding]:
    if config.cluster.raft != ClusterRaft() or any(spec.replication.enabled for spec in config.queues):
        from fluxmq.app.raft_checks import check_raft

        yield from check_raft(config)


_CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _addresses, _tls, _websocket, _who_may_connect, _files, _numbers, _amqp, _namespaces, _exempt, _record,
    _dead_letters, _cluster, _replication)
