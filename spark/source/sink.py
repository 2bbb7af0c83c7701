"""Writes tables and streams from Spark to a broker, published with QoS 1 through `fluxmq.client`.

Into a queue a row is appended once, however often Spark runs a task: every message carries a producer, the query and
the number of the Spark partition, and a sequence, the batch and the row's number in it. The queue knows which
of the last 1024 sequences of a producer it has (docs/queues.md, Deduplication); what is on its way here is at most
half of that, and goes on in order after a lost connection. A topic has no memory: there it is at least once.
"""
from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from fluxmq._core.errors import FluxError
from fluxmq._core.wire.queue_address import queue_topic
from fluxmq.client.errors import ConnectionLost
from fluxmq.spark.source.columns import SCHEMA, SourceError

if TYPE_CHECKING:
    from fluxmq.client.connection import Connection

__all__ = ["FluxStreamWriter", "FluxWriter", "Message", "Written", "messages_of", "publish_all"]

WINDOW = 512                    # messages in flight: half of the deduplication window of a queue
FAILURE = 0x80                  # reason codes from here on (MQTT 5.0 section 2.4)
# For these the broker ends the connection because of a message, and would again: malformed, protocol error, not
# authorized, topic name, quota, packet too large, payload format.
UNWANTED = {0x81, 0x82, 0x87, 0x90, 0x95, 0x97, 0x99}
REASON_STRING = 0x1F
RETRY_SECONDS = 0.25
BATCH_ID = "streaming.sql.batchId"              # given to tasks by Spark
QUERY_ID = "sql.streaming.queryId"
WRITING = {"broker", "queue", "topic", "producer", "timeoutseconds", "username", "password", "checkpointlocation",
           "queryname", "path"}
# Properties of MQTT 5 that a publisher may set, by the names that the source gives them (MQTT 5.0 section 2.2.2.2).
NAMED = {"payload-format-indicator": 0x01, "message-expiry-interval": 0x02, "response-topic": 0x08,
         "correlation-data": 0x09}
NAMES: dict[type[DataType], str] = {StringType: "string", BinaryType: "binary", MapType: "map<string,string>"}
CONTENT_TYPE, USER_PROPERTY = 0x03, 0x26


@dataclass(frozen=True)
class Message:
    """A message to publish. properties: of MQTT 5, as on the wire, without their length."""

    topic: str
    payload: bytes
    properties: bytes


@dataclass
class Written(WriterCommitMessage):
    """The result of a task."""

    rows: int = 0


@dataclass(frozen=True)
class Target:
    """The options of a write. queue, topic: "" if a column has it. Raises SourceError."""

    broker: str
    queue: str = ""
    topic: str = ""
    producer: str = ""
    timeout: float = 30.0
    username: str | None = None
    password: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, str], schema: StructType) -> Target:
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(name for name in given if name.lower() not in WRITING)
        if unknown:
            raise SourceError(f"the data source fluxmq has no option {unknown[0]} for writing; there are broker, "
                              f"queue, topic, producer, username, password, timeoutSeconds")
        if not options.get("broker"):
            raise SourceError("option broker is needed: host:port of the MQTT listener to publish to")
        queue, topic = options.get("queue", ""), options.get("topic", "")
        columns = {field.name: field.dataType for field in schema}
        if queue and topic:
            raise SourceError("options queue and topic are both given: a message goes to one of them")
        if not queue and not topic and not {"queue", "topic"} & set(columns):
            raise SourceError("option queue or topic is needed, or a column of that name, to say where messages go")
        _check_columns(columns)
        text = options.get("timeoutseconds", "30")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise SourceError(f"timeoutSeconds is a number from 0 on, not {text!r}")
        return cls(options["broker"], queue, topic, options.get("producer", ""), float(text),
                   options.get("username"), options.get("password"))


def _check_columns(columns: Mapping[str, DataType]) -> None:
    text: tuple[type[DataType], ...] = (StringType,)
    wanted: dict[str, tuple[type[DataType], ...]] = {
        "payload": (BinaryType, StringType), "key": text, "topic": text, "queue": text, "content_type": text,
        "properties": (MapType,), "headers": (MapType,)}
    if "payload" not in columns:
        raise SourceError("what is written needs a column payload, of binary or text")
    for name, kind in columns.items():
        if name not in wanted and name not in SCHEMA.fieldNames():
            raise SourceError(f"column {name} cannot be written; a message has payload, key, topic or queue, "
                              f"content_type, properties, headers")
        if name in wanted and not isinstance(kind, wanted[name]):
            raise SourceError(f"column {name} is {kind.simpleString()}, and must be "
                              f"{' or '.join(NAMES[one] for one in wanted[name])}")


