"""Exchanges of one virtual host: routes, the cache of them, and what many bindings cost."""
from __future__ import annotations

import gc
import weakref

import pytest
from oracle.exchange import table

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.exchange.exchange import Exchanges, Route
from fluxmq._core.exchange.headers import read_headers, sorted_table


def found(exchanges: Exchanges, name: bytes, key: bytes = b"", headers: bytes = b"") -> Route:
    route = exchanges.lookup(name, key, headers)
    assert route is not None
    return route


class Queue:
    pass


def test_a_route_is_the_same_until_something_changes() -> None:
    exchanges = Exchanges(64, 1)
    x = exchanges.declare(b"x", b"direct")
    q = exchanges.add_queue(b"q", "q")
    first, generation = found(exchanges, b"x", b"k"), exchanges.generation
    assert found(exchanges, b"x", b"k") is first and exchanges.hits == 1
    assert exchanges.generation == generation
    exchanges.bind(x, q, b"k")
    assert exchanges.generation > generation
    second = found(exchanges, b"x", b"k")
    assert second is not first and second.queues == ["q"] and first.queues == []


@pytest.mark.parametrize("change", ["bind", "unbind", "declare", "delete", "add_queue", "remove_queue", "drop"])
def test_every_change_is_a_new_generation(change: str) -> None:
    exchanges = Exchanges(64, 1)
    x, y = exchanges.declare(b"x", b"fanout"), exchanges.declare(b"y", b"fanout")
    q, r = exchanges.add_queue(b"q", "q"), exchanges.add_queue(b"r", "r")
    binding = exchanges.bind(x, q, b"")
    assert binding is not None
    found(exchanges, b"x")
    before = exchanges.generation
    {"bind": lambda: exchanges.bind(x, r, b""), "unbind": lambda: exchanges.unbind(x, q, b""),
     "declare": lambda: exchanges.declare(b"z", b"topic"), "delete": lambda: exchanges.delete(y.name),
     "add_queue": lambda: exchanges.add_queue(b"s", "s"), "remove_queue": lambda: exchanges.remove_queue(b"q"),
     "drop": lambda: exchanges.drop(binding)}[change]()
    assert exchanges.generation > before
    expected = {"bind": ["q", "r"], "unbind": [], "remove_queue": [], "drop": []}.get(change, ["q"])
    assert found(exchanges, b"x").queues == expected


def test_what_changes_nothing_is_no_new_generation() -> None:
    exchanges = Exchanges(64, 1)
    x, q = exchanges.declare(b"x", b"fanout"), exchanges.add_queue(b"q", "q")
    exchanges.bind(x, q, b"")
    before = exchanges.generation
    assert exchanges.bind(x, q, b"") is None and exchanges.unbind(x, q, b"other") is None
    assert exchanges.lookup(b"nobody", b"") is None
    assert exchanges.generation == before


def test_an_exchange_that_comes_is_found_though_it_was_not_there() -> None:
    exchanges = Exchanges(64, 1)
    assert exchanges.lookup(b"x", b"k") is None
    exchanges.declare(b"x", b"fanout")
    assert not found(exchanges, b"x", b"k").routed
    exchanges.delete(b"x")
    assert exchanges.lookup(b"x", b"k") is None


def test_names_and_keys_are_not_mixed_up() -> None:
    exchanges = Exchanges(16, 3)
    for name in (b"a", b"ab", b""):
        exchanges.declare(name, b"direct")
    for name, key in ((b"a", b"bc"), (b"ab", b"c")):
        exchanges.bind(exchanges.exchanges[name], exchanges.add_queue(name + b"-q", name), key)
    for _ in range(2):
        assert found(exchanges, b"a", b"bc").queues == [b"a"] and found(exchanges, b"ab", b"c").queues == [b"ab"]
        assert found(exchanges, b"", b"a-q").queues == [b"a"] and found(exchanges, b"ab", b"bc").queues == []


def test_a_flood_of_keys_keeps_the_cache_at_its_size() -> None:
    exchanges = Exchanges(64, 1)
    exchanges.bind(exchanges.declare(b"x", b"topic"), exchanges.add_queue(b"q", "q"), b"#")
    assert all(found(exchanges, b"x", b"%d" % i).routed for i in range(1000))
    assert exchanges.misses == 1000
    hits = exchanges.hits
    for i in range(1000):
        found(exchanges, b"x", b"%d" % i)
    assert exchanges.hits - hits <= 64


