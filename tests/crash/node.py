"""A whole node without event loop, listeners and clock of its own: clients speak to it over socket pairs, the test says
when a turn happens, when the disk finishes a sync, when a checkpoint takes its next step, and when power goes.

The journal's writer is a real thread on real files; a gate in front of fdatasync decides when it may go on.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

from kit.journals import Ops, wait_event
from kit.readable import is_readable
from oracle.mqtt import (
    NEVER,
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    parse,
)
from oracle.stored import records

from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.connection import Connection
from fluxmq._core.net.poller import Poller
from fluxmq._core.testing.probes import gathered, session_state
from fluxmq.access.authority import Authority
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.edge.mqtt.front import Front
from fluxmq.edge.mqtt.options import FrontOptions
from fluxmq.edge.mqtt.tally import Tally
from fluxmq.engine.broker import Broker, Limits
from fluxmq.engine.durability import Keeper
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.storage.store import RocksStore

WAIT_SECONDS = 30.0

State = dict[str, Any]


class Snapshot(NamedTuple):
    """records: of the batch when it was looked at, while it gathered; None: it was handed over, and whole."""

    records: int | None
    state: State


class Peer:
    """A client's end of a connection: everything received and not yet looked at, and what it owes."""

    def __init__(self, node: Node, name: str, **connect: Any) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self.socket = ours
        self.buffer = b""
        self.open = False
        self.owed: list[Packet] = []
        self.received: list[Packet] = []
        fd = theirs.detach()
        connection = Connection(node.hub, fd, node.poller.epoll, node.front, None, False)
        node.front.connections += 1
        node.poller.adopt(connection)
        self.send(Connect(client_id=name, **connect))

    def send(self, *packets: Packet) -> None:
        try:
            self.socket.sendall(b"".join(packet.encode() for packet in packets))
        except OSError:
            self.open = False

    def pull(self) -> None:
        """Reads what has come, and notes what must be answered."""
        try:
            while data := self.socket.recv(65536):
                self.buffer += data
        except OSError:
            pass
        while (found := parse(self.buffer, V5)) is not None:
            packet, self.buffer = found
            self.received.append(packet)
            match packet:
                case Connack():
                    self.open = packet.reason == 0
                case Publish(qos=1):
                    self.owed.append(Puback(packet_id=packet.packet_id))
                case Publish(qos=2):
                    self.owed.append(Pubrec(packet_id=packet.packet_id))
                case Pubrel():
                    self.owed.append(Pubcomp(packet_id=packet.packet_id))
                case Pubrec() if packet.reason < 0x80:
                    self.owed.append(Pubrel(packet_id=packet.packet_id))
                case Disconnect():
                    self.open = False

    def close(self) -> None:
        self.socket.close()


