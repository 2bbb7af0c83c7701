"""The cold verbs of exchanges: what is declared, bound, deleted, and what is refused in which words (RabbitMQ's)."""
from __future__ import annotations

import pickle
import weakref
from typing import Any

import pytest
from oracle.exchange import table

from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq.cluster.solo import solo
from fluxmq.engine.exchanges.manager import PREDECLARED, ExchangeManager, no_exchange
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.amqp import AmqpRefused, ReplyCode
from fluxmq.model.queues import QueueSpec


class Queue:
    def __init__(self, number: int, durable: bool = True) -> None:
        self.number = number
        self.durable = durable


def made(*vhosts: bytes) -> ExchangeManager:
    manager = ExchangeManager(Hub(None), seed=7, cluster=solo())
    for name in vhosts:
        manager.hub.namespaces.add(name)
        manager.add_vhost(name)
    return manager


def text_of(call: Any, *args: Any, **named: Any) -> str:
    with pytest.raises(AmqpRefused) as caught:
        call(*args, **named)
    refused = caught.value
    assert refused.text.startswith(ReplyCode(refused.reason).name + " - ")
    return f"{int(refused.reason)} {refused.reply_text}"


def queues_of(manager: ExchangeManager, exchange: bytes, key: bytes, headers: bytes = b"", vhost: bytes = b"/") -> Any:
    route = manager.vhosts[vhost].lookup(exchange, key, headers)
    assert route is not None
    return [queue.number for queue in route.queues]


# ---------------------------------------------------------------- virtual hosts


def test_every_virtual_host_has_its_exchanges() -> None:
    manager = made(b"v")
    for vhost in (b"/", b"v"):
        exchanges = manager.add_vhost(vhost).exchanges
        assert set(exchanges) == set(PREDECLARED) and all(one.durable for one in exchanges.values())
        assert [one.name for one in exchanges.values() if one.is_mqtt] == [b"amq.topic"]


def test_a_virtual_host_that_ends_keeps_no_queue() -> None:
    """Also while somebody still holds its exchanges: the routes that they remember go."""
    manager, queue = made(b"v"), Queue(1)
    exchanges, known = manager.vhosts[b"v"], weakref.ref(queue)
    manager.queue_added(b"v", b"q", queue)       # type: ignore[arg-type]
    assert queues_of(manager, b"", b"q", vhost=b"v") == [1]
    manager.queue_removed(b"v", b"q")
    manager.end_vhost(b"v")
    del queue
    assert known() is None and not exchanges.exchanges


def test_virtual_hosts_do_not_see_each_other() -> None:
    manager = made(b"v")
    manager.declare(b"/", b"x", b"fanout")
    manager.queue_added(b"/", b"q", Queue(1))
    manager.queue_added(b"v", b"q", Queue(2))
    assert manager.vhosts[b"v"].lookup(b"x", b"") is None
    assert queues_of(manager, b"", b"q") == [1] and queues_of(manager, b"", b"q", vhost=b"v") == [2]
    assert text_of(manager.bind, b"v", b"x", b"q") == "404 no exchange 'x' in vhost 'v'"


def test_queues_of_a_virtual_host_that_is_no_more_are_kept_from_the_others() -> None:
    manager = made()
    manager.hub.namespaces.add(b"old").open = False
    manager.queue_added(b"old", b"q", Queue(1))
    assert queues_of(manager, b"", b"q") == []


# ---------------------------------------------------------------- declare and delete


def test_a_second_declaration_must_say_the_same() -> None:
    manager = made()
    first = manager.declare(b"/", b"x", b"direct")
    assert manager.declare(b"/", b"x", b"direct", arguments=table([(b"other", "I", 1)])) is first
    assert manager.declare(b"/", b"x", b"nonsense", passive=True) is first
    named = "for exchange 'x' in vhost '/': received"

    def inequivalent(type_: bytes = b"direct", **named_: Any) -> str:
        return text_of(manager.declare, b"/", b"x", type_, **named_)

    assert inequivalent(b"fanout") == f"406 inequivalent arg 'type' {named} 'fanout' but current is 'direct'"
    for what in ("durable", "auto_delete", "internal"):
        assert inequivalent(**{what: True}) == f"406 inequivalent arg '{what}' {named} 'true' but current is 'false'"
    assert inequivalent(arguments=table([(b"alternate-exchange", "S", b"o")])) == (
        f"406 inequivalent arg 'alternate-exchange' {named} the value 'o' of type 'longstr' but current is none")
    manager.declare(b"/", b"y", arguments=table([(b"alternate-exchange", "S", b"p")]))
    assert text_of(manager.declare, b"/", b"y", arguments=table([(b"alternate-exchange", "S", b"o")])) == (
        "406 inequivalent arg 'alternate-exchange' for exchange 'y' in vhost '/': received 'o' but current is 'p'")
    assert text_of(manager.declare, b"/", b"y").endswith("received none but current is the value 'p' of type 'longstr'")


