"""What operators see of exchanges and bindings (engine/exchanges/listing.py, admin/exchanges.py)."""
from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fluxmq._core.amqp091.fields import encode_table
from fluxmq._core.hub.hub import Hub
from fluxmq.admin.exchanges import list_bindings, list_exchanges
from fluxmq.cluster.solo import solo
from fluxmq.engine.exchanges.listing import ExchangeListing
from fluxmq.engine.exchanges.manager import PREDECLARED, ExchangeManager
from fluxmq.engine.ports.queues import QueueRefused


class Queue:
    number, durable = 1, True


@pytest.fixture
def manager() -> ExchangeManager:
    manager = ExchangeManager(Hub(None), cluster=solo())
    manager.declare(b"/", b"jobs", b"topic", durable=True)
    manager.declare(b"/", b"all", b"headers", auto_delete=True,
                    arguments=encode_table({"alternate-exchange": "jobs", "\udcff": b"\xff"}))
    for name in (b"q", b"r"):
        manager.queue_added(b"/", name, Queue())
    manager.bind(b"/", b"jobs", b"q", b"a.#")
    manager.bind(b"/", b"jobs", b"r", b"\xffb")
    manager.bind(b"/", b"all", b"jobs", b"", encode_table({"x-match": "any", "n": 5}), to_exchange=True)
    return manager


def bindings(manager: ExchangeManager, **query: Any) -> tuple[list[tuple[str, ...]], int | None]:
    answer = json.loads(asyncio.run(list_bindings(ExchangeListing(manager), {
        word: str(value) for word, value in query.items()})).body)
    return [(one["source"], one["to"], one["destination"], one["routing_key"]) for one in answer["bindings"]], \
        answer["next"]


def test_exchanges(manager: ExchangeManager) -> None:
    answer = json.loads(asyncio.run(list_exchanges(ExchangeListing(manager), {})).body)
    found = {one["name"]: one for one in answer["exchanges"]}
    assert set(found) == {"jobs", "all", *(name.decode() for name in PREDECLARED if name)}
    assert found["jobs"] == {"name": "jobs", "namespace": "/", "type": "topic", "durable": True, "auto_delete": False,
                             "internal": False, "arguments": {}, "bindings": 2}
    assert found["all"]["arguments"] == {"alternate-exchange": "jobs", "\ufffd": "\ufffd"}
    assert found["all"]["auto_delete"] and not found["all"]["durable"] and found["amq.topic"]["bindings"] == 0
    with pytest.raises(QueueRefused, match="no exchange of namespace shop has been used"):
        asyncio.run(list_exchanges(ExchangeListing(manager), {"namespace": "shop"}))


def test_bindings_of_all_of_an_exchange_and_of_a_queue(manager: ExchangeManager) -> None:
    everything = [("all", "exchange", "jobs", ""), ("jobs", "queue", "q", "a.#"), ("jobs", "queue", "r", "\ufffdb")]
    assert bindings(manager) == (everything, None) == bindings(manager, namespace="/")
    assert bindings(manager, exchange="jobs") == ([*everything[1:], everything[0]], None)
    assert bindings(manager, exchange="all") == (everything[:1], None)
    assert bindings(manager, queue="q") == (everything[1:2], None)
    assert bindings(manager, queue="q", exchange="all") == ([], None)
    assert bindings(manager, exchange="amq.fanout") == ([], None)
    for query, said in (({"queue": "s"}, "there is no queue s"), ({"exchange": "s"}, "there is no exchange s"),
                        ({"namespace": "shop"}, "no exchange of namespace shop"), ({"from": -1}, "from is a number"),
                        ({"count": 0}, "count one from 1 to"), ({"count": "x"}, "count one from 1 to")):
        with pytest.raises(QueueRefused, match=said):
            bindings(manager, **query)


def test_pages(manager: ExchangeManager) -> None:
    for number in range(7):
        manager.bind(b"/", b"amq.direct", b"q", b"%d" % number)
    whole, following = bindings(manager)
    assert len(whole) == 10 and following is None
    found: list[tuple[str, ...]] = []
    start: int | None = 0
    while start is not None:
        page, start = bindings(manager, count=3, **{"from": start})
        found += page
    assert found == whole
    assert bindings(manager, count=10) == (whole, None) and bindings(manager, **{"from": 10}) == ([], None)
