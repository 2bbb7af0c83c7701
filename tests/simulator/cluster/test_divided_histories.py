"""As test_queue_histories, of queues whose partitions are at several nodes, each of which moves and dies by itself.

Three queues of 2 to 5 partitions, in whose groups consumers share, or own partitions (`exclusive`). Some consumers
settle by commands ($ack, $nack, $reject, $extend), the others by PUBACK. One queue is purged now and then. Publishers
send with partition keys and without. Checked beside what is checked of queues:

    key             messages of one key are in one partition
    exclusive       nobody gets a message of a partition of which another one holds a message, unless it has a time
                    limit or something has failed since it got that
    prefetch        a consumer never holds more; what its node has for it beyond that, and so keeps from others, is at
                    most as much again, twice while rooms are divided anew, and one of each partition
    purged          what was acknowledged, and that nobody held when a purge was asked for, does not come afterwards
                    in the end owners at other nodes may send it no more than that at once, and one each
    at the end      each consumer gets messages of every partition, or alone those of its own, of which it has as many
                    as the others, or one more
"""
from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from oracle.mqtt import Puback, Publish
from simulator.cluster.test_definitions import do
from simulator.cluster.test_queue_histories import LEVELS as QUEUE_LEVELS
from simulator.cluster.test_queue_histories import NAMES, REFUSED, Consumer, Held, History, Publisher

from fluxmq._core.peer.queue_member import PeerMember
from fluxmq.engine.queues.parts import part_name, whole_of
from fluxmq.engine.queues.relays import Answer
from fluxmq.model.queues import DeadLetters, QueueLimits, QueueSpec, Retry

PURGED = "q2"
KEYS = tuple("abcdefgh")
ANSWER_S = 3.0              # within which a purge is answered, or counts as not done


class Taker(Consumer):
    """Of a divided queue. prefetch: 0: none."""

    history: DividedHistory

    def __init__(self, history: DividedHistory, at: str, name: str, queue: str, persistent: bool,
                 prefetch: int) -> None:
        super().__init__(history, at, name, queue, persistent)
        self.prefetch = prefetch

    def options(self) -> dict[str, str]:
        found = {"prefetch": str(self.prefetch)} if self.prefetch else {}
        return found | ({"exclusive": "true"} if self.queue in self.history.exclusive else {})

    def ask(self) -> int:
        return self.subscribe(f"$queue/{self.queue}", 1, **self.options())

    def take(self, packet: Publish) -> None:
        super().take(packet)
        self.check_prefetch()

    def check_prefetch(self) -> None:
        history = self.history
        # What was taken back from it, because of its time or of a fault, it may hold in its own eyes.
        count = sum(not held.again and not held.replaced for held in self.held.values())
        if self.prefetch and count > self.prefetch and self.queue not in history.timed and not history.failed:
            history.wrong.append(f"{self.name} holds {count}, and its prefetch is {self.prefetch}")


class Commander(Taker):
    """It settles by commands. What it holds is known by a number of its own, for packet identifiers are used again."""

    def __init__(self, history: DividedHistory, at: str, name: str, queue: str, persistent: bool,
                 prefetch: int) -> None:
        super().__init__(history, at, name, queue, persistent, prefetch)
        self.number = 0
        self.ordered: dict[int, tuple[Held, int]] = {}      # packet identifier of a command -> what it settles, how

    def go(self, at: str) -> None:
        self.ordered.clear()
        super().go(at)

    def options(self) -> dict[str, str]:
        return super().options() | {"ack": "manual"}

    def take(self, packet: Publish) -> None:
        self.send(Puback(packet_id=packet.packet_id))
        self.number += 1
        packet.packet_id = self.number
        Consumer.take(self, packet)
        held = self.held.get(self.number)
        if held is not None:
            for number, former in list(self.held.items()):
                if former.key == held.key and former is not held:
                    del self.held[number]
            if any(of.key == held.key for of, _ in self.ordered.values()):  # a command that names it is on its way
                held.replaced = True
                self.history.unhold(held.key, self)
        self.check_prefetch()

    def settle(self, held: Held, reason: int) -> None:
        chance = self.history.chance
        verb = "ack" if not reason else chance.choice(("nack", "reject"))
        if self.queue in self.history.timed and chance.random() < 0.2:
            self.command("extend", held, lease=str(chance.choice((100, 10_000))))
        del self.held[held.packet_id]
        self.history.unhold(held.key, self)
        if self.open:
            self.history.note(f"{self.name} orders {verb} of {held.key}")
            self.ordered[self.command(verb, held)] = held, reason
            if not reason:
                self.history.acked.add(held.payload)        # it may be done, and the answer lost

    def command(self, verb: str, held: Held, **users: str) -> int:
        return self.publish(f"$queue/{self.queue}/${verb}", b"", 1, message_id=held.key[1], **users)

    def read(self) -> None:
        before = len(self.got)
        super().read()
        for packet in self.got[before:]:
            if isinstance(packet, Puback) and packet.packet_id in self.ordered:
                held, reason = self.ordered.pop(packet.packet_id)
                if packet.reason < REFUSED:
                    self.history.settled(self, held, reason)


