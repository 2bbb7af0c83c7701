"""docs/recording.md, followed to the letter; its tables are those of the code."""
from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from kit.broker import ROOT
from kit.pcap import IN, OUT, Talk, write_capture
from kit.python import environment

from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect, PubAck, Publish
from fluxmq.record.manifest import Manifest
from fluxmq.record.schema import COLUMNS

PAGE = (ROOT / "docs/recording.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def blocks(language: str) -> list[str]:
    pieces = re.split(r"^```", PAGE, flags=re.MULTILINE)[1::2]
    return [text for found, _, text in (piece.partition("\n") for piece in pieces) if found == language]


def test_the_columns_are_the_schema() -> None:
    def name(kind: pa.DataType) -> str:
        return str(kind.value_type if pa.types.is_dictionary(kind) else kind)

    assert table("Columns") == [[f"`{column.name}`", name(column.type), column.meaning] for column in COLUMNS]


def test_the_manifest_is_the_struct() -> None:
    documented = [name for row in table("The files") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(documented) == sorted(Manifest.__struct_fields__)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands were run, with a capture."""
    where = tmp_path_factory.mktemp("docs")
    talk = Talk()
    talk.opened()
    for way, packet in ((IN, Connect(client_id="c")), (OUT, ConnAck()),
                        (IN, Publish("a", payload=b"12345", qos=1, packet_id=1)), (OUT, PubAck(1))):
        talk.sent(way, encode_packet(packet, 5))
    talk.closed()
    write_capture(where / "traffic.pcap", talk.packets)
    return where


def test_commands_and_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command but the one that needs a broker, and every example but Spark's."""
    monkeypatch.chdir(place)
    lines = [shlex.split(line) for block in blocks("") for line in block.splitlines() if line]
    assert [words[2] for words in lines] == ["--dir", "import", "show", "show"]
    for words in lines[1:]:
        done = subprocess.run([sys.executable, "-P", "-m", *words], env=environment(), capture_output=True, text=True,
                              timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), words
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        for block in blocks("python")[:2]:
            exec(compile(block, "docs/recording.md", "exec"), {})
    assert "['part-000001.parquet']" in told.getvalue() and "1 5" in told.getvalue() and "0.99" in told.getvalue()
