"""Load of a campaign by queues: AMQP with confirms, MQTT with QoS 2, and a stream; consumers and publishers are at any
node, and the queues move."""
from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from campaign.books import Findings, disordered, missing
from campaign.nodes import NODES, Nodes
from campaign.topics import PATIENCE_S, RATE, Part, from_node
from kit.amqp_wire import Wire
from kit.client import Unexpected
from kit.hoppers import Address, PublisherOnce
from oracle.amqp091 import Content

__all__ = ["Queues"]

UNDER_WAY = 16          # unconfirmed messages of a publisher, unsettled ones of a consumer
LOOK_S = 0.1
PAUSE_S = 0.1           # before the next node is asked


class _Peer(threading.Thread):
    """An AMQP client that goes to the next node when it loses one. visited: where it was. connects: how often."""

    def __init__(self, name: str, nodes: Nodes, number: int) -> None:
        super().__init__(name=name, daemon=True)
        self._nodes = nodes
        self._at = number
        self._stopping = threading.Event()
        self.visited: set[Address] = set()
        self.connects = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                wire = None
                try:
                    wire = Wire(self._nodes[self._at].addresses["amqp091/plain"]).login()
                    wire.open_channel(1)
                    self.visited.add(self._nodes[self._at].address)
                    self.connects += 1
                    self.stay(wire)
                except (AssertionError, OSError):   # it has ended, or does not answer, or the queue is away
                    self._at = (self._at + 1) % NODES
                    time.sleep(PAUSE_S)
                finally:
                    if wire is not None:
                        wire.drop()
        except BaseException as error:
            self.error = error

    def stay(self, wire: Wire) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._stopping.set()


class _Confirmed(_Peer):
    """Publishes numbered bodies to a queue, each once. acknowledged: those that were confirmed. sent: by connection,
    since nothing orders what was sent over one with what was sent over the next."""

    def __init__(self, name: str, nodes: Nodes, number: int, queue: str) -> None:
        super().__init__(name, nodes, number)
        self._queue = queue
        self._number = 0
        self.acknowledged: list[bytes] = []
        self.sent: list[list[bytes]] = []
        self.refused = 0

    def stay(self, wire: Wire) -> None:
        wire.call(1, "confirm.select")
        sent: list[bytes] = []
        self.sent.append(sent)
        unconfirmed: dict[int, bytes] = {}
        while not self._stopping.is_set() or unconfirmed:
            if len(unconfirmed) < UNDER_WAY and not self._stopping.is_set():
                self._number += 1
                sent.append(b"%s %d" % (self.name.encode(), self._number))
                unconfirmed[len(sent)] = sent[-1]
                wire.publish(1, "", self._queue, sent[-1], {"delivery_mode": 2})
                time.sleep(1 / RATE)
            if not wire.ready(0 if len(unconfirmed) < UNDER_WAY and not self._stopping.is_set() else LOOK_S):
                continue
            method, arguments = wire.next(1)
            if method not in ("basic.ack", "basic.nack"):
                raise Unexpected(method)
            assert isinstance(arguments, dict)
            tag = arguments["delivery_tag"]
            for one in [one for one in unconfirmed if one == tag or (arguments["multiple"] and one <= tag)]:
                body = unconfirmed.pop(one)
                if method == "basic.ack":
                    self.acknowledged.append(body)
                else:
                    self.refused += 1


class _Consumer(_Peer):
    """Consumes a queue and acknowledges. got: (body, whether it was marked as redelivered)."""

    def __init__(self, name: str, nodes: Nodes, number: int, queue: str,
                 arguments: dict[str, Any] | None = None) -> None:
        super().__init__(name, nodes, number)
        self._queue, self._arguments = queue, arguments or {}
        self.got: list[tuple[bytes, bool]] = []

    def stay(self, wire: Wire) -> None:
        wire.call(1, "basic.qos", prefetch_count=UNDER_WAY)
        wire.call(1, "basic.consume", queue=self._queue, consumer_tag="c", arguments=self._arguments)
        while not self._stopping.is_set():
            if not wire.ready(LOOK_S):
                continue
            method, content = wire.next(1)
            if not isinstance(content, Content):
                raise Unexpected(method)        # basic.cancel, a close
            self.got.append((bytes(content.body), bool(content.arguments["redelivered"])))
            wire.send(1, "basic.ack", delivery_tag=content.arguments["delivery_tag"], multiple=False)


