"""AMQP 0-9-1 clients, recorded by a broker, are replayed against one: what they did is done again, all is named."""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from click.testing import CliRunner
from kit.amqp_wire import Wire
from kit.broker import Broker, free_port
from kit.client import Client
from kit.recordings import make_recording
from kit.story import events_of

from fluxmq.record.reading import open_recording
from fluxmq.spark.measures.measures import measure
from fluxmq.spark.replay.replaying import ReplayError, ReplayRequest, replay_here
from fluxmq.spark.result import Summary, open_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
Work = Callable[[Wire], object]


class AmqpBroker(Broker):
    """With an AMQP listener; at its end it must have had no accident."""

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__(directory, {"server.amqp091.plain.addr": f"127.0.0.1:{free_port()}", **settings})

    @property
    def amqp(self) -> tuple[str, int]:
        return self.addresses["amqp091/plain"]

    def __enter__(self) -> AmqpBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wire(self, **login: Any) -> Wire:
        return Wire(self.amqp).login(**login)

    def left(self, queue: str) -> int:
        """Messages that are there."""
        wire = self.wire()
        wire.call(1, "channel.open")
        count = wire.call(1, "queue.declare", queue=queue, passive=True)["message_count"]
        wire.socket.close()
        return int(count)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[AmqpBroker]:
    with AmqpBroker(tmp_path / "target") as one:
        yield one
        one.check()


def recorded(folder: Path, work: Callable[[AmqpBroker], object], payload: str = "full") -> Path:
    """The recording of what `work` does with a broker of its own."""
    with AmqpBroker(folder / "broker", **{"record.enabled": True, "record.dir": str(folder / "recordings"),
                                          "record.payload": payload}) as broker:
        work(broker)
        broker.check()
        assert broker.terminate() == 0
    (path,) = (folder / "recordings").iterdir()
    return path


def replay(recording: Path, target: AmqpBroker, out: Path, **options: Any) -> tuple[Summary, Rows]:
    asked = {"speed": None, "quiet_s": 0.2 if options.get("speed") is None else 3.0} | options
    summary = replay_here(ReplayRequest(recording=str(recording), broker="{}:{}".format(*target.amqp), out=str(out),
                                        **asked))
    return summary, events_of(out)


def rows_of(recording: Path) -> Rows:
    """As make_recording takes them."""
    return [row | {"time": row["time_ns"]} for row in open_recording(recording).table().to_pylist()]


def of(rows: Rows, event: str, method: str | None = None) -> Rows:
    return [row for row in rows if row["event"] == event and method in (None, row["detail"].get("method"))]


def methods(rows: Rows) -> Counter[tuple[str, int]]:
    return Counter((row["detail"]["method"], row["reason"]) for row in rows if row["detail"].get("method"))


def traffic(broker: AmqpBroker) -> None:
    """An exchange with two queues, confirms, prefetch, every kind of acknowledgement, a get, a transaction."""
    pub, sub = broker.wire(), broker.wire()
    for wire in (pub, sub):
        wire.call(1, "channel.open")
    sub.call(1, "exchange.declare", exchange="logs", type="topic")
    for queue, key in (("all", "#"), ("some", "a.*")):
        sub.call(1, "queue.declare", queue=queue)
        sub.call(1, "queue.bind", queue=queue, exchange="logs", routing_key=key)
    sub.call(1, "basic.qos", prefetch_count=5)
    sub.call(1, "basic.consume", queue="all", consumer_tag="c")
    pub.call(1, "confirm.select")
    for number in range(20):
        pub.publish(1, "logs", "a.b" if number % 2 else "c.d", b"message %02d, long enough" % number)
        pub.expect(1, "basic.ack")
    for number in range(20):
        tag = sub.expect_content(1, "basic.deliver").arguments["delivery_tag"]
        if number % 5 == 4:
            sub.send(1, "basic.ack", delivery_tag=tag, multiple=True)
    pub.call(2, "channel.open")
    pub.call(2, "tx.select")
    pub.publish(2, "", "some", b"in a transaction, for some")
    pub.call(2, "tx.commit")
    for _ in range(11):
        pub.send(2, "basic.get", queue="some")
        tag = pub.expect_content(2, "basic.get-ok").arguments["delivery_tag"]
        pub.send(2, "basic.reject", delivery_tag=tag, requeue=False)
    pub.call(2, "tx.commit")
    sub.call(1, "basic.cancel", consumer_tag="c")
    for wire in (pub, sub):
        wire.call(0, "connection.close", reply_code=200)
        wire.socket.close()


