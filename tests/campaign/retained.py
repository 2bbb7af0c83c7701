"""Load of a campaign: retained messages that are set at several nodes in turn, and looked at."""
from __future__ import annotations

import contextlib
import threading
import time
from random import Random

from campaign.books import Findings
from campaign.nodes import NODES, Nodes
from campaign.topics import PATIENCE_S, QUIET_S, Part, retained
from kit.client import Client, Closed, Nothing, Unexpected
from kit.hoppers import Address
from oracle.mqtt import Pingreq, Pingresp, Puback, Publish, Suback, Subscribe

__all__ = ["Retained"]

TOPICS = 4
PAUSE_S = 0.05
CLEARS, LOOKS = 0.2, 0.2    # how often a topic is cleared; how often somebody looks at what was acknowledged
COMES_S = 3.0               # within which the change must come to who looks


class Retained(Part):
    """One writer, so that the order of its changes is known, whatever node takes them: a change is acknowledged, and
    then the next is made elsewhere [MQTT-3.3.1-5]. For each topic the last acknowledged value holds, or one that was
    tried after it. Whoever subscribes when a change was acknowledged, at any node, gets it, or it comes afterwards."""

    def __init__(self, nodes: Nodes, name: str, chance: Random) -> None:
        super().__init__(nodes, name)
        self._chance = Random(chance.random())
        self._clients: dict[int, Client] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._looks = 0
        self.error: BaseException | None = None
        self.holds = [[b""] for _ in range(TOPICS)]  # by topic: what was acknowledged last, then what was tried after
        self.acknowledged = 0
        self.stale: list[tuple[str, set[int]]] = []     # what, and the nodes that it is about
        self.wrong: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def publishes(self) -> int:
        return self.acknowledged

    def topic(self, number: int) -> str:
        return f"{self.name}/r/{number}"

    def _run(self) -> None:
        version = 0
        try:
            while not self._stopping.is_set():
                version += 1
                topic, node = self._chance.randrange(TOPICS), self._chance.randrange(NODES)
                payload = b"" if self._chance.random() < CLEARS else b"%d" % version
                looks = self._chance.random() < LOOKS and self._chance.randrange(NODES)
                if not self._change(node, topic, payload):
                    self.holds[topic].append(payload)
                    continue
                self.holds[topic] = [payload]
                self.acknowledged += 1
                if looks is not False:
                    self._look(node, looks, topic, payload)
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.error = error
        finally:
            for client in self._clients.values():
                client.close()

    def _change(self, node: int, topic: int, payload: bytes) -> bool:
        """Whether it was acknowledged."""
        try:
            if node not in self._clients:
                self._clients[node] = Client(self.nodes.addresses[node], timeout=PATIENCE_S)
                self._clients[node].connect(f"{self.name}-r{node}")
            client = self._clients[node]
            packet_id = client.next_packet_id()
            client.send(Publish(topic=self.topic(topic), payload=payload, qos=1, packet_id=packet_id, retain=True))
            while not isinstance(packet := client.recv(), Puback):
                pass
        except (Unexpected, OSError):
            if node in self._clients:
                self._clients.pop(node).close()
            time.sleep(PAUSE_S)
            return False
        return packet.reason < 0x80

    def _look(self, source: int, node: int, topic: int, wanted: bytes) -> None:
        """At a node, by a new client; nobody changes the topic meanwhile."""
        self._looks += 1
        value = b""
        try:
            client = Client(self.nodes.addresses[node], timeout=PATIENCE_S)
        except OSError:
            return
        try:
            client.connect(f"{self.name}-l{self._looks}")
            client.send(Subscribe(packet_id=1, filters=[(self.topic(topic), 1)]))
            quiet = until = None            # when an old value would have come; when it is too late for the new one
            while until is None or time.monotonic() < (quiet if value == wanted else until):
                try:
                    packet = client.recv(PATIENCE_S if until is None else QUIET_S)
                except Nothing:
                    if until is None:
                        return              # the node hangs, which others notice
                    continue
                if isinstance(packet, Suback):
                    if packet.reasons[0] >= 0x80:
                        return
                    client.send(Pingreq())
                elif isinstance(packet, Publish):
                    value = packet.payload
                    client.send(Puback(packet_id=packet.packet_id))
                elif isinstance(packet, Pingresp):
                    quiet, until = time.monotonic() + QUIET_S, time.monotonic() + COMES_S
        except (Unexpected, OSError):
            return                          # the node has failed
        finally:
            client.close()
        if value != wanted:
            self.stale.append((f"{self.topic(topic)} was set to {wanted!r} at n{source}, and n{node} has {value!r}",
                               {source, node}))

    def stop_publishing(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    def _wrong(self) -> list[str]:
        found = []
        for number in range(NODES):
            values = retained(self.nodes.addresses[number], f"{self.name}-look{number}", f"{self.name}/r/#")
            found += [f"{self.topic(topic)} is {values.get(self.topic(topic), b'')!r} at n{number} instead of "
                      f"{' or '.join(map(repr, holds))}" for topic, holds in enumerate(self.holds)
                      if values.get(self.topic(topic), b"") not in holds]
        return found

    def settled(self) -> bool:
        self.wrong = self._wrong()
        return not self.wrong

    def end(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        with contextlib.suppress(Closed, Unexpected, OSError):
            self.wrong = self._wrong()
            client = Client(self.nodes.addresses[0], timeout=PATIENCE_S)
            client.connect(f"{self.name}-clear")
            for topic in range(TOPICS):
                client.publish(self.topic(topic), b"", qos=1, retain=True)
            client.close()

    def judge(self, failed: set[Address], found: Findings) -> None:
        if self.error is not None or self._thread.is_alive():
            found.note("stuck", [str(self.error or "it waits").splitlines()[0]], "writer of retained messages")
        found.note("retained wrong", self.wrong, "values")
        for said, about in self.stale:      # a node that dies may have told nobody yet, and has it when it is back
            found.note("stale", [said], "look", excused=any(self.nodes.addresses[one] in failed for one in about))
