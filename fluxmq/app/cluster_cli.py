"""`fluxmq cluster …`: the cluster as a running node sees it, who votes in etcd, and how the node leaves, over its admin
socket (admin/cluster.py); and `recover`, for a node that does not run."""
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from fluxmq.app import exit_codes
from fluxmq.app.config_options import config_option, set_option
from fluxmq.app.queue_place import Place, asks, confirm, yes_option
from fluxmq.app.queue_text import as_table, plain
from fluxmq.model.units import count_of

__all__ = ["cluster"]

_MEMBERS = {"id": "NODE", "address": "ADDRESS", "port": "PORT", "pid": "PID", "state": "STATE", "leader": "LEADER",
            "epoch": "EPOCH", "lease": "LEASE LEFT", "vote": "ETCD", "version": "VERSION"}
_SESSIONS = {"id": "NODE", "state": "STATE", "sessions": "SESSIONS", "adopted": "ADOPTED"}
_PEERS = {"node": "PEER", "connected": "CONNECTED", "batches_sent": "BATCHES OUT", "batches_received": "IN",
          "messages_sent": "MESSAGES OUT", "messages_received": "IN", "bytes_sent": "BYTES OUT",
          "bytes_received": "IN", "credit_bytes": "CREDIT", "unacknowledged_bytes": "UNACKNOWLEDGED",
          "errors": "ERRORS", "last_error": "LAST ERROR"}
# In these states of this node something is wrong, or not finished.
_NOT_WELL = ("joining", "without_quorum", "fenced")
_LOOK_SECONDS = 0.5  # between two looks at a node that leaves


@click.group()
def cluster() -> None:
    """See the cluster, change who votes in etcd, leave it, or recover it."""


def _lease(ms: int | None) -> str | None:
    return None if ms is None else f"{ms / 1000:.1f}s"


def _vote(node: dict[str, Any]) -> str | None:
    """What a node is in etcd."""
    if node["etcd"] == "none":
        return None
    return f"{node['etcd']}{'' if node['etcd_healthy'] else ', does not answer'}"


def _rows(view: dict[str, Any]) -> list[dict[str, Any]]:
    return [node | {"lease": _lease(node["lease_left_ms"]), "port": node["port"] or None, "pid": node["pid"] or None,
                    "epoch": node["epoch"] or None, "vote": _vote(node),
                    "id": f"{node['id']} (this one)" if node["id"] == view["local"] else node["id"]}
            for node in view["nodes"]]


def _state(view: dict[str, Any]) -> str:
    reason = f": {plain(view['reason'])}" if view["reason"] else ""
    return f"{view['state'].replace('_', ' ')}{reason}"


def _status(view: dict[str, Any]) -> str:
    own = next(node for node in view["nodes"] if node["id"] == view["local"])
    lines = [("node", own["id"]), ("state", _state(view)), *(("degraded", what) for what in view["degraded"])]
    if view["state"] != "standalone":
        up = sum(node["epoch"] > 0 for node in view["nodes"])
        behind, revision = view["behind"], view["revision"]
        lines += [
            ("cluster", view["env"] or "not known yet"), ("leader", view["leader"] or "none known"),
            ("nodes", f"{up} of {len(view['nodes'])} have a lease"),
            ("lease left", _lease(own["lease_left_ms"])), ("epoch", own["epoch"] or None),
            ("caches", f"{behind} revision{'' if behind == 1 else 's'} behind {revision + behind}" if behind else
             f"up to date, revision {revision}")]
    every = sum(node["sessions"] for node in view["nodes"])
    adopted = f", {own['adopted']} of them adopted" if own["adopted"] else ""
    lines.append(("sessions", f"{own['sessions']} of {every} are here{adopted}" if view["state"] != "standalone" else
                  every))
    text = "".join(f"{title:<12}{value if title == 'state' else plain(value)}\n" for title, value in lines)
    return text + (f"\n{as_table(view['peers'], _PEERS)}" if view["peers"] else "")


@cluster.command("status")
@asks
def cluster_status(place: Place) -> int:
    """Show the state of this node, and what went between it and each other node.

    It is shown without quorum, too. The exit status is 0 if the node serves or leaves, and 1 if it joins, has no
    quorum, is fenced, or serves and something of it does not work (degraded).
    """
    view = place.client.ask("GET", "cluster")
    place.show(view, lambda: _status(view))
    return exit_codes.FAILURE if view["state"] in _NOT_WELL or view["degraded"] else exit_codes.OK


@cluster.command("members")
@asks
def cluster_members(place: Place) -> None:
    """List the nodes.

    STATE is down for a node that the configuration or etcd names and that has no lease. Another node with a lease is
    joining until it has told this one that it serves clients. How much is left of its lease, only the node itself
    knows. ETCD says whether its member of etcd has a vote: voter, or learner, which is about to get one.
    """
    view = place.client.ask("GET", "cluster")
    place.show({"nodes": view["nodes"], "local": view["local"]}, lambda: as_table(_rows(view), _MEMBERS))


@cluster.command("sessions")
@asks
def cluster_sessions(place: Place) -> None:
    """Show how many sessions each node owns.

    ADOPTED are those of them that it has from a node that died, and whose client has not connected since.
    """
    view = place.client.ask("GET", "cluster")
    counts, adopted = ({node["id"]: node[key] for node in view["nodes"]} for key in ("sessions", "adopted"))
    place.show({"sessions": counts, "adopted": adopted, "total": sum(counts.values())},
               lambda: f"{as_table(_rows(view), _SESSIONS)}{sum(counts.values())} in all")


