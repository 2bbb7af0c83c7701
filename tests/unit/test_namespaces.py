"""Namespaces without a broker: how they are written, what a rule of the access list means in one, slices of time."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.test_connection import CONNECT, Bench

from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.net.connection import Connection
from fluxmq.access.acl_file import parse_acl
from fluxmq.app.config import InvalidConfig, load
from fluxmq.model.entries import SpecError
from fluxmq.model.namespaces import NamespaceSpec, read_namespaces, write_namespace

# ---------------------------------------------------------------- as written


def test_written_and_read_back() -> None:
    found = read_namespaces(["/", "shop", {"name": "plant", "limits": {"bytes": "1GiB", "messages_per_second": 7}}])
    assert [spec.name for spec in found] == ["/", "shop", "plant"]
    assert (found[2].limits.bytes, found[2].limits.messages_per_second, found[2].limits.queues) == (1 << 30, 7, 0)
    assert read_namespaces([write_namespace(spec) for spec in found]) == found == read_namespaces(found)


@pytest.mark.parametrize(("entries", "path", "part"), [
    (["a:b"], "[0].name", "may not contain ':'"), (["a", ""], "[1].name", "is empty"),
    (["a", "a"], "[1].name", "twice"),
    (["x" * 256], "[0].name", "longer than 255 bytes"), (["ä" * 128], "[0].name", "longer than 255 bytes"),
    (["a\0"], "[0].name", "cannot be printed"), ([" a"], "[0].name", "space"), (["a/#"], "[0].name", "'#'"),
    ([{}], "[0].name", "every namespace has a name"), ([7], "[0]", "a section is expected"),
    ([{"name": "a", "limit": {}}], "[0].limit", "did you mean limits?"),
    ([{"name": "a", "limits": {"queues": -1}}], "[0].limits.queues", "from 0"),
    ([{"name": "a", "limits": {"bytes": "much"}}], "[0].limits.bytes", "a size")])
def test_what_is_wrong_is_named(entries: list[object], path: str, part: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_namespaces(entries)
    assert refused.value.path == path and part in refused.value.text


@pytest.mark.parametrize(("sets", "path"), [
    (["queues=[{name: q, namespace: nowhere}]"], "queues[0].namespace"),
    (["server.mqtt.tcp.plain.namespace=nowhere"], "server.mqtt.tcp.plain.namespace"),
    (["namespaces=[{name: shop, limits: 3}]"], "namespaces[0].limits"), (["namespaces=shop"], "namespaces")])
def test_what_names_no_namespace_is_refused(sets: list[str], path: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load(sets=sets)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_names_of_the_configuration() -> None:
    config, _ = load(sets=["namespaces=[shop, plant]", "amqp091.virtual_hosts=[shop, old]",
                           "queues=[{name: q, namespace: old}, {name: q}, {name: q, namespace: shop}]"])
    assert config.namespace_names() == ("/", "shop", "plant", "old")
    assert NamespaceSpec(name="shop") in config.namespaces


# ---------------------------------------------------------------- access lists

ACL = parse_acl("""
version: 1
rules:
  - {deny: publish, topics: ["$vhost/old/$exchange/amq.topic/secret/#"]}
  - {allow: all, user: a, namespace: [shop, my/shop], topics: ["t/#", "%u"]}
  - {allow: all, user: star, namespace: "*", topics: ["#"]}
  - {deny: all, user: eve, namespace: shop, topics: ["#"]}
  - {allow: subscribe, user: eve, namespace: "*", topics: ["e"]}
  - {allow: all, user: b, topics: ["$vhost/shop/t/#", "$vhost/old/#", "x"]}
  - {allow: all, user: [a, star], topics: ["#"]}
