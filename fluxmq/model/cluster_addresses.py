"""Who listens where in a cluster, and what the others dial: `addresses` derives it from the configuration.

Nothing is resolved or opened. The texts are those of loaded configurations; app/cluster_checks.py refuses others.

What others dial is what the entries of this node in `initial_cluster` and `peers` say; without an entry, the address
that is bound. Where that is every interface (0.0.0.0), 127.0.0.1 stands in for it, which is right only as long as there
is no other node: the checks refuse it as soon as there is one.
"""
import re
from pathlib import Path
from typing import NamedTuple

from fluxmq.model.address import Address, parse_address
from fluxmq.model.config import Config

__all__ = ["NODE_ID", "ClusterAddresses", "EtcdMember", "addresses", "names_others", "read_endpoint", "read_members"]

# The names of nodes.
NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_URL = re.compile(r"(https?)://([^/?#]+)/?", re.ASCII)


class EtcdMember(NamedTuple):
    """The etcd process of this node: values of its options. name: --name. data_dir: --data-dir. peer_listen, peer_url:
    --listen-peer-urls, --initial-advertise-peer-urls. client_listen, client_url: the same for clients.
    initial_cluster: (name, url) of every member, this one too, in the order of the configuration; url is where the
    others dial it, and serves GET /members with the addresses for clients."""

    name: str
    data_dir: str
    peer_listen: str
    peer_url: str
    client_listen: str
    client_url: str
    initial_cluster: tuple[tuple[str, str], ...]

    @property
    def initial_cluster_text(self) -> str:
        """The value of --initial-cluster."""
        return ",".join(f"{name}={url}" for name, url in self.initial_cluster)


class ClusterAddresses(NamedTuple):
    """member: None if etcd is somewhere else. endpoints: host:port of etcd for this node as its client, in the order in
    which to try them: of its own member, or cluster.etcd.endpoints. transport_listen: what the transport
    binds. transport_address: host:port that others dial, to be registered. peers: host:port of other nodes that the
    configuration names; it counts before what they have registered."""

    member: EtcdMember | None
    endpoints: tuple[str, ...]
    transport_listen: Address
    transport_address: str
    peers: dict[str, str]


def read_members(text: str) -> list[tuple[str, str, Address]]:
    """(name, scheme, address) of each member in `cluster.etcd.initial_cluster`, in its order; repeated names too.
    Raises ValueError with a sentence."""
    members = []
    for entry in text.split(",") if text else ():
        name, equals, url = (part.strip() for part in entry.partition("="))
        if not equals or not NODE_ID.fullmatch(name):
            raise ValueError(f"{entry.strip()!r} is not name=url, such as broker-1=http://10.0.0.1:2380; a name has "
                             "letters, digits, '.', '_' and '-', at most 64")
        scheme, address = _read_url(url)
        if not scheme:
            raise ValueError(f"{url!r} is no URL: write http://{url} or, with cluster.etcd.tls, https://{url}")
        members.append((name, scheme, address))
    return members


def read_endpoint(text: str) -> tuple[str, Address]:
    """(scheme or "", address) of one of `cluster.etcd.endpoints`. Raises ValueError with a sentence."""
    return _read_url(text)


def _read_url(url: str) -> tuple[str, Address]:
    scheme, rest = "", url
    if "://" in url:
        match = _URL.fullmatch(url)
        if match is None:
            raise ValueError(f"{url!r} is not http://host:port or https://host:port")
        scheme, rest = match[1], match[2]
    return scheme, parse_address(rest)


def names_others(config: Config) -> bool:
    """Whether the configuration says that there are, or may be, further nodes."""
    cluster = config.cluster
    return (bool(cluster.etcd.endpoints) or not cluster.etcd.bootstrap or bool(set(cluster.transport.peers) - {
        cluster.node_id}) or any(name != cluster.node_id for name, _, _ in read_members(cluster.etcd.initial_cluster)))


def addresses(config: Config) -> ClusterAddresses:
    """Of a loaded configuration with cluster.enabled."""
    cluster = config.cluster
    etcd, node = cluster.etcd, cluster.node_id
    listen = parse_address(cluster.transport.bind_addr)
    own = cluster.transport.peers.get(node)
    dialled = parse_address(own) if own is not None else listen
    peers = {name: str(parse_address(text)) for name, text in cluster.transport.peers.items() if name != node}
    member = None if etcd.endpoints else _member(config)
    if member is None:
        endpoints = tuple(dict.fromkeys(str(read_endpoint(text)[1]) for text in etcd.endpoints))
    else:
        # A wildcard is dialled through loopback; with TLS by the name that the member's certificate is made for.
        bound = parse_address(etcd.client_addr)
        endpoints = (member.client_url.partition("://")[2] if bound.is_wildcard and etcd.tls.enabled else
                     str(_loopback_for(bound)),)
    return ClusterAddresses(member, endpoints, listen, str(_loopback_for(dialled)), peers)


def _member(config: Config) -> EtcdMember:
    etcd, node = config.cluster.etcd, config.cluster.node_id
    scheme = "https" if etcd.tls.enabled else "http"
    peer, client = parse_address(etcd.bind_addr), parse_address(etcd.client_addr)
    members = [(name, _loopback_for(address)) for name, _, address in read_members(etcd.initial_cluster)] or [
        (node, _loopback_for(peer))]
    own = dict(members)[node]
    return EtcdMember(
        name=node, data_dir=etcd.data_dir or str(Path(config.storage.dir) / "etcd"),
        peer_listen=f"{scheme}://{_bound(peer)}", peer_url=f"{scheme}://{own}",
        client_listen=f"{scheme}://{_bound(client)}",
        client_url=f"{scheme}://{Address(own.host, client.port) if client.is_wildcard else client}",
        initial_cluster=tuple((name, f"{scheme}://{address}") for name, address in members))


def _bound(address: Address) -> Address:
    """etcd binds IP addresses only; on 0.0.0.0 it takes both families."""
    return address if address.host else Address("0.0.0.0", address.port)


def _loopback_for(address: Address) -> Address:
    if not address.is_wildcard:
        return address
    return Address("::1" if ":" in address.host else "127.0.0.1", address.port)
