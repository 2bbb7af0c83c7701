"""MQTT 5.0 section 4.7: Topic Names and Topic Filters."""
import contextlib

import pytest
from kit.client import Nothing
from oracle.mqtt import Publish

# filter, topics that match, topics that do not; "~" stands for a topic of the test's own
MATCHES = [
    ("~", ["~"], ["~/", "~/a", "/~", "~x"]),
    ("~/#", ["~", "~/", "~/a", "~/a/b", "~//"], ["~a", "/~"]),
    ("~/+", ["~/a", "~/"], ["~", "~/a/b", "~//", "~/a/"]),
    ("~/+/b", ["~/a/b", "~//b"], ["~/b", "~/a/b/c", "~/a/x"]),
    ("~/+/+", ["~/a/b", "~//", "~/a/"], ["~/a", "~/a/b/c"]),
    ("~/+/#", ["~/a", "~/a/b", "~/", "~//"], ["~"]),
    ("~/a/#", ["~/a", "~/a/b"], ["~/b", "~/ab"]),
    ("~//b", ["~//b"], ["~/b", "~/a/b"]),
    ("~/", ["~/"], ["~", "~//"]),
    ("~/sport/+/player1", ["~/sport/tennis/player1"], ["~/sport/player1", "~/sport/a/b/player1"]),
    ("~/a b", ["~/a b"], ["~/a", "~/a%20b"]),
    ("~/$x/+", ["~/$x/y"], ["~/x/y"]),
    ("~/+/$y", ["~/a/$y"], []),
]


@pytest.mark.normative("MQTT5-4.7.1-1", "MQTT5-4.7.1-2", "MQTT5-3.3.2-3", "MQTT5-4.7.3-4")
@pytest.mark.parametrize(("pattern", "yes", "no"), MATCHES, ids=[m[0] for m in MATCHES])
def test_matching(client, topic, pattern, yes, no):
    c = client()
    c.subscribe(pattern.replace("~", topic))
    for name in no + yes:
        c.publish(name.replace("~", topic), b"x")
    for name in yes:
        c.receive(name.replace("~", topic))
    c.expect_quiet()


@pytest.mark.normative("MQTT5-4.7.1-1", "MQTT5-4.7.1-2")
def test_a_wildcard_alone(client, topic):
    hash_, plus = client("hash"), client("plus")
    hash_.subscribe("#")
    plus.subscribe("+/" + topic.split("/")[1])
    pub = client("pub")
    pub.publish(topic, b"mine")
    plus.receive(topic, b"mine")
    while hash_.expect(Publish).topic != topic:     # it sees what other tests do as well
        pass
    hash_.unsubscribe("#")


@pytest.mark.normative("MQTT5-4.7.2-1")
def test_wildcards_at_the_beginning_do_not_match_dollar_topics(client, topic):
    c, pub = client(), client("pub")
    level = topic.split("/")[1]
    c.subscribe((f"+/{level}/#", 0), (f"+/+/{level}", 0), (f"end/of/{topic}", 0))
    for name in (f"$test/{level}", f"$test/{level}/a", f"$test/x/{level}", f"$/{level}"):
        pub.publish(name, b"hidden")
    pub.publish(f"end/of/{topic}", b"end")
    c.receive(f"end/of/{topic}", b"end")
    c.expect_quiet()


@pytest.mark.normative("MQTT5-4.7.2-1")
def test_hash_does_not_match_dollar_topics(client, topic):
    c = client()
    c.subscribe(("#", 0))
    client("pub").publish(f"$test/{topic}", b"hidden", qos=1)
    c.publish(topic, b"seen", qos=1)
    while True:
        got = c.expect(Publish)
        assert not got.topic.startswith("$"), got
        if got.topic == topic:
            break


@pytest.mark.normative("MQTT5-4.7.2-1")
def test_dollar_topics_match_filters_that_name_them(client, topic):
    """$-topics that are not the server's own are topics like others, if one asks for them."""
    c = client()
    c.subscribe(f"$test/{topic}/#", f"$test2/{topic}/+/x")
    c.publish(f"$test/{topic}/a", b"1")
    c.receive(f"$test/{topic}/a", b"1")
    c.publish(f"$test2/{topic}/a/x", b"2")
    c.receive(f"$test2/{topic}/a/x", b"2")


