"""A try-out from its first process to the last: starts what was asked for, in order, and leaves nothing behind.

Whatever ends it, the end is the same: the recording is closed, processes are killed (their data is thrown away, so no
node is asked to hand anything over), the directory is removed. SIGINT, SIGTERM and SIGHUP end it; a second one ends the
wait for the recording, too. After SIGKILL the kernel ends the processes, and the next try-out removes the directory.
"""
from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxmq.tryout import demo
from fluxmq.tryout.asking import TryoutError
from fluxmq.tryout.check import check
from fluxmq.tryout.control import ControlServer
from fluxmq.tryout.nodes import Node, Nodes
from fluxmq.tryout.place import Place, running
from fluxmq.tryout.processes import Child, give_terminal_back, kill_all, open_view, terminal_state
from fluxmq.tryout.traffic import RATE, Settings, Traffic
from fluxmq.tryout.verify import Verification

__all__ = ["Options", "Tryout"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130
ENDED_BY_SIGNAL = 128
LOOK_S = 0.3
RECORD_S = 20.0         # for the end of a recording
TRAFFIC_S = 5.0         # for the end of clients whose nodes are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of the command. etcd: path of the program. user: of the demo, as `fluxmq user add` sends it."""

    etcd: str
    user: dict[str, Any]
    nodes: int = 3
    hold: bool = False
    staggered: bool = False
    verify: bool = False
    rounds: int = 4
    record: Path | None = None
    directory: Path | None = None
    rate: float = RATE
    view: bool = False      # `fluxmq viz` has the terminal once the first node serves; the try-out ends with it


class Tryout:
    """say: takes a line of progress. show: takes what happened and its facts: "up" (those of `status`, and up_s;
    stays: until somebody ends it; staggered, verify: as in Options; found: commands find it without --dir),
    "failover-verify"."""

    def __init__(self, options: Options, say: Callable[[str], None],
                 show: Callable[[str, dict[str, Any]], None]) -> None:
        self._options, self._say, self._show = options, say, show
        self._since = time.monotonic()
        self._phase = "starting"
        self._signals = self._status = 0
        self._main: asyncio.Task[int] | None = None
        self._traffic = Traffic(Settings(rate=options.rate))
        self._recorders: list[Child] = []       # the first one of all nodes, further ones of nodes that came back
        self._recorded: dict[str, list[int]] = {}   # processes of each node that are recorded, or were
        self._view: asyncio.Task[None] | None = None
        self._unsaid: list[str] = []    # lines from when the view has the terminal: said when it has ended
        self._place: Place
        self._nodes: Nodes
        self._control: ControlServer

    def run(self) -> int:
        """The exit status. Raises TryoutError."""
        with asyncio.Runner() as runner:
            return runner.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._end)
        try:
            return await self._life()
        except asyncio.CancelledError:
            # To interrupt what it holds is how it ends.
            ended = self._phase == "up" or self._view is not None
            return self._status if ended and self._stays else INTERRUPTED
        except OSError as error:
            raise TryoutError(f"{error.filename or self._place.path}: {error.strerror or error}") from error

    def _end(self) -> None:
        self._signals += 1
        if self._signals == 1 and self._main is not None:
            self._main.cancel()

    async def _life(self) -> int:
        options = self._options
        self._place = Place(options.directory, options.nodes)
        try:
            self._nodes = Nodes(self._place.path, options.nodes, options.etcd, self._line)
            self._control = ControlServer(self._place.control, self._nodes, self._traffic, self._about, self._end)
            try:
                return await self._work()
            finally:
                await self._close()
        finally:
            self._place.remove()

    async def _work(self) -> int:
        options, nodes = self._options, self._nodes
        self._line(f"{options.nodes} {'node starts' if options.nodes == 1 else 'nodes start'} in {self._place.path}")
        self._place.say(self._control.status())
        await self._control.start()
        if options.staggered:
            await nodes.start_staggered(self._joined)
        else:
            await nodes.start()
            await demo.make(next(iter(nodes)), options.user)
            self._line("demo user, queues and stream are there")
            for node in nodes if self._stays or options.record else ():
                self._traffic.add(node)
        await check(nodes)
        self._line("every node serves MQTT and AMQP")
        self._phase = "up"
        if options.record is not None:
            self._record(options.record)
        self._place.say(self._control.status())
        if self._view is None:
            others = any(path != self._place.path for path in running())
            self._show("up", self._control.status() | {
                "up_s": round(time.monotonic() - self._since, 1), "stays": self._stays,
                "staggered": options.staggered, "verify": options.verify,
                "found": self._options.directory is None and not others})
            self._begin_view()
        watch = asyncio.ensure_future(self._watch())
        try:
            return await self._then()
        finally:
            watch.cancel()

    async def _then(self) -> int:
        """What follows when it is up."""
        if self._options.verify:
            self._phase = "verifying"
            found = await Verification(self._nodes, self._options.rounds, self._line).run()
            self._phase = "up"
            self._show("failover-verify", found)
            self._status = 0 if found["ok"] else 1
        if self._stays:
            await asyncio.Event().wait()
        return self._status

    @property
    def _stays(self) -> bool:
        """Until somebody ends it."""
        return self._options.hold or self._options.view

    def _begin_view(self) -> None:
        if self._options.view and self._view is None:
            self._view = asyncio.ensure_future(self._have_view())
            self._view.add_done_callback(lambda _: self._end())

    async def _have_view(self) -> None:
        """Until the user quits it, or the try-out ends. Raises OSError."""
        before = terminal_state()
        process = open_view(self._place.path)
        try:
            while (status := process.poll()) is None:
                await asyncio.sleep(LOOK_S)
            self._status = status if status >= 0 else ENDED_BY_SIGNAL - status
            if status < 0:          # it could not give the terminal back
                give_terminal_back(before)
        finally:
            process.terminate()     # it gives the terminal back
            await asyncio.to_thread(process.wait)

    async def _close_view(self) -> None:
        if self._view is not None:
            self._view.cancel()
            await asyncio.wait([self._view])
            if not self._view.cancelled() and (error := self._view.exception()) is not None:
                self._line(f"the view did not start: {error}")

    async def _joined(self, node: Node) -> None:
        """A further node serves. It gets clients, and a partition: it had none when the queues were made."""
        number = list(self._nodes).index(node)
        if number == 0:
            await demo.make(node, self._options.user)
            self._line("demo user, queues and stream are there")
        elif number < demo.PARTITIONS:
            await demo.move(node, demo.ORDERS, number)
            self._nodes.say(node, f"has partition {number} of {demo.ORDERS} now")
        self._traffic.add(node)
        self._begin_view()

    async def _watch(self) -> None:
        """Notices what ends by itself, and keeps tryout.json."""
        said: list[tuple[str, int]] = []
        while True:
            await asyncio.sleep(LOOK_S)
            self._nodes.look()
            now = [(node.state, node.child.pid if node.child is not None else 0) for node in self._nodes]
            if now != said:
                said = now
                with contextlib.suppress(OSError):      # the disk is full: the nodes say more about it
                    self._place.say(self._control.status())
            for recorder in [one for one in self._recorders if one.status is not None]:
                self._line(f"a recording has ended:\n{recorder.last_words()}")
                self._recorders.remove(recorder)
            if self._options.record is not None:
                self._record_again(self._options.record)

    def _record(self, directory: Path) -> None:
        """All nodes. Raises OSError."""
        sockets = [word for node in self._nodes for word in ("--attach", str(node.socket))]
        self._recorders.append(Child(["record", *sockets, "--dir", str(directory.absolute())],
                                     self._place.path / "record.log"))
        self._recorded = {node.name: [node.child.pid] for node in self._nodes if node.child is not None}
        self._line(f"the nodes are recorded into {directory}")

    def _record_again(self, directory: Path) -> None:
        """A node that is back, whose recording has ended with its former process."""
        for node in self._nodes.up:
            known = self._recorded.setdefault(node.name, [])
            if node.child is None or node.child.pid in known:
                continue
            known.append(node.child.pid)
            place = directory.absolute() / f"node={node.name}.{len(known)}"
            try:
                self._recorders.append(Child(["record", "--attach", str(node.socket), "--dir", str(place)],
                                             self._place.path / f"{place.name}.log"))
            except OSError as error:
                self._line(f"{node.name} is not recorded again: {error}")
            else:
                self._nodes.say(node, f"is recorded again, into {place.name}")

    async def _close(self) -> None:
        """Everything but the directory."""
        await self._close_view()
        with contextlib.suppress(OSError):      # nobody may read any more what is said
            self._line("ends")
        try:
            await self._close_recording()
        finally:
            # Nothing may interrupt what follows; it does not wait for what hangs.
            self._nodes.end()
            self._control.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRAFFIC_S):
                    await self._traffic.end()

    async def _close_recording(self) -> None:
        for recorder in self._recorders:
            recorder.signal(signal.SIGTERM)
        deadline = time.monotonic() + RECORD_S
        while (any(one.status is None for one in self._recorders) and time.monotonic() < deadline
               and self._signals < 2):
            await asyncio.sleep(LOOK_S / 3)
        kill_all(self._recorders)
        for recorder in self._recorders:
            with contextlib.suppress(OSError):
                self._say(recorder.last_words())

    def _about(self) -> dict[str, Any]:
        return {"dir": str(self._place.path), "phase": self._phase}

    def _line(self, text: str) -> None:
        line = f"{time.monotonic() - self._since:6.1f} s  {text}"
        if self._view is not None and not self._view.done():
            self._unsaid.append(line)
            return
        for former in self._unsaid:
            self._say(former)
        self._unsaid.clear()
        self._say(line)
