"""A replicated queue ends by its log, never because etcd lacks it: etcd may have been rolled back, or recovered.

    deleted, expired ─► the leader ends it in its line ─► committed ─► its keys in etcd go ─► all nodes forget it
    its keys are gone, and it has not ended ─► the leader defines it again, with the identity that it has
    its keys are there, and it has ended ─► they go: who ended it did not come that far

A node that does not lead asks the leader (call "queue-end").
"""
from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec

from fluxmq.cluster.definition_values import QueueData
from fluxmq.cluster.definitions import Definitions, Placed
from fluxmq.cluster.ports import CallFailed, Log, Transport
from fluxmq.cluster.raft.groups import RaftGroups
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.ports.driver import Driver, fulfil
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.state import QueueState
from fluxmq.model.malformed import MALFORMED

__all__ = ["QUEUE_END", "Ending"]

QUEUE_END = "queue-end"  # method of Transport.call
RETRY_S = 0.5


class EndCall(msgspec.Struct, frozen=True, kw_only=True):
    """identity: of the queue. group: that has it."""

    namespace: bytes
    name: bytes
    identity: int
    group: int


_call_of = msgspec.msgpack.Decoder(EndCall).decode


class Ending:
    """Machine. One per life of a node. address_of: of a node's transport. limit_s: how long an end may take."""

    def __init__(self, node: str, groups: RaftGroups, definitions: Definitions, transport: Transport, driver: Driver, *,
                 address_of: Callable[[str], str], limit_s: float, log: Log) -> None:
        self._node = node
        self._groups = groups
        self._definitions = definitions
        self._transport = transport
        self._driver = driver
        self._address_of = address_of
        self._limit_s = limit_s
        self._log = log
        self._manager: QueueManager | None = None
        self._working: set[int] = set()  # identities of queues whose keys are being brought to what the log says
        self._closed = False

    def attach(self, manager: QueueManager) -> None:
        """The engine's, before it is loaded from its disk."""
        self._manager = manager

    def close(self) -> None:
        """Nothing is tried again."""
        self._closed = True

    # ------------------------------------------------------------------ a queue is to end

    async def end(self, address: tuple[bytes, bytes], identity: int, group: int) -> None:
        """Of a queue of a group, wherever that is led. Returns when its log has the end. Raises QueueRefused
        (unavailable)."""
        leader = self._groups.leader(group).node
        if leader == self._node:
            await self._end_here(address, identity)
            return
        if not leader:
            raise QueueRefused("unavailable", f"replication group {group} has no leader",
                               "start the nodes of the group that are down, and repeat it")
        call = EndCall(namespace=address[0], name=address[1], identity=identity, group=group)
        try:
            async for _ in self._transport.call(self._address_of(leader), QUEUE_END, msgspec.msgpack.encode(call),
                                                self._limit_s):
                pass
        except CallFailed as error:
            raise QueueRefused("unavailable", f"node {leader} leads replication group {group}: {error}",
                               "repeat it: the queue may have been deleted even so") from None

    async def answer(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "queue-end": nothing, when the queue has ended. Raises CallFailed."""
        try:
            call = _call_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not a request to end a queue: {error}", reached=False) from None
        if self._groups.leader(call.group).node != self._node:
            raise CallFailed(f"replication group {call.group} is not led here", reached=False)
        try:
            await self._end_here((call.namespace, call.name), call.identity)
        except QueueRefused as error:
            raise CallFailed(error.text) from None
        return
        yield b""

    async def _end_here(self, address: tuple[bytes, bytes], identity: int) -> None:
        state = self._led(address, identity)
        if state is None:
            return                      # it has ended
        hub = self._engine.hub
        since, done = hub.commits.mark, self._driver.promise()
        self._engine.delete(address)
        hub.when_durable(partial(fulfil, done, ""), since, partial(fulfil, done))
        hub.wake_up()
        if why := await done:
            raise QueueRefused("unavailable", f"nobody knows whether the queue is deleted: {why}", "repeat it")
        known = self._definitions.queues.get(address)
        if known is not None and known.value.id == identity:
            self._begin(identity, self._undefine(known.value))

    @property
    def _engine(self) -> QueueManager:
        assert self._manager is not None
        return self._manager

    def _led(self, address: tuple[bytes, bytes], identity: int) -> QueueState | None:
        state: QueueState | None = self._engine.queues.get(address)
        return state if state is not None and state.id == identity and state.here and state.queue.line.group else None

    # ------------------------------------------------------------------ what etcd has is not what the log says

    def lost(self, definition: QueueDefinition) -> bool:
        """The keys of a queue are gone. Returns whether this node leads it, and it has not ended: it is defined
        again."""
        state = self._led(definition.address, definition.id)
        if state is None:
            return False
        self._begin(definition.id, self._define_again(definition, state))
        return True

    def look(self, group: int) -> None:
        """This node may lead a group now: of queues that have ended the keys go, and what etcd has lost while nobody
        led is defined again."""
        if self._groups.leader(group).node != self._node:
            return
        for state in list(self._engine.queues.values()):
            if state.here and state.id and state.queue.line.group == group \
                    and state.queue.address not in self._definitions.queues:
                self.lost(QueueDefinition(state.id, state.spec, state.declared))
        for entry in list(self._definitions.queues.values()):
            definition = entry.value
            if self._definitions.group_of(definition.address) == group and self._engine.hub.is_ended(definition.id):
                self._begin(definition.id, self._undefine(definition))

    def _begin(self, identity: int, work: Any) -> None:
        if identity in self._working:
            work.close()
        else:
            self._working.add(identity)
            self._driver.start(work)

    async def _define_again(self, definition: QueueDefinition, state: QueueState) -> None:
        self._log("warning", "", "etcd has lost a replicated queue: it is defined again", {
            "queue": definition.spec.shown})
        placed = Placed(QueueData("", "", definition.id, state.placement, state.queue.line.group), 0)
        try:
            while self._led(definition.address, definition.id) is state and not self._closed:
                known = self._definitions.queues.get(definition.address)
                if known is not None:
                    return              # again, or another one of its name: that one is not this queue's heir
                with contextlib.suppress(QueueRefused):
                    await self._definitions.define_queue(definition, placed)
                await self._driver.sleep(RETRY_S)
        finally:
            self._working.discard(definition.id)

    async def _undefine(self, definition: QueueDefinition) -> None:
        try:
            while not self._closed:
                known = self._definitions.queues.get(definition.address)
                if known is None or known.value.id != definition.id:
                    return
                with contextlib.suppress(QueueRefused):
                    await self._definitions.undefine_queue(definition.address, definition.id)
                await self._driver.sleep(RETRY_S)
        finally:
            self._working.discard(definition.id)
