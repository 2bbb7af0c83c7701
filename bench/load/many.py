"""Many of something: make it, stop or kill the broker, start it again, use all of it, delete it; a bystander waits
meanwhile.

    kind        what there is many of
    queues      durable classic queues that AMQP declared, with a message each
    sessions    persistent MQTT sessions with a subscription and a message each
    retained    retained messages
    bindings    direct exchanges, each with a binding to one queue
    fanout      durable classic queues bound to one fanout exchange, which get one message

The longest time that a bystander waited for an answer is the longest time that the broker's loop was busy.
"""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fluxmq._core.amqp091 import methods as m
from fluxmq.bench.load.amqp_frames import CHANNEL, publication
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_session import Session
from fluxmq.bench.load.backlog import RestartOptions, settled_memory
from fluxmq.bench.load.brokers import Broker, Needs, start_broker
from fluxmq.bench.load.bystander import Bystander
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.mqtt_session import MqttSession
from fluxmq.bench.load.procinfo import memory

__all__ = ["ManyOptions", "run_many"]

PATIENCE_SECONDS = 900.0
WINDOW = 500
BUFFERS = "16MiB"
ASK_AGAIN_SECONDS = 0.01


@dataclass(slots=True, kw_only=True)
class ManyOptions(RestartOptions):
    """count: how many."""

    kind: Literal["queues", "sessions", "retained", "bindings", "fanout"] = "queues"
    count: int = 100_000
    size: int = 64


class Amqp:
    """One connection, one channel; requests go in windows, answers are counted."""

    def __init__(self, address: str) -> None:
        self.session = Session(AmqpOptions(addr=address, connect_timeout=PATIENCE_SECONDS), None)

    def ask_all(self, requests: list[m.Method]) -> None:
        for at in range(0, len(requests), WINDOW):
            self.session.call_all(requests[at:at + WINDOW])

    def publish_all(self, packets: list[bytes]) -> None:
        """Publishes with confirms."""
        session = self.session
        session.call(m.ConfirmSelect())
        for at in range(0, len(packets), WINDOW):
            last = min(at + WINDOW, len(packets))
            session.machine.out += b"".join(packets[at:last])
            session.until_confirmed(last)

    def take_all(self, consumes: list[m.Method], count: int) -> int:
        """Adds a consumer for each queue, and acknowledges all messages at the end. Returns their number."""
        session = self.session
        self.ask_all(consumes)
        session.until(lambda: session.delivered >= count)
        session.machine.cast(CHANNEL, m.BasicAck(delivery_tag=session.delivered, multiple=True))
        session.call(m.BasicQos())      # its answer shows that the earlier methods were processed
        return session.delivered

    def close(self) -> None:
        self.session.close()


def publish_all(address: str, topics: list[str], payload: bytes, *, retain: bool) -> None:
    client = MqttSession(address, "publisher", timeout=PATIENCE_SECONDS)
    for at in range(0, len(topics), WINDOW):
        client.publish_all(topics[at:at + WINDOW], payload, retain=retain)
    client.close()


def kept(broker: Broker, name: str) -> MqttSession:
    """A client whose session outlives its connection."""
    return MqttSession(broker.addresses["tcp"], name, clean=False, session_expiry=86_400, timeout=PATIENCE_SECONDS)