class Node:
    """directory: where its data is. loop: for the steps of checkpoints. queue_max: small: it evicts."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop, identity: int, queue_max: int = 4,
                 cluster: Cluster | None = None) -> None:
        self.directory = directory
        self.loop = loop
        self.gate = threading.Event()
        self.gate.set()
        self.ops = Ops()
        sync = self.ops.fdatasync

        def gated(fd: int) -> int | None:
            assert self.gate.wait(WAIT_SECONDS)
            return sync(fd)

        self.ops.fdatasync = gated
        self.store = RocksStore(directory, identity=identity, file_ops=self.ops.address)
        self.store.start()
        assert self.store.journal is not None
        self.journal = self.store.journal
        self.hub = Hub(self.journal, 64, identity)
        self.poller = Poller(self.hub, 1)
        self.broker = Broker(self.hub, Limits(queue_max=queue_max), cluster=cluster or solo())
        self.keeper = Keeper(self.broker, self.store, 1 << 40, LoopDriver())
        self.authority = Authority(None, None, True)
        self.problems: list[str] = []
        self.front = Front(
            self.broker,
            self.authority,
            FrontOptions(),
            Tally(),
            "test",
            on_log=self._note,
            log_connections=lambda: False,
            later=loop.call_later,
        )
        self.records = {number: len(records(batch)) for number, batch in self.store.replay()}
        self.keeper.recover()
        self.first = self.journal.gathering
        self.snapshots: dict[int, Snapshot] = {}
        self.peers: dict[str, Peer] = {}
        self.checkpoint: asyncio.Task[None] | None = None
        self._remember()

    def _note(self, level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        if "error" in fields:
            self.problems.append(repr(fields["error"]))

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────

    def connect(self, name: str, *, clean: bool, kept: bool, receive_maximum: int, will: Any = None) -> None:
        self.peers[name] = Peer(
            self,
            name,
            clean_start=clean,
            will=will,
            properties={"session_expiry_interval": NEVER if kept else 0, "receive_maximum": receive_maximum},
        )
        self.turn()

    def turn(self) -> None:
        """Everything that waits in sockets is handled."""
        while is_readable(self.poller):
            self.poller.turn()
            self._remember()
        self.poller.turn()
        self._remember()

    def disk(self) -> None:
        """What the disk has finished by now is noticed."""
        if is_readable(self.journal.event_fd):
            self.poller.turn()
            self._remember()

    def settle(self) -> None:
        """Everything becomes durable."""
        self.gate.set()
        self.turn()
        while gathered(self.journal) or self.journal.durable < self.journal.gathering - 1:
            wait_event(self.journal)
            self.poller.turn()
            self._remember()
            self.turn()

    def checkpoint_step(self) -> None:
        """The next step of a checkpoint; begins one when none is under way."""
        if self.checkpoint is None:
            self.checkpoint = self.loop.create_task(self.keeper.checkpoint())
        self.loop.call_soon(self.loop.stop)  # one round of the loop: to the task's next await and no further
        self.loop.run_forever()
        self._checkpoint_over()

    def finish_checkpoint(self) -> None:
        while self.checkpoint is not None:
            self.settle()
            self.loop.run_until_complete(asyncio.sleep(0.001))
            self._checkpoint_over()

    def _checkpoint_over(self) -> None:
        if self.checkpoint is not None and self.checkpoint.done():
            task, self.checkpoint = self.checkpoint, None
            task.result()

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> State:
        """What a restart must bring back."""
        sessions = {}
        for (_, name), session in self.broker.sessions.items():
            if session.number and session.data.kept:
                sessions[name] = session_state(session) | {"will": session.data.will, "expiry": session.data.expiry_s}
        retained = {topic: (kept.payload, kept.qos) for topic, kept in self.hub.root.topics.retained}
        return {"sessions": sessions, "retained": retained}

    def _remember(self) -> None:
        """A batch that gathers may grow in the next turn and be handed over in the middle of it, where nobody looks:
        what it held when it was looked at tells later whether this is the state after all of it."""
        records = gathered(self.journal)
        last = self.journal.gathering if records else self.journal.gathering - 1
        self.snapshots[last] = Snapshot(records or None, self.state())

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    def crash(self, target: Path) -> tuple[int, dict[int, Snapshot]]:
        """Copies what a kill would leave at this instant, then takes everything down.

        Returns the last batch that was durable, and what was seen after each batch.
        """
        while self.store.checkpointing:  # a picture of RocksDB between two writes is not one instant
            self.loop.run_until_complete(asyncio.sleep(0.001))
        durable = self.journal.durable
        for attempt in range(100):
            try:
                before = self._view_files()
                shutil.copytree(self.directory, target)
                if self._view_files() == before:
                    break
            except (shutil.Error, FileNotFoundError):
                pass  # the writer gave a file its name meanwhile, or RocksDB merges tables by itself: look again
            assert attempt < 99
            shutil.rmtree(target, ignore_errors=True)
        self.close()
        return durable, self.snapshots

    def _view_files(self) -> list[tuple[str, int, int]]:
        """(name, size, time of the last write) of each file of RocksDB. FileNotFoundError: one has just gone."""
        found = [(path, path.stat()) for path in sorted((self.directory / "state").glob("*"))]
        return [(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in found]

    def close(self) -> None:
        self.gate.set()
        for peer in self.peers.values():
            peer.close()
        if self.checkpoint is not None:
            self.finish_checkpoint()
        for connection in list(self.poller.connections):
            connection.abort()
        self.authority.close()
        self.store.close()


__all__ = ["Node", "Peer", "Snapshot", "State"]
