"""What a player waits for and what lets it continue: answers, connections, subscribers, the broker's failure."""
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

from fluxmq._core.client.replay_rows import Lane, ReplayRows
from fluxmq._core.errors import FluxError
from fluxmq.client.options import Address
from fluxmq.spark.player.links import CLOSED, OPEN, Link, Operation, PlayedClient
from fluxmq.spark.player.options import PlayOptions, PlayStatus

__all__ = ["Waits"]

NAP_S = 0.2
LOOKS = 5
HEAR_S = 1.0
OUT_OF_TURN = b"\xc0\x00" + bytes(6)     # PINGREQ before CONNECT, and not AMQP's header: a live broker closes


class Waits:
    """State of a player: clients with queued operations, connections that are being opened, requests without an
    answer."""

    def __init__(self, options: PlayOptions, status: PlayStatus) -> None:
        self.options, self.status, self.clock = options, status, options.clock
        self.loop = asyncio.get_running_loop()
        self.rows = ReplayRows(options.run, options.clock)
        self.clients: dict[int, PlayedClient] = {}
        self.ready: list[PlayedClient] = []             # clients that may continue
        self.at_the_door: list[PlayedClient] = []       # too many others are being opened
        self.waiting = 0                                # operations in clients' queues
        self.opening = 0
        self.links: dict[int, Link] = {}                # of connections whose end was not played yet
        self.alive: set[Link] = set()                   # those that are open
        self.unanswered: set[Link] = set()
        self.echoing: set[Lane] = set()
        self.listeners: set[Lane] | None = set()        # None: all that have subscribed
        self.caught_up = 0                              # publishes that subscribers have received
        self.tasks: set[asyncio.Task[None]] = set()
        self.changes = asyncio.Event()
        self.connected = self.silent = False            # --fast: meetings that have taken place
        self.stopped = False
        self.probing = False
        self.hears_at = 0.0
        self.moved, self.moved_at = (0, 0), self.loop.time()

    def _attempt(self, client: PlayedClient, operation: Operation) -> bool:
        raise NotImplementedError

    def changed(self, link: Link) -> None:
        """Called when an answer has arrived on a link, or when it ended."""
        self.changes.set()
        (self.alive.add if link.state == OPEN else self.alive.discard)(link)
        if not link.unanswered:
            self.unanswered.discard(link)
        if link.client.waiting:
            self.wake(link.client)
        if link.state == CLOSED:
            self.echoing.discard(link.lane)
        if link.state == CLOSED and link.connection is not None and not link.ending:
            link.ending = True
            self.status.lost_connections += 1
            self.probe("the connections to it broke", link.address)

    def wake(self, client: PlayedClient) -> None:
        if not client.ready:
            client.ready = True
            self.ready.append(client)
            if len(self.ready) == 1:
                self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Continues the queues of clients that may continue."""
        ready, self.ready = self.ready, []
        for client in ready:
            client.ready = False
            while client.waiting and self._attempt(client, client.waiting[0]):
                client.waiting.popleft()
                self.waiting -= 1
        self.changes.set()

    async def change(self) -> bool:
        """Waits until something was answered; False after NAP_S without an answer."""
        self.changes.clear()
        try:
            async with asyncio.timeout(NAP_S):
                await self.changes.wait()
        except TimeoutError:
            return False
        return True

    async def settle(self) -> None:
        """Waits until no operation waits and everything is acknowledged, or until nothing has changed for
        patience_s."""
        seen, patient = (-1, -1, -1), self.loop.time()
        while not self.stopped:
            busy = self.rows.prove()
            for lane in busy:
                lane.stalled = True
            if not (busy or self.waiting or self.opening or self.unanswered or self.tasks):
                return
            now = (self.rows.unfinished, self.waiting, self.rows.deliveries)
            if now != seen:
                seen, patient = now, self.loop.time()
            elif self.loop.time() - patient > self.options.patience_s:
                return
            await self.change()

    # ── subscribers that must keep up ────────────────────────────────────────────────────────────────────────

    def expect_from(self, lanes: Iterable[Lane] | None = None) -> None:
        """Sets which lanes may receive the following publishes. None: all that have subscribed, determined only when
        needed, because this is called at each barrier."""
        self.listeners = None if lanes is None else set(lanes)
        self.caught_up = self.rows.publishes

    async def catch_up(self) -> None:
        """Waits until all publishes are acknowledged, and a round trip on each subscriber's connection yields nothing
        new: acknowledging earlier deliveries made room for queued ones, which arrive before the answer."""
        await self.settle()
        if self.listeners is None:
            self.listeners = {link.lane for link in self.alive if link.subscribed}
        self.listeners |= set(self.rows.take_delivered())
        got: set[Lane] = set()
        while self.listeners and not self.stopped:
            got |= self.listeners
            for lane in self.listeners:
                if lane.echo(partial(self._echoed, lane)):
                    self.echoing.add(lane)
            patient = self.loop.time()
            while self.echoing and not self.stopped:
                if not await self.change() and self.loop.time() - patient > self.options.patience_s:
                    self.echoing.clear()
            self.listeners = set(self.rows.take_delivered())
        self.expect_from(got)

    def _echoed(self, lane: Lane) -> None:
        self.echoing.discard(lane)
        if not self.echoing:
            self.changes.set()

    # ── other players ────────────────────────────────────────────────────────────────────────────────────────────

    async def all_connected(self) -> None:
        """With --fast: waits until all players have done what precedes the first publish."""
        if self.options.speed is None and not self.connected:
            self.connected = True
            await self.settle()
            await self.meet("connected")

    async def meet(self, word: str) -> int:
        return await self.loop.run_in_executor(None, self.options.meet, word, self.options.clock())

    # ── the broker goes away ─────────────────────────────────────────────────────────────────────────────────

    def probe(self, what: str, address: str) -> None:
        """A connection broke: finds out whether only this one did, or the broker has failed."""
        if not (self.probing or self.stopped):
            self.probing = True
            self.spawn(self._look(what, address))

    async def _look(self, what: str, address: str) -> None:
        place = Address.of(address)
        try:
            looks, end = 0, self.loop.time() + self.options.patience_s
            while looks < LOOKS or (self.loop.time() < end and not self.any_open()):
                looks += 1
                async with asyncio.timeout(self.options.patience_s):
                    if await self._keeps(place) and self.any_open():
                        break
                await asyncio.sleep(NAP_S)
            else:
                await self._ask(place, address)
        except (OSError, TimeoutError) as error:
            await self._lose_broker(f"the broker at {address} went away: {error or what}")
        finally:
            self.probing = False

    async def _lose_broker(self, why: str) -> None:
        self.stop(why)
        await self.loop.run_in_executor(None, self.options.report_lost_broker, self.status.why)

    # ── the broker hangs ─────────────────────────────────────────────────────────────────────────────────────

    def watch(self) -> None:
        """To be called regularly. A hanging or suspended broker accepts connections and breaks none. So when requests
        wait and no answer has arrived for patience_s, it is probed."""
        answers, deliveries = self.rows.publishes - self.rows.unfinished, self.rows.deliveries
        waits = self.rows.unfinished or self.waiting or self.opening or self.unanswered
        if not waits or answers > self.moved[0] or deliveries > self.moved[1]:
            self.moved_at = self.loop.time()
        self.moved = answers, deliveries
        if self.loop.time() - self.moved_at > self.options.patience_s and not (self.probing or self.stopped):
            self.probing = True
            self.moved_at = self.loop.time()
            self.spawn(self._ask_all())

    async def _ask_all(self) -> None:
        try:
            for address in filter(None, {*self.options.address.split(","), *self.options.amqp_address.split(",")}):
                with contextlib.suppress(OSError):      # a dead broker breaks connections, which is detected
                    await self._ask(Address.of(address), address)
        finally:
            self.probing = False

    async def _ask(self, place: Address, address: str) -> None:
        """Stops the replay if the broker does not even close a connection that sends invalid data. Raises OSError if
        nothing listens."""
        try:
            async with asyncio.timeout(self.options.patience_s):
                reader, writer = await _connection(place)
                try:
                    writer.write(OUT_OF_TURN)
                    with contextlib.suppress(ConnectionError):
                        await reader.read(1)
                finally:
                    writer.close()
        except TimeoutError:
            await self._lose_broker(f"the broker at {address} hangs: it takes connections, and for "
                                    f"{self.options.patience_s:g} s it answered nothing")

    def stop(self, why: str) -> None:
        """Stops sending."""
        self.stopped = True
        self.status.why = self.status.why or why
        self.changes.set()

    async def hear(self) -> None:
        """Stops when another player has: a player without open connections does not notice a failed broker
        otherwise."""
        if self.stopped or self.loop.time() < self.hears_at:
            return
        try:
            why = await self.loop.run_in_executor(None, self.options.lost_broker)
        except FluxError as error:
            why = str(error)
        if why:
            self.stop(why)
        self.hears_at = self.loop.time() + HEAR_S

    def any_open(self) -> bool:
        """Whether a connection is open. While none is, the broker is probed again, because a process may end slowly."""
        return bool(self.alive)

    async def _keeps(self, place: Address) -> bool:
        """Whether the broker accepts a connection and keeps it open. A process that is ending may still accept one, so
        it is probed again; a running one may refuse this client. Raises OSError if nothing listens."""
        reader, writer = await _connection(place)
        try:
            async with asyncio.timeout(NAP_S):
                await reader.read(1)
        except TimeoutError:
            return True
        except OSError:
            return False
        finally:
            writer.close()
        return False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.changes.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(f"the player failed: {error!r}")


async def _connection(place: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await (asyncio.open_unix_connection(place.path) if place.path
                  else asyncio.open_connection(place.host, place.port))
