"""A turn that lingers ends when the event loop has something to do for others, whatever else comes (decision 0009)."""
from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest
import uvloop
from kit.readable import is_readable
from unit.test_connection import Bench

from fluxmq._core.errors import UsageError
from fluxmq._core.net.poller import Poller
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.app.loop_epoll import callbacks_of, epoll_of, watch_loop

A_LONG_TIME_MS = 3_600_000          # a turn that goes on until then has not ended
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c"


class World:
    """A poller, a connection, and in place of an event loop an epoll that has the poller and a pipe."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.poller = self.bench.poller
        self.loop = select.epoll()
        self.loop.register(self.poller.fileno(), select.EPOLLIN)
        self.reading, self.writing = os.pipe()
        self.loop.register(self.reading, select.EPOLLIN)
        self.client, connection = self.bench.connect()
        self.bench.handler.on_first = lambda connection: connection.accept(
            self.bench.hub.new_session(b"c", 0), 10, 0xFFFFFFFF, 0)
        self.client.sendall(CONNECT)
        self.bench.turn_until(lambda: connection.open)
        self.poller.linger_ms = A_LONG_TIME_MS
        self.callbacks: list[object] = []
        self.asked = 0
        self.poller.watch_loop(self.loop.fileno(), self.callbacks, self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def turn(self) -> None:
        """As a loop calls it."""
        before = self.asked
        self.poller.turn()
        if self.asked > before:
            self.poller.linger()

    def ready(self) -> set[int]:
        """What the loop would be told of."""
        return {fd for fd, _ in self.loop.poll(0)}

    def close(self) -> None:
        self.client.close()
        self.loop.close()
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def ping(client: socket.socket) -> None:
    client.sendall(PINGREQ)
    assert client.recv(2) == PINGRESP


def test_it_does_not_begin_when_something_is_ready(world: World) -> None:
    os.write(world.writing, b"x")
    world.client.sendall(PINGREQ)
    world.turn()
    assert world.ready() == {world.reading} and world.client.recv(2) == PINGRESP


def test_it_ends_between_two_messages(world: World) -> None:
    """A client goes on and on; some messages later something of the loop is ready."""
    ended = threading.Event()

    def flood() -> None:
        for _ in range(20):
            ping(world.client)
        os.write(world.writing, b"x")
        while not ended.is_set():
            ping(world.client)

    turns = world.bench.hub.counters()["turns"]
    client = threading.Thread(target=flood)
    client.start()
    while not is_readable(world.poller, 1):
        pass
    while world.reading not in world.ready():
        world.turn()
    assert world.bench.hub.counters()["turns"] - turns >= 20
    ended.set()
    client.join(0)
    while client.is_alive():
        world.poller.linger_ms = 0
        world.turn()
        client.join(0.01)


def test_it_ends_while_nothing_comes(world: World) -> None:
    def later() -> None:
        ping(world.client)
        ping(world.client)
        os.write(world.writing, b"x")

    client = threading.Thread(target=later)
    client.start()
    while world.reading not in world.ready():
        world.turn()
    client.join()


def test_a_frame_for_another_node_ends_it(world: World) -> None:
    """It was handed to a coroutine of the loop, which writes it."""
    frames: list[bytes] = []
    outbox = PeerOutbox(world.bench.hub, "b", 1)
    world.bench.hub.targets.add_peer(outbox, b"far")
    outbox.attach(frames.append, 2, 0)
    outbox.on_idle()

    def talk() -> None:
        ping(world.client)
        ping(world.client)
        world.client.sendall(b"\x30\x06\x00\x03far1")

    client = threading.Thread(target=talk)
    client.start()
    while len(frames) < 2:
        world.turn()
    client.join()


def test_its_own_sockets_are_no_work_of_the_loop(world: World) -> None:
    """A message that comes while it lingers is handled by that turn; behind it the loop is told as before."""
    pings = 5

    def talk() -> None:
        for _ in range(pings):
            ping(world.client)
        os.write(world.writing, b"x")

    client = threading.Thread(target=talk)
    client.start()
    while not is_readable(world.poller, 1):
        pass
    world.turn()
    client.join()               # one turn answered all of them
    assert world.ready() == {world.reading}
    world.client.sendall(PINGREQ)
    assert world.poller.fileno() in world.ready()
    world.turn()
    assert world.client.recv(2) == PINGRESP and world.poller.fileno() not in world.ready()


def test_it_does_not_linger_where_the_loop_is_not_known() -> None:
    bench = Bench()
    client, connection = bench.connect()
    bench.handler.on_first = lambda connection: connection.accept(bench.hub.new_session(b"c", 0), 10, 0xFFFFFFFF, 0)
    client.sendall(CONNECT)
    bench.turn_until(lambda: connection.open)
    bench.poller.linger_ms = A_LONG_TIME_MS
    client.sendall(PINGREQ)
    bench.poller.turn()
    assert client.recv(2) == PINGRESP
    client.close()


def test_it_waits_for_callbacks_of_the_loop(world: World) -> None:
    """Those that wait when it would begin, or come before it does."""
    world.callbacks.append(None)
    world.client.sendall(PINGREQ)
    world.poller.turn()
    assert world.asked == 0 and world.client.recv(2) == PINGRESP
    world.callbacks.clear()
    world.client.sendall(PINGREQ)
    world.poller.turn()
    world.client.sendall(PINGREQ)
    assert world.asked == 1 and world.ready() == set()      # until then it keeps what comes to itself
    world.callbacks.append(None)
    world.poller.linger()
    assert world.ready() == {world.poller.fileno()}
    world.poller.linger()                                   # nobody asked for it
    world.poller.turn()
    assert world.client.recv(4) == 2 * PINGRESP


def test_one_loop_watches_a_poller(world: World) -> None:
    with pytest.raises(UsageError):
        world.poller.watch_loop(world.loop.fileno(), [], lambda: None)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_epoll_of_a_loop_is_the_one_it_waits_in(run: object) -> None:
    async def look() -> None:
        loop = asyncio.get_running_loop()
        descriptor = epoll_of(loop)
        poller = Poller(Bench().hub)
        loop.add_reader(poller.fileno(), lambda: None)
        await asyncio.sleep(0)
        with open(f"/proc/self/fdinfo/{descriptor}") as file:
            watched = {int(line.split()[1]) for line in file if line.startswith("tfd:")}
        assert poller.fileno() in watched
        watch_loop(poller, loop, poller.linger)
        callbacks = callbacks_of(loop)
        assert callbacks is not None
        await asyncio.sleep(0)
        before = len(callbacks)
        loop.call_soon(lambda: None)
        assert len(callbacks) == before + 1
        loop.remove_reader(poller.fileno())

    run(look())  # type: ignore[operator]


def test_a_loop_that_does_not_say() -> None:
    class Loop(asyncio.SelectorEventLoop):
        pass

    loop = Loop(__import__("selectors").PollSelector())
    try:
        assert epoll_of(loop) == -1
    finally:
        loop.close()
