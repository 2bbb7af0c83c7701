"""Streams over a network that breaks at any moment: what arrives is a beginning of what was sent, in order, whole and
once, and each stream ends exactly once at either end."""
from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from cluster.rpc.conftest import Run
from cluster.rpc.nodes import FAST, Node, send
from kit.proxy import FROM_TARGET, TO_TARGET, Proxy

from fluxmq.cluster.ports import StreamOut

pytestmark = pytest.mark.usefixtures("no_socket_is_left")
STREAMS = 8


def frame_of(stream: bytes, number: int, size: int) -> bytes:
    """It tells where it belongs, and a part of another frame in it would show."""
    head = b"%s %d " % (stream, number)
    return head + random.Random(head).randbytes(size)


class Sender:
    """Dials again and again; each stream sends frames while it is open, up to 256 KiB ahead."""

    def __init__(self, node: Node, address: str, chance: random.Random) -> None:
        self.node, self.address, self.chance = node, address, chance
        self.sent: dict[StreamOut, list[bytes]] = {}
        self.names: dict[StreamOut, bytes] = {}
        node.on_event = self.event

    def dial(self) -> StreamOut:
        name = b"stream-%d" % len(self.names)
        stream = self.node.transport.dial(self.address, name)
        self.names[stream], self.sent[stream] = name, []
        return stream

    def event(self, name: str, *what: Any) -> None:
        if name in ("open", "idle"):
            stream = what[0]
            for _ in range(self.chance.randrange(1, 5)):
                number = len(self.sent[stream])
                size = self.chance.choice((0, 10, 1000, 50_000, 200_000))
                self.sent[stream].append(frame_of(self.names[stream], number, size))
                send(stream, self.sent[stream][-1])


def fault(proxy: Proxy, chance: random.Random) -> None:
    kind = chance.randrange(6)
    direction = chance.choice((TO_TARGET, FROM_TARGET))
    if kind == 0:
        proxy.cut()
    elif kind == 1:
        proxy.cut_after(chance.randrange(1, 2_000_000), TO_TARGET)
    elif kind == 2:
        proxy.cut_after(chance.randrange(1, 200), FROM_TARGET)
    elif kind == 3:
        proxy.stall(direction)
    elif kind == 4:
        proxy.stall()
    else:
        proxy.delay(chance.uniform(0.001, 0.02), direction)
        proxy.cut_after(chance.randrange(1, 1_000_000), TO_TARGET)


@pytest.mark.parametrize("history", range(3))
def test_any_breaks(run: Run, history: int, seed: int) -> None:
    chance = random.Random(f"{seed} {history}")

    async def test() -> None:
        async with Node(settings=FAST._replace(keepalive_s=0.15)) as one, \
                Node(settings=FAST._replace(keepalive_s=0.15)) as other:
            with Proxy(other.target) as proxy:
                sender = Sender(one, proxy.address, chance)
                for _ in range(STREAMS):
                    stream = sender.dial()
                    frames = chance.randrange(0, 30)
                    await one.until(lambda stream=stream, frames=frames:
                                    len(sender.sent[stream]) >= frames or one.whys(stream))
                    fault(proxy, chance)
                    # A cut of a connection that is not there yet does nothing, so then it goes on until it is cut.
                    await one.until(lambda stream=stream: one.whys(stream) or stream in one.opened)
                    proxy.cut_after(chance.randrange(1, 2_000_000), TO_TARGET)
                    await one.until(lambda stream=stream: one.whys(stream))
                    proxy.resume()
                # All that were accepted there end there too.
                await other.until(lambda: len(other.ended) == len(other.streams))
            check(one, other, sender)
    run(test())


def check(one: Node, other: Node, sender: Sender) -> None:
    assert len(one.closed) == STREAMS and {stream for stream, _ in one.closed} == sender.names.keys()
    assert len(set(other.ended)) == len(other.ended)
    assert set(other.streams) >= {sender.names[stream] for stream in one.opened}
    arrived = 0
    for stream, name in sender.names.items():
        frames = other.frames.get(name, [])
        assert frames == sender.sent[stream][:len(frames)]
        arrived += len(frames)
    assert arrived > STREAMS and len(one.opened) > STREAMS // 2


def test_a_network_that_is_only_slow_loses_nothing(run: Run, seed: int) -> None:
    chance = random.Random(seed)

    async def test() -> None:
        async with Node() as one, Node() as other:
            with Proxy(other.target) as proxy:
                proxy.delay(0.01)
                stream = await one.dialled(proxy.address)
                frames = [frame_of(b"hello", number, chance.choice((0, 100, 100_000))) for number in range(200)]
                for number, frame in enumerate(frames):
                    stream.send(frame)
                    if number % 40 == 0:
                        # Shorter than the time after which it counts as broken.
                        direction = chance.choice((TO_TARGET, FROM_TARGET))
                        proxy.stall(direction)
                        await asyncio.sleep(0.02)
                        proxy.resume()
                        proxy.delay(chance.uniform(0, 0.01))
                await other.until(lambda: len(other.frames[b"hello"]) == len(frames))
                assert other.frames[b"hello"] == frames and one.whys(stream) == []
    run(test())
