"""The job: players in the slots of Spark, which meet; on `local[2]`, and on a standalone cluster of two workers."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from kit.broker import Broker, free_port
from kit.client import Client
from kit.python import environment
from kit.story import Story, events_of
from kit.tools import require_tool
from kit.watch import wait_until

from fluxmq.spark.cli import replay
from fluxmq.spark.replay.command import meeting, replay_with_spark
from fluxmq.spark.replay.replaying import ReplayError, ReplayRequest
from fluxmq.spark.result import open_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 400
SPARK_SECONDS = 90.0           # until it plays
CLUSTER_SECONDS = 400         # generous: five processes of Java on a machine that may be busy


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "broker").start()
    yield one
    one.stop()
    one.check()


def crossing(*, there: bool = False) -> Story:
    """Publishers and subscribers of which some must be in different partitions. there: when the recording began, so
    that no speed brings a publish before the subscription of another player."""
    story = Story()
    for number in range(4):
        if there:
            story.there(f"sub-{number}", (f"t/{number}/#", 1))
            story.there(f"pub-{number}")
        else:
            story.connect(f"sub-{number}")
            story.subscribe(f"sub-{number}", (f"t/{number}/#", 1))
            story.connect(f"pub-{number}")
    for number in range(MESSAGES):
        story.publish(f"pub-{number % 4}", f"t/{number // 4 % 4}/x", number % 3)
    for number in range(4):
        story.disconnect(f"pub-{number}")
    for number in range(0 if there else 4):
        story.disconnect(f"sub-{number}")       # not before all players have published, nor before all came
    return story


def check(result: Path, copies: int = 1) -> None:
    """Each publish came to its one subscriber, once."""
    rows = events_of(result)
    counts = Counter(row["event"] for row in rows)
    assert counts["publish"] == counts["delivery"] == MESSAGES * copies
    numbers = {row["client"]: row["client_number"] for row in rows}
    assert sorted(numbers.values()) == list(range(8 * copies))
    sent = {(row["client_number"], row["op"]): row for row in rows if row["event"] == "publish"}
    for row in rows:
        if row["event"] == "delivery":
            assert sent.pop((row["publisher"], row["publisher_op"]))["topic"] == row["topic"]
    assert not sent


@pytest.mark.parametrize("speed", [None, 5.0])
def test_two_players_meet(tmp_path: Path, spark: SparkSession, broker: Broker, speed: float | None) -> None:
    recording = crossing(there=speed is not None).write(tmp_path / "recording", rows_per_part=100)
    asked = ReplayRequest(recording=str(recording), broker="{}:{}".format(*broker.address),
                          out=str(tmp_path / "result"), speed=speed, copies=2, quiet_s=0.3)
    summary = replay_with_spark(spark, asked)
    assert summary.complete and summary.partitions == 2
    check(tmp_path / "result", copies=2)
    result = open_result(tmp_path / "result", partial=False)
    assert {Path(name).name[:9] for name in result.files} == {"part-0000", "part-0001"}
    assert result.frame(spark).count() == sum(summary.counts.values())
    assert not (tmp_path / "result" / ".progress").exists()
    assert len(summary.memory) == len(summary.cpu) and all(size > 1 << 20 for _, size in summary.memory)
    assert len(summary.cpu) >= 2 and summary.cpu[-1][1] >= summary.cpu[0][1] > 0     # it was found from /proc


def test_nobody_begins_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may tell a player only a second after it that the others have come: the beginning is later than that."""
    from pyspark import BarrierTaskContext

    class Context:
        def allGather(self, said: str) -> list[str]:
            return ["start 5000", said, "start 9000"]

    monkeypatch.setattr(BarrierTaskContext, "get", Context)
    assert meeting("start", 7000) > 9000 + 1_000_000_000


def test_more_players_than_slots_are_refused(tmp_path: Path, spark: SparkSession, broker: Broker) -> None:
    asked = ReplayRequest(recording=str(crossing().write(tmp_path / "recording")), out=str(tmp_path / "result"),
                          broker="{}:{}".format(*broker.address), partitions=3)
    with pytest.raises(ReplayError, match="all 3 partitions must run at one time, and Spark has room for 2"):
        replay_with_spark(spark, asked)


