"""The client against somebody else's broker: both versions, all QoS, a restart in the middle."""
from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.broker import free_port
from kit.tools import require_tool

from fluxmq.client import Backoff, Client, Properties

Run = Callable[[Any], Any]
QUICK = Backoff(initial_s=0.01, max_s=0.05)
SECONDS = 20.0


class Mosquitto:
    """Debian's mosquitto with its defaults, on a port that it keeps."""

    def __init__(self, directory: Path) -> None:
        self.program = require_tool("mosquitto", package="mosquitto")
        self.port = free_port()
        self.config = directory / "mosquitto.conf"
        self.config.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\n")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([self.program, "-c", str(self.config)], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def reached(self, **options: Any) -> Client:
        """A client, as soon as it listens."""
        while True:
            client = Client(self.address, reconnect=QUICK, **options)
            try:
                await client.start()
                return client
            except OSError:
                assert self.process is not None and self.process.poll() is None, "mosquitto ended"
                await asyncio.sleep(0.01)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_every_qos(run: Run, mosquitto: Mosquitto, version: int) -> None:
    async def body() -> None:
        client = await mosquitto.reached(version=version, client_id="c")
        for qos in (0, 1, 2):
            assert await client.subscribe(f"a/{qos}", qos) == qos
            told = Properties(content_type="t", user=[("k", "v")]) if version == 5 else None
            for number in range(100):
                await client.publish(f"a/{qos}", str(number), qos, properties=told)
            got = []
            async for message in client.messages:
                assert message.qos == qos and (message.properties.user == [("k", "v")]) == (version == 5)
                got.append(int(message.text))
                if len(got) == 100:
                    break
            assert got == list(range(100))
        await client.close()

    run(body())


def test_it_forgets_everything(run: Run, mosquitto: Mosquitto) -> None:
    """Killed, and it keeps nothing on disk: subscriptions are made again, publishes are sent again."""

    async def body() -> None:
        client = await mosquitto.reached(client_id="c")
        got: set[str] = set()
        await client.subscribe("a", 1, handler=lambda message: got.add(message.text))
        await client.publish("a", "before", 1)
        await asyncio.to_thread(mosquitto.kill)
        waiting = [client.publish_nowait("a", str(number), 1) for number in range(50)]
        mosquitto.start()
        for one in waiting:
            await one
        while len(got) < 51:
            await client.publish("other", b"", 1)
        assert got == {"before", *map(str, range(50))}
        await client.close()

    run(body())
