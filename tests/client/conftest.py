"""Fixtures of the client's tests: a broker, and both event loops."""
from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from kit.broker import Broker
from kit.loops import LOOPS, run_on


@pytest.fixture(scope="session")
def client_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("client-broker"), {"queue_manager.auto_create": "classic"}) as broker:
        yield broker


@pytest.fixture
def address(client_broker: Broker) -> str:
    """host:port of a broker that all tests share: topics and client ids are the test's own (`topic`)."""
    host, port = client_broker.addresses["mqtt/tcp/plain"]
    return f"{host}:{port}"


@pytest.fixture
def topic(name: Callable[[str], str]) -> str:
    """A Topic Name of one level, which may also be the name of a queue."""
    return name("t")


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end, on each loop; nothing may be left behind."""
    return functools.partial(run_on, request.param)
