"""The Spark example of docs/recording.md."""
from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit.broker import ROOT
from kit.recordings import generate_recording

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_example(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:
    [block] = [text for text in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/recording.md").read_text(),
                                           re.MULTILINE | re.DOTALL) if "spark" in text]
    generate_recording(tmp_path / "imported", rows=2_000, topics=50)
    before = spark.conf.get("spark.sql.legacy.parquet.nanosAsLong")
    try:
        exec(compile(block.replace("imported/", f"{tmp_path}/imported/"), "docs/recording.md", "exec"),
             {"spark": spark})
    finally:
        spark.conf.set("spark.sql.legacy.parquet.nanosAsLong", before)
    assert "plant/" in capsys.readouterr().out
