"""A broker, its clients and the network between them, in plain Python on a clock set by chance: makes results of
replays.

Whatever it does is allowed: requests and answers travel for as long as they like, but in order; connections break with
what is in them; sessions are taken over, left, found again, expire; QoS 0 gets lost; QoS 1 is repeated. So `verify`
must find nothing in what it writes. One tick is a tenth of a second; what lies in a living connection arrives within
ARRIVES ticks, which is less than the settling time of `verify`. `Rules` are what a history may contain.

It matches topics by oracle/topics.py and shares nothing with fluxmq.
"""
from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from oracle.topics import matches

__all__ = ["TICK_NS", "History", "Row", "Rules", "Simulation", "Subscription", "as_text", "merged"]

TICK_NS = 100_000_000
BEGAN_NS = 1_700_000_000_000_000_000
ARRIVES = 4
NEVER_S = 0xFFFFFFFF

Row = dict[str, Any]
History = list[Row]


@dataclass(slots=True)
class Rules:
    """What a history may contain; probabilities are of a step."""

    clients: int = 4
    steps: int = 200
    topics: tuple[str, ...] = ("a", "a/b", "a/b/c", "/a", "b/", "$x/a", "$queue/q", "$queue/q/k")
    filters: tuple[str, ...] = ("a", "a/b", "#", "+", "+/b", "a/#", "a/+/c", "/+", "b/+", "$x/#", "+/a", "$share/g/a/#",
                                "$share/g/a/b", "$share/h/#", "$queue/q", "$queue/q/k", "$share/s/$queue/q")
    breaks: float = 0.03
    leaves: float = 0.04
    loses_qos_0: float = 0.1


@dataclass(slots=True)
class Message:
    publisher: int
    op: int
    topic: str
    qos: int
    retain: bool
    empty: bool = False
    expires: bool = False


@dataclass(slots=True)
class Copy:
    """A message for one session. `way`: ("plain",) or ("share"|"queue", group)."""

    message: Message
    qos: int
    retain: bool
    way: tuple[str, ...]
    dup: bool = False


@dataclass(slots=True)
class Subscription:
    qos: int
    no_local: bool
    handling: int
    group: str
    as_published: bool = False
    identifier: int = 0


def merged(subscriptions: Iterable[Subscription], qos: int, retain: bool,
           own: bool) -> tuple[int, bool, list[int]] | None:
    """(QoS, RETAIN, Subscription Identifiers in order) of the one copy that a session gets by these subscriptions, all
    of which match and none of which is shared, of a message with this QoS and RETAIN; None: it gets none. own: its own
    client publishes it, which those with No Local do not match [MQTT5-3.3.4-2, -3; 3.3.1-12, -13; 3.8.3-3]."""
    wanted = [one for one in subscriptions if not (own and one.no_local)]
    if not wanted:
        return None
    return (min(qos, max(one.qos for one in wanted)), retain and any(one.as_published for one in wanted),
            sorted(one.identifier for one in wanted if one.identifier))


@dataclass(slots=True)
class Session:
    client: int
    expiry_s: int
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    waiting: list[Copy] = field(default_factory=list)
    sent: list[Copy] = field(default_factory=list)
    connection: Wire | None = None
    left: int = 0
    taken: set[tuple[int, int, tuple[str, ...]]] = field(default_factory=set)    # QoS 2, the client's memory


@dataclass(slots=True)
class Wire:
    """A connection. Entries of both lines: (tick, what), in order."""

    client: int
    number: int
    connect: Row
    to_broker: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    to_client: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    open: bool = True                 # as the client sees it
    served: bool = True               # as the broker sees it
    accepted: bool = False
    clean: bool = False
    will: Message | None = None
    unanswered: list[Row] = field(default_factory=list)               # QoS 0, until a round trip ends


