"""What the view is fed with: a broker's tap and counters, several brokers together, and brokers that come and go."""
from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.node import Node
from kit.record_entries import IN, OUT, START, entry
from kit.recording import Recorded

from fluxmq._core.errors import FluxError
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect, Packet, PubAck, Publish
from fluxmq._core.record.counts import KINDS
from fluxmq.app.admin_client import AdminClient
from fluxmq.view import feed as feeding
from fluxmq.view.feed import Broker, Feed, Places, ask_places
from fluxmq.view.lanes import Lanes

PATIENCE_S = 20.0   # only a failing test needs it


def started(directory: Path) -> Node:
    directory.mkdir(exist_ok=True)
    return Node(directory, {"storage.type": "memory", "server.admin_socket": directory / "admin.sock",
                            "queues": "[{name: orders, partitions: 3}, {name: emails}]"})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = started(tmp_path / "one")
    yield made
    made.stop()


def connect(path: Path) -> Callable[[], AdminClient]:
    return lambda: AdminClient(path / "admin.sock", "--attach")


class Fed:
    """A feed, and what it has counted so far: by title of the lane and kind."""

    def __init__(self, *directories: Path, ring_bytes: int = 0) -> None:
        self.lanes = Lanes()
        self.feed = Feed([connect(path) for path in directories], self.lanes, ring_bytes)
        self.counts: dict[tuple[str, str], int] = {}
        self.now = 0.0
        self.feed.start()

    def take(self) -> None:
        self.now += 0.03
        for lane, kinds in self.feed.take(self.now).items():
            for kind, count in zip(KINDS, kinds, strict=True):
                if count:
                    name = (self.lanes.lanes[lane].title, kind)
                    self.counts[name] = self.counts.get(name, 0) + count

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, self.counts
            self.take()
            time.sleep(0.005)

    def close(self) -> None:
        self.feed.close()


def client(node: Node, name: str) -> Client:
    made = Client(node.address, 5)
    made.connect(name)
    return made


def test_what_clients_do_is_counted_on_its_lane(node: Node) -> None:
    fed = Fed(node.directory)
    fed.until(lambda: len(fed.lanes.shown()) == 4)          # three partitions, and emails
    one = client(node, "one")
    one.subscribe(("plant/#", 1), ("$queue/orders", 1))
    for at in range(30):
        one.publish("plant/1/temperature", b"21", 1)
        one.receive("plant/1/temperature")
        one.publish("$queue/orders", b"x", 1, properties={"user_property": [("partition-key", f"k{at % 3}")]})
        one.receive("$queue/orders")
    fed.until(lambda: sum(count for (_, kind), count in fed.counts.items() if kind == "ack") >= 59)
    assert {fed.counts["plant/…", kind] for kind in ("publish", "deliver", "confirm")} == {30}
    for kind in ("publish", "deliver", "confirm"):
        parts = [fed.counts.get((f"orders/{at}", kind), 0) for at in range(3)]
        assert sum(parts) == 30, kind
    # A key has its partition: what was published to one was delivered from it.
    assert [fed.counts.get((f"orders/{at}", "publish"), 0) for at in range(3)] == [
        fed.counts.get((f"orders/{at}", "deliver"), 0) for at in range(3)]
    fed.until(lambda: fed.feed.brokers[0].rates())
    numbers = fed.feed.numbers(fed.now)
    assert 0 < numbers.confirm[0] <= numbers.confirm[1]
    assert 0 < numbers.ack[0] <= numbers.ack[1]
    assert (numbers.shown, numbers.trouble, numbers.connections) == (1.0, "", 1)
    assert numbers.received is not None and numbers.sent is not None
    fed.close()
    one.disconnect()