class Work:
    """The work with many objects of one kind: make, use and remove, each in phases of its own name."""

    def __init__(self, options: ManyOptions) -> None:
        self.options = options
        self.names = [f"many/{number}" for number in range(options.count)]
        self.payload = bytes(options.size)

    def make(self, broker: Broker, phase: Callable[[str], Any]) -> None:
        if self.options.kind == "queues":
            amqp = Amqp(broker.addresses["amqp"])
            with phase("declare"):
                amqp.ask_all([m.QueueDeclare(queue=name, durable=True) for name in self.names])
            with phase("publish"):
                amqp.publish_all([publication("", name, self.payload, persistent=True, frame_max=4096).packet
                                  for name in self.names])
            amqp.close()
        elif self.options.kind == "fanout":
            amqp = Amqp(broker.addresses["amqp"])
            amqp.session.call(m.ExchangeDeclare(exchange="many", type="fanout", durable=True))
            with phase("declare"):
                amqp.ask_all([m.QueueDeclare(queue=name, durable=True) for name in self.names])
            with phase("bind"):
                amqp.ask_all([m.QueueBind(queue=name, exchange="many") for name in self.names])
            with phase("publish"):
                amqp.publish_all([publication("many", "", self.payload, persistent=True, frame_max=4096).packet])
            amqp.close()
        elif self.options.kind == "bindings":
            amqp = Amqp(broker.addresses["amqp"])
            amqp.session.call(m.QueueDeclare(queue="many", durable=True))
            with phase("declare"):
                amqp.ask_all([m.ExchangeDeclare(exchange=name, type="direct", durable=True) for name in self.names])
            with phase("bind"):
                amqp.ask_all([m.QueueBind(queue="many", exchange=name, routing_key="key") for name in self.names])
            amqp.close()
        elif self.options.kind == "sessions":
            with phase("connect"):
                for name in self.names:
                    client = kept(broker, name)
                    client.subscribe_to(name, 1)
                    client.close()
            with phase("publish"):
                publish_all(broker.addresses["tcp"], self.names, self.payload, retain=False)
        else:
            with phase("publish"):
                publish_all(broker.addresses["tcp"], self.names, self.payload, retain=True)

    def use(self, broker: Broker, phase: Callable[[str], Any]) -> int:
        """Returns how many were found."""
        if self.options.kind in ("queues", "fanout"):
            amqp = Amqp(broker.addresses["amqp"])
            with phase("consume"):
                got = amqp.take_all([m.BasicConsume(queue=name, consumer_tag=f"c{number}")
                                     for number, name in enumerate(self.names)], len(self.names))
            with phase("leave"):
                amqp.close()
                self.until_left(broker)
            return got
        if self.options.kind == "bindings":
            amqp = Amqp(broker.addresses["amqp"])
            with phase("publish again"):
                amqp.publish_all([publication(name, "key", self.payload, persistent=True, frame_max=4096).packet
                                  for name in self.names])
            found = int(amqp.session.call(m.QueueDeclare(queue="many", passive=True, durable=True)).message_count)
            amqp.close()
            return found
        if self.options.kind == "sessions":
            with phase("resume"):
                for name in self.names:
                    client = kept(broker, name)
                    client.until_delivered()
                    client.close()
            return len(self.names)
        return len(self.names)

    def until_left(self, broker: Broker) -> None:
        """Waits until the last queue has no consumer: they are removed in order."""
        amqp = Amqp(broker.addresses["amqp"])
        consumers = 1
        while consumers:
            consumers = amqp.session.call(m.QueueDeclare(queue=self.names[-1], passive=True)).consumer_count
            time.sleep(ASK_AGAIN_SECONDS)
        amqp.close()

    def remove(self, broker: Broker, phase: Callable[[str], Any]) -> None:
        if self.options.kind in ("queues", "fanout"):
            amqp = Amqp(broker.addresses["amqp"])
            with phase("delete"):
                amqp.ask_all([m.QueueDelete(queue=name) for name in self.names])
            amqp.close()
        elif self.options.kind == "bindings":
            amqp = Amqp(broker.addresses["amqp"])
            with phase("delete"):
                amqp.ask_all([m.ExchangeDelete(exchange=name) for name in self.names])
            amqp.close()
        elif self.options.kind == "retained":
            with phase("delete"):
                publish_all(broker.addresses["tcp"], self.names, b"", retain=True)


class Phases:
    """Duration of each phase, and the bystander's longest wait in it."""

    def __init__(self, broker: Broker, suffix: str = "") -> None:
        self.bystander = Bystander(broker.addresses["tcp"])
        self.seconds: dict[str, float] = {}
        self.suffix = suffix

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        name += self.suffix
        self.bystander.begin(name)
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began
        self.bystander.begin("")

    def end(self) -> dict[str, dict[str, float]]:
        waits = self.bystander.end()
        return {name: {"seconds": seconds, "longest_wait": waits[name]} for name, seconds in self.seconds.items()}


def stop(broker: Broker, phases: Phases, restart: str) -> None:
    with phases("stop" if restart == "stop" else "kill"):
        (broker.process.terminate if restart == "stop" else broker.process.kill)()
        broker.process.wait(PATIENCE_SECONDS)


def run_many(options: ManyOptions) -> dict[str, Any]:
    """Make, measure, end, start, measure, use, stop, start, remove, stop. The caller removes the broker's folder.

    Raises LoadError, BrokerError, OSError."""
    needs = Needs(folder=options.folder, transports=("tcp", "amqp"), patience=PATIENCE_SECONDS, settings={
        "storage.journal_file_size": BUFFERS, "server.shutdown_timeout": "10s", "session.max_sessions": "1000000"})
    work = Work(options)
    figures: dict[str, Any] = {"kind": options.kind, "count": options.count, "phases": {}}

    def started(suffix: str) -> tuple[Broker, float]:
        began = time.monotonic()
        broker = start_broker("fluxmq", needs)
        seconds = time.monotonic() - began
        return broker, seconds

    broker, figures["start_seconds_empty"] = started("")
    with broker:
        empty = settled_memory(broker.pid, options.settle)
        phases = Phases(broker)
        work.make(broker, phases)
        with phases("idle"):
            full = settled_memory(broker.pid, options.settle)
        figures |= {"rss_empty": empty, "rss_full": full, "rss_peak": memory(broker.pid).peak,
                    "bytes_each": (full - empty) / options.count}
        stop(broker, phases, options.restart)
        figures["phases"] |= phases.end()
    broker, figures["start_seconds"] = started("")
    with broker:
        with (phases := Phases(broker))("after ready"):
            again = settled_memory(broker.pid, options.settle)
        figures |= {"rss_restarted": again, "rss_restarted_peak": memory(broker.pid).peak,
                    "bytes_each_restarted": (again - empty) / options.count}
        figures["found"] = work.use(broker, phases)

        with phases("stop after use"):
            broker.process.terminate()
            broker.process.wait(PATIENCE_SECONDS)
        figures["phases"] |= phases.end()
    broker, figures["start_seconds_used"] = started("")
    with broker:
        phases = Phases(broker)
        work.remove(broker, phases)
        with phases("stop when removed"):
            broker.process.terminate()
            broker.process.wait(PATIENCE_SECONDS)
        figures["phases"] |= phases.end()
    if figures["found"] != options.count:
        raise LoadError(f"{options.count} were made, {figures['found']} were there after the restart")
    return figures