class Simulation:
    """One history: `run()` gives its rows."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.chance = Random(seed)
        self.rules = rules or Rules()
        self.now = 0
        self.rows: History = []
        self.ops = [0] * self.rules.clients
        self.arrivals = [0] * self.rules.clients
        self.wires: list[list[Wire]] = [[] for _ in range(self.rules.clients)]
        self.sessions: dict[int, Session] = {}
        self.retained: dict[str, Message] = {}
        self.queues: dict[str, list[Message]] = {}                    # group → what nobody has yet

    # ── the clock ────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> History:
        for _ in range(self.rules.steps):
            self.now += self.chance.choice((0, 0, 0, 1, 1, 2))
            self.overdue()
            self.chance.choice((self.act, self.serve, self.serve, self.receive, self.receive))()
            if self.chance.random() < self.rules.breaks:
                self.break_one()
        self.settle()
        return self.rows

    def settle(self) -> None:
        """Everything under way arrives."""
        for _ in range(10_000):
            busy = [wire for wires in self.wires for wire in wires if wire.to_broker or wire.to_client]
            if not busy:
                return
            self.now += 1
            for wire in busy:
                self.take(wire.to_broker)
                self.reach(wire)
        raise AssertionError("the network does not come to rest")

    def overdue(self) -> None:
        for wires in self.wires:
            for wire in wires:
                while wire.to_client and wire.to_client[0][0] + ARRIVES <= self.now:
                    self.reach(wire)

    @staticmethod
    def take(line: deque[tuple[int, Callable[[], None]]]) -> None:
        if line:
            line.popleft()[1]()

    def reach(self, wire: Wire) -> None:
        """The next thing for a client; nothing reaches one that has closed."""
        if wire.open:
            self.take(wire.to_client)
        else:
            wire.to_client.clear()

    def any_wire(self, line: str) -> Wire | None:
        busy = [wire for wires in self.wires for wire in wires if getattr(wire, line)]
        return self.chance.choice(busy) if busy else None

    def serve(self) -> None:
        wire = self.any_wire("to_broker")
        if wire:
            self.take(wire.to_broker)

    def receive(self) -> None:
        wire = self.any_wire("to_client")
        if wire:
            self.reach(wire)

    def row(self, event: str, client: int, connection: int, **more: Any) -> Row:
        made: Row = {"event": event, "client": f"c{client}", "client_number": client, "connection": connection,
                     "op": self.ops[client], "sent": BEGAN_NS + self.now * TICK_NS, "acked": None, **more}
        self.ops[client] += 1
        self.rows.append(made)
        return made

    def answered(self, wire: Wire, row: Row) -> None:
        row["acked"] = BEGAN_NS + self.now * TICK_NS
        for earlier in wire.unanswered:
            if earlier["op"] < row["op"]:
                earlier["acked"] = row["acked"]
        wire.unanswered = [earlier for earlier in wire.unanswered if earlier["acked"] is None]

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────

    def act(self) -> None:
        client = self.chance.randrange(self.rules.clients)
        wire = self.wires[client][-1] if self.wires[client] else None
        if wire is None or not wire.open or self.chance.random() < 0.02:      # the last: a takeover
            self.connect(client)
        elif wire.accepted:
            roll = self.chance.random()
            if roll < self.rules.leaves:
                # To a connection that the broker has given up a client may say goodbye before it sees that; so short
                # is that time that `verify` takes it for none.
                if wire.served:
                    self.disconnect(wire)
            elif roll < 0.35:
                self.subscribe(wire)
            elif roll < 0.45:
                self.unsubscribe(wire)
            else:
                self.publish(wire)

    def connect(self, client: int, clean: bool | None = None, expiry_s: int | None = None) -> Wire:
        clean = self.chance.random() < 0.3 if clean is None else clean
        expiry_s = self.chance.choice((0, 1, 3, NEVER_S)) if expiry_s is None else expiry_s
        told: dict[str, Any] = {"clean_start": clean, "session_expiry_s": expiry_s}
        op = self.ops[client]
        row = self.row("connect", client, len(self.wires[client]), reason=0)
        wire = Wire(client, row["connection"], row)
        if self.chance.random() < 0.2:
            wire.will = Message(client, op, "a/b", self.chance.randrange(3), self.chance.random() < 0.3)
            told["will"] = {"topic": "a/b", "qos": wire.will.qos, "retain": wire.will.retain}
        row["detail"] = told
        if self.wires[client] and self.wires[client][-1].open and not self.wires[client][-1].accepted:
            self.lose(self.wires[client][-1])
        self.wires[client].append(wire)
        wire.to_broker.append((self.now, lambda: self.on_connect(wire, clean, expiry_s)))
        return wire

    def disconnect(self, wire: Wire) -> None:
        row = self.row("disconnect", wire.client, wire.number, reason=0)
        wire.open, wire.clean = False, True
        wire.to_client.clear()

        def processed() -> None:
            if wire.served:
                row["acked"] = BEGAN_NS + self.now * TICK_NS
            self.on_end(wire, clean=True)
        wire.to_broker.append((self.now, processed))

    def subscribe(self, wire: Wire, topic_filter: str | None = None, qos: int | None = None) -> None:
        topic_filter = topic_filter or self.chance.choice(self.rules.filters)
        qos = self.chance.randrange(3) if qos is None else qos
        shared, queue = topic_filter.startswith("$share/"), "$queue/" in topic_filter
        if queue:
            qos = max(qos, 1)
        options = Subscription(qos, not shared and not queue and self.chance.random() < 0.2,
                               self.chance.randrange(3), "")
        options.group = topic_filter if shared else f"$share/default/{topic_filter}" if queue else ""
        row = self.row("subscribe", wire.client, wire.number, topic=topic_filter, detail={
            "requested_qos": qos, "no_local": options.no_local, "retain_handling": options.handling})
        wire.to_broker.append((self.now, lambda: self.on_subscribe(wire, row, topic_filter, options)))

    def unsubscribe(self, wire: Wire, topic_filter: str | None = None) -> None:
        topic_filter = topic_filter or self.chance.choice(self.rules.filters)
        row = self.row("unsubscribe", wire.client, wire.number, topic=topic_filter)

        def processed() -> None:
            self.sessions[wire.client].subscriptions.pop(topic_filter, None)
            self.answer(wire, row, reason=0)
        wire.to_broker.append((self.now, self.while_served(wire, processed)))

    def publish(self, wire: Wire, topic: str | None = None, qos: int | None = None) -> None:
        message = Message(wire.client, self.ops[wire.client], topic or self.chance.choice(self.rules.topics),
                          self.chance.randrange(3) if qos is None else qos, self.chance.random() < 0.2,
                          self.chance.random() < 0.05, self.chance.random() < 0.05)
        row = self.row("publish", wire.client, wire.number, topic=message.topic, qos=message.qos, retain=message.retain,
                       dup=False, size=0 if message.empty else 16,
                       detail={"message_expiry_s": 1} if message.expires else None)

        def processed() -> None:
            self.route(message)
            if message.qos:
                self.answer(wire, row, reason=0)
        wire.to_broker.append((self.now, self.while_served(wire, processed)))
        if not message.qos:
            wire.unanswered.append(row)

    def arrived(self, wire: Wire, session: Session, copy: Copy) -> None:
        message = copy.message
        if copy.qos == 2:
            if (message.publisher, message.op, copy.way) in session.taken and copy.dup:
                return
            session.taken.add((message.publisher, message.op, copy.way))
        topic = message.topic if copy.way[0] != "queue" or message.topic.count("/") > 1 else message.topic + "/"
        self.rows.append({
            "event": "delivery", "client": f"c{wire.client}", "client_number": wire.client, "connection": wire.number,
            "op": self.arrivals[wire.client], "topic": topic, "qos": copy.qos, "retain": copy.retain, "dup": copy.dup,
            "size": 16, "publisher": None if message.empty else message.publisher,
            "publisher_op": None if message.empty else message.op, "sent": BEGAN_NS + self.now * TICK_NS})
        self.arrivals[wire.client] += 1

        def settled() -> None:
            session.sent = [other for other in session.sent if other is not copy]
        wire.to_broker.append((self.now, self.while_served(wire, settled)))

    # ── the broker ───────────────────────────────────────────────────────────────────────────────────────────

    def while_served(self, wire: Wire, what: Callable[[], None]) -> Callable[[], None]:
        return lambda: what() if wire.served else None

    def answer(self, wire: Wire, row: Row, **more: Any) -> None:
        def back() -> None:
            row.update(more)
            self.answered(wire, row)
        wire.to_client.append((self.now, back))

    def on_connect(self, wire: Wire, clean: bool, expiry_s: int) -> None:
        session = self.sessions.get(wire.client)
        if session and session.connection:
            self.on_end(session.connection, clean=False)
            session = self.sessions.get(wire.client)
        self.expire()
        session = self.sessions.get(wire.client)
        if session and clean:
            del self.sessions[wire.client]
            session = None
        present = session is not None
        session = session or Session(wire.client, expiry_s)
        self.sessions[wire.client] = session
        session.connection, session.expiry_s, wire.accepted = wire, expiry_s, True

        def told() -> None:
            wire.connect["detail"]["session_present"] = present
            self.answered(wire, wire.connect)
        wire.to_client.append((self.now, told))
        for copy in session.sent:
            copy.dup = True
            self.send(session, copy)
        waiting, session.waiting = session.waiting, []
        for copy in waiting:
            session.sent.append(copy)
            self.send(session, copy)
        self.hand_out()

    def send(self, session: Session, copy: Copy) -> None:
        wire = session.connection
        assert wire is not None
        again = Copy(copy.message, copy.qos, copy.retain, copy.way, copy.dup)
        session.sent = [again if other is copy else other for other in session.sent]
        wire.to_client.append((self.now, lambda: self.arrived(wire, session, again)))

    def give(self, session: Session, copy: Copy) -> None:
        """To one session: now, later, or never."""
        if not copy.qos:
            if session.connection and self.chance.random() >= self.rules.loses_qos_0:
                self.send(session, copy)
        elif copy.message.expires and self.chance.random() < 0.5:
            return
        elif session.connection:
            session.sent.append(copy)
            self.send(session, copy)
        else:
            session.waiting.append(copy)

    def route(self, message: Message) -> None:
        self.expire()
        if message.topic.startswith("$queue/"):
            for group, kept in self.queues.items():
                if self.selects(group, message.topic):
                    kept.append(message)
            self.hand_out()
            return
        shares: dict[str, list[tuple[Session, int]]] = {}
        for session in self.sessions.values():
            plain = []
            for topic_filter, options in session.subscriptions.items():
                if options.group:
                    if "$queue/" not in topic_filter and matches(topic_filter.split("/", 2)[2].encode(),
                                                                 message.topic.encode()):
                        shares.setdefault(topic_filter, []).append((session, min(options.qos, message.qos)))
                elif matches(topic_filter.encode(), message.topic.encode()):
                    plain.append(options)
            copy = merged(plain, message.qos, False, session.client == message.publisher)
            if copy:
                self.give(session, Copy(message, copy[0], copy[1], ("plain",)))
        for group, members in shares.items():
            here = [member for member in members if member[0].connection] or members
            session, qos = self.chance.choice(here)
            self.give(session, Copy(message, qos, False, ("share", group)))
        if message.retain:
            if message.empty:
                self.retained.pop(message.topic, None)
            else:
                self.retained[message.topic] = message

    @staticmethod
    def selects(group: str, topic: str) -> bool:
        pattern = group.split("/", 2)[2]
        return topic == pattern or (pattern.count("/") == 1 and topic.startswith(pattern + "/"))

    def hand_out(self) -> None:
        """Queues: what waits goes to a consumer that is connected."""
        for group, kept in self.queues.items():
            consumers = [(session, options.qos) for session in self.sessions.values() if session.connection
                         for options in session.subscriptions.values() if options.group == group]
            while kept and consumers:
                session, qos = self.chance.choice(consumers)
                copy = Copy(kept.pop(0), qos, False, ("queue", group))
                session.sent.append(copy)
                self.send(session, copy)

    def on_subscribe(self, wire: Wire, row: Row, topic_filter: str, options: Subscription) -> None:
        if not wire.served:
            return
        session = self.sessions[wire.client]
        new = topic_filter not in session.subscriptions
        if self.chance.random() < 0.03:
            self.answer(wire, row, reason=0x87, qos=None)
            return
        session.subscriptions[topic_filter] = options
        self.answer(wire, row, reason=options.qos, qos=options.qos)
        if options.group:
            if "$queue/" in topic_filter:
                self.queues.setdefault(options.group, [])
                self.hand_out()
        elif options.handling == 0 or (options.handling == 1 and new):
            for topic, message in self.retained.items():
                if matches(topic_filter.encode(), topic.encode()):
                    self.give(session, Copy(message, min(message.qos, options.qos), True, ("plain",)))

    def on_end(self, wire: Wire, *, clean: bool) -> None:
        """The broker is done with a connection."""
        if not wire.served:
            return
        wire.served = False
        session = self.sessions.get(wire.client)
        if session is None or session.connection is not wire:
            return
        session.connection, session.left = None, self.now
        if wire.open:
            keep = self.chance.randrange(len(wire.to_client) + 1)         # what the network still carries
            while len(wire.to_client) > keep:
                wire.to_client.pop()
            wire.to_client.append((self.now, lambda: self.lose(wire)))
        for copy in [copy for copy in session.sent if copy.way[0] == "queue"]:
            session.sent.remove(copy)
            self.queues[copy.way[1]].insert(0, copy.message)
        if session.expiry_s == 0:
            del self.sessions[wire.client]
        self.hand_out()
        if wire.will and not clean:
            self.route(wire.will)

    def expire(self) -> None:
        for client, session in list(self.sessions.items()):
            if session.connection is None and session.expiry_s != NEVER_S and (
                    session.left + session.expiry_s * 10 <= self.now) and self.chance.random() < 0.7:
                del self.sessions[client]

    # ── breaking ─────────────────────────────────────────────────────────────────────────────────────────────

    def break_one(self) -> None:
        wires = [wire for wires in self.wires for wire in wires if wire.open and wire.served and wire.accepted]
        if not wires:
            return
        wire = self.chance.choice(wires)
        if self.chance.random() < 0.5:
            self.on_end(wire, clean=False)
            return
        self.lose(wire, by="client")
        lost = self.chance.randrange(len(wire.to_broker) + 1)
        for _ in range(lost):
            wire.to_broker.pop()
        wire.to_broker.append((self.now, lambda: self.on_end(wire, clean=False)))

    def lose(self, wire: Wire, by: str = "broker") -> None:
        """The client sees that the connection is gone."""
        if wire.open:
            wire.open = False
            wire.to_client.clear()
            self.row("lost-connection", wire.client, wire.number, detail={"by": by})


def as_text(rows: History) -> str:
    """For a failing test."""
    return "\n".join(json.dumps(row) for row in sorted(rows, key=lambda row: row["sent"]))
