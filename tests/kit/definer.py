"""A Definer (engine/ports/definitions.py) of a cluster of which a test has one node: all queues are here.

    definer = FakeDefiner(); nodes.directory.definer = definer
    …make the managers…; definer.learn(queues, exchanges)
    definer.hold()                  # changes wait
    definer.release()               # from another thread than the loop's: those that wait are made
    definer.refuse(QueueRefused(…)) # no change is made; None: they are
"""
from __future__ import annotations

import threading
from asyncio import Future, get_running_loop
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import msgspec

from fluxmq.engine.exchanges.manager import PREDECLARED, ExchangeManager
from fluxmq.engine.ports.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.defined import DefinedQueues
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec
from kit.nodes import HERE

__all__ = ["FakeDefiner", "defined"]

PATIENCE_S = 20.0  # only a failing test needs it
Address = tuple[bytes, bytes]


def defined(queues: QueueManager) -> DefinedQueues:
    """For queues that are neither divided nor made anew. Another object than the node's own, which knows nothing of
    its arrivals, nor of queues of nodes that it has not reached."""
    nobody = cast(Any, None)
    return DefinedQueues(queues, nobody, nobody)


class FakeDefiner:
    """told: what was asked for, in order. queues, exchanges, bindings: what is defined."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.queues: dict[Address, QueueDefinition] = {}
        self.exchanges: dict[Address, ExchangeDefinition] = {}
        self.bindings: list[BindingDefinition] = []
        self.ending: dict[int, Callable[[bool], bool]] = {}  # by identity: of end_queue
        self._numbers = count(1000)
        self._refuses: QueueRefused | None = None
        self._held = False
        self._waiting: list[Future[None]] = []
        self._changed = threading.Condition()

    def learn(self, queues: QueueManager, exchanges: ExchangeManager | None = None) -> None:
        """Who is told of changes."""
        self._queues, self._exchanges = defined(queues), exchanges

    def hold(self) -> None:
        self._held = True

    def refuse(self, refuses: QueueRefused | None) -> None:
        self._refuses = refuses

    def wait_held(self, number: int = 1) -> None:
        """Until so many changes wait."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._waiting) == number, PATIENCE_S)

    def release(self) -> None:
        with self._changed:
            self._held, waiting, self._waiting = False, self._waiting, []
        for future in waiting:
            future.get_loop().call_soon_threadsafe(future.set_result, None)

    async def _begin(self, *what: object) -> None:
        self.told.append(what)
        if self._held:
            future: Future[None] = get_running_loop().create_future()
            with self._changed:
                self._waiting.append(future)
                self._changed.notify_all()
            await future
        if self._refuses is not None:
            raise self._refuses

    # ------------------------------------------------------------------ Definer

    async def define_queue(self, spec: QueueSpec, declared: Declared | None, *, here: bool = False,
                           near: Address | None = None) -> None:
        await self._begin("define", spec.raw, here, near)
        if spec.address not in self.queues:
            exclusive = declared is not None and declared.exclusive
            self._define(QueueDefinition(next(self._numbers), spec, declared, HERE.node * exclusive))

    def _define(self, queue: QueueDefinition) -> None:
        self.queues[queue.address] = queue
        self._queues.learn(queue, HERE.node)

    async def redefine_queue(self, spec: QueueSpec, identity: int) -> None:
        await self._begin("redefine", spec.raw, identity)
        known = self.queues.get(spec.address)
        if known is not None and known.id == identity:
            self._define(msgspec.structs.replace(known, spec=spec))

    def check(self) -> None:
        """It is there from the start."""

    async def undefine_queue(self, address: Address, identity: int) -> None:
        await self._begin("undefine", address[1], identity)
        self._undefine(address, identity)

    def _undefine(self, address: Address, identity: int) -> None:
        known = self.queues.get(address)
        if known is not None and known.id == identity:
            del self.queues[address]
            self._drop([each for each in self.bindings if each.destination_id == identity])
            self._queues.forget(known, ended=True)

    def end_queue(self, address: Address, identity: int, ending: Callable[[bool], bool]) -> None:
        if ending(True):
            self.told.append(("end", address[1], identity))
            self.ending[identity] = ending

    async def await_end(self, identity: int) -> None:
        await self._begin("await end", identity)

    async def await_gone(self, address: Address, identity: int) -> None:
        await self._begin("await gone", address[1], identity)

    def ended(self) -> None:
        """What end_queue was asked for is done."""
        for _, name, identity in [told for told in self.told if told[0] == "end"]:
            assert isinstance(name, bytes) and isinstance(identity, int)
            self._undefine((b"/", name), identity)

    def make_known(self, spec: QueueSpec, then: Callable[[], None]) -> None:
        self.told.append(("make known", spec.raw))
        if spec.address not in self.queues:
            self._define(QueueDefinition(next(self._numbers), spec))
        then()

    async def define_exchange(self, exchange: ExchangeDefinition) -> None:
        await self._begin("define exchange", exchange.name)
        if exchange.address not in self.exchanges:
            made = self.exchanges[exchange.address] = msgspec.structs.replace(exchange, id=next(self._numbers))
            assert self._exchanges is not None
            self._exchanges.learn_exchange(made)

    async def undefine_exchange(self, address: Address, identity: int) -> None:
        await self._begin("undefine exchange", address[1], identity)
        known = self.exchanges.pop(address)
        self._drop([each for each in self.bindings if identity in (each.source_id, each.destination_id)])
        assert self._exchanges is not None
        self._exchanges.forget_exchange(known)

    def _id_of(self, address: Address) -> int:
        return 0 if address[1] in PREDECLARED else self.exchanges[address].id

    def _binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes,
                 to_exchange: bool) -> BindingDefinition:
        end = self._id_of((vhost, destination)) if to_exchange else self.queues[vhost, destination].id
        return BindingDefinition(vhost, source, self._id_of((vhost, source)), to_exchange, destination, end, key,
                                 arguments)

    async def define_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                             to_exchange: bool) -> None:
        await self._begin("bind", source, destination, key)
        binding = self._binding(vhost, source, destination, key, arguments, to_exchange)
        if binding not in self.bindings:
            self.bindings.append(binding)
            assert self._exchanges is not None
            self._exchanges.learn_binding(binding)

    async def undefine_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                               to_exchange: bool) -> None:
        await self._begin("unbind", source, destination, key)
        self._drop([self._binding(vhost, source, destination, key, arguments, to_exchange)])

    def _drop(self, bindings: list[BindingDefinition]) -> None:
        for binding in bindings:
            self.bindings.remove(binding)
            assert self._exchanges is not None
            self._exchanges.forget_binding(binding)
