"""A replay against a broker, in one process without Spark: what was recorded is done again, every delivery is named."""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker, free_port
from kit.client import Client
from kit.story import Story, events_of

from fluxmq.record.reading import open_recording
from fluxmq.spark.player.play import PlayStatus, play
from fluxmq.spark.replay.plan import plain_plan
from fluxmq.spark.replay.replaying import ReplayError, ReplayRequest, play_options, replay_here
from fluxmq.spark.result import Summary, open_result

Rows = list[dict[str, Any]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "broker")
    one.start()
    yield one
    one.stop()
    one.check()


@pytest.fixture
def replayed(tmp_path: Path, broker: Broker) -> Callable[..., tuple[Summary, Rows]]:
    def replay(story: Story, **options: Any) -> tuple[Summary, Rows]:
        story.write(tmp_path / "recording")
        asked = {"speed": None, "quiet_s": 0.2 if options.get("speed") is None else 3.0} | options
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                            broker="{}:{}".format(*broker.address), **asked))
        return summary, events_of(tmp_path / "result")

    return replay


def of(rows: Rows, event: str, client: str | None = None) -> Rows:
    return [row for row in rows if row["event"] == event and client in (None, row["client"])]


def names(rows: Rows) -> Counter[tuple[str, int, int]]:
    """Who got which publish how often."""
    return Counter((row["client"], row["publisher"], row["publisher_op"]) for row in rows if row["event"] == "delivery")


def test_every_publish_and_every_delivery_is_there(replayed: Callable[..., tuple[Summary, Rows]]) -> None:
    story = Story()
    for client in ("one", "two"):
        story.connect(client, version=4 if client == "two" else 5)
    story.subscribe("one", ("a/#", 2), ("b", 0))
    story.connect("pub")
    for number in range(300):
        story.publish("pub", f"a/{number % 7}", number % 3, size=number)
    story.publish("two", "b", 1)
    story.disconnect("pub")
    summary, rows = replayed(story)
    assert summary.complete and summary.why == "" and summary.not_sent == 0
    publishes = of(rows, "publish", "pub")
    assert [row["op"] for row in publishes] == list(range(1, 301))
    assert [row["topic"] for row in publishes] == [f"a/{number % 7}" for number in range(300)]
    assert [row["size"] for row in publishes] == [0, *(max(16, size) for size in range(1, 300))]
    assert all(row["acked"] >= row["sent"] and row["due"] is None and row["reason"] in (0, 0x10) for row in publishes)
    got = of(rows, "delivery")
    assert [row["op"] for row in sorted(got, key=lambda row: row["op"])] == list(range(301))
    number = publishes[0]["client_number"]
    traced = [row for row in got if row["size"]]
    assert [row["publisher"] for row in got if not row["size"]] == [None]      # the empty one has no trace
    assert {(row["publisher"], row["publisher_op"]) for row in traced} == {
        (row["client_number"], row["op"]) for row in of(rows, "publish") if row["size"]}
    sizes = {(row["client_number"], row["op"]): (row["size"], row["topic"]) for row in of(rows, "publish")}
    assert all(sizes[row["publisher"], row["publisher_op"]] == (row["size"], row["topic"]) for row in traced)
    assert number != of(rows, "publish", "two")[0]["client_number"]
    assert summary.counts == dict(Counter(row["event"] for row in rows))
    assert [row["qos"] for row in of(rows, "subscribe")] == [2, 0]
    assert [row["detail"]["version"] for row in of(rows, "connect")] == [5, 4, 5]


def test_what_was_there_at_the_start_is_there_before_the_first_operation(
        replayed: Callable[..., tuple[Summary, Rows]]) -> None:
    story = Story()
    story.there("sub", ("x/+", 1))
    story.there("old", ("x/#", 0), version=4, clean=False)
    story.there("pub")
    story.publish("pub", "x/1", 1, at=1.0)
    summary, rows = replayed(story, speed=4.0)
    assert summary.complete
    assert names(rows) == {("sub", 1, 1): 1, ("old", 1, 1): 1}
    assert all(row["acked"] < (summary.started or 0) for row in of(rows, "subscribe"))
    (sent,) = of(rows, "publish")
    assert sent["due"] == summary.started and sent["sent"] >= sent["due"]


