"""Load of a campaign by topics: sessions that stay and that hop, share groups, wills, births."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence

from campaign.books import Findings, disordered, missing, repeated
from campaign.nodes import NODES, Nodes
from kit.client import Client, Closed, Nothing
from kit.hoppers import Address, Hopper, Publisher, PublisherOnce, Subscriber
from oracle.mqtt import Connect, Disconnect, Pingreq, Puback, Publish, Will

__all__ = ["PATIENCE_S", "QUIET_S", "RATE", "Births", "Part", "Sessions", "Wills", "from_node", "retained"]

RATE = 25.0         # messages a second of each publisher
STAYS_S = 1.5       # for which one that hops stays at a node
PATIENCE_S = 30.0
DELAY_S = 2         # Will Delay Interval of some wills
QUIET_S = 0.2


def from_node(nodes: Nodes, number: int) -> list[Address]:
    """The addresses of the nodes, this one's first."""
    return nodes.addresses[number:] + nodes.addresses[:number]


class Part:
    """One kind of load of one round. name: a prefix of its clients and topics, which no other part has."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        self.nodes = nodes
        self.name = name

    hoppers: Sequence[Hopper] = ()      # all its clients of MQTT, but for those that come and go
    early: Collection[str] = ()         # clients that were let in before all was there, which comes late: in the log

    def start(self) -> None:
        """Returns when all its clients are there; the others come when subscribers have subscribed."""
        for group in ([one for one in self.hoppers if isinstance(one, Subscriber)],
                      [one for one in self.hoppers if not isinstance(one, Subscriber)]):
            for hopper in group:
                hopper.start()
            for hopper in group:
                there = hopper.connected.wait(PATIENCE_S) or hopper.connects
                assert there, f"{hopper.name} does not connect: {hopper.error!r}"

    def publishes(self) -> int:
        """How many were acknowledged."""
        return 0

    def confirms(self) -> int:
        """How many were confirmed, of AMQP."""
        return 0

    def stop_publishing(self) -> None:
        """Nothing new is published; what is under way goes on."""

    def settled(self) -> bool:
        """Whether everything has come that must."""
        return True

    def end(self) -> None:
        """Its clients end."""
        for hopper in self.hoppers:
            hopper.end()
        for hopper in self.hoppers:
            hopper.join(PATIENCE_S)

    def judge(self, failed: set[Address], found: Findings) -> None:
        """Called when it has ended. failed: nodes that have died or lost their lease meanwhile."""
        raise NotImplementedError

    def stuck(self, found: Findings) -> None:
        """Clients that did not get what they waited for, or are still waiting."""
        found.note("stuck", [f"{one.name} ({str(one.error).splitlines()[0] if one.error else 'it waits'})"
                             for one in self.hoppers if one.error is not None or one.is_alive()], "clients")


class Wanderer(Subscriber):
    """A subscriber that goes to the next node by itself: with DISCONNECT, or without one."""

    def begin(self, client: Client) -> None:
        super().begin(client)
        self._until = time.monotonic() + STAYS_S

    def work(self, client: Client) -> None:
        if time.monotonic() > self._until:
            if self.connects % 2:
                client.send(Disconnect())
            raise Closed("it goes to the next node")
        super().work(client)


class Sessions(Part):
    """Publishers of QoS 1 and 2, persistent sessions that stay where they are, and such that hop."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        super().__init__(nodes, name)
        topics = f"{name}/t/#"
        self.publishers = [Publisher(f"{name}-p1", from_node(nodes, 0), f"{name}/t/1", RATE),
                           Publisher(f"{name}-p2", from_node(nodes, 1), f"{name}/t/2", RATE),
                           PublisherOnce(f"{name}-o1", from_node(nodes, 1), f"{name}/t/3", RATE),
                           PublisherOnce(f"{name}-o2", from_node(nodes, 2), f"{name}/t/4", RATE)]
        self.subscribers = [Subscriber(f"{name}-s{number}", from_node(nodes, number), topics, 1 + number % 2)
                            for number in range(NODES)]
        self.subscribers += [Wanderer(f"{name}-h{qos}", from_node(nodes, qos), topics, qos) for qos in (1, 2)]
        self.groups = [_Group(nodes, name, qos) for qos in (1, 2)]
        members = [member for group in self.groups for member in group.members]
        self.hoppers = [*self.subscribers, *members, *self.publishers]

    def publishes(self) -> int:
        return sum(len(one.acknowledged) for one in self.publishers)

    def stop_publishing(self) -> None:
        for publisher in self.publishers:
            publisher.end()
        for publisher in self.publishers:
            publisher.join(PATIENCE_S)

    def everything(self) -> set[bytes]:
        return {payload for publisher in self.publishers for payload in publisher.acknowledged}

    def settled(self) -> bool:
        wanted = self.everything()
        return all(wanted <= {*got} for got in (*(one.got for one in self.subscribers if not one.absent),
                                                *(group.got() for group in self.groups)))

    def judge(self, failed: set[Address], found: Findings) -> None:
        self.stuck(found)
        found.note("sessions lost", [one.name for one in self.hoppers if one.absent], "were not there any more")
        for subscriber in self.subscribers:
            was_there = bool(subscriber.visited & failed)
            for publisher in self.publishers:
                way = f"from {publisher.name} to {subscriber.name}"
                got = [one for one in subscriber.got if one in publisher.sent]
                if not subscriber.absent:
                    found.note("lost", missing(publisher.acknowledged, got), way)
                # What was refused may come all the same, at any time.
                taken = {*publisher.acknowledged}
                found.note("out of order", disordered([one for one in publisher.sent if one in taken], got), way,
                           excused=was_there or bool(publisher.visited & failed) or subscriber.name in self.early)
                if subscriber.qos == publisher.qos == 2:
                    found.note("repeated", repeated(got, publisher.sent), way, excused=was_there)
        for group in self.groups:
            group.judge(self.publishers, failed, found)


