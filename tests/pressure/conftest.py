"""Fixtures of the pressure tests. Each test that squeezes a bound starts a broker with a small one.

After each test its brokers must be alive and must not have printed a traceback or "internal error".
"""
from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker
from kit.client import TIMEOUT, Client

_counter = itertools.count(1)
_used: list[Broker] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for number, broker in enumerate(_used, 1):
            if said := broker.stderr():
                report.sections.append((f"stderr of broker {number}", said[-20_000:]))
    return report


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start a broker of the test's own: start_broker({"broker.max_qos": 1}). Memory only, unless the test says more."""
    _used.clear()

    def start(settings: dict[str, object] | None = None) -> Broker:
        broker = Broker(tmp_path / f"broker{len(_used)}", {"storage.type": "memory"} | (settings or {}))
        if not broker.ours:
            pytest.skip("needs this tree's broker")
        _used.append(broker)
        return broker.start()

    yield start
    try:
        for broker in _used:
            if broker.process is not None:
                broker.check()
    finally:
        for broker in _used:
            broker.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Connected clients: connect(broker, "sub", version=4, receive_buffer=4096, clean_start=False)."""
    opened: list[Client] = []

    def open_(broker: Broker, role: str = "c", *, version: int = 5, receive_buffer: int = 0, **options: Any) -> Client:
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(TIMEOUT)
        raw.connect(broker.address)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(raw, version)
        opened.append(client)
        client.connect(options.pop("client_id", f"{role}-{os.getpid()}-{next(_counter)}"), **options)
        return client

    yield open_
    for client in opened:
        client.close()
