"""MQTT and AMQP 0-9-1 clients of one broker, over real connections; docs/interop.md followed to the letter."""
from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.broker import ROOT, Broker
from kit.client import Client
from kit.python import environment
from kit.tools import require_tool
from queues.conftest import ack, consume, take, users

pika = pytest.importorskip("pika")

Start = Callable[..., Broker]
Connect = Callable[..., Client]
SECONDS = 60.0
PAGE = ROOT / "docs" / "interop.md"


@pytest.fixture
def broker(start_broker: Start) -> Broker:
    return start_broker()


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(*broker.addresses["amqp091/plain"]))
    yield connection.channel()
    connection.close()


def get(channel: Any, queue: str) -> tuple[Any, Any, bytes]:
    """The next message of a queue; who publishes it has been told that it is there."""
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert method is not None
    return method, properties, body


def test_what_mqtt_publishes_reaches_queues_bound_to_amq_topic(broker: Broker, channel: Any, connect: Connect) -> None:
    channel.queue_declare("q", durable=True)
    for key in ("a.*", "a.#.z", "a.*"):
        channel.queue_bind("q", "amq.topic", key)
    client = connect(broker)
    client.publish("a/b", b"1", 1, expect=0, properties=[
        ("content_type", "text/plain"), ("correlation_data", b"c-1"), ("response_topic", "answers/7"),
        ("message_expiry_interval", 60), ("payload_format_indicator", 1), ("user_property", ("amqp-type", "reading")),
        ("user_property", ("one", "1")), ("user_property", ("two", "2"))])
    client.publish("a/c/z", b"2", 1, expect=0)
    client.publish("a/c/y", b"no", 1)
    client.publish("b/c", b"no", 1)
    method, properties, body = get(channel, "q")
    assert (method.exchange, method.routing_key, body, method.redelivered) == ("amq.topic", "a.b", b"1", False)
    assert (properties.content_type, properties.correlation_id, properties.reply_to, properties.type) == (
        "text/plain", "c-1", "amq.topic/answers.7", "reading")
    assert properties.delivery_mode == 2 and 0 < int(properties.expiration) <= 60_000
    assert properties.headers == {"x-mqtt-payload-format": 1, "one": "1", "two": "2"}
    assert get(channel, "q")[2] == b"2"
    assert channel.basic_get("q")[0] is None


def test_an_answer_finds_its_way_in_both_directions(broker: Broker, channel: Any, connect: Connect) -> None:
    """Neither responder knows that the other side speaks another protocol."""
    channel.queue_declare("requests")
    channel.queue_bind("requests", "amq.topic", "requests")
    client = connect(broker)
    client.subscribe("answers/7", qos=1)
    client.publish("requests", b"?", 1, expect=0,
                   properties=[("response_topic", "answers/7"), ("correlation_data", b"1")])
    _, properties, _ = get(channel, "requests")
    channel.basic_publish("", properties.reply_to, b"!", pika.BasicProperties(correlation_id=properties.correlation_id))
    answer = client.receive("answers/7", b"!")
    assert answer.prop("correlation_data") == b"1"

    answers = channel.queue_declare("", exclusive=True).method.queue
    client.subscribe("questions")
    channel.basic_publish("amq.topic", "questions", b"?", pika.BasicProperties(reply_to=answers, correlation_id="2"))
    question = client.receive("questions", b"?")
    client.publish(str(question.prop("response_topic")), b"!", 1, expect=0,
                   properties=[("correlation_data", question.prop("correlation_data"))])
    _, properties, body = get(channel, answers)
    assert (body, properties.correlation_id) == (b"!", "2")