def test_it_is_done_again(tmp_path: Path, target: AmqpBroker) -> None:
    recording = recorded(tmp_path, traffic)
    summary, rows = replay(recording, target, tmp_path / "result")
    assert summary.complete, summary.why
    assert summary.not_sent == 0 and not summary.not_replayed
    publishes = of(rows, "publish")
    assert len(publishes) == 21
    assert all(row["acked"] >= row["sent"] and row["reason"] == 0 for row in publishes)
    assert Counter((row["topic"], row["qos"]) for row in publishes) == {("logs/a.b", 1): 10, ("logs/c.d", 1): 10,
                                                                        ("/some", 0): 1}
    got = Counter((row["client"], row["topic"]) for row in of(rows, "delivery"))
    assert sorted(got.values()) == [1, 10, 10, 10]
    assert max(Counter((row["client"], row["publisher"], row["publisher_op"])
                       for row in of(rows, "delivery")).values()) == 1
    assert {row["publisher"] for row in of(rows, "delivery")} == {publishes[0]["client_number"]}
    assert methods(rows) == {("channel.open", 0): 3, ("exchange.declare", 0): 1, ("queue.declare", 0): 2,
                             ("queue.bind", 0): 2, ("basic.qos", 0): 1, ("basic.consume", 0): 1,
                             ("confirm.select", 0): 1, ("tx.select", 0): 1, ("tx.commit", 0): 2,
                             ("basic.get", 0): 11, ("basic.cancel", 0): 1}
    assert [row["topic"] for row in of(rows, "subscribe")] == ["$queue/all"]
    assert Counter(row["event"] for row in rows if row["event"].endswith("connect")) == {
        "connect": 2, "disconnect": 2}
    assert target.left("all") == target.left("some") == 0


def test_a_copy_has_names_of_its_own(tmp_path: Path, target: AmqpBroker) -> None:
    """Also the queue whose name the server made up; amq.direct is shared, so keys tell the copies apart."""

    def work(broker: AmqpBroker) -> None:
        parameters = pika.ConnectionParameters(*broker.amqp)
        with closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            channel.exchange_declare("own", "fanout")
            name = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_declare("named", arguments={"x-dead-letter-exchange": "own"})
            channel.queue_bind(name, "own")
            channel.queue_bind(name, "amq.direct", "key")
            channel.basic_publish("own", "", b"to all that are bound here")
            channel.basic_publish("amq.direct", "key", b"by a key, and long enough")
            channel.basic_publish("", name, b"to it by its name, long enough", pika.BasicProperties(reply_to=name))
            for number, (method, _, _) in enumerate(channel.consume(name, auto_ack=True), 1):
                assert method
                if number == 3:
                    break
            channel.cancel()

    summary, rows = replay(recorded(tmp_path, work), target, tmp_path / "result", copies=3)
    assert summary.complete and summary.recording["clients"] == 3
    topics = Counter(row["topic"] for row in of(rows, "delivery"))
    assert set(topics.values()) == {1} and len(topics) == 9
    assert {"own/", "~1.own/", "~2.own/", "amq.direct/key", "amq.direct/~1.key", "amq.direct/~2.key"} < set(topics)
    clients = {row["client"]: row["client_number"] for row in of(rows, "connect")}
    assert len(clients) == 3 and sum(name.endswith("~2") for name in clients) == 1
    assert all(row["publisher"] == row["client_number"] for row in of(rows, "delivery"))
    assert {code for _, code in methods(rows)} == {0}
    assert target.left("named") == target.left("~1.named") == target.left("~2.named") == 0