def test_headers_decide_anew_for_every_message() -> None:
    exchanges = Exchanges(64, 1)
    x, h = exchanges.declare(b"x", b"fanout"), exchanges.declare(b"h", b"headers")
    q, r = exchanges.add_queue(b"q", "q"), exchanges.add_queue(b"r", "r")
    exchanges.bind(x, h, b"")
    exchanges.bind(x, q, b"")
    exchanges.bind(h, r, b"", sorted_table(table([(b"a", "I", 1)])))
    assert found(exchanges, b"x", b"", table([(b"a", "b", 1)])).queues == ["q", "r"]
    assert found(exchanges, b"x", b"", table([(b"a", "b", 2)])).queues == ["q"]
    assert found(exchanges, b"x").by_headers and exchanges.hits == 0
    exchanges.unbind(x, h, b"")
    assert not found(exchanges, b"x").by_headers


def test_a_message_under_several_keys() -> None:
    exchanges = Exchanges(64, 1)
    exchanges.declare(b"", b"direct")
    x = exchanges.declare(b"x", b"topic", alternate=b"y")
    exchanges.bind(exchanges.declare(b"y", b"fanout"), exchanges.add_queue(b"y", "y"), b"")
    for name in (b"a", b"b", b"c"):
        exchanges.bind(x, exchanges.add_queue(name, name.decode()), name + b".#")

    def copied(name: bytes, *keys: bytes) -> list[str]:
        route = exchanges.lookup_keys(name, list(keys))
        assert route is not None and route.by_headers
        return route.queues

    assert copied(b"x", b"c", b"a.1", b"b.x", b"b.y") == ["a", "b", "c"]
    assert copied(b"", b"y", b"a", b"nobody") == ["y", "a"]
    assert copied(b"x", b"none", b"a") == ["a"], "an alternate is for what leads nowhere under any key"
    assert copied(b"x", b"none", b"other") == ["y"]
    assert found(exchanges, b"x", b"a").queues == ["a"] and exchanges.lookup_keys(b"z", [b""]) is None


def test_queues_that_are_gone_are_let_go_of() -> None:
    exchanges = Exchanges(4096, 1)
    exchanges.declare(b"", b"direct")
    queues = []
    for i in range(2500):
        queue = Queue()
        queues.append(weakref.ref(queue))
        exchanges.add_queue(b"q%d" % i, queue)
        assert found(exchanges, b"", b"q%d" % i).routed
        exchanges.remove_queue(b"q%d" % i)
        del queue
    assert sum(queue() is not None for queue in queues) <= 1024


def test_all_of_it_goes_when_nobody_has_it_any_more() -> None:
    exchanges = Exchanges(64, 1)
    queue = Queue()
    gone = weakref.ref(queue)
    x, y = exchanges.declare(b"x", b"topic"), exchanges.declare(b"y", b"headers")
    end = exchanges.add_queue(b"q", queue)
    exchanges.bind(x, y, b"#")
    exchanges.bind(y, x, b"", sorted_table(table([(b"x-match", "S", b"any"), (b"a", "V", None), (b"b", "V", None)])))
    exchanges.bind(x, end, b"a.*")
    del exchanges, x, y, end, queue
    gc.collect()
    assert gone() is None


def test_an_exchange_bound_to_itself_is_deleted_once() -> None:
    exchanges = Exchanges(64, 1)
    x = exchanges.declare(b"x", b"fanout")
    exchanges.bind(x, x, b"")
    assert not found(exchanges, b"x").routed
    assert len(exchanges.delete(b"x")) == 1 and not x.inbound and not x.outbound


def test_alternates() -> None:
    exchanges = Exchanges(64, 1)
    exchanges.declare(b"", b"direct")
    x = exchanges.declare(b"x", b"direct", alternate=b"y")
    y = exchanges.declare(b"y", b"direct", alternate=b"x")
    exchanges.declare(b"z", b"direct", alternate=b"")
    q, r = exchanges.add_queue(b"q", "q"), exchanges.add_queue(b"r", "r")
    exchanges.bind(x, q, b"k")
    exchanges.bind(y, r, b"l")
    assert found(exchanges, b"x", b"k").queues == ["q"]
    assert found(exchanges, b"x", b"l").queues == ["r"]
    assert not found(exchanges, b"x", b"nobody's").routed, "each is visited once"
    # A way to an exchange that leads nowhere is a way all the same.
    exchanges.bind(x, exchanges.declare(b"w", b"direct"), b"l")
    assert not found(exchanges, b"x", b"l").routed
    assert not found(exchanges, b"z", b"q").routed, "the default exchange is nobody's alternate"


