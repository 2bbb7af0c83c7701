"""The local session: the workers are this interpreter, nothing listens beyond loopback, and Spark says errors alone."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from kit.python import environment
from kit.results import connect, result_of

from fluxmq.spark import session
from fluxmq.spark.cli import replay
from fluxmq.spark.session import JAVA_WARNING, SHORT_JOB, SHORT_ROWS, only_errors, short_job, without_java_warning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_are_this_interpreter(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).collect() == [
        sys.executable]
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"


def test_spark_says_errors_alone(spark: SparkSession) -> None:
    """From its start on, not only from when there is a session."""
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    place = Path(unquote(urlsplit(system.getProperty("log4j2.configurationFile")).path))
    assert place.samefile(Path(session.__file__).with_name("log4j2.properties"))
    assert "rootLogger.level = error" in place.read_text()


def test_logging_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    home = {"SPARK_HOME": str(tmp_path)}
    free, theirs = dict(home), {"SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=file:///x"}
    only_errors(free)
    assert free["SPARK_SUBMIT_OPTS"].startswith('"-Dlog4j2.configurationFile=file:///')
    (tmp_path / "conf" / "log4j2.properties").touch()
    for environ in (theirs, home, {"SPARK_CONF_DIR": str(tmp_path / "conf")}):
        before = dict(environ)
        only_errors(environ)
        assert environ == before
    more = {"SPARK_SUBMIT_OPTS": "-Dx=1"}
    only_errors(more)
    assert more["SPARK_SUBMIT_OPTS"].startswith('-Dx=1 "-Dlog4j2')
    only_errors(again := dict(more))
    assert again == more


def test_what_java_says_of_its_modules_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    says = f"import os; os.write(2, {JAVA_WARNING!r} + b'Error: no heap\\n' + {JAVA_WARNING!r} + b'no end of line')"
    with without_java_warning() as passing:
        subprocess.run([sys.executable, "-c", says], check=True)
    passing.join(60)
    assert not passing.is_alive()
    os.write(2, b", and mine")
    assert capfd.readouterr().err == "Error: no heap\nno end of line, and mine"


@pytest.mark.timeout(320)
def test_nothing_stands_before_a_result(tmp_path: Path) -> None:
    """A command as a user starts it, with a Java of its own: no line but what it has to say."""
    result_of(tmp_path / "r", [connect(1)])
    done = subprocess.run([sys.executable, "-P", "-m", "fluxmq", "replay", "verify", str(tmp_path / "r")],
                          env=environment(), capture_output=True, text=True, timeout=300)
    # On a busy machine it says every ten seconds how far it has come.
    said = [line for line in done.stderr.splitlines() if not re.match(r"(starting Spark|verify): \d", line)]
    assert not said and done.stdout.startswith("result "), done.stdout
    assert done.returncode == 2 and done.stdout.endswith("nothing was proved: no delivery was expected\n"), done.stdout


@pytest.mark.parametrize(("options", "kept"), [
    ("", SHORT_JOB), ("-Dx=y", f"-Dx=y {SHORT_JOB}"), ("-XX:TieredStopAtLevel=3", "-XX:TieredStopAtLevel=3"),
    ("-Xmx2g -XX:+UseG1GC", "-Xmx2g -XX:+UseG1GC"), ("-XX:+UseStringDeduplication", None)])
def test_a_short_job_leaves_what_somebody_said_of_java(options: str, kept: str | None) -> None:
    environ = {"SPARK_SUBMIT_OPTS": options}
    short_job(environ)
    assert environ["SPARK_SUBMIT_OPTS"] == (f"{options} {SHORT_JOB}" if kept is None else kept)


@pytest.mark.timeout(320)
@pytest.mark.parametrize(("count", "level"), [
    (1, "1"), pytest.param(SHORT_ROWS, "", marks=pytest.mark.soak)])     # the same command, in another Java
def test_java_lives_as_short_as_its_job(tmp_path: Path, count: int, level: str) -> None:
    """Of few rows and of many, as a summary says."""
    result_of(tmp_path / "r", [connect(1)], counts={"connect": 1, "publish": count})
    lines = ("import sys", "from fluxmq.spark.verify import command", "from pyspark.sql import SparkSession",
             "def judged(*_, **__):",
             "    java = SparkSession.getActiveSession().sparkContext._jvm",
             "    print(list(java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()))",
             "    raise SystemExit",
             "import fluxmq.spark.verify.violations", "fluxmq.spark.verify.violations.judged = judged",
             "command.verify([sys.argv[1]])")
    done = subprocess.run([sys.executable, "-P", "-c", "\n".join(lines), str(tmp_path / "r")], env=environment(),
                          capture_output=True, text=True, timeout=300)
    assert ("-XX:TieredStopAtLevel=1" in done.stdout) == bool(level), done.stdout + done.stderr
    assert "-Dlog4j2" in done.stdout


def test_the_commands_are_listed() -> None:
    said = CliRunner().invoke(replay, ["job-path"])
    assert said.exit_code == 0 and said.output.strip().endswith("job.py")
