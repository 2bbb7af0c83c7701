"""etcd as the tests of its client need it: one member for all of them, three for those that break something."""
from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from kit.etcd import EtcdServers
from kit.loops import LOOPS, run_on

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end, on each loop; nothing may be left behind."""
    return functools.partial(run_on, request.param)


@pytest.fixture(scope="session")
def one_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    servers = EtcdServers(tmp_path_factory.mktemp("etcd"))
    yield servers
    servers.end()


@pytest.fixture(scope="module")
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    servers = EtcdServers(tmp_path_factory.mktemp("etcd"), 3)
    yield servers
    servers.end()


@pytest.fixture
def key(name: Callable[[str], str]) -> bytes:
    """A prefix of keys that no other test uses."""
    return f"/{name('key')}/".encode()
