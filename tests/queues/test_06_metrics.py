"""Queues in numbers: what /metrics, `$SYS` and the admin socket say is what has happened."""
from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kit.broker import Broker
from kit.client import Client
from kit.watch import metrics, wait_until
from prometheus_client.parser import text_string_to_metric_families
from queues.conftest import ack, consume, order, put, take, users

from fluxmq.app.admin_client import AdminClient
from fluxmq.model.metrics import QUEUE_METRICS

Start = Callable[..., Broker]
Connect = Callable[..., Client]


def names(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(count)]


def page(broker: Broker, *queues: str) -> dict[str, float]:
    """/metrics, with these queues one by one."""
    host, port = broker.health
    query = urllib.parse.urlencode([("queue", name) for name in queues])
    with urllib.request.urlopen(f"http://{host}:{port}/metrics?{query}", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def shown(samples: dict[str, float]) -> set[str]:
    """The queues that a page shows one by one."""
    start = 'fluxmq_queue_bytes{queue="'
    return {name.removeprefix(start).removesuffix('"}') for name in samples if name.startswith(start)}


def test_what_becomes_of_messages_is_counted(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "jobs", "limits": {"max_depth": 6, "max_message_size": 100}, "max_priority": 2,
                           "retry": {"max_retries": 1, "initial_backoff": "1ms"}})
    publisher, consumer = connect(broker), connect(broker)
    put(publisher, "jobs", *names(6))
    put(publisher, "jobs", b"full", expect=0x97)
    put(publisher, "jobs", b"x" * 101, expect=0x97)
    put(publisher, "jobs", b"when?", expect=0x83, x_delay="soon")
    put(publisher, "nowhere", b"x", expect=0x90)
    seen = page(broker)
    assert seen['fluxmq_queue_messages{queue="jobs",state="ready"}'] == 6
    assert seen['fluxmq_queue_bytes{queue="jobs"}'] > 12
    for reason in ("full", "too_large", "properties"):
        assert seen[f'fluxmq_queue_refused_total{{queue="jobs",reason="{reason}"}}'] == 1, reason
        assert seen[f'fluxmq_queues_refused_total{{reason="{reason}"}}'] == 1, reason
    assert seen['fluxmq_queues_refused_total{reason="unknown_queue"}'] == 1
    assert seen['fluxmq_queues_refused_total{reason="disk"}'] == 0

    consume(consumer, "jobs", ack="manual", prefetch=4, consumer_group="g")
    one, two, three, four = (consumer.receive() for _ in range(4))
    seen = page(broker)
    assert seen['fluxmq_queue_messages{queue="jobs",state="unsettled"}'] == 4
    assert seen['fluxmq_queue_messages{queue="jobs",state="ready"}'] == 2
    assert seen['fluxmq_queue_group_lag{group="g",queue="jobs"}'] == 6
    assert (seen['fluxmq_queue_groups{queue="jobs"}'], seen['fluxmq_queue_consumers{queue="jobs"}']) == (1, 1)
    order(consumer, "ack", one)
    order(consumer, "reject", two)
    order(consumer, "nack", three, delay=0)
    rest = [consumer.receive() for _ in range(3)]
    again = next(packet for packet in rest if packet.payload == three.payload)
    order(consumer, "nack", again, delay=0)  # its second and last time
    order(consumer, "ack", four, upto="true")
    wait_until(lambda: page(broker)['fluxmq_queue_dead_lettered_total{queue="jobs"}'] == 2)
    seen = page(broker)
    expected = {"appended": 6, "delivered": 7, "redelivered": 1, "settled": 2, "dead_lettered": 2, "repeated": 0}
    assert {name: seen[f'fluxmq_queue_{name}_total{{queue="jobs"}}'] for name in expected} == expected
    assert seen['fluxmq_queue_died_total{queue="jobs",reason="rejected"}'] == 1
    assert seen['fluxmq_queue_died_total{queue="jobs",reason="max_retries"}'] == 1
    # The dead letter queue is a queue too, and the totals are of both.
    assert seen['fluxmq_queue_appended_total{queue="jobs.dlq"}'] == 2
    assert seen["fluxmq_queues_appended_total"] == 8
    assert seen['fluxmq_queues{type="classic"}'] == 2


def test_deduplication_expiry_overflow_and_capture_are_counted(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(
        {"name": "first", "topics": ["t/#"], "limits": {"max_depth": 1}},
        {"name": "newest", "limits": {"max_depth": 1}, "overflow": "drop-head", "dlq": {"enabled": False}},
        {"name": "short"})
    publisher, consumer = connect(broker), connect(broker)
    for _ in range(3):
        put(publisher, "first", b"x", producer_id="p", producer_sequence=1)
    publisher.publish("t/1", b"lost", 1, expect=0)  # and its publisher is not to know
    put(publisher, "newest", *names(3))
    publisher.publish("$queue/short", b"x", 1, expect=0, properties={"message_expiry_interval": 0})
    put(publisher, "short", b"later", x_delay=3_600_000)
    consume(consumer, "short")
    consumer.expect_quiet()
    seen = page(broker)
    assert seen['fluxmq_queue_repeated_total{queue="first"}'] == 2
    assert seen['fluxmq_queue_capture_lost_total{queue="first"}'] == 1
    assert seen['fluxmq_queue_died_total{queue="newest",reason="overflow"}'] == 2
    assert seen['fluxmq_queue_dead_lettered_total{queue="newest"}'] == 0
    assert seen['fluxmq_queue_died_total{queue="short",reason="expired"}'] == 1
    assert seen['fluxmq_queue_messages{queue="short",state="delayed"}'] == 1
    assert seen['fluxmq_queue_appended_total{queue="short"}'] == 1


def test_streams_are_counted(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "events", "type": "stream", "partitions": 2})
    put(connect(broker), "events", *names(10))
    reader = connect(broker)
    consume(reader, "events", offset="first", consumer_group="g", ack="manual")
    packets = [reader.receive() for _ in range(10)]
    zero = [packet for packet in packets if users(packet)["message-id"].startswith("0:")]
    order(reader, "commit", zero[-1])
    seen = page(broker)
    assert seen['fluxmq_queue_delivered_total{queue="events"}'] == 10
    assert seen['fluxmq_queue_messages{queue="events",state="ready"}'] == 10
    assert seen['fluxmq_queue_consumers{queue="events"}'] == 2
    assert seen['fluxmq_queue_group_lag{group="g",queue="events"}'] == 10 - len(zero)
    assert seen['fluxmq_queues{type="stream"}'] == 1


