"""`fluxmq viz` in tmux: keys are sent, screens compared; how it begins and ends, whatever the terminal."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.client import Client
from kit.command import run
from kit.node import Node
from kit.python import environment
from kit.terminal import Screen

from fluxmq.view.screen import ENTER, LEAVE

PATIENCE_S = 60.0   # only a failing test needs it
COMMAND = [sys.executable, "-P", "-m", "fluxmq", "viz"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, {"storage.type": "memory", "server.admin_socket": tmp_path / "admin.sock",
                           "queues": "[{name: orders, partitions: 3}, {name: emails}]"})
    yield made
    made.stop()


@pytest.fixture
def show(tmp_path: Path, node: Node) -> Iterator[Callable[..., Screen]]:
    """Starts the view of the node."""
    made: list[Screen] = []

    def begin(*words: str) -> Screen:
        made.append(Screen(tmp_path, [*COMMAND, "--attach", str(tmp_path / "admin.sock"), *words]))
        return made[-1]

    yield begin
    for screen in made:
        screen.close()


def client(node: Node, name: str = "one") -> Client:
    made = Client(node.address, 5)
    made.connect(name)
    return made


def traffic(one: Client, count: int = 20) -> None:
    for _ in range(count):
        one.publish("plant/1/temperature", b"21", 1)
        one.publish("$queue/emails", b"x", 1)


def test_a_session_of_a_user(node: Node, show: Callable[..., Screen]) -> None:
    screen = show()
    screen.until(r"FluxMQ  broker  1 node .*\? help  q quit", r"emails +├", r"orders/0", r"orders/2")
    one = client(node)
    one.subscribe(("plant/#", 1))
    deadline = time.monotonic() + PATIENCE_S
    while True:                     # dots on all four belts
        traffic(one, 5)
        for _ in range(5):
            one.receive("plant/1/temperature")
        text = screen.text()
        lines = {line.split()[0]: line for line in text.splitlines() if "├" in line}
        if all(re.search(signs, lines.get("plant/…", "")) for signs in ("[·•●].*┤.*├", "[∘○◎].*┤.*├", "├.*├.*[·•◆]",
                                                                        "├.*├.*[∘◇◈]")
               ) and re.search("[·•●]", lines["emails"]) and re.search(r"confirm p50 \d.*ack p50 \d", text):
            break
        assert time.monotonic() < deadline, screen.text()
    screen.until(r"backlog +\d", r"clients 1", r"emails +├[^┤]*┤ +[1-9]\d* +├", r"errors 0")
    screen.press("Tab", "Tab")
    screen.until(r"(?m)^>orders/0", "lane orders/0")
    screen.press("BTab")
    screen.until(r"(?m)^>emails")
    screen.press("k")
    screen.until("there is no try-out to steer")
    screen.press("Space")
    screen.until("FROZEN", "frozen: space goes on")
    lanes = [line for line in screen.text().splitlines() if "├" in line]
    traffic(one)
    screen.until("FROZEN")
    assert [line[:40] for line in screen.text().splitlines() if "├" in line] == [line[:40] for line in lanes]
    screen.press("Space")
    screen.until(r"FluxMQ  broker  1 node +\? help")
    screen.press("?")
    screen.until("Shift.Tab", "confirms on or off")
    screen.press("x")
    screen.until(r"emails +├")
    screen.tmux("resize-window", "-x", "120", "-y", "30")
    screen.until(r"(?m)^ FluxMQ .{100,}q quit", r"emails +├.{25,}┤")
    screen.tmux("resize-window", "-x", "60", "-y", "12")
    screen.until(r"(?m)^ FluxMQ .{20,45}q quit$", "emails")
    screen.press("q")
    assert screen.ended() == 0
    assert "the-prompt" in screen.text()
    one.close()


@pytest.mark.parametrize(("env", "sign"), [({"TERM": "vt100"}, "|"), ({"NO_COLOR": "1"}, "├"), ({}, "├")])
def test_without_colours_it_says_the_same(node: Node, tmp_path: Path, env: dict[str, str], sign: str) -> None:
    words = [f"{name}={value}" for name, value in env.items()]
    screen = Screen(tmp_path, ["env", *words, *COMMAND, "--attach", str(tmp_path / "admin.sock")])
    try:
        screen.until(rf"emails +[{sign}]", "orders/2", "backlog +0")
        coloured = re.search(r"\x1b\[(?:[0-9;]*;)?(3[0-7]|38;5;\d+|9[0-7])m", screen.text("-e"))
        assert bool(coloured) == (not env)
        if env.get("TERM") == "vt100":
            assert screen.text().isascii()
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(show: Callable[..., Screen], number: signal.Signals,
                                                        status: int) -> None:
    screen = show()
    screen.until(r"emails +├")
    os.kill(screen.process(), number)
    assert screen.ended() == status


def test_stopped_and_continued_by_the_shell(show: Callable[..., Screen]) -> None:
    screen = show()
    screen.until(r"emails +├")
    process = screen.process()
    os.kill(process, signal.SIGTSTP)
    screen.until("the-prompt")
    assert screen.tmux("display", "-p", "#{alternate_on} #{cursor_flag}").split() == ["0", "1"]
    os.kill(process, signal.SIGCONT)
    screen.until(r"emails +├")
    screen.press("q")
    assert screen.ended() == 0


def test_a_crash_leaves_the_terminal_as_it_was(tmp_path: Path, node: Node) -> None:
    words = ("import sys; import fluxmq.view.viewer as v; f = v.Viewer._update\n"
             "def broken(self):\n f(self)\n if self.frames > 5: raise RuntimeError('planted')\n"
             "v.Viewer._update = broken\nfrom fluxmq.app.cli import main; main(sys.argv[1:])")
    screen = Screen(tmp_path, [sys.executable, "-P", "-c", words, "viz", "--attach", str(tmp_path / "admin.sock")])
    try:
        assert screen.ended() == 1
        assert "RuntimeError: planted" in screen.text()
    finally:
        screen.close()


def test_a_broker_that_goes_and_comes_back(node: Node, show: Callable[..., Screen], tmp_path: Path) -> None:
    screen = show()
    screen.until(r"emails +├", r"in +[\d.]+/s")
    node.stop()
    screen.until("no broker answers at|the broker has ended the view")
    back = Node(tmp_path, {"storage.type": "memory", "server.admin_socket": tmp_path / "admin.sock",
                           "queues": "[{name: orders, partitions: 3}, {name: returned}]"})
    try:
        text = screen.until(r"returned +├", r"in +[\d.]+/s")
        assert "no broker answers" not in text.splitlines()[-1]
        screen.press("q")
        assert screen.ended() == 0
    finally:
        back.stop()


def test_a_session_is_recorded_for_asciinema(node: Node, show: Callable[..., Screen], tmp_path: Path) -> None:
    screen = show("--record", str(tmp_path / "viz.cast"), "--seconds", "12", "--lanes", "emails", "--fps", "20")
    screen.until(r"emails +├")
    assert "orders" not in screen.text()
    assert screen.ended() == 0
    head, *lines = [json.loads(line) for line in (tmp_path / "viz.cast").read_text().splitlines()]
    assert (head["version"], head["width"], head["height"]) == (2, 80, 24)
    assert [kind for _, kind, _ in lines] == ["o"] * len(lines)
    times = [at for at, _, _ in lines]
    assert times == sorted(times) and times[-1] >= 1.0
    played = "".join(text for _, _, text in lines)
    assert played.startswith(ENTER) and played.endswith(LEAVE)
    assert "emails" in played


def test_a_pipe_gets_lines(node: Node, tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "--attach", str(tmp_path / "admin.sock"), "--seconds", "6"], check=True,
                          capture_output=True, text=True, env=environment(), stdin=subprocess.DEVNULL)
    lines = done.stdout.splitlines()
    assert len(lines) >= 2
    said = r"in \S+/s out \S+/s confirm p50 \S+ p99 \S+ ack p50 \S+ p99 \S+ backlog -?\d+ errors 0"
    assert all(re.fullmatch(said, line) for line in lines)
    assert "\x1b" not in done.stdout


def test_what_is_wrong_is_said_in_a_sentence(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = run("viz", "--attach", str(tmp_path / "nowhere.sock"))
    assert status == 1 and "no broker answers at" in said and "--attach" in said
    status, said = run("viz", "--attach", str(tmp_path / "admin.sock"), "--record", str(tmp_path / "no" / "such"))
    assert status == 1 and said == f"Error: {tmp_path}/no/such: No such file or directory\n"
    status, said = run("viz", "--attach", str(tmp_path / "admin.sock"), "--ring-size", "1KiB", "--seconds", "1")
    assert status == 1 and "a ring has 65536 to 8388608 bytes" in said
    monkeypatch.setattr("fluxmq.app.viz_cli.find_spec", lambda name: None)
    status, said = run("viz")
    assert status == 1
    assert said == ("Error: the view needs rich, which is not installed: pip install '.[tui]' in the checkout of "
                    "FluxMQ\n")


def test_a_broker_imports_nothing_of_the_view() -> None:
    code = ("import sys; from fluxmq.app import cli, server; "
            "print([name for name in sys.modules if name == 'rich' or name.startswith('fluxmq.view')])")
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True,
                          env=environment())
    assert done.stdout == "[]\n"