@pytest.mark.normative("MQTT5-4.7.2-1")
def test_retained_dollar_topics_are_hidden_from_leading_wildcards(client, topic):
    pub = client("pub")
    pub.publish(f"$test/{topic}", b"hidden", qos=1, retain=True)
    pub.publish(topic, b"seen", qos=1, retain=True)
    c = client()
    c.subscribe(("+/" + topic, 0), ("+/" + topic.split("/")[1], 0))
    c.receive(topic, b"seen", retain=True)
    c.expect_quiet()
    c.subscribe(f"$test/{topic}")
    c.receive(f"$test/{topic}", b"hidden", retain=True)


@pytest.mark.normative("MQTT5-4.7.3-4")
@pytest.mark.parametrize("pair", [
    ("A", "a"), ("é", "e\u0301"), ("ﬁ", "fi"), ("\u212b", "å"), ("a", "a "), ("Ⅷ", "VIII"), ("ß", "ss"),
    ("a/b", "a//b"),
    ("\ufeffa", "a"), ("a\u200b", "a"), ("./a", "a"), ("a/../b", "b"), ("%41", "A"),
])
def test_names_are_not_normalised(client, topic, pair):
    c = client()
    c.subscribe(f"{topic}/{pair[0]}")
    c.publish(f"{topic}/{pair[1]}", b"other")
    c.publish(f"{topic}/{pair[0]}", b"same")
    c.receive(f"{topic}/{pair[0]}", b"same")
    c.expect_quiet()


@pytest.mark.normative("MQTT5-4.7.3-4", "MQTT5-1.5.4-3")
@pytest.mark.parametrize("level", ["\ufeff", "\U0001f41d/\U0010fffd", "日本語/テスト", "a b c", "'\"\\;--",
                                   "\ufffd"])
def test_any_character_is_carried(client, topic, level):
    c = client()
    c.subscribe(f"{topic}/{level}/#")
    c.publish(f"{topic}/{level}/x", b"x")
    c.receive(f"{topic}/{level}/x")


@pytest.mark.normative("MQTT5-4.7.3-3")
def test_the_longest_topic_name(client, topic):
    """65,535 bytes are the most that a length of two bytes can say."""
    longest = topic + "/" + "x" * (65535 - len(topic) - 1)
    c = client()
    c.subscribe((longest, 0))
    c.publish(longest, b"x")
    c.receive(longest, b"x")


@pytest.mark.normative("MQTT5-4.7.3-1")
@pytest.mark.parametrize("short", ["/", "a", "//"])
def test_short_names(client, short):
    c = client()
    c.subscribe(short)
    c.publish(short, b"short")
    c.receive(short, b"short")
    c.unsubscribe(short)


def test_the_number_of_levels_is_bounded(client, topic, start_broker):
    small = start_broker({"broker.max_topic_levels": 4})
    c = client("c", where=small)
    c.subscribe(("a/b/c/d", 0), ("a/b/c/d/e", 0), expect=[0, 0x8F])
    c.publish("a/b/c/d", b"x")
    c.receive("a/b/c/d")
    c.send(Publish(topic="a/b/c/d/e", qos=1, packet_id=1))
    packet = c.recv()
    assert packet.reason == 0x90
    if type(packet).__name__ == "Disconnect":
        c.expect_closed()


@pytest.mark.normative("MQTT5-4.7.1-1", "MQTT5-4.7.1-2", "MQTT5-4.7.0-1")
def test_wildcards_work_at_every_level(client, topic):
    c = client()
    levels = ["a", "b", "c", "d"]
    for i in range(len(levels)):
        pattern = "/".join([topic, *levels[:i], "+", *levels[i + 1:]])
        c.subscribe(pattern)
        c.publish("/".join([topic, *levels[:i], "other", *levels[i + 1:]]), b"x")
        c.receive("/".join([topic, *levels[:i], "other", *levels[i + 1:]]))
        c.unsubscribe(pattern)


def test_sys_topics_cannot_be_published_by_clients_or_do_no_harm(client):
    """The specification leaves it open; the server's own values must stay the server's."""
    c = client()
    c.send(Publish(topic="$SYS/broker/version", payload=b"forged", qos=1, packet_id=1, retain=True))
    c.recv()
    fresh = client("fresh")
    fresh.subscribe("$SYS/broker/version")
    with contextlib.suppress(Nothing):
        assert fresh.recv(0.2).payload != b"forged"
