"""The local session: the workers are this interpreter, and nothing listens beyond loopback."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from click.testing import CliRunner

from fluxmq.spark.cli import replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_are_this_interpreter(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).collect() == [
        sys.executable]
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"


def test_the_commands_are_listed() -> None:
    said = CliRunner().invoke(replay, ["job-path"])
    assert said.exit_code == 0 and said.output.strip().endswith("job.py")
