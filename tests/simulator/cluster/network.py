"""The network between the processes of a simulated cluster.

    network.cut("n1", "n2")                     # both ways; back=False: only what n1 sends to n2
    network.stall("n1", "n2"); network.heal()   # what is sent meanwhile arrives later
    network.isolate("n1", "etcd-n1")            # these, from everybody else
    network.link("n1", "n2").delay_ms = (80, 200)
    network.link("n1", "n2").loss = 0.2         # of single messages; a pipe loses nothing

There are two ways to send: `send`, a message by itself, which may be lost, delayed and overtaken; and `Pipe`, one
direction of a connection, which keeps the order and delivers once, until it breaks.

A connection (`Connection`) has two sides. Each finds out for itself that the other one does not answer
(`keepalive_ms`), so one side may use it for a while after the other has given it up. What was written by then may still
arrive, in part.
"""
from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from simulator.cluster.machines import Machines, Process

__all__ = ["REFUSED", "Connection", "Link", "Network", "Pipe", "Side"]

WINDOW = 4      # items of a pipe that its receiver has not read; more of them wait at the sender
MANY = 64       # connections, before those that are over are looked for
REFUSED = "connection refused"


class Link:
    """From one process to another. delay_ms: lowest, highest; None: that of the network."""

    def __init__(self) -> None:
        self.cut = False
        self.stalled = False
        self.loss = 0.0
        self.delay_ms: tuple[int, int] | None = None
        self.held: list[Callable[[], None]] = []        # messages that wait for the end of a stall

    @property
    def blocked(self) -> bool:
        """Nothing arrives now."""
        return self.cut or self.stalled


