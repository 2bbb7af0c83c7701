"""Checks of the section `cluster`, and what a start with it should warn of. Nothing is checked while cluster.enabled is
false.

A message says what is wrong and what to write instead; config_checks.py has the checks of the other sections.
"""
import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from fluxmq.app.config_files import Finding, readable
from fluxmq.model.address import Address, parse_address
from fluxmq.model.cluster import ClusterTls
from fluxmq.model.cluster_addresses import NODE_ID, names_others, read_endpoint, read_members
from fluxmq.model.config import Config
from fluxmq.model.extras import how_to_install

__all__ = ["bound_by_cluster", "check_cluster", "cluster_warnings", "missing_modules"]

_NODE, _MEMBERS, _PEERS = "cluster.node_id", "cluster.etcd.initial_cluster", "cluster.transport.peers"
_PEER_ADDR, _CLIENT_ADDR, _ENDPOINTS = "cluster.etcd.bind_addr", "cluster.etcd.client_addr", "cluster.etcd.endpoints"
_TRANSPORT_ADDR = "cluster.transport.bind_addr"
# Of the extra: what is imported, and by which name.
_MODULES = ("grpc", "etcd3", "google.protobuf")


def bound_by_cluster(config: Config) -> list[tuple[str, Address]]:
    """(path of the key, address) of what a node of a cluster listens on besides its listeners; without a cluster
    none."""
    cluster = config.cluster
    if not cluster.enabled:
        return []
    paths = {_TRANSPORT_ADDR: cluster.transport.bind_addr}
    if not cluster.etcd.endpoints:
        paths = {_PEER_ADDR: cluster.etcd.bind_addr, _CLIENT_ADDR: cluster.etcd.client_addr} | paths
    return [(path, parse_address(text)) for path, text in paths.items()]


def check_cluster(config: Config) -> Iterator[Finding]:
    """All findings."""
    if not config.cluster.enabled:
        return
    problem = next(_unreadable(config), None)
    if problem is not None:     # the other checks need what it is about
        yield from _unreadable(config)
        return
    for check in (_node, _binding, _members, _endpoints, _peers, _dialled, _tls, _directory):
        yield from check(config)


def _unreadable(config: Config) -> Iterator[Finding]:
    """Texts that are no addresses."""
    cluster = config.cluster
    try:
        read_members(cluster.etcd.initial_cluster)
    except ValueError as error:
        yield (_MEMBERS,), str(error)
    for text in cluster.etcd.endpoints:
        try:
            read_endpoint(text)
        except ValueError as error:
            yield (_ENDPOINTS,), str(error)
    for name, text in cluster.transport.peers.items():
        try:
            if not NODE_ID.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a node: it has letters, digits, '.', '_' and '-', at most 64")
            parse_address(text)
        except ValueError as error:
            yield (_PEERS,), str(error)


def _node(config: Config) -> Iterator[Finding]:
    cluster = config.cluster
    if not cluster.node_id:
        yield (_NODE, "cluster.enabled"), "must be set with cluster.enabled: the name of this node, such as broker-1"
    if cluster.lease_ttl != int(cluster.lease_ttl):
        yield ("cluster.lease_ttl",), "must be whole seconds: that is how etcd counts"
    if config.storage.type == "memory":
        yield ("storage.type", "cluster.enabled"), (
            "must be rocksdb with cluster.enabled: the other nodes rely on what this one has stored")
    if missing := missing_modules():
        yield ("cluster.enabled",), f"{' and '.join(missing)} cannot be found, install it: {how_to_install('cluster')}"


def missing_modules() -> list[str]:
    """Those of the extra that are not installed."""
    return [name for name in _MODULES if not _installed(name)]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:     # of the package that it is in
        return False


def _binding(config: Config) -> Iterator[Finding]:
    for path, address in bound_by_cluster(config):
        if address.port == 0:
            yield (path,), f"{address}: port 0 picks a free port, which the others cannot know: write one"
        if path != _TRANSPORT_ADDR and address.host and not _is_ip(address) and address.host != "localhost":
            yield (path,), (f"etcd listens on IP addresses only, and {address.host} is a name: write the address, or "
                            f"0.0.0.0:{address.port} for every interface")


def _is_ip(address: Address) -> bool:
    return ":" in address.host or address.host.replace(".", "").isdigit()


