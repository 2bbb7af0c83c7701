"""One run of the AMQP 0-9-1 load generator: declare, connect, warm up, measure, drain, report, delete."""
from __future__ import annotations

import os
import secrets
import ssl
import time
from contextlib import ExitStack, suppress
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq.bench.load.amqp_engine import AmqpEngine
from fluxmq.bench.load.amqp_frames import publication
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_session import Session
from fluxmq.bench.load.options import HEAD_SIZE
from fluxmq.bench.load.procinfo import CpuReading, cpu_between, memory, read_cpu
from fluxmq.bench.load.sockets import SourceAddresses, client_context, raise_descriptor_limit

__all__ = ["run_amqp"]

SPARE_DESCRIPTORS = 64
SLICE_SECONDS = 1.0
MICRO = 1e6


def run_amqp(options: AmqpOptions) -> dict[str, Any]:
    """Do one run and return its figures: those of an MQTT run (bench/README.md), with confirms for acknowledgements.

    Raises OptionsError (the options contradict each other), OSError (no connection, or the broker refuses something:
    SessionError), LoadError (the broker ended a connection).
    """
    options.check()
    raise_descriptor_limit(options.pubs + options.subs + SPARE_DESCRIPTORS)
    context = client_context(options.connection())
    with ExitStack() as stack:
        plan = Plan(options, Session(options, context, addr=options.queue_addr))
        stack.callback(plan.delete)
        plan.declare()
        engine = AmqpEngine(
            publishers=options.pubs, consumers=options.subs, layout=options.layout,
            frame_max=plan.control.machine.frame_max, window=options.window, lag=options.lag_max, rate=options.rate,
            batch=options.batch, confirms=options.confirms, ack_every=options.ack_every if options.subs else 0,
            apart=options.prefetch * options.subs, checked=options.checked, tag=secrets.randbits(12),
            stall=options.stall)
        plan.attach_all(engine, context, stack)
        result = {"server": plan.control.server} | measure(engine, options)
        engine.disconnect(m.ConnectionClose(reply_code=200, reply_text="done").frame(0))
    return result


class Plan:
    """The queues of a run, declared over a connection of their own and deleted over it in any case."""

    def __init__(self, options: AmqpOptions, control: Session) -> None:
        self.options = options
        self.control = control
        self.run = secrets.token_hex(4)
        count = 1 if options.queues == "one" else options.subs
        self.queues = [options.queue_name(self.run, number) for number in range(count)]
        self.exchange = f"{options.prefix}-{self.run}" if options.queues == "fanout" else ""
        self.declared: list[str] = []

    def declare(self) -> None:
        """Raises SessionError if the broker refuses a queue of that type."""
        for name in self.queues:
            self.control.call(m.QueueDeclare(queue=name, durable=self.options.durable,
                                             arguments=self.options.arguments))
            self.declared.append(name)
        if self.exchange:
            self.control.call(m.ExchangeDeclare(exchange=self.exchange, type="fanout", durable=self.options.durable))
            for name in self.queues:
                self.control.call(m.QueueBind(queue=name, exchange=self.exchange))

    def delete(self) -> None:
        """Deletes everything, as far as the broker still answers."""
        with suppress(OSError):
            if self.exchange:
                self.control.call(m.ExchangeDelete(exchange=self.exchange))
            for name in self.declared:
                self.control.call(m.QueueDelete(queue=name))
        self.control.close()

    def attach_all(self, engine: AmqpEngine, context: ssl.SSLContext | None, stack: ExitStack) -> None:
        """Connects consumers first and publishers after them, so that consumers miss nothing."""
        options = self.options
        sources = SourceAddresses(options.connection().host)

        def session(addr: str) -> Session:
            one = Session(options, context, sources.next(), addr=addr)
            stack.callback(one.sock.close)
            return one

        for i in range(options.subs):
            one = session(options.subscriber_addr(i))
            # A reader of a stream gets what is published from now on.
            arguments = {"x-stream-offset": "next"} if options.queue == "stream" else {}
            one.consume(self.queues[i % len(self.queues)], prefetch=options.prefetch,
                        automatic=options.ack_every == 0, arguments=arguments)
            engine.attach_consumer(*one.hand_over())
        payload = bytes(HEAD_SIZE)[:options.size] + b"x" * (options.size - HEAD_SIZE)
        for i in range(options.pubs):
            one = session(options.addr)
            if options.confirms:
                one.call(m.ConfirmSelect())
            packet, payload_at = publication(
                self.exchange, "" if self.exchange else self.queues[i % len(self.queues)], payload,
                persistent=options.persistent, frame_max=one.machine.frame_max)
            sock, early = one.hand_over()
            engine.attach_publisher(sock, early, packet, payload_at if options.checked else 0)


def turn(engine: AmqpEngine, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        engine.turn(min(left, SLICE_SECONDS))


def measure(engine: AmqpEngine, options: AmqpOptions) -> dict[str, Any]:
    engine.start()
    turn(engine, options.warmup)
    pid = options.broker_pid
    own_before = os.times()
    cpu_before = read_cpu(pid) if pid else None
    before = engine.counts()
    engine.measure(True)
    started = time.monotonic()
    turn(engine, options.duration)
    elapsed = time.monotonic() - started
    engine.measure(False)
    after = engine.counts()
    cpu_after = read_cpu(pid) if pid else None
    own_after = os.times()
    drained = engine.drain(options.drain)
    made = {name: after[name] - before[name] for name in ("sent", "delivered", "acked")}
    latency, confirm_latency = engine.latencies()
    result: dict[str, Any] = {
        "seconds": elapsed, "sent": made["sent"], "delivered": made["delivered"],
        "sent_per_second": made["sent"] / elapsed,
        "delivered_per_second": made["delivered"] / elapsed,
        "acked_per_second": made["acked"] / elapsed,
        "latency_us": latency.summary() if latency.count else None,
        "ack_latency_us": confirm_latency.summary() if confirm_latency.count else None,
        "lateness_max_us": engine.lateness_max / 1000.0,
        "total": engine.counts(), "drained": drained, "checked": options.checked,
        "generator_cpu_share": (sum(own_after[:2]) - sum(own_before[:2])) / elapsed,
    }
    if pid and cpu_before and cpu_after:
        # Without consumers the broker's work is to receive messages.
        result |= broker_figures(pid, cpu_before, cpu_after, elapsed, made["delivered" if options.subs else "sent"])
    return result


def broker_figures(pid: int, before: CpuReading, after: CpuReading, elapsed: float, messages: int) -> dict[str, Any]:
    used = cpu_between(before, after)
    now = memory(pid)
    return {
        "broker_cpu_seconds": used, "broker_cpu_share": used / elapsed,
        "broker_cpu_user_seconds": after.user - before.user,
        "broker_cpu_system_seconds": after.system - before.system,
        "broker_cpu_us_per_message": used * MICRO / messages if messages else None,
        "broker_memory": {"rss": now.rss, "peak": now.peak},
    }
