"""`import fluxmq` beside the sources: the installed package is found behind them, or one sentence says what to do. And
what a start does not import: it would take longer than all that it needs, and nobody asked for it."""
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.python import environment
from kit.tree import ROOT

import fluxmq

SCRIPT = "import fluxmq.client, fluxmq._core.hub.hub as hub; print(fluxmq.client.__file__); print(hub.__file__)"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the sources of the package, nothing of them compiled."""
    for path in (ROOT / "fluxmq").rglob("*.py"):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def test_a_script_in_the_checkout_uses_what_is_installed(checkout: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=checkout, env=environment(), capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    installed = Path(fluxmq.__path__[0])
    assert [Path(line).is_relative_to(installed) for line in done.stdout.split()] == [True, True]


def test_where_nothing_is_installed_one_sentence_says_what_to_do(checkout: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(checkout)!r}); {SCRIPT}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and f"`pip install .` in {checkout}" in last


# What belongs to a part that is configured, or to a rare case; and what others would bring in.
OPTIONAL = {"cryptography", "prometheus_client", "yaml", "email", "importlib.metadata", "http.server", "pyarrow",
            "argon2", "tempfile", "encodings.idna", "grpc", "etcd3", "fluxmq.app.cluster", "fluxmq.cluster.node",
            "fluxmq.access.tls", "fluxmq.access.acl_file", "fluxmq.storage.repair", "fluxmq.client", "fluxmq.spark"}
STARTED = """
import asyncio, sys
import fluxmq.app.cli
from fluxmq.app.config import load
config, _ = load(None, {}, sys.argv[1:])
from fluxmq.app.server import Server

async def start():
    server = Server(config)
    server.initialize()
    await server.start()
    await server.stop()

asyncio.run(start())
print(*sys.modules)
"""


def imported(script: str, *arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", script, *arguments], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_a_plain_start_imports_nothing_that_is_not_configured(tmp_path: Path) -> None:
    """With every kind of plain listener on, on an empty disk."""
    settings = {"storage.dir": tmp_path / "data", "server.mqtt.tcp.plain.addr": "127.0.0.1:0",
                "server.mqtt.websocket.plain.addr": "127.0.0.1:0", "server.amqp091.plain.addr": "127.0.0.1:0",
                "server.health_addr": "127.0.0.1:0", "broker.max_qos": 1, "storage.sync_interval": "1s"}
    found = imported(STARTED, *(f"{key}={value}" for key, value in settings.items()))
    assert "fluxmq.storage.store" in found and "fluxmq.admin.metrics" in found
    assert found & OPTIONAL == set()


def test_what_is_configured_is_imported(tmp_path: Path) -> None:
    """The names above are those of what a start would import."""
    acl = tmp_path / "acl.yaml"
    acl.write_text("version: 1\nrules: []\n")
    found = imported(STARTED, "storage.type=memory", "server.mqtt.tcp.plain.addr=127.0.0.1:0",
                     "server.admin_socket=off", "server.health_enabled=false", f"auth.acl_file={acl}")
    assert found & OPTIONAL >= {"yaml", "fluxmq.access.acl_file"}


def test_the_command_line_asks_a_broker_without_being_one() -> None:
    """`fluxmq queue list` and the like are started from scripts, again and again."""
    found = imported("import sys, fluxmq.app.cli; print(*sys.modules)")
    heavy = {"fluxmq.app.server", "fluxmq._core.hub.hub", "rocksdict", "asyncio", "msgspec"}
    assert found & (OPTIONAL | heavy) == set()
