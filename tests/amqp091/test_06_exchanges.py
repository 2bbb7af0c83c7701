"""Exchanges and bindings, with every library: types, arguments, what binds what, and what goes when."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from amqp091.clients.base import AmqpError, Channel, Connection, refused

Name = Callable[[str], str]
Connect = Callable[..., Connection]


def exists(connection: Connection, exchange: str) -> bool:
    try:
        connection.channel().exchange_declare(exchange, passive=True)
    except AmqpError as error:
        assert error.code == 404, error
        return False
    return True


@pytest.mark.parametrize(("exchange", "kind"), [("amq.direct", "direct"), ("amq.fanout", "fanout"),
                                                ("amq.topic", "topic"),
                                                ("amq.headers", "headers"), ("amq.match", "headers")])
def test_those_that_are_there(connection: Connection, name: Name, exchange: str, kind: str) -> None:
    """Every virtual host has the amq.* exchanges; they cannot be deleted, and route as their type does."""
    channel = connection.channel()
    channel.exchange_declare(exchange, passive=True)
    queue = channel.queue_declare(exclusive=True).name
    channel.queue_bind(queue, exchange, name("k"), {"h": name("k")} if kind == "headers" else None)
    channel.publish(exchange, name("k"), b"x", {"headers": {"h": name("k")}})
    assert channel.get_all(queue) == [b"x"]
    refused(403, connection.channel().exchange_delete, exchange)


def test_the_default_exchange_is_not_touched(connection: Connection, name: Name) -> None:
    """Every queue is bound to it by its name, and by nothing else: who binds, unbinds or deletes there hears 403."""
    queue = connection.channel().queue_declare(exclusive=True).name
    refused(403, connection.channel().queue_bind, queue, "", "other")
    refused(403, connection.channel().queue_unbind, queue, "", queue)
    refused(403, connection.channel().exchange_delete, "")


MATCHES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [      # a binding's arguments, headers, whether they match
    ({"x-match": "all", "a": "1", "b": 2}, {"a": "1", "b": 2, "c": "more"}, True),
    ({"x-match": "all", "a": "1", "b": 2}, {"a": "1"}, False),
    ({"a": "1", "b": 2}, {"a": "1", "b": 3}, False),
    ({"a": "1", "b": 2}, {"a": "1", "b": 2}, True),
    ({"x-match": "any", "a": "1", "b": 2}, {"b": 2}, True),
    ({"x-match": "any", "a": "1", "b": 2}, {"a": "2", "b": 1}, False),
    ({"x-match": "any", "a": "1"}, {}, False),
    ({"x-match": "all"}, {"anything": "at all"}, True),
    ({"x-match": "any"}, {"anything": "at all"}, False),
    ({"x-match": "all", "x-private": "1"}, {}, True),
    ({"x-match": "all-with-x", "x-private": "1"}, {}, False),
    ({"x-match": "all-with-x", "x-private": "1"}, {"x-private": "1"}, True),
    ({"x-match": "any-with-x", "x-private": "1", "a": "1"}, {"x-private": "1"}, True),
    ({"x-match": "any", "x-private": "1", "a": "1"}, {"x-private": "1"}, False),
    ({"a": True}, {"a": True}, True),
    ({"a": "1"}, {"a": 1}, False),
]


def test_headers(channel: Channel, name: Name) -> None:
    """A headers exchange compares values: all of a binding's arguments or any of them; names that begin with x- only
    with the -with-x forms."""
    channel.exchange_declare(name("x"), "headers", auto_delete=True)
    for arguments, headers, wanted in MATCHES:
        queue = channel.queue_declare(exclusive=True).name
        channel.queue_bind(queue, name("x"), "", arguments)
        channel.publish(name("x"), "ignored", b"x", {"headers": headers})
        assert channel.get_all(queue) == ([b"x"] if wanted else []), (arguments, headers)


def test_headers_that_make_no_sense(connection: Connection, name: Name) -> None:
    """x-match is one of four words: 406 otherwise, when binding."""
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).name
    refused(406, channel.queue_bind, queue, "amq.headers", "", {"x-match": "some"})


def test_bindings_are_shared_by_all_connections(connect: Connect, name: Name) -> None:
    """What one connection binds, another's messages follow."""
    binder, publisher = connect().channel(), connect().channel(confirms=True)
    binder.exchange_declare(name("x"), "direct", auto_delete=True)
    queue = binder.queue_declare(exclusive=True).name
    binder.queue_bind(queue, name("x"), "k")
    publisher.publish(name("x"), "k", b"x")
    assert binder.get_all(queue) == [b"x"]