class DividedHistory(History):
    """Arguments as History's."""

    def declare(self) -> None:
        chance, brokers = self.chance, self.brokers
        self.partitions: dict[str, int] = {}
        self.exclusive: set[str] = set()
        self.keys: dict[bytes, str] = {}        # payload -> its partition key
        self.gone: set[bytes] = set()           # was purged
        self.unanswered = False                 # a purge, which may still be done
        self.declare_dead_letters()
        brokers.run_for(1.0)                    # until each knows that the others serve
        self.queues = []
        for name in ("q0", "q1", PURGED):
            self.queues.append(name)
            self.letters[name] = "dead"
            self.partitions[name] = chance.randint(2, 5)
            if chance.random() < 0.5:
                self.exclusive.add(name)
            limit, timeout = chance.choice((0, 0, 20, 60)), chance.choice((0.0, 0.0, 0.0, 1.0, 5.0))
            if timeout:
                self.timed.add(name)
            if limit:
                self.limited.add(name)
            ttl = chance.choice((0.0, 0.0, 0.0, 0.2, 1.0, 5.0)) if name != PURGED else 0.0
            if ttl:
                self.expiring[name] = int(ttl * 1000)
            spec = QueueSpec(name=name, partitions=self.partitions[name], dlq=DeadLetters(topic="dead"),
                             limits=QueueLimits(max_depth=limit, message_ttl=ttl), retry=Retry(
                                 max_retries=chance.choice((0, 2, 10)), initial_backoff=0.1, max_backoff=0.5,
                                 visibility_timeout=timeout))
            do(brokers, chance.choice(NAMES), lambda node: node.manager.declare(spec))      # noqa: B023
        brokers.run_until(lambda: sum(whole_of(name.encode()) is not None for name in self.places())
                          == sum(self.partitions.values()))
        self.owners = {name: [] for name in self.queues}
        for at, state in self.states():
            if state.here:
                name, part = state.queue.name.decode(), whole_of(state.queue.name)
                self.owners[name] = [at] if part is None else self.owners[part.whole.decode()]
                if part is not None:
                    self.owners[name].append(at)
        self.note(f"partitions {self.partitions} exclusive {sorted(self.exclusive)} timed {sorted(self.timed)} limited "
                  f"{sorted(self.limited)} expiring {self.expiring}; writer {brokers.writer_s}; at {self.places()}")

    def consumer(self, at: str, name: str, queue: str) -> Consumer:
        kind = self.chance.choice((Taker, Commander))
        return kind(self, at, name, queue, self.chance.random() < 0.3, self.chance.choice((0, 1, 3, 10)))

    def part(self, queue: str, partition: int) -> bytes:
        return part_name(queue.encode(), partition, self.partitions[queue])

    def movable(self) -> list[str]:
        return ["dead", "target", *(self.part(queue, partition).decode() for queue in self.queues
                                    for partition in range(self.partitions[queue]))]

    # ------------------------------------------------------------------ what consumers tell

    def got(self, consumer: Consumer, held: Held) -> None:
        queue, place = held.key
        if queue in self.exclusive and queue not in self.timed:
            partition, calm = place.partition(":")[0], self.calm_period
            others = {one.name for one in self.consumers if one.queue == queue and one is not consumer and one.open
                      for other in one.held.values() if other.key[1].partition(":")[0] == partition
                      and not other.replaced and (not self.failed or 0 < other.period == calm)}
            if others:
                self.wrong.append(f"{consumer.name} gets {place} of {queue} while {others} hold messages of the "
                                  f"partition")
        if queue == PURGED and held.payload in self.gone:
            self.wrong.append(f"{held.payload!r} comes to {consumer.name}, and was purged")
        super().got(consumer, held)

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        getattr(self, self.chance.choices(("purge", "press", "usual"), (5, 5, 90))[0])()
        self.check_rooms()

    def usual(self) -> None:
        super().step()

    def press(self) -> None:
        """The consumers of a queue hold what they get, some come or leave, and there is more to get."""
        queue = self.chance.choice(self.queues)
        consumers = [consumer for consumer in self.consumers if consumer.queue == queue]
        for consumer in consumers:
            consumer.mood = "hold"
        for _ in range(2):
            publisher = self.chance.choice(self.publishers)
            if publisher.connected:
                for _ in range(20):
                    self.publish_one(publisher, queue, 1)
            self.brokers.run_for(0.1 + 2 * self.brokers.writer_s)
            if consumers and (up := self.up()):
                consumer = self.chance.choice(consumers)
                if consumer.open and self.chance.random() < 0.3:
                    consumer.leave()
                else:
                    consumer.go(self.chance.choice(up))
            self.brokers.run_for(0.1 + 2 * self.brokers.writer_s)

    def publish_one(self, publisher: Publisher, queue: str, qos: int) -> None:
        payload, key = b"%d" % len(self.sent), self.chance.choice((None, *KEYS))
        self.sent[payload] = publisher, queue, qos
        if self.unanswered and queue == PURGED:
            self.dropped.add(payload)
        users = {}
        if key is not None:
            self.keys[payload] = users["partition_key"] = key
        publisher.offer(f"$queue/{queue}", payload, qos, **users)
        self.note(f"{publisher.name} at {publisher.at} publishes {payload!r} to {queue} with {qos}, key {key}")

    def purge(self) -> None:
        """A node is asked for it; half of the time nobody consumes the queue then."""
        up = self.up()
        if not up:
            return
        alone = self.chance.random() < 0.5
        if alone:
            for consumer in self.consumers:
                if consumer.queue == PURGED and consumer.open:
                    consumer.leave()
            for publisher in self.publishers:
                for _ in range(4):
                    if publisher.connected:
                        self.publish_one(publisher, PURGED, 1)
            self.brokers.run_for(0.5 + 4 * self.brokers.writer_s)
            if not (up := self.up()):
                return
        mine = [(payload, publisher) for payload, (publisher, queue, _) in self.sent.items() if queue == PURGED]
        known = {payload for payload, publisher in mine
                 if publisher.answers.get(payload, REFUSED) < REFUSED and publisher.sends[payload] == 1}
        calm = self.calm_period
        at, answers = self.chance.choice(up), list[Answer]()
        self.note(f"{at} is asked to purge {PURGED}{', which nobody consumes' * alone}")
        node = self.brokers.processes[at].node

        def answered(answer: Answer) -> None:       # its client hears of it when it is on the disk
            node.hub.when_all_durable(lambda: answers.append(answer), lambda why: None)

        node.broker.relays.ask(node.manager.queues[b"/", PURGED.encode()].queue, "purge", (), answered)
        self.brokers.processes[at].turn()
        if not answers:
            self.brokers.world.holds_within(lambda: answers, ANSWER_S)
        self.dropped |= {payload for payload, (_, queue, _) in self.sent.items() if queue == PURGED}
        if not answers or answers[0].refused is not None:
            self.unanswered = True
            self.note(f"the purge was not done: {answers}")
            return
        self.note(f"{answers[0].value} were purged")
        if alone and calm and calm == self.calm_period:
            self.gone |= known - self.acked

    def check_rooms(self) -> None:
        """What owners have given to consumers, and is not there yet, or waits at their nodes."""
        if not self.calm_period:
            return
        claimed: dict[str, int] = defaultdict(int)
        for _, state in self.states():
            if state.here and whole_of(state.queue.name) is not None:
                for group in state.groups.values():
                    for member in group.members:
                        claimed[member.client] += member.held
        for consumer in self.consumers:
            if isinstance(consumer, Taker) and consumer.prefetch and consumer.subscribed:
                most = 3 * consumer.prefetch + self.partitions[consumer.queue]
                if claimed[consumer.name] > most:
                    self.wrong.append(f"{consumer.name} was given {claimed[consumer.name]}, and its prefetch is "
                                      f"{consumer.prefetch}")

    # ------------------------------------------------------------------ the verdict

    def late(self) -> None:
        for queue in self.queues:
            late = Taker(self, self.chance.choice(NAMES), f"late-{queue}", queue, False, 0)
            self.consumers.append(late)
            late.go(late.at)

    def keys_of(self, queue: str) -> dict[int, str]:
        """For each partition one of its keys."""
        relay: Any = self.brokers.processes["one"].node.manager.queues[b"/", queue.encode()].queue.relay
        found: dict[int, str] = {}
        for key in map(str, range(100)):
            raw = b"&\0\x0dpartition-key" + len(key).to_bytes(2, "big") + key.encode()
            part = whole_of(relay.part_of(b"$queue/" + queue.encode(), raw, 0).name)
            assert part is not None
            found.setdefault(part.partition, key)
        return found

    def check_told(self) -> None:
        """What the owners at other nodes may send to a consumer that has room for all of its prefetch."""
        told: dict[str, list[int]] = defaultdict(list)
        for _, state in self.states():
            if state.here and whole_of(state.queue.name) is not None:
                for group in state.groups.values():
                    for member in group.members:
                        if isinstance(member, PeerMember):
                            told[str(member.client)].append(member.limit - member.held)
        for consumer in self.consumers:
            if isinstance(consumer, Taker) and consumer.prefetch and not consumer.held:
                rooms = told[consumer.name]
                if sum(rooms) > consumer.prefetch + len(rooms):
                    self.wrong.append(f"{consumer.name} may get {rooms} at once, and its prefetch is "
                                      f"{consumer.prefetch}")

    def probe(self) -> None:
        """Messages for each partition of each queue, one after the other, so that all consumers have room."""
        self.check_told()
        publisher = self.publishers[0]
        takers = {queue: {one.name for one in self.consumers if one.queue == queue} for queue in self.queues}
        keys = {queue: self.keys_of(queue) for queue in self.queues}
        probes: dict[bytes, tuple[str, int]] = {}
        for _ in range(1 + max(map(len, takers.values()))):
            for partition in range(max(self.partitions.values())):
                for queue in self.queues:
                    if partition < self.partitions[queue]:
                        payload, key = b"probe-%d" % len(self.sent), keys[queue][partition]
                        self.sent[payload] = publisher, queue, 1
                        self.keys[payload] = key
                        probes[payload] = queue, partition
                        publisher.offer(f"$queue/{queue}", payload, 1, partition_key=key)
                self.brokers.run_for(0.05 + 3 * self.brokers.writer_s)
        self.settle_down(20.0)
        found: dict[tuple[str, int], set[str]] = {probe: set() for probe in probes.values()}
        for consumer in self.consumers:
            for _, payload in consumer.messages:
                if payload in probes and consumer.queue in self.queues:
                    found[probes[payload]].add(consumer.name)
        for (queue, partition), names in found.items():
            if queue in self.exclusive and len(names) != 1:
                self.wrong.append(f"partition {partition} of {queue} belongs to {sorted(names)}")
            elif queue not in self.exclusive and names != takers[queue]:
                self.wrong.append(f"{sorted(takers[queue] - names)} get nothing of partition {partition} of {queue}")
        for queue in self.exclusive:
            owned = {name: sum(name in names for (of, _), names in found.items() if of == queue)
                     for name in takers[queue]}
            if max(owned.values()) > min(owned.values()) + 1:
                self.wrong.append(f"consumers of {queue} have so many partitions: {owned}")

    def verdict(self) -> None:
        super().verdict()
        where: dict[tuple[str, str], dict[str, bytes]] = {}
        for payload, key in self.keys.items():
            queue = self.sent[payload][1]
            for place in self.offsets.get((queue, payload), ()):
                where.setdefault((queue, key), {}).setdefault(place.partition(":")[0], payload)
        self.wrong += [f"key {key} of {queue} is in several partitions: {places}"
                       for (queue, key), places in where.items() if len(places) > 1]


def run(seed: int, faults: tuple[str, ...], steps: int = 60) -> None:
    DividedHistory(seed, faults, steps)


LEVELS = {level: faults for level, faults in QUEUE_LEVELS.items() if level != "streams"}


@pytest.mark.parametrize("level", LEVELS)
def test_histories(level: str, seed: int) -> None:
    for number in range(3):
        this = seed * 1_000_000 + number
        try:
            run(this, LEVELS[level])
        except BaseException as error:
            error.add_note(f"run({this}, LEVELS[{level!r}])")
            raise
