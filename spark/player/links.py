"""One network connection of a replayed client, with all its operations except publishing."""
from __future__ import annotations

import asyncio
import errno
import json
import resource
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fluxmq._core.client.message import Message
from fluxmq._core.client.replay_rows import NO_VALUE, Lane, QueueCredit, ReplayClient, ReplayRows
from fluxmq._core.client.session import Session
from fluxmq._core.errors import FluxError
from fluxmq.client.errors import ConnectRefused
from fluxmq.client.options import ConnectOptions, Will
from fluxmq.spark.player.operations import ConnectRequest
from fluxmq.spark.player.options import PlayOptions
from fluxmq.spark.player.queue_commands import FROM_QUEUE, queue_of
from fluxmq.spark.result import EVENTS

__all__ = ["Link", "Operation", "PlayedClient"]

NEW, OPENING, OPEN, CLOSED = range(4)       # OPENING: CONNECT was sent; OPEN: accepted
SUBSCRIBED, UNSUBSCRIBED, CONNECTED, DISCONNECTED, LOST = (
    EVENTS.index(name) for name in ("subscribe", "unsubscribe", "connect", "disconnect", "lost-connection"))
CONNECT_TIMEOUT_S = 30.0
MQTT_5 = 5
REFUSED = 0x80                  # reason codes from here on
FOR_EVER_S = 0xFFFFFFFF         # Session Expiry Interval: never


class Operation(NamedTuple):
    """A row of OPERATIONS; due: ns since 1970, NO_VALUE with `--fast`."""

    kind: int
    link: int
    number: int
    client: str
    version: int
    copy: int
    topic: bytes | None
    qos: int
    retain: bool
    size: int
    payload: bytes | None
    properties: str | None
    detail: str | None
    reason: int
    rank: int | None
    due: int
    method: str | None = None
    channel: int = 0
    exchange: str | None = None
    tag: int = 0


