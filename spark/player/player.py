"""One player: all clients of a partition on one event loop. No Spark, no threads, no clock of its own.

The order of a client's operations is kept: one that cannot be sent waits in the client's line, and all that follow wait
behind it. Operations of different clients do not wait for each other, but

- with a speed, each waits until it is due: T0 + (recorded time - first) / speed;
- with `--fast`, session operations are barriers: what came before is acknowledged before them, and they before what
  comes after. A run of them is one barrier, the order of each client kept. And after every `window` publishes it waits
  until they are acknowledged and subscribers have what came of them: a broker drops what waits for too long a line.
"""
from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pyarrow as pa

from fluxmq._core.client.replay_rows import NO_VALUE
from fluxmq._core.errors import FluxError
from fluxmq.spark.player.amqp_link import AmqpLink
from fluxmq.spark.player.amqp_operations import read_vhost
from fluxmq.spark.player.event_batches import EventBatches
from fluxmq.spark.player.links import CLOSED, OPEN, Link, Operation, PlayedClient
from fluxmq.spark.player.operation_batches import columns_of, operation_at
from fluxmq.spark.player.operations import (
    ACK,
    CLOSE,
    COMMAND,
    CONNECT,
    DISCONNECT,
    METHOD,
    PUBLISH,
    SEND,
    SETTLE,
    SETUP,
    SUBSCRIBE,
    UNSUBSCRIBE,
    ConnectRequest,
    publish_detail,
    read_opening,
    read_properties,
    read_subscriptions,
    read_unsubscriptions,
    wire_properties,
)
from fluxmq.spark.player.options import PlayOptions, PlayStatus
from fluxmq.spark.player.queue_link import QueueLink
from fluxmq.spark.player.waits import Waits

__all__ = ["Player"]

TURN_OPERATIONS = 128           # between two turns of the loop, at whose end written data is sent
SWEEP_S = 0.25                  # QoS 0 is confirmed by a round trip, finished rows are emitted
OPENING_MAX = 64
WAITING_MAX = 20_000            # operations in clients' lines before the others wait too
NAP_S = 0.2
NANO = 1e9
MQTT_5 = 5
NEVER = 1 << 63
NOTHING: tuple[bytes | None, str | None] = (None, None)         # of properties and their detail


