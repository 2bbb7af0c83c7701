"""Three nodes for a campaign, and what an operator, a failing machine or etcd does to them."""
from __future__ import annotations

import contextlib
import http.client
import json
import re
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from kit.broker import Broker, BrokerDied
from kit.cluster import Cluster, cluster_command
from kit.namespaces import Network, SpacedCluster
from kit.parted import PartedCluster

from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.cluster.keys import node_key

__all__ = ["NODES", "Nodes", "ProxiedNodes", "SpacedNodes"]

NODES = 3
LET_IN_EARLY = re.compile(r"a session was taken over, but a node has not answered in time.* client_id=(\S+)")
START_S = 120.0     # for a machine that is busy with other things; a node that does not start is a finding
AMQP_PORT = 5672
SETTINGS: dict[str, object] = {
    "cluster.route_publish_timeout": 5,         # publishes over a link that stands still are refused after this many s
    "session.max_offline_queue_size": 200_000,  # no round has as many messages
    "session.max_offline_queue_bytes": "256MiB",
}


class Nodes(Cluster):
    """What does not depend on how the nodes reach each other. ttl_s: of their leases, in seconds."""

    ttl_s: int

    def _campaigns(self, ttl_s: int) -> None:
        self.ttl_s = ttl_s
        for broker in self.brokers:
            broker.start_seconds = START_S

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [broker.address for broker in self.brokers]

    def others(self, number: int) -> list[int]:
        return [other for other in range(NODES) if other != number]

    def resume_links(self) -> None:
        """Whatever a fault has done to them."""

    def gone(self, number: int) -> None:
        """Waits until the lease of a node has ended for all others that run."""
        for other in self.others(number):
            if self[other].running:
                self.wait(lambda other=other: self._knows_not(other, number))  # type: ignore[misc]

    def _knows_not(self, other: int, number: int) -> bool:
        with contextlib.suppress(OSError):
            return self.names[number] not in self.nodes(other)
        return False

    def revoke(self, *numbers: int) -> None:
        """Ends the leases of these nodes in etcd, at once."""
        for number in numbers:
            answer = self._ask_etcd("/v3/kv/range", {"key": b64encode(node_key(self.names[number])).decode()})
            for found in answer.get("kvs", ()):
                self._ask_etcd("/v3/lease/revoke", {"ID": found["lease"]})

    def _ask_etcd(self, path: str, body: dict[str, object]) -> dict[str, list[dict[str, str]]]:
        """By the first member that answers. Raises OSError if none does."""
        failed: OSError | None = None
        for name in self.names:
            connection = http.client.HTTPConnection(self._host(name), self._etcd_ports[name], timeout=5)
            with contextlib.closing(connection):
                try:
                    connection.request("POST", path, json.dumps(body))
                    found: dict[str, list[dict[str, str]]] = json.loads(connection.getresponse().read())
                    return found
                except OSError as error:
                    failed = error
        assert failed is not None
        raise failed

    def leave(self, number: int) -> str:
        """`fluxmq cluster leave` for a pause; waits until the process has ended. What the command said."""
        keeps = ["--keep-vote"] if "--keep-vote" in cluster_command(self[number], "leave", "--help") else []
        said = cluster_command(self[number], "leave", "--yes", *keeps)
        self.wait(lambda: not self[number].running)
        self[number].process = None
        return said

    def move(self, through: int, queue: str, to: int) -> bool:
        """`fluxmq queue move`, asked of a node; whether it says that the queue has moved."""
        client = AdminClient(self[through].directory / "data" / "admin.sock", limit_s=30.0)
        try:
            client.ask("POST", "queues", queue, "move", body={"node": self.names[to]})
        except AdminError:
            return False
        finally:
            client.close()
        return True

    def let_in_early(self, since: Sequence[int]) -> set[str]:
        """Clients whose node has said in its log, behind these positions, that it did not wait any longer for what
        others hold for them, which may come late."""
        return {found for broker, at in zip(self.brokers, since, strict=True)
                for found in LET_IN_EARLY.findall(broker.stderr(at))}

    def accidents(self) -> list[str]:
        """What nodes printed since the last call that only a defect prints, and nodes that ended by themselves."""
        found = []
        for name, broker in zip(self.names, self.brokers, strict=True):
            try:
                broker.check()
            except BrokerDied as died:
                found.append(f"{name}: {died}")
        return found


class ProxiedNodes(PartedCluster, Nodes):
    """On loopback, with a proxy between each two."""

    def __init__(self, directory: Path, ttl_s: int) -> None:
        super().__init__(directory, NODES, ttl_s=ttl_s, settings=SETTINGS)
        self._campaigns(ttl_s)


class SpacedNodes(SpacedCluster, Nodes):
    """Each in a network namespace of its own, with a switch between them. Needs root."""

    def __init__(self, directory: Path, network: Network, ttl_s: int) -> None:
        super().__init__(directory, network, ttl_s=ttl_s, settings=SETTINGS)
        self.network = network
        self._campaigns(ttl_s)

    def _made(self, name: str, settings: dict[str, object], environ: dict[str, str]) -> Broker:
        front = self._network.front(int(name[1:]))
        return super()._made(name, settings | {"server.amqp091.plain.addr": f"{front}:{AMQP_PORT}"}, environ)

    def resume_links(self) -> None:
        for number in range(NODES):
            self.network.mend(number)