def exhausted(error: BaseException) -> str:
    """A sentence if a connection failed because this machine lacks a resource; else ""."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return (f"a player may open {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files, and its clients need more "
                "connections: raise the limit (ulimit -n), or use more --partitions")
    if number == errno.EADDRNOTAVAIL:
        return ("this machine has no more ports for connections to the broker: replay from several machines, or with "
                "fewer --copies")
    return ""


class PlayedClient:
    """waiting: operations that cannot be sent yet, in order. opening: CONNECT is on its way."""

    __slots__ = ("connections", "link", "name", "opening", "played", "ready", "session", "waiting")

    def __init__(self, rows: ReplayRows, name: str, number: int) -> None:
        self.name = name
        self.played = ReplayClient(rows, name, number)
        self.waiting: deque[Operation] = deque()
        self.connections = 0
        self.opening = False
        self.ready = False                  # in the player's list of clients that may continue
        self.session = Session()
        self.link: Link | None = None       # the last one


class Link:
    """changed(link): called when an answer has arrived, or when it ended. manual: acknowledgements are operations."""

    def __init__(self, rows: ReplayRows, client: PlayedClient, options: PlayOptions, changed: Callable[[Link], None], *,
                 manual: bool) -> None:
        self.rows, self.client, self.options, self.changed = rows, client, options, changed
        self.clock, self.address = options.clock, options.address
        self.lane = Lane(rows, client.played, client.connections, lambda: changed(self))
        client.connections += 1
        self.state = NEW
        self.connection: Any = None
        self.subscribed = False
        self.unanswered = 0                      # SUBSCRIBE and UNSUBSCRIBE without an answer
        self.patience: asyncio.TimerHandle | None = None
        self.forced = False                 # open requests have had their time
        self.keeps_session = False
        self.ending = False                 # the player ends it
        self.handed_over = False
        self.unreachable = ""
        self.exhausted = ""                 # the resource that this machine lacks
        self.manual = manual
        self.held: list[Message | None] = []        # manual: deliveries of QoS 1 and 2 by rank
        self.promised: set[int] = set()             # ranks to acknowledge as soon as they come
        self.releasing = False
        self.settled_by_command: set[bytes] = set()   # queues settled by commands; others by PUBACK

    # ── begin ────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, request: ConnectRequest, due: int = NO_VALUE) -> None:
        """CONNECT; afterwards the state is OPEN or CLOSED."""
        self.state, self.client.opening = OPENING, True
        version = min(max(request.version, 3), MQTT_5)
        self.keeps_session = request.session_expiry_s > 0 if version == MQTT_5 else not request.clean_start
        before = self.client.link
        if before is not None and before.state == OPEN:
            before.hand_over()
        if request.clean_start:
            self.client.session = Session()
        self.client.link = self
        op = self._next_op()
        said: dict[str, Any] = {"version": version, "clean_start": request.clean_start,
                                "keep_alive_s": request.keep_alive_s, "session_expiry_s": request.session_expiry_s
                                if version == MQTT_5 else 0 if request.clean_start else FOR_EVER_S}
        will = self._will(request, op, version)
        if will is not None:
            said["will"] = {"topic": will.topic, "qos": will.qos, "retain": will.retain, "size": len(will.payload),
                            "delay_s": will.delay_s}
        row = self.rows.record(CONNECTED, self.lane, op, None, self.clock(), due=due, unfinished=True)
        try:
            self.connection = await self.options.open_connection(
                self.address, ConnectOptions(
                    client_id=self.client.name, version=version, clean_start=request.clean_start,
                    keep_alive_s=request.keep_alive_s, username=self.options.username, password=self.options.password,
                    will=will, session_expiry_s=request.session_expiry_s, properties=request.properties),
                on_message=self._take_held if self.manual else self._taker(), on_closed=self._closed,
                manual_ack=self.manual, session=self.client.session, republish=False, timeout_s=CONNECT_TIMEOUT_S)
        except ConnectRefused as error:
            self.rows.acknowledge(row, self.clock(), error.reason, detail=json.dumps(said))
            self.state = CLOSED
        except (OSError, TimeoutError, FluxError) as error:
            self.rows.acknowledge(row, None, detail=json.dumps(said | {"error": str(error)}))
            self.state = CLOSED
            self.unreachable = str(error) or type(error).__name__
            self.exhausted = exhausted(error)
        else:
            said["session_present"] = self.subscribed = self.connection.connack.session_present
            self.rows.acknowledge(row, self.clock(), detail=json.dumps(said))
            self.lane.attach(self.connection)
            self.state = OPEN
        finally:
            if self.state == OPENING:           # the replay has ended
                self.state = CLOSED
            self.client.opening = False
            self.changed(self)

    def _taker(self) -> Callable[[Message], object]:
        """The callback for deliveries that are acknowledged at once."""
        return self.lane.take

    def _will(self, request: ConnectRequest, op: int, version: int) -> Will | None:
        """A will is a publish of its CONNECT: its trace identifies that."""
        will = request.will
        if will is None:
            return None
        payload = self.lane.traced(op, will.size, will.payload)
        if version < MQTT_5:
            return Will(will.topic, payload, will.qos, will.retain)
        return Will(will.topic, payload, will.qos, will.retain, will.delay_s, will.properties)

    def _next_op(self) -> int:
        op = self.client.played.next_op
        self.client.played.next_op = op + 1
        return op

    # ── subscriptions ────────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, filters: list[tuple[str, int]], properties: Any = None, due: int = NO_VALUE) -> None:
        op, sent = self._next_op(), self.clock()
        user = [] if properties is None else properties.user

        def answered(_packet_id: int, codes: list[int]) -> None:
            now = self.clock()
            for row, code in zip(rows, codes, strict=True):
                self.rows.acknowledge(row, now, code, code if code <= 2 else -1)
            granted = [name for (name, _), code in zip(filters, codes, strict=True) if code < REFUSED]
            self._consumes(granted, user, now)
            self._answered()

        self.connection.subscribe(filters, answered, properties=properties or None)
        self.unanswered += 1
        self.subscribed = True
        rows = []
        for name, options in filters:
            said: dict[str, Any] = {
                "options": options, "requested_qos": options & 3, "no_local": bool(options & 4),
                "retain_as_published": bool(options & 8), "retain_handling": options >> 4 & 3}
            if user:
                said["user_properties"] = user
            rows.append(self.rows.record(SUBSCRIBED, self.lane, op, name.encode(), sent, due=due, unfinished=True,
                                         detail=json.dumps(said)))

    def _consumes(self, filters: list[str], user: list[tuple[str, str]], now: int) -> None:
        """For granted filters: since when, and how many, messages the broker may deliver from the queues among them."""
        request = dict(user)
        prefetch = int(request.get("prefetch", "")) if request.get("prefetch", "").isdecimal() else 0
        by_order = request.get("ack") == "manual"
        for name in filters:
            queue = queue_of(name[max(name.find(FROM_QUEUE), 0):]).encode()
            if queue:
                self.lane.credits[queue] = QueueCredit(now, prefetch, not (by_order or self.manual))
                (self.settled_by_command.add if by_order else self.settled_by_command.discard)(queue)

    def _credit(self, queue: bytes, *, by_order: bool) -> None:
        """A delivery was settled: the consumer has room for another."""
        credit = self.lane.credits.get(queue)
        if credit is not None and not credit.automatic and by_order == (queue in self.settled_by_command):
            credit.settled(self.clock())

    def unsubscribe(self, filters: list[str], properties: Any = None, due: int = NO_VALUE) -> None:
        op, sent = self._next_op(), self.clock()

        def answered(_packet_id: int, codes: list[int]) -> None:
            now = self.clock()
            for index, row in enumerate(rows):          # before MQTT 5 there are no codes
                self.rows.acknowledge(row, now, codes[index] if index < len(codes) else 0)
            self._answered()

        self.connection.unsubscribe(filters, answered, **({"properties": properties} if properties else {}))
        self.unanswered += 1
        rows = [self.rows.record(UNSUBSCRIBED, self.lane, op, name.encode(), sent, due=due, unfinished=True)
                for name in filters]

    def _answered(self) -> None:
        self.unanswered -= 1
        self.changed(self)

    # ── acknowledgements ─────────────────────────────────────────────────────────────────────────────────────

    def _take_held(self, message: Message) -> None:
        self.lane.take(message)
        if message.qos:
            rank = len(self.held)
            if self.connection is not None and (self.releasing or rank in self.promised):
                self.promised.discard(rank)
                self.held.append(None)
                self._acknowledge(message)
            else:
                self.held.append(message)

    def acknowledge(self, rank: int) -> None:
        """Acknowledges the delivery of that rank, now or on arrival."""
        if rank >= len(self.held):
            self.promised.add(rank)
            return
        message, self.held[rank] = self.held[rank], None
        if message is not None and self.state == OPEN:
            self._acknowledge(message)

    def _acknowledge(self, message: Message) -> None:
        self.connection.acknowledge(message)
        if self.lane.credits:
            self._credit(queue_of(message.topic.decode()).encode(), by_order=False)

    def release(self) -> None:
        """Acknowledges the held deliveries, and from now on each on arrival."""
        self.releasing = True
        for rank in range(len(self.held)):
            self.acknowledge(rank)

    # ── end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def may_end(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether everything sent has been answered; unanswered requests get their time, once."""
        if self.forced or not (self.lane.unfinished or self.unanswered):
            return True
        self.lane.stalled = True
        self.lane.ping()
        if self.patience is None:
            self.patience = loop.call_later(self.options.patience_s, self._force)
        return False

    def _force(self) -> None:
        self.forced = True
        self.changed(self)

    def disconnect(self, reason: int, properties: Any, due: int = NO_VALUE, **said: Any) -> None:
        detail: dict[str, Any] = {"by": "client", **said}
        expiry = None if properties is None else properties.session_expiry_interval
        if expiry is not None:
            detail["session_expiry_s"] = expiry
            self.keeps_session = bool(expiry)
        self.ending = True
        self.rows.record(DISCONNECTED, self.lane, self._next_op(), None, self.clock(), due=due, reason=reason,
                         detail=json.dumps(detail))
        self.connection.disconnect(reason, **({"properties": properties} if properties else {}))

    def abort(self, due: int = NO_VALUE) -> None:
        """Ends the connection without DISCONNECT, like a client that lost power."""
        self.ending = True
        self.rows.record(LOST, self.lane, self._next_op(), None, self.clock(), due=due,
                         detail=json.dumps({"by": "client"}))
        self.connection.abort()

    def hand_over(self) -> None:
        """Another connection of the client is about to take over the session with all packet identifiers that the
        broker remembers. Deliveries that still arrive here are ignored, so the broker sends them again there."""
        self.handed_over = True
        self.connection.output_full()           # written data is sent first
        self.connection.leave_silently()
        self.lane.close(keep=self.keeps_session)

    def _closed(self, error: BaseException | None, reason: int) -> None:
        if not self.ending:
            why = str(error or "") or ("another connection of the client took over" if self.handed_over else "")
            self.rows.record(LOST, self.lane, self._next_op(), None, self.clock(), reason=reason,
                             detail=json.dumps({"by": "broker", "error": why}))
        self.state = CLOSED
        self.unanswered = 0
        if self.patience is not None:
            self.patience.cancel()
        if not self.handed_over:
            self.lane.close(keep=self.keeps_session)
        self.changed(self)