class Player(Waits):
    """emit(batch): takes rows of the result's schema. manual: links whose acknowledgements are operations. settling:
    those that send commands about messages of queues."""

    def __init__(self, options: PlayOptions, status: PlayStatus, emit: Callable[[pa.RecordBatch], None],
                 manual: frozenset[int] = frozenset(), settling: frozenset[int] = frozenset()) -> None:
        super().__init__(options, status)
        self.emit, self.manual, self.settling = emit, manual, settling
        self.batches = EventBatches(self.rows)
        self.in_session_run = False
        self.reason = "their connections were gone"

    async def run(self, feed: AsyncIterator[pa.RecordBatch]) -> None:
        """Plays everything from `feed`. Failures of the broker are put into the status."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            started = False
            async for batch in feed:
                columns = columns_of(batch)
                setups = 0
                while not started and setups < batch.num_rows and columns["kind"][setups] == SETUP:
                    setups += 1
                for index in range(setups):
                    await self._set_up(operation_at(columns, index, NO_VALUE))
                if setups < batch.num_rows:
                    if not started:
                        started = await self._start()
                    await self._play(columns, setups)
                if self.stopped:
                    break
            if not started:
                await self._start()
            if not self.stopped:
                await self.settle()
            await self._all_published()
            await self.meet("sent")
            if not self.stopped:
                await self._quiet()
            await self._leave()
        finally:
            sweeper.cancel()
            for task in self.tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeper
            self._finish()

    async def _start(self) -> bool:
        await self.settle()
        self.status.started = await self.meet("start")
        await self._sleep_until(self.status.started)
        return True

    async def _all_published(self) -> None:
        """With --fast: before subscribers leave for good, they must have received what all players published."""
        await self.all_connected()
        if self.options.speed is None and not self.silent:
            self.silent = True
            await self.settle()
            await self.meet("published")
            self.listeners = None
            await self.catch_up()

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────

    async def _play(self, columns: dict[str, Any], start: int) -> None:
        speed, t0 = self.options.speed, self.status.started
        times, total, at = columns["time"], len(columns["kind"]), start
        dues: list[int] = []
        if speed is not None:
            dues = (t0 + ((np.array(times) - self.options.first) / speed).astype(np.int64)).tolist()
        while at < total and not self.stopped:
            if speed is None:
                end = await self._reach(columns, at, min(total, at + TURN_OPERATIONS))
            else:
                end = min(bisect_right(dues, self.clock(), at), at + TURN_OPERATIONS)
                if end == at:
                    await self._sleep_until(dues[at])
                    continue
            self._send(columns, dues, at, end)
            at = end
            await asyncio.sleep(0)
            while self.waiting > WAITING_MAX and not self.stopped:
                await self.change()

    def _send(self, columns: dict[str, Any], dues: list[int], at: int, end: int) -> None:
        """Sends the operations from `at` to `end`, or appends them to their clients' queues."""
        kinds, keys, links = columns["kind"], columns["link"], self.links
        topics, payloads, sizes = columns["topic"], columns["payload"], columns["size"]
        qos, retain, texts, copies = columns["qos"], columns["retain"], columns["properties"], columns["copy"]
        self.status.operations += end - at
        for index in range(at, end):
            due = dues[index] if dues else NO_VALUE
            if kinds[index] == PUBLISH:
                link = links.get(keys[index])
                if link is not None and link.state == OPEN and not link.client.waiting:
                    text = texts[index]
                    try:
                        wire, said = (wire_properties(text, copies[index]), publish_detail(text)) if text else NOTHING
                        if link.lane.publish(topics[index], qos[index] or 0, retain[index] or False, sizes[index] or 0,
                                             payloads[index], wire, due, said):
                            continue
                    except FluxError as error:
                        self._not_sent(str(error))
                        continue
            operation = operation_at(columns, index, due)
            client = self._client(operation)
            if client.waiting or not self._attempt(client, operation):
                client.waiting.append(operation)
                self.waiting += 1

    async def _reach(self, columns: dict[str, Any], at: int, end: int) -> int:
        """With --fast: the end of the run of publishes or of session operations that may be sent now."""
        kinds = columns["kind"]
        quick = (PUBLISH, ACK, COMMAND, SEND, SETTLE)
        if columns["time"][at] > self.options.silent:
            await self._all_published()
        elif columns["time"][at] >= self.options.published:
            await self.all_connected()
        session = kinds[at] not in quick
        if session != self.in_session_run or kinds[at] == CLOSE:
            await self.settle()
            if not session:
                self.expect_from()
            self.in_session_run = session
        elif self.rows.publishes - self.caught_up >= self.options.window:
            await self.catch_up()
        while self.opening >= OPENING_MAX and not self.stopped:
            await self.change()
        stop = at + 1
        room = OPENING_MAX if session else self.options.window - (self.rows.publishes - self.caught_up)
        end = min(end, at + max(room, 1))
        # a run ends where it must wait for other players
        meeting = (NEVER if self.silent else self.options.silent + 1) if self.connected else self.options.published
        while (stop < end and (kinds[stop] not in quick) == session and kinds[stop] != CLOSE
               and columns["time"][stop] < meeting):
            stop += 1
        return stop

    def _client(self, operation: Operation) -> PlayedClient:
        client = self.clients.get(operation.number)
        if client is None:
            client = self.clients[operation.number] = PlayedClient(self.rows, operation.client, operation.number)
        return client

    def _attempt(self, client: PlayedClient, operation: Operation) -> bool:
        """Executes an operation, or finds that it is impossible now; False: not yet."""
        if client.opening:
            return False
        kind, link = operation.kind, self.links.get(operation.link)
        if kind == COMMAND and operation.rank is None:
            self.status.unknown_settlements += 1
            client.played.next_op += 1
            return True
        amqp = operation.method is not None
        if amqp and kind in (CONNECT, SETUP) and link is not None:
            return True                     # the second of the two rows of a connection
        begins = (METHOD, SEND) if amqp else (PUBLISH, SUBSCRIBE, UNSUBSCRIBE) if operation.version else ()
        picked_up = link is None and kind in begins     # recorded from its middle on, or its CONNECT was invalid
        if kind in (CONNECT, SETUP) or picked_up:
            if self.opening >= OPENING_MAX:
                self.at_the_door.append(client)
                return False
            said = (None, None) if picked_up else (operation.detail, operation.properties)
            request, filters = read_opening(*said, operation.version or MQTT_5, operation.copy)
            self.spawn(self._open(self._new_link(client, operation), request, operation.due, filters))
            return not picked_up
        if link is None or link.state == CLOSED:
            if kind not in (CLOSE, DISCONNECT, ACK, SETTLE, COMMAND):
                client.played.next_op += 1
                self._not_sent("its connection was gone")
            done = True
        else:
            try:
                done = self._on_link(link, operation)
            except FluxError as error:
                self._not_sent(str(error))
                done = True
        if done and kind == CLOSE:
            self.links.pop(operation.link, None)        # the last command
        return done

    def _on_link(self, link: Link, operation: Operation) -> bool:
        kind, copy, due = operation.kind, operation.copy, operation.due
        if isinstance(link, AmqpLink | QueueLink) and kind in (METHOD, SEND, SETTLE, COMMAND):
            done = link.perform(operation)
            if link.unanswered:
                self.unanswered.add(link)
            return done
        if kind == PUBLISH:
            text = operation.properties
            wire, said = (wire_properties(text, copy), publish_detail(text)) if text else NOTHING
            return link.lane.publish(operation.topic or b"", operation.qos, operation.retain, operation.size,
                                     operation.payload, wire, due, said)
        if kind == ACK:
            if operation.rank is not None:
                link.acknowledge(operation.rank)
            return True
        properties = read_properties(operation.properties, copy) if operation.version == MQTT_5 else None
        if kind == SUBSCRIBE:
            link.subscribe(read_subscriptions(operation.detail, copy), properties, due)
        elif kind == UNSUBSCRIBE:
            link.unsubscribe(read_unsubscriptions(operation.detail, copy), properties, due)
        if kind in (SUBSCRIBE, UNSUBSCRIBE):
            self.unanswered.add(link)
            return True
        if not link.may_end(self.loop):
            return False
        if kind == DISCONNECT:
            link.disconnect(operation.reason, properties, due)
        elif not link.ending:
            link.abort(due)
        return True

    def _new_link(self, client: PlayedClient, operation: Operation) -> Link:
        kind = QueueLink if operation.link in self.settling else Link
        link = (AmqpLink(self.rows, client, self.options, self.changed, vhost=read_vhost(operation.detail))
                if operation.method is not None else
                kind(self.rows, client, self.options, self.changed, manual=operation.link in self.manual))
        link.address = self.options.address_of(operation.link, client.played.number, amqp=operation.method is not None)
        self.links[operation.link] = link
        client.opening = True
        return link

    async def _open(self, link: Link, request: ConnectRequest, due: int, filters: list[tuple[str, int]]) -> None:
        self.opening += 1
        try:
            await link.open(request, due)
        finally:
            self.opening -= 1
            for client in self.at_the_door:
                self.wake(client)
            self.at_the_door.clear()
        if link.state == CLOSED:
            self.status.refused_connections += not link.unreachable
            if link.exhausted:
                self.stop(link.exhausted)
            elif link.unreachable:
                self.probe(link.unreachable, link.address)
        elif filters:
            link.subscribe(filters)
            self.unanswered.add(link)
        self.changed(link)

    async def _set_up(self, operation: Operation) -> None:
        """Restores a session that existed when the recording began, without remains of an earlier replay."""
        if self.stopped:
            return
        client = self._client(operation)
        request, filters = read_opening(operation.detail, None, operation.version or MQTT_5, operation.copy)
        clean = ConnectRequest(request.version, True, request.keep_alive_s, request.session_expiry_s, None,
                               request.properties)

        async def open_and_subscribe() -> None:
            if request.version < MQTT_5 and not request.clean_start:
                first = Link(self.rows, client, self.options, self.changed, manual=False)
                first.address = link.address
                await self._open(first, clean, NO_VALUE, [])
                if first.state == OPEN:
                    first.disconnect(0, None)
                    await first.connection.closed()
            await self._open(link, request if request.version < MQTT_5 else clean, NO_VALUE, filters)

        link = self._new_link(client, operation)
        while self.opening >= OPENING_MAX and not self.stopped:
            await self.change()
        self.spawn(open_and_subscribe())
        await asyncio.sleep(0)

    async def _sleep_until(self, instant: int) -> None:
        while not self.stopped and (left := instant - self.clock()) > 0:
            await self.options.sleep(min(left / NANO, NAP_S))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.rows.prove()
            self._emit()
            self.watch()
            await self.hear()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _quiet(self) -> None:
        """Waits until no delivery has arrived for quiet_s, also counted in naps: a suspended machine delivers nothing,
        and a nap may end early."""
        for link in list(self.alive):
            if link.manual or isinstance(link, QueueLink):
                link.release()      # messages held back by clients are acknowledged first
        end, nap = self.clock() + int(self.options.quiet_max_s * NANO), min(self.options.quiet_s / 4, NAP_S)
        seen, since, quiet_s = -1, self.clock(), 0.0
        while not self.stopped and self.clock() < end:
            if self.rows.deliveries != seen:
                seen, since, quiet_s = self.rows.deliveries, self.clock(), 0.0
            elif quiet_s >= self.options.quiet_s and self.clock() - since >= self.options.quiet_s * NANO:
                return
            await self.options.sleep(nap)
            quiet_s += nap

    async def _leave(self) -> None:
        """Disconnects the remaining clients."""
        closing = []
        for link in list(self.alive):
            if not link.ending:
                link.disconnect(0, None, end=True)
                closing.append(link.connection.closed())
        if closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.options.patience_s):
                    await asyncio.gather(*closing)

    def _finish(self) -> None:
        status = self.status
        status.finished = self.clock()
        status.not_sent += self.waiting
        for chunk in self.rows.take(everything=True):
            self.emit(self.batches.batch(chunk))
        self._count()
        if not status.why and status.not_sent:
            status.why = f"{status.not_sent} operations were not sent: {self.reason}"
        status.complete = not status.why

    def _emit(self) -> None:
        for chunk in self.rows.take():
            self.emit(self.batches.batch(chunk))
        self._count()

    def _count(self) -> None:
        self.status.publishes, self.status.deliveries = self.rows.publishes, self.rows.deliveries
        self.status.late_ns_max = self.rows.late_max

    def _not_sent(self, why: str) -> None:
        self.status.not_sent += 1
        self.reason = why
