"""A history: a world drawn from one seed, and what happens in it, step by step; at its end the verdict.

    play(7)         # returns the World; raises Failed, with the trace
"""
from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable

from simulator.amqp_client import AmqpClient
from simulator.ending import end
from simulator.judge import Message, QueueBook, ShareBook, Wrong
from simulator.mqtt_client import LEASE_MS, MqttClient
from simulator.node import Options
from simulator.publishing import Publishing
from simulator.topology import Topology
from simulator.world import Refused, World

from fluxmq.model.queues import DeadLetters, QueueSpec, Retry

__all__ = ["Failed", "History", "play"]

FILTERS = ("t/a", "t/+", "+/+", "t/b", "t/#", "r/#")
SHARES = ("$share/one/g/x/a", "$share/two/g/y/+")
# Namespaces, which are AMQP's virtual hosts; queues that are configured are in each, by the same names.
VIRTUAL_HOSTS = ("/", "v")
QUEUES = (("w", "classic", "w.dlq", False), ("few", "classic", "few.dlq", True), ("s", "stream", "", False),
          ("e", "ephemeral", "", False), ("w.dlq", "classic", "", False), ("few.dlq", "classic", "", False))
STEPS = (14, 60)
DISK_CALLS = ("pwrite", "pwrite", *["fdatasync"] * 5, "fsync", "fsync-directory", "open", "rename", "unlink",
              "ftruncate", *["view"] * 5, "syncfs", "mkdir", "pread", "reserve")


class Failed(AssertionError):
    """A history that went wrong. kind: of Wrong, or the type of what was raised."""

    def __init__(self, seed: int, kind: str, text: str, trace: list[str]) -> None:
        super().__init__(f"seed {seed}: {text}")
        self.seed, self.kind, self.trace = seed, kind, trace


