"""Checks certificates before clients and other nodes do: whether the files belong together, whether they are in date,
and whether the other nodes would accept this one's."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from fluxmq._core.errors import ConfigError
from fluxmq.model.address import parse_address
from fluxmq.model.cluster import ClusterTls
from fluxmq.model.cluster_addresses import addresses
from fluxmq.model.config import Config
from fluxmq.model.listeners import TlsListener

if TYPE_CHECKING:
    from fluxmq.access.tls import ServerContexts

__all__ = ["Contexts", "check_certificates", "cluster_faults", "out_of_date", "server_contexts"]

# Of each listener with TLS: its key in the configuration, and the certificate that it sends.
Contexts: TypeAlias = "list[tuple[str, ServerContexts]]"


def server_contexts(path: str, slot: TlsListener) -> ServerContexts:
    """path: the listener's key in the configuration. Raises ConfigError for files that cannot be used."""
    # Imported here, so that a broker without TLS need not load the parser of certificates.
    from fluxmq.access.tls import ServerContexts

    return ServerContexts(slot.cert_file, slot.key_file, ca_file=slot.ca_file, client_auth=slot.client_auth_effective,
                          min_version=slot.min_version, cipher_suites=slot.cipher_suites, path=path)


def out_of_date(listeners: Sequence[tuple[str, ServerContexts]]) -> list[str]:
    """A line for each listener whose certificate is outside of its dates, so that clients refuse it."""
    now = datetime.now(UTC)
    return [f"{path}.cert_file: {problem}" for path, contexts in listeners if (problem := contexts.out_of_date(now))]


def check_certificates(config: Config) -> Iterator[str]:
    """Finds what a start or clients would refuse: files without a certificate, keys of another one, dates."""
    for path, slot in config.listeners():
        if isinstance(slot, TlsListener):
            try:
                contexts = server_contexts(path, slot)
            except ConfigError as error:
                yield from _all_faults(path, slot, error)
            else:
                yield from out_of_date([(path, contexts)])
    yield from map(str, cluster_faults(config))


def cluster_faults(config: Config) -> Iterator[ConfigError]:
    """What other nodes would refuse in the certificates of `cluster`; nothing without a cluster, or without TLS in
    it."""
    cluster = config.cluster
    if not cluster.enabled or not (cluster.etcd.tls.enabled or cluster.transport.tls.enabled):
        return
    found, now = addresses(config), datetime.now(UTC)
    if cluster.etcd.tls.enabled and found.member is not None:
        # The members dial the one, this node as its client the other.
        hosts = [found.member.peer_url.partition("://")[2], *found.endpoints]
        yield from _faults("cluster.etcd.tls", cluster.etcd.tls, hosts, now)
    if cluster.transport.tls.enabled:
        yield from _faults("cluster.transport.tls", cluster.transport.tls, [found.transport_address], now)


def _faults(path: str, tls: ClusterTls, dialled: Sequence[str], now: datetime) -> Iterator[ConfigError]:
    from fluxmq.access.node_tls import faults_of_node

    hosts = list(dict.fromkeys(parse_address(text).host for text in dialled))
    yield from faults_of_node(tls.cert_file, tls.key_file, tls.ca_file, hosts, path, now)


def _all_faults(path: str, slot: TlsListener, first: ConfigError) -> Iterator[str]:
    """first: the error of a start. Nothing more is reported about the file that it is about."""
    from fluxmq.access.tls import faults_of_files

    yield str(first)
    for fault in faults_of_files(slot.cert_file, slot.key_file, slot.ca_file, path, datetime.now(UTC)):
        if fault.path != first.path:
            yield str(fault)