def _members(config: Config) -> Iterator[Finding]:
    cluster = config.cluster
    members = read_members(cluster.etcd.initial_cluster)
    if cluster.etcd.endpoints:
        for path, given in ((_MEMBERS, bool(members)), ("cluster.etcd.bootstrap", not cluster.etcd.bootstrap)):
            if given:
                yield (path, _ENDPOINTS), f"does nothing with {_ENDPOINTS}, which is etcd elsewhere: leave out one"
        return
    names = [name for name, _, _ in members]
    for name in _repeated(names):
        yield (_MEMBERS,), f"{name} is named twice: each node has a name of its own"
    for (name, _, one), (other, _, address) in combinations(members, 2):
        if one == address and name != other:
            yield (_MEMBERS,), f"{name} and {other} have the same address, {address}"
    if names and cluster.node_id and cluster.node_id not in names:
        yield (_MEMBERS, _NODE), (
            f"does not name this node, {cluster.node_id}: add {cluster.node_id}=URL to it, or set cluster.node_id to "
            f"one of {', '.join(names)}")
    if not cluster.etcd.bootstrap and not set(names) - {cluster.node_id}:
        yield (_MEMBERS, "cluster.etcd.bootstrap"), (
            "must name members of the cluster that this node joins, because cluster.etcd.bootstrap is false")
    for name, scheme, address in members:
        if address.port == 0:
            yield (_MEMBERS,), f"{name}={scheme}://{address}: a port is needed, not 0"
        yield from _scheme(_MEMBERS, f"{name}={scheme}://{address}", scheme, cluster.etcd.tls)