def test_bound_twice_delivered_once(channel: Channel, name: Name) -> None:
    """The same binding twice is one; several that match are one message in the queue."""
    channel.exchange_declare(name("x"), "topic", auto_delete=True)
    queue = channel.queue_declare(exclusive=True).name
    for key in ("a.*", "a.*", "#", "*.b"):
        channel.queue_bind(queue, name("x"), key)
    channel.publish(name("x"), "a.b", b"once")
    assert channel.get_all(queue) == [b"once"]
    channel.queue_unbind(queue, name("x"), "a.*")
    channel.queue_unbind(queue, name("x"), "#")
    channel.publish(name("x"), "a.c", b"not")
    channel.publish(name("x"), "c.b", b"still")
    assert channel.get_all(queue) == [b"still"]


def test_unbinding_needs_the_arguments_too(channel: Channel, name: Name) -> None:
    """A binding is key and arguments; unbinding what is not there is no error."""
    channel.exchange_declare(name("x"), "headers", auto_delete=True)
    queue = channel.queue_declare(exclusive=True).name
    channel.queue_bind(queue, name("x"), "", {"a": "1"})
    channel.queue_unbind(queue, name("x"), "", {"a": "2"})
    channel.publish(name("x"), "", b"x", {"headers": {"a": "1"}})
    assert channel.get_all(queue) == [b"x"]
    channel.queue_bind(queue, name("x"), "", {"b": "1"})
    channel.queue_unbind(queue, name("x"), "", {"a": "1"})
    channel.publish(name("x"), "", b"x", {"headers": {"a": "1"}})
    assert channel.get_all(queue) == []


def test_exchange_to_exchange(channel: Channel, name: Name) -> None:
    """An exchange bound to another takes part in its routing; exchanges in a ring deliver once."""
    channel.exchange_declare(name("a"), "topic")
    channel.exchange_declare(name("b"), "fanout")
    channel.exchange_bind(name("b"), name("a"), "x.#")
    channel.exchange_bind(name("a"), name("b"))
    queue = channel.queue_declare(exclusive=True).name
    channel.queue_bind(queue, name("b"))
    channel.publish(name("a"), "x.y", b"through both")
    channel.publish(name("a"), "y.x", b"nowhere")
    message = channel.get(queue)
    assert message is not None and (message.body, message.exchange, message.key) == (b"through both", name("a"), "x.y")
    channel.exchange_unbind(name("b"), name("a"), "x.#")
    channel.publish(name("a"), "x.y", b"no longer")
    assert channel.get(queue) is None
    channel.exchange_delete(name("a"))
    channel.exchange_delete(name("b"))


def test_alternate_exchange(connection: Connection, name: Name) -> None:
    """`alternate-exchange` takes what no queue would have had; for `mandatory` that counts as arrived."""
    channel = connection.channel(confirms=True)
    channel.exchange_declare(name("rest"), "fanout", auto_delete=True)
    queues = [channel.queue_declare(exclusive=True).name for _ in range(2)]
    channel.queue_bind(queues[0], name("rest"))
    channel.exchange_declare(name("x"), "direct", auto_delete=True, arguments={"alternate-exchange": name("rest")})
    channel.queue_bind(queues[1], name("x"), "k")
    channel.publish(name("x"), "k", b"wanted", mandatory=True)
    channel.publish(name("x"), "other", b"the rest", mandatory=True)
    assert (channel.get_all(queues[1]), channel.get_all(queues[0])) == ([b"wanted"], [b"the rest"])
    assert not channel.was_returned()