def test_what_amqp_publishes_to_amq_topic_reaches_mqtt(broker: Broker, channel: Any, connect: Connect) -> None:
    new, old = connect(broker), connect(broker, version=4)
    away = connect(broker, "away", clean_start=False, properties={"session_expiry_interval": 100})
    for client in (new, old, away):
        client.subscribe("a/+", qos=1)
    away.disconnect()
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "#")
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.b", b"1", pika.BasicProperties(
        content_type="text/plain", delivery_mode=2, type="t", expiration="60000", headers={
            "text": "x", "number": 5, "flag": True, "more": {"list": [1, "two"]}}), mandatory=True)
    for client in (new, connect(broker, "away", clean_start=False)):
        packet = client.receive("a/b", b"1", qos=1)
        assert 0 < int(packet.prop("message_expiry_interval") or 0) <= 60
        assert packet.prop("content_type") == "text/plain"
        assert list(packet.props("user_property")) == [
            ("amqp-type", "t"), ("text", "x"), ("number", "5"), ("amqp-is:number", "I"), ("flag", "true"),
            ("amqp-is:flag", "t"), ("more", '{"list":[{"I":1},"two"]}'), ("amqp-is:more", "F")]
    old.receive("a/b", b"1")
    _, properties, _ = get(channel, "q")
    assert properties.headers == {"text": "x", "number": 5, "flag": True, "more": {"list": [1, "two"]}}
    assert channel.basic_get("q")[0] is None


def test_mandatory_is_content_with_a_subscriber(broker: Broker, channel: Any, connect: Connect) -> None:
    client = connect(broker)
    client.subscribe("a/#")
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.b", b"1", mandatory=True)
    client.receive("a/b", b"1")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("amq.topic", "b.a", b"2", mandatory=True)


def test_exchanges_between(broker: Broker, channel: Any, connect: Connect) -> None:
    """amq.topic to others and others to amq.topic; each queue gets each message once."""
    channel.exchange_declare("in", "fanout")
    channel.exchange_declare("out", "topic")
    channel.exchange_declare("marked", "headers")
    channel.exchange_bind("amq.topic", "in", "")
    channel.exchange_bind("out", "amq.topic", "a.#")
    channel.exchange_bind("marked", "amq.topic", "#.b")
    for queue in ("q", "r", "h"):
        channel.queue_declare(queue)
    channel.queue_bind("q", "out", "*.b")
    channel.queue_bind("q", "amq.topic", "a.b")
    channel.queue_bind("q", "in", "")
    channel.queue_bind("r", "out", "a.#")
    channel.queue_bind("h", "marked", "", {"x-match": "all", "kind": "hot"})
    client = connect(broker)
    client.subscribe("#", qos=1)
    client.publish("a/b", b"1", 1, expect=0, properties=[("user_property", ("kind", "hot"))])
    client.receive("a/b", b"1")
    client.publish("a/c", b"2", 1, expect=0)
    client.receive("a/c", b"2")
    channel.confirm_delivery()
    channel.basic_publish("in", "a.b", b"3")
    packet = client.receive("a/b", b"3")
    assert users(packet)["amqp-exchange"] == "in"
    found = {}
    for queue in ("q", "r", "h"):
        bodies = [body for _, _, body in iter(lambda queue=queue: channel.basic_get(queue, auto_ack=True), (None,) * 3)]
        found[queue] = bodies
    assert found == {"q": [b"1", b"3"], "r": [b"1", b"2", b"3"], "h": [b"1"]}
    channel.exchange_unbind("out", "amq.topic", "a.#")
    client.publish("a/b", b"4", 1, expect=0)
    assert [channel.basic_get(queue)[2] for queue in ("q", "r")] == [b"4", None]


def test_dead_letters_may_go_to_topics(broker: Broker, channel: Any, connect: Connect) -> None:
    client = connect(broker)
    client.subscribe("dead/#")
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "dead.q"})
    channel.queue_declare("kept")
    channel.queue_bind("kept", "amq.topic", "dead.*")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(type="t"))
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    told = users(client.receive("dead/q", b"x"))
    assert (told["amqp-type"], told["x-first-death-queue"], told["x-first-death-reason"]) == ("t", "q", "rejected")
    _, properties, body = get(channel, "kept")
    assert (body, properties.headers["x-death"][0]["queue"]) == (b"x", "q")


