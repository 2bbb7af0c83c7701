"""What a broker recorded is replayed against a second one that records too: the two recordings say the same."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import Connack, Connect, Publish

from fluxmq.record.reading import open_recording
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here
from fluxmq.spark.result import open_result

PACKETS = ("CONNECT", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "DISCONNECT")
Work = Callable[[Broker], object]


def recorded(folder: Path, work: Work) -> Path:
    """The recording of what `work` does with a broker of its own."""
    broker = Broker(folder / "broker", {"record.enabled": True, "record.dir": str(folder / "recordings"),
                                        "record.payload": "full"})
    broker.start()
    try:
        work(broker)
        broker.check()
        assert broker.terminate() == 0
    finally:
        broker.stop()
    (path,) = (folder / "recordings").iterdir()
    return path


def traffic(broker: Broker) -> None:
    """Both versions, every QoS, a will, a session that is taken up again, retained, unsubscribed."""
    with ExitStack() as stack:
        def client(name: str, version: int = 5, **more: Any) -> Client:
            made = stack.enter_context(closing(Client(broker.address, version)))
            made.connect(name, **more)
            return made

        sub, old = client("sub"), client("old", 4)
        sub.subscribe("t/#", qos=2)
        old.subscribe("t/1", qos=1)
        pub = client("pub")
        for number in range(30):
            pub.publish(f"t/{number % 3}", b"message %02d, long enough" % number, qos=number % 3)
        for _ in range(30):
            sub.receive()
        for _ in range(10):
            old.receive("t/1")
        sub.unsubscribe("t/#")
        pub.publish("kept", b"retained, and long enough", qos=1, retain=True)
        late = client("late")
        late.subscribe("kept", qos=1)
        late.receive("kept")
        kept = client("kept", clean_start=False, properties={"session_expiry_interval": 120})
        kept.subscribe("k", qos=1)
        kept.disconnect()
        pub.publish("k", b"while it was away, long", qos=1)
        again = stack.enter_context(closing(Client(broker.address)))
        again.send(Connect(client_id="kept", clean_start=False, properties={"session_expiry_interval": 120}))
        again.expect(Connack, session_present=True)
        again.receive("k")
        pub.disconnect()


def told(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What each client asked for, in order: what is the broker's to choose, and the trace, left out."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in open_recording(path).table().to_pylist():
        if row["direction"] == "in" and row["kind"] in PACKETS:
            content = row["payload"][16:] if row["payload"] else None
            found.setdefault(row["client_id"], []).append(
                (row["kind"], row["version"], row["topic"], row["qos"], row["retain"], row["size"], content,
                 row["detail"] if row["kind"] in ("SUBSCRIBE", "UNSUBSCRIBE") else None))
    return found


def brought(path: Path) -> Counter[tuple[Any, ...]]:
    """What each client got."""
    return Counter((row["client_id"], row["topic"], row["qos"], row["retain"], row["payload"][16:])
                   for row in open_recording(path).table().to_pylist()
                   if row["direction"] == "out" and row["kind"] == "PUBLISH")


@pytest.mark.parametrize("speed", [None, 1.0])
def test_a_replay_is_what_was_recorded(tmp_path: Path, speed: float | None) -> None:
    first = recorded(tmp_path / "first", traffic)

    def again(broker: Broker) -> None:
        summary = replay_here(ReplayRequest(recording=str(first), broker="{}:{}".format(*broker.address), speed=speed,
                                            out=str(tmp_path / "result"), quiet_s=0.3))
        assert summary.complete, summary.why

    second = recorded(tmp_path / "second", again)
    before, after = told(first), told(second)
    assert before.keys() == after.keys() == {"sub", "old", "pub", "late", "kept"}
    for client, packets in before.items():
        # Who had not left when the recording ended leaves when the replay does.
        extra = after[client][len(packets):]
        assert after[client][:len(packets)] == packets
        assert [packet[0] for packet in extra] in ([], ["DISCONNECT"])
    if speed is None:
        # With a speed nobody waits for another client, and what was micro-seconds apart may come in another order.
        assert brought(first) == brought(second)
        assert sum(brought(first).values()) == 42
    rows = open_result(tmp_path / "result").table()
    deliveries = sum(brought(second).values())
    assert rows["event"].to_pylist().count("delivery") == deliveries
    assert rows["publisher"].null_count == rows.num_rows - deliveries


def test_the_oracle_reads_what_is_replayed(tmp_path: Path) -> None:
    """A client of the test's own sees the replay as any other."""
    seen: list[Publish] = []
    first = recorded(tmp_path / "first", traffic)

    def again(broker: Broker) -> None:
        with closing(Client(broker.address)) as witness:
            witness.connect("witness")
            witness.subscribe("#", qos=2)
            replay_here(ReplayRequest(recording=str(first), broker="{}:{}".format(*broker.address), speed=None,
                                      out=str(tmp_path / "result"), quiet_s=0.2, copies=2))
            seen.extend(witness.receive() for _ in range(64))

    recorded(tmp_path / "second", again)
    assert Counter(one.topic.startswith("~1/") for one in seen) == {True: 32, False: 32}