class _Writer:
    """Shared by both writers."""

    def __init__(self, target: Target, run: str) -> None:
        self.target, self.run = target, run

    def _write(self, iterator: Iterator[pa.RecordBatch], run: str, batch: int, partition: int) -> Written:
        messages = messages_of(iterator, self.target, f"{run}/{partition}", batch << 32)
        return Written(asyncio.run(publish_all(self.target, messages)))


class FluxWriter(_Writer, DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("what is in a queue cannot be overwritten: write with mode append, and purge the queue "
                              "before (`fluxmq queue purge`) if it is to be empty")
        target = Target.read(options, schema)
        # made once and sent to all tasks, so that a repeated task is the same producer
        super().__init__(target, target.producer or f"spark-{uuid.uuid4().hex}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        return self._write(iterator, self.run, 0, context.partitionId() if context is not None else 0)


class FluxStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream. The producer is the checkpoint's query, so that a repeated batch has the same messages."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError("output mode complete writes all rows again with each batch, and a queue keeps what it "
                              "has: use append or update")
        target = Target.read(options, schema)
        super().__init__(target, target.producer)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if context is None or query is None or batch is None:
            raise SourceError("this version of Spark does not tell its tasks the query and the batch, without which a "
                              "batch cannot be written once")
        return self._write(iterator, f"{self.run or 'spark'}-{query}", int(batch), context.partitionId())


def messages_of(batches: Iterable[pa.RecordBatch], target: Target, producer: str, sequence: int) -> Iterator[Message]:
    """Messages of the rows, in order, numbered from `sequence` on. Raises SourceError."""
    for batch in batches:
        columns = {name: batch.column(at).to_pylist() for at, name in enumerate(batch.schema.names)}
        nothing = [None] * batch.num_rows
        keys, kinds = columns.get("key", nothing), columns.get("content_type", nothing)
        named, headers = columns.get("properties", nothing), columns.get("headers", nothing)
        queues, topics = columns.get("queue", nothing), columns.get("topic", nothing)
        for at, payload in enumerate(columns["payload"]):
            topic = target.topic
            if not topic:
                queue = target.queue or (queues[at] if "queue" in columns else "")
                topic = queue_topic(queue) if queue else topics[at] or ""
            if not topic:
                raise SourceError("a row says neither in column queue nor in column topic where it goes")
            told = bytearray()
            if topic.startswith(queue_topic("")):
                told += _user("producer-id", producer) + _user("producer-sequence", str(sequence))
            if keys[at] is not None:
                told += _user("partition-key", keys[at])
            if kinds[at] is not None:
                told += bytes((CONTENT_TYPE,)) + _text(kinds[at])
            for name, value in _pairs(named[at]):
                told += _property(name, value)
            for name, value in _pairs(headers[at]):
                if name not in ("producer-id", "producer-sequence", "partition-key") or (
                        name == "partition-key" and keys[at] is None):
                    told += _user(name, value)
            sequence += 1
            raw = payload.encode() if isinstance(payload, str) else payload or b""
            yield Message(topic, raw, bytes(told))


def _pairs(value: Any) -> Iterable[tuple[str, str]]:
    """Converts a map from Arrow."""
    if value is None:
        return ()
    return value.items() if isinstance(value, dict) else value


def _text(value: str) -> bytes:
    raw = value.encode()
    if b"\0" in raw:
        raise SourceError(f"a text with the character NUL cannot be in a property of a message: {value[:80]!r}")
    if len(raw) > 0xFFFF:
        raise SourceError(f"a text of {len(raw)} bytes is too long for a property of a message: at most 65535")
    return len(raw).to_bytes(2, "big") + raw


def _user(name: str, value: str | None) -> bytes:
    return bytes((USER_PROPERTY,)) + _text(name) + _text(value or "")


def _property(name: str, value: str | None) -> bytes:
    """Encodes a property by its name in MQTT 5; others, such as AMQP's, become user properties."""
    identifier = NAMED.get(name)
    try:
        if identifier is None or value is None:
            return _user(name, value)
        if name == "correlation-data":
            raw = bytes.fromhex(value)
            return bytes((identifier,)) + len(raw).to_bytes(2, "big") + raw
        if name == "response-topic":
            if "+" in value or "#" in value:
                raise ValueError
            return bytes((identifier,)) + _text(value)
        if name == "payload-format-indicator" and value not in ("0", "1"):
            raise ValueError
        return bytes((identifier,)) + int(value).to_bytes(1 if name == "payload-format-indicator" else 4, "big")
    except (ValueError, OverflowError):
        raise SourceError(f"property {name} cannot be {value!r}") from None


class _Publisher:
    """Publishes over one connection at a time; unacknowledged messages are sent first on the next one."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.connection: Connection | None = None
        self.waiting: deque[Message] = deque()          # not acknowledged, in order; sent or still to be sent
        self.sent = 0                                   # number of them sent on this connection
        self.acknowledged = 0
        self.refused: SourceError | None = None
        self._lost_at = 0.0                                # when first a connection was lost since the last ack
        self._vain = 0                                  # connections since then without any acknowledgement
        self._changed = asyncio.Event()

    async def connect(self, again: bool) -> None:
        """Raises SourceError. again: the broker was there before, and may be away for the time in option
        timeoutSeconds."""
        from fluxmq.client.connection import Connection
        from fluxmq.client.options import ConnectOptions

        options = ConnectOptions(client_id=f"spark-{uuid.uuid4().hex[:20]}", clean_start=True, keep_alive_s=0,
                                 username=self.target.username, password=self.target.password)
        loop = asyncio.get_running_loop()
        until = loop.time() + (self.target.timeout if again else 0)
        if self._vain > 1:
            # a broker that accepts connections but no messages counts as away
            until = self._lost_at + self.target.timeout
            if loop.time() >= until:
                raise SourceError(f"the broker at {self.target.broker} ended each of {self._vain} connections without "
                                  f"acknowledging anything: its log says why")
            await asyncio.sleep(RETRY_SECONDS)
        while True:
            try:
                self.connection = await Connection.open(self.target.broker, options, on_closed=self._closed)
                self.sent = 0
                return
            except (OSError, TimeoutError, FluxError) as error:
                if loop.time() >= until:
                    raise SourceError(f"cannot publish to {self.target.broker}: {error or type(error).__name__}. It "
                                      f"must be host:port of an MQTT listener of a running broker") from None
                await asyncio.sleep(RETRY_SECONDS)

    def _closed(self, error: BaseException | None, reason: int) -> None:
        self.connection = None
        if not self._vain:
            self._lost_at = asyncio.get_running_loop().time()
        self._vain += 1
        said = error.reason if isinstance(error, ConnectionLost) else reason
        if said in UNWANTED and self.waiting and self.refused is None:
            self.refused = SourceError(f"the broker at {self.target.broker} refused one of the {self.sent} messages "
                                       f"that were on their way, and ended the connection: {error}")
        self._changed.set()

    def _done(self, packet_id: int, reason: int) -> None:
        connection = self.connection
        if reason >= FAILURE and self.refused is None:
            said = next((str(value) for identifier, value in connection.answer_properties
                         if identifier == REASON_STRING), "") \
                if connection is not None else ""
            topic = self.waiting[0].topic if self.waiting else ""
            self.refused = SourceError(f"the broker at {self.target.broker} refused a message to {topic} "
                                       f"(0x{reason:02X}{': ' + said if said else ''})")
        if self.waiting:
            # acknowledgements are in order: one connection, one session, QoS 1 [MQTT-4.6.0-2]
            self.waiting.popleft()
            self.sent -= 1
            self.acknowledged += 1
            self._vain = 0
        self._changed.set()

    async def settle(self, maximum: int) -> None:
        """Waits until at most `maximum` are unacknowledged, all are sent, and none was refused. Raises SourceError."""
        while True:
            if self.refused is not None:
                raise self.refused
            if self.connection is None:
                await self.connect(again=True)
            connection = self.connection
            while connection is not None and self.sent < len(self.waiting) and connection.window > 0:
                message = self.waiting[self.sent]
                try:
                    connection.publish(message.topic, message.payload, qos=1, properties=message.properties,
                                       done=self._done)
                except FluxError as error:
                    if self.connection is None:
                        break
                    raise SourceError(f"a message to {message.topic} cannot be published: {error}") from None
                self.sent += 1
            if len(self.waiting) <= maximum and self.sent == len(self.waiting):
                return
            self._changed.clear()
            if self.connection is not None:
                await self._changed.wait()


async def publish_all(target: Target, messages: Iterator[Message]) -> int:
    """Publishes everything; returns how many when all are acknowledged. Raises SourceError."""
    publisher = _Publisher(target)
    first = next(messages, None)
    if first is None:
        return 0
    publisher.waiting.append(first)
    await publisher.connect(again=False)
    try:
        for message in messages:
            publisher.waiting.append(message)
            if len(publisher.waiting) >= WINDOW:
                await publisher.settle(WINDOW // 2)
        await publisher.settle(0)
    finally:
        connection = publisher.connection
        if connection is not None:
            connection.disconnect()
            await connection.closed()
    return publisher.acknowledged