def test_dead_letters_go_to_the_topics_of_all_their_keys(broker: Broker, channel: Any, connect: Connect) -> None:
    """Those in the header CC too, but for what is no topic; a queue has it once."""
    client = connect(broker)
    client.subscribe("dead/#")
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "amq.topic"})
    channel.queue_declare("kept")
    channel.queue_bind("kept", "amq.topic", "dead.*")
    channel.queue_bind("q", "amq.direct", "dead.1")
    channel.basic_publish("amq.direct", "dead.1", b"y", pika.BasicProperties(
        headers={"CC": ["dead.2", "dead." + "l" * 1000]}))
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    client.receive("dead/1", b"y")
    client.receive("dead/2", b"y")
    client.expect_quiet()
    assert get(channel, "kept")[2] == b"y"
    assert channel.basic_get("kept")[0] is None


def test_bindings_are_there_after_a_restart(broker: Broker, connect: Connect) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(*broker.addresses["amqp091/plain"]))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.topic", "a.#.z")
    channel.exchange_declare("e", "topic", durable=True)
    channel.exchange_bind("e", "amq.topic", "b.*")
    channel.queue_bind("q", "e", "b.c")
    connection.close()
    broker.restart()
    client = connect(broker)
    for topic in ("a/z", "b/c", "b/d"):
        client.publish(topic, topic.encode(), 1)
    connection = pika.BlockingConnection(pika.ConnectionParameters(*broker.addresses["amqp091/plain"]))
    channel = connection.channel()
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(3)] == [b"a/z", b"b/c", None]
    channel.queue_delete("q")
    client.publish("a/z", b"x", 1, expect=0x10)
    connection.close()


def test_one_queue_two_kinds_of_consumers(broker: Broker, channel: Any, connect: Connect) -> None:
    channel.queue_declare("jobs", durable=True)
    client = connect(broker)
    channel.confirm_delivery()
    channel.basic_publish("", "jobs", b"by amqp", pika.BasicProperties(headers={"n": 1}, reply_to="back"))
    client.publish("$queue/jobs", b"by mqtt", 1, expect=0, properties=[("user_property", ("n", "1"))])
    method, properties, body = channel.basic_get("jobs")
    assert (body, method.routing_key) == (b"by amqp", "jobs")
    channel.basic_nack(method.delivery_tag, requeue=True)
    consume(client, "jobs")
    packet, _ = take(client, b"by amqp", b"by mqtt")
    assert (users(packet)["n"], users(packet)["amqp-is:n"], packet.prop("response_topic")) == ("1", "I", "$queue/back")
    assert users(packet)["redelivered"] == "true"
    ack(client, packet)
    client.disconnect()
    method, properties, body = next(channel.consume("jobs", auto_ack=True, inactivity_timeout=SECONDS))
    assert (body, method.exchange, method.routing_key, properties.headers, method.redelivered) == (
        b"by mqtt", "", "jobs", {"n": "1"}, True)


# ---------------------------------------------------------------- the page

def blocks() -> list[tuple[str, str]]:
    pieces = re.split(r"^```", PAGE.read_text(), flags=re.MULTILINE)[1::2]
    return [(language, text) for language, _, text in (piece.partition("\n") for piece in pieces)]


def test_the_page_in_its_order(broker: Broker) -> None:
    """What each example prints is what the page says next to it."""
    text = PAGE.read_text()
    printed = []
    for language, block in blocks():
        if language == "python":
            program = block.replace("5672", str(broker.addresses["amqp091/plain"][1]))
            words = [[sys.executable, "-P", "-c", program]]
        else:
            words = [[*shlex.split(line), "-p", str(broker.address[1])] for line in block.splitlines()]
            require_tool("mosquitto_pub", package="mosquitto-clients")
        for one in words:
            told = environment()
            if language != "python":
                told.pop("LD_PRELOAD", None)
            said = subprocess.run(one, env=told, text=True, capture_output=True, timeout=SECONDS, check=False)
            assert (said.returncode, said.stderr) == (0, ""), one
            printed += [line.strip() for line in said.stdout.splitlines()]
    assert len(printed) == 2
    for line in printed:
        assert f"`{line}`" in text, line