def test_which_latency_is_which(tmp_path: Path) -> None:
    """Half of the confirms take 1 ms and a few 100 ms, half of the acknowledgements 5 ms and a few 500 ms."""
    feed = Feed([connect(tmp_path)], Lanes())
    packets: list[tuple[int, Packet, int]] = [(IN, Connect(client_id="c"), 0), (OUT, ConnAck(), 0)]
    for number in range(1, 101):
        late = 100 if number > 97 else 1
        packets += [(IN, Publish("a", qos=1, packet_id=number), 0), (OUT, PubAck(number), late),
                    (OUT, Publish("a", qos=1, packet_id=number), 0), (IN, PubAck(number), 5 * late)]
    feed.brokers[0].counts.feed(b"".join(entry(way, 1, encode_packet(packet, 5), time=START + ms * 1_000_000)
                                         for way, packet, ms in packets))
    numbers = feed.numbers(1.0)
    assert numbers.confirm == pytest.approx((1_000, 100_000), rel=0.13)
    assert numbers.ack == pytest.approx((5_000, 500_000), rel=0.13)
    assert feed.numbers(20.0).confirm == (-1, -1)       # what is past is not told any more


def test_backlogs_are_the_brokers(node: Node) -> None:
    one = client(node, "one")
    for _ in range(7):
        one.publish("$queue/emails", b"x", 1)
    admin = connect(node.directory)()
    cluster, queues = ask_places(admin)
    admin.close()
    assert cluster["state"] == "standalone"
    assert dict(queues)["emails"] == [("", 7, False)]
    assert dict(queues)["orders"] == [("", 0, False)] * 3
    fed = Fed(node.directory)
    fed.until(lambda: fed.feed.places.number)
    fed.take()
    assert fed.feed.numbers(fed.now).backlog == 7
    fed.close()
    one.disconnect()


def test_two_brokers_are_counted_together(node: Node, tmp_path: Path) -> None:
    other = started(tmp_path / "two")
    fed = Fed(node.directory, other.directory)
    for at, each in enumerate((node, other)):
        one = client(each, f"c{at}")
        for _ in range(at + 1):
            one.publish("a/b", b"x", 1)
        one.disconnect()
    fed.until(lambda: fed.counts.get(("a/…", "confirm")) == 3)
    assert fed.counts["a/…", "publish"] == 3
    fed.close()
    other.stop()


def test_a_small_ring_is_a_sample_and_it_is_said_how_large(node: Node) -> None:
    fed = Fed(node.directory, ring_bytes=64 << 10)
    one = client(node, "one")
    deadline = time.monotonic() + PATIENCE_S
    shown = 1.0
    while shown > 0.9:                      # nobody takes while this is published
        for _ in range(40):
            one.publish("big/x", bytes(14_000), 1)
        fed.take()
        shown = fed.feed.numbers(fed.now).shown
        assert time.monotonic() < deadline
    counters = fed.feed.brokers[0].counters
    assert counters["lost_bytes"] > 0 and counters["bytes"] > 0
    fed.close()
    one.disconnect()


def test_one_view_at_a_time_says_who_has_it(node: Node) -> None:
    fed = Fed(node.directory)
    with pytest.raises(FluxError, match=r"being viewed already by .*fluxmq viz, process \d+"):
        Fed(node.directory)
    recorded = Recorded(node)               # a recording may run beside it
    recorded.end()
    fed.close()
    again = Fed(node.directory)             # at once: its reader has said that it takes no more
    again.close()


def test_a_broker_that_is_back_is_watched_again(node: Node) -> None:
    fed = Fed(node.directory)
    fed.until(lambda: fed.feed.places.number)
    node.stop()
    fed.until(lambda: fed.feed.brokers[0].trouble)
    assert fed.feed.numbers(fed.now).trouble
    back = started(node.directory)
    try:
        fed.until(lambda: not fed.feed.brokers[0].trouble)
        one = client(back, "one")
        one.publish("a/b", b"x", 1)
        fed.until(lambda: fed.counts.get(("a/…", "confirm")) == 1)
        assert not fed.feed.numbers(fed.now).trouble
        one.disconnect()
    finally:
        fed.close()
        back.stop()


