"""The parts of a cluster node that outlive a life of its server: the etcd member, the client of etcd, the identity of
the data directory. A node that was fenced builds its server anew over these (`app/server.py`).
"""
from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from fluxmq import __version__
from fluxmq._core.errors import ConfigError, FluxError, StorageError
from fluxmq.app.driver import LoopDriver
from fluxmq.app.listeners import Listeners
from fluxmq.cluster.claim import OldStorage
from fluxmq.cluster.etcd.binary import check_version, find_binary, version_of
from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.endpoints import Tls as EtcdTls
from fluxmq.cluster.etcd.joining import Joiner
from fluxmq.cluster.etcd.local_member import EtcdLocalMember
from fluxmq.cluster.etcd.own_member import OwnMember
from fluxmq.cluster.etcd.process import EtcdMember, EtcdOptions, MemberTls
from fluxmq.cluster.leaderless import LeaderWatch
from fluxmq.cluster.membership import Registration
from fluxmq.cluster.messages import VERSIONS
from fluxmq.cluster.node import ClusterNode
from fluxmq.cluster.overview import Overview
from fluxmq.cluster.ports import Log
from fluxmq.cluster.rpc.tls import Tls as TransportTls
from fluxmq.cluster.rpc.transport import GrpcTransport
from fluxmq.cluster.settings import Settings
from fluxmq.engine.ports.driver import Work
from fluxmq.model.address import parse_address
from fluxmq.model.cluster import ClusterTls
from fluxmq.model.cluster_addresses import ClusterAddresses, addresses
from fluxmq.model.config import Config
from fluxmq.model.replication import ReplicationSettings
from fluxmq.storage.aside import set_storage_aside
from fluxmq.storage.lock import StorageLock
from fluxmq.storage.node_identity import NodeIdentity

__all__ = ["ClusterRuntime"]

ENDING_LIMIT_S = 5.0  # for tasks that were cancelled
MEMBERS_FILE = "etcd-members"  # in storage.dir: peer URLs of the other members, as last seen