def test_sessions_end_as_they_did(replayed: Callable[..., tuple[Summary, Rows]]) -> None:
    """A clean end, one with the will asked for, a lost connection whose will is published, a session that goes on."""
    story = Story()
    story.connect("watch")
    story.subscribe("watch", ("will/#", 1))
    for client in ("clean", "asked", "lost"):
        story.connect(client, will={"topic": f"will/{client}", "qos": 1, "retain": False, "size": 40})
    story.disconnect("clean")
    story.disconnect("asked", reason=4)
    story.lost("lost")
    story.connect("kept", clean=False, properties={"session_expiry_interval": 600})
    story.subscribe("kept", ("k", 1))
    story.disconnect("kept")
    story.publish("watch", "k", 1)
    story.connect("kept", clean=False, properties={"session_expiry_interval": 600})
    summary, rows = replayed(story)
    assert summary.complete
    connects = {row["client_number"]: row for row in of(rows, "connect")}
    wills = {row["topic"]: connects[row["publisher"]]["client"] for row in of(rows, "delivery", "watch")}
    assert wills == {"will/asked": "asked", "will/lost": "lost"}
    assert all(connects[row["publisher"]]["op"] == row["publisher_op"] for row in of(rows, "delivery", "watch"))
    assert [row["topic"] for row in of(rows, "delivery", "kept")] == ["k"]
    first, second = of(rows, "connect", "kept")
    assert not first["detail"]["session_present"] and second["detail"]["session_present"]
    assert (first["connection"], second["connection"]) == (0, 1)
    (lost,) = of(rows, "lost-connection")
    assert (lost["client"], lost["detail"]) == ("lost", {"by": "client"})
    assert [row["reason"] for row in of(rows, "disconnect", "asked")] == [4]


def test_subscriptions_are_given_up(replayed: Callable[..., tuple[Summary, Rows]]) -> None:
    story = Story()
    story.connect("sub")
    story.subscribe("sub", ("t", 1))
    story.connect("pub")
    story.publish("pub", "t", 1)
    story.unsubscribe("sub", "t", "never")
    story.publish("pub", "t", 1)
    _, rows = replayed(story)
    assert names(rows) == {("sub", 0, 1): 1}
    assert [(row["topic"], row["reason"]) for row in of(rows, "unsubscribe")] == [("t", 0), ("never", 0x11)]


def test_retained_shared_and_queues(tmp_path: Path, broker: Broker) -> None:
    broker.stop()
    one = Broker(tmp_path / "queues", {"queue_manager.auto_create": "classic"})
    one.start()
    try:
        story = Story()
        story.connect("pub")
        story.publish("pub", "kept/1", 1, retain=True)
        for client in ("a", "b"):
            story.connect(client)
            story.subscribe(client, ("$share/g/work", 1), ("kept/#", 1), ("$queue/jobs", 1))
        for _ in range(20):
            story.publish("pub", "work", 1)
            story.publish("pub", "$queue/jobs", 1)
        story.write(tmp_path / "recording")
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                            broker="{}:{}".format(*one.address), speed=None, copies=2))
        rows = events_of(tmp_path / "result")
    finally:
        one.stop()
    assert summary.complete
    deliveries = of(rows, "delivery")
    topics = Counter(row["topic"] for row in deliveries)
    assert topics == {"kept/1": 2, "~1/kept/1": 2, "work": 20, "~1/work": 20, "$queue/jobs": 40}
    assert {row["topic"] for row in of(rows, "subscribe", "a~1")} == {"$share/g/~1/work", "~1/kept/#", "$queue/jobs"}
    assert all(row["retain"] for row in deliveries if row["topic"].endswith("kept/1"))
    assert max(names(rows).values()) == 1


def test_a_client_that_never_acknowledged_holds_back(replayed: Callable[..., tuple[Summary, Rows]]) -> None:
    """Until the last operation; then it does, so that what waited for it comes too."""
    story = Story()
    story.connect("mute", properties={"receive_maximum": 2})
    story.subscribe("mute", ("t", 1))
    story.connect("pub")
    for _ in range(5):
        story.publish("pub", "t", 1)
    for _ in range(2):
        story.delivered("mute", "t", 1)
    _, rows = replayed(story)
    got = sorted(row["sent"] for row in of(rows, "delivery", "mute"))
    assert len(got) == 5
    assert got[2] > max(row["acked"] for row in of(rows, "publish"))


def test_copies_do_the_same_work_apart(replayed: Callable[..., tuple[Summary, Rows]]) -> None:
    story = Story()
    story.connect("sub")
    story.subscribe("sub", ("t/#", 1))
    story.connect("pub")
    for number in range(50):
        story.publish("pub", f"t/{number}", 1, properties={"response_topic": "t/answer"})
    summary, rows = replayed(story, copies=3)
    assert summary.recording["clients"] == 6
    for copy in ("", "~1", "~2"):
        mine = {row["op"] for row in of(rows, "publish", f"pub{copy}")}
        number = of(rows, "publish", f"pub{copy}")[0]["client_number"]
        assert {row["publisher"] for row in of(rows, "delivery", f"sub{copy}")} == {number}
        assert {row["publisher_op"] for row in of(rows, "delivery", f"sub{copy}")} == mine
    assert len(of(rows, "delivery")) == 150
    assert {row["topic"].split("/")[0] for row in of(rows, "publish", "pub~2")} == {"~2"}


