"""How a server ends: in which order, and although something fails; and what it says of itself before."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fluxmq._core.errors import StorageError
from fluxmq.access.authority import Authority
from fluxmq.app.broker_notes import Note
from fluxmq.app.config import load
from fluxmq.app.server import Server


class Closing(Authority):
    """Notes when it is closed."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self.steps = steps

    def close(self) -> None:
        self.steps.append("authority")
        super().close()


def served(directory: Path, steps: list[str], meanwhile: Callable[[Server], None]) -> None:
    """A server that is started and stopped."""
    config, _ = load(sets=[f"storage.dir={directory / 'data'}", "server.health_enabled=false", "server.admin_socket=",
                           "server.mqtt.tcp.plain.addr=127.0.0.1:0", "server.mqtt.websocket.plain.addr=",
                           "server.amqp091.plain.addr="])

    async def run() -> None:
        server = Server(config, Closing(steps))
        server.initialize()
        await server.start()
        meanwhile(server)
        await server.stop()

    asyncio.run(run())


def test_password_checks_end_before_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def watch(server: Server) -> None:
        close = server.keeper.close

        async def closing(*arguments: Any) -> None:
            steps.append("keeper")
            await close(*arguments)

        monkeypatch.setattr(server.keeper, "close", closing)

    served(tmp_path, steps, watch)
    assert steps[:2] == ["authority", "keeper"]


def test_everything_is_closed_although_the_store_cannot_be(tmp_path: Path) -> None:
    closed: list[int] = []
    wanted: list[int] = []

    def fail(server: Server) -> None:
        [store, *others] = server._closing

        def broken() -> None:
            store()
            raise StorageError("the store cannot be closed")

        def noted(number: int, close: Callable[[], None]) -> Callable[[], None]:
            def closing() -> None:
                closed.append(number)
                close()

            return closing

        wanted.extend(range(len(others)))
        server._closing[:] = [broken, *(noted(number, close) for number, close in enumerate(others))]

    with pytest.raises(StorageError, match="cannot be closed"):
        served(tmp_path, [], fail)
    assert closed == wanted != []


def test_a_full_disk_without_a_reason_is_not_ready(tmp_path: Path) -> None:
    answers: list[tuple[bool, dict[str, Any]]] = []

    def look(server: Server) -> None:
        answers.append(server.snapshots.ready())
        space, server.queues.space = server.queues.space, cast(Any, SimpleNamespace(full=True, why=""))
        answers.append(server.snapshots.ready())
        server.queues.space = space

    served(tmp_path, [], look)
    (ready, _), (full, body) = answers
    assert ready and not full
    assert body["checks"]["storage"] == {
        "status": "down", "details": "the disk is full: queues refuse what is published"}


@pytest.mark.parametrize("again", [False, True])
def test_commands_hear_what_the_server_does_while_its_socket_does_not_answer(tmp_path: Path, again: bool) -> None:
    """again: it has lost its lease, and another life follows."""
    said: list[tuple[str, str]] = []

    class Told(Note):
        def starts(self, doing: str = "") -> None:
            said.append(("starts", doing))

        def serves(self) -> None:
            assert (tmp_path / "admin.sock").exists()
            said.append(("serves", ""))

        def stops(self, doing: str) -> None:
            said.append(("stops", doing))

    config, _ = load(sets=[f"storage.dir={tmp_path / 'data'}", "server.health_enabled=false",
                           f"server.admin_socket={tmp_path / 'admin.sock'}", "server.mqtt.tcp.plain.addr=127.0.0.1:0",
                           "server.mqtt.websocket.plain.addr=", "server.amqp091.plain.addr="])

    async def run() -> None:
        server = Server(config, note=Told())
        server.initialize()
        await server.start()
        server.again = server.fenced = again
        await server.stop()

    asyncio.run(run())
    ends = "starts" if again else "stops"
    assert said == [("starts", "it opens its storage"), ("starts", "it recovers its state from disk"), ("serves", ""),
                    (ends, "it ends its clients' connections"),
                    (ends, "it waits until the disk has all that it is to have")]
