"""Histories of queues whose publishers, owners and consumers are on three brokers that fail, each from one seed.

Three durable queues, one that is not (which is made anew, empty, when its node dies), and two for dead letters.
Consumers acknowledge, refuse, hold and leave; messages die (refused, expired, or the oldest of a full queue); queues
move; nodes are killed, restarted, stopped and cut off, streams between them break. In the end everything heals, and
consumers empty the queues.

What is checked, by the identities of messages (a payload is published once, and has one offset in a queue):

    lost            what was acknowledged to its publisher is acknowledged by a consumer, of its queue or of the
                    dead letters
    twice           QoS 2, and dead letters, have one offset; what nobody sent again has one
    order           what a publisher sent once, on one connection, has its order in a partition
    counts          each delivery of a message has another one; they do not fall, if claims have no time limit; the
                    first delivery is number 1 while nothing has failed
    two holders     nobody gets a message that another one holds, unless it has a time limit or something has failed
    settled         what was settled well before the next fault does not come again
    two owners      one node has a queue, and no node has a copy that is not the queue
    stale           a node that stood still past its lease applies nothing of the others, and its clients hear nothing
    stuck           nothing is held, waits for a commit or for a stream

A QoS 2 message may be there twice if an owner, and a node that had the publisher's session (perhaps the same one),
have died since it was sent; and if it was given up, so that its publisher may use the identifier again, and the
publisher, which had gone to another node, has not heard of that: docs/internals/cluster.md, Limits.
"""
from __future__ import annotations

import random
from typing import Any, Literal

import pytest
from oracle.mqtt import V5, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, parse
from simulator.cluster.brokers import BrokerProcess, Client, user_properties
from simulator.cluster.test_brokers import serving
from simulator.cluster.test_definitions import do
from simulator.node import Pipe

from fluxmq._core.peer.inbox import PeerInbox
from fluxmq.cluster.keys import node_key
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.queues import DeadLetters, QueueLimits, QueueSpec, Retry
from fluxmq.model.replication import ReplicationSettings

NAMES = ("one", "two", "three")
VOLATILE = "volatile"       # the queue that is not durable
# How many messages a queue keeps, and what it does with more.
LIMITS: tuple[tuple[int, Literal["reject-publish", "drop-head"]], ...] = (
    (0, "reject-publish"), (0, "reject-publish"), (5, "reject-publish"), (30, "reject-publish"), (5, "drop-head"))
REFUSED = 0x80
CALM_MS = 300               # from the last trouble on
APART_MS = 8000             # less than the time after which a node gives up what is under way to another one
SETTLED_MS = 1000           # until what was settled in the calm is on the slowest disk


