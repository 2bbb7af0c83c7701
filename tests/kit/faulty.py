"""A cluster whose links, clocks and etcd members err as a test says, under the load of clients that hop.

    with FaultyCluster(tmp_path, 3) as cluster, Load(cluster) as load:
        cluster.link(0, 1).stall(TO_TARGET)     # n0 reaches n1 no more: streams and calls that n0 has opened
        load.goes_on()                          # each publisher got further acknowledgements
        cluster.resume_links()
    # the load has ended, and everything was as its QoS allows
"""
from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.cluster import Cluster
from kit.hoppers import Hopper, Publisher, PublisherOnce, Subscriber, Twin, wrong
from kit.proxy import Proxy

__all__ = ["FaultyCluster", "Load", "nobody_noticed", "see_renewal"]


class FaultyCluster(Cluster):
    """As Cluster. Each node reaches each other one through a proxy of its own."""

    def __init__(self, directory: Path, count: int, *, ttl_s: int = 4, settings: dict[str, object] | None = None,
                 ) -> None:
        super().__init__(directory, count, ttl_s=ttl_s, settings=settings)
        self._links: dict[tuple[int, int], Proxy] = {}
        for number, broker in enumerate(self.brokers):
            peers = {}
            for other, there in enumerate(self.brokers):
                if other != number:
                    host, _, port = str(there.settings["cluster.transport.bind_addr"]).rpartition(":")
                    link = self._links[number, other] = Proxy((host, int(port)))
                    peers[self.names[other]] = link.address
            broker.settings["cluster.transport.peers"] = json.dumps(peers)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with contextlib.ExitStack() as ends:
            for link in self._links.values():
                ends.callback(link.close)
            ends.callback(super().__exit__, kind, error, trace)
            ends.callback(self.resume_links)

    def link(self, source: int, target: int) -> Proxy:
        """What a node has opened to another: a stream, which carries its messages, and calls."""
        return self._links[source, target]

    def links_of(self, number: int) -> list[Proxy]:
        """All to a node and from it."""
        return [link for ends, link in self._links.items() if number in ends]

    def resume_links(self) -> None:
        """They are whole again."""
        for link in self._links.values():
            link.resume()


class Load:
    """Clients of a cluster: at each node a subscriber and a publisher of a QoS, which go to the next one when they lose
    it, and Twins which go there all the time. Its end waits until what was acknowledged has arrived at each subscriber
    that was never told that its session is gone, and raises AssertionError if anything was not as the QoS allows or two
    nodes served a session at once. name: of the clients. fails: nodes that lose their lease: what only such a node had
    comes when it is back, behind newer messages, and QoS 2 that was on its way to it may come twice."""

    def __init__(self, cluster: Cluster, name: str, fails: Iterable[int] = (), *, qos: int = 1) -> None:
        nodes = [broker.address for broker in cluster.brokers]
        self._cluster = cluster
        count = len(nodes)
        self.fails = {*fails}
        self.subscribers = [Subscriber(f"{name}-s{number}", _from(nodes, number), f"{name}/#", qos)
                            for number in range(count)]
        self.publishers = [(PublisherOnce if qos == 2 else Publisher)(
            f"{name}-p{number}", _from(nodes, number), f"{name}/{number}") for number in range(count)]
        self.twins = [Twin(f"{name}-kept", nodes, f"{name}/twin"),
                      Twin(f"{name}-clean", _from(nodes, 1), f"{name}/twin", clean_start=True)]

    @property
    def whole(self) -> list[Subscriber]:
        """Subscribers that must get everything."""
        return [one for one in self.subscribers if not one.absent]

    @property
    def bereft(self) -> set[int]:
        """Nodes whose subscriber was told that its session is gone."""
        return {number for number, one in enumerate(self.subscribers) if one.absent}

    def __enter__(self) -> Self:
        for kind in (self.subscribers, self.publishers, self.twins):
            group: Sequence[Hopper] = kind
            for hopper in group:
                hopper.start()
            for hopper in group:
                assert hopper.connected.wait(60) or hopper.hops, hopper.error  # type: ignore[attr-defined]
        self.goes_on()
        return self

    def goes_on(self, *numbers: int) -> None:
        """Until each publisher (those named by numbers, else all) has further acknowledgements, and each Twin of
        all nodes has moved."""
        publishers = [self.publishers[number] for number in numbers or range(len(self.publishers))]
        counts = [len(publisher.acknowledged) for publisher in publishers]
        hops = [twin.hops for twin in self.twins]

        def went_on() -> bool:
            for hopper in (*self.publishers, *self.twins, *self.subscribers):
                if hopper.error is not None:
                    raise hopper.error
            return all(len(publisher.acknowledged) > count + 5
                       for publisher, count in zip(publishers, counts, strict=True)) and (
                bool(numbers) or all(twin.hops > count for twin, count in zip(self.twins, hops, strict=True)))

        self._cluster.wait(went_on)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        everybody = (*self.publishers, *self.twins, *self.subscribers)
        if kind is not None:
            for hopper in everybody:
                hopper.end()
            return
        for hopper in (*self.publishers, *self.twins):
            hopper.stop()
        everything = {payload for publisher in self.publishers for payload in publisher.acknowledged}
        with contextlib.suppress(AssertionError):       # wrong() says what is missing
            self._cluster.wait(lambda: all(everything <= set(one.got) for one in self.whole))
        for subscriber in self.subscribers:
            subscriber.stop()
        found = wrong(self.publishers, self.whole, [self.subscribers[number] for number in self.fails])
        found += [f"two nodes served {twin.name} at once" for twin in self.twins if twin.served]
        assert not found, "\n".join(found)


def nobody_noticed(load: Load) -> bool:
    """No client lost a connection, and nobody was refused."""
    return not any(hopper.lost or hopper.refused for hopper in (*load.publishers, *load.subscribers)) and not any(
        publisher.refusals for publisher in load.publishers)


def see_renewal(cluster: Cluster, number: int) -> None:
    """Waits until the lease of a node has more time left than at the look before."""
    seen: list[int] = []

    def again() -> bool:
        seen.append(cluster.nodes(number)[cluster.names[number]]["lease_left_ms"])
        return len(seen) > 1 and seen[-1] > seen[-2]

    cluster.wait(again)


def _from(nodes: list[tuple[str, int]], number: int) -> list[tuple[str, int]]:
    return nodes[number:] + nodes[:number]
