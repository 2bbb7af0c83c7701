"""Topic names and filters: which matches which."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client, Closed
from oracle.mqtt import Pingreq, Publish

ClientFactory = Callable[..., Client]

# filter, topics that it matches, topics that it does not; ~ stands for a level that no other test uses
TABLE = [
    ("~/a", ["~/a"], ["~/A", "~/a/", "~/a/b", "~", "/~/a", "~//a", "~/a "]),
    ("~/#", ["~", "~/", "~/a", "~/a/b/c", "~//", "~/$x"], ["~a", "/~"]),
    ("~/+", ["~/", "~/a", "~/$x", "~/ "], ["~", "~/a/", "~/a/b", "~//"]),
    ("~/+/+", ["~//", "~/a/b", "~/a/"], ["~/a", "~/a/b/c"]),
    ("~/+/b", ["~/a/b", "~//b"], ["~/b", "~/a/a/b", "~/a/B"]),
    ("~/a/#", ["~/a", "~/a/", "~/a/b"], ["~/ab", "~/b/a"]),
    ("~/+/#", ["~/a", "~/", "~/a/b", "~/a/b/c"], ["~"]),
    ("+/~", ["x/~", "/~"], ["~", "x/~/", "x/x/~"]),
    ("/~", ["/~"], ["~", "//~", "/~/"]),
    ("~/", ["~/"], ["~", "~//", "~/a"]),
    ("~//a", ["~//a"], ["~/a", "~///a", "~/b/a"]),
    ("+/~/#", ["x/~", "x/~/a/b", "/~/"], ["~/a"]),
    ("~/é", ["~/é"], ["~/e\u0301", "~/e", "~/É"]),
    ("~/ﬁ", ["~/ﬁ"], ["~/fi"]),
    ("~/a b", ["~/a b"], ["~/a  b", "~/a%20b", "~/a_b"]),
]


@pytest.mark.normative("MQTT311-4.7.1-2", "MQTT311-4.7.1-3", "MQTT311-4.7.3-4", "MQTT311-3.3.2-3")
@pytest.mark.parametrize(("wanted", "yes", "no"), TABLE, ids=[wanted.replace("/", "|") for wanted, _, _ in TABLE])
def test_matching(client: ClientFactory, name: Callable[[str], str], wanted: str, yes: list[str], no: list[str]
                  ) -> None:
    own = name("level")
    s, p = client("sub"), client("pub")
    s.subscribe(wanted.replace("~", own))
    for text in no:
        p.publish(text.replace("~", own), b"no")
    for text in yes:
        p.publish(text.replace("~", own), b"yes")
    for text in yes:
        s.expect(Publish, topic=text.replace("~", own), payload=b"yes")
    s.expect_quiet()


@pytest.mark.normative("MQTT311-4.7.3-4", "MQTT311-3.3.1-6")
@pytest.mark.parametrize(("wanted", "yes", "no"), TABLE, ids=[wanted.replace("/", "|") for wanted, _, _ in TABLE])
def test_matching_of_retained_messages(client: ClientFactory, name: Callable[[str], str], wanted: str, yes: list[str],
                                       no: list[str]) -> None:
    """The same table the other way round: here the topics are there first, and the filter comes."""
    own = name("level")
    p = client("pub")
    for text in yes + no:
        p.publish(text.replace("~", own), b"x", 1, retain=True)
    s = client("sub")
    s.subscribe(wanted.replace("~", own))
    got = sorted(s.expect(Publish, retain=True).topic for _ in yes)
    assert got == sorted(text.replace("~", own) for text in yes)
    s.expect_quiet()
    for text in yes + no:
        p.publish(text.replace("~", own), b"", 1, retain=True)


@pytest.mark.normative("MQTT311-4.7.2-1")
@pytest.mark.parametrize("wanted", ["#", "+/#", "+/~/#", "+/+", "+/~"])
def test_a_leading_wildcard_matches_no_dollar_topic(client: ClientFactory, name: Callable[[str], str], wanted: str
                                                    ) -> None:
    """Whether the broker lets a client publish there at all is its own affair: it may close the publisher."""
    own = name("level")
    s = client("sub")
    s.subscribe(wanted.replace("~", own))
    for text in (f"$test/{own}", f"${own}/{own}", f"$/{own}", f"$SYS/{own}"):
        p = client("pub")
        try:
            p.publish(text, own.encode(), retain=True)
            p.expect_quiet()
        except (Closed, ConnectionError):
            pass
    client("pub").publish(f"x/{own}", b"end")
    while (packet := s.expect(Publish)).payload != b"end":
        assert not str(packet.topic).startswith("$")
    late = client("late")                                   # nor does it find the retained ones
    late.subscribe(wanted.replace("~", own))
    late.send(Pingreq())
    while isinstance(found := late.recv(), Publish):
        assert not str(found.topic).startswith("$")


@pytest.mark.normative("MQTT311-4.7.2-1")
def test_the_brokers_own_topics_are_not_part_of_everything(start_broker: Callable[..., Broker], client: ClientFactory
                                                           ) -> None:
    own = start_broker({"broker.sys_interval": "100ms"})
    everything = client("everything", where=own)
    everything.subscribe("#", "+/#", "+/broker/#")
    system = client("system", where=own)
    system.subscribe("$SYS/#")
    for _ in range(10):
        assert str(system.expect(Publish).topic).startswith("$SYS/")
    everything.expect_quiet()
    late = client("late", where=own)
    late.subscribe("#", "+/+/#")                            # nor are the retained ones sent
    late.expect_quiet()
    exact = client("exact", where=own)
    exact.subscribe("$SYS/broker/+")
    assert str(exact.expect(Publish).topic).startswith("$SYS/broker/")


@pytest.mark.normative("MQTT311-4.7.3-3")
def test_levels_may_be_empty_and_many(client: ClientFactory, name: Callable[[str], str]) -> None:
    own = name("level")
    for deep in ("/".join([own] + ["x"] * 20), own + "/" * 20, "/" * 20 + own):
        s = client("sub")
        s.subscribe(deep)
        s.publish(deep, b"x")
        s.expect(Publish, topic=deep)
