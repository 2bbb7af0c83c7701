"""`fluxmq viz` and a try-out: it is found, and keys steer it."""
from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.terminal import Screen
from kit.tryout import Tryout
from kit.watch import wait_until


@pytest.fixture
def tryout(request: pytest.FixtureRequest) -> Iterator[Tryout]:
    """One with so many nodes; without a number, one."""
    base = Path(tempfile.mkdtemp(prefix="fq-"))     # a short name, as sockets want it
    try:
        with Tryout(base, "--nodes", str(getattr(request, "param", 1)), "--hold") as made:
            assert made.up["nodes"]
            yield made
            made.end()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def test_keys_steer_a_tryout(tryout: Tryout, tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "fluxmq", "viz", "--tryout", str(tryout.directory)]
    screen = Screen(tmp_path, words, 140, 30)
    try:
        first = tryout.status()["clients"][0]["client"]
        screen.until(rf"{first} .*/s each, confirms on, (keyed|round robin)", r"orders/3 +\S* *├", "emails",
                     r"confirm p50 \d")
        screen.press("c")
        screen.until("confirms off", r"/s each, confirms off")
        assert tryout.status()["traffic"]["confirms"] is False
        before = tryout.status()["traffic"]["rate"]
        screen.press("]")
        screen.until("each publisher sends")
        assert tryout.status()["traffic"]["rate"] == pytest.approx(before * 1.5)
        screen.press("Tab")
        screen.until(rf"\[{first}\]")
        screen.press("Space")
        screen.until(rf"\[{first} paused\]")
        screen.press("Space")
        screen.until(rf"\[{first}\]", "resume")
        screen.press("k")
        wait_until(lambda: tryout.status()["clients"][0]["state"] == "killed")
        screen.until(rf"\[{first} killed\]")
        screen.press("r")
        wait_until(lambda: tryout.status()["clients"][0]["state"] == "running")
        screen.press("Escape", "q")
        assert screen.ended() == 0
    finally:
        screen.close()


@pytest.mark.parametrize("tryout", [3], indirect=True)
def test_keys_let_nodes_fail_and_deliveries_come_again(tryout: Tryout, tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "fluxmq", "viz", "--tryout", str(tryout.directory)]
    screen = Screen(tmp_path, words, 140, 30)
    try:
        screen.until(r"● node-1 \d+ sessions +● node-2 \d+ sessions +● node-3 \d+ sessions", r"confirm p50 \d")

        def counted(name: str) -> int:
            return sum(client[name] for client in tryout.status()["clients"])

        returned = counted("returned")
        screen.press("n")
        screen.until(r"(mqtt|amqp)-sub-\d gives back its next delivery")
        wait_until(lambda: counted("returned") > returned and counted("redelivered") > 0)
        screen.press("Tab", "Tab", "Tab")
        screen.until(r"\[● node-3 \d+ sessions\]")
        screen.press("k")
        screen.until(r"\[✖ node-3 down\]", "node-3: kill")
        assert tryout.status()["nodes"][2]["state"] == "down"
        screen.press("r")
        screen.until(r"\[● node-3 \d+ sessions\]")
        assert tryout.command("stop", "node-1")[0] == 0
        screen.until(r"✖ node-1 hangs", "node-1 is not watched")
        assert tryout.command("continue", "node-1")[0] == 0
        screen.until(r"● node-1 \d+ sessions")
        wait_until(lambda: "not watched" not in screen.text())
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()
