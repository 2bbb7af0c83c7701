"""docs/client.md, followed to the letter: every example is run against a broker."""
from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.broker import ROOT, Broker
from kit.python import environment

SECONDS = 60.0
SAYS = [
    "room/7/temperature 21.5\n",
    "",
    "nobody listens\n0x90\n",
    "order two coffees 7\n",
    "two coffees, delivery 1\ntwo coffees, delivery 2\none tea, delivery 1\none tea, delivery 2\n",
    "b'a/b' b'1' 1 1024\nclosed\n",
]


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/client.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("docs"), {"queues": '[{"name": "orders"}]'}) as broker:
        yield broker


def test_every_example_has_its_words() -> None:
    assert len(programs()) == len(SAYS)


@pytest.mark.parametrize("number", range(len(SAYS)))
def test_an_example(broker: Broker, number: int, tmp_path: Path) -> None:
    text = programs()[number]
    assert "localhost:1883" in text
    text = text.replace("localhost:1883", "{}:{}".format(*broker.addresses["mqtt/tcp/plain"]))
    said = subprocess.run([sys.executable, "-P", "-c", text], env=environment(), text=True, capture_output=True,
                          cwd=tmp_path, timeout=SECONDS, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    # What a window has room for then is a matter of turns.
    assert re.sub(r" 102[34]\b", " 1024", said.stdout) == SAYS[number]