def test_totals_do_not_fall_when_a_queue_is_deleted(start_broker: Start, connect: Connect, tmp_path: Path) -> None:
    broker = start_broker(**{"server.admin_socket": str(tmp_path / "s")})
    admin = AdminClient(tmp_path / "s")
    admin.ask("PUT", "queues", "gone", body={"type": "classic"})
    put(connect(broker), "gone", *names(5))
    consumer = connect(broker)
    consume(consumer, "gone")
    ack(consumer, *take(consumer, *names(5)))
    consumer.expect_quiet()
    before = metrics(broker)
    assert (before["fluxmq_queues_appended_total"], before["fluxmq_queues_settled_total"]) == (5, 5)
    admin.ask("DELETE", "queues", "gone")
    after = metrics(broker)
    assert (after["fluxmq_queues_appended_total"], after["fluxmq_queues_settled_total"]) == (5, 5)
    assert after['fluxmq_queues{type="classic"}'] == 0


def test_a_page_does_not_grow_with_the_queues(start_broker: Start, connect: Connect) -> None:
    """As many as configured, those of the configuration first; others by name, for whoever asks for them."""
    broker = start_broker({"name": "zoo"}, **{"queue_manager.metrics_queues": 3,
                                              "queue_manager.auto_create": "classic"})
    publisher = connect(broker)
    for number in range(50):
        put(publisher, f"q{number:02}", b"x")
    assert shown(page(broker)) == {"zoo", "q00", "q01"}
    assert page(broker)['fluxmq_queues_messages{state="ready"}'] == 50
    assert shown(page(broker, "q30", "q49", "q30", "no-such")) == {"q30", "q49"}


def test_a_page_does_not_grow_with_the_groups(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "many"}, **{"queue_manager.metrics_queues": 2})
    client = connect(broker)
    for number in range(10):
        consume(client, "many", consumer_group=f"g{number}")

    def groups(*asked: str) -> int:
        return sum(name.startswith("fluxmq_queue_group_lag{") for name in page(broker, *asked))

    assert (groups(), groups("many")) == (2, 10)


def test_nobody_is_shown_where_nobody_wants_it(start_broker: Start) -> None:
    broker = start_broker({"name": "quiet"}, **{"queue_manager.metrics_queues": 0})
    assert shown(page(broker)) == set()
    assert shown(page(broker, "quiet")) == {"quiet"}


def test_names_cannot_forge_a_series(start_broker: Start) -> None:
    name = 'a"} 1 \\ {b="'
    broker = start_broker({"name": name})
    samples = page(broker)
    assert sum(sample.startswith("fluxmq_queue_bytes{") for sample in samples) == 1
    assert f'fluxmq_queue_bytes{{queue="{name}"}}' in samples


def test_every_metric_of_a_queue_is_on_the_page(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "one"})
    consume(connect(broker), "one")
    samples = {name.partition("{")[0] for name in page(broker)}
    assert {metric.name for metric in QUEUE_METRICS} <= samples


def test_sys_topics_have_the_totals(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "jobs", "limits": {"max_depth": 3}}, **{"broker.sys_interval": "100ms"})
    client = connect(broker)
    put(client, "jobs", *names(3))
    put(client, "jobs", b"full", expect=0x97)
    watcher = connect(broker)
    watcher.subscribe("$SYS/broker/queues/#")
    wanted = {"count": "1", "messages": "3", "ready": "3", "appended": "3", "refused": "1", "delivered": "0"}
    others = {"bytes", "settled", "redelivered", "died", "dead_lettered", "capture_lost", "groups"}
    seen: dict[str, str] = {}
    while any(seen.get(name) != value for name, value in wanted.items()) or not others <= set(seen):
        packet = watcher.receive()
        seen[packet.topic.removeprefix("$SYS/broker/queues/")] = packet.payload.decode()


def test_the_admin_socket_shows_them(start_broker: Start, connect: Connect, tmp_path: Path) -> None:
    broker = start_broker({"name": "jobs"}, **{"server.admin_socket": str(tmp_path / "s")})
    admin = AdminClient(tmp_path / "s")
    put(connect(broker), "jobs", *names(5))
    consumer = connect(broker)
    consume(consumer, "jobs", prefetch=2)
    take(consumer, *names(2))
    (row,) = admin.ask("GET", "queues")["queues"]
    assert (row["messages"], row["ready"], row["unsettled"], row["consumers"]) == (5, 3, 2, 1)
    counts = admin.ask("GET", "queues", "jobs")["counts"]
    assert (counts["appended"], counts["delivered"], counts["settled"]) == (5, 2, 0)
    assert json.dumps(counts)