@pytest.mark.parametrize(("name", "type_", "named", "text"), [
    (b"", b"direct", {}, "403 operation not permitted on the default exchange"),
    (b"", b"direct", {"passive": True}, "403 operation not permitted on the default exchange"),
    (b"amq.new", b"direct", {}, "403 exchange name 'amq.new' contains reserved prefix 'amq.*'"),
    (b"amq.new", b"direct", {"passive": True}, "404 no exchange 'amq.new' in vhost '/'"),
    (b"amq.direct", b"fanout", {"durable": True},
     "406 inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'"),
    (b"x", b"nope", {}, "503 unknown exchange type 'nope'"),
    (b"x", b"direct", {"arguments": table([(b"alternate-exchange", "I", 5)])},
     "406 invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"),
])
def test_what_cannot_be_declared(name: bytes, type_: bytes, named: Any, text: str) -> None:
    assert text_of(made().declare, b"/", name, type_, **named) == text


def test_the_predeclared_ones_may_be_declared_as_they_are() -> None:
    manager = made()
    there = manager.vhosts[b"/"].exchanges[b"amq.direct"]
    assert manager.declare(b"/", b"amq.direct", b"direct", durable=True) is there


def test_deleting() -> None:
    manager = made()
    manager.queue_added(b"/", b"q", Queue(1))
    manager.delete(b"/", b"nowhere")
    assert text_of(manager.delete, b"/", b"") == "403 operation not permitted on the default exchange"
    for name in (b"amq.direct", b"amq.none"):
        assert text_of(manager.delete, b"/", name) == (
            f"403 deletion of system exchange '{name.decode()}' in vhost '/' not allowed")
    manager.declare(b"/", b"x", b"fanout")
    manager.declare(b"/", b"y", b"fanout")
    manager.bind(b"/", b"x", b"y", to_exchange=True)
    manager.bind(b"/", b"y", b"q")
    assert text_of(manager.delete, b"/", b"x", if_unused=True) == "406 exchange 'x' in vhost '/' in use"
    assert queues_of(manager, b"x", b"") == [1]
    manager.delete(b"/", b"y")
    assert queues_of(manager, b"x", b"") == []
    manager.delete(b"/", b"x", if_unused=True)
    assert manager.vhosts[b"/"].lookup(b"x", b"") is None
    manager.bind(b"/", b"amq.direct", b"q", b"k")
    assert queues_of(manager, b"amq.direct", b"k") == [1]


def test_being_a_destination_is_no_use() -> None:
    manager = made()
    manager.declare(b"/", b"x", b"fanout")
    manager.bind(b"/", b"amq.fanout", b"x", to_exchange=True)
    manager.delete(b"/", b"x", if_unused=True)
    assert not manager.vhosts[b"/"].exchanges[b"amq.fanout"].outbound


def test_line_ends_are_no_part_of_names() -> None:
    manager = made()
    manager.declare(b"/", b"a\r\nb", b"fanout")
    assert manager.declare(b"/", b"ab", passive=True).name == b"ab"


# ---------------------------------------------------------------- bindings


def test_the_same_binding_twice_is_one() -> None:
    manager = made()
    manager.queue_added(b"/", b"q", Queue(1))
    bind, unbind = manager.bind, manager.unbind
    one, other = table([(b"a", "I", 1), (b"b", "S", b"")]), table([(b"b", "S", b""), (b"a", "I", 1)])
    assert bind(b"/", b"amq.direct", b"q", b"k", one) and not bind(b"/", b"amq.direct", b"q", b"k", other)
    assert bind(b"/", b"amq.direct", b"q", b"k") and bind(b"/", b"amq.direct", b"q", b"k", table([(b"a", "l", 1)]))
    assert unbind(b"/", b"amq.direct", b"q", b"k") and not unbind(b"/", b"amq.direct", b"q", b"k")
    assert queues_of(manager, b"amq.direct", b"k") == [1]
    assert unbind(b"/", b"amq.direct", b"q", b"k", other) and unbind(b"/", b"amq.direct", b"q", b"k",
                                                                    table([(b"a", "l", 1)]))
    assert queues_of(manager, b"amq.direct", b"k") == []


def test_what_cannot_be_bound() -> None:
    manager = made()
    manager.queue_added(b"/", b"q", Queue(1))
    bind, unbind = manager.bind, manager.unbind
    assert text_of(bind, b"/", b"none", b"q") == "404 no exchange 'none' in vhost '/'"
    assert text_of(bind, b"/", b"none", b"gone") == "404 no exchange 'none' in vhost '/'"
    assert text_of(bind, b"/", b"amq.direct", b"gone") == "404 no queue 'gone' in vhost '/'"
    assert text_of(bind, b"/", b"amq.direct", b"gone", to_exchange=True) == "404 no exchange 'gone' in vhost '/'"
    for call in (bind, unbind):
        assert text_of(call, b"/", b"", b"q").startswith("403 operation not permitted on the default exchange")
        assert text_of(call, b"/", b"amq.direct", b"", to_exchange=True).startswith("403 ")
    assert not unbind(b"/", b"none", b"q") and not unbind(b"/", b"amq.direct", b"gone")
    assert text_of(bind, b"/", b"amq.headers", b"q", b"", table([(b"x-match", "S", b"foo")])) == (
        "406 Invalid x-match field value 'foo'; expected all, any, all-with-x, or any-with-x")
    assert text_of(bind, b"/", b"amq.match", b"q", b"", table([(b"x-match", "I", 5)])) == (
        "406 Invalid x-match field type signedint; expected longstr")
    with pytest.raises(ProtocolError) as caught:
        bind(b"/", b"amq.direct", b"q", b"", b"\x01a?")
    assert caught.value.reason == ReplyCode.SYNTAX_ERROR


