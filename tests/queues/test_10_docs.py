"""docs/queues.md and the README, followed to the letter: every example is run against a broker."""
from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from kit.broker import ROOT, Broker
from kit.client import Client
from kit.python import environment
from kit.tools import require_tool
from queues.conftest import consume, put

from fluxmq.model.queues import read_specs

Start = Callable[..., Broker]
Connect = Callable[..., Client]

PAGES = ("docs/queues.md", "README.md")
SECONDS = 60.0


def blocks(*languages: str, page: str = "docs/queues.md") -> list[str]:
    """The code blocks of a page that are in one of these languages; "" is none."""
    # fences come in pairs, so every other piece between them is a block
    pieces = re.split(r"^```", (ROOT / page).read_text(), flags=re.MULTILINE)[1::2]
    return [text for language, _, text in (piece.partition("\n") for piece in pieces) if language in languages]


def lines(page: str = "docs/queues.md") -> list[list[str]]:
    """What a user would type at a shell, with the page's comments taken away."""
    return [words for block in blocks("", "sh", page=page) for line in block.splitlines()
            if (words := shlex.split(line, comments=True))]


def queues() -> str:
    """The queues of the first example, as JSON."""
    return json.dumps(yaml.safe_load(blocks("yaml")[0])["queues"])


def run(broker: Broker, words: list[str], socket: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """One line, with this broker's port and socket."""
    program, *rest = words
    if program == "fluxmq":
        words = [sys.executable, "-P", "-m", "fluxmq", *rest]
    elif program.startswith("mosquitto_"):
        words = [program, *rest, "-p", str(broker.address[1])]
    else:
        words = [program, *(word.replace("/var/lib/fluxmq/admin.sock", str(socket)) for word in rest)]
    told = environment(FLUXMQ__SERVER__ADMIN_SOCKET=str(socket))
    if program != "fluxmq":
        require_tool(program, package="curl" if program == "curl" else "mosquitto-clients")
        told.pop("LD_PRELOAD", None)    # a sanitizer's library is for our own programs
    (broker.directory / "fluxmq.yaml").write_text(blocks("yaml")[0])
    return subprocess.run(words, cwd=broker.directory, env=told,
                          text=True, capture_output=True, timeout=SECONDS, input="y\n", check=False)


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def broker(start_broker: Start, socket: Path) -> Broker:
    return start_broker(*json.loads(queues()), **{"server.admin_socket": str(socket)})


@pytest.mark.parametrize("page", PAGES)
def test_configurations_can_be_used(page: str) -> None:
    found = [yaml.safe_load(block) for block in blocks("yaml", page=page)]
    specs = [read_specs(one["queues"]) for one in found if "queues" in one]
    assert specs


def test_the_first_five_minutes(broker: Broker, socket: Path) -> None:
    typed = [words for words in lines() if words[0] != "curl"]
    start = typed.index(["fluxmq", "run", "--config", "fluxmq.yaml"])
    said = [run(broker, words, socket) for words in typed[start + 1:start + 5]]
    assert [one.returncode for one in said] == [0] * 4, said
    assert re.search(r"^orders +classic +1 +2 +2 ", said[2].stdout, re.MULTILINE), said[2]
    first, second = said[3].stdout.splitlines()
    assert first.startswith("$queue/orders: two coffees (") and "delivery-count:1" in first
    assert second.startswith("$queue/orders/shop/7/orders: one tea (") and "x-source-topic:shop/7/orders" in second


def test_a_stream_is_read_from_its_beginning(broker: Broker, socket: Path) -> None:
    said = [run(broker, words, socket) for words in lines() if "$queue/audit" in words]
    assert [one.returncode for one in said] == [0, 0], said
    assert said[1].stdout == "the door was opened\n"


def test_every_command_does_what_it_says(broker: Broker, socket: Path, connect: Connect) -> None:
    """Those of `fluxmq queue`, in the order of the page. Left out are -f, which does not end, and `move`, which needs a
    cluster (tests/cluster/test_queue_moves.py)."""
    client = connect(broker)
    put(client, "audit", b"x")
    consume(client, "audit", consumer_group="report", offset="first", qos=0)
    client.receive()
    client.disconnect()
    typed = [words for words in lines() if words[:2] == ["fluxmq", "queue"] and "-f" not in words
             and words[2] != "move"]
    assert len(typed) > 12
    for words in typed:
        said = run(broker, words, socket)
        assert said.returncode == 0, (words, said)


def test_curl_will_do(broker: Broker, socket: Path) -> None:
    run(broker, ["fluxmq", "queue", "create", "jobs"], socket)
    listed, published = (run(broker, ["curl", "-s", *words[1:]], socket) for words in lines() if words[0] == "curl")
    assert {queue["name"] for queue in json.loads(listed.stdout)["queues"]} == {"orders", "audit", "jobs"}
    assert json.loads(published.stdout)["accepted"] == 1


def test_the_examples_in_python(broker: Broker, socket: Path) -> None:
    """The publisher's, then the consumer's, which ends when its acknowledgement is on the disk."""
    pytest.importorskip("paho.mqtt")
    programs = blocks("python")
    assert len(programs) == 2
    for program in programs:
        text = program.replace('"127.0.0.1", 1883', f'"127.0.0.1", {broker.address[1]}')
        said = subprocess.run([sys.executable, "-P", "-c", text], env=environment(), text=True, capture_output=True,
                              timeout=SECONDS, check=False)
        assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == "two coffees, delivery 1\n"
    row = json.loads(run(broker, ["fluxmq", "queue", "describe", "orders", "--json"], socket).stdout)
    assert (row["messages"], row["counts"]["settled"]) == (0, 1)


def test_the_readme_about_queues(broker: Broker, socket: Path) -> None:
    typed = [words for words in lines("README.md") if any("$queue/" in word for word in words)
             or words[:2] == [".venv/bin/fluxmq", "queue"]]
    assert len(typed) >= 3
    for words in typed:
        said = run(broker, ["fluxmq" if words[0] == ".venv/bin/fluxmq" else words[0], *words[1:]], socket)
        assert said.returncode == 0, (words, said)
