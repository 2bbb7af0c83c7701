"""`fluxmq tryout`: a cluster of real nodes on this machine, with demo traffic; and the commands that steer one."""
from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fluxmq.app import exit_codes
from fluxmq.model.extras import how_to_install
from fluxmq.model.number_option import Number

if TYPE_CHECKING:
    from fluxmq.tryout.control import ControlClient

__all__ = ["as_page", "as_verdict", "tryout"]

NODES_MAX = 9
VERIFIED_NODES_MIN = 3      # with fewer, the death of one leaves no majority of etcd
SERVES_S = 120.0
LOOK_S = 0.2
LATER = ("repartition is prepared, and comes with a later version: this one cannot change the number of partitions of "
         "a queue, so nothing was started")


@click.group(invoke_without_command=True)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), default=3, show_default=True, help="How many.")
@click.option("--hold", is_flag=True, help="Keep it, with demo traffic, until Ctrl-C. Without this it is checked, and "
                                           "ends.")
@click.option("--staggered", is_flag=True, help="One node after the other, under traffic.")
@click.option("--failover-verify", "verify", is_flag=True,
              help="Kill nodes under load, and count confirmed messages that are lost: exit status 0 for none, 1 else.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=4, show_default=True,
              help="How many times --failover-verify kills: the owner of a partition and etcd's leader, in turn.")
@click.option("--repartition-smoke", "repartition", is_flag=True,
              help=f"Not in this version: says so, with exit status {exit_codes.LATER}.")
