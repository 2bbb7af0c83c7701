"""MQTT 5 clients in threads that lose their node and go on at another: where DISCONNECT sends them, or at the next one.

    subscriber = Subscriber("s", nodes, "topic/#"); publisher = Publisher("p", nodes, "topic/1")
    …
    publisher.stop(); assert set(publisher.acknowledged) <= set(subscriber.got)
"""
from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from oracle.mqtt import Connack, Connect, Disconnect, Packet, Puback, Publish, Suback, Subscribe

from kit.client import KEPT, Client, Closed, Nothing

__all__ = ["Publisher", "Subscriber"]

Address = tuple[str, int]
LOOK_S = 0.2
PATIENCE_S = 60.0  # for a CONNACK: only a failing test needs it
PAUSE_S = 0.02  # before a node that refused is asked again


class Hopper(threading.Thread):
    """nodes: where to find them; the first is tried first. lost: connections that were open and ended. refused:
    CONNACKs that were refusals. absent: how often a session was not there that should have been. error: why the thread
    has ended before stop()."""

    def __init__(self, name: str, nodes: Sequence[Address]) -> None:
        super().__init__(name=name, daemon=True)
        self.nodes = list(nodes)
        self.lost = self.refused = self.absent = 0
        self.error: BaseException | None = None
        self.connected = threading.Event()
        self._at = self.nodes[0]
        self._connects = 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends it, and raises what ended it before."""
        self._stopping.set()
        self.join(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                client = self._connect()
                if client is not None:
                    self._stay(client)
        except BaseException as error:
            self.error = error

    def _connect(self) -> Client | None:
        """One attempt."""
        try:
            client = Client(self._at, timeout=PATIENCE_S)
        except OSError:
            self._next()
            return None
        try:
            client.send(Connect(client_id=self.name, clean_start=False, properties=list(KEPT["properties"].items())))
            answer = client.recv()
        except (Closed, OSError):
            client.close()
            self._next()
            return None
        assert isinstance(answer, Connack)
        if answer.reason:
            self.refused += 1
            client.close()
            self._next()
            return None
        self.absent += bool(self._connects) and not answer.session_present
        self._connects += 1
        return client

    def _next(self) -> None:
        self._at = self.nodes[(self.nodes.index(self._at) + 1) % len(self.nodes)]
        time.sleep(PAUSE_S)

    def _stay(self, client: Client) -> None:
        try:
            self.begin(client)
            self.connected.set()
            while not self._stopping.is_set():
                self.work(client)
        except (Closed, OSError):
            self.lost += 1
            self._next()
        except _SentAway as away:
            self.lost += 1
            self._at = away.to or self._at
            if not away.to:
                self._next()
        finally:
            self.connected.clear()
            client.close()

    def receive(self, client: Client, timeout: float) -> Packet | None:
        """The next packet, None if none comes in time."""
        try:
            packet = client.recv(timeout)
        except Nothing:
            return None
        if isinstance(packet, Disconnect):
            host, _, port = str(dict(packet.properties).get("server_reference", "")).rpartition(":")
            raise _SentAway((host, int(port)) if port else None)
        return packet

    def begin(self, client: Client) -> None:
        """A connection is there."""

    def work(self, client: Client) -> None:
        """Something short, again and again."""
        raise NotImplementedError


class _SentAway(Exception):
    def __init__(self, to: Address | None) -> None:
        super().__init__()
        self.to = to


class Subscriber(Hopper):
    """Subscribes once, with QoS 1. got: the payloads, as often as they came."""

    def __init__(self, name: str, nodes: Sequence[Address], filter_: str) -> None:
        super().__init__(name, nodes)
        self.got: list[bytes] = []
        self._filter = filter_

    def begin(self, client: Client) -> None:
        if self._connects == 1:
            client.send(Subscribe(packet_id=1, filters=[(self._filter, 1)]))
            while not isinstance(packet := self.receive(client, PATIENCE_S), Suback):
                assert packet is not None

    def work(self, client: Client) -> None:
        packet = self.receive(client, LOOK_S)
        if isinstance(packet, Publish):
            self.got.append(packet.payload)
            if packet.packet_id:
                client.send(Puback(packet_id=packet.packet_id))


class Publisher(Hopper):
    """Publishes numbered payloads with QoS 1, one after the other, `rate` a second. acknowledged: those with a PUBACK;
    one that was not is sent again, as a duplicate."""

    def __init__(self, name: str, nodes: Sequence[Address], topic: str, rate: float = 50.0) -> None:
        super().__init__(name, nodes)
        self.acknowledged: list[bytes] = []
        self.refusals = 0
        self._topic = topic
        self._pause_s = 1 / rate
        self._number = 0
        self._waiting = False

    def work(self, client: Client) -> None:
        again = self._waiting
        if not again:
            self._number += 1
        self._waiting = True
        payload = b"%s %d" % (self.name.encode(), self._number)
        packet_id = self._number % 0xFFFF + 1
        client.send(Publish(topic=self._topic, payload=payload, qos=1, packet_id=packet_id, dup=again))
        while True:
            packet = self.receive(client, PATIENCE_S)
            assert packet is not None, f"{self.name} got no PUBACK"
            if isinstance(packet, Puback) and packet.packet_id == packet_id:
                break
        self._waiting = False
        if packet.reason < 0x80:
            self.acknowledged.append(payload)
        else:
            self.refusals += 1
        time.sleep(self._pause_s)