class Publisher(Client):
    """Its session is persistent: what was not answered is sent again on the next connection."""

    def __init__(self, history: History, at: str, name: str) -> None:
        super().__init__(history.brokers, at, name)
        history.brokers.clients.append(self)
        self.history = history
        self.open_: dict[int, Publish] = {}                     # packet identifier -> what was not answered yet
        self.received: set[int] = set()                         # QoS 2: PUBREC has come
        self.answers: dict[bytes, int] = {}                     # payload -> reason
        self.sends: dict[bytes, int] = {}
        self.on: dict[bytes, int] = {}                          # payload -> on which of its connections it was new
        self.at_: dict[bytes, tuple[set[str], int]] = {}        # payload -> nodes that had the session, since when
        # Connections that it has left without a word, and what was open on them: packet identifier -> payload.
        self.former: list[tuple[Pipe, dict[int, bytes]]] = []

    def go(self, at: str) -> None:
        if self.pipe is not None:
            self.former.append((self.pipe, {packet_id: packet.payload for packet_id, packet in self.open_.items()}))
        for packet in self.open_.values():
            self.at_[packet.payload][0].add(at)
        self.connect(at=at, clean_start=False, expiry_s=1000)

    def offer(self, topic: str, payload: bytes, qos: int, **users: str) -> None:
        """users: user properties, with _ for -."""
        if not self.connected:
            return
        packet_id = self.publish(topic, payload, qos, **users)
        self.sends[payload] = 1
        self.at_[payload] = {self.at}, self.brokers.world.now_ms
        self.on[payload] = len(self.connacks)
        if qos:
            self.open_[packet_id] = Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id, dup=True,
                                            properties=user_properties(users))

    def read(self) -> None:
        self.history.hears(self)
        before = len(self.got)
        connacks = len(self.connacks)
        super().read()
        for packet in self.got[before:]:
            if isinstance(packet, Puback) and packet.packet_id in self.open_:
                self.answers[self.open_.pop(packet.packet_id).payload] = packet.reason
            elif isinstance(packet, Pubrec) and packet.packet_id in self.open_:
                if packet.reason >= REFUSED:
                    self.answers[self.open_.pop(packet.packet_id).payload] = packet.reason
                else:
                    self.received.add(packet.packet_id)
            elif isinstance(packet, Pubcomp) and packet.packet_id in self.open_ and packet.packet_id in self.received:
                self.received.discard(packet.packet_id)
                # "Packet Identifier not found" after a PUBREC that this client has had: it was received.
                self.answers[self.open_.pop(packet.packet_id).payload] = 0
        if len(self.connacks) > connacks and self.connected:
            self.again()

    def unheard(self, payload: bytes) -> bool:
        """Whether it was refused on a connection that this client does not read any more."""
        for pipe, open_ in self.former:
            found = parse(bytes(pipe.to_client), V5)
            while found is not None:
                packet, rest = found
                if isinstance(packet, Pubrec) and packet.reason >= REFUSED and open_.get(packet.packet_id) == payload:
                    return True
                found = parse(rest, V5)
        return False

    def again(self) -> None:
        if not self.connacks[-1].session_present:
            self.open_.clear()
            self.received.clear()
            return
        for packet_id, packet in self.open_.items():
            if packet_id in self.received:
                self.send(Pubrel(packet_id=packet_id))
            else:
                self.sends[packet.payload] += 1
                self.send(packet)

    def send(self, packet: Packet) -> None:
        # Client.read answers a PUBREC that refuses, too.
        if isinstance(packet, Pubrel) and any(isinstance(one, Pubrec) and one.packet_id == packet.packet_id
                                              and one.reason >= REFUSED for one in self.got[-1:]):
            return
        super().send(packet)


class Held:
    """again: its session had sent it before (DUP). period: History.calm_period when it came. replaced: it came for the
    former subscription of this session, while a SUBSCRIBE for the same filter was under way. So it is given back when
    that arrives, and what becomes of it here has no effect."""

    def __init__(self, key: tuple[str, str], packet: Publish, count: int, period: int, replaced: bool) -> None:
        assert packet.packet_id is not None
        self.packet_id, self.again, self.payload = packet.packet_id, packet.dup, packet.payload
        self.key, self.count, self.period, self.replaced = key, count, period, replaced


class Consumer(Client):
    """Of one queue. It settles when the history says so."""

    def __init__(self, history: History, at: str, name: str, queue: str, persistent: bool) -> None:
        super().__init__(history.brokers, at, name)
        history.brokers.clients.append(self)
        self.history, self.queue, self.persistent = history, queue, persistent
        self.acks = False
        self.held: dict[int, Held] = {}
        self.mood = "ack"
        self.asked = 0
        self.subscribed = False

    def go(self, at: str) -> None:
        self.drop()
        self.subscribed, self.asked = False, 0
        self.connect(at=at, clean_start=not self.persistent, expiry_s=1000 if self.persistent else 0)

    def drop(self) -> None:
        if self.connacks:
            self.history.left.add(self.queue)
        for held in self.held.values():
            self.history.unhold(held.key, self)
        self.held.clear()

    def leave(self) -> None:
        self.drop()
        super().leave()

    def read(self) -> None:
        if self.held and not self.open:
            self.drop()
        self.history.hears(self)
        before = len(self.got)
        super().read()
        for packet in self.got[before:]:
            if isinstance(packet, Suback) and packet.packet_id == self.asked:
                if packet.reasons[0] < REFUSED:
                    self.subscribed = True
                self.asked = 0
            elif isinstance(packet, Publish):
                self.take(packet)
        if not self.subscribed and not self.asked and self.connected and self.history.again(self):
            self.asked = self.ask()
            for held in self.held.values():     # they came for the subscription that its session had
                held.replaced = True
                self.history.unhold(held.key, self)

    def ask(self) -> int:
        return self.subscribe(f"$queue/{self.queue}", 1)

    def take(self, packet: Publish) -> None:
        users = dict(value for name, value in packet.properties if name == "user_property")
        held = Held((self.queue, users["message-id"]), packet, int(users.get("delivery-count", "1")),
                    self.history.calm_period, self.asked != 0)
        self.history.got(self, held)
        self.held[packet.packet_id] = held
        if self.mood == "ack":
            self.settle(held, 0)

    def settle(self, held: Held, reason: int) -> None:
        del self.held[held.packet_id]
        self.history.unhold(held.key, self)
        if self.open:
            self.send(Puback(packet_id=held.packet_id, reason=reason))
            self.history.settled(self, held, reason)


