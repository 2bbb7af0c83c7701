"""Fixtures of the tests of AMQP 0-9-1 connections: a broker, and clients that send what they are told."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.amqp import AmqpClient
from kit.broker import Broker

Start = Callable[..., Broker]
Open = Callable[..., AmqpClient]
PLAIN = "amqp091/plain"


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Start]:
    """start_broker({"amqp091.heartbeat": "1s"}); in memory unless it is said otherwise."""
    started: list[Broker] = []

    def start(settings: dict[str, object] | None = None) -> Broker:
        given = {"storage.type": "memory", "log.level": "debug"} | (settings or {})
        started.append(Broker(tmp_path / f"broker{len(started)}", given).start())
        return started[-1]

    yield start
    try:
        for broker in started:
            if broker.process is not None:
                broker.check()
    finally:
        for broker in started:
            broker.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that needs no settings of its own, for all tests of a file."""
    one = Broker(tmp_path_factory.mktemp("broker"), {"storage.type": "memory", "log.level": "debug"}).start()
    yield one
    try:
        one.check()
    finally:
        one.stop()


@pytest.fixture
def client() -> Iterator[Open]:
    """client(broker): a connection on which nothing was sent yet."""
    opened: list[AmqpClient] = []

    def open_(broker: Broker, slot: str = PLAIN) -> AmqpClient:
        opened.append(AmqpClient(broker.addresses[slot]))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()
