"""A turn of the broker that lingers notices frames and calls of other nodes (decision 0009): gRPC's threads wake the
loop by a socket that is in the loop's epoll."""
from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

from cluster.rpc.conftest import Run
from cluster.rpc.nodes import Node
from kit.python import TESTS, environment
from unit.test_connection import Bench
from unit.test_lingering import A_LONG_TIME_MS, CONNECT, ping

from fluxmq.app.loop_epoll import watch_loop

FRAMES = 50
# Another node: sends a frame when the one before has left, and calls after each.
OTHER = """
import asyncio, sys
from cluster.rpc.nodes import Node, parts_of

async def main():
    async with Node() as node:
        stream = await node.dialled(sys.argv[1])
        for number in range(int(sys.argv[2])):
            stream.send(b"%d" % number)
            assert await parts_of(node, sys.argv[1], "echo", b"x") == [b"x"]

asyncio.run(main())
"""


def test_frames_and_calls_end_a_turn_that_would_go_on_for_an_hour(run: Run) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        bench = Bench()
        client, connection = bench.connect()
        bench.handler.on_first = lambda connection: connection.accept(
            bench.hub.new_session(b"c", 0), 10, 0xFFFFFFFF, 0)
        client.sendall(CONNECT)
        bench.turn_until(lambda: connection.open)
        loop.add_reader(bench.poller.fileno(), bench.poller.turn)
        watch_loop(bench.poller, loop, bench.poller.linger)
        bench.poller.linger_ms = A_LONG_TIME_MS
        over, pings = threading.Event(), 0

        def flood() -> None:
            nonlocal pings
            while not over.is_set():
                ping(client)
                pings += 1

        async with Node() as node:
            flooding = threading.Thread(target=flood)
            flooding.start()
            try:
                other = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", OTHER, node.address, str(FRAMES), env=environment(TESTS),
                    stderr=subprocess.PIPE)
                _, said = await other.communicate()
                assert other.returncode == 0, said.decode()
            finally:
                bench.poller.linger_ms = 0      # timers do not end such a turn
                over.set()
                while flooding.is_alive():
                    await asyncio.sleep(0.01)
                loop.remove_reader(bench.poller.fileno())
            assert node.frames == {b"hello": [b"%d" % number for number in range(FRAMES)]}
            turns = bench.hub.counters()["turns"]
            assert len(node.calls) == FRAMES and pings > FRAMES and turns > FRAMES
        client.close()
    run(test())