class Network:
    """delay_ms: of every link that has none of its own. keepalive_ms: after how long a side gives a connection up whose
    other side does not answer."""

    def __init__(self, world: Machines, *, delay_ms: tuple[int, int] = (0, 2),
                 keepalive_ms: tuple[int, int] = (1000, 4000)) -> None:
        self.world = world
        self.chance = random.Random(world.chance.getrandbits(64))
        self.delay_ms = delay_ms
        self.keepalive_ms = keepalive_ms
        self.connections: dict[Connection, None] = {}
        self.listeners: dict[str, object] = {}      # by address
        self._many = MANY
        self._links: dict[tuple[str, str], Link] = {}
        world.on_change.append(self.changed)

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────

    def link(self, source: str, target: str) -> Link:
        """The link between two processes, by their names."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link()
        return link

    def cut(self, source: str, target: str, *, back: bool = True) -> None:
        """Messages are lost; pipes hold what is sent. back: the other direction too."""
        self.link(source, target).cut = True
        if back:
            self.link(target, source).cut = True
        self.changed()

    def stall(self, source: str, target: str, *, back: bool = True) -> None:
        """Everything that is sent, or on its way, arrives after the end of the stall."""
        self.link(source, target).stalled = True
        if back:
            self.link(target, source).stalled = True
        self.changed()

    def isolate(self, *names: str) -> None:
        """Cuts these processes off from all others, but not from each other."""
        for one in names:
            for other in self.world.processes:
                if other not in names:
                    self.link(one, other).cut = self.link(other, one).cut = True
        self.changed()

    def heal(self, *names: str) -> None:
        """Ends cuts, stalls, losses and delays: of the links of these processes; without names, of all."""
        for pair, link in list(self._links.items()):
            if not names or not set(pair).isdisjoint(names):
                link.cut = link.stalled = False
                link.loss, link.delay_ms = 0.0, None
                held, link.held = link.held, []
                for again in held:
                    again()
        self.changed()

    def changed(self, resumed: Process | None = None) -> None:
        """Something that connections notice has changed: a link, or a process (resumed: one that goes on)."""
        self._forget()
        for connection in list(self.connections):
            connection.look(resumed)

    def add(self, connection: Connection) -> None:
        """A connection was made."""
        self.connections[connection] = None
        if len(self.connections) > self._many:
            self._forget()
            self._many = 2 * len(self.connections) + MANY

    def _forget(self) -> None:
        self.connections = {connection: None for connection in self.connections if not connection.over}

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────

    def draw_delay(self, source: Process, target: Process) -> float:
        """Seconds."""
        low, high = self.link(source.name, target.name).delay_ms or self.delay_ms
        return self.chance.randint(low, high) / 1000

    def send(self, source: Process, target: Process, call: Callable[[], object], *,
             refused: Callable[[], object] | None = None) -> None:
        """One message: call() is done by the target, if it arrives there and the target lives. refused: done outside of
        the processes when it arrives and nobody lives there."""
        link = self.link(source.name, target.name)
        if link.loss and self.chance.random() < link.loss:
            return

        def arrive() -> None:
            if link.cut:
                return
            if link.stalled:
                link.held.append(lambda: self.world.events.later(self.draw_delay(source, target), arrive))
            elif target.alive:
                target.deliver(target.life, call)
            elif refused is not None:
                refused()

        if not link.cut:
            self.world.events.later(self.draw_delay(source, target), arrive)


class Pipe:
    """One direction of a connection: items from one process to another, in order.

    Items are written one after the other while the pipe is open, the sender runs, and fewer than WINDOW of them are
    unread.
    """

    def __init__(self, network: Network, source: Side, target: Side) -> None:
        self._network = network
        self._source, self._target = source, target
        self._link = network.link(source.process.name, target.process.name)
        self._queue: deque[object] = deque()        # not written
        self._wire: deque[object] = deque()         # written, not arrived
        self._unread = 0                            # arrived, not read
        self._last_ms = 0                           # when the newest of the wire arrives
        self._late = 0                              # how many of the wire would have arrived, were the link not blocked
        self.open = True
        self.ended = False

    @property
    def idle(self) -> bool:
        """Everything was written."""
        return not self._queue

    @property
    def busy(self) -> bool:
        """Something is on its way."""
        return bool(self._wire)

    @property
    def full(self) -> bool:
        """As much is waiting as the receiver has room for."""
        return len(self._queue) >= WINDOW

    def put(self, item: object) -> None:
        """Queues an item."""
        if not self.ended:
            self._queue.append(item)
            self._network.world.events.later(self._network.chance.randint(0, 1) / 1000, self.pump)

    def put_at_once(self, item: object) -> bool:
        """Writes an item if the pipe is idle and may be written to; whether it was."""
        able = (self.open and not self.ended and not self._queue and self._source.runs
                and len(self._wire) + self._unread < WINDOW)
        if able:
            self.write(item)
        return able

    def pump(self) -> None:
        """Writes what may be written now."""
        if not self.open or not self._queue or not self._source.runs:
            return
        while self._queue and len(self._wire) + self._unread < WINDOW:
            self.write(self._queue.popleft())
        if not self._queue:
            self._source.deliver(self._source.idle)

    def write(self, item: object) -> None:
        """Sends an item at once, ahead of those that are queued."""
        self._wire.append(item)
        self._schedule()

    def _schedule(self) -> None:
        now_ms = self._network.world.now_ms
        delay_ms = round(self._network.draw_delay(self._source.process, self._target.process) * 1000)
        self._last_ms = max(self._last_ms, now_ms + delay_ms)
        self._network.world.events.later((self._last_ms - now_ms) / 1000, self._arrive)

    def _arrive(self) -> None:
        """The oldest of the wire arrives, unless the link is blocked."""
        if self._link.blocked:
            self._late += 1
        elif self._wire:
            item = self._wire.popleft()
            if self._target.alive:
                self._unread += 1
                self._target.deliver(lambda: self._read(item))
            else:
                self._target.refuse()

    def _read(self, item: object) -> None:
        self._unread -= 1
        self._network.world.events.soon(self.pump)
        self._target.read(item)

    def unblocked(self) -> None:
        """The link passes again: what is late arrives."""
        late, self._late = self._late, 0
        for _ in range(late):
            self._schedule()

    def end(self, last: object, *, whole: bool) -> None:
        """Nothing is put any more. What was not written is lost, of what is on its way an end of it too, unless whole;
        then comes `last`."""
        if self.ended:
            return
        self.ended = True
        self._queue.clear()
        if not whole and self._wire:
            kept = self._network.chance.randint(0, len(self._wire))
            while len(self._wire) > kept:
                self._wire.pop()
        self.write(last)

    def vanish(self) -> None:
        """The sender's machine has lost its power: nothing comes any more."""
        self.ended = True
        self._queue.clear()
        self._wire.clear()


