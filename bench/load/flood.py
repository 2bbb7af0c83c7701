"""A flood: many clients that request as much as they can, and a bystander with one request at a time.

    kind         what each client of the flood sends, over and over, without waiting for answers
    ping         PINGREQ
    subscribe    SUBSCRIBE to a hundred filters in turn
    resubscribe  SUBSCRIBE to one filter
    unsubscribe  UNSUBSCRIBE from a filter that it has not
    retained     ten filters that match all retained messages, again as soon as it has them
    retain       its share of the retained messages, QoS 1: each is set once, and then the flood is over
    declare      queue.declare of a queue that is there
    get          basic.get from an empty queue
    bind         queue.bind of a binding that is there
    exchange     exchange.declare of an exchange that is there
    qos          basic.qos
    channel      channel.open, channel.close
    tx           tx.select
    commit       tx.commit of nothing
    purge        queue.purge of an empty queue
    connect      a connection, CONNECT, and away with its answer
    health       GET /health of the health server, one behind the other

The bystander sends PINGREQ on a connection of its own and times each answer; the flood runs in a process of its own.
What a flood gets done is counted by the octets of its answers, whose size is known.
"""
from __future__ import annotations

import multiprocessing
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Literal, cast

from fluxmq._core.amqp091 import methods as m
from fluxmq.bench.load.amqp_frames import CHANNEL
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_session import Session
from fluxmq.bench.load.brokers import Needs, free_port, start_broker
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.histogram import Histogram
from fluxmq.bench.load.mqtt_session import MqttSession
from fluxmq.bench.load.options import OptionsError
from fluxmq.bench.load.packets import connect, packet, string, subscribe
from fluxmq.bench.load.procinfo import cpu_between, read_cpu

__all__ = ["KINDS", "FloodOptions", "render_flood", "run_flood"]

BLOCK_BYTES = 65_536            # bytes that a client sends at a time
READ_BYTES = 262_144
TIMEOUT = 60.0
PAUSE_SECONDS = 0.001           # of the bystander, between an answer and its next request
RETAINED_LEVELS = (10, 100)     # of the topics: r/<10>/<100>/<the rest>
RETAINED_FILTERS = ("#", "+/#", "r/#", "+/+/#", "r/+/#", "+/+/+/#", "r/+/+/#", "+/+/+/+", "r/+/+/+", "r/+/+/+/#")
QUEUE = "flood"
GET = b"GET /health HTTP/1.1\r\nHost: flood\r\n\r\n"
CONNACK_BYTES = 4
PUBACK_BYTES = 4
RESET = struct.pack("ii", 1, 0)     # SO_LINGER: otherwise closed connections would use up all ports
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
DECLARE = m.QueueDeclare(queue=QUEUE, durable=True)
DECLARE_EXCHANGE = m.ExchangeDeclare(exchange=QUEUE, type="topic", durable=True)


@dataclass(slots=True, kw_only=True)
class FloodOptions:
    """kind: see the module. clients: of the flood. seconds: measured, of the kind `retain` at most. warmup: seconds
    before that. retained: messages of `size` bytes, which are there when the kind `retained` begins, and are set by the
    kind `retain`, which knows no warm-up. folder: of the broker that is started. home: the directory that has the
    package `fluxmq` to run; None: the one that runs this."""

    kind: str = "subscribe"
    clients: int = 20
    seconds: float = 5.0
    warmup: float = 1.0
    retained: int = 100_000
    size: int = 32
    folder: Path = Path()
    home: Path | None = None
    cores: frozenset[int] = field(default_factory=frozenset)


@dataclass(slots=True, frozen=True)
class Kind:
    """Packets of the flood and the octets of an answer (0: only the broker knows); prepare: called
    before the flood begins."""

    requests: Callable[[], list[bytes]]
    answer_bytes: int
    transport: Literal["tcp", "amqp", "http"] = "tcp"
    prepare: m.Method | None = None


def subscriptions(filters: int) -> list[bytes]:
    return [subscribe(1, f"flood/{number:04}", 0) for number in range(filters)]


