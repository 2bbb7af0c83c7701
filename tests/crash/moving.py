"""Two brokers on disks, a client whose session moves from one to the other, and what it must receive in the end.

The client keeps its own state, as MQTT asks of it: so QoS 2 is exactly once if the brokers keep theirs. The driver does
what the cluster would do: who owns the session, what is sent again, what becomes of it after a crash.
"""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crash.node import Node, Peer
from kit.nodes import Nodes
from oracle.mqtt import Connack, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe

from fluxmq._core.pubsub.session import Session
from fluxmq._core.testing.probes import session_state
from fluxmq.engine.sessions.state import ACTIVE, WHOLE
from fluxmq.engine.sessions.transfer import Arrival, Departure, freeze

__all__ = ["CLIENT", "Client", "Move", "Side"]

CLIENT = "client"
ROUNDS_MAX = 200
PARTS_BYTES = 150  # an entry or two in each


class Client:
    """Keeps its session over connections. got: (payload, QoS) of what it has received, without repetitions of QoS 2.
    sent: payloads of its own publishes, all of QoS 2; done: those that were completed."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.got: list[tuple[bytes, int]] = []
        self.owed: list[Packet] = []
        self.sent: list[bytes] = []
        self.done: list[bytes] = []
        self._seen = 0  # packets of the connection
        self._pending: set[int | None] = set()
        self._out: dict[int, tuple[bytes, bool]] = {}  # packet identifier: payload, whether PUBREC came

    def connect(self, node: Node, window: int) -> None:
        self.lose()
        self._seen = 0
        node.connect(CLIENT, clean=False, kept=True, receive_maximum=window)
        node.settle()
        self.peer = node.peers[CLIENT]
        self.peer.pull()
        assert self.peer.open, self.peer.received
        repeated = [Pubrel(packet_id=number) if received else self._publish(number, payload, dup=True)
                    for number, (payload, received) in self._out.items()]
        self._send(node, *repeated)
        self.pull()

    @property
    def present(self) -> bool:
        """Whether the broker had its session."""
        assert self.peer is not None
        return next(packet.session_present for packet in self.peer.received if isinstance(packet, Connack))

    def lose(self) -> None:
        if self.peer is not None:
            self.pull()
            self.peer.close()
        self.peer = None
        self.owed.clear()

    def publish(self, node: Node, number: int) -> None:
        if self.peer is not None and self.peer.open:
            payload = b"sent %d" % number
            self.sent.append(payload)
            self._out[number] = payload, False
            self._send(node, self._publish(number, payload))

    @staticmethod
    def _publish(number: int, payload: bytes, dup: bool = False) -> Publish:
        return Publish(topic="in/x", qos=2, packet_id=number, payload=payload, dup=dup)

    def answer(self, node: Node, count: int) -> None:
        self.pull()
        owed, self.owed = self.owed[:count], self.owed[count:]
        self._send(node, *owed)

    def _send(self, node: Node, *packets: Packet) -> None:
        if self.peer is not None and self.peer.open and packets:
            self.peer.send(*packets)
            node.turn()

    def pull(self) -> None:
        peer = self.peer
        if peer is None:
            return
        peer.pull()
        peer.owed.clear()
        new, self._seen = peer.received[self._seen:], len(peer.received)
        for packet in new:
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        match packet:
            case Publish(qos=1):
                self.got.append((packet.payload, 1))
                self.owed.append(Puback(packet_id=packet.packet_id))
            case Publish(qos=2):
                if packet.packet_id not in self._pending:
                    self.got.append((packet.payload, 2))
                    self._pending.add(packet.packet_id)
                self.owed.append(Pubrec(packet_id=packet.packet_id))
            case Pubrel():
                self._pending.discard(packet.packet_id)
                self.owed.append(Pubcomp(packet_id=packet.packet_id))
            case Pubrec():
                assert packet.reason < 0x80 and packet.packet_id is not None
                self._out[packet.packet_id] = self._out[packet.packet_id][0], True
                self.owed.append(Pubrel(packet_id=packet.packet_id))
            case Pubcomp():
                assert packet.packet_id is not None
                self.done.append(self._out.pop(packet.packet_id)[0])


@dataclass
class Message:
    """batch: of the journal of the node that it was published to. lost: a crash may have taken it."""

    payload: bytes
    qos: int
    source: str
    side: Side
    batch: int
    lost: bool = False


class Side:
    """One of the two nodes, over its lives."""

    def __init__(self, name: str, directory: Path, loop: asyncio.AbstractEventLoop, queue_max: int) -> None:
        self.name = name
        self.directory = directory
        self.directory.mkdir()
        self.loop = loop
        self.queue_max = queue_max
        self.lives = 0
        self.node = self._start(self.directory / "1")
        self.node.connect("watch", clean=False, kept=True, receive_maximum=1)
        self.node.settle()
        self.node.peers["watch"].send(Subscribe(packet_id=1, filters=[("in/#", 2)]))
        self.node.settle()
        self.node.peers.pop("watch").close()
        self.node.settle()

    def _start(self, directory: Path) -> Node:
        self.lives += 1
        nodes = Nodes()
        nodes.directory.node = self.name
        return Node(directory, self.loop, self.lives, self.queue_max, nodes.cluster)

    @property
    def session(self) -> Session | None:
        return self.node.broker.session(CLIENT.encode())

    @property
    def arrival(self) -> Session | None:
        return self.node.broker.arrivals.get((b"/", CLIENT.encode()))

    def crash(self) -> int:
        """Killed, and started on what was left. Returns the last batch that was durable."""
        target = self.directory / str(self.lives + 1)
        durable, _ = self.node.crash(target)
        self.node = self._start(target)
        return durable

    def watched(self) -> list[bytes]:
        """What came to the session `watch`, in flight or in line."""
        session = self.node.broker.session(b"watch")
        assert session is not None
        state = session_state(session)
        return [payload for _, _, payload, _ in [*state["window"].values(), *state["line"]]]


class Move:
    """stage: of the move, the name of the next step. owner: what all nodes agree on."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop, queue_max: int = 1000) -> None:
        self.old = Side("old", directory / "old", loop, queue_max)
        self.new = Side("new", directory / "new", loop, queue_max)
        self.sides = {"old": self.old, "new": self.new}
        self.owner = self.old
        self.stage = "freeze"
        self.client = Client()
        self.messages: list[Message] = []
        self.numbers = 0
        self.crashes = 0
        self.returning = False  # the old owner was away after the owner changed: it hands over all that it has
        self.departure: Departure | None = None
        self.moving: Arrival | None = None
        self.parts: Iterator[bytes] = iter(())
        self.late = self.old    # where the source "late" publishes
        self.client.connect(self.old.node, 3)
        assert self.client.peer is not None
        self.client.peer.send(Subscribe(packet_id=1, filters=[("t/#", 2)], properties={"subscription_identifier": 5}))
        self.old.node.settle()

    def close(self) -> None:
        self.client.lose()
        for side in self.sides.values():
            side.node.close()

    # ── what happens besides ─────────────────────────────────────────────────────────────────────────────

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def publish(self, source: str, qos: int, count: int = 1, size: int = 0) -> None:
        """source: "early" sends to the new owner as soon as the session is active there, "late" when the tail is
        complete."""
        side = self.late if source == "late" else self.new if self.active() else self.old
        for _ in range(count):
            payload = b"%d" % self.number() + bytes(size)
            self.messages.append(Message(payload, qos, source, side, side.node.journal.gathering))
            side.node.hub.publish_message(b"t/" + source.encode(), payload, qos)
        side.node.turn()

    def active(self) -> bool:
        return self.owner is self.new and self.new.session is not None

    def at(self) -> Node:
        """Where the client is or may connect."""
        return self.new.node if self.stage == "over" else self.old.node

    def connect(self, window: int) -> None:
        if self.stage in ("freeze", "over"):
            self.client.connect(self.at(), window)

    def leave(self) -> None:
        self.client.lose()
        self.at().turn()

    def answer(self, count: int) -> None:
        self.client.answer(self.at(), count)

    def send(self) -> None:
        self.client.publish(self.at(), self.number())

    def settle(self, side: str) -> None:
        self.sides[side].node.settle()

    def checkpoint(self, side: str, steps: int) -> None:
        for _ in range(steps):
            self.sides[side].node.checkpoint_step()

    def finish(self, side: str) -> None:
        self.sides[side].node.checkpoint_step()
        self.sides[side].node.finish_checkpoint()

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────────────

    def crash(self, name: str) -> None:
        side = self.sides[name]
        self.crashes += 1
        if side.node is self.at():
            self.client.lose()
        durable = side.crash()
        for message in self.messages:
            if message.side is side and message.batch > durable:
                message.lost = True
            if message.side is side:
                message.batch = 0           # of the life that ended
        self.client.owed.clear()
        if side is self.old:
            self._old_is_back()
        else:
            self._new_is_back()

    def _old_is_back(self) -> None:
        self.departure = None
        self.returning = self.owner is self.new
        if self.owner is self.old:
            if self.moving is not None:
                self.moving.abandon()
            self.stage = "freeze"
            assert self.old.session is not None
        elif self.old.session is not None:
            # It may have what never came to the new owner: all of it is handed over.
            self.stage = "return" if self.active() else "activate"
        elif self.stage != "over":
            raise AssertionError("the session has ended at the old owner before the new one had everything")

    def _new_is_back(self) -> None:
        self.moving = None
        if self.owner is self.old:
            if self.new.arrival is not None:
                assert self.new.arrival.data.moved.stage == WHOLE
                self.new.node.broker.drop_arrival(self.new.arrival)
            if self.departure is not None:
                self.departure.unfreeze()
                self.departure = None
            self.stage = "freeze"
            assert self.new.session is None and self.new.arrival is None
            return
        found = self.new.session or self.new.arrival
        assert found is not None, "the session is gone, although it was durable when the owner changed"
        self.moving = Arrival.of(self.new.node.broker, found)
        if self.stage == "over":
            return
        if self.returning and self.departure is not None:
            self.departure.unfreeze()
            self.departure = None
        self.stage = "activate" if found.data.moved.stage != ACTIVE else "return" if self.departure is None else "tail"
        if self.departure is not None:
            self.parts = self.departure.tail(self.moving.upto, PARTS_BYTES)

    # ── the move ─────────────────────────────────────────────────────────────────────────────────────────

    def go(self) -> None:
        """The next step of the move."""
        getattr(self, f"_{self.stage}")()

    def run(self) -> None:
        for _ in range(ROUNDS_MAX):
            if self.stage == "over":
                return
            self.go()
        raise AssertionError(f"the move does not come to its end: {self.stage}")

    def _freeze(self) -> None:
        assert self.old.session is not None
        self.client.pull()
        self.departure = freeze(self.old.node.broker, self.old.session)
        assert self.departure is not None
        self.old.node.turn()
        self.client.lose()
        self.moving = Arrival(self.new.node.broker, self.new.node.hub.root, CLIENT.encode())
        self.parts = self.departure.parts(PARTS_BYTES)
        self._held: bytes | None = next(self.parts)
        self.stage = "feed"

    def _feed(self) -> None:
        assert self.moving is not None and self._held is not None
        part = next(self.parts, None)
        if part is None:
            self.stage = "last"
            return
        self.moving.feed(self._held)
        self._held = part
        self.new.node.turn()

    def _last(self) -> None:
        """The last part leaves when the old owner is safe."""
        assert self.departure is not None and self.moving is not None and self._held is not None
        safe: list[int] = []
        self.departure.when_safe(lambda: safe.append(1))
        self.old.node.settle()
        assert safe
        self.moving.feed(self._held)
        self.new.node.turn()
        self.stage = "switch"

    def _switch(self) -> None:
        """The owner changes when the arrival is durable."""
        if self.moving is not None:
            self.moving.finish()
        self._wait()
        self.owner = self.new
        self.stage = "activate"

    def _wait(self) -> None:
        """As the cluster does (Takeovers.durable)."""
        durable: list[int] = []
        hub = self.new.node.hub
        hub.when_gathered(lambda: durable.append(1), hub.commits.local)
        self.new.node.settle()
        assert durable

    def _activate(self) -> None:
        assert self.moving is not None
        self.moving.activate()
        self.new.node.turn()
        self.stage = "return" if self.departure is None else "tail"
        if self.departure is not None:
            self.parts = self.departure.tail(self.moving.upto, PARTS_BYTES)

    def _tail(self) -> None:
        assert self.departure is not None and self.moving is not None
        part = next(self.parts, None)
        if part is not None:
            self.moving.append(part)
            if len(part) % 3:                       # somebody waits for this part, for others only at the end
                self._wait()
            return
        if self.late is self.old and self.numbers % 2:      # it publishes to the old owner some more
            self.numbers += 1
        else:
            self.late = self.new
            self.stage = "rest"
        self.parts = self.departure.tail(self.moving.upto, PARTS_BYTES)

    def _rest(self) -> None:
        assert self.moving is not None
        for part in self.parts:
            self.moving.append(part)
        self.new.node.settle()
        self.stage = "end"

    def _end(self) -> None:
        assert self.departure is not None
        self.departure.end()
        self.departure = None
        self.old.node.turn()
        self.stage = "over"

    def _return(self) -> None:
        """The old owner was away since the owner changed."""
        self.late = self.new
        session, target = self.old.session, self.new.session
        assert session is not None and target is not None
        departure = freeze(self.old.node.broker, session)
        assert departure is not None
        self.old.node.settle()
        arrival = Arrival(self.new.node.broker, self.new.node.hub.root, CLIENT.encode())
        for part in departure.parts(PARTS_BYTES):
            arrival.feed(part)
        arrival.merge(target)
        self._wait()
        self.departure = departure
        self.stage = "end"

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """The client resumes at the new owner, takes everything, and has got what it must."""
        self.run()
        self.client.connect(self.new.node, 3)
        assert self.client.present
        for _ in range(ROUNDS_MAX):
            self.client.answer(self.new.node, 1000)
            self.new.node.settle()
            self.client.pull()
            session = self.new.session
            assert session is not None
            if not (session.inflight or session.queued or session.received_count or self.client.owed):
                break
        else:
            raise AssertionError("the session never gets empty")
        self._check_got()
        watched = self.old.watched() + self.new.watched()
        for payload in self.client.sent:
            assert watched.count(payload) <= 1, payload
            assert payload not in self.client.done or payload in watched, payload
        self.old.node.settle()
        assert self.old.session is None and self.old.arrival is None and self.new.arrival is None

    def _check_got(self) -> None:
        got = self.client.got
        first: dict[bytes, int] = {}
        for at, (payload, _) in enumerate(got):
            first.setdefault(payload, at)
        for message in self.messages:
            count = got.count((message.payload, message.qos))
            assert count or message.lost, f"{message.payload!r} of QoS {message.qos} was not delivered"
            assert count < 2 or message.qos == 1, f"{message.payload!r} of QoS 2 was delivered {count} times"
        assert len(got) == sum(got.count((each.payload, each.qos)) for each in self.messages)
        for source in ("early", "late"):
            order = [first[each.payload] for each in self.messages if each.source == source and each.payload in first]
            assert order == sorted(order), f"{source}: {[payload for payload, _ in got]}"
