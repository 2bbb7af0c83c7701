"""`fluxmq topology`: the nodes of a cluster, and which of them has which partition of which queue, once or again and
again, over the admin socket of any node (admin/cluster.py, admin/queues.py). On a single node: that one and its queues.
"""
from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from fluxmq._core.errors import FluxError
from fluxmq.app import exit_codes
from fluxmq.app.queue_place import Place, asks_queues
from fluxmq.app.queue_text import as_table, in_use, plain
from fluxmq.model.number_option import Number

__all__ = ["Picture", "as_text", "topology"]

_NODES = {"id": "NODE", "state": "STATE", "role": "ROLE", "epoch": "EPOCH", "sessions": "SESSIONS",
          "partitions": "PARTITIONS", "version": "VERSION"}
_QUEUES = {"name": "QUEUE", "type": "TYPE", "partition": "PARTITION", "node": "NODE", "state": "STATE",
           "epoch": "EPOCH", "messages": "MESSAGES", "lag": "LAG", "consumers": "CONSUMERS"}
_SILENT = "does not answer"
# A picture on a terminal: another screen without a cursor; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command()
@click.option("-w", "--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--all", "everything", is_flag=True, help="Also empty queues of the broker itself ($under-way-…).")
@click.option("--interval", type=Number(0.1), default=1.0, show_default=True, metavar="SECONDS",
              help="With --watch: between two looks.")
@asks_queues
def topology(place: Place, watch: bool, everything: bool, interval: float) -> int:
    """Show the nodes, and which of them has which partition of which queue.

    ROLE: leader of the cluster (which publishes the wills of dead nodes), and what its member of etcd is: voter,
    learner or none. SESSIONS: how many a node owns, connected or not. EPOCH of a node grows with each of its lives, and
    that of a partition each time that a node begins to serve it. LAG: messages that the slowest consumer group has not
    settled, or of a stream not read; - if nobody knows. What a node does not answer is -, and the node is named.
    """
    if not watch:
        view = _look(place, everything)
        place.show(view, lambda: as_text(view))
        for one in view["missing"]:
            click.echo(f"numbers of node {plain(one['node'])} are left out: {plain(one['why'])}", err=True)
        return exit_codes.OK
    picture = Picture(sys.stdout.isatty() and not place.as_json)
    with _until_stopped(), picture.shown():
        while True:
            picture.draw(_shown_again(place, everything))
            time.sleep(interval)
    return exit_codes.OK


def _look(place: Place, everything: bool) -> dict[str, Any]:
    """Of GET cluster, and GET queues of all nodes; as `fluxmq queue list`, without what is of no use to anybody."""
    cluster = place.client.ask("GET", "cluster")
    answer = place.client.ask("GET", "queues", query={"partitions": True})
    if not everything:
        answer["queues"] = in_use(answer["queues"])
    silent = {one["node"] for one in answer.get("missing", ())}
    single = cluster["state"] == "standalone"
    for queue in answer["queues"]:
        for part in queue["partition_list"]:
            part["node"] = part["node"] or (cluster["local"] if single else "")
    nodes = [{**node, "answers": node["epoch"] > 0 and node["id"] not in silent if not single else True}
             for node in cluster["nodes"]]
    return {"env": cluster["env"], "local": cluster["local"], "state": cluster["state"], "reason": cluster["reason"],
            "leader": cluster["leader"], "nodes": nodes, "queues": answer["queues"],
            "missing": answer.get("missing", [])}


def as_text(view: dict[str, Any]) -> str:
    """Two tables; in front of them what is wrong."""
    lines = [f"{plain(view['state'])}{': ' + plain(view['reason']) if view['reason'] else ''}\n\n"] if (
        view["reason"] or view["state"] not in ("serving", "standalone")) else []
    lines.append(as_table(_node_rows(view), _NODES))
    rows = _queue_rows(view)
    lines.append("\n" + (as_table(rows, _QUEUES) if rows else "there are no queues\n"))
    return "".join(lines)


def _node_rows(view: dict[str, Any]) -> list[dict[str, Any]]:
    count = Counter(part["node"] for queue in view["queues"] for part in queue["partition_list"])
    rows = []
    for node in view["nodes"]:
        silent = node["state"] != "down" and not node["answers"]
        role = [word for word, holds in (("leader", node["leader"]), (node["etcd"], node["etcd"] != "none")) if holds]
        if node["etcd_healthy"] is False:
            role.append(f"etcd {_SILENT}")
        rows.append({**node, "id": f"{node['id']} (asked)" if node["id"] == view["local"] and len(view["nodes"]) > 1
                     else node["id"], "state": f"{node['state']}, {_SILENT}" if silent else node["state"],
                     "role": ", ".join(role), "epoch": node["epoch"] or None, "partitions": count[node["id"]]})
    return rows


def _queue_rows(view: dict[str, Any]) -> list[dict[str, Any]]:
    """One for each partition; what is of the whole queue is in the first."""
    silent = {one["node"] for one in view["missing"]}
    rows = []
    for queue in view["queues"]:
        for at, part in enumerate(queue["partition_list"]):
            state = part["state"]
            if state == "elsewhere":
                state = _SILENT if part["node"] in silent else "running"
            whole = {} if at else {"name": queue["name"], "type": queue["type"], "consumers": queue.get("consumers")}
            rows.append({"name": " ", "type": " ", **whole, **part, "state": state,
                         "epoch": part["epoch"] or None})
    return rows


# ── again and again ──────────────────────────────────────────────────────────────────────────────────────────


def _shown_again(place: Place, everything: bool) -> str:
    """A picture of now, or why there is none."""
    try:
        view = _look(place, everything)
    except FluxError as error:
        if place.as_json:
            return json.dumps({"error": str(error)}, ensure_ascii=False)
        return f"{time.strftime('%H:%M:%S')}  {error}\n"
    if place.as_json:
        return json.dumps(view, ensure_ascii=False)
    missing = "".join(f"\nnumbers of node {plain(one['node'])} are left out: {plain(one['why'])}"
                      for one in view["missing"])
    return f"{time.strftime('%H:%M:%S')}  Ctrl-C ends\n\n{as_text(view)}{missing}\n"


@contextmanager
def _until_stopped() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, so that the terminal is as before."""
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, former)


class Picture:
    """What is drawn over and over on a terminal; elsewhere the pictures follow each other. size: columns and lines."""

    def __init__(self, on_terminal: bool, write: Callable[[str], object] | None = None,
                 size: Callable[[], tuple[int, int]] = shutil.get_terminal_size) -> None:
        self._on_terminal = on_terminal
        self._write = write or sys.stdout.write
        self._size = size

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While it is drawn. The terminal is as before afterwards."""
        if not self._on_terminal:
            yield
            return
        self._write(_ENTER)
        try:
            yield
        finally:
            self._write(_LEAVE)
            sys.stdout.flush()

    def draw(self, text: str) -> None:
        """As much of it as there is room for."""
        if not self._on_terminal:
            self._write(text + "\n")
        else:
            columns, height = self._size()
            lines = text.rstrip("\n").split("\n")
            if len(lines) > height:
                more = len(lines) - height + 1
                lines = [*lines[:height - 1], f"and {more} more lines: make the window larger, or use --json"]
            self._write(_HOME + "\n".join(line[:columns] + _REST_OF_LINE for line in lines) + _REST)
        sys.stdout.flush()