class History:
    """faults: names of steps that may occur, besides what clients do."""

    FAULTS = {"kill": 2, "restart": 2, "bury": 2, "revive": 5, "tear": 2, "isolate": 1, "heal": 3, "pause": 2,
              "resume": 4, "end_lease": 1, "move_queue": 4}
    DEAD_AT_ONCE = 3            # so many messages die in one step
    raft = ReplicationSettings()

    def __init__(self, seed: int, faults: tuple[str, ...] = (), steps: int = 56) -> None:
        self.chance = chance = random.Random(seed)
        self.faults = faults
        self.brokers = serving(*NAMES, seed=seed, raft=self.raft)
        self.brokers.world.always_checks = True     # consumers ask again after a while
        # A slow disk: what happens before something is on it can be seen.
        self.brokers.writer_s = chance.choice((0.005, 0.005, 0.05, 0.2))
        self.failed = False         # something other than clients
        self.cut_ms: int | None = None      # since when two nodes do not reach each other
        self.apart = False          # two have not for so long that what was under way between them was given to others
        self.killed: list[str] = []
        self.fences = dict.fromkeys(NAMES, 0)
        self.deaths: list[tuple[str, int]] = []     # of nodes, also those that were fenced; and when
        self.trouble_ms = 0         # the last time at which something failed, or came back
        self.period = 0             # counts these
        self.calm: dict[tuple[str, str], int] = {}  # what came and was settled in the calm since then, and when
        self.final: set[tuple[str, str]] = set()    # such, well before the next trouble
        self.stale: list[tuple[PeerInbox, int]] = []            # of nodes past their leases, and what they had applied
        self.stale_pipes: list[Pipe] = []
        self.left: set[str] = set()             # queues of which a consumer has
        self.events: list[str] = []
        self.wrong: list[str] = []
        self.asked_at: dict[Consumer, int] = {}
        self.holders: dict[tuple[str, str], set[Consumer]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.deliveries: set[tuple[tuple[str, str], int]] = set()
        self.offsets: dict[tuple[str, bytes], set[str]] = {}    # queue, payload
        self.done: dict[tuple[str, str], int] = {}              # settled with success, and when
        self.acked: set[bytes] = set()
        self.dropped: set[bytes] = set()        # what a purge may have thrown away
        self.sent: dict[bytes, tuple[Publisher, str, int]] = {}
        self.timed: set[str] = set()
        self.limited: set[str] = set()
        self.expiring: dict[str, int] = {}      # after so many milliseconds
        self.dropping: dict[str, int] = {}      # of more than so many messages the oldest die
        self.letters: dict[str, str] = {}       # for the dead letters of a queue
        self.declare()
        self.publishers = [Publisher(self, at, f"p-{at}") for at in NAMES]
        for client in self.publishers:
            client.go(client.at)
        self.consumers = [self.consumer(at, f"c-{at}-{queue}", queue)
                          for queue in (*self.queues,) for at in NAMES if chance.random() < 0.7]
        self.consumers += [Consumer(self, at, f"d-{at}-{queue}", queue, False)
                           for queue in ("dead", "target") for at in (chance.choice(NAMES),)]
        for consumer in self.consumers:
            consumer.go(consumer.at)
        self.brokers.run_for(1.0)
        for _ in range(steps):
            self.step()
            self.brokers.run_for(chance.choice((0, 0.001, 0.01, 0.1, 0.5)))
        self.end()

    # ------------------------------------------------------------------ the queues

    def declare_dead_letters(self) -> None:
        """The queues for dead letters."""
        chance, brokers = self.chance, self.brokers
        do(brokers, chance.choice(NAMES), lambda node: node.manager.declare(QueueSpec(
            name="dead", retry=Retry(visibility_timeout=0.0, max_retries=0, initial_backoff=0.1, max_backoff=0.5))))
        do(brokers, chance.choice(NAMES), lambda node: node.amqp_queues.declare(b"/", b"target", durable=True))

    def declare(self) -> None:
        chance, brokers = self.chance, self.brokers
        self.declare_dead_letters()
        self.queues = []
        for number, at in enumerate(NAMES):
            name = f"q{number}"
            self.queues.append(name)
            if chance.random() < (0.5 if "bury" in self.faults else 0.3):
                self.expiring[name] = ttl_ms = chance.choice((200, 1000, 5000))
                self.letters[name] = "target"
                arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target",
                             "x-message-ttl": ttl_ms}
                do(brokers, at, lambda node: node.amqp_queues.declare(
                    b"/", name.encode(), durable=True, arguments=arguments))   # noqa: B023
                continue
            limit, overflow = chance.choice(LIMITS)
            timeout = chance.choice((0.0, 0.0, 1.0, 5.0))
            if timeout:
                self.timed.add(name)
            if limit:
                self.limited.add(name)
            if overflow == "drop-head":
                self.dropping[name] = limit
            self.letters[name] = "dead"
            spec = QueueSpec(name=name, limits=QueueLimits(max_depth=limit), overflow=overflow,
                             dlq=DeadLetters(topic="dead"), retry=Retry(
                                 max_retries=chance.choice((0, 2, 10)), initial_backoff=0.1, max_backoff=0.5,
                                 visibility_timeout=timeout))
            do(brokers, at, lambda node: node.manager.declare(spec))        # noqa: B023
        do(brokers, chance.choice(NAMES), lambda node: node.amqp_queues.declare(b"/", VOLATILE.encode(), durable=False))
        self.queues.append(VOLATILE)
        # The nodes that have been asked to have a queue.
        self.owners = {state.queue.name.decode(): [at] for at, state in self.states() if state.here}
        self.note(f"timed {sorted(self.timed)} limited {sorted(self.limited)} dropping {sorted(self.dropping)} "
                  f"expiring {sorted(self.expiring)}; at {self.owners}; writer {brokers.writer_s}")

    def consumer(self, at: str, name: str, queue: str) -> Consumer:
        """One that comes at the beginning, and leaves and comes again."""
        return Consumer(self, at, name, queue, self.chance.random() < 0.3)

    # ------------------------------------------------------------------ what consumers tell

    def note(self, text: str) -> None:
        self.events.append(f"{self.brokers.world.now_ms} {text}")

    def again(self, consumer: Consumer) -> bool:
        """Whether it is time to subscribe."""
        now = self.brokers.world.now_ms
        if now - self.asked_at.get(consumer, -1000) < 300:
            return False
        self.asked_at[consumer] = now
        return True

    def got(self, consumer: Consumer, held: Held) -> None:
        key, count = held.key, held.count
        self.note(f"{consumer.name} at {consumer.at} gets {key} {held.payload!r} #{count}")
        if key[0] == VOLATILE and self.deaths:
            return                  # another one may have been made, with the same offsets
        if key in self.final:
            self.wrong.append(f"{key} comes to {consumer.name} after it was settled in the calm")
        before = self.counts.get(key)
        # What a consumer got in time may be on its way for longer than its claim lasts.
        if before is not None and count < before and key[0] not in self.timed and not self.apart:
            self.wrong.append(f"count of {key} falls from {before} to {count}")
        # What was on its way to a consumer that left counts as delivered.
        if before is None and count != 1 and not self.failed and key[0] not in self.timed and key[0] not in self.left:
            self.wrong.append(f"first delivery of {key} has count {count}")
        if (key, count) in self.deliveries and not held.again:
            self.wrong.append(f"{key} comes to {consumer.name} with count {count}, not for the first time")
        self.deliveries.add((key, count))
        self.counts[key] = max(count, before or 0)
        self.offsets.setdefault((key[0], held.payload), set()).add(key[1])
        now = self.brokers.world.now_ms
        quiet = not self.failed and key[0] not in self.timed
        if quiet and self.done.get(key, now) < now - 1000:
            self.wrong.append(f"{key} comes to {consumer.name} after it was acknowledged")
        holders = self.holders.setdefault(key, set())
        others = [one.name for one in holders if one is not consumer and one.open]
        if quiet and others:
            self.wrong.append(f"{key} comes to {consumer.name} while {others} hold it")
        if not held.replaced:
            holders.add(consumer)

    def unhold(self, key: tuple[str, str], consumer: Consumer) -> None:
        self.holders.get(key, set()).discard(consumer)

    def settled(self, consumer: Consumer, held: Held, reason: int) -> None:
        self.note(f"{consumer.name} settles {held.key} with {reason}")
        if not reason:
            self.acked.add(held.payload)
            if held.replaced:
                return
            self.done[held.key] = self.brokers.world.now_ms
            if held.period and held.period == self.calm_period and held.key[0] not in self.timed:
                self.calm[held.key] = self.brokers.world.now_ms

    # ------------------------------------------------------------------ the calm, and what it is between

    @property
    def calm_period(self) -> int:
        """0: something has failed, or it is not long ago; else the number of this calm."""
        world = self.brokers.world
        calm = self.cut_ms is None and len(self.up()) == len(NAMES) and self.trouble_ms + CALM_MS <= world.now_ms
        return self.period if calm else 0

    def trouble(self, text: str, *, fails: bool = True) -> None:
        """Something fails, or comes back."""
        self.note(text)
        self.failed = self.failed or fails
        self.trouble_ms = now = self.brokers.world.now_ms
        self.period += 1
        self.final |= {key for key, since_ms in self.calm.items() if since_ms + SETTLED_MS <= now}
        self.calm.clear()

    def notice_fences(self) -> None:
        """Of nodes that stood still past their leases."""
        for name, broker in self.brokers.processes.items():
            if broker.fences > self.fences[name]:
                self.fences[name] = broker.fences
                self.trouble(f"{name} was fenced")
                self.dies(name)

    def dies(self, name: str) -> None:
        self.deaths.append((name, self.brokers.world.now_ms))

    def may_be_twice(self, payload: bytes, publisher: Publisher, queue: str) -> bool:
        """A message with QoS 2: nobody is left who knows both that the owner had it, and that it was not released; or
        it was given up, and its publisher does not know."""
        nodes, since_ms = publisher.at_[payload]
        died = {name for name, when_ms in self.deaths if when_ms >= since_ms}
        return (not died.isdisjoint(self.owners[queue]) and not died.isdisjoint(nodes)) or publisher.unheard(payload)

    def hears(self, client: Client) -> None:
        """A client is about to read."""
        self.notice_fences()
        if client.pipe is not None and client.pipe.to_client and client.pipe in self.stale_pipes:
            self.wrong.append(f"{client.name} hears of {client.at}, whose lease has ended")

    # ------------------------------------------------------------------ steps

    def up(self) -> list[str]:
        return [name for name in NAMES if self.brokers.processes[name].serving
                and not self.brokers.processes[name].process.paused]

    def step(self) -> None:
        steps = {"publish": 25, "move": 4, "mood": 6, "settle": 12, "leave": 4, "come": 6, "publisher_leaves": 2}
        if self.faults:
            steps["rest"] = 2
        steps.update({name: weight for name, weight in self.FAULTS.items() if name in self.faults})
        getattr(self, self.chance.choices(list(steps), list(steps.values()))[0])()

    def publish(self) -> None:
        publisher = self.chance.choice(self.publishers)
        if not publisher.connected:
            return
        for _ in range(self.chance.choice((1, 2, 15))):
            queue, qos = self.chance.choice(self.queues), self.chance.choice((0, 1, 1, 2))
            self.publish_one(publisher, queue, qos)

    def publish_one(self, publisher: Publisher, queue: str, qos: int) -> None:
        payload = b"%d" % len(self.sent)
        self.sent[payload] = publisher, queue, qos
        publisher.offer(f"$queue/{queue}", payload, qos)
        self.note(f"{publisher.name} at {publisher.at} publishes {payload!r} to {queue} with {qos}")

    def move(self) -> None:
        if up := self.up():
            publisher = self.chance.choice(self.publishers)
            self.note(f"{publisher.name} connects")
            publisher.go(self.chance.choice(up))

    def publisher_leaves(self) -> None:
        publisher = self.chance.choice(self.publishers)
        if publisher.open:
            self.note(f"{publisher.name} leaves")
            publisher.leave()

    def movable(self) -> list[str]:
        return ["dead", "target", *self.queues]

    def move_queue(self) -> None:
        """An operator moves one; sometimes a node dies meanwhile."""
        up = self.up()
        if not up:
            return
        queue, to = self.chance.choice(self.movable()), self.chance.choice(NAMES)
        at = self.chance.choice(up)
        asked = self.brokers.processes[at]
        moves, driver = asked.cluster.holdings.queue_moves, asked.process.driver
        self.trouble(f"{at} is asked to move {queue} to {to}", fails=False)
        self.owners[queue].append(to)

        async def move() -> None:
            try:
                await moves.move((b"/", queue.encode()), to)
            except QueueRefused as refused:
                # What was settled in the instant of a move that is given up is lost.
                self.trouble(f"{queue} is not moved: {refused.text}")
            else:
                self.trouble(f"{queue} is at {to}", fails=False)
        driver.start(move())
        if "kill" in self.faults and len(up) == len(NAMES) and self.chance.random() < 0.3:
            self.brokers.run_for(self.chance.random() * (0.03 + 4 * self.brokers.writer_s))
            if len(self.up()) == len(NAMES):
                self.kill_one(self.chance.choice(NAMES))

    def mood(self) -> None:
        consumer = self.chance.choice(self.consumers)
        if consumer.queue in self.queues:
            consumer.mood = self.chance.choice(("ack", "hold", "hold"))

    def settle(self) -> None:
        consumer = self.chance.choice(self.consumers)
        for held in list(consumer.held.values()):
            if self.chance.random() < 0.6:
                consumer.settle(held, REFUSED if self.chance.random() < 0.4 else 0)

    def leave(self) -> None:
        consumer = self.chance.choice(self.consumers)
        if consumer.open:
            self.note(f"{consumer.name} leaves")
            consumer.leave()

    def come(self) -> None:
        if up := self.up():
            consumer = self.chance.choice(self.consumers)
            if not consumer.open or self.chance.random() < 0.2:
                at = self.chance.choice(up)
                self.note(f"{consumer.name} connects to {at}")
                consumer.go(at)

    def rest(self) -> None:
        self.brokers.run_for(3.0)

    # ------------------------------------------------------------------ faults

    def lease_ends(self, name: str) -> None:
        if node_key(name) in self.brokers.store.items:
            self.trouble(f"the lease of {name} ends")
            self.dies(name)
            self.brokers.end_lease_of(name)

    def kill(self) -> None:
        if len(self.up()) == len(NAMES) or (self.killed and len(self.up()) == 2 and self.chance.random() < 0.2):
            self.kill_one(self.chance.choice(self.up()))

    def kill_one(self, name: str) -> None:
        self.trouble(f"kill {name}")
        self.dies(name)
        self.brokers.kill(name)
        self.killed.append(name)
        if self.chance.random() < 0.5:
            self.brokers.run_for(self.chance.random())
            self.lease_ends(name)

    def restart(self) -> None:
        """Also while another node is dead, cut off or stands still, so that what waits for that one must survive."""
        if len(up := self.up()) > 1:
            self.restart_one(self.chance.choice(up))

    def restart_one(self, name: str) -> None:
        self.trouble(f"restart {name}")
        self.dies(name)
        self.brokers.kill(name)
        if self.chance.random() < 0.5:
            self.lease_ends(name)
        self.brokers.processes[name].start()

    def bury(self) -> None:
        """Messages die in a queue that nobody consumes, and the nodes of the queue and of its dead letters die before
        that, or while these are under way."""
        publisher = self.chance.choice(self.publishers)
        queues = sorted({*self.expiring, *self.dropping})
        if len(self.up()) < len(NAMES) or not queues or not publisher.connected:
            return
        queue = self.chance.choice(queues)
        source, target = self.owners[queue][-1], self.owners[self.letters[queue]][-1]
        self.note(f"messages of {queue} at {source} are to die, and go to {target}")
        consumers = [consumer for consumer in self.consumers if consumer.queue == queue and consumer.open]
        for consumer in consumers:
            consumer.leave()
        if target != publisher.at and self.chance.random() < 0.4:
            self.kill_one(target)
        for _ in range(self.dropping.get(queue, 0) + self.DEAD_AT_ONCE):
            self.publish_one(publisher, queue, 1)
        writes_s = 6 * self.brokers.writer_s        # to two disks, one after the other
        self.brokers.run_for(self.expiring.get(queue, 0) / 1000 + self.chance.random() * (0.1 + writes_s))
        if len(self.up()) == len(NAMES) and self.chance.random() < 0.5:
            self.kill_one(self.chance.choice((source, target)))
        elif source in self.up():
            self.restart_one(source)
        for consumer in consumers:
            if (up := self.up()) and self.chance.random() < 0.7:
                consumer.go(self.chance.choice(up))

    def revive(self) -> None:
        for name in self.killed:
            self.trouble(f"start {name}")
            self.brokers.processes[name].start()
        self.killed.clear()

    def tear(self) -> None:
        self.trouble("tear")
        self.brokers.break_streams()

    def isolate(self) -> None:
        one, other = self.chance.sample(NAMES, 2)
        self.trouble(f"isolate {one} {other}")
        if self.cut_ms is None:
            self.cut_ms = self.brokers.world.now_ms
        self.brokers.network.cut(one, other)
        if self.chance.random() < 0.2:
            self.brokers.run_for(self.chance.choice((5.0, 35.0)))

    def heal(self) -> None:
        if self.cut_ms is not None:
            self.trouble("heal")
            self.apart = self.apart or self.cut_ms + APART_MS <= self.brokers.world.now_ms
            self.cut_ms = None
        self.brokers.network.heal()

    def pause(self) -> None:
        if len(self.up()) == len(NAMES):
            name = self.chance.choice(NAMES)
            self.trouble(f"pause {name}")
            self.brokers.processes[name].process.pause()
            for _ in range(3):
                self.publish()      # it waits for this node, too
            if self.chance.random() < 0.5:
                self.brokers.run_for(11.0)
                self.lease_ends(name)

    def resume(self) -> None:
        for name, broker in self.brokers.processes.items():
            if broker.process.alive and broker.process.paused:
                self.trouble(f"resume {name}")
                if node_key(name) not in self.brokers.store.items:
                    self.watch_stale(broker)
                broker.process.resume()

    def watch_stale(self, broker: BrokerProcess) -> None:
        """Its lease has ended while it stood still: nothing of it may be heard, and nothing it hears may count."""
        for client in (*self.publishers, *self.consumers):
            client.read()
        self.stale_pipes += broker.node.pipes.values()
        peers = broker.cluster.peers
        self.stale += [(peer.inbox, peer.inbox.frames) for peer in peers.peers.values()]

    def end_lease(self) -> None:
        """Of a node that lives: it is fenced."""
        if len(self.up()) == len(NAMES):
            self.lease_ends(self.chance.choice(NAMES))

    # ------------------------------------------------------------------ the verdict

    def places(self) -> dict[str, list[str]]:
        """The nodes that have a queue."""
        found: dict[str, list[str]] = {}
        for at, state in self.states():
            if state.here:
                found.setdefault(state.queue.name.decode(), []).append(at)
        return found

    def states(self) -> list[tuple[str, Any]]:
        return [(at, state) for at in NAMES for state in self.brokers.processes[at].node.manager.queues.values()]

    def end(self) -> None:
        self.note("end")
        self.heal()
        self.resume()
        self.revive()
        for at in NAMES:
            if not self.brokers.processes[at].process.alive:
                self.brokers.processes[at].start()
        assert self.brokers.world.holds_within(lambda: len(self.up()) == 3, 60.0), f"serving: {self.up()}"
        for consumer in self.consumers:
            consumer.mood = "ack"
            for held in list(consumer.held.values()):
                consumer.settle(held, 0)
        for again in (False, True):
            for publisher in self.publishers:
                if again or not publisher.connected:
                    publisher.go(self.chance.choice(NAMES))
            for number, consumer in enumerate(self.consumers):
                if not consumer.connected:
                    consumer.go(NAMES[number % 3])
            self.brokers.run_for(2.0)
        self.late()
        self.settle_down(80.0)
        self.probe()
        self.note("checks")
        self.verdict()
        if self.wrong:
            raise AssertionError("\n".join(self.wrong[:20]))

    def late(self) -> None:
        """Each queue gets a consumer that nothing has happened to."""
        for queue in self.queues:
            late = Consumer(self, self.chance.choice(NAMES), f"late-{queue}", queue, False)
            self.consumers.append(late)
            late.go(late.at)

    def settle_down(self, limit_s: float) -> None:
        """Until nothing is under way for four seconds."""
        calm = 0
        for _ in range(int(limit_s * 2)):
            self.brokers.run_for(0.5)
            for client in (*self.publishers, *self.consumers):
                if not client.open:
                    client.go(client.at)
            calm = calm + 1 if not self.stuck() else 0
            if calm == 8:
                break

    def probe(self) -> None:
        """What can be seen when all is calm."""

    def verdict(self) -> None:
        self.wrong += self.stuck()
        self.check_order()
        self.wrong += [f"{inbox.frames - before} frames of {inbox.node} were applied after the lease had ended"
                       for inbox, before in self.stale if inbox.frames != before]
        self.wrong += [f"{name} is at {places}" for name, places in self.places().items() if len(places) > 1]
        for payload, (publisher, queue, qos) in self.sent.items():
            offsets = self.offsets.get((queue, payload), set())
            reason = publisher.answers.get(payload)
            if queue == VOLATILE and self.deaths:
                continue
            if reason is not None and reason < REFUSED and payload not in self.acked and payload not in self.dropped:
                self.wrong.append(f"{payload!r} (QoS {qos}, {queue}) was acknowledged and is lost")
            sends = publisher.sends.get(payload, 0)
            most = 1 if qos == 2 and not self.may_be_twice(payload, publisher, queue) else sends
            if len(offsets) > most:
                self.wrong.append(f"{payload!r} with QoS {qos}, sent {sends} times, is in {queue} at {sorted(offsets)}")
            for dead in ("dead", "target"):
                found = self.offsets.get((dead, payload), set())
                if len(found) > max(most, len(offsets)):    # what has expired nobody got
                    self.wrong.append(f"dead letter {payload!r} (QoS {qos}, sent {sends} times, {queue}: "
                                      f"{sorted(offsets)}) is in {dead} at {sorted(found)}")

    def check_order(self) -> None:
        """What a publisher has sent once, on one connection, is in its order in each partition."""
        last: dict[tuple[Publisher, int, str, str], tuple[int, bytes]] = {}
        for payload, (publisher, queue, _) in self.sent.items():
            if publisher.sends.get(payload) != 1 or (queue == VOLATILE and self.deaths):
                continue
            for place in self.offsets.get((queue, payload), ()):
                partition, _, offset = place.partition(":")
                way = publisher, publisher.on[payload], queue, partition
                before = last.get(way)
                if before is not None and before[0] > int(offset):
                    self.wrong.append(f"{publisher.name} has sent {payload!r} behind {before[1]!r}; in {queue} it is "
                                      f"at {place}, ahead of {before[0]}")
                last[way] = int(offset), payload

    def stuck(self) -> list[str]:
        found = []
        for client in self.publishers:
            if not client.connected:
                found.append(f"{client.name} is not connected")
            if client.open_:
                found.append(f"{client.name} waits for {len(client.open_)} answers: {list(client.open_.items())[:3]}")
        for consumer in self.consumers:
            if not consumer.subscribed:
                found.append(f"{consumer.name} is not subscribed")
            if consumer.held:
                found.append(f"{consumer.name} holds {len(consumer.held)}")
        for at, state in self.states():
            name = state.queue.name.decode()
            if state.moving is not None:
                found.append(f"{name} at {at} moves")
            if state.here and state.queue.waiting and state.spec.type != "stream":
                found.append(f"{name} at {at}: {state.queue.waiting} wait")
            for group in state.groups.values():
                if group.held and not (name.startswith("$under-way")):
                    found.append(f"{name} at {at}: {group.held} held")
        for at in NAMES:
            arrivals = self.brokers.processes[at].node.broker.consumers.defined.arrivals
            found += [f"{at} has a copy of {identity}" for identity in arrivals]
            hub = self.brokers.processes[at].node.hub
            if hub.commits.waiting:
                found.append(f"{at}: {hub.commits.waiting} wait for commits")
        return found


def run(seed: int, faults: tuple[str, ...], steps: int = 56) -> None:
    History(seed, faults, steps)


LEVELS = {
    "clients": (),
    "streams": ("tear",),
    "moves": ("move_queue",),
    "nodes": ("kill", "restart", "bury", "revive", "tear", "move_queue"),
    "all": tuple(History.FAULTS),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("part", range(2))
def test_histories(level: str, part: int, seed: int) -> None:
    for number in range(3):
        this = seed * 1_000_000 + part * 10 + number
        try:
            History(this, LEVELS[level])
        except BaseException as error:
            error.add_note(f"History({this}, LEVELS[{level!r}])")
            raise