def _repeated(names: list[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _scheme(path: str, written: str, scheme: str, tls: ClusterTls) -> Iterator[Finding]:
    if scheme == "http" and tls.enabled:
        yield (path, "cluster.etcd.tls.cert_file"), (
            f"{written}: write https://, because cluster.etcd.tls is set, or leave that out")
    if scheme == "https" and not tls.enabled:
        yield (path, "cluster.etcd.tls.cert_file"), (
            f"{written}: https needs cert_file, key_file and ca_file in cluster.etcd.tls; or write http://")


def _endpoints(config: Config) -> Iterator[Finding]:
    for text in config.cluster.etcd.endpoints:
        scheme, address = read_endpoint(text)
        if address.port == 0 or address.is_wildcard:
            yield (_ENDPOINTS,), f"{text} cannot be dialled: write an address and a port of that etcd"
        yield from _scheme(_ENDPOINTS, text, scheme, config.cluster.etcd.tls)


def _peers(config: Config) -> Iterator[Finding]:
    cluster = config.cluster
    bound = parse_address(cluster.transport.bind_addr)
    peers = {name: parse_address(text) for name, text in cluster.transport.peers.items()}
    for (name, one), (other, address) in combinations(peers.items(), 2):
        if one == address:
            yield (_PEERS,), f"{name} and {other} have the same address, {address}"
    for name, address in peers.items():
        if address.port == 0:
            yield (_PEERS,), f"{name}: {address}: a port is needed, not 0"
        if name != cluster.node_id and cluster.node_id not in peers and address == bound:
            yield (_PEERS, _TRANSPORT_ADDR), (
                f"{name} has the address of this node, {_TRANSPORT_ADDR}: {address}")
    own = peers.get(cluster.node_id)
    if own is not None and not _leads_here(own, bound):
        yield (_PEERS, _TRANSPORT_ADDR), (
            f"this node, {cluster.node_id}, has another address here, {own}, than it listens on, {bound}: set "
            f"{_TRANSPORT_ADDR} to {own}, or to 0.0.0.0:{bound.port} if what reaches {own} is passed on to this node")


def _leads_here(address: Address, bound: Address) -> bool:
    """Whether who dials the address may arrive at the one that is bound. Names are not resolved."""
    if bound.is_wildcard:
        return True
    if address.port != bound.port or address.is_loopback != bound.is_loopback:
        return False
    return not (_is_ip(address) and _is_ip(bound)) or address.overlaps(bound)


def _dialled(config: Config) -> Iterator[Finding]:
    """What other nodes dial must be an address of this machine for them too."""
    cluster = config.cluster
    node = cluster.node_id
    if not node or not names_others(config):
        return
    peers = {name: parse_address(text) for name, text in cluster.transport.peers.items()}
    members = {name: address for name, _, address in read_members(cluster.etcd.initial_cluster)}
    bound, member_bound = parse_address(cluster.transport.bind_addr), parse_address(cluster.etcd.bind_addr)
    for path, known, form in ((_MEMBERS, members, "{}=http://10.0.0.1:{}"), (_PEERS, peers, "{}: 10.0.0.1:{}")):
        for name, address in known.items():
            if address.is_wildcard:
                yield (path,), (f"{name} has {address} here, which other machines cannot dial: write the address under "
                                f"which they reach it, such as {form.format(name, address.port)}")
    if node not in peers and bound.is_wildcard:
        yield (_TRANSPORT_ADDR, _PEERS), (
            f"the other nodes cannot dial {bound}: add to {_PEERS} the address under which they reach this node, such "
            f"as {{{node}: \"10.0.0.1:{bound.port}\"}}, or write it here")
    # On 127.0.0.1 another machine finds itself.
    far = next((address for each in (peers, members) for name, address in each.items()
                if name != node and not address.is_loopback and not address.is_wildcard), None)
    if far is None:
        return
    text = (f"{{}} is this machine only, and others are at addresses like {far}: write the address under which they "
            "reach this node")
    if (own := peers.get(node, bound)).is_loopback:
        yield (_PEERS if node in peers else _TRANSPORT_ADDR,), text.format(own)
    if node in members and members[node].is_loopback:
        yield (_MEMBERS,), text.format(f"{node}={members[node]}")
    elif node in members and member_bound.is_loopback:
        yield (_PEER_ADDR, _MEMBERS), (
            f"the other members dial {members[node]}, and {member_bound} is this machine only: listen on an IP address "
            f"that they reach, or on 0.0.0.0:{member_bound.port}")


def _tls(config: Config) -> Iterator[Finding]:
    cluster = config.cluster
    for section, tls, needed in (
            ("cluster.etcd.tls", cluster.etcd.tls, ("ca_file",) if cluster.etcd.endpoints and not (
                cluster.etcd.tls.cert_file or cluster.etcd.tls.key_file) else ("cert_file", "key_file", "ca_file")),
            ("cluster.transport.tls", cluster.transport.tls, ("cert_file", "key_file", "ca_file"))):
        if tls.enabled:
            for name in needed:
                file = getattr(tls, name)
                if file:
                    yield from readable(f"{section}.{name}", file)
                else:
                    yield (f"{section}.{name}", section), (
                        f"must be set too: {section} is mutual, with cert_file, key_file and ca_file")


def _directory(config: Config) -> Iterator[Finding]:
    etcd = config.cluster.etcd
    if etcd.data_dir and os.path.exists(etcd.data_dir) and not os.path.isdir(etcd.data_dir):
        yield ("cluster.etcd.data_dir",), f"{etcd.data_dir} is not a directory"
    if etcd.data_dir and os.path.abspath(etcd.data_dir) == os.path.abspath(config.storage.dir):
        yield ("cluster.etcd.data_dir", "storage.dir"), "is that of storage.dir: etcd needs one of its own"
    if etcd.binary and shutil.which(etcd.binary) is None:
        yield ("cluster.etcd.binary",), (
            f"{etcd.binary} is no program that can be run: write the path of etcd, or leave it out to find it in PATH")


# ------------------------------------------------------------------ warnings

_METADATA = ("who reaches it reads and changes all that the cluster keeps in etcd (retained messages, wills, "
             "subscriptions) and takes any session")


def cluster_warnings(config: Config) -> list[str]:
    """A line for each thing that works and is likely not meant, for the log at start."""
    cluster = config.cluster
    if not cluster.enabled:
        return []
    bound = dict(bound_by_cluster(config))
    lines = []
    for path, section, tls, what in (
            (_PEER_ADDR, "cluster.etcd.tls", cluster.etcd.tls, _METADATA),
            (_CLIENT_ADDR, "cluster.etcd.tls", cluster.etcd.tls, _METADATA),
            (_TRANSPORT_ADDR, "cluster.transport.tls", cluster.transport.tls,
             "who reaches it publishes anything to any client, and takes any session with its messages")):
        if path in bound and not bound[path].is_loopback and not tls.enabled:
            lines.append(f"{path}: {bound[path]} can be reached by other machines without TLS: {what}. Set {section}, "
                         "or let only the nodes reach it")
    far = [text for text in cluster.etcd.endpoints if not read_endpoint(text)[1].is_loopback]
    if far and not cluster.etcd.tls.enabled:
        lines.append(f"{_ENDPOINTS}: {', '.join(far)} without TLS: who is on the way reads and changes all that the "
                     "cluster keeps in etcd. Set cluster.etcd.tls")
    lines += _only_here(config, bound)
    if config.auth.users_file:
        lines.append(f"auth.users_file: {config.auth.users_file} is this node's own: every node needs the same file, "
                     "and SIGHUP after a change. With auth.cluster_users a change on one node holds on all")
    if config.auth.acl_file:
        lines.append(f"auth.acl_file: {config.auth.acl_file} is this node's own: every node needs the same file, and "
                     "SIGHUP after a change. With auth.cluster_permissions a change on one node holds on all")
    voters = len(read_members(cluster.etcd.initial_cluster))
    if voters and voters % 2 == 0 and cluster.etcd.bootstrap:  # otherwise it names only some of them
        lines.append(f"{_MEMBERS}: {voters} members stand no more losses than {voters - 1}: take an odd number")
    return lines


def _only_here(config: Config, bound: dict[str, Address]) -> Iterator[str]:
    """What other machines cannot reach, although there are nodes on others."""
    cluster = config.cluster
    own = cluster.transport.peers.get(cluster.node_id, cluster.transport.bind_addr)
    if not names_others(config) or parse_address(own).is_loopback:
        return
    if _CLIENT_ADDR in bound and bound[_CLIENT_ADDR].is_loopback:
        yield (f"{_CLIENT_ADDR}: {bound[_CLIENT_ADDR]} is this machine only: other nodes cannot use this node's member "
               "of etcd while their own is down, and nodes that join cannot ask it. Write an address that they reach")
    listeners = [(path, slot.address) for path, slot in config.mqtt_listeners()]
    if listeners and all(address is not None and address.is_loopback for _, address in listeners):
        yield (f"{', '.join(path for path, _ in listeners)}: no MQTT client of another machine reaches this node, "
               f"although nodes that leave send theirs here: write an address that clients reach into "
               f"{listeners[0][0]}.addr")
