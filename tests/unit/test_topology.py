"""What `fluxmq topology` shows of what a node answers, and how it is drawn again and again."""
from __future__ import annotations

import re
from typing import Any

import msgspec
from kit.overview import THREE

from fluxmq.app.queue_text import as_table
from fluxmq.app.topology_cli import Picture, as_text


def part(node: str, state: str = "running", **more: Any) -> dict[str, Any]:
    return {"partition": 0, "node": node, "state": state, "epoch": 7, "messages": 5, "lag": 3, "bytes": 1} | more


def view(*, silent: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """As the command has made it of the answers of node `one`; `three` is down."""
    cluster = msgspec.to_builtins(THREE)
    nodes = [{**node, "answers": node["epoch"] > 0 and node["id"] not in silent} for node in cluster["nodes"]]
    return {"local": "one", "state": "serving", "reason": "", "nodes": nodes, "queues": [],
            "missing": [{"node": name, "why": "it sleeps"} for name in silent]} | more


def cells(text: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in text.splitlines() if line]


def test_nodes_and_partitions() -> None:
    queues = [{"name": "a\x1b", "type": "stream", "consumers": 2, "partition_list": [part("one", lag=None)]},
              {"name": "split", "type": "classic", "consumers": 1, "partition_list": [
                  part("one"), part("two", partition=1, epoch=8),
                  part("three", "away", partition=2, epoch=0, messages=None, lag=None)]}]
    assert cells(as_text(view(queues=queues))) == [
        ["NODE", "STATE", "ROLE", "EPOCH", "SESSIONS", "PARTITIONS", "VERSION"],
        ["one (asked)", "serving", "voter", "5", "3", "2", "1"],
        ["three", "down", "learner, etcd does not answer", "-", "0", "1", "-"],
        ["two", "serving", "leader", "9", "4", "1", "1"],
        ["QUEUE", "TYPE", "PARTITION", "NODE", "STATE", "EPOCH", "MESSAGES", "LAG", "CONSUMERS"],
        ["a\\x1b", "stream", "0", "one", "running", "7", "5", "-", "2"],
        ["split", "classic", "0", "one", "running", "7", "5", "3", "1"],
        ["1", "two", "running", "8", "5", "3", "-"],
        ["2", "three", "away", "-", "-", "-", "-"]]


def test_who_does_not_answer_is_named() -> None:
    queues = [{"name": "q", "type": "classic", "consumers": None, "partition_list": [
        part("two", "elsewhere", messages=None, lag=None)]}]
    text = as_text(view(silent=("two",), queues=queues))
    assert ["two", "serving, does not answer"] in [row[:2] for row in cells(text)]
    assert cells(text)[-1] == ["q", "classic", "0", "two", "does not answer", "7", "-", "-", "-"]


def test_what_is_wrong_comes_first() -> None:
    text = as_text(view(state="without_quorum", reason="etcd does not\x1b answer"))
    assert text.startswith("without_quorum: etcd does not\\x1b answer\n") and text.endswith("there are no queues\n")


# ── drawn again ──────────────────────────────────────────────────────────────────────────────────────────────


def drawn(*texts: str, size: tuple[int, int] = (20, 4), on_terminal: bool = True) -> str:
    written: list[str] = []
    picture = Picture(on_terminal, written.append, lambda: size)
    with picture.shown():
        for text in texts:
            picture.draw(text)
    return "".join(written)


def test_a_picture_replaces_the_one_before() -> None:
    written = drawn("one\ntwo\n", "three\n")
    assert written == ("\x1b[?1049h\x1b[?25l\x1b[Hone\x1b[K\ntwo\x1b[K\x1b[J\x1b[Hthree\x1b[K\x1b[J"
                       "\x1b[?25h\x1b[?1049l")


def test_a_picture_fits_the_window() -> None:
    """What has no room is said, and nothing scrolls."""
    written = drawn("\n".join("x" * 30 for _ in range(9)))
    body = written.split("\x1b[H")[1].split("\x1b[J")[0]
    lines = body.replace("\x1b[K", "").split("\n")
    assert lines == ["x" * 20] * 3 + ["and 6 more lines: ma"]


def test_elsewhere_pictures_follow_each_other() -> None:
    assert drawn("one\n", "two\n", on_terminal=False) == "one\n\ntwo\n\n"


def test_the_terminal_is_as_before_after_an_error() -> None:
    written: list[str] = []
    picture = Picture(True, written.append, lambda: (20, 4))
    try:
        with picture.shown():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert written == ["\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"]


def test_a_table_takes_what_is_not_known() -> None:
    assert as_table([{"a": None}], {"a": "A"}) == "A\n-\n"