def test_due_is_as_recorded_and_lateness_is_known(replayed: Callable[..., tuple[Summary, Rows]]) -> None:
    story = Story()
    story.connect("pub", at=0.0)
    for number in range(1, 21):
        story.publish("pub", "t", 1, at=number / 10)
    summary, rows = replayed(story, speed=20.0)
    started = summary.started or 0
    dues = [row["due"] - started for row in of(rows, "publish")]
    assert dues == pytest.approx([number * 5_000_000 for number in range(1, 21)], abs=1000)
    assert all(row["sent"] >= row["due"] for row in of(rows, "publish"))
    assert summary.late_ns_max == max(row["sent"] - row["due"] for row in rows if row["due"] is not None)


def test_payloads_of_a_full_recording_come_back(tmp_path: Path, broker: Broker) -> None:
    """Behind the trace stands what was recorded: seen by a client of the test's own."""
    story = Story()
    story.connect("pub")
    payload = bytes(range(256)) * 3
    story.publish("pub", "full", 1, size=len(payload), payload=payload,
                  properties={"content_type": "text/x", "user_property": [["k", "v"]], "correlation_data": "AAE="})
    story.write(tmp_path / "recording")
    with closing(Client(broker.address)) as client:
        client.connect("seer")
        client.subscribe("full", qos=1)
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                            broker="{}:{}".format(*broker.address), speed=None, quiet_s=0.1))
        got = client.receive("full")
    assert got.payload[16:] == payload[16:] and got.payload[:4] == summary.run.to_bytes(4, "big")
    assert ("k", "v") in [value for _, value in got.properties if isinstance(value, tuple)]


def test_a_broker_that_is_killed_leaves_a_partial_result(tmp_path: Path, broker: Broker) -> None:
    story = Story()
    story.connect("sub", at=0.0)
    story.subscribe("sub", ("t", 1))
    story.connect("pub")
    for number in range(100):
        story.publish("pub", "t", 1, at=0.1 + number * 0.01)
    for number in range(100):
        story.publish("pub", "t", 1, at=600.0 + number)
    story.write(tmp_path / "recording")

    with closing(Client(broker.address)) as client:
        client.connect("witness")
        client.subscribe("t", qos=0)

        def kill_it() -> None:
            for _ in range(50):
                client.receive("t")
            broker.kill()

        killer = threading.Thread(target=kill_it)
        killer.start()
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                            broker="127.0.0.1:{1}".format(*broker.address)))
        killer.join()
    assert not summary.complete
    assert summary.why.startswith(f"the broker at 127.0.0.1:{broker.address[1]} went away: ")
    rows = events_of(tmp_path / "result")
    assert len(of(rows, "publish")) >= 50 and len(of(rows, "delivery")) >= 40     # the witness was served first
    assert {row["detail"]["by"] for row in of(rows, "lost-connection")} == {"broker"}
    assert not open_result(tmp_path / "result").summary.complete


def test_a_player_without_a_connection_stops_with_another(tmp_path: Path, broker: Broker) -> None:
    """Nothing else tells it that the broker is gone, before its next operation is due ten minutes later."""
    story = Story()
    story.connect("pub", at=0.0)
    story.publish("pub", "t", 1)
    story.disconnect("pub")
    story.connect("pub", at=600.0)
    story.write(tmp_path / "recording")
    plan, (operations,) = plain_plan(open_recording(tmp_path / "recording"))
    asked = ReplayRequest(recording="", out="", broker="127.0.0.1:{1}".format(*broker.address))
    told: list[str] = []
    options = replace(play_options(asked, plan, 1), report_lost_broker=told.append,
                      lost_broker=lambda: "the broker went away" if status.publishes else "")
    status = PlayStatus()
    rows = sum(batch.num_rows for batch in play(operations, options, status))
    assert (status.why, status.complete, rows) == ("the broker went away", False, 3)
    assert status.publishes == 1 and not told


def test_no_broker_is_one_sentence(tmp_path: Path) -> None:
    story = Story()
    story.connect("pub")
    story.write(tmp_path / "recording")
    with pytest.raises(ReplayError, match=r"there is no broker at 127\.0\.0\.1:"):
        replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                  broker=f"127.0.0.1:{free_port()}"))
    assert not (tmp_path / "result").exists()
