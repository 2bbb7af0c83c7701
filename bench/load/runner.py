"""One run of the load generator: connect, warm up, measure, drain, report."""
from __future__ import annotations

import os
import secrets
import time
from contextlib import ExitStack, suppress
from typing import Any

from fluxmq.bench.load import packets
from fluxmq.bench.load.engine import Engine
from fluxmq.bench.load.options import HEAD_SIZE, LoadOptions
from fluxmq.bench.load.procinfo import CpuReading, cpu_between, memory, read_cpu
from fluxmq.bench.load.sockets import SourceAddresses, client_context, open_socket, raise_descriptor_limit

__all__ = ["run_load"]

SUBSCRIBE_ID = 1
SPARE_DESCRIPTORS = 64
SLICE_SECONDS = 1.0
MICRO = 1e6


def run_load(options: LoadOptions) -> dict[str, Any]:
    """Do one run and return its figures; every key is explained in bench/README.md.

    Raises OptionsError (the options contradict each other), OSError (no connection), LoadError (the broker ended one).
    """
    options.check()
    raise_descriptor_limit(options.pubs + options.subs + SPARE_DESCRIPTORS)
    tag = secrets.randbits(12)
    engine = Engine(
        version=options.level, publishers=options.pubs, subscribers=options.subs, layout=options.layout,
        groups=max(options.groups, 1), window=options.window, rate=options.rate,
        checked=options.size >= HEAD_SIZE and options.subs > 0, tag=tag,
        batch=options.batch,
    )
    names: list[str] = []
    with ExitStack() as stack:
        if options.persistent:
            stack.callback(forget_sessions, options, names)
        attach_all(engine, options, secrets.token_hex(4), names, stack)
        result = measure(engine, options)
        engine.disconnect(packets.disconnect())
    return result


def attach_all(engine: Engine, options: LoadOptions, run: str, names: list[str], stack: ExitStack) -> None:
    """Connect subscribers first and publishers after them, so that nothing is published before it is subscribed."""
    context = client_context(options)
    sources = SourceAddresses(options.host)
    websocket = options.transport in ("ws", "wss")

    def hello(name: str) -> bytes:
        names.append(name)
        return packets.connect(
            name, level=options.level, clean=not options.persistent, keep_alive=options.keep_alive,
            session_expiry=options.session_expiry if options.persistent else 0,
            receive_maximum=options.receive_maximum, username=options.username, password=options.password)

    def connection(addr: str = "") -> Any:
        return stack.enter_context(open_socket(options, context, sources.next(), addr))

    sub_qos = options.qos if options.sub_qos is None else options.sub_qos
    for i in range(options.subs):
        subscribe = packets.subscribe(SUBSCRIBE_ID, options.topic_filter(i), sub_qos, level=options.level,
                                      start=options.start)
        engine.attach_subscriber(connection(options.subscriber_addr(i)), hello(f"s{run}-{i}"), subscribe, SUBSCRIBE_ID,
                                 websocket)
    if options.churn:
        engine.attach_churn(connection(), hello(f"c{run}"), options.churn, websocket)
    engine.connect(options.connect_timeout)
    for i in range(options.pubs):
        template = packets.publish_template(options, i)
        engine.attach_publisher(connection(), hello(f"p{run}-{i}"), template.packet, template.id_at,
                                template.head_at, template.fresh_at, 65535, websocket)
    engine.connect(options.connect_timeout)


def turn(engine: Engine, options: LoadOptions, seconds: float) -> None:
    """Runs for that long, with a PINGREQ in every half of the keep alive."""
    end = time.monotonic() + seconds
    ping_at = time.monotonic()
    while (left := end - time.monotonic()) > 0:
        if options.keep_alive and time.monotonic() >= ping_at:
            engine.ping()
            ping_at = time.monotonic() + options.keep_alive / 2
        engine.turn(min(left, SLICE_SECONDS))


def read_brokers(options: LoadOptions) -> list[CpuReading]:
    if options.node_pids:
        return [read_cpu(pid, alone=True) for pid in options.node_pids]
    return [read_cpu(options.broker_pid)] if options.broker_pid else []


def measure(engine: Engine, options: LoadOptions) -> dict[str, Any]:
    engine.start()
    turn(engine, options, options.warmup)
    pid = options.broker_pid
    own_before = os.times()
    cpu_before = read_brokers(options)
    before = engine.counts()
    engine.measure(True)
    started = time.monotonic()
    turn(engine, options, options.duration)
    elapsed = time.monotonic() - started
    engine.measure(False)
    after = engine.counts()
    cpu_after = read_brokers(options)
    own_after = os.times()
    drained = engine.drain(options.drain)
    total = engine.counts()
    delivered = after["delivered"] - before["delivered"]
    sent = after["sent"] - before["sent"]
    latency, ack_latency = engine.latencies()
    result: dict[str, Any] = {
        "seconds": elapsed,
        "sent": sent, "sent_per_second": sent / elapsed,
        "delivered": delivered, "delivered_per_second": delivered / elapsed,
        "acked_per_second": (after["acked"] - before["acked"]) / elapsed,
        "churned_per_second": (after["churned"] - before["churned"]) / elapsed,
        "latency_us": latency.summary() if latency.count else None,
        "ack_latency_us": ack_latency.summary() if ack_latency.count else None,
        "lateness_max_us": engine.lateness_max / 1000.0,
        "total": total, "drained": drained, "checked": options.size >= HEAD_SIZE and options.subs > 0,
        "generator_cpu_share": (sum(own_after[:2]) - sum(own_before[:2])) / elapsed,
    }
    if cpu_before:
        used = sum(map(cpu_between, cpu_before, cpu_after))
        result["broker_cpu_seconds"] = used
        result["broker_cpu_share"] = used / elapsed
        for kind in ("user", "system"):
            result[f"broker_cpu_{kind}_seconds"] = sum(getattr(one, kind) for one in cpu_after) - sum(
                getattr(one, kind) for one in cpu_before)
        # Without subscribers the broker's work is to receive messages.
        messages = delivered if options.subs else sent
        result["broker_cpu_us_per_message"] = used * MICRO / messages if messages else None
    if pid:
        result["broker_memory"] = {"rss": memory(pid).rss, "peak": memory(pid).peak}
    return result


def forget_sessions(options: LoadOptions, names: list[str]) -> None:
    """Removes the sessions: connects once more with each name and Clean Start, and disconnects."""
    context = client_context(options)
    sources = SourceAddresses(options.host)
    for name in names:
        with suppress(OSError), open_socket(options, context, sources.next()) as sock:
            sock.setblocking(True)
            hello = packets.connect(name, level=options.level, username=options.username, password=options.password)
            if options.transport in ("ws", "wss"):
                # A frame of our own: a mask of zero is valid, and nothing here is secret.
                hello = bytes([0x82, 0x80 | len(hello), 0, 0, 0, 0]) + hello
            sock.sendall(hello)
            sock.recv(64)
