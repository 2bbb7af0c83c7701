"""Whatever stands still, a replay ends and says why: a broker that is stopped, one that never answers, a full disk."""
from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from kit.broker import Broker
from kit.client import Client
from kit.story import Story, events_of

from fluxmq.record.reading import open_recording
from fluxmq.spark.player.play import AHEAD_BYTES, PlayStatus, play
from fluxmq.spark.replay.plan import plain_plan
from fluxmq.spark.replay.replaying import ReplayRequest, play_options, replay_here


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "broker")
    one.start()
    yield one
    one.stop()


@pytest.mark.parametrize("speed", [None, 1.0])
def test_a_broker_that_is_stopped(tmp_path: Path, broker: Broker, speed: float | None) -> None:
    """It breaks no connection and takes new ones."""
    story = Story()
    story.connect("sub")
    story.subscribe("sub", ("t", 1))
    for number in range(2000):
        story.connect(f"pub{number}")
        story.publish(f"pub{number}", "t", 1)
        story.disconnect(f"pub{number}")
    story.write(tmp_path / "recording")
    assert broker.process is not None
    pid = broker.process.pid
    with closing(Client(broker.address)) as client:
        client.connect("witness")
        client.subscribe("t", qos=0)

        def stop_it() -> None:
            for _ in range(20):
                client.receive("t")
            os.kill(pid, signal.SIGSTOP)

        stopper = threading.Thread(target=stop_it)
        stopper.start()
        try:
            summary = replay_here(ReplayRequest(
                recording=str(tmp_path / "recording"), out=str(tmp_path / "result"), speed=speed, patience_s=0.5,
                broker="127.0.0.1:{1}".format(*broker.address)))
        finally:
            stopper.join()
            os.kill(pid, signal.SIGCONT)
    assert summary.why == (f"the broker at 127.0.0.1:{broker.address[1]} hangs: it takes connections, and for "
                           "0.5 s it answered nothing")
    assert not summary.complete
    assert len([row for row in events_of(tmp_path / "result") if row["event"] == "publish"]) >= 20


def test_a_broker_that_never_answers(tmp_path: Path) -> None:
    story = Story()
    for number in range(100):
        story.connect(f"c{number}")
    story.write(tmp_path / "recording")
    with closing(socket.create_server(("127.0.0.1", 0), backlog=500)) as mute:
        address = "127.0.0.1:{1}".format(*mute.getsockname())
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                            speed=None, patience_s=0.3, broker=address))
    assert summary.why.startswith(f"the broker at {address} hangs: ") and not summary.complete


def test_a_player_whose_rows_nobody_takes_stops(tmp_path: Path, broker: Broker) -> None:
    """As when the disk of the result is full: its clients must not play on behind whoever said so."""
    story = Story()
    story.connect("pub", at=0.0)
    for _ in range(40_000):
        story.publish("pub", "t", 0, at=0.0)
    story.publish("pub", "t", 0, at=600.0)
    story.write(tmp_path / "recording")
    plan, (operations,) = plain_plan(open_recording(tmp_path / "recording"))
    asked = ReplayRequest(recording="", out="", broker="127.0.0.1:{1}".format(*broker.address))
    status = PlayStatus()
    rows = play(operations, play_options(asked, plan, 1), status)
    next(rows)
    rows.close()        # type: ignore[attr-defined]
    assert status.why == "Spark no longer reads its rows" and not status.complete
    assert not [thread for thread in threading.enumerate() if thread.name == "player"]


def test_operations_are_read_ahead_by_bytes(tmp_path: Path, broker: Broker) -> None:
    """Large payloads are not all in memory while the first of them is not due yet."""
    story = Story()
    story.connect("pub", at=0.0)
    for number in range(20):
        story.publish("pub", "t", 0, at=600.0 + number, payload=bytes(1000), size=1000)
    story.write(tmp_path / "recording")
    plan, (operations,) = plain_plan(open_recording(tmp_path / "recording"))
    first, = operations
    heavy = pa.RecordBatch.from_pylist([row | {"payload": bytes(AHEAD_BYTES // 15)} for row in first.to_pylist()],
                                       schema=first.schema)
    taken, waits = [], threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            taken.append(number)
            if number == 2:
                waits.set()
            yield heavy.slice(0, 1) if number == 0 else heavy

    asked = ReplayRequest(recording="", out="", broker="127.0.0.1:{1}".format(*broker.address))
    status = PlayStatus()
    options = play_options(asked, plan, 1)

    def told() -> str:
        return "that is enough" if waits.is_set() else ""

    options.lost_broker = told
    assert sum(batch.num_rows for batch in play(batches(), options, status))
    assert status.why == "that is enough" and taken[-1] <= 4


def test_more_clients_than_this_machine_has_connections_for(tmp_path: Path, broker: Broker) -> None:
    """That is no broker that went away."""
    story = Story()
    for number in range(300):
        story.connect(f"c{number}")
    story.write(tmp_path / "recording")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "recording"), out=str(tmp_path / "result"),
                                            speed=None, quiet_s=0.1, broker="127.0.0.1:{1}".format(*broker.address)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert summary.why.startswith(f"a player may open {limit} files") and not summary.complete