@cluster.group("voters")
def cluster_voters() -> None:
    """Say which nodes have a vote in etcd. One at a time."""


@cluster_voters.command("add")
@click.argument("node")
@asks
def voters_add(place: Place, node: str) -> None:
    """Give NODE a vote in etcd, from which it was removed.

    The node must run. What its member had is set aside; it joins anew, and gets the vote when it has caught up. A node
    that is new to the cluster needs no command: cluster.etcd.bootstrap: false makes it join.
    """
    answer = place.client.ask("POST", "cluster", "voters", node)
    place.show(answer, lambda: f"{plain(node)} has a vote")


@cluster_voters.command("remove")
@click.argument("node")
@yes_option
@asks
def voters_remove(place: Place, node: str, yes: bool) -> None:
    """Take the vote of NODE in etcd, and remove its member.

    It is refused if etcd would have no quorum without it. If the node runs, it goes on as a client of the others'
    members.
    """
    confirm(yes, f"Remove the member of {plain(node)} from etcd?")
    answer = place.client.ask("DELETE", "cluster", "voters", node)
    place.show(answer, lambda: f"{plain(node)} has no vote any more")


@cluster.command("leave")
@click.option("--no-wait", is_flag=True, help="Return when it has begun.")
@click.option("--keep-vote", is_flag=True, help="The node comes back: it stays one of etcd's voters meanwhile.")
@yes_option
@asks
def cluster_leave(place: Place, no_wait: bool, keep_vote: bool, yes: bool) -> None:
    """Take this node out of the cluster, and stop it.

    Its sessions, its queues and its streams go to the other nodes, its clients are told where to go, it gives its vote
    in etcd back, and the process ends. It is refused if etcd would have no quorum then. A node that is started again
    later gets its vote again. The command returns when all is done. It shows how far that has come, and names the
    queues that stay, and why; with --no-wait, only the log does.
    """
    view = place.client.ask("GET", "cluster")
    name = view["local"]
    if view["state"] != "standalone":  # then the broker says why it cannot
        confirm(yes, f"Hand over the sessions and queues of {plain(name)} to the other nodes, and stop it?")
    place.client.ask("POST", "cluster", "leave", query={"keep_vote": "true"} if keep_vote else None)
    told = None if no_wait else _wait(place, name)
    text = f"{plain(name)} {'leaves' if no_wait else 'has left'}"
    if told is not None and told["moved"]:
        text += f", and {count_of(told['moved'], 'queue')} moved"
    if keep_vote and next(node["etcd"] for node in view["nodes"] if node["id"] == name) == "voter":
        text += (". Its member of etcd keeps its vote: if it does not come back, fluxmq cluster voters remove "
                 f"{plain(name)}, on another node")
    if told is not None and told["vote"]:
        text += f"\n{plain(told['vote'])}"
    for queue, why in () if told is None else told["stay"].items():
        text += f"\nqueue {plain(queue)} stays with it: {plain(why)}"
    if told is not None and not told["ended"]:
        text += "\nwhat it has not handed over, its log says"
    place.show({"node": name, "left": not no_wait} | ({} if told is None else {
        "moved": told["moved"], "vote": told["vote"], "stay": told["stay"] if told["ended"] else None}), lambda: text)


def _wait(place: Place, name: str) -> dict[str, Any] | None:
    """Until the broker does not answer any more. Returns what it has said last. Raises AdminError if it stays after
    all."""
    from fluxmq.app.admin_client import AdminError

    said, told = "", None
    while True:
        try:
            view = place.client.ask("GET", "cluster", "leave")
        except AdminError as error:
            if error.status or isinstance(error.__cause__, TimeoutError):
                raise
            return told
        if view["state"] != "leaving":
            raise AdminError(f"{plain(name)} does not leave: it is {_state(view)}", "its log says more")
        told = view
        line = f"{count_of(view['sessions'], 'session')} to hand over, {count_of(view['queues'], 'queue')} to move"
        if view["queue"]:
            line += f": {plain(view['queue'])} goes to node {plain(view['to'])}"
        if line != said and not place.as_json and not view["ended"]:
            click.echo(line, err=True)
            said = line
        time.sleep(_LOOK_SECONDS)


@cluster.command("recover")
@config_option
@set_option
@click.option("--look", is_flag=True, help="Only show what this node's member has, to compare survivors.")
@yes_option
def cluster_recover(file: Path | None, sets: tuple[str, ...], look: bool, yes: bool) -> None:
    """Make etcd usable again after a majority of its members is gone for good.

    To be run on one surviving node, while all nodes are stopped. Its member of etcd becomes a cluster of one. What it
    has not got although others had confirmed it is lost: at most the last changes of session owners, retained messages
    and wills. If several nodes survive, take the one with the highest revision (--look). Then start this node. On every
    other node move cluster.etcd.data_dir away, set cluster.etcd.bootstrap to false, and start it.
    """
    # Not on top: other commands only ask a broker, and start at once.
    from fluxmq.app.cluster_recover import recover
    from fluxmq.app.config import load

    config, _ = load(file, os.environ, sets)
    recover(config, look, yes)