class History(Publishing):
    """Machine. seed: decides everything."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.partitions = chance.choice((1, 1, 3))      # of the stream, and of `few`
        self.priority_max = chance.choice((0, 0, 3))    # of `w`
        self.world = World(chance, self._options())
        books = self.world.books
        for vhost in VIRTUAL_HOSTS:
            for name, kind, dead, limited in QUEUES:
                books.queue(QueueBook(f"{vhost}|{name}", kind, dead and f"{vhost}|{dead}", limited)).made_at = 1
            books.queues[f"{vhost}|s"].partitions = self.partitions
            for pattern in SHARES:
                books.shares[vhost, pattern] = ShareBook(vhost, pattern)
        now_ms: Callable[[], int] = lambda: self.world.clock.mono_ms  # noqa: E731
        # Half of the histories have the same clients in each namespace, the others all of them in one.
        where = chance.choice((VIRTUAL_HOSTS, VIRTUAL_HOSTS, VIRTUAL_HOSTS[:1], VIRTUAL_HOSTS[1:]))
        self.world.mqtt = [MqttClient(f"c{at}", chance.choice((4, 5, 5)), books, chance, now_ms, vhost)
                           for at in range(chance.randint(2, 4) if len(where) == 1 else 2) for vhost in where]
        self.world.amqp = [AmqpClient(f"a{at}", vhost, books, chance, now_ms)
                           for at in range(chance.randint(0, 2)) for vhost in (chance.choice(where),)]
        self.topologies = {vhost: Topology(vhost, self.world) for vhost in VIRTUAL_HOSTS}
        self.produced: list[tuple[Message, str, list[tuple[str, str]]]] = []
        self.drained_at = 0
        self.calm = chance.random() < 0.15      # no crash but at its end
        # What this history is mostly about: a few kinds of steps come often, the others as always.
        self.weights = {step: weight * chance.choice((1, 1, 1, 4, 0 if weight < 3 else 1))
                        for step, weight in self.STEPS.items()}

    def _options(self) -> Options:
        chance = self.chance
        retry = Retry(initial_backoff=0.2, max_backoff=1.0, max_retries=0,
                      visibility_timeout=chance.choice((0.0, LEASE_MS / 1000)))
        few = Retry(initial_backoff=0.2, max_backoff=1.0, max_retries=2, visibility_timeout=0.0)
        return Options(
            journal_bytes=chance.choice((2048, 4096, 16384)), checkpoint_bytes=chance.choice((1500, 6000, 1 << 30)),
            segment_bytes=chance.choice((300, 1024, 4096)), small_bytes=chance.choice((0, 0, 200, 1 << 16)),
            cache_bytes=chance.choice((0, 0, 1 << 20)), compression=chance.choice(("none", "none", "none", "zstd")),
            durability="fsync", virtual_hosts=VIRTUAL_HOSTS, queues=[spec for vhost in VIRTUAL_HOSTS for spec in (
                QueueSpec(name="w", namespace=vhost, max_priority=self.priority_max, topics=("t/c",),
                          capture="confirmed", retry=retry),
                QueueSpec(name="few", namespace=vhost, partitions=self.partitions, retry=few),
                QueueSpec(name="s", namespace=vhost, partitions=self.partitions, type="stream"),
                QueueSpec(name="e", namespace=vhost, type="ephemeral", dlq=DeadLetters(enabled=False)))])

    def play(self) -> None:
        world = self.world
        try:
            world.start()
            self._come()
            for _ in range(self.chance.randint(*STEPS)):
                if world.node is None:
                    world.start()
                    self._come()
                if world.node is not None:      # it may die while they come
                    self._step()
                for _ in range(self.chance.choice((0, 1, 2, 3, 6, 10))):
                    world.some()
            end(self)
        except Refused as refused:
            world.tell(f"refused {refused}")

    def _come(self) -> None:
        """Most clients connect as soon as there is a broker, and most are there before anything else happens."""
        for _ in list(self.world.clients):
            if self.world.node is not None and self.chance.random() < 0.8:
                self._connect()
        if self.chance.random() < 0.7:
            self.world.quiet(judge=False)
        for client in self.world.amqp:
            if client.open:
                for _ in range(self.chance.choice((1, 2, 3))):
                    self.topologies[client.vhost].declare_some(client)
                if self.chance.random() < 0.7:
                    self.world.quiet(judge=False)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self) -> None:
        kinds = list(self.weights)
        kind = self.chance.choices(kinds, list(self.weights.values()))[0]
        self.world.tell(f"step {kind}")
        getattr(self, f"_{kind}")()

    STEPS = {"connect": 8, "publish": 14, "publish_queue": 14, "repeat": 4, "subscribe": 5, "consume": 9,
             "answer": 16, "leave": 3, "amqp_setup": 6, "amqp_publish": 10, "amqp_consume": 5, "amqp_settle": 10,
             "time": 5, "checkpoint": 4, "race": 14, "failed_checkpoint": 5, "quiet": 5, "crash": 3,
             "crash_in_call": 4, "fault": 6, "full": 1, "stop": 2, "slow": 2, "set_clock": 1}

    def _some_mqtt(self) -> MqttClient | None:
        found = [client for client in self.world.mqtt if client.open]
        return self.chance.choice(found) if found else None

    def _some_amqp(self) -> AmqpClient | None:
        found = [client for client in self.world.amqp if client.open]
        return self.chance.choice(found) if found else None

    def _connect(self) -> None:
        node, chance = self.world.node, self.chance
        assert node is not None
        away = [client for client in self.world.clients if client.pipe is None]
        client = chance.choice(away or self.world.mqtt)     # nobody is away: one takes over
        if isinstance(client, AmqpClient):
            client.connect(node)
        else:
            client.connect(node, clean=chance.random() < 0.15, kept=chance.random() < 0.7,
                           will=self._will(client))

    def _subscribe(self) -> None:
        client = self._some_mqtt()
        if client is None:
            return
        if self.chance.random() < 0.3:      # whoever is there
            pattern = self.chance.choice(SHARES)
            for each in self.world.mqtt:
                if each.open and pattern not in each.session.subscriptions and pattern not in each.session.asked:
                    each.subscribe(pattern, self.chance.choice((1, 2)))
            return
        known = list(client.session.subscriptions)
        if known and self.chance.random() < 0.2:
            client.unsubscribe(self.chance.choice(known))
            return
        pattern = self.chance.choice(FILTERS if self.chance.random() < 0.6 else SHARES)
        if pattern not in known and pattern not in client.session.asked:
            client.subscribe(pattern, self.chance.choice((0, 1, 2, 2)))

    def _consume(self) -> None:
        client, chance = self._some_mqtt(), self.chance
        if client is None:
            return
        queue = chance.choice(("w", "w", "few", "few", "s", "e", "w.dlq"))
        if queue in client.groups:
            return
        if queue == "s":
            if client.version == 5:
                client.consume("s", "", 1, manual=False, offset="first")
            return
        group = chance.choice(("default", "default", "g2"))
        if client.version == 4 or queue.endswith(".dlq"):
            group = "default"
        client.consume(queue, group, chance.choice((1, 1, 2)), manual=client.version == 5 and chance.random() < 0.35)

    def _answer(self) -> None:
        """Consumers deal with some of what they have in hand."""
        chance = self.chance
        for client in self.world.mqtt:
            for held in [one for one in client.held if chance.random() < 0.5]:
                if held.packet_id:
                    client.answer(held, reason=0x80 if client.version == 5 and chance.random() < 0.2 else 0)
                elif held.name:
                    client.held.remove(held)
                    verb = chance.choice(("$ack", "$ack", "$nack", "$reject"))
                    client.order(verb, held, **({"delay": "100"} if verb == "$nack" and chance.random() < 0.5 else {}))

    def _leave(self) -> None:
        client = self._some_mqtt() if self.chance.random() < 0.7 else self._some_amqp()
        if isinstance(client, MqttClient) and self.chance.random() < 0.4:
            client.disconnect()
        elif client is not None:
            client.lose()
        if self.chance.random() < 0.4:
            self.world.quiet(judge=False)
            self.world.tick(1500)
            self.world.quiet()

    def _amqp_setup(self) -> None:
        client = self._some_amqp()
        if client is not None:
            self.topologies[client.vhost].declare_some(client)

    def _amqp_publish(self) -> None:
        client = self._some_amqp()
        if client is not None:
            for _ in range(self.chance.choice((1, 1, 3))):
                if client.open:
                    self.topologies[client.vhost].publish(client)

    def _amqp_consume(self) -> None:
        client = self._some_amqp()
        if client is not None:
            self.topologies[client.vhost].consume(client)

    def _amqp_settle(self) -> None:
        for client in self.world.amqp:
            for delivery in [one for one in client.held if self.chance.random() < 0.5]:
                verb = self.chance.choice(("ack", "ack", "ack", "requeue", "reject"))
                client.settle(delivery, verb)

    def _time(self) -> None:
        for _ in range(self.chance.choice((1, 2, 6))):
            self.world.tick(250)

    def _checkpoint(self) -> None:
        node = self.world.node
        if node is not None and node.failed is None and node.keeper.failed is None:
            node.checkpoint()
            for _ in range(self.chance.choice((0, 0, 5, 25))):
                self.world.some()

    def _race(self) -> None:
        """A checkpoint goes on between what clients do, while the journal's writer is slow; then power goes, often."""
        world, chance = self.world, self.chance
        if world.node is None:
            return
        lives = world.lives
        writes = chance.choice((1, 2, 3, 99))       # after so many steps the writer stands still
        if chance.random() < 0.6:       # a batch is under way, and another one gathers
            for _ in range(chance.choice((2, 3))):
                self._step_of(("publish", "publish_queue", "publish_queue", "answer"))
                world.turn()
        if world.node is not None and world.node.failed is None and world.node.keeper.failed is None:
            world.node.checkpoint()
            world.run_ready()
        for _ in range(chance.choice((8, 16, 28))):
            node = world.node
            if node is None or world.lives != lives:
                return
            draw = chance.random()
            if draw < 0.35:
                self._step_of(("publish", "publish_queue", "answer", "amqp_publish", "amqp_settle"))
            elif draw < 0.55:
                world.turn()
            elif draw < 0.63:
                if writes:
                    world.write_journal()
                writes -= writes > 0
            elif draw < 0.82:
                world.clock.advance(5)
                world.run_ready()
            else:
                world.run_thread()
        if not self.calm and chance.random() < 0.5:
            self._step_of(("crash", "crash_in_call"))

    def _failed_checkpoint(self) -> None:
        """The disk makes one fail while clients go on, and another follows if the broker begins one; then a crash."""
        world, chance = self.world, self.chance
        if self.calm:
            return
        lives = world.lives
        for attempt in range(2):
            node = world.node
            if node is None or world.lives != lives or node.failed is not None or node.keeper.failed is not None:
                break
            if attempt == 0:
                world.disk.failing.append((chance.choice(("view", "view", "syncfs", "fsync")), errno.EIO))
            node.checkpoint()
            for _ in range(chance.choice((10, 20))):
                if world.node is node and chance.random() < 0.3:
                    self._step_of(("publish", "publish_queue", "answer", "amqp_publish", "amqp_settle"))
                world.some()
                world.clock.advance(5)
                world.run_ready()
                world.run_thread()
        world.disk.failing.clear()
        if chance.random() < 0.6:
            self._step_of(("crash", "crash_in_call"))

    def _quiet(self) -> None:
        self.world.quiet()

    def _crash(self) -> None:
        if not self.calm:
            self.world.crash(self.chance.choice(("kill", "power", "power")))

    def _crash_in_call(self) -> None:
        if not self.calm:
            disk = self.world.disk
            disk.die_at = disk.calls + self.chance.choice((1, 2, 3, 5, 8, 13, 21, 34))

    def _fault(self) -> None:
        if not self.calm:
            self.world.disk.failing.append((self.chance.choice(DISK_CALLS), errno.EIO))
            for _ in range(self.chance.choice((0, 2, 4))):
                self._step_of(("publish", "publish_queue", "checkpoint", "amqp_publish"))
                self.world.some()

    def _full(self) -> None:
        """No space, for some time; whoever waits for it is helped."""
        if self.calm:
            return
        disk, world = self.world.disk, self.world
        world.books.was_full = True
        disk.room = disk.used + disk.reserved + self.chance.choice((0, 50, 400))
        for _ in range(self.chance.choice((10, 30))):
            world.some()
            if world.node is not None and self.chance.random() < 0.3:
                self._step_of(("publish_queue", "answer", "checkpoint", "time", "amqp_publish"))
        disk.room = 1 << 40
        for _ in range(8):
            world.tick(1000)

    def _step_of(self, kinds: tuple[str, ...]) -> None:
        getattr(self, f"_{self.chance.choice(kinds)}")()

    def _stop(self) -> None:
        if not self.calm:
            self.world.stop()

    def _slow(self) -> None:
        """A client does not read for a while, or does again."""
        client = self._some_mqtt() or self._some_amqp()
        if client is not None and client.pipe is not None:
            client.slow = not client.slow
            if isinstance(client, MqttClient):
                client.was_slow = True
            client.pipe.room = 64 if client.slow else None

    def _set_clock(self) -> None:
        self.world.books.clock_set = True
        self.world.clock.wall_ms += self.chance.choice((-3_600_000, -10_000, 10_000, 3_600_000))


def play(seed: int) -> World:
    """Plays one history. Raises Failed."""
    history, log = History(seed), logging.getLogger("fluxmq")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)      # a history is told by its trace
    try:
        history.play()
    except Wrong as wrong:
        raise Failed(seed, wrong.kind, str(wrong), history.world.trace) from wrong
    except Exception as error:
        raise Failed(seed, type(error).__name__, repr(error), history.world.trace) from error
    finally:
        log.setLevel(level)
        history.world.disk.forget_descriptors()
    return history.world