def method(asked: m.Method) -> Callable[[], list[bytes]]:
    return lambda: [asked.frame(CHANNEL)]


KINDS = {
    "ping": Kind(lambda: [PINGREQ], 2),
    "subscribe": Kind(lambda: subscriptions(100), 5),
    "resubscribe": Kind(lambda: subscriptions(1), 5),
    "unsubscribe": Kind(lambda: [packet(0xA2, b"\0\1" + string("flood/none"))], 4),
    "retained": Kind(lambda: [subscribe(number + 1, one, 0) for number, one in enumerate(RETAINED_FILTERS)], 0),
    "retain": Kind(list, PUBACK_BYTES),
    "declare": Kind(method(DECLARE), 8 + 4 + 1 + len(QUEUE) + 8, "amqp", DECLARE),
    "get": Kind(method(m.BasicGet(queue=QUEUE, no_ack=True)), 8 + 4 + 1, "amqp", DECLARE),
    "bind": Kind(method(m.QueueBind(queue=QUEUE, exchange="amq.topic", routing_key="flood.#")), 8 + 4, "amqp", DECLARE),
    "exchange": Kind(method(DECLARE_EXCHANGE), 8 + 4, "amqp", DECLARE_EXCHANGE),
    "qos": Kind(method(m.BasicQos(prefetch_count=10)), 8 + 4, "amqp"),
    "channel": Kind(lambda: [m.ChannelOpen().frame(2), m.ChannelClose().frame(2)], (8 + 4 + 4 + 8 + 4) // 2, "amqp"),
    "tx": Kind(method(m.TxSelect()), 8 + 4, "amqp"),
    "commit": Kind(method(m.TxCommit()), 8 + 4, "amqp", m.TxSelect()),
    "purge": Kind(method(m.QueuePurge(queue=QUEUE)), 8 + 4 + 4, "amqp", DECLARE),
    "connect": Kind(lambda: [connect("")], CONNACK_BYTES),
    "health": Kind(lambda: [GET], 0, "http"),
}


def open_mqtt(address: str, name: str) -> socket.socket:
    """Connects an MQTT 3.1.1 client and returns its socket. Raises LoadError, OSError."""
    return MqttSession(address, name, level=4, timeout=TIMEOUT).sock


def fill_retained(address: str, options: FloodOptions) -> int:
    """Publishes the retained messages; returns the octets of a delivered one."""
    with open_mqtt(address, "flood-fill") as filler:
        messages = [retained_publish(number, 0, options.size) for number in range(options.retained)]
        filler.sendall(b"".join(messages) + PINGREQ)
        if filler.recv(2, socket.MSG_WAITALL) != PINGRESP:
            raise LoadError("the broker did not take the retained messages")
    return len(messages[0])


def retained_publish(number: int, qos: int, size: int) -> bytes:
    """The PUBLISH that sets one of the retained messages. size: octets of its payload."""
    tens, hundreds = number % RETAINED_LEVELS[0], number // RETAINED_LEVELS[0] % RETAINED_LEVELS[1]
    return packet(0x31 | qos << 1, string(f"r/{tens}/{hundreds:02}/{number:07}") + (b"\0\1" if qos else b"")
                  + bytes(size))


def ask_health(address: str) -> int:
    """Sends one request and returns the octets of its answer."""
    with open_http(address) as asker:
        asker.sendall(GET)
        head, _, body = asker.recv(READ_BYTES).partition(b"\r\n\r\n")
        said = dict(line.split(b": ") for line in head.lower().split(b"\r\n")[1:])
        missing = int(said[b"content-length"]) - len(body)
        if missing:
            asker.recv(missing, socket.MSG_WAITALL)
        return len(head) + 4 + len(body) + missing


def open_http(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


class Flood:
    """The clients of a flood, all in one loop."""

    def __init__(self, options: FloodOptions, addresses: dict[str, str], answer_bytes: int) -> None:
        kind = KINDS[options.kind]
        requests = kind.requests()
        self.again = 0                  # octets after which a client sends again; 0: without waiting
        self.once = options.kind == "retain"
        self.answers = options.retained // options.clients * options.clients
        if self.once:
            self.block = b"".join(retained_publish(number, 1, options.size) for number in range(self.answers))
        elif options.kind == "connect":
            self.block = requests[0]
        elif options.kind == "retained":
            self.block = b"".join(requests)
            self.again = options.retained * answer_bytes * len(requests)
        else:
            self.block = b"".join(requests * max(1, BLOCK_BYTES // len(b"".join(requests))))
        self.sockets: list[socket.socket] = []
        self.sessions: list[Session] = []       # owners of the sockets
        for number in range(options.clients):
            if kind.transport == "amqp":
                session = Session(AmqpOptions(addr=addresses["amqp"]), None, channel_max=2)
                if kind.prepare is not None:
                    session.call(kind.prepare)
                self.sessions.append(session)
                self.sockets.append(session.sock)
            elif kind.transport == "http":
                self.sockets.append(open_http(addresses["http"]))
            elif options.kind != "connect":
                self.sockets.append(open_mqtt(addresses["tcp"], f"flood-{number}"))
        self.received = 0
        self.dead = 0

    def run(self, until: float) -> None:
        """Sends and reads until this time (monotonic clock)."""
        into = bytearray(READ_BYTES)
        waiting = {one: memoryview(self.block) for one in self.sockets}
        if self.once:
            share = len(self.block) // len(self.sockets)
            waiting = {one: memoryview(self.block)[at * share:(at + 1) * share] for at, one in enumerate(self.sockets)}
        expected = self.answers * PUBACK_BYTES if self.once else 0
        had = dict.fromkeys(self.sockets, 0)
        with selectors.DefaultSelector() as selector:
            for client in self.sockets:
                client.setblocking(False)
                selector.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while (left := until - time.monotonic()) > 0 and not 0 < expected <= self.received:
                for key, events in selector.select(left):
                    one: Any = key.fileobj
                    try:
                        if events & selectors.EVENT_READ:
                            got = one.recv_into(into)
                            if not got:
                                raise ConnectionError
                            self.received += got
                            had[one] += got
                            if self.again and had[one] >= self.again // 2 and not waiting[one]:
                                had[one], waiting[one] = 0, memoryview(self.block)
                                selector.modify(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
                        if events & selectors.EVENT_WRITE:
                            waiting[one] = waiting[one][one.send(waiting[one]):]
                            if not waiting[one]:
                                if self.again or self.once:
                                    selector.modify(one, selectors.EVENT_READ)
                                else:
                                    waiting[one] = memoryview(self.block)
                    except BlockingIOError:
                        continue
                    except OSError:
                        self.dead += 1
                        selector.unregister(one)


class Storm(Flood):
    """Clients that connect, receive CONNACK and disconnect, over and over."""

    def __init__(self, options: FloodOptions, addresses: dict[str, str], answer_bytes: int) -> None:
        super().__init__(options, addresses, answer_bytes)
        host, _, port = addresses["tcp"].rpartition(":")
        self.address = host, int(port)
        self.clients = options.clients

    def run(self, until: float) -> None:
        with selectors.DefaultSelector() as selector:
            for _ in range(self.clients):
                self.begin(selector)
            while (left := until - time.monotonic()) > 0:
                for key, events in selector.select(left):
                    one: Any = key.fileobj
                    try:
                        if events & selectors.EVENT_WRITE:
                            one.send(self.block)
                            selector.modify(one, selectors.EVENT_READ)
                            continue
                        answer = one.recv(CONNACK_BYTES)
                        self.received += len(answer)
                        self.dead += len(answer) < CONNACK_BYTES
                    except BlockingIOError:
                        continue
                    except OSError:
                        self.dead += 1
                    selector.unregister(one)
                    one.close()
                    self.begin(selector)
            for key in list(selector.get_map().values()):
                cast(socket.socket, key.fileobj).close()

    def begin(self, selector: selectors.BaseSelector) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        one.connect_ex(self.address)
        selector.register(one, selectors.EVENT_WRITE)


def flood_process(options: FloodOptions, addresses: dict[str, str], pid: int, answer_bytes: int, pipe: Pipe) -> None:
    """Sends to the pipe: ready, and at the end the octets and the broker's CPU seconds of the measured time, how many
    clients were disconnected, and the seconds measured. pid: the broker's."""
    flood = (Storm if options.kind == "connect" else Flood)(options, addresses, answer_bytes)
    pipe.send(None)
    begin = time.monotonic()
    if not flood.once:
        begin += options.warmup
        flood.run(begin)
    received, cpu = flood.received, read_cpu(pid)
    flood.run(begin + options.seconds)
    pipe.send((flood.received - received, cpu_between(cpu, read_cpu(pid)), flood.dead, time.monotonic() - begin))


def watch(bystander: socket.socket, until: float, latency: Histogram, ended: Pipe | None = None) -> None:
    """Sends one PINGREQ after the other until this time (monotonic clock), or until something was sent to `ended`, and
    times each."""
    while time.monotonic() < until and not (ended is not None and ended.poll()):
        sent = time.perf_counter_ns()
        bystander.sendall(PINGREQ)
        if bystander.recv(2, socket.MSG_WAITALL) != PINGRESP:
            raise LoadError("the broker closed the bystander's connection")
        latency.record(time.perf_counter_ns() - sent)
        time.sleep(PAUSE_SECONDS)


def run_flood(options: FloodOptions) -> dict[str, Any]:
    """Starts FluxMQ, floods it and returns rates and the bystander's round trips (µs). Raises OptionsError, LoadError,
    BrokerError, OSError."""
    if options.kind not in KINDS:
        raise OptionsError(f"there is no flood of kind {options.kind!r}: {', '.join(KINDS)}")
    settings = {"broker.max_retained_messages": str(max(options.retained, 1000))}
    health = f"127.0.0.1:{free_port()}"
    if KINDS[options.kind].transport == "http":
        settings |= {"server.health_enabled": "true", "server.health_addr": health}
    needs = Needs(folder=options.folder, transports=("tcp", "amqp"), home=options.home, cores=options.cores,
                  settings=settings)
    latency, idle = Histogram(), Histogram()
    with start_broker("fluxmq", needs) as broker:
        answer_bytes = KINDS[options.kind].answer_bytes
        if options.kind == "retained":
            answer_bytes = fill_retained(broker.addresses["tcp"], options)
        if KINDS[options.kind].transport == "http":
            broker.addresses["http"] = health
            answer_bytes = ask_health(health)
        bystander = open_mqtt(broker.addresses["tcp"], "bystander")
        watch(bystander, time.monotonic() + min(0.5, options.seconds), idle)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=flood_process, args=(options, broker.addresses, broker.pid, answer_bytes, theirs),
            daemon=True)
        process.start()
        theirs.close()
        try:
            ours.recv()
            watch(bystander, time.monotonic() + options.warmup + options.seconds, latency, ours)
            received, cpu, dead, seconds = ours.recv()
        except EOFError:
            raise LoadError("the clients of the flood could not connect") from None
        finally:
            process.kill()
            process.join()
            bystander.close()
    answers = received / answer_bytes
    return {"kind": options.kind, "clients": options.clients, "seconds": seconds, "thrown_out": dead,
            "per_second": answers / seconds,
            "broker_cpu_us_per_answer": cpu * 1e6 / answers if answers else None,
            "bystander_us": latency.summary(), "bystander_idle_us": idle.summary()}


def render_flood(figures: dict[str, Any]) -> str:
    """The figures of run_flood in lines."""
    lines = [f"{figures['kind']}, {figures['clients']} clients: {figures['per_second']:,.0f} answers/s"
             + (f", {figures['broker_cpu_us_per_answer']:.1f} µs of CPU each" if figures["per_second"] else "")
             + (f", {figures['thrown_out']} clients were thrown out" if figures["thrown_out"] else "")]
    for name, key in (("bystander, nobody else", "bystander_idle_us"), ("bystander in the flood", "bystander_us")):
        summary = figures[key]
        lines.append(f"{name}: " + ", ".join(f"{part} {summary[part] / 1000:.2f} ms" for part in ("p50", "p99", "max")))
    return "\n".join(lines)
