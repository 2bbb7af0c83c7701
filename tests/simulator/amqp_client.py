"""An AMQP 0-9-1 client of the simulator: one connection to one virtual host, one channel in confirm mode, frames in the
oracle's codec, and books of what it sent, was told and got."""
from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracle.amqp091 import (
    BODY,
    HEADER,
    METHOD,
    PROTOCOL,
    decode_header,
    decode_method,
    encode_frame,
    encode_header,
    encode_method,
)
from simulator.judge import Books, Group, Message, QueueBook
from simulator.node import Node, Pipe

__all__ = ["AmqpClient", "Delivery"]

CHANNEL = 1


@dataclass(eq=False)
class Delivery:
    """A message in this client's hands."""

    queue: str
    message: Message
    tag: int


class AmqpClient:
    """name: for its publishes' order. vhost: its virtual host; keys of its queues begin with it."""

    def __init__(self, name: str, vhost: str, books: Books, chance: random.Random, now_ms: Callable[[], int]) -> None:
        self.name, self.vhost, self.books, self.chance, self.now_ms = name, vhost, books, chance, now_ms
        self.pipe: Pipe | None = None
        self.open = False
        self.slow = False
        self.held: list[Delivery] = []
        self.settled: list[tuple[Group, Message]] = []
        self.unconfirmed: dict[int, Message] = {}
        self.calls: deque[tuple[str, Callable[[dict[str, Any]], None]]] = deque()   # methods that await their answer
        self.consuming: dict[str, str] = {}         # tag → queue
        self.refused: list[str] = []                # what the broker closed a channel or the connection for
        self._getting: deque[str] = deque()         # queues of basic.get
        self._tags = 0
        self._content: tuple[str, dict[str, Any], dict[str, Any], int, bytes] | None = None
        self._read = b""

    # ── connection ───────────────────────────────────────────────────────────────────────────────────────

    def connect(self, node: Node) -> None:
        self.lose()
        self.pipe = node.accept_amqp()
        self.pipe.to_broker += PROTOCOL
        self.calls.append(("connection.start", self._start))

    def _start(self, _told: dict[str, Any]) -> None:
        self.method(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US",
                    client_properties={"capabilities": {"basic.nack": True, "publisher_confirms": True}})
        self.calls.append(("connection.tune", self._tune))

    def _tune(self, told: dict[str, Any]) -> None:
        self.method(0, "connection.tune-ok", channel_max=told["channel_max"], frame_max=told["frame_max"], heartbeat=0)
        self.method(0, "connection.open", virtual_host=self.vhost)
        self.calls.append(("connection.open-ok", lambda _told: None))
        self.method(CHANNEL, "channel.open")
        self.calls.append(("channel.open-ok", lambda _told: None))
        self.method(CHANNEL, "confirm.select")
        self.calls.append(("confirm.select-ok", self._opened))

    def _opened(self, _told: dict[str, Any]) -> None:
        self.open = True
        self._tags = 0

    def lose(self) -> None:
        if self.pipe is not None:
            self.pipe.client_closed = True
        self.pipe, self.open, self._read, self._content = None, False, b"", None
        self.held.clear()
        self.books.unsure(self.settled)
        self.unconfirmed.clear()
        self.calls.clear()
        self._getting.clear()
        self.consuming.clear()

    def method(self, channel: int, name: str, **arguments: Any) -> None:
        self.books.tell(f"{self.name} sends {name} {arguments}")
        if self.pipe is not None:
            self.pipe.to_broker += encode_frame(METHOD, channel, encode_method(name, **arguments))

    def call(self, name: str, then: Callable[[dict[str, Any]], None], **arguments: Any) -> None:
        """then: with the arguments of the answer. One call of a name at a time: an answer does not say to what
        it is."""
        if any(each[0] == f"{name}-ok" for each in self.calls):
            return
        self.calls.append((f"{name}-ok", then))
        self.method(CHANNEL, name, **arguments)

    # ── what it asks for ─────────────────────────────────────────────────────────────────────────────────

    def key(self, queue: str) -> str:
        return f"{self.vhost}|{queue}"

    def declare(self, queue: str, arguments: dict[str, Any], book: QueueBook, then: Callable[[], object]) -> None:
        """A durable queue."""
        made = self.books.queue(book)

        def told(_answer: dict[str, Any]) -> None:
            made.made_at = made.made_at or self.books.tick()
            made.groups[""].made_at = made.made_at
            then()
        self.call("queue.declare", told, queue=queue, durable=True, arguments=arguments)

    def exists(self, queue: str) -> None:
        """Passively declared; where there is none the channel ends, and `refused` says so."""
        self.call("queue.declare", lambda _answer: None, queue=queue, passive=True)

    def exchange(self, name: str, kind: str, then: Callable[[], None]) -> None:
        self.call("exchange.declare", lambda _answer: then(), exchange=name, type=kind, durable=True)

    def bind(self, queue: str, exchange: str, key: str, arguments: dict[str, Any], then: Callable[[], None]) -> None:
        self.call("queue.bind", lambda _answer: then(), queue=queue, exchange=exchange, routing_key=key,
                  arguments=arguments)

    def publish(self, message: Message, exchange: str, key: str, headers: dict[str, Any] | None = None) -> None:
        message.sent(self.now_ms(), self.books.starts)
        self.books.tell(f"{self.name} publishes {message}")
        self._tags += 1
        self.unconfirmed[self._tags] = message
        self.method(CHANNEL, "basic.publish", exchange=exchange, routing_key=key)
        if self.pipe is not None:
            properties: dict[str, Any] = {"delivery_mode": 2} | ({"headers": headers} if headers else {})
            self.pipe.to_broker += encode_frame(HEADER, CHANNEL, encode_header(len(message.payload), properties))
            self.pipe.to_broker += encode_frame(BODY, CHANNEL, message.payload)

    def consume(self, queue: str, prefetch: int) -> None:
        tag = f"{self.name}-{queue}-{self.books.tick()}"
        self.call("basic.qos", lambda _answer: None, prefetch_count=prefetch)
        self.consuming[tag] = queue
        self.call("basic.consume", lambda _answer: None, queue=queue, consumer_tag=tag)

    def get(self, queue: str) -> None:
        self.calls.append(("basic.get", lambda _told: None))
        self._getting.append(queue)
        self.method(CHANNEL, "basic.get", queue=queue)

    def settle(self, delivery: Delivery, verb: str) -> None:
        """ack; requeue; reject (to the dead letters, where there are any)."""
        self.held.remove(delivery)
        group = self.books.queues[delivery.queue].groups[""]
        if verb != "requeue" and delivery.message not in group.firm:
            group.settling.add(delivery.message)
            self.settled.append((group, delivery.message))
        if verb == "reject":
            group.rejecting.add(delivery.message)
            group.dead.add(delivery.message)
        if verb == "ack":
            self.method(CHANNEL, "basic.ack", delivery_tag=delivery.tag)
        elif self.chance.random() < 0.5:
            self.method(CHANNEL, "basic.nack", delivery_tag=delivery.tag, requeue=verb == "requeue")
        else:
            self.method(CHANNEL, "basic.reject", delivery_tag=delivery.tag, requeue=verb == "requeue")

    # ── what comes ───────────────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        pipe = self.pipe
        if pipe is None or self.slow:
            return
        if pipe.to_client:
            self._read += bytes(pipe.to_client)
            pipe.to_client.clear()
            while self.pipe is pipe and len(self._read) >= 8:
                size = int.from_bytes(self._read[3:7], "big")
                if len(self._read) < size + 8:
                    break
                kind, payload = self._read[0], self._read[7:7 + size]
                assert self._read[7 + size] == 0xCE, self._read
                self._read = self._read[size + 8:]
                self._frame(kind, payload)
        if pipe.broker_closed and self.pipe is pipe:
            self.lose()

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == METHOD:
            name, told = decode_method(payload)
            if name in ("basic.deliver", "basic.get-ok", "basic.return"):
                self._content = name, told, {}, -1, b""
            else:
                self._method(name, told)
        elif kind == HEADER and self._content is not None:
            size, properties = decode_header(payload)
            self._content = *self._content[:2], properties, size, b""
            if not size:
                self._whole()
        elif kind == BODY and self._content is not None:
            name, told, properties, size, body = self._content
            self._content = name, told, properties, size, body + payload
            if len(body) + len(payload) >= size:
                self._whole()

    def _method(self, name: str, told: dict[str, Any]) -> None:
        if name in ("basic.ack", "basic.nack"):
            upto = told["delivery_tag"]
            tags = [one for one in self.unconfirmed if one <= upto] if told["multiple"] else [upto]
            for tag in tags:
                message = self.unconfirmed.pop(tag, None)
                if message is not None and name == "basic.ack":
                    self.books.acked(message)
        elif name in ("connection.close", "channel.close"):
            self.refused.append(f"{self.calls[0][0] if self.calls else ''}: {told['reply_code']} {told['reply_text']}")
            self.lose()
        elif name == "basic.get-empty":
            self._called("basic.get")
            self._getting.popleft()
        elif name == "basic.cancel":
            self.consuming.pop(told["consumer_tag"], None)
        else:
            # An answer that waits for the disk may come behind that to a later method.
            found = next((each for each in self.calls if each[0] == name), None)
            assert found is not None, (name, told, list(self.calls))
            self.calls.remove(found)
            found[1](told)

    def _called(self, name: str) -> None:
        self.calls.remove(next(each for each in self.calls if each[0] == name))

    def _whole(self) -> None:
        assert self._content is not None
        name, told, properties, _, body = self._content
        self._content = None
        if name == "basic.return":
            return
        if name == "basic.get-ok":
            self._called("basic.get")
            queue = self._getting.popleft()
        else:
            queue = self.consuming.get(told["consumer_tag"], "")
        count = properties.get("headers", {}).get("x-delivery-count")
        message = self.books.delivered(
            self.key(queue), "", body, count=None if count is None else int(count) + 1, again=told["redelivered"],
            name="", now_ms=self.now_ms(), where=self.name)
        self.held.append(Delivery(self.key(queue), message, told["delivery_tag"]))