def test_an_exchange_that_deletes_itself_goes_with_its_last_binding() -> None:
    manager = made()
    exchanges = manager.vhosts[b"/"].exchanges
    manager.queue_added(b"/", b"q", Queue(1))
    manager.declare(b"/", b"x", b"fanout", auto_delete=True)
    manager.unbind(b"/", b"x", b"q")
    assert b"x" in exchanges, "it never had one"
    manager.bind(b"/", b"x", b"q", b"1")
    manager.bind(b"/", b"x", b"q", b"2")
    manager.unbind(b"/", b"x", b"q", b"1")
    assert b"x" in exchanges
    manager.unbind(b"/", b"x", b"q", b"2")
    assert b"x" not in exchanges


def test_such_exchanges_go_one_after_the_other() -> None:
    manager = made()
    exchanges = manager.vhosts[b"/"].exchanges
    for name in (b"x", b"y", b"z"):
        manager.declare(b"/", name, b"fanout", auto_delete=True)
    manager.bind(b"/", b"x", b"y", to_exchange=True)
    manager.bind(b"/", b"y", b"z", to_exchange=True)
    manager.queue_added(b"/", b"q", Queue(1))
    manager.bind(b"/", b"z", b"q")
    manager.bind(b"/", b"z", b"x", to_exchange=True)     # around
    manager.queue_removed(b"/", b"q")
    assert b"z" in exchanges, "it is bound to x"
    manager.delete(b"/", b"x")
    assert set(exchanges) == set(PREDECLARED)


def test_a_route_of_an_internal_exchange_says_so() -> None:
    manager = made()
    manager.declare(b"/", b"x", b"fanout", internal=True)
    route = manager.vhosts[b"/"].lookup(b"x", b"")
    assert route is not None and route.internal


def test_a_refusal_can_be_pickled() -> None:
    refused = no_exchange(b"/", b"y")
    assert pickle.loads(pickle.dumps(refused)).text == refused.text == "NOT_FOUND - no exchange 'y' in vhost '/'"


def test_codes_close_what_they_must() -> None:
    assert {int(code) for code in ReplyCode if not code.closes_connection} == {200, 311, 312, 313, 403, 404, 405, 406}


# ---------------------------------------------------------------- queues of the engine


def test_queues_are_known_from_when_they_are_made_until_they_are_deleted() -> None:
    hub = Hub(None)
    queues, manager = QueueManager(hub, cluster=solo()), ExchangeManager(hub, cluster=solo())
    before = queues.declare(QueueSpec(name="before"))[0]
    ExchangeKeeper(manager, queues)
    after = queues.declare(QueueSpec(name="after"))[0]
    lookup = manager.vhosts[b"/"].lookup
    for name, queue in ((b"before", before), (b"after", after)):
        route = lookup(b"", name)
        assert route is not None and route.queues == [queue]
    manager.bind(b"/", b"amq.fanout", b"after")
    queues.delete((b"/", b"after"))
    for exchange, key in ((b"", b"after"), (b"amq.fanout", b"")):
        route = lookup(exchange, key)
        assert route is not None and not route.routed


def test_what_mqtt_clients_publish_reaches_queues_bound_to_amq_topic() -> None:
    hub = Hub(None)
    queues, manager = QueueManager(hub, cluster=solo()), ExchangeManager(hub, cluster=solo())
    ExchangeKeeper(manager, queues)
    namespace = hub.namespaces.add(b"v")
    for vhost in (b"/", b"v"):
        queues.declare(QueueSpec(name="q", namespace=vhost.decode()))
        manager.bind(vhost, b"amq.topic", b"q", b"a.#.z")
    queue, other = queues.queues[b"/", b"q"].queue, queues.queues[b"v", b"q"].queue
    for topic in (b"a/b/z", b"a/b", b"a.b.z"):
        hub.publish_message(topic, b"")
    assert (queue.depth, other.depth) == (1, 0)
    hub.publish_message(b"a/b/z", b"", namespace=namespace)
    assert (queue.depth, other.depth) == (1, 1)
    manager.unbind(b"/", b"amq.topic", b"q", b"a.#.z")
    hub.publish_message(b"a/z", b"")
    assert queue.depth == 1
    manager.bind(b"/", b"amq.topic", b"q", b"#")
    queues.delete((b"/", b"q"))
    hub.publish_message(b"a/z", b"")
