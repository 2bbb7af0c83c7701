"""MQTT 5 clients in threads that lose their node and go on at another: where DISCONNECT sends them, or at the next one.

    subscriber = Subscriber("s", nodes, "topic/#"); publisher = Publisher("p", nodes, "topic/1")
    …
    publisher.stop(); assert set(publisher.acknowledged) <= set(subscriber.got)

With QoS 2 they keep what their half of a session is, so that nothing comes twice by their fault. A Twin opens each
connection while its former one is open elsewhere, and looks whether two nodes serve it at once.
"""
from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from oracle.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)

from kit.client import KEPT, Client, Closed, Nothing

__all__ = ["STALE", "Hopper", "Publisher", "PublisherOnce", "Subscriber", "Twin", "wrong"]

Address = tuple[str, int]
LOOK_S = 0.2
PATIENCE_S = 60.0  # for a CONNACK: only a failing test needs it
PAUSE_S = 0.02  # before a node that refused is asked again
UNDER_WAY = 5  # messages of QoS 2 of a publisher at once
STALE = b"over a connection that was left"


class Hopper(threading.Thread):
    """nodes: where to find them; the first is tried first. lost: connections that were open and ended. refused:
    CONNACKs that were refusals. absent: how often a session was not there that should have been. connects: how many
    succeeded. visited: the nodes where they did. error: why the thread has ended before stop()."""

    clean_start = False

    def __init__(self, name: str, nodes: Sequence[Address]) -> None:
        super().__init__(name=name, daemon=True)
        self.nodes = list(nodes)
        self.lost = self.refused = self.absent = 0
        self.error: BaseException | None = None
        self.connected = threading.Event()
        self.connects = 0
        self.visited: set[Address] = set()
        self.present = False  # the session was there at the last CONNECT
        self._at = self.nodes[0]
        self._stopping = threading.Event()

    def end(self) -> None:
        """It shall end when it has time."""
        self._stopping.set()

    def stop(self) -> None:
        """Ends it, and raises what ended it before."""
        self.end()
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
            client.send(self.request())
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
        self.present = answer.session_present
        self.absent += bool(self.connects) and not self.present and not self.clean_start
        self.connects += 1
        self.visited.add(self._at)
        return client

    def request(self) -> Connect:
        """What it connects with."""
        return Connect(client_id=self.name, clean_start=self.clean_start, properties=list(KEPT["properties"].items()))

    def _next(self) -> None:
        self._at = self.nodes[(self.nodes.index(self._at) + 1) % len(self.nodes)]
        time.sleep(PAUSE_S)

    def _stay(self, client: Client) -> None:
        stays = False
        try:
            self.begin(client)
            self.connected.set()
            while not self._stopping.is_set():
                self.work(client)
        except _Stays:
            stays = True
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
            if not stays:
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


class _Stays(Exception):
    """The hopper goes on elsewhere, and the connection remains."""


class _SentAway(Exception):
    def __init__(self, to: Address | None) -> None:
        super().__init__()
        self.to = to


class Subscriber(Hopper):
    """Subscribes with this QoS, once for each session that it finds new. got: the payloads, as often as they came (with
    QoS 2 not those that come again before PUBREL); over: for each, the number of the connection over which it came."""

    def __init__(self, name: str, nodes: Sequence[Address], filter_: str, qos: int = 1) -> None:
        super().__init__(name, nodes)
        self.qos = qos
        self.got: list[bytes] = []
        self.over: list[int] = []
        self._filter = filter_
        self._unreleased: set[int] = set()  # packet identifiers of QoS 2

    def begin(self, client: Client) -> None:
        if not self.present:
            self._unreleased.clear()
            client.send(Subscribe(packet_id=1, filters=[(self._filter, self.qos)]))
            while not isinstance(packet := self.receive(client, PATIENCE_S), Suback):
                assert packet is not None, f"{self.name} got no SUBACK"
                self._take(client, packet)
            if packet.reasons != [self.qos]:
                raise _SentAway(None)  # without its subscription the connection is of no use

    def work(self, client: Client) -> None:
        packet = self.receive(client, LOOK_S)
        if packet is not None:
            self._take(client, packet)

    def _take(self, client: Client, packet: Packet) -> None:
        if isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            client.send(Pubcomp(packet_id=packet.packet_id))
        elif isinstance(packet, Publish):
            if packet.qos < 2 or packet.packet_id not in self._unreleased:
                self.got.append(packet.payload)
                self.over.append(self.connects)
            if packet.qos == 2:
                assert packet.packet_id is not None
                self._unreleased.add(packet.packet_id)
                client.send(Pubrec(packet_id=packet.packet_id))
            elif packet.packet_id:
                client.send(Puback(packet_id=packet.packet_id))


class Publisher(Hopper):
    """Publishes numbered payloads with QoS 1, one after the other, `rate` a second. acknowledged: those with a PUBACK;
    one that was not is sent again, as a duplicate. sent: how often each. refusals: the reasons of PUBACKs that were."""

    qos = 1

    def __init__(self, name: str, nodes: Sequence[Address], topic: str, rate: float = 50.0) -> None:
        super().__init__(name, nodes)
        self.acknowledged: list[bytes] = []
        self.sent: Counter[bytes] = Counter()
        self.refusals: list[int] = []
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
        self.sent[payload] += 1
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
            self.refusals.append(packet.reason)
        time.sleep(self._pause_s)