@click.option("--record", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Record the traffic of all nodes into DIR, new or empty; needs the extra record.")
@click.option("--viz", "view", is_flag=True,
              help="Watch it and steer it in this terminal, as by `fluxmq viz`; q ends it. Needs the extra tui.")
@click.option("--rate", type=Number(0.5, 2000), default=20, show_default=True,
              help="Messages per second of each demo publisher.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Its directory, new or empty; it is removed at the end. Default: one in the directory of temporary "
                   "files.")
@click.option("--etcd", default="", metavar="PATH", help="The etcd to use. Default: the one in PATH.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.pass_context
def tryout(context: click.Context, /, repartition: bool, etcd: str, as_json: bool, **given: Any) -> None:
    """Run a cluster on this machine, to try it out: real nodes on free ports, with demo traffic.

    Ctrl-C ends it and leaves nothing behind. See docs/guide/tryout.md.
    """
    if context.invoked_subcommand is not None:
        return
    if repartition:
        click.echo(json.dumps({"event": "repartition-smoke", "ok": None, "why": LATER}) if as_json else LATER)
        context.exit(exit_codes.LATER)
    if given["verify"] and given["nodes"] < VERIFIED_NODES_MIN:
        raise click.UsageError(f"--failover-verify kills nodes and needs --nodes {VERIFIED_NODES_MIN} or more: with "
                               "fewer the death of one leaves no majority of etcd")
    if not given["verify"] and context.get_parameter_source("rounds") is not ParameterSource.DEFAULT:
        raise click.UsageError("--rounds says how often --failover-verify kills: give that, too")
    if given["view"] and (as_json or given["verify"]):
        raise click.UsageError("--viz takes the terminal: use it without --json and --failover-verify, or run "
                               "`fluxmq viz` in another terminal")
    program = _needs(etcd, given["record"], given["view"])
    from fluxmq.access.users import User
    from fluxmq.tryout.demo import USER
    from fluxmq.tryout.run import Options, Tryout

    made = User.make(USER, USER, namespace="")
    user = {"name": made.name, "password": made.password_hash, "scram": str(made.scram), "namespace": made.namespace}
    show = _show_json if as_json else _show
    context.exit(Tryout(Options(etcd=program, user=user, **given), _say, show).run())


def _needs(etcd: str, record: Path | None, view: bool) -> str:
    """Looks for what is not installed. Returns the path of etcd; raises ClickException with the way to get it."""
    from fluxmq._core.errors import ConfigError
    from fluxmq.app.cluster_checks import missing_modules
    from fluxmq.cluster.etcd.binary import check_version, find_binary, version_of

    if missing := missing_modules():
        raise click.ClickException(f"a try-out is a cluster, and {' and '.join(missing)} cannot be found: "
                                   f"{how_to_install('cluster')}")
    if record is not None and find_spec("pyarrow") is None:
        raise click.ClickException(f"recordings are Parquet, and pyarrow is not installed: {how_to_install('record')}")
    if view and find_spec("rich") is None:
        raise click.ClickException(f"the view needs rich, which is not installed: {how_to_install('tui')}")
    if view and not sys.stdout.isatty():
        raise click.ClickException("--viz needs a terminal: use --hold, and `fluxmq viz` in a terminal")
    if record is not None and record.exists() and any(record.iterdir()):
        raise click.ClickException(f"{record} has something in it: a recording takes a new or an empty directory")
    try:
        found = find_binary(etcd)
        check_version(found, version_of(found.path))
    except ConfigError as error:
        raise click.ClickException(
            f"a try-out needs etcd, and {error.text}".replace("name one in cluster.etcd.binary", "name one by --etcd")
        ) from error
    return found.path


def _say(text: str) -> None:
    with suppress(OSError):     # nobody reads it any more (`2>&1 | head`): what was started goes on
        click.echo(text, err=True)


# ── what it shows ────────────────────────────────────────────────────────────────────────────────────────────────


def _show_json(event: str, facts: dict[str, Any]) -> None:
    _print(json.dumps({"event": event} | facts))


def _show(event: str, facts: dict[str, Any]) -> None:
    _print(as_page(facts) if event == "up" else as_verdict(facts))


def _print(text: str) -> None:
    """Raises TryoutError."""
    from fluxmq.tryout.asking import TryoutError

    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError as error:    # what is in its buffer must not be written at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):      # as in _say
            raise TryoutError(f"standard output: {error.strerror or error}") from error


def as_page(facts: dict[str, Any]) -> str:
    """How to connect, and what to type next; of what does not stay only what was seen."""
    from fluxmq.app.queue_text import as_table
    from fluxmq.tryout.demo import AUDIT, EMAILS, ORDERS, PARTITIONS, TOPIC, USER

    nodes = facts["nodes"]
    first, last, addresses = nodes[0], nodes[-1], ",".join(node["mqtt"] for node in nodes[:3])
    columns = {"node": "NODE", "mqtt": "MQTT", "websocket": "MQTT OVER WEBSOCKET", "amqp": "AMQP", "health": "HEALTH",
               "cluster": "CLUSTER"}
    up = f"\n{len(nodes)} {'node serves' if len(nodes) == 1 else 'nodes serve'}, after {facts['up_s']:g} s."
    if not facts["stays"]:
        return _as_summary(up, facts)
    lines = [f"{up}\n",
             as_table(nodes, columns),
             f"Users    anyone without a name, and {USER} with the password {USER}",
             f"Queues   {ORDERS} ({PARTITIONS} partitions), {EMAILS} (dead letters in {EMAILS}.dlq)",
             f"Stream   {AUDIT}, with what is published to {TOPIC.format('+')}\n"]
    where = "" if facts["found"] else f" --dir {shlex.quote(facts['dir'])}"
    of_first = f"--config {shlex.quote(first['config'])}"
    commands = [
        (f"fluxmq viz{where}", "see it move, and steer it"),
        (f"fluxmq topology {of_first}", "who has which partition of which queue"),
        (f"fluxmq sub '{TOPIC.format('+')}' --broker {addresses}", "messages, from any node"),
        (f"fluxmq queue tail {AUDIT} -f {of_first}", "messages of the stream as they come"),
        (f"fluxmq tryout kill {last['node']}{where}",
         f"as kill -9 {last['pid']}" + "; the others go on" * (len(nodes) > 1)),
        (f"fluxmq tryout restart {last['node']}{where}", "and it is back"),
        (f"fluxmq tryout stop {last['node']}{where}", "it hangs; tryout continue"),
        (f"fluxmq tryout status{where}", "nodes and demo clients"),
        ("fluxmq tryout --help", "everything else"),
    ]
    width = max(len(command) for command, _ in commands)
    lines += ["In another terminal:", *(f"  {command.ljust(width)}  # {what}" for command, what in commands),
              "\nCtrl-C ends all of it, and removes its data."]
    return "\n".join(lines)


def _as_summary(up: str, facts: dict[str, Any]) -> str:
    """Without addresses and commands: what they are of is gone when somebody pastes them."""
    lines = [up, "Each has passed a message of MQTT and one of AMQP to the next one."]
    if facts["staggered"]:
        published, confirmed, refused, settled = (sum(client[name] for client in facts["clients"]) for name in (
            "published", "confirmed", "refused", "settled"))
        lines += ["They came one after the other, under traffic.",
                  f"Messages that were published meanwhile: {published}, of which {confirmed} were confirmed, "
                  f"{refused} refused, and {published - confirmed - refused} not answered yet. Consumers of the queues "
                  f"have settled {settled}."]
    if facts["verify"]:
        lines.append("Now nodes are killed under load, and what is lost is counted.")
    else:
        lines.append("That is all, and it ends. Add --hold to keep it running, with demo traffic, and to get its "
                     "addresses.")
        if len(facts["nodes"]) >= VERIFIED_NODES_MIN:
            lines.append("Add --failover-verify to see whether anything is lost when nodes are killed.")
    return "\n".join(lines)


def as_verdict(facts: dict[str, Any]) -> str:
    """What --failover-verify has found."""
    from fluxmq.app.queue_text import as_table

    rounds = as_table(facts["rounds"], {
        "node": "KILLED", "why": "BECAUSE IT WAS", "noticed_s": "NOTICED AFTER S", "back_s": "BACK AFTER S",
        "longest_without_confirm_s": "LONGEST WITHOUT CONFIRM S"})
    counts = [f"{facts['confirmed']} of {facts['published']} messages were confirmed (MQTT {facts['confirmed_mqtt']}, "
              f"AMQP {facts['confirmed_amqp']}), {facts['refused']} refused, {facts['unanswered']} not answered",
              f"{facts['received']} were received; again, marked as redelivered: {facts['repeated_redelivered']}; "
              f"again, not marked: {facts['repeated_unmarked']}"]
    lost = ["no confirmed message is lost"]
    if facts["lost"]:
        # What a node has that is not back may come still.
        lost = [f"{facts['lost']} confirmed messages {'have not come' if facts['problems'] else 'are lost'}, such as "
                f"{' '.join(facts['lost_identities'])}"]
    return "\n".join(["", rounds, *counts, *facts["problems"], *lost])


# ── commands to one that runs ────────────────────────────────────────────────────────────────────────────────────


_where = click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                      help="Directory of the try-out. Default: that of the only one that runs.")
_node = click.argument("node")


@contextmanager
def _control(directory: Path | None) -> Iterator[ControlClient]:
    """Raises TryoutError; ClickException if it is not clear which one is meant."""
    from fluxmq.tryout.control import ControlClient
    from fluxmq.tryout.place import CONTROL, running

    if directory is None:
        found = running()
        if not found:
            raise click.ClickException("no try-out runs here: start one with `fluxmq tryout --hold`, or say where it "
                                       "is by --dir DIR")
        if len(found) > 1:
            raise click.ClickException(f"several try-outs run: say which one by --dir: {' '.join(map(str, found))}")
        directory = found[0]
    with ControlClient(directory / CONTROL) as client:
        yield client


def _order(name: str, help_text: str, told: str, act: Callable[[ControlClient, str], str]) -> None:
    """Adds a command about a node."""
    @tryout.command(name, help=help_text)
    @_node
    @_where
    def command(node: str, directory: Path | None) -> None:
        with _control(directory) as control:
            click.echo(f"{act(control, node)} {told}")


def _restart(control: ControlClient, given: str) -> str:
    """Until it serves."""
    node = control.restart_node(given)
    deadline = time.monotonic() + SERVES_S
    while True:
        state = next(one["state"] for one in control.status()["nodes"] if one["node"] == node)
        if state == "up":
            return node
        if state != "starting" or time.monotonic() > deadline:
            raise click.ClickException(f"{node} does not start: it is {state}; what the try-out prints says why")
        time.sleep(LOOK_S)


_order("kill", "Kill NODE with SIGKILL; its etcd member ends with it.", "is killed",
       lambda control, node: control.kill_node(node))
_order("restart", "Start NODE again, killed before if it runs, and wait until it serves.", "serves", _restart)
_order("stop", "Let NODE hang (SIGSTOP).", "hangs", lambda control, node: control.stop_node(node))
_order("continue", "Let NODE go on that hangs (SIGCONT).", "goes on", lambda control, node: control.continue_node(node))


@tryout.command("status")
@_where
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(directory: Path | None, as_json: bool) -> None:
    """Show the nodes and the demo clients."""
    from fluxmq.app.queue_text import as_table

    with _control(directory) as control:
        found = control.status()
    del found["ok"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(as_table(found["nodes"], {"node": "NODE", "state": "STATE", "pid": "PID", "etcd_pid": "ETCD PID",
                                         "mqtt": "MQTT", "amqp": "AMQP", "cluster": "CLUSTER"}))
    if found["clients"]:
        click.echo(as_table(found["clients"], {name: name.upper() for name in (
            "client", "node", "state", "published", "confirmed", "refused", "received", "redelivered", "settled")}),
            nl=False)


@tryout.command("end")
@_where
def end(directory: Path | None) -> None:
    """End it, as Ctrl-C does."""
    with _control(directory) as control:
        control.end()