@pytest.mark.parametrize(("first", "second", "word"), [
    ({"type_": "direct"}, {"type_": "fanout"}, "type"),
    ({"durable": True}, {"durable": False}, "durable"),
    ({"auto_delete": True}, {"auto_delete": False}, "auto_delete"),
    ({}, {"arguments": {"alternate-exchange": "amq.fanout"}}, "alternate-exchange"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_declaring_again_otherwise(connection: Connection, name: Name, first: dict[str, Any], second: dict[str, Any],
                                   word: str) -> None:
    """406, with what is not the same in the text."""
    channel = connection.channel()
    channel.exchange_declare(name("x"), **first)
    channel.exchange_declare(name("x"), **first)
    text = refused(406, channel.exchange_declare, name("x"), **second)
    assert f"inequivalent arg '{word}' for exchange '{name('x')}' in vhost '/'" in text
    connection.channel().exchange_delete(name("x"))


def test_passive_declare(connection: Connection, name: Name) -> None:
    """404 when it is not there; the type is not looked at."""
    assert f"no exchange '{name('x')}' in vhost '/'" in refused(404, connection.channel().exchange_declare, name("x"),
                                                                passive=True)
    channel = connection.channel()
    channel.exchange_declare(name("x"), "fanout", auto_delete=True)
    channel.exchange_declare(name("x"), "direct", passive=True)
    channel.exchange_delete(name("x"))


def test_what_is_not_there(connection: Connection, name: Name) -> None:
    """Binding to or from what is not there is 404; deleting or unbinding it is no error."""
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).name
    channel.exchange_delete(name("missing"))
    channel.queue_unbind(queue, name("missing"), "k")
    channel.queue_unbind(name("missing"), "amq.direct", "k")
    refused(404, connection.channel().queue_bind, queue, name("missing"), "k")
    refused(404, connection.channel().queue_bind, name("missing"), "amq.direct", "k")
    refused(404, connection.channel().exchange_bind, "amq.direct", name("missing"), "k")
    refused(404, connection.channel().exchange_bind, name("missing"), "amq.direct", "k")


def test_delete_if_unused(connection: Connection, name: Name) -> None:
    """if-unused: 406 while something is bound."""
    channel = connection.channel()
    channel.exchange_declare(name("x"), "fanout")
    queue = channel.queue_declare(exclusive=True).name
    channel.queue_bind(queue, name("x"))
    assert "in use" in refused(406, connection.channel().exchange_delete, name("x"), if_unused=True)
    channel.queue_unbind(queue, name("x"))
    channel.exchange_delete(name("x"), if_unused=True)
    assert not exists(connection, name("x"))


def test_auto_delete(connection: Connection, name: Name) -> None:
    """An auto-delete exchange goes with its last binding, also when that goes because its queue does."""
    channel = connection.channel()
    channel.exchange_declare(name("x"), "fanout", auto_delete=True)
    queues = [channel.queue_declare(exclusive=True).name for _ in range(2)]
    assert exists(connection, name("x"))
    for queue in queues:
        channel.queue_bind(queue, name("x"))
    channel.queue_unbind(queues[0], name("x"))
    assert exists(connection, name("x"))
    channel.queue_delete(queues[1])
    assert not exists(connection, name("x"))


def test_deleting_a_queue_ends_its_bindings(connection: Connection, name: Name) -> None:
    """A new queue of the same name is bound to nothing."""
    channel = connection.channel()
    channel.exchange_declare(name("x"), "fanout")
    for _ in range(2):
        channel.queue_declare(name("q"), exclusive=True)
        channel.publish(name("x"), "", b"not bound")
        assert channel.get_all(name("q")) == []
        channel.queue_bind(name("q"), name("x"))
        channel.queue_delete(name("q"))
    channel.exchange_delete(name("x"))