class _Group:
    """A share group with a member at each node, all of a QoS."""

    def __init__(self, nodes: Nodes, name: str, qos: int) -> None:
        self.qos = qos
        self.members = [Subscriber(f"{name}-g{qos}{number}", from_node(nodes, number),
                                   f"$share/{name}-g{qos}/{name}/t/#", qos) for number in range(NODES)]

    def got(self) -> list[bytes]:
        return [payload for member in self.members for payload in list(member.got)]

    def judge(self, publishers: Sequence[Publisher], failed: set[Address], found: Findings) -> None:
        """Each message goes to one member; the order is that of a member, which nobody else can see."""
        was_there = any(member.visited & failed for member in self.members)
        for publisher in publishers:
            way = f"from {publisher.name} to the share group of QoS {self.qos}"
            got = [one for one in self.got() if one in publisher.sent]
            found.note("lost", missing(publisher.acknowledged, got), way)
            if self.qos == publisher.qos == 2:
                found.note("repeated", repeated(got, publisher.sent), way, excused=was_there)


class _Mortal(Hopper):
    """One connection with a will; it does not come back. ended: whether the connection has."""

    def __init__(self, name: str, nodes: Sequence[Address], topic: str, delay_s: int) -> None:
        super().__init__(name, nodes)
        self.payload = name.encode()
        self.ended = False
        self._will = Will(topic=topic, payload=self.payload, qos=1, properties={"will_delay_interval": delay_s})

    def request(self) -> Connect:
        return Connect(client_id=self.name, keep_alive=0, will=self._will, properties={"session_expiry_interval": 600})

    def work(self, client: Client) -> None:
        try:
            self.receive(client, QUIET_S)
        except BaseException:
            self.ended = True
            self.end()
            raise
        if self._stopping.is_set():
            with contextlib.suppress(Closed, OSError):
                client.send(Disconnect())       # alive to the end: no will

    def run(self) -> None:
        super().run()
        self.ended |= self.error is not None


