"""Exchanges in a real store: what a start finds in the journal, in the view, and in both."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.stored_node import StoredNode
from oracle.exchange import table

from fluxmq._core.errors import CorruptError
from fluxmq.cluster.solo import solo
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.store import RocksStore

ALTERNATE = table([(b"alternate-exchange", "S", b"other")])


class Node(StoredNode):
    def __init__(self, directory: Path, vhosts: tuple[bytes, ...]) -> None:
        super().__init__(directory)
        for name in vhosts:
            self.hub.namespaces.add(name)
            self.exchanges.add_vhost(name)

    def before(self) -> None:
        self.exchanges = ExchangeManager(self.hub, cluster=solo())
        self.keeper.exchanges = ExchangeKeeper(self.exchanges, self.manager)

    def fail(self, error: Exception) -> None:
        raise error

    def route(self, vhost: bytes, exchange: bytes, key: bytes) -> list[bytes]:
        route = self.exchanges.vhosts[vhost].lookup(exchange, key)
        assert route is not None
        return [queue.name for queue in route.queues]


@contextmanager
def node(directory: Path, *vhosts: bytes) -> Iterator[Node]:
    it = Node(directory, vhosts)
    try:
        yield it
    finally:
        it.close()


def declare(it: Node) -> None:
    for vhost in ("/", "v"):
        it.manager.declare(QueueSpec(name="q", namespace=vhost))
    it.manager.declare(QueueSpec(name="e", type="ephemeral"))
    for vhost in (b"/", b"v"):
        it.exchanges.declare(vhost, b"x", b"topic", durable=True, internal=True, arguments=ALTERNATE)
        it.exchanges.declare(vhost, b"t", b"topic")
        it.exchanges.bind(vhost, b"x", b"q", b"a.#")
        it.exchanges.bind(vhost, b"t", b"q", b"#")
        it.exchanges.bind(vhost, b"amq.fanout", b"x", to_exchange=True)
    it.exchanges.bind(b"/", b"x", b"e", b"#")


def check(it: Node) -> None:
    assert (it.found["exchanges"], it.found["bindings"]) == (4, 4)
    for vhost in (b"/", b"v"):
        assert it.route(vhost, b"amq.fanout", b"a.b") == [b"q"]
        assert it.route(vhost, b"amq.fanout", b"b") == []
        assert it.exchanges.vhosts[vhost].lookup(b"t", b"") is None
        x = it.exchanges.vhosts[vhost].exchanges[b"x"]
        assert (x.durable, x.internal, x.auto_delete, x.alternate) == (True, True, False, b"other")
        assert it.exchanges.declare(vhost, b"x", b"topic", durable=True, internal=True, arguments=ALTERNATE) is x


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_is_durable_is_there_again(tmp_path: Path, checkpoint: bool) -> None:
    with node(tmp_path, b"v") as it:
        declare(it)
        if checkpoint:
            it.checkpoint()
    for _ in range(2):
        with node(tmp_path, b"v") as it:
            check(it)
            assert ((b"/", b"e") in it.manager.queues) is False
            if checkpoint:
                it.checkpoint()


def test_what_is_gone_stays_away(tmp_path: Path) -> None:
    with node(tmp_path, b"v") as it:
        declare(it)
        it.checkpoint()
        it.exchanges.unbind(b"v", b"x", b"q", b"a.#")
        it.manager.delete((b"/", b"q"))
        it.exchanges.delete(b"v", b"x")
    for _ in range(2):
        with node(tmp_path, b"v") as it:
            assert (it.found["exchanges"], it.found["bindings"]) == (3, 1)     # amq.fanout twice, x in "/"
            it.manager.declare(QueueSpec(name="q"))
            assert it.route(b"/", b"amq.fanout", b"a.b") == []
            it.manager.delete((b"/", b"q"))
            it.checkpoint()
    keys = [key[:1] for key, _ in stored(tmp_path)]
    assert (keys.count(b"e"), keys.count(b"b")) == (3, 1)


def stored(directory: Path) -> list[tuple[bytes, bytes]]:
    store = RocksStore(directory, identity=2)
    store.start()
    try:
        return list(store.load())
    finally:
        store.close()


def test_a_virtual_host_that_is_not_configured_any_more_keeps_what_it_has(tmp_path: Path) -> None:
    with node(tmp_path, b"v") as it:
        declare(it)
        it.checkpoint()
    with node(tmp_path) as it:
        assert not it.hub.namespaces[b"v"].open
        it.checkpoint()
    with node(tmp_path, b"v") as it:
        check(it)


def test_a_start_without_anything_finds_nothing_and_writes_nothing(tmp_path: Path) -> None:
    with node(tmp_path) as it:
        assert it.found == {} and it.hub.ledger.records == 0
        it.manager.declare(QueueSpec(name="e", type="ephemeral"))
        it.exchanges.declare(b"/", b"t", b"fanout")
        it.exchanges.bind(b"/", b"t", b"e")
        it.exchanges.bind(b"/", b"amq.direct", b"e")
        it.exchanges.delete(b"/", b"t")
        assert it.hub.ledger.records == 0
        with pytest.raises(CorruptError):
            it.keeper.exchanges.replay(36, 1, b"")  # type: ignore[union-attr]


def test_20_000_bindings(tmp_path: Path) -> None:
    with node(tmp_path) as it:
        it.manager.declare(QueueSpec(name="q"))
        for i in range(20_000):
            it.exchanges.bind(b"/", b"amq.topic", b"q", b"a.%d" % i)
    for checkpoint in (True, False):
        with node(tmp_path) as it:
            assert it.found["bindings"] == 20_000 and it.route(b"/", b"amq.topic", b"a.4711") == [b"q"]
            if checkpoint:
                it.checkpoint()
