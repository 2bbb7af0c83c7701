"""The clients that `fluxmq bench client` compares: each publishes and receives in this process, message by message.

One manner for all: subscribe to a topic of one's own, put `window` messages on their way, and publish the next for each
that arrives, so that publish and receive go on at once and nothing waits for more than a turn. A delivery is what is
counted. QoS 1 is pipelined where a library can: paho-mqtt from its callback, aiomqtt with a task for every message
that may be on its way, for its publish waits for the acknowledgement. Both get TCP_NODELAY, which they do not set by
themselves: else 40 ms of delayed acknowledgements of TCP would be what is measured.
"""
from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import uvloop

from fluxmq.client import Client

__all__ = ["SIDES", "Figure", "Task", "missing"]

GRACE_S = 20.0          # to begin and to end in
LOOK_EVERY = 64         # deliveries between two checks of the clock


@dataclass(frozen=True, slots=True)
class Task:
    """What a side is to do. host, port: of the broker. seconds: measured. payload, window: see above."""

    host: str
    port: int
    qos: int
    seconds: float
    payload: bytes
    window: int
    topic: str


@dataclass(slots=True)
class Figure:
    """What it did: deliveries, seconds that they took, and of these seconds on CPU (of this whole process)."""

    messages: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds * 1e6 / self.messages if self.messages else 0.0


class Watch:
    """Counts deliveries; `count` returns whether time is up. The first window is not measured."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.figure = Figure()
        self.seen = 0
        self.begun = self.cpu = 0.0

    def count(self) -> bool:
        self.seen += 1
        if self.seen == self.task.window:
            self.begun, self.cpu = time.perf_counter(), time.process_time()
        elif self.seen > self.task.window and self.seen % LOOK_EVERY == 0:
            now = time.perf_counter()
            if now - self.begun >= self.task.seconds:
                self.figure = Figure(self.seen - self.task.window, now - self.begun, time.process_time() - self.cpu)
                return True
        return False


def fluxmq(task: Task) -> Figure:
    """fluxmq.client: publish_nowait and the iterator."""

    async def body() -> Figure:
        watch = Watch(task)
        async with Client(f"{task.host}:{task.port}", version=4) as client:
            await client.subscribe(task.topic, task.qos)
            topic, payload, qos = task.topic, task.payload, task.qos
            for _ in range(task.window):
                client.publish_nowait(topic, payload, qos)
            async for message in client.messages:
                if message.payload != payload:
                    raise AssertionError("a message of somebody else")
                if watch.count():
                    break
                client.publish_nowait(topic, payload, qos)
        return watch.figure

    return _on_uvloop(body, task)


def paho(task: Task) -> Figure:
    """paho-mqtt: its thread and callbacks; publishes from on_message, where no other thread is involved."""
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    watch = Watch(task)
    done = threading.Event()

    def on_socket_open(_client: mqtt.Client, _data: object, opened: Any) -> None:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_connect(client: mqtt.Client, *_: object) -> None:
        client.subscribe(task.topic, task.qos)

    def on_subscribe(client: mqtt.Client, *_: object) -> None:
        for _number in range(task.window):
            client.publish(task.topic, task.payload, task.qos)

    def on_message(client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        if message.payload != task.payload:
            raise AssertionError("a message of somebody else")
        if done.is_set():
            return
        if watch.count():
            done.set()
            return
        client.publish(task.topic, task.payload, task.qos)

    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
    client.max_inflight_messages_set(task.window * 2)
    client.on_socket_open = on_socket_open
    client.on_connect = on_connect
    client.on_subscribe = on_subscribe
    client.on_message = on_message
    client.connect(task.host, task.port)
    client.loop_start()
    done.wait(task.seconds + GRACE_S)
    client.disconnect()
    client.loop_stop()
    return watch.figure


def aiomqtt(task: Task) -> Figure:
    """aiomqtt: its iterator; a task for each message on its way, since publish waits for the acknowledgement."""
    import aiomqtt as library

    async def body() -> Figure:
        watch = Watch(task)
        room = asyncio.Semaphore(task.window)

        async def publish(client: library.Client) -> None:
            while True:
                await room.acquire()
                await client.publish(task.topic, task.payload, task.qos)

        async with library.Client(task.host, task.port, max_inflight_messages=task.window * 2,
                                  max_concurrent_outgoing_calls=task.window * 2,
                                  socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]) as client:
            await client.subscribe(task.topic, task.qos)
            client.pending_calls_threshold = task.window        # below it the library warns
            workers = [asyncio.create_task(publish(client)) for _ in range(task.window)]
            async for message in client.messages:
                if message.payload != task.payload:
                    raise AssertionError("a message of somebody else")
                if watch.count():
                    break
                room.release()
            for worker in workers:
                worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*workers)
        return watch.figure

    return _on_uvloop(body, task)


def _on_uvloop(body: Callable[[], Awaitable[Figure]], task: Task) -> Figure:
    """Empty if it does not finish."""

    async def bounded() -> Figure:
        async with asyncio.timeout(task.seconds + GRACE_S):
            return await body()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, contextlib.suppress(TimeoutError):
        return runner.run(bounded())
    return Figure()


SIDES: dict[str, Callable[[Task], Figure]] = {"fluxmq.client": fluxmq, "paho-mqtt": paho, "aiomqtt": aiomqtt}
MODULES = {"paho-mqtt": "paho", "aiomqtt": "aiomqtt"}


def missing(side: str) -> bool:
    """Whether a library is not installed."""
    return side in MODULES and importlib.util.find_spec(MODULES[side]) is None