class Wills(Part):
    """At each node clients with a will, with and without a delay, which do not come back: a will is published at least
    once when its connection has ended, and not before."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        super().__init__(nodes, name)
        self.watcher = Subscriber(f"{name}-watch", from_node(nodes, 2), f"{name}/w/#", 1)
        self.mortals = [_Mortal(f"{name}-w{number}-{delay}", from_node(nodes, number), f"{name}/w/{number}", delay)
                        for number in range(NODES) for delay in (0, DELAY_S)]
        self.hoppers = [self.watcher, *self.mortals]
        self.dead: list[_Mortal] = []           # those whose connection had ended at the end

    def settled(self) -> bool:
        had = {*self.watcher.got}
        return all(one.payload in had for one in self.mortals if one.ended)

    def end(self) -> None:
        """The watcher first: it shall not see wills of connections that end now."""
        self.dead = [one for one in self.mortals if one.ended]
        self.watcher.end()
        self.watcher.join(PATIENCE_S)
        super().end()

    def judge(self, failed: set[Address], found: Findings) -> None:
        self.stuck(found)
        had = {*self.watcher.got}
        found.note("wills missing", [one.payload for one in self.dead if one.payload not in had],
                   "of connections that have ended")
        found.note("repeated", [one.payload for one in self.mortals if not one.ended and one.payload in had],
                   "wills of connections that are there")


class _Device(Hopper):
    """Says with a retained message that it is there, and has a retained will that says that it is not: what Sparkplug
    and Zigbee2MQTT do. A connection is a life; born: the last life whose birth was acknowledged."""

    clean_start = True

    def __init__(self, name: str, nodes: Sequence[Address], topic: str) -> None:
        super().__init__(name, nodes)
        self.topic = topic
        self.life = self.born = 0

    def said(self, word: str, life: int) -> bytes:
        return f"{self.name} {word} {life}".encode()

    def request(self) -> Connect:
        self.life += 1
        return Connect(client_id=self.name, keep_alive=0,
                       will=Will(topic=self.topic, payload=self.said("offline", self.life), qos=1, retain=True))

    def begin(self, client: Client) -> None:
        client.send(Publish(topic=self.topic, payload=self.said("online", self.life), qos=1, packet_id=1, retain=True))
        while not isinstance(packet := self.receive(client, 2 * PATIENCE_S), Puback):
            assert packet is not None, f"{self.name} got no PUBACK"
        if packet.reason >= 0x80:
            raise Closed("the birth was refused")
        self.born = self.life

    def work(self, client: Client) -> None:
        self.receive(client, QUIET_S)
        if self._stopping.is_set():
            with contextlib.suppress(Closed, OSError):
                client.send(Disconnect())


class Births(Part):
    """Devices that come back at another node at once when their connection ends: the will of a former life comes before
    the birth of the next [MQTT-3.1.2-8]."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        super().__init__(nodes, name)
        self.watcher = Subscriber(f"{name}-seen", from_node(nodes, 1), f"{name}/d/#", 1)
        self.devices = [_Device(f"{name}-d{number}{one}", from_node(nodes, number), f"{name}/d/{number}{one}")
                        for number in range(NODES) for one in range(2)]
        self.hoppers = [self.watcher, *self.devices]
        self.retained_wrong: list[str] = []     # at the end

    def publishes(self) -> int:
        return sum(one.born for one in self.devices)

    def seen(self, device: _Device) -> bytes:
        """The last that the watcher got of a device."""
        of_it = [one for one in list(self.watcher.got) if one.startswith(device.name.encode() + b" ")]
        return of_it[-1] if of_it else b""

    def wrong(self) -> list[str]:
        """What nodes have retained of devices that are there, beside what they said last."""
        found = []
        for number in range(NODES):
            values = retained(self.nodes.addresses[number], f"{self.name}-look{number}", f"{self.name}/d/#")
            for device in self.devices:
                if values.get(device.topic, b"") != device.said("online", device.born):
                    has = values.get(device.topic, b"nothing").decode()
                    found.append(f"n{number} has {has!r} instead of online {device.born}")
        return found

    def settled(self) -> bool:
        return (all(one.born == one.life and one.connected.is_set() for one in self.devices)
                and all(self.seen(one) == one.said("online", one.born) for one in self.devices)
                and not self.wrong())

    def end(self) -> None:
        try:
            self.retained_wrong = self.wrong()
        except (AssertionError, OSError) as error:
            self.retained_wrong = [f"nobody could look: {error!r}"]
        super().end()

    def judge(self, failed: set[Address], found: Findings) -> None:
        self.stuck(found)
        found.note("births undone", self.retained_wrong, "values")
        last = [one for one in self.devices if self.seen(one) != one.said("online", one.born)]
        found.note("births undone", [self.seen(one) for one in last], "are the watcher's last",
                   excused=bool(self.watcher.visited & failed))


def retained(address: Address, name: str, topics: str) -> dict[str, bytes]:
    """What a new client gets that subscribes there, by topic."""
    found: dict[str, bytes] = {}
    client = Client(address, timeout=PATIENCE_S)
    try:
        client.connect(name)
        client.subscribe(topics, qos=1)
        client.send(Pingreq())
        with contextlib.suppress(Nothing, Closed):
            while True:         # what is read from another node comes behind
                packet = client.recv(QUIET_S)
                if isinstance(packet, Publish):
                    found[str(packet.topic)] = packet.payload
                    if packet.packet_id:
                        client.send(Puback(packet_id=packet.packet_id))
    finally:
        client.close()
    return found