class PublisherOnce(Publisher):
    """As a Publisher, with QoS 2 and some messages under way at once. acknowledged: those with a PUBREC. sent: 1 for
    each, unless its session was gone and nobody could know that it came again. refusals: of PUBRECs."""

    qos = 2

    def __init__(self, name: str, nodes: Sequence[Address], topic: str, rate: float = 50.0) -> None:
        super().__init__(name, nodes, topic, rate)
        self._under_way: dict[int, bytes] = {}  # packet identifier -> payload, in order; b"": its PUBREL was sent

    def begin(self, client: Client) -> None:
        if self.connects > 1 and not self.present:
            self._under_way = {packet_id: payload for packet_id, payload in self._under_way.items() if payload}
            self.sent.update(self._under_way.values())
        for packet_id, payload in self._under_way.items():
            client.send(Publish(topic=self._topic, payload=payload, qos=2, packet_id=packet_id, dup=self.present)
                        if payload else Pubrel(packet_id=packet_id))

    def work(self, client: Client) -> None:
        while len(self._under_way) < UNDER_WAY:
            self._number += 1
            payload = b"%s %d" % (self.name.encode(), self._number)
            packet_id = self._number % 0xFFFF + 1
            self._under_way[packet_id] = payload
            self.sent[payload] += 1
            client.send(Publish(topic=self._topic, payload=payload, qos=2, packet_id=packet_id))
        packet = self.receive(client, PATIENCE_S)
        assert packet is not None, f"{self.name} got no answer"
        if isinstance(packet, Pubrec) and packet.reason >= 0x80:
            self.refusals.append(packet.reason)
            self._under_way.pop(packet.packet_id, None)
        elif isinstance(packet, Pubrec):
            if payload := self._under_way.get(packet.packet_id):
                self.acknowledged.append(payload)
                self._under_way[packet.packet_id] = b""
            client.send(Pubrel(packet_id=packet.packet_id))
        elif isinstance(packet, Pubcomp):
            self._under_way.pop(packet.packet_id, None)
            time.sleep(self._pause_s)


class Twin(Hopper):
    """Goes to the next node again and again without leaving the former connection, and sends a PINGREQ and a PUBLISH
    over that when the new node has answered. served: how often the former node answered, which it never may; nor may
    the message (STALE, to `topic`) reach anybody. hops: how often it went."""

    def __init__(self, name: str, nodes: Sequence[Address], topic: str, *, clean_start: bool = False) -> None:
        super().__init__(name, nodes)
        self.clean_start = clean_start
        self._topic = topic
        self.served = self.hops = 0
        self._left: Client | None = None  # the connection that it has left for a further one
        self._former: list[Client] = []

    def begin(self, client: Client) -> None:
        if self._left is not None:
            self._left.send_to_the_end(Pingreq(), Publish(topic=self._topic, payload=STALE, qos=1, packet_id=1))
            self._former.append(self._left)
            self._left = None

    def work(self, client: Client) -> None:
        client.send(Pingreq())
        while not isinstance(packet := self.receive(client, PATIENCE_S), Pingresp):
            assert packet is not None, f"{self.name} got no PINGRESP"
        self._look(0.001)
        time.sleep(LOOK_S)
        self._left = client
        self.hops += 1
        self._next()
        raise _Stays

    def stop(self) -> None:
        """As of a Hopper. All nodes must run: each former connection must be closed by its node."""
        super().stop()
        if self._left is not None:
            self._left.close()
        self._look(PATIENCE_S)
        assert not self._former, f"{self.name} has connections that no node closes"

    def _look(self, timeout: float) -> None:
        """At what comes over former connections."""
        for former in list(self._former):
            try:
                while True:
                    self.served += isinstance(former.recv(timeout), Pingresp | Puback)
            except Nothing:
                pass
            except (Closed, OSError):
                self._former.remove(former)
                former.close()


def wrong(publishers: Iterable[Publisher], subscribers: Iterable[Subscriber],
          unordered: Collection[Subscriber] = ()) -> list[str]:
    """What the QoS forbids, of publishers and subscribers that have ended, as sentences: an acknowledged message that
    did not arrive; but for those of `unordered`, whose node has died, an order of first arrivals that is not the
    publisher's, and a second arrival of what was published once: with QoS 1 over the same connection, with QoS 2 at
    all. And a message of a client that was served elsewhere already."""
    found = []
    for subscriber in subscribers:
        if STALE in subscriber.got:
            found.append(f"{subscriber.name} got what was sent to a node that had lost the client to another")
        first: dict[bytes, int] = {}
        for place, payload in enumerate(subscriber.got):
            first.setdefault(payload, place)
        over = [0] * len(subscriber.got) if subscriber.qos == 2 else subscriber.over
        again = Counter(zip(subscriber.got, over, strict=True))
        for publisher in publishers:
            way = f"from {publisher.name} to {subscriber.name}"
            lost = [payload for payload in publisher.acknowledged if payload not in first]
            if lost:
                found.append(f"{len(lost)} of {len(publisher.acknowledged)} were lost {way}: {lost[:3]}…{lost[-1]!r}")
            places = [first[payload] for payload in publisher.sent if payload in first]
            if places != sorted(places) and subscriber not in unordered:
                found.append(f"the order is another {way}")
            found += [f"{payload!r} came {count} times {way}" for (payload, _), count in again.items()
                      if count > publisher.sent[payload] > 0 and subscriber not in unordered]
    return found
