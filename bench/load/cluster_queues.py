"""Queues and streams whose publisher, owner and consumer are different nodes; also beside three nodes of RabbitMQ.

Queues are durable, messages persistent, publications confirmed and deliveries acknowledged. A queue is declared at its
owner, over AMQP, and deleted after the round.
"""
from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.amqp091_machine import AmqpMessage
from fluxmq.bench.load.amqp_frames import publication
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.amqp_session import Session
from fluxmq.bench.load.cluster_parts import TTL_MIN, Bench, Figures, Goal, Row, faults
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.runner import run_load

__all__ = ["Roles", "amqp_across", "mqtt_across", "one_in_flight", "queue_rows", "redelivery", "stream", "taken_over"]

SIZE = 256
HELD = 1000                 # messages that the consumer of a killed node holds
PATIENCE_SECONDS = 60.0


@dataclass(slots=True, frozen=True, kw_only=True)
class Roles:
    """Numbers of the nodes that publishers connect to, that has the queue, that consumers connect to (in turns; readers
    of a stream to all), and that the consumer connects to which gets what a killed node's consumer held."""

    publishers: int = 0
    owner: int = 1
    consumers: tuple[int, ...] = (2,)
    readers: tuple[int, ...] = (0, 1, 2)
    other: int = 0


def ms(latency: dict[str, float] | None, name: str, prefix: str = "") -> Figures:
    """Median and p99 of a load, in ms. Raises LoadError when it was too short for one message."""
    if latency is None:
        raise LoadError("nothing was measured: the run was too short")
    return {f"{prefix}{name}p50_ms": latency["p50"] / 1e3, f"{prefix}{name}p99_ms": latency["p99"] / 1e3}


def times(figures: dict[str, Any], prefix: str = "") -> Figures:
    return ms(figures["latency_us"], "", prefix) | ms(figures["ack_latency_us"], "confirm_", prefix)


# ── MQTT ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def declared(address: str, kind: str) -> Iterator[str]:
    """A durable queue of that type, declared over AMQP at this address; its name."""
    name = f"bench-{secrets.token_hex(4)}"
    control = Session(AmqpOptions(addr=address), None)
    try:
        control.call(m.QueueDeclare(queue=name, durable=True, arguments={"x-queue-type": kind}))
        try:
            yield name
        finally:
            control.call(m.QueueDelete(queue=name))
    finally:
        control.close()


def mqtt_load(bench: Bench, amqp: str, addr: str, sub_addrs: tuple[str, ...], **load: Any) -> dict[str, Any]:
    with declared(amqp, load["queue"]) as name:
        return run_load(LoadOptions(addr=addr, sub_addrs=sub_addrs, prefix=name, version="5", qos=1, size=SIZE,
                                    duration=bench.options.duration, warmup=bench.options.warmup, **load))


def on_nodes(bench: Bench, roles: Roles, consumers: tuple[int, ...], **load: Any) -> dict[str, Any]:
    return mqtt_load(bench, bench.nodes.amqp_address(roles.owner), bench.nodes.address(roles.publishers),
                     tuple(bench.nodes.address(number) for number in consumers), **load)


def on_one(bench: Bench, **load: Any) -> dict[str, Any]:
    return mqtt_load(bench, bench.one.addresses["amqp"], bench.one.addresses["tcp"], (), **load)


def mqtt_across(roles: Roles) -> Callable[[Bench], Figures]:
    """`$queue/…`, QoS 1; the same on the single broker."""
    def run(bench: Bench) -> Figures:
        ours = on_nodes(bench, roles, roles.consumers, queue="classic")
        one = on_one(bench, queue="classic")
        return {"rate": ours["delivered_per_second"], "one": one["delivered_per_second"]} | times(ours) | faults(ours)
    return run


def stream(roles: Roles) -> Callable[[Bench], Figures]:
    """One publisher, eight readers; the same on the single broker."""
    def run(bench: Bench) -> Figures:
        ours = on_nodes(bench, roles, roles.readers, queue="stream", subs=8)
        one = on_one(bench, queue="stream", subs=8)
        return {"rate": ours["delivered_per_second"], "one": one["delivered_per_second"]} | times(ours) | faults(ours)
    return run


# ── AMQP ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def amqp_load(bench: Bench, address: Callable[[int], str], roles: Roles, **load: Any) -> dict[str, Any]:
    return run_amqp(AmqpOptions(
        queue_addr=address(roles.owner), addr=address(roles.publishers),
        sub_addrs=tuple(address(number) for number in roles.consumers), size=SIZE, duration=bench.options.duration,
        warmup=bench.options.warmup, **load))


def amqp_across(roles: Roles, **load: Any) -> Callable[[Bench], Figures]:
    """The same load on RabbitMQ in the same round; who goes first changes from round to round."""
    def run(bench: Bench) -> Figures:
        if bench.rabbitmq is None:
            raise LoadError("the row needs RabbitMQ beside it")
        sides = {"": bench.nodes.amqp_address, "rabbitmq_": bench.rabbitmq.address}
        found = {prefix: amqp_load(bench, sides[prefix], roles, **load)
                 for prefix in (list(sides) if bench.number % 2 == 0 else reversed(list(sides)))}
        ours, theirs = found[""], found["rabbitmq_"]
        return {"rate": ours["delivered_per_second"], "rabbitmq_rate": theirs["delivered_per_second"],
                "times": ours["delivered_per_second"] / max(1e-9, theirs["delivered_per_second"])} \
            | times(ours) | times(theirs, "rabbitmq_") | faults(ours) \
            | {f"rabbitmq_{what}": count for what, count in faults(theirs).items()}
    return run