def test_every_property_comes_back(tmp_path: Path, target: AmqpBroker) -> None:
    """All fourteen, and a body of several frames behind its trace."""
    told = {"content_type": "text/x", "content_encoding": "utf-8", "headers": {"a": 1, "b": "two", "c": {"d": True}},
            "delivery_mode": 1, "priority": 3, "correlation_id": "c", "reply_to": "back", "expiration": "600000",
            "message_id": "m", "timestamp": 1_700_000_000, "type": "t", "user_id": "guest", "app_id": "app",
            "cluster_id": "x"}
    body = bytes(range(256)) * 1200

    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(1)
        wire.call(1, "queue.declare", queue="q")
        wire.publish(1, "", "q", body, told)
        assert wire.call(1, "queue.declare", queue="q", passive=True)["message_count"] == 1
        wire.call(0, "connection.close", reply_code=200)

    summary, rows = replay(recorded(tmp_path, work), target, tmp_path / "result")
    assert summary.complete and of(rows, "publish")[0]["size"] == len(body)
    wire = target.wire()
    wire.open_channel(1)
    got = wire.get(1, "q")
    assert got is not None
    assert got.properties == told
    assert got.body[16:] == body[16:] and got.body[:4] == summary.run.to_bytes(4, "big")


def test_what_is_refused_is_a_row_and_the_rest_goes_on(tmp_path: Path, target: AmqpBroker) -> None:
    """The recorded client opened a new channel after its mistakes; the second refusal is one of the replay alone."""

    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(1)
        wire.send(1, "queue.declare", queue="nowhere", passive=True)
        assert wire.expect_refusal(1).code == 404
        wire.open_channel(1)
        wire.call(1, "confirm.select")
        wire.call(1, "queue.declare", queue="other", durable=True)
        wire.call(1, "queue.declare", queue="q")
        wire.call(1, "basic.consume", queue="q", consumer_tag="c", no_ack=True)
        wire.publish(1, "", "q", b"after it was refused")
        wire.expect(1, "basic.ack")
        wire.expect_content(1)
        wire.call(0, "connection.close", reply_code=200)

    recording = recorded(tmp_path, work)
    wire = target.wire()
    wire.open_channel(1)
    wire.call(1, "queue.declare", queue="other", durable=False)
    summary, rows = replay(recording, target, tmp_path / "result")
    assert summary.complete and summary.not_sent == 0
    assert [(row["topic"], row["reason"]) for row in of(rows, "method", "queue.declare")] == [
        ("nowhere", 404), ("other", 406), ("q", 0)]
    assert "nowhere" in of(rows, "method", "queue.declare")[0]["detail"]["error"]
    (sent,) = of(rows, "publish")
    assert (sent["qos"], sent["reason"]) == (1, 0) and sent["acked"]        # confirms are on again
    assert [row["topic"] for row in of(rows, "delivery")] == ["/q"]