def test_a_broker_that_is_not_there_yet_is_waited_for_if_another_is(node: Node, tmp_path: Path) -> None:
    fed = Fed(node.directory, tmp_path / "two")
    assert "no broker answers" in fed.feed.numbers(0.0).trouble
    other = started(tmp_path / "two")
    fed.until(lambda: not fed.feed.numbers(fed.now).trouble)
    fed.close()
    other.stop()
    with pytest.raises(FluxError, match="no broker answers"):
        Fed(tmp_path / "nowhere")


class Refusing:
    """An admin connection."""

    def ask(self, *_: Any, **__: Any) -> Any:
        raise FluxError("not now")

    def record(self, *_: Any, **__: Any) -> Any:
        raise FluxError("no view here")

    def close(self) -> None:
        pass


def test_a_refusal_is_passed_on() -> None:
    broker = Broker(lambda: Refusing(), lambda topic, exchange: (0, 1))
    with pytest.raises(FluxError, match="no view here"):
        broker.start()


class Asked:
    """An admin socket that has these queues."""

    def __init__(self, *queues: dict[str, Any]) -> None:
        self._queues = queues

    def ask(self, method: str, *segments: str, query: Any = None, body: Any = None) -> dict[str, Any]:
        return {"cluster": {"env": "c"}, "queues": {"queues": list(self._queues)}}[segments[0]]


def test_an_empty_queue_of_the_broker_itself_has_no_lane() -> None:
    def entry(name: str, messages: int, **more: Any) -> dict[str, Any]:
        part = {"node": "n1", "state": "running", "messages": messages, "lag": messages}
        return {"name": name, "messages": messages, "partition_list": [part]} | more

    admin: Any = Asked(entry("jobs", 0), entry("$under-way-1", 0, internal=True),
                       entry("$under-way-2", 3, internal=True))
    assert ask_places(admin)[1] == [("jobs", [("n1", 0, False)]), ("$under-way-2", [("n1", 3, False)])]


def test_the_backlog_is_what_consumers_have_before_them() -> None:
    """Not what a stream keeps; and nobody knows that of a node that does not answer."""
    parts = [{"node": "n1", "state": "running", "messages": 900, "lag": 12},
             {"node": "n2", "state": "running", "messages": 900, "lag": None},
             {"node": "n3", "state": "away", "messages": None, "lag": None}]
    admin: Any = Asked({"name": "audit", "messages": 1800, "partition_list": parts})
    assert ask_places(admin)[1] == [("audit", [("n1", 12, False), ("n2", 0, False), ("n3", -1, True)])]


def test_a_node_that_hangs_keeps_nobody_waiting(node: Node, tmp_path: Path) -> None:
    """It takes connections, and answers nothing."""
    with socket.socket(socket.AF_UNIX) as hung:
        path = tmp_path / "hung.sock"
        hung.bind(str(path))
        hung.listen(64)
        lanes = Lanes()
        feed = Feed([lambda: AdminClient(path, "--attach", 0.2), connect(node.directory)], lanes)
        feed.start()
        try:
            assert [bool(broker.trouble) for broker in feed.brokers] == [True, False]
            assert f"the broker at {path} does not answer in time" in feed.numbers(0.0).trouble
            deadline = time.monotonic() + PATIENCE_S
            while not feed.places.number:       # the next one is asked who owns what
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            feed.close()


def test_a_view_that_none_gives_says_what_a_broker_has_answered(node: Node, tmp_path: Path) -> None:
    first = Feed([connect(node.directory)], Lanes())
    first.start()
    try:
        with pytest.raises(FluxError, match="is being viewed already"):
            Feed([connect(tmp_path / "nowhere"), connect(node.directory)], Lanes()).start()
    finally:
        first.close()


class Late(Asked):
    """The first answer comes late."""

    asked = 0

    def ask(self, method: str, *segments: str, query: Any = None, body: Any = None) -> dict[str, Any]:
        if not self.asked:
            time.sleep(0.5)
        self.asked += 1
        return super().ask(method, *segments)

    def close(self) -> None:
        pass


def test_a_late_answer_does_not_stop_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "ASK_MAX_S", 0.01)
    late: Any = Late()
    places = Places([lambda: late])
    places.start()
    deadline = time.monotonic() + PATIENCE_S
    while places.number < 3:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    places.close()