class _End:
    """What a pipe delivers last: why the other side has ended."""

    def __init__(self, why: str) -> None:
        self.why = why


class Side:
    """One end of a connection. on_item: what the other side has sent. on_break: the connection has ended for this side,
    by the other one or because that one does not answer. on_idle: what was put was written."""

    out: Pipe

    def __init__(self, process: Process, on_item: Callable[[object], None], on_break: Callable[[str], None],
                 on_idle: Callable[[], None] = lambda: None) -> None:
        self.process = process
        self.life = process.life
        self.connected = False
        self.closed = False
        self._on_item, self._on_break, self._on_idle = on_item, on_break, on_idle

    @property
    def alive(self) -> bool:
        """Its process is in the same life."""
        return self.process.alive and self.process.life == self.life

    @property
    def runs(self) -> bool:
        """Its process can answer."""
        return self.alive and not self.process.paused

    def deliver(self, call: Callable[[], None]) -> None:
        """call() is done by its process."""
        self.process.deliver(self.life, call)

    # ── what its process does ────────────────────────────────────────────────────────────────────────────

    def put(self, item: object) -> None:
        """Sends an item to the other side."""
        if not self.closed:
            self.out.put(item)

    def close(self, why: str, *, whole: bool = True) -> None:
        """Ends the connection. on_break is not called here, but at the other side, with the reason."""
        if not self.closed:
            self.closed = True
            self.process.at_death.pop(self, None)
            self.out.end(_End(why), whole=whole)

    def read(self, item: object) -> None:
        """An item has arrived."""
        if self.closed:
            return
        if isinstance(item, _End):
            self.close("")
            self._on_break(item.why)
        else:
            self._on_item(item)

    def idle(self) -> None:
        """The last item was written."""
        if not self.closed:
            self._on_idle()

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────

    def give_up(self) -> None:
        """The other side has not answered for too long."""
        if not self.closed and self.runs:
            self.close("the connection was reset", whole=False)
            self.deliver(partial(self._on_break, "the other side does not answer"))

    def died(self, told: bool) -> None:
        """The process is gone. told: its kernel says so to the other side."""
        self.closed = True
        if told:
            self.out.end(_End("the connection was reset"), whole=False)
        else:
            self.out.vanish()

    def refuse(self) -> None:
        """Something has arrived for a process that is gone."""
        self.closed = True
        if not self.process.dark:
            self.out.end(_End(REFUSED), whole=False)


class Connection:
    """Two sides and a pipe each way."""

    def __init__(self, network: Network, dialler: Side, acceptor: Side) -> None:
        self._network = network
        self.sides = (dialler, acceptor)
        self._links = (network.link(dialler.process.name, acceptor.process.name),
                       network.link(acceptor.process.name, dialler.process.name))
        self._blocked = False
        self._epoch = 0         # of the time since when it is blocked
        for side, other in (self.sides, self.sides[::-1]):
            side.out = Pipe(network, side, other)
            side.connected = True
            if side.alive:
                side.process.at_death[side] = side.died
        network.add(self)
        self.look(None)

    def look(self, resumed: Process | None) -> None:
        """Something has changed. While the other side does not answer, each side waits, and then gives up."""
        network, again = self._network, False
        for side, link in zip(self.sides, self._links, strict=True):
            if not link.blocked:
                side.out.unblocked()
            if resumed is side.process and side.runs:
                again = True
                # What a thread of the transport still has may leave before the process does anything else, or later.
                network.world.events.later(network.chance.randint(0, 2) / 1000, side.out.pump)
        blocked = any(link.blocked for link in self._links) or not all(side.runs for side in self.sides)
        if blocked == self._blocked and not (blocked and again):
            return
        self._blocked = blocked
        self._epoch += 1
        if blocked:
            for side in self.sides:
                delay_ms = network.chance.randint(*network.keepalive_ms)
                network.world.events.later(delay_ms / 1000, partial(self._give_up, side, self._epoch))

    def _give_up(self, side: Side, epoch: int) -> None:
        if epoch == self._epoch:
            side.give_up()

    @property
    def over(self) -> bool:
        """Both sides have closed it, and nothing is on its way."""
        return all(side.closed and not side.out.busy for side in self.sides)