class Queues(Part):
    """A durable queue of AMQP with confirms, one that MQTT publishes to with QoS 2, and a stream. names: of these."""

    def __init__(self, nodes: Nodes, name: str, chance: Random) -> None:
        super().__init__(nodes, name)
        self.names = [f"{name}-amqp", f"{name}-mqtt", f"{name}-stream"]
        places = [chance.randrange(NODES) for _ in range(5)]
        self.confirmed = _Confirmed(f"{name}-c", nodes, places[0], self.names[0])
        self.once = PublisherOnce(f"{name}-q", from_node(nodes, places[1]), f"$queue/{self.names[1]}", RATE)
        self.to_stream = PublisherOnce(f"{name}-t", from_node(nodes, places[2]), f"$queue/{self.names[2]}", RATE)
        self.consumers = [_Consumer(f"{name}-u{number}", nodes, place, queue)
                          for number, (place, queue) in enumerate(zip(places[3:], self.names[:2], strict=True))]
        self.readers: list[_Consumer] = []
        self.hoppers = [self.once, self.to_stream]

    def start(self) -> None:
        wire = Wire(self.nodes[0].addresses["amqp091/plain"]).login()
        wire.open_channel(1)
        for queue in self.names:
            arguments = {"x-queue-type": "stream"} if queue.endswith("stream") else {}
            wire.call(1, "queue.declare", queue=queue, durable=True, arguments=arguments)
        wire.close()
        super().start()
        for peer in (self.confirmed, *self.consumers):
            peer.start()

    def publishes(self) -> int:
        return len(self.once.acknowledged) + len(self.to_stream.acknowledged)

    def confirms(self) -> int:
        return len(self.confirmed.acknowledged)

    def stop_publishing(self) -> None:
        """Then the stream is read from its beginning, at each node."""
        publishers = (self.confirmed, *self.hoppers)
        for publisher in publishers:
            publisher.end()
        for publisher in publishers:
            publisher.join(PATIENCE_S)
        self.readers = [_Consumer(f"{self.name}-l{number}", self.nodes, number, self.names[2],
                                  {"x-stream-offset": "first"}) for number in range(NODES)]
        for reader in self.readers:
            reader.start()

    def _pairs(self) -> list[tuple[Sequence[bytes], _Consumer]]:
        """What was acknowledged, and who must have it."""
        return [(self.confirmed.acknowledged, self.consumers[0]), (self.once.acknowledged, self.consumers[1]),
                *((self.to_stream.acknowledged, reader) for reader in self.readers)]

    def settled(self) -> bool:
        return all({*acknowledged} <= {body for body, _ in list(consumer.got)}
                   for acknowledged, consumer in self._pairs())

    def end(self) -> None:
        peers = (self.confirmed, *self.consumers, *self.readers)
        for peer in peers:
            peer.end()
        super().end()
        for peer in peers:
            peer.join(PATIENCE_S)
        with contextlib.suppress(Unexpected, AssertionError, OSError):
            wire = Wire(self.nodes[0].addresses["amqp091/plain"]).login()
            wire.open_channel(1)
            for queue in self.names:
                wire.call(1, "queue.delete", queue=queue)
            wire.close()

    def judge(self, failed: set[Address], found: Findings) -> None:
        self.stuck(found)
        found.note("stuck", [one.name for one in (self.confirmed, *self.consumers, *self.readers)
                             if one.is_alive() or one.error], "clients of AMQP")
        for acknowledged, consumer in self._pairs():
            of_stream = consumer in self.readers
            way = f"to {consumer.name}"
            found.note("lost", missing(acknowledged, {body for body, _ in consumer.got}), way)
            # What a consumer has had comes again marked; who reads a stream again begins at its beginning.
            fresh = Counter(body for body, redelivered in consumer.got if not redelivered)
            once = self.once.sent if consumer is self.consumers[1] else self.to_stream.sent if of_stream else Counter()
            readings = consumer.connects if of_stream else 1
            publisher: _Confirmed | PublisherOnce = (
                self.confirmed if consumer is self.consumers[0] else self.once if not of_stream else self.to_stream)
            # QoS 2 may come twice if the queue's owner and the node of its publisher, which may be the same, die in one
            # exchange (docs/internals/cluster.md, Limits).
            found.note("repeated", [body for body, count in fresh.items()
                                    if count > max(1, once[body]) * readings], way,
                       excused=publisher is not self.confirmed and bool(publisher.visited & failed))
            firsts = [body for body, redelivered in consumer.got if not redelivered]
            taken = {*acknowledged}     # what was refused may come all the same, at any time
            for order in self.confirmed.sent if publisher is self.confirmed else [list(once)]:
                found.note("out of order", disordered([body for body in order if body in taken], firsts), way,
                           excused=bool(publisher.visited & failed))
