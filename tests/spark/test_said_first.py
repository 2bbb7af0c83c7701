"""What is said before Spark starts, or without it; and `fluxmq replay show`."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from kit.broker import Broker, free_port
from kit.python import environment
from kit.recordings import make_recording
from kit.results import connect, delivery, publish, result_of
from kit.story import Story

from fluxmq._core.errors import FluxError
from fluxmq.spark.cli import replay
from fluxmq.spark.replay.replaying import ReplayError
from fluxmq.spark.result import ResultError

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from fluxmq.app.cli import main
main(["replay", {command!r}, {argument!r}])
"""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("fluxmq.spark.session.session", started)


def test_a_wrong_broker_and_a_used_place_are_said_before_spark_starts(tmp_path: Path) -> None:
    story = Story()
    story.connect("one")
    recording = str(story.write(tmp_path / "recording"))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "something").touch()
    nobody = f"127.0.0.1:{free_port()}"
    for out, kind, says in (("new", ReplayError, f"there is no broker at {nobody}"),
                            ("used", ResultError, "is not empty: name a new directory")):
        said = CliRunner().invoke(replay, ["run", recording, "--broker", nobody, "--out", str(tmp_path / out)])
        assert isinstance(said.exception, kind) and says in str(said.exception)
    assert not (tmp_path / "new").exists()


def test_a_broker_of_another_protocol_is_said_before_spark_starts(tmp_path: Path) -> None:
    """One of two addresses wrong, and both exchanged."""
    story = Story()
    story.connect("one")
    story.write(tmp_path / "mqtt")
    rows = [{"kind": "opened", "connection": 1, "protocol": "mqtt"},
            {"kind": "opened", "connection": 2, "protocol": "amqp091"}]
    make_recording(tmp_path / "both", rows)
    make_recording(tmp_path / "each", rows, rows_per_part=1)
    nobody = f"127.0.0.1:{free_port()}"

    def said(recording: str, broker: str, amqp: str) -> str:
        found = CliRunner().invoke(replay, ["run", str(tmp_path / recording), "--broker", broker, "--amqp-broker", amqp,
                                            "--out", str(tmp_path / "out")])
        assert isinstance(found.exception, ReplayError | AssertionError), found.output
        return str(found.exception)

    with Broker(tmp_path / "broker", {"server.amqp091.plain.addr": f"127.0.0.1:{free_port()}"}) as broker:
        mqtt, amqp = ("{}:{}".format(*broker.addresses[name]) for name in ("mqtt/tcp/plain", "amqp091/plain"))
        for recording in ("both", "each"):
            assert said(recording, nobody, amqp).startswith(f"there is no broker at {nobody}: ")
            assert said(recording, mqtt, nobody).endswith("or name another with --amqp-broker")
            assert said(recording, amqp, mqtt) == (
                f"what listens at {amqp} does not speak MQTT, but AMQP; the recording has clients of MQTT: name a "
                f"listener for them with --broker")
            assert said(recording, mqtt, mqtt) == (
                f"what listens at {mqtt} does not speak AMQP 0-9-1; the recording has clients of AMQP 0-9-1: name a "
                f"listener for them with --amqp-broker")
            assert said(recording, mqtt, amqp) == "Spark was started"
        assert said("mqtt", mqtt, nobody) == "Spark was started", "nobody needs the other address"


@pytest.mark.parametrize(("command", "option", "path", "says"), [
    ("verify", "--out", "x" * 300, "cannot be a directory for the violations: File name too long"),
    ("profile", "--out", "x" * 300, "cannot be a directory for the tables: File name too long"),
    ("verify", "--out", "used", "used is not empty: name a new directory for the violations"),
    ("profile", "--out", "used/something", "used/something is not empty: name a new directory for the tables"),
    ("verify", "--html", "x" * 300, "cannot be written: File name too long"),
    ("profile", "--html", "nowhere/page.html", "there is no directory "),
])
def test_a_place_that_cannot_be_written_is_said_before_spark_starts(command: str, option: str, path: str, says: str,
                                                                    tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "something").touch()
    if command == "verify":
        result_of(tmp_path / "given", [connect(1)])
    else:
        Story().write(tmp_path / "given")
    said = CliRunner().invoke(replay, [command, str(tmp_path / "given"), option, str(tmp_path / path)])
    assert isinstance(said.exception, FluxError) and says in str(said.exception), said.exception


def without(command: str, argument: object, *missing: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", WITHOUT.format(missing=missing, command=command,
                                                                      argument=str(argument))],
                          env=environment(), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", ["run", "profile", "verify", "show", "compare", "gate"])
def test_without_the_extra_it_is_one_sentence(command: str) -> None:
    done = without(command, "x", "pyarrow")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "needs pyarrow, which is not installed: pip install '.[spark]'" in done.stderr


def test_without_spark_it_is_one_sentence(tmp_path: Path) -> None:
    result_of(tmp_path / "r", [connect(1)])
    done = without("verify", tmp_path / "r", "pyspark", "py4j")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "needs pyspark, which is not installed: pip install '.[spark]'" in done.stderr


def test_a_result_is_shown(tmp_path: Path) -> None:
    rows = [connect(1), publish(0, 0, 0), publish(0, 1, 100), delivery(1, 0, 10, 0, 0), delivery(1, 1, 130, 0, 1)]
    result_of(tmp_path / "r", rows, recorded={"publish": 2, "delivery": 3}, counts={"publish": 2, "delivery": 2},
              complete=False, why="the broker went away", not_replayed={"repeated publishes": 4})
    said = CliRunner().invoke(replay, ["show", str(tmp_path / "r")])
    assert said.exception is None, said.output
    lines = said.output.splitlines()
    assert lines[0] == f"result {tmp_path / 'r'}: partial: the broker went away"
    assert "  deliveries                  3        2" in lines and "  not replayed: 4 repeated publishes" in lines
    assert any(line.split() == ["Latency,", "p99", "30", "µs"] for line in lines)