class ClusterRuntime:
    """One per process. start() before the first life of the server, stop() after the last. etcd_log: for the lines of
    the etcd member's own log."""

    storage: NodeIdentity  # from start() on

    def __init__(self, config: Config, log: Log, etcd_log: Log) -> None:
        self.config = config
        self.addresses: ClusterAddresses = addresses(config)
        self.log = log
        self.etcd_log = etcd_log
        self.own: OwnMember | None = None  # of etcd; None: it is elsewhere
        self.watch: LeaderWatch | None = None  # of that member
        self._watching: Work[None] | None = None
        self.on_failed: Callable[[FluxError], None] = self._failed_between  # of the present life of the server
        self.failed: FluxError | None = None  # told between two lives
        self._driver = LoopDriver()  # of the present life
        self.store = EtcdStore(self.addresses.endpoints, tls=_etcd_tls(config), on_log=log)
        self.lock = StorageLock(Path(config.storage.dir))

    def start(self) -> None:
        """Takes the lock of the storage directory, then starts the etcd member of this node, if it has one: a second
        process with the same configuration must not come as far as that. Raises ConfigError, StorageError."""
        if ReplicationSettings(self.config.cluster.raft, self.config.cluster.enabled).enabled:
            raise ConfigError("cluster.raft.enabled", (
                "queues are not replicated yet in this version: a node that lost its disk could not be replaced. Leave "
                "it out"))
        self.lock.acquire()
        self.storage = NodeIdentity(self.lock.directory)
        where, etcd = self.addresses.member, self.config.cluster.etcd
        if where is None:
            return
        joiner = Joiner(name=where.name, peer_url=where.peer_url, tls=_etcd_tls(self.config), log=self.log,
                        others=[url for name, url in where.initial_cluster if name != where.name])
        member = EtcdMember(self.binary(), self.options(), on_log=self.log, on_line=self.etcd_log,
                            on_exit=lambda ended: own.on_exit(ended))
        own = self.own = OwnMember(member, self.store, joiner, bootstrap=etcd.bootstrap, tls=_etcd_tls(self.config),
                                   memory=Path(self.config.storage.dir) / MEMBERS_FILE, log=self.log,
                                   on_failed=lambda error: self.on_failed(error))
        own.start()
        # Others ask this node whether its member knows a leader.
        self.watch = LeaderWatch(EtcdLocalMember(member, self.store, self.store.endpoints[0]), LoopDriver(), _boot_s)
        self._watching = LoopDriver().start(self.watch.keep())

    def set_storage_aside(self, why: OldStorage) -> None:
        """Between two lives of the server: the next one has an empty directory. Raises StorageError."""
        aside = set_storage_aside(self.lock.directory)
        try:
            self.lock.make_directories()
        except OSError as error:
            raise StorageError(f"cannot use {self.lock.directory} as the storage directory: {error}") from error
        self.storage = NodeIdentity(self.lock.directory)
        self.log("warning", "", "the storage directory was set aside, and this node comes in as after the loss of its "
                                "disk (cluster.old_storage)", {"directory": str(aside), "why": str(why)})

    def binary(self) -> str:
        """Path of the etcd that is to be used. Raises ConfigError."""
        etcd = self.config.cluster.etcd
        found = find_binary(etcd.binary)
        check_version(found, version_of(found.path), allow_unsafe=etcd.allow_unsafe_version)
        return found.path

    def options(self) -> EtcdOptions:
        """With which the etcd member of this node is started. Raises ConfigError if it has none."""
        where, etcd = self.addresses.member, self.config.cluster.etcd
        if where is None:
            raise ConfigError("cluster.etcd.endpoints", "etcd is elsewhere: this node has no member of it")
        return EtcdOptions(
            name=where.name, data_dir=Path(where.data_dir), listen_peer=where.peer_listen,
            advertise_peer=where.peer_url, listen_client=where.client_listen, advertise_client=where.client_url,
            initial_cluster=where.initial_cluster_text, tls=_member_tls(etcd.tls), quota_bytes=etcd.quota_bytes)

    def forget_members(self) -> None:
        """The other members that this node has known are gone for good."""
        (Path(self.config.storage.dir) / MEMBERS_FILE).unlink(missing_ok=True)

    async def stop(self) -> None:
        """Stops the member, and the client of etcd."""
        self.end_life()
        if self.watch is not None:
            self.watch.close()
        await self.store.close()
        if self.own is not None:
            await self.own.stop()
        self.lock.release()

    def _failed_between(self, error: FluxError) -> None:
        self.failed = error

    def end_life(self) -> None:
        """The node has stopped: nothing of it goes on, so that nothing of it stays in memory."""
        self.on_failed = self._failed_between
        if self.watch is not None:
            self.watch.on_look = lambda: None
            self.watch.doubtful = lambda: False
        if self.own is not None:
            self.own.joiner.claim = None
        self._driver.cancel()

    async def life_ended(self) -> None:
        """After end_life(): until its tasks have ended, and the event loop has called what it was to call for them."""
        await self._driver.ended(ENDING_LIMIT_S)
        await asyncio.sleep(0)

    def new_node(self, on_fenced: Callable[[str], None]) -> ClusterNode:
        """The node in the cluster for a new life of the server."""
        cluster, where = self.config.cluster, self.addresses
        settings = Settings(cluster.node_id, configured=where.peers, ttl_s=int(cluster.lease_ttl),
                            limit_s=cluster.route_publish_timeout, window_bytes=cluster.transport.window_bytes,
                            retained_bytes=cluster.etcd.hybrid_retained_size_threshold,
                            disk_s=cluster.disk_timeout,
                            replication=ReplicationSettings(cluster.raft, cluster.enabled))
        transport = GrpcTransport(str(where.transport_listen), tls=_transport_tls(cluster.transport.tls),
                                  log=self.log)
        self._driver = LoopDriver()
        node = ClusterNode(settings, self.store, transport, self._driver, storage=self.storage, on_fenced=on_fenced,
                           log=self.log, clock_s=_boot_s, watch=self.watch)
        node.votes.on_asked = None if self.own is None else self.own.add
        return node

    async def join(self, node: ClusterNode, listeners: Listeners) -> None:
        """Joins the cluster; listeners: opened already. Raises as ClusterNode.start, and as OwnMember.enter."""
        where = self.addresses
        if self.own is not None:
            self.own.joiner.claim = node.claim.look
            await self.own.enter()
        await node.start(Registration(
            address=where.transport_address, pid=os.getpid(), version=__version__, versions=VERSIONS,
            clients=_client_addresses(listeners, where)))

    def overview(self, node: ClusterNode) -> Overview:
        """What operators see of it."""
        return Overview(node, self.addresses.peers, self.own)


def _boot_s() -> float:
    """A clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _client_addresses(listeners: Listeners, where: ClusterAddresses) -> dict[str, str]:
    """Where clients find this node, by listener. A listener on all addresses is found where the transport is."""
    host = parse_address(where.transport_address).host
    found = {}
    for path, _, bound in listeners.opened:
        own, port = bound[0]
        found[path.removeprefix("server.")] = f"{host if own in ('0.0.0.0', '::') else own}:{port}"
    return found


def _etcd_tls(config: Config) -> EtcdTls | None:
    tls = config.cluster.etcd.tls
    if not tls.enabled:
        return None
    return EtcdTls(Path(tls.ca_file), *(Path(name) if name else None for name in (tls.cert_file, tls.key_file)))


def _member_tls(tls: ClusterTls) -> MemberTls | None:
    if not tls.enabled:
        return None
    return MemberTls(Path(tls.cert_file), Path(tls.key_file), Path(tls.ca_file))


def _transport_tls(tls: ClusterTls) -> TransportTls | None:
    if not tls.enabled:
        return None
    return TransportTls(*(Path(name).read_bytes() for name in (tls.ca_file, tls.cert_file, tls.key_file)))
