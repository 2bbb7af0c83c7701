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


def test_the_example(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = [text for text in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/recording.md").read_text(),
                                           re.MULTILINE | re.DOTALL) if "spark" in text]
    generate_recording(tmp_path / "imported", rows=2_000, topics=50)
    exec(compile(block.replace("imported", f"{tmp_path}/imported"), "docs/recording.md", "exec"), {"spark": spark})
    assert "plant/" in capsys.readouterr().out