def test_who_is_told_that_mqtt_topics_were_met() -> None:
    exchanges = Exchanges(64, 1)
    x = exchanges.declare(b"x", b"fanout")
    topic = exchanges.declare(b"amq.topic", b"topic", mqtt=True)
    assert exchanges.mqtt is topic and found(exchanges, b"amq.topic").mqtt and not found(exchanges, b"x").mqtt
    exchanges.bind(x, topic, b"")
    route = found(exchanges, b"x", b"a.b")
    assert route.mqtt and not route.routed
    exchanges.delete(b"amq.topic")
    assert exchanges.mqtt is None


def test_keys_of_any_length() -> None:
    exchanges = Exchanges(64, 1)
    x, y = exchanges.declare(b"x", b"direct"), exchanges.declare(b"y", b"topic")
    q = exchanges.add_queue(b"q", "q")
    long = b"k" * 65535
    for exchange in (x, y):
        exchanges.bind(exchange, q, long)
        assert found(exchanges, exchange.name, long).routed
        assert not found(exchanges, exchange.name, long[:-1]).routed
        assert not found(exchanges, exchange.name, long + b"k").routed
        with pytest.raises(UsageError):
            exchanges.bind(exchange, q, long + b"k")


@pytest.mark.parametrize("many", [b"#.a.#.a.#.a.#.b", b"*.#.*.#.*.#.b", b"#.#.#.#.#.#.b"])
def test_no_pattern_takes_long(many: bytes) -> None:
    """One that tries every division of 120 words into so many parts would never end."""
    exchanges = Exchanges(64, 1)
    x = exchanges.declare(b"x", b"topic")
    exchanges.bind(x, exchanges.add_queue(b"q", "q"), b".".join([many] * 3))
    assert not found(exchanges, b"x", b".".join([b"a"] * 120)).routed
    assert found(exchanges, b"x", b".".join(([b"a"] * 30 + [b"b"]) * 3)).routed


def test_100_000_bindings_come_and_go() -> None:
    exchanges = Exchanges(1024, 5)
    x = exchanges.declare(b"x", b"topic")
    d, f = exchanges.declare(b"d", b"direct"), exchanges.declare(b"f", b"fanout")
    ends = [exchanges.add_queue(b"%d" % i, i) for i in range(1000)]
    for i in range(100_000):
        exchanges.bind(x, ends[i % 1000], b"a%d.%s.c" % (i % 1000, b"*" if i < 1000 else b"b%d" % (i // 1000)))
        exchanges.bind(d, ends[i % 1000], b"k%d" % (i % 5))
        exchanges.bind(f, ends[i % 1000], b"%d" % i)
    for i in range(0, 1000, 37):
        assert found(exchanges, b"x", b"a%d.b7.c" % i).queues == [i]
        assert found(exchanges, b"x", b"a%d.new.c" % i).queues == [i]
    assert found(exchanges, b"d", b"k3").queues == list(range(3, 1000, 5))
    assert found(exchanges, b"f", b"").queues == list(range(1000))
    for i in range(1000):
        assert len(exchanges.remove_queue(b"%d" % i)) == 100 + 1 + 100
    assert not x.outbound and not d.outbound and not f.outbound
    for name in (b"x", b"d", b"f"):
        assert not found(exchanges, name, b"k3").routed


def test_tables_are_sorted_for_comparison() -> None:
    one = table([(b"b", "S", b"1"), (b"a", "F", [(b"z", "I", 1), (b"y", "V", None)]), (b"", "t", True)])
    assert read_headers(one) == [(b"", "t", b"\x01"), (b"a", "F", b"\0\0\0\x0a\x01zI\0\0\0\x01\x01yV"),
                                 (b"b", "S", b"\0\0\0\x011")]
    assert sorted_table(sorted_table(one)) == sorted_table(one) != one
    ends = [0, 8, 25, len(one)]     # of its fields
    for cut in range(len(one) + 1):
        if cut in ends:
            assert len(read_headers(one[:cut])) == ends.index(cut)
        else:
            with pytest.raises(ProtocolError) as caught:
                read_headers(one[:cut])
            assert caught.value.reason == 502
    with pytest.raises(ProtocolError):
        read_headers(b"\x01a?")


def test_one_of_many_bindings_with_headers_is_found_by_its_rarest_field() -> None:
    exchanges = Exchanges(64, 1)
    x = exchanges.declare(b"x", b"headers")
    for i in range(5000):
        exchanges.bind(x, exchanges.add_queue(b"%d" % i, i), b"",
                       sorted_table(table([(b"kind", "S", b"order"), (b"id", "I", i)])))
    headers = table([(b"id", "l", 4711), (b"kind", "S", b"order"), (b"more", "V", None)])
    assert found(exchanges, b"x", b"", headers).queues == [4711]
