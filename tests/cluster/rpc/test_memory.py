"""Large frames that are under way when a stream ends are freed, however it ends."""
from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest
from cluster.rpc.nodes import Node, send
from kit.loops import run_on
from kit.proxy import Proxy

from fluxmq.cluster.ports import StreamIn

FRAME = bytes(8 << 20)
TIMES = 40
# A frame lost at each end would be 320 MiB.
GROWTH_MAX = 160 << 20


@pytest.mark.parametrize("how", ["cut", "closed by the sender", "closed by the receiver"])
def test_streams_that_end_in_the_middle_of_frames(how: str) -> None:
    process = psutil.Process()

    async def test() -> None:
        async with Node() as one, Node() as other:
            accepted: list[StreamIn] = []
            sent: list[str] = []

            def opened(stream: Any, hello: bytes) -> bytes:
                accepted.append(stream)
                return b""

            def event(name: str, *what: Any) -> None:
                if name in ("open", "idle"):
                    sent.append(name)
                    send(what[0], FRAME)

            one.on_event, other.answer = event, opened
            with Proxy(other.target) as proxy:
                for turn in range(-10, TIMES):
                    if turn == 0:
                        before = process.memory_info().rss
                    sent.clear()
                    for frames in other.frames.values():
                        frames.clear()          # not the dict: what was under way of the last stream may come yet
                    stream = one.transport.dial(proxy.address, b"%d" % turn)
                    await one.until(lambda: len(sent) == 2)
                    if how == "cut":
                        proxy.cut()
                    elif how == "closed by the sender":
                        stream.close()
                    else:
                        accepted[-1].close("enough")
                    while proxy.connections:
                        await asyncio.sleep(0.001)
                assert process.memory_info().rss - before < GROWTH_MAX
    run_on("uvloop", test())
