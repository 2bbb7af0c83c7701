"""The Spark session of a job: the one `spark-submit` made, or a local one.

Python workers must be the interpreter that runs this (PySpark takes `python3` from PATH otherwise, which lacks what we
need), and a local driver listens on loopback only.
"""
from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from fluxmq._core.errors import FluxError
from fluxmq.model.extras import how_to_install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkMissing", "file_url", "only_errors", "session", "short_job", "without_java_warning"]

LOOPBACK = "127.0.0.1"
LOGGING = "log4j2.properties"
STDERR = 2
# A job on so few rows ends before Java's optimising compiler pays off: without it `verify` takes three quarters of the
# time and half of the CPU time, for 400 events and for 200 000.
SHORT_ROWS = 200_000
SHORT_JOB = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Java's warning about a module that Spark always requests. No option of Java suppresses it.
JAVA_WARNING = b"WARNING: Using incubator modules: jdk.incubator.vector\n"


class SparkMissing(FluxError):
    """PySpark or its Java is not installed."""


def session(name: str, master: str | None = None, settings: dict[str, str] | None = None, *,
            rows: int | None = None) -> SparkSession:
    """The session that runs in this process, or a new one.

    name: of the application on Spark's pages. master: as spark-submit's `--master`; None: spark-submit's value, else
    `local[*]`. settings: of Spark, overriding the defaults here. rows: number of rows that the job reads, if known: a
    local session for few of them starts Java for a short life. Raises SparkMissing.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession as Builder
    except ImportError:
        raise SparkMissing(f"PySpark is not installed: {how_to_install('spark')}") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    only_errors(os.environ)
    builder: Any = Builder.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    if not _submitted():
        if master is None:
            builder = builder.master("local[*]")
        if master is None or master.startswith("local") or LOOPBACK in master:
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
            builder = builder.config("spark.driver.host", LOOPBACK)
        ours = (master is None or master.startswith("local")) and Builder.getActiveSession() is None
        if ours and rows is not None and rows <= SHORT_ROWS:
            short_job(os.environ)
        builder = builder.config("spark.ui.enabled", "false")
    # Otherwise workers search their start directory first, which in a checkout has sources that are not built.
    builder = builder.config("spark.executorEnv.PYTHONSAFEPATH", "1")
    defaults = {"spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.pyspark.enabled": "true",
                "spark.sql.shuffle.partitions": "8", "spark.ui.showConsoleProgress": "false"}
    for key, value in (defaults | (settings or {})).items():
        builder = builder.config(key, value)
    try:
        with without_java_warning():
            made: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        # PySpark's own text begins with the name of its condition, "[JAVA_GATEWAY_EXITED]".
        reason = re.sub(r"^\[\w+\] ", "", str(error)).rstrip(".")
        raise SparkMissing(f"Spark does not start: {reason}. It needs Java 17 or newer on PATH, or JAVA_HOME") from None
    made.sparkContext.setLogLevel("ERROR")
    return made


def file_url(path: object) -> str:
    """A file for Spark, by its absolute path, escaped because Hadoop treats paths as patterns."""
    return "file://" + re.sub(r"[\\*?\[\]{}]", r"\\\g<0>", str(path))


def only_errors(environ: MutableMapping[str, str]) -> None:
    """Lets Spark log errors only; it takes its options from this environment when it starts. Logging that the user has
    configured is unchanged."""
    options = environ.get("SPARK_SUBMIT_OPTS", "")
    places = [environ["SPARK_CONF_DIR"]] if "SPARK_CONF_DIR" in environ else []
    places += [f"{environ['SPARK_HOME']}/conf"] if "SPARK_HOME" in environ else []
    if "log4j" not in options and not any(list(Path(place).glob("log4j2.*")) for place in places):
        ours = Path(__file__).with_name(LOGGING).absolute().as_uri()
        environ["SPARK_SUBMIT_OPTS"] = f'{options} "-Dlog4j2.configurationFile={ours}"'.strip()


def short_job(environ: MutableMapping[str, str]) -> None:
    """Lets Java compile quickly instead of well; it takes its options from this environment when it starts. Options of
    the user for compiler or collector are unchanged."""
    options = environ.get("SPARK_SUBMIT_OPTS", "")
    if "TieredStopAtLevel" not in options and not re.search(r"-XX:\+Use\w*GC\b", options):
        environ["SPARK_SUBMIT_OPTS"] = f"{options} {SHORT_JOB}".strip()


@contextmanager
def without_java_warning() -> Iterator[Thread]:
    """Processes started inside write their standard error through a pipe until they end; all lines but JAVA_WARNING are
    forwarded. Yields the thread that does it, which ends with the last of those processes."""
    terminal = os.dup(STDERR)
    source, sink = os.pipe()
    os.dup2(sink, STDERR)
    os.close(sink)
    passing = Thread(target=_pass_on, args=(source, os.dup(terminal)), name="stderr of Spark", daemon=True)
    passing.start()
    try:
        yield passing
    finally:
        os.dup2(terminal, STDERR)
        os.close(terminal)


def _pass_on(source: int, to: int) -> None:
    """Closes both at the end of source. If `to` is closed, such as a terminal, the rest is read nevertheless, because
    the writers would block otherwise."""
    with open(source, "rb") as lines, open(to, "wb", buffering=0) as terminal:
        for line in lines:
            if line != JAVA_WARNING:
                try:
                    terminal.write(line)
                except OSError:
                    continue


def _submitted() -> bool:
    """Whether spark-submit started this process: then it defines master and settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
