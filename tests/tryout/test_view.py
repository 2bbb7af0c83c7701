"""`fluxmq tryout --viz`: the view has the terminal, from the first node on, and the try-out ends with it."""
from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.command import run
from kit.etcd import etcd_binary
from kit.terminal import Screen
from kit.tryout import processes_of
from kit.watch import wait_until

from fluxmq.tryout.control import ControlClient


@pytest.fixture
def show(base: Path) -> Iterator[Callable[..., Screen]]:
    """A try-out with its view in a terminal; nothing of it may be left."""
    etcd_binary()
    made: list[Screen] = []

    def begin(*words: str) -> Screen:
        command = [sys.executable, "-P", "-m", "fluxmq", "tryout", "--viz", *words]
        made.append(Screen(base, command, 140, 40, TMPDIR=str(base)))
        return made[-1]

    yield begin
    for screen in made:
        screen.close()


def nothing_is_left(base: Path) -> None:
    wait_until(lambda: not any("tmux" not in line for line in processes_of(base / "fluxmq-tryout").values()))
    assert not list(base.glob("fluxmq-tryout-*"))


def test_nodes_that_join_are_seen_and_q_ends_it_all(base: Path, show: Callable[..., Screen]) -> None:
    screen = show("--nodes", "2", "--staggered")
    screen.until(r"node-1 \d+ sessions", r"orders/0 +node-1", "emails", r"q quit")
    screen.until(r"node-2 \d+ sessions", r"orders/1 +\S*.?node-2", r"confirm p50 \d")
    screen.press("q")
    assert screen.ended() == 0
    text = screen.text()
    # What went on meanwhile is said behind it.
    assert re.search(r"node-2 +has partition 1 of orders now", text) and re.search(r"s  ends", text)
    nothing_is_left(base)


def test_an_order_to_end_ends_the_view_first(base: Path, show: Callable[..., Screen]) -> None:
    screen = show("--nodes", "1")
    screen.until("mqtt-pub-1", r"orders/3 +node-1")
    [place] = base.glob("fluxmq-tryout-*")
    with ControlClient(place / "control.sock") as control:
        control.end()
    assert screen.ended() == 0
    nothing_is_left(base)


def test_a_view_that_is_killed_leaves_the_terminal_as_it_was(base: Path, show: Callable[..., Screen]) -> None:
    screen = show("--nodes", "1")
    screen.until("mqtt-pub-1", r"q quit")
    [view] = [pid for pid, line in processes_of(base).items() if " viz " in line]
    os.kill(view, signal.SIGKILL)
    assert screen.ended() == 128 + signal.SIGKILL
    assert "q quit" not in screen.text() and re.search(r"s  ends", screen.text())
    nothing_is_left(base)


def test_what_it_cannot_be_used_with() -> None:
    etcd_binary()
    status, said = run("tryout", "--viz", "--json")
    assert status == 2 and "--viz takes the terminal" in said
    assert "--viz takes the terminal" in run("tryout", "--viz", "--failover-verify")[1]
    status, said = run("tryout", "--viz")
    assert status == 1 and "needs a terminal" in said and said.count("\n") == 1