@pytest.mark.parametrize("speed", [None, 5.0])
def test_what_finds_no_queue_says_so(tmp_path: Path, target: AmqpBroker, speed: float | None) -> None:
    """Returned, to an exchange that is not there, and to a queue that refuses more."""

    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(1)
        wire.call(1, "confirm.select")
        wire.publish(1, "", "nobody", b"mandatory, and long enough", mandatory=True)
        wire.expect_content(1, "basic.return")
        wire.expect(1, "basic.ack")
        wire.call(1, "queue.declare", queue="one", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        for wanted in ("basic.ack", "basic.nack"):
            wire.publish(1, "", "one", b"there is room for one alone")
            wire.expect(1, wanted)
        wire.open_channel(2)
        wire.publish(2, "missing", "k", b"to no exchange, long enough")
        assert wire.expect_refusal(2).code == 404
        wire.call(0, "connection.close", reply_code=200)

    summary, rows = replay(recorded(tmp_path, work), target, tmp_path / "result", speed=speed)
    assert summary.complete
    assert [(row["topic"], row["reason"]) for row in of(rows, "publish")] == [
        ("/nobody", 312), ("/one", 0), ("/one", 128), ("missing/k", 404)]


def test_who_held_back_holds_back_until_the_end(tmp_path: Path, target: AmqpBroker) -> None:
    """Prefetch lets three through; what was not acknowledged in the recording is, when all is done."""

    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(1)
        wire.call(1, "queue.declare", queue="slow")
        wire.call(1, "basic.qos", prefetch_count=3)
        wire.call(1, "basic.consume", queue="slow", consumer_tag="c")
        wire.call(1, "confirm.select")
        for _ in range(8):
            wire.publish(1, "", "slow", b"one of eight, and long enough")
            wire.expect(1, "basic.ack")
        for _ in range(3):
            wire.expect_content(1)

    rows = [row for row in rows_of(recorded(tmp_path, work)) if row["kind"] != "closed"]     # it stayed to the end
    make_recording(tmp_path / "changed", rows)
    summary, rows = replay(tmp_path / "changed", target, tmp_path / "result")
    assert summary.complete
    got = sorted(row["sent"] for row in of(rows, "delivery"))
    assert len(got) == 8 and got[3] > max(row["acked"] for row in of(rows, "publish"))
    assert not any(row["dup"] for row in of(rows, "delivery"))
    assert target.left("slow") == 0


def test_a_delivery_says_since_when_it_could_come(tmp_path: Path, target: AmqpBroker) -> None:
    """Eight wait for a consumer of three at a time, and one for a get: none of that is the broker's latency."""

    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(1)
        wire.call(1, "queue.declare", queue="slow")
        wire.call(1, "confirm.select")
        for _ in range(9):
            wire.publish(1, "", "slow", b"one of nine, and long enough")
            wire.expect(1, "basic.ack")
        wire.open_channel(2)
        wire.send(2, "basic.get", queue="slow")
        wire.send(2, "basic.ack", delivery_tag=wire.expect_content(2, "basic.get-ok").arguments["delivery_tag"])
        wire.call(1, "basic.qos", prefetch_count=3)
        wire.call(1, "basic.consume", queue="slow", consumer_tag="c")
        for _ in range(8):
            wire.send(1, "basic.ack", delivery_tag=wire.expect_content(1).arguments["delivery_tag"])
        wire.call(1, "basic.cancel", consumer_tag="c")
        wire.call(0, "connection.close", reply_code=200)

    summary, rows = replay(recorded(tmp_path, work), target, tmp_path / "result")
    assert summary.complete
    (asked,), (consumer,) = of(rows, "method", "basic.get"), of(rows, "subscribe")
    first, *got = of(rows, "delivery")
    assert asked["sent"] <= first["due"] <= first["sent"]
    dues = [row["due"] for row in got]
    assert len(got) == 8 and dues == sorted(dues) and dues[:3] == [dues[0]] * 3
    assert consumer["acked"] <= dues[0] < dues[3]
    for row, third_before in zip(got[3:], got, strict=False):
        assert third_before["sent"] <= row["due"] <= row["sent"]        # its acknowledgement made room
    live = measure(open_result(tmp_path / "result")).values["latency_p99_us"]
    assert live is not None and live * 1000 <= max(row["sent"] - row["due"] for row in [first, *got])


def test_a_broker_that_is_killed_leaves_a_partial_result(tmp_path: Path) -> None:
    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(1)
        wire.call(1, "confirm.select")
        wire.call(1, "queue.declare", queue="q")
        for _ in range(60):
            wire.publish(1, "", "q", b"one of sixty, and long enough")
            wire.expect(1, "basic.ack")
        wire.call(0, "connection.close", reply_code=200)

    # However long each step took: a publish each millisecond, which is a second in the replay, and nothing in between.
    rows = rows_of(recorded(tmp_path, work))
    time = rows[0]["time"]
    for row in rows:
        time += 1_000_000 if row["kind"] == "basic.publish" else 1_000
        row |= {"time": time, "time_ns": time}
    make_recording(tmp_path / "even", rows)
    recording = tmp_path / "even"
    with AmqpBroker(tmp_path / "dies") as dies:
        witness = dies.wire()
        witness.open_channel(1)
        witness.call(1, "queue.declare", queue="q")
        witness.call(1, "basic.consume", queue="q", no_ack=True)

        def kill_it() -> None:
            for _ in range(5):
                witness.expect_content(1)
            dies.kill()

        killer = threading.Thread(target=kill_it)
        killer.start()
        summary, rows = replay(recording, dies, tmp_path / "result", speed=0.001)
        killer.join()
    assert not summary.complete
    assert summary.why.startswith("the broker at {}:{} went away: ".format(*dies.amqp))
    assert len(of(rows, "publish")) >= 5
    assert {row["detail"]["by"] for row in of(rows, "lost-connection")} == {"broker"}


def test_who_is_refused_says_why(tmp_path: Path, target: AmqpBroker) -> None:
    """A virtual host that is not there; and no broker at all is one sentence."""
    recording = recorded(tmp_path, lambda broker: broker.wire().call(0, "connection.close", reply_code=200))
    rows = rows_of(recording)
    for row in rows:
        if row["kind"] in ("connection.open", "accepted"):
            row["detail"] = row["detail"].replace('"/"', '"elsewhere"')
    make_recording(tmp_path / "changed", rows)
    _, found = replay(tmp_path / "changed", target, tmp_path / "result")
    (connect,) = of(found, "connect")
    assert connect["reason"] == 530 and "elsewhere" in connect["detail"]["error"]
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(ReplayError, match=f"there is no broker at {nobody}: .*--amqp-broker"):
        replay(recording, target, tmp_path / "none", amqp_broker=nobody)


def test_both_protocols_meet_and_verify_judges_mqtt_alone(tmp_path: Path, target: AmqpBroker,
                                                          spark: SparkSession) -> None:
    """In amq.topic: each gets what the other publishes, and every delivery is named."""
    from fluxmq.spark.verify.command import verify

    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(1)
        wire.call(1, "queue.declare", queue="q")
        wire.call(1, "queue.bind", queue="q", exchange="amq.topic", routing_key="t.*")
        wire.call(1, "basic.consume", queue="q", no_ack=True)
        wire.call(1, "confirm.select")
        with closing(Client(broker.address)) as client:
            client.connect("mqtt")
            client.subscribe("t/#", qos=1)
            client.publish("t/1", b"from MQTT, and long enough", qos=1)
            client.receive("t/1")
            wire.expect_content(1)
            wire.publish(1, "amq.topic", "t.2", b"from AMQP, and long enough", {"delivery_mode": 2})
            wire.expect(1, "basic.ack")
            client.receive("t/2")
            wire.expect_content(1)
            client.disconnect()
        wire.call(0, "connection.close", reply_code=200)

    recording = recorded(tmp_path, work)
    asked = ReplayRequest(recording=str(recording), broker="{}:{}".format(*target.address),
                          out=str(tmp_path / "result"), amqp_broker="{}:{}".format(*target.amqp), speed=None,
                          quiet_s=0.2)
    summary = replay_here(asked)
    rows = events_of(tmp_path / "result")
    assert summary.complete and summary.broker["amqp_address"] == asked.amqp_broker
    numbers = {row["detail"]["version"]: row["client_number"] for row in of(rows, "connect")}
    assert Counter((row["client_number"], row["publisher"]) for row in of(rows, "delivery")) == {
        (here, there): 1 for here in numbers.values() for there in numbers.values()}
    ran = CliRunner().invoke(verify, [str(tmp_path / "result"), "--settle", "0"], standalone_mode=False)
    assert ran.return_value == 0, ran.output
    assert "no violation" in ran.output and "only MQTT is judged" in ran.output


@pytest.mark.parametrize("gone", [("connection.open",), ("connection.open", "accepted")])
def test_who_was_there_at_the_start_goes_on(tmp_path: Path, target: AmqpBroker, gone: tuple[str, ...]) -> None:
    """Its channels are opened when it uses them, and what comes on them is acknowledged at once; a capture that picked
    a connection up does not even say that it was accepted."""

    def work(broker: AmqpBroker) -> None:
        wire = broker.wire()
        wire.open_channel(4)
        wire.call(4, "queue.declare", queue="q")
        wire.call(4, "basic.consume", queue="q", consumer_tag="c")
        wire.publish(4, "", "q", b"without confirms, long enough")
        wire.expect_content(4)
        wire.call(4, "basic.qos", prefetch_count=1)
        wire.call(0, "connection.close", reply_code=200)

    rows = [row for row in rows_of(recorded(tmp_path, work)) if row["kind"] not in (*gone, "channel.open")]
    make_recording(tmp_path / "changed", rows)
    summary, rows = replay(tmp_path / "changed", target, tmp_path / "result")
    assert summary.complete and summary.not_sent == 0
    (sent,) = of(rows, "publish")
    assert sent["qos"] == 0 and sent["acked"] and sent["reason"] == 0
    assert [(row["topic"], row["publisher_op"]) for row in of(rows, "delivery")] == [("/q", sent["op"])]
    assert target.left("q") == 0