def one_in_flight(roles: Roles) -> Callable[[Bench], Figures]:
    """A message is published when the last one was confirmed and delivered: over MQTT, on the single broker, over
    AMQP."""
    def run(bench: Bench) -> Figures:
        ours = on_nodes(bench, roles, roles.consumers, queue="classic", window=1)
        one = on_one(bench, queue="classic", window=1)
        amqp = amqp_load(bench, bench.nodes.amqp_address, roles, window=1)
        return {"rate": ours["delivered_per_second"], "one": one["delivered_per_second"],
                "amqp_rate": amqp["delivered_per_second"]} | times(ours) | times(amqp, "amqp_") | faults(ours)
    return run


# ── a consumer's node that is killed ─────────────────────────────────────────────────────────────────────────────


class Holder(Session):
    """A consumer that acknowledges nothing. bodies: of the messages that came; again: how many of them had come to
    somebody before."""

    def __init__(self, address: str) -> None:
        self.bodies: list[bytes] = []
        self.again = 0
        super().__init__(AmqpOptions(addr=address, connect_timeout=PATIENCE_SECONDS), None)

    def on_delivery(self, message: AmqpMessage) -> None:
        super().on_delivery(message)
        self.bodies.append(bytes(message.body))
        self.again += bool(message.method.redelivered)

    def take(self, queue: str, count: int) -> None:
        self.consume(queue, prefetch=count, automatic=False, arguments={})

    def until(self, done: Callable[[], bool]) -> None:
        """As Session's, but the time is that of the whole wait."""
        end = time.monotonic() + PATIENCE_SECONDS
        super().until(lambda: done() or self.late(end))

    @staticmethod
    def late(end: float) -> bool:
        if time.monotonic() > end:
            raise LoadError(f"the messages did not come in {PATIENCE_SECONDS:g} s")
        return False


def publish_all(address: str, queue: str, count: int) -> list[bytes]:
    """Publishes so many messages, confirmed; returns their payloads."""
    payloads = [number.to_bytes(4, "big").ljust(SIZE, b"x") for number in range(count)]
    session = Session(AmqpOptions(addr=address, connect_timeout=PATIENCE_SECONDS), None)
    session.call(m.ConfirmSelect())
    for payload in payloads:
        session.machine.out += publication("", queue, payload, persistent=True,
                                           frame_max=session.machine.frame_max).packet
    session.until_confirmed(count)
    session.close()
    return payloads


def taken_over(address: Callable[[int], str], roles: Roles, count: int, end: Callable[[], None]) -> float:
    """Seconds from the end of a consumer's node until another consumer has all messages that the first one held.

    address: of a node, over AMQP. end: kills the node that consumers connect to. Raises LoadError, OSError, also when
    the other consumer does not get each of them once, as delivered before.
    """
    with declared(address(roles.owner), "classic") as queue, ExitStack() as stack:
        payloads = publish_all(address(roles.publishers), queue, count)
        holder, other = Holder(address(roles.consumers[0])), Holder(address(roles.other))
        for one in (holder, other):
            stack.callback(one.sock.close)
        holder.take(queue, count)
        holder.until(lambda: holder.delivered == count)
        other.take(queue, count)
        begin = time.monotonic()
        end()
        other.until(lambda: other.delivered >= count)
        seconds = time.monotonic() - begin
        if sorted(other.bodies) != payloads or other.again != count:
            raise LoadError(f"of {count} messages {len(set(other.bodies))} came to the other consumer, "
                            f"{other.delivered} in all, {other.again} as delivered before")
        return seconds


def redelivery(roles: Roles) -> Callable[[Bench], Figures]:
    """The node of a consumer that holds 1 000 messages is killed."""
    def run(bench: Bench) -> Figures:
        nodes, dies = bench.nodes, roles.consumers[0]
        seconds = taken_over(nodes.amqp_address, roles, bench.scaled(HELD), lambda: nodes.kill(dies))
        nodes.start(dies)
        nodes.wait(nodes.whole, f"node {dies} does not come back")
        return {"seconds": seconds}
    return run


def queue_rows(roles: Roles) -> tuple[Row, ...]:
    """The rows, on these nodes."""
    ten_times = Goal(figure="times", bound=10.0, at_least=True)
    return (
        Row(key="queue", work="a durable queue of another node than publisher's and consumer's, 256 B, QoS 1, 1 000 "
            "in flight", run=mqtt_across(roles),
            goals=(Goal(figure="rate", bound=150_000, at_least=True), Goal(figure="p99_ms", bound=25.0))),
        Row(key="queue-one", work="the same, one message in flight", run=one_in_flight(roles),
            goals=(Goal(figure="rate", bound=800, at_least=True), Goal(figure="p99_ms", bound=5.0),
                   Goal(figure="confirm_p99_ms", bound=5.0))),
        Row(key="stream", work="a stream, 1 publisher, 8 readers on three nodes, deliveries", run=stream(roles),
            goals=(Goal(figure="rate", bound=1e6, at_least=True),)),
        Row(key="queue-amqp", work="the queue over AMQP, beside three nodes of RabbitMQ, each message acknowledged",
            run=amqp_across(roles), rabbitmq=True,
            goals=(Goal(figure="rate", bound=120_000, at_least=True), ten_times)),
        Row(key="queue-amqp-100", work="the same, 100 messages acknowledged at once",
            run=amqp_across(roles, ack_every=100), rabbitmq=True,
            goals=(Goal(figure="rate", bound=120_000, at_least=True), ten_times)),
        Row(key="queue-killed", work="the node of a consumer that holds 1 000 messages is killed", ttl=TTL_MIN,
            run=redelivery(roles), goals=(Goal(figure="seconds", bound=1.5, plus_ttl=True),)),
    )