def test_the_command(tmp_path: Path, spark: SparkSession, broker: Broker) -> None:
    recording = crossing().write(tmp_path / "recording")
    arguments = ["run", str(recording), "--broker", "{}:{}".format(*broker.address), "--out", str(tmp_path / "result"),
                 "--fast", "--partitions", "1", "--quiet", "0.2"]
    said = CliRunner().invoke(replay, arguments, standalone_mode=False)
    assert said.exception is None and said.return_value == 0
    assert f"{MESSAGES} publishes and {MESSAGES} deliveries of 8 clients" in said.output
    check(tmp_path / "result")
    again = CliRunner().invoke(replay, arguments)
    assert "is not empty: name a new directory" in str(again.exception)


def test_a_broker_that_is_killed_is_one_sentence(tmp_path: Path, spark: SparkSession, broker: Broker) -> None:
    story = crossing(there=True)
    for number in range(100):
        story.publish("pub-0", "t/0/x", 1, at=600.0 + number)
    recording = story.write(tmp_path / "recording")
    with closing(Client(broker.address, timeout=SPARK_SECONDS)) as witness:
        witness.connect("witness", keep_alive=0)
        witness.subscribe("t/#", qos=0)

        def kill_it() -> None:
            for _ in range(MESSAGES // 2):
                witness.receive()
            broker.kill()

        killer = threading.Thread(target=kill_it)
        killer.start()
        said = CliRunner().invoke(replay, ["run", str(recording), "--broker", "{}:{}".format(*broker.address),
                                           "--out", str(tmp_path / "result")], standalone_mode=False)
        killer.join()
    assert said.exception is None and said.return_value == 1
    last = said.output.strip().splitlines()[-1]
    assert last.startswith(f"fluxmq: the result is partial: the broker at 127.0.0.1:{broker.address[1]} went away: ")
    result = open_result(tmp_path / "result")
    assert not result.summary.complete and result.summary.counts["publish"] >= MESSAGES // 2
    assert result.table().num_rows == sum(result.summary.counts.values())


def test_what_cannot_be_played_is_said_before_spark_starts(tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, "-P", "-m", "fluxmq", "replay", "run", str(tmp_path), "--broker", "x:1",
                           "--out", str(tmp_path / "result")], capture_output=True, text=True, timeout=60,
                          env=environment())
    assert said.returncode == 1 and "Traceback" not in said.stderr
    assert said.stderr.startswith("fluxmq: ") and len(said.stderr.splitlines()) == 1


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and two workers of one processor on loopback; the address of the master."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port, pages = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    classes = "org.apache.spark.deploy."
    settings = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
                             "SPARK_HOME": str(program.parents[1]), "PYSPARK_PYTHON": sys.executable}
    processes = []
    try:
        for number, arguments in enumerate([
                [classes + "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(pages)],
                *([classes + "worker.Worker", "-c", "1", "-m", "600m", "--host", "127.0.0.1", "-d",
                   str(folder / f"work-{index}"), "--webui-port", str(free_port()), master] for index in range(2))]):
            with (folder / f"daemon-{number}.log").open("wb") as log:
                processes.append(subprocess.Popen([str(program), *arguments], stdout=log, stderr=log, env=settings))
        wait_until(lambda: (folder / "daemon-0.log").read_text().count("Registering worker") == 2, 200)
        yield master
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.mark.soak       # five JVMs
@pytest.mark.timeout(CLUSTER_SECONDS + 100)
def test_on_a_cluster_of_two_workers(tmp_path: Path, broker: Broker) -> None:
    """spark-submit gives it to executors that are processes of their own."""
    pytest.importorskip("pyspark")
    require_tool("java", package="default-jre-headless")
    import pyspark

    from fluxmq.spark import job

    recording = crossing().write(tmp_path / "recording")
    with cluster(tmp_path) as master:
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        said = subprocess.run(
            [str(submit), "--master", master, "--executor-memory", "500m", "--driver-memory", "500m",
             "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1", str(job.__file__),
             "run", str(recording), "--broker", "{}:{}".format(*broker.address), "--out", str(tmp_path / "result"),
             "--fast", "--quiet", "0.3", "--partitions", "2"],
            capture_output=True, text=True, timeout=CLUSTER_SECONDS, cwd=tmp_path,
            env=environment(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable,
                            PYSPARK_DRIVER_PYTHON=sys.executable))
    assert said.returncode == 0, said.stderr[-3000:]
    assert f"{MESSAGES} publishes and {MESSAGES} deliveries" in said.stdout
    assert open_result(tmp_path / "result", partial=False).summary.partitions == 2
    check(tmp_path / "result")
