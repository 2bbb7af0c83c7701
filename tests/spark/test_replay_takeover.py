"""A client whose second connection takes over the first, in a replay: its session goes on, nothing is lost by it."""
from __future__ import annotations

from collections import Counter
from pathlib import Path

from kit.broker import Broker
from kit.story import Story, events_of

from fluxmq.spark.replay.replaying import ReplayRequest, replay_here

PUBLISHES = 40


def test_publishes_of_qos_2_are_not_taken_for_repetitions(tmp_path: Path) -> None:
    """At once, so that exchanges are under way when the second connection comes; and again with the third."""
    story = Story()
    story.connect("sub")
    story.subscribe("sub", ("t", 2))
    for _ in range(3):
        story.connect("pub", clean=False, properties={"session_expiry_interval": 600}, at=1.0)
        for _ in range(PUBLISHES):
            story.publish("pub", "t", 2, at=1.0)
    story.write(tmp_path / "recording")
    broker = Broker(tmp_path / "broker")
    broker.start()
    try:
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                            broker="{}:{}".format(*broker.address), quiet_s=0.3))
    finally:
        broker.stop()
    rows = events_of(tmp_path / "result")
    assert summary.complete
    connects = [row for row in rows if row["event"] == "connect" and row["client"] == "pub"]
    assert [row["detail"]["session_present"] for row in connects] == [False, True, True]
    published = [row for row in rows if row["event"] == "publish"]
    assert len(published) == 3 * PUBLISHES and all(row["acked"] is not None for row in published)
    got = Counter(row["publisher_op"] for row in rows if row["event"] == "delivery")
    assert got == Counter(row["op"] for row in published)
    lost = [row for row in rows if row["event"] == "lost-connection"]
    assert len(lost) == 2 and all(row["detail"]["by"] == "broker" and row["detail"]["error"] for row in lost)
