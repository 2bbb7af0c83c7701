"""One simulated machine with its clients: lives of the broker one after the other, and what goes on in them.

Whoever drives it says what happens when (history.py). What holds at each instant is checked here: the broker does not
crash, ends by itself only if its disk gave it a reason, hangs never, and tells nobody what a loss of power at that
instant would take back.
"""
from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from simulator.amqp_client import AmqpClient
from simulator.disk import Dead, Disk
from simulator.judge import Books, Message, Wrong
from simulator.mqtt_client import MqttClient
from simulator.node import Clock, Node, Options

from fluxmq._core.errors import CorruptError, StorageError

__all__ = ["Refused", "World"]

ROUNDS_MAX = 3000       # until nothing is under way any more; a broker that needs more of them hangs
STARTS_MAX = 6
IDENTITY = re.compile(rb"<m\d+>")


class Refused(Exception):
    """The broker does not start because of what it found, and says so."""


class World:
    """chance: of everything. trace: gets what happens, line by line."""

    def __init__(self, chance: random.Random, options: Options) -> None:
        self.chance = chance
        self.options = options
        self.clock = Clock()
        self.trace: list[str] = []
        self.disk = Disk(random.Random(chance.getrandbits(64)))
        self.disk.trace = self.tell
        self.disk.now_ns = lambda: self.clock.mono_ms * 1_000_000
        self.disk.on_view = self._view_is_behind
        self.books = Books()
        self.books.tell = self.tell
        self.books.now_ms = lambda: self.clock.mono_ms
        self._ticked_ms = 0
        self.mqtt: list[MqttClient] = []
        self.amqp: list[AmqpClient] = []
        self.node: Node | None = None
        self.lives = 0
        self.flipped = ""
        self.ahead = ""
        self._failed_before = 0     # how much of disk.failed belongs to former lives

    def tell(self, line: str) -> None:
        self.trace.append(line)

    @property
    def clients(self) -> Iterator[MqttClient | AmqpClient]:
        yield from self.mqtt
        yield from self.amqp

    # ── lives ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """A life begins; a start that the disk makes fail is tried again. Raises Refused for damage."""
        for attempt in range(STARTS_MAX):
            self.lives += 1
            self._failed_before = len(self.disk.failed)
            node = Node(self.disk, self.clock, self.options, random.Random(self.chance.getrandbits(64)), self._log)
            self.tell(f"start {self.lives}")
            try:
                node.start()
            except CorruptError as error:
                if self.flipped:
                    raise Refused(str(error)) from None
                raise Wrong("refused", f"the start refuses what a crash left: {error}") from error
            except StorageError as error:
                if len(self.disk.failed) == self._failed_before and self.disk.room >= 1 << 40 and not self.disk.dead:
                    raise Wrong("refused", f"the start fails for nothing: {error}") from error
                self.tell(f"refused {type(error).__name__}")
            except Dead:
                pass
            else:
                if not self.disk.dead:
                    self.node = node
                    self._started(node)
                    return
            self.disk.crash(self.chance.choice(("kill", "power")))
            if attempt >= 2:
                self.disk.failing.clear()
                self.disk.room = 1 << 40
        raise Wrong("refused", "the broker does not start")

    def _started(self, node: Node) -> None:
        recovery = node.store.recovery
        self.tell(f"started {recovery.last} {sorted(node.found.items())}")
        if self.flipped and (recovery.truncated_bytes or node.segments.recovery.truncated):
            self.books.losses_allowed = True
        self.look_for_damage()
        self.check()

    def look_for_damage(self) -> None:
        """A queue may stand still only if there is something wrong with the disk."""
        node = self.node
        assert node is not None
        for queue, state in node.manager.states.items():
            if queue.damage is not None:
                if not self.flipped and len(self.disk.failed) == self._failed_before:
                    raise Wrong("damage", f"a queue is stopped for nothing: {queue.damage}")
                self.stopped(f"{state.spec.namespace}|{state.spec.name}")

    def stopped(self, key: str) -> None:
        """A queue is damaged: what it had may be gone until it is repaired."""
        if key in self.books.queues:
            self.books.queues[key].stopped = True
        self.books.losses_allowed = True        # its dead letters and whoever is behind it

    def _log(self, level: str, text: str, fields: dict[str, Any]) -> None:
        if level in ("warning", "error"):
            self.tell(f"log {level} {text[:70]}")

    def crash(self, kind: str) -> None:
        """The process is gone, or the machine. What was on its way to clients reaches them, or does not."""
        self.tell(f"crash {kind}")
        for client in self.clients:
            if client.pipe is not None and self.chance.random() < 0.5:
                client.slow = False
                client.read()
            client.slow = False
            client.lose()
            if isinstance(client, MqttClient) and client.will is not None:
                client.will.void()
        self.books.answered.clear()
        self.books.restarted()
        if self.node is not None:
            self.disk.dead = True
            self.node.driver.drop()
            self.node.forget_routes()
        self.node = None
        self.disk.crash(kind)

    def stop(self) -> None:
        """SIGTERM, to the end."""
        assert self.node is not None
        self.tell("stop")
        node = self.node
        try:
            node.stop()
        except StorageError as error:
            self.tell(f"stop {type(error).__name__}")
        except Dead:
            pass
        self.crash(self.chance.choice(("kill", "power")))

    # ── what goes on ─────────────────────────────────────────────────────────────────────────────────────

    def turn(self, *, all_read: bool = False) -> None:
        """A turn of the broker, and what it sent is read by most."""
        if self.node is None:
            return
        self._do(self.node.turn)
        for one in self.mqtt:
            if one.will is not None:
                one.will.look()
        for client in self.clients:
            if client.pipe is not None and (all_read or self.chance.random() < 0.9):
                self._read(client)
        self._answers_are_safe()

    def _read(self, client: MqttClient | AmqpClient) -> None:
        client.read()
        if isinstance(client, AmqpClient) and client.refused:
            self.tell(f"refused {client.name} {client.refused[-1]}")

    def _do(self, step: Any) -> None:
        try:
            step()
        except Dead:
            assert self.disk.dead
        self.check()

    def some(self) -> None:
        """The machine goes on by one small step of chance."""
        node = self.node
        if node is None:
            return
        draw = self.chance.random()
        if draw < 0.5:
            self.turn()
        elif draw < 0.75:
            self.write_journal()
        elif draw < 0.9 and node.driver.threads:
            self.run_thread()
        else:
            self.clock.advance(self.chance.choice((1, 5, 20)))
            self.run_ready()

    def write_journal(self) -> None:
        """One step of the journal's writer."""
        if self.node is not None:
            self._do(self.node.write_journal)

    def run_thread(self) -> None:
        """One of the blocking steps that were begun, if there is any."""
        if self.node is not None and self.node.driver.threads:
            driver = self.node.driver
            self.books.reads += self.books.draining
            self._do(lambda: driver.run_thread(self.chance.randrange(len(driver.threads))))

    def run_ready(self) -> None:
        """What is due in the loop."""
        if self.node is not None:
            self._do(self.node.driver.run_ready)

    def tick(self, ms: int) -> None:
        """Time passes."""
        self.clock.advance(ms)
        if self.node is not None:
            self._do(self.node.tick)
            self._ticked_ms = self.clock.mono_ms

    def check(self) -> None:
        """After each step of the broker."""
        node = self.node
        if node is None:
            return
        if self.ahead:
            raise Wrong("ahead", self.ahead)
        if node.crashes:
            raise Wrong("crash", repr(node.crashes[0])) from node.crashes[0]
        for error in node.driver.crashed:
            if not isinstance(error, StorageError):
                raise Wrong("crash", repr(error)) from error
        if self.disk.dead:
            self.crash(self.chance.choice(("kill", "power", "power")))
            return
        if node.failed is not None:
            if len(self.disk.failed) == self._failed_before and not self.flipped and self.disk.room >= 1 << 40:
                raise Wrong("failed", f"the broker ends for nothing: {node.failed}")
            self.tell(f"failed {type(node.failed).__name__}")
            self.crash(self.chance.choice(("kill", "kill", "power")))

    def _answers_are_safe(self) -> None:
        """What a client has just been told would be there after a loss of power at this instant."""
        answered, self.books.answered = self.books.answered, []
        if self.node is None or self.options.durability != "fsync" or self.books.losses_allowed:
            return
        asked = [message for message in answered if self._must_be_on_disk(message)]
        if not asked:
            return
        found = [*self.disk.synced_bytes(), *self.disk.view.values()]
        for message in asked:
            if not any(message.payload in data for data in found):
                raise Wrong("answered early", f"{message} was acknowledged, and a loss of power would take it")

    def _view_is_behind(self, rows: dict[bytes, bytes]) -> None:
        """A checkpoint knows of no message that a loss of power at this instant would take from the journal."""
        if self.options.durability != "fsync":
            return
        named = {found for value in rows.values() for found in IDENTITY.findall(value)}
        if named:
            there = {found for data in [*self.disk.synced_bytes(), *self.disk.view.values()]
                     for found in IDENTITY.findall(data)}
            # What was acknowledged was on the medium. One group may have settled it, so that it has left the disk, and
            # one that came later still has it in hand: the view may name it again.
            ahead = named - there - {one.payload for one in self.books.messages if one.acked}
            if ahead and not self.flipped:
                self.ahead = f"the view is about to get {sorted(ahead)}, and the journal on the medium has not"

    def _must_be_on_disk(self, message: Message) -> bool:
        if self.options.compression != "none" or message.empty or self.books.expired(message):
            return False
        queues = [self.books.queues[key] for key in message.places if self.books.queues[key].kind != "ephemeral"]
        if any(not group.seen[message] for queue in queues for group in queue.groups.values()) or any(
                not queue.groups for queue in queues):
            return True
        return any(message in session.required and session.kept and not session.received[message]
                   for session in self.books.sessions.values()) or any(
                       message in share.required and message not in share.got for share in self.books.shares.values())

    def quiet(self, *, judge: bool = True) -> None:
        """Until nothing is under way any more; then what was settled is, and who is connected has got everything."""
        node = self.node
        if node is None:
            return
        for round_ in range(ROUNDS_MAX):
            self.turn(all_read=True)
            if self.node is not node:
                return
            self._do(node.write_journal)
            if self.node is node and node.driver.threads:
                self.books.reads += self.books.draining
                self._do(node.driver.run_thread)
            if self.node is not node:
                return
            if round_ % 4 == 3:
                self.clock.advance(5)       # who looks again in a moment
            going = self._going(node)
            if not going:
                break
        else:
            if self.disk.room < 1 << 40:
                return
            raise Wrong("hangs", f"something is under way for ever: {going}")
        if judge and not any(client.slow for client in self.clients):
            self.look_for_damage()
            self.tell("quiet")
            if self.options.durability == "fsync":
                self.books.firm()
                for client in self.mqtt:
                    if client.will is not None and client.will.quiet(self._ticked_ms):
                        self.books.acked(client.will.message)
            self.books.quiet(client.name for client in self.mqtt if client.open)

    def _going(self, node: Node) -> str:
        """What is under way; "": nothing."""
        if node.driver.busy or node.woken:
            return f"the loop: {node.driver.threads} {node.woken}"
        if not node.journal_idle:
            return f"the journal: {node.journal.durable} of {node.journal.gathering}, {node.journal.status_text}"
        if node.keeper._task is not None and not node.keeper._task.done():
            return "a checkpoint"
        for client in self.clients:
            pipe = client.pipe
            if pipe is not None and not client.slow and (pipe.to_broker or pipe.to_client):  # who reads not is not read
                return f"{client.name}: {len(pipe.to_broker)} bytes to the broker, {len(pipe.to_client)} from it"
        for connection, pipe in node.pipes.items():
            if pipe.room is None and connection.pending:
                return f"{connection.pending} bytes to {connection.fd}"
        return ""
