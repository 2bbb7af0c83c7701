"""`fluxmq viz`: shows on a terminal what running brokers do. They are asked over their admin sockets; see view/."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fluxmq.app.config_options import file_option
from fluxmq.app.running import broker_sockets, node_option
from fluxmq.model.extras import how_to_install
from fluxmq.model.number_option import Number

if TYPE_CHECKING:
    from fluxmq.view.keys import Steering
    from fluxmq.view.ports import TryOut

__all__ = ["view", "viz"]

FPS, FPS_REMOTE = 30.0, 10.0
ANSWER_S = 5.0          # for a broker's answer: one that hangs is told from the others
ENDED_BY_SIGNAL = 128


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int:
    from fluxmq.model.units import parse_size

    try:
        return 0 if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error) or "write a size such as 256KiB") from None


def _lanes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from fluxmq.app.config_checks import is_topic_choice

    for value in values:
        if not is_topic_choice(value):
            raise click.BadParameter(f"{value!r} is no queue, and no filter of topics such as plant/+/temperature")
    return values


@click.command()
@click.option("--attach", "sockets", type=click.Path(path_type=Path), metavar="ADDR", multiple=True,
              help="The broker's admin socket. Several: nodes of a cluster on this machine. Default: those of the "
                   "try-out that runs, or that of the only broker that runs on this machine.")
@node_option(several=True)
@file_option("The broker's configuration file: where its socket is.")
@click.option("--tryout", "--dir", "tryout", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Directory of the try-out to watch and to steer. Default: the only one that runs.")
@click.option("--lanes", "wanted", multiple=True, metavar="NAME", callback=_lanes,
              help="Only these lanes: a queue, or a filter of topics such as plant/+/temperature. Repeatable.")
@click.option("--levels", type=click.IntRange(1, 8), default=1, show_default=True,
              help="Levels of a topic that make a group.")
@click.option("--fps", type=Number(1, 60), help="Frames per second. Default: 30, over ssh 10.")
@click.option("--record", "record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Also write what is shown into FILE, for asciinema.")
@click.option("--seconds", type=Number(min=0, min_open=True), help="End after this time. Default: at q.")
@click.option("--ring-size", callback=_size, metavar="SIZE",
              help="Memory between broker and view, 64KiB to 8MiB. What does not fit is left out, and said. Default: "
                   "256KiB.")
@click.pass_context
def viz(context: click.Context, /, sockets: tuple[Path, ...], nodes: tuple[str, ...], file: Path | None,
        tryout: Path | None, wanted: tuple[str, ...], levels: int, fps: float | None, record: Path | None,
        seconds: float | None, ring_size: int) -> None:
    """Show live what a running broker, or a cluster, does. ? shows the keys, q quits. See docs/guide/viz.md."""
    if find_spec("rich") is None:
        raise click.ClickException(f"the view needs rich, which is not installed: {how_to_install('tui')}")
    connect_tryout = None
    if not sockets and not nodes and file is None:
        sockets, connect_tryout = _of_tryout(tryout)
    elif tryout is not None:
        _, connect_tryout = _of_tryout(tryout)
    if not sockets:
        sockets = tuple(broker_sockets((), file, nodes, "--attach"))
    ended = view(sockets, connect_tryout, wanted=wanted, levels=levels, fps=fps, record=record,
                 seconds=seconds or 0.0, ring_bytes=ring_size)
    if ended.startswith("SIG") and ended != "SIGINT":
        import signal

        context.exit(ENDED_BY_SIGNAL + signal.Signals[ended])


def view(sockets: Sequence[Path], connect_tryout: Callable[[], TryOut] | None = None, *, wanted: Sequence[str] = (),
         levels: int = 1, fps: float | None = None, record: Path | None = None, seconds: float = 0.0,
         ring_bytes: int = 0) -> str:
    """Shows the brokers behind these admin sockets until the user quits; returns the signal that ended it, or "".
    connect_tryout: makes a connection to the control socket of a try-out. Raises FluxError, ClickException."""
    from fluxmq.app.admin_client import AdminClient
    from fluxmq.view.feed import Feed
    from fluxmq.view.keys import Steering
    from fluxmq.view.lanes import Lanes
    from fluxmq.view.screen import Terminal
    from fluxmq.view.viewer import Viewer

    if fps is None:
        fps = FPS_REMOTE if os.environ.get("SSH_CONNECTION") else FPS
    lanes = Lanes(wanted, levels)
    different = dict.fromkeys(path.absolute() for path in sockets)
    feed = Feed([partial(AdminClient, path, "--attach", ANSWER_S) for path in different], lanes, ring_bytes)
    steering: Steering | None = None
    feed.start()
    try:
        steering = Steering(connect_tryout) if connect_tryout is not None else None
        try:
            viewer = Viewer(feed, lanes, Terminal(), fps=fps, seconds=seconds, record=record, steering=steering)
        except OSError as error:
            raise click.ClickException(f"{record}: {error.strerror or error}") from None
        ended = viewer.run()
    finally:
        if steering is not None:
            steering.close()
        feed.close()
    if viewer.record_error:
        raise click.ClickException(f"{record} is not whole: {viewer.record_error}")
    return ended


def _of_tryout(directory: Path | None) -> tuple[tuple[Path, ...], Callable[[], TryOut] | None]:
    """The admin sockets of a try-out's nodes, and how to reach its control socket. None named: of the one that runs;
    nothing if there is none, or several."""
    from fluxmq.tryout.control import ControlClient
    from fluxmq.tryout.place import CONTROL, running

    if directory is None:
        found = running()
        if len(found) != 1:
            return (), None
        directory = found[0]
    connect = partial(ControlClient, directory / CONTROL)
    with connect() as control:
        nodes = control.status()["nodes"]
    return tuple(Path(node["socket"]) for node in nodes), connect