""")


@pytest.mark.parametrize(("user", "namespace", "allowed", "denied"), [
    ("a", "shop", ["t/1", "a", "t"], ["x", "b", "$queue/q"]), ("a", "my/shop", ["t/1"], ["x"]),
    ("a", "/", ["t/1", "x"], ["$queue/q", "$vhost/shop/x"]), ("a", "plant", [], ["t/1", "x"]),
    ("star", "shop", ["x"], ["$queue/q"]), ("star", "plant", ["x"], []), ("star", "/", ["x"], []),
    ("b", "shop", ["t/1", "t"], ["x"]), ("b", "/", ["x", "$vhost/shop/t/1"], ["t/1"]),
    ("b", "old", ["x", "$queue/q", "$exchange/e/k", "secrets"], ["secret/1", "secret"])])
def test_rules_in_a_namespace(user: str, namespace: str, allowed: list[str], denied: list[str]) -> None:
    for topic in allowed:
        assert ACL.may_publish(user, "c", topic, namespace), topic
        assert ACL.may_subscribe(user, "c", topic, namespace) and ACL.may_subscribe(
            user, "c", f"$share/g/{topic}", namespace), topic
    for topic in denied:
        assert not ACL.may_publish(user, "c", topic, namespace), topic


@pytest.mark.parametrize(("user", "entered", "kept_out"), [
    ("a", ["shop", "my/shop"], ["plant", "old", "my"]), ("star", ["shop", "plant", "any/thing"], []),
    ("eve", ["plant"], ["shop"]), ("b", ["old"], ["shop", "plant"]), (None, [], ["shop", "old"])])
def test_who_may_enter(user: str | None, entered: list[str], kept_out: list[str]) -> None:
    for name in entered + kept_out:
        may = (ACL.may_publish(user, "c", f"$vhost/{name}"), ACL.may_subscribe(user, "c", f"$vhost/{name}"))
        assert any(may) is (name in entered), name


def test_a_wildcard_finds_what_is_denied_under_the_older_name() -> None:
    acl = parse_acl('version: 1\nrules:\n  - {deny: all, topics: ["$vhost/old/$exchange/amq.topic/secret"]}\n'
                    '  - {allow: all, topics: ["$vhost/old/#"]}\n')
    assert [acl.may_subscribe(None, "c", filter_, "old") for filter_ in ("#", "+", "secret", "other", "other/#")] == [
        False, False, False, True, True]


# ---------------------------------------------------------------- messages a second


def publish(count: int) -> bytes:
    return b"\x30\x04\x00\x01tx" * count


class Publisher:
    """A connection of a namespace that may publish so many messages a second; the clock stands until `pass_ms`."""

    def __init__(self, rate: int) -> None:
        self.bench = Bench()
        self.namespace: Namespace = self.bench.hub.namespaces.add(b"shop")
        self.namespace.limit_rate(rate)
        self.now = 1_000_000
        self.bench.hub.set_clock(self.now, self.now)
        self.bench.poller.begin_slice()
        self.client, self.connection = self.bench.connect()

        def accept(connection: Connection) -> None:
            connection.set_version(4)
            connection.accept(self.bench.hub.new_session(b"p", 0, self.namespace), 10, 1 << 20, 0)

        self.bench.handler.on_first = accept
        self.client.sendall(CONNECT)
        self.bench.turn_until(lambda: self.connection.open)

    def published(self) -> int:
        for _ in range(20):
            self.bench.poller.turn()
        return int(self.bench.hub.counters()["messages_received"][0])

    def pass_ms(self, ms: int) -> int:
        self.now += ms
        self.bench.hub.set_clock(self.now, self.now)
        self.bench.poller.begin_slice()
        return self.published()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher(40)
    yield made
    made.client.close()
    assert made.bench.handler.crashes == [] and made.bench.handler.errors == []


def test_a_slice_lets_so_many_through(publisher: Publisher) -> None:
    publisher.client.sendall(publish(35))
    assert publisher.published() == 10 and publisher.published() == 10
    assert publisher.connection.paused and publisher.namespace.waiting == [publisher.connection]
    assert [publisher.pass_ms(ms) for ms in (0, 100, 24, 1, 250, 250)] == [10, 14, 14, 15, 25, 35]
    publisher.pass_ms(10_000)  # what nobody used is not saved up for more than one slice
    publisher.client.sendall(publish(30))
    assert publisher.published() == 45


def test_what_one_slice_overdraws_is_taken_off_the_next(publisher: Publisher) -> None:
    """Messages that one call copies to all that want them are counted when it is over."""
    session = publisher.bench.hub.new_session(b"s", 0, publisher.namespace)
    client, reader = publisher.bench.connect()
    publisher.bench.handler.on_first = lambda connection: (
        connection.set_version(4), connection.accept(session, 10, 1 << 20, 0))
    client.sendall(CONNECT)
    publisher.bench.turn_until(lambda: reader.open)
    publisher.bench.hub.subscribe(session, b"t", 0, 0)
    publisher.client.sendall(publish(1))
    assert publisher.published() == 1
    publisher.client.sendall(publish(100))
    first = publisher.published()
    assert first == 101  # one run of alike packets
    publisher.client.sendall(publish(1))
    assert [publisher.pass_ms(250) for _ in range(9)] == [101] * 9
    assert publisher.pass_ms(250) == 102
    client.close()


def test_a_limit_that_goes_lets_everybody_go_on(publisher: Publisher) -> None:
    publisher.client.sendall(publish(35))
    assert publisher.published() == 10
    publisher.namespace.limit_rate(0)
    assert publisher.pass_ms(0) == 35


def test_a_connection_that_ends_while_it_is_held_back(publisher: Publisher) -> None:
    publisher.client.sendall(publish(35))
    assert publisher.published() == 10
    publisher.connection.end()
    assert publisher.pass_ms(250) == 10 and publisher.namespace.waiting == []
