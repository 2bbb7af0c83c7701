"""The health server over real sockets on loopback: the three pages, HTTP's manners, and every bound."""
import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fluxmq._core.errors import UsageError
from fluxmq.admin.health import HealthServer
from fluxmq.engine.ports.overview import ClusterView, NodeView
from fluxmq.model import limits

Factory = Callable[[], asyncio.AbstractEventLoop]


VIEW = ClusterView(env="e", nodes=(NodeView(id="one", address="10.0.0.1", port=7948, pid=7, epoch=3),), local="one",
                   state="without_quorum", reason="etcd does not answer")


class Broker:
    """What the server asks; `fault` is raised instead."""

    def __init__(self) -> None:
        self.status = "healthy"
        self.is_ready = True
        self.fault: Exception | None = None

    def health(self) -> dict[str, Any]:
        if self.fault:
            raise self.fault
        return {"status": self.status}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        return self.is_ready, {"status": "ready" if self.is_ready else "not_ready", "checks": {"storage": {}}}

    def metrics(self, queues: Sequence[str]) -> bytes:
        return b"fluxmq_connections 1.0\n" + "".join(f"queue {name}\n" for name in queues).encode()

    def cluster(self) -> ClusterView:
        if self.fault:
            raise self.fault
        return VIEW


@asynccontextmanager
async def serving(broker: Broker | None = None, addr: str = "127.0.0.1:0",
                  **bounds: Any) -> AsyncIterator[HealthServer]:
    broker = broker or Broker()
    server = HealthServer(addr, broker.health, broker.ready, broker.metrics, broker.cluster, **bounds)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def connect(server: HealthServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host or "127.0.0.1", int(port))


async def answer(reader: asyncio.StreamReader, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = b"" if head_only else await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, body


async def closed(reader: asyncio.StreamReader) -> None:
    """The other side closes; with a reset where it left something unread."""
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


async def ask(server: HealthServer, request: bytes, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    reader, writer = await connect(server)
    try:
        writer.write(request)
        return await answer(reader, head_only)
    finally:
        writer.close()


def get(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


def test_the_three_pages(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        broker = Broker()
        async with serving(broker) as server:
            status, headers, body = await ask(server, get("/health"))
            assert (status, headers["content-type"]) == (200, "application/json")
            assert json.loads(body) == {"status": "healthy"}
            status, _, body = await ask(server, get("/ready?verbose=1"))
            assert status == 200 and json.loads(body)["status"] == "ready"
            status, headers, body = await ask(server, get("/metrics?queue=a%20b&other=1&queue=c"))
            assert body.endswith(b"queue a b\nqueue c\n")
            status, headers, body = await ask(server, get("/metrics"))
            assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
            assert body == b"fluxmq_connections 1.0\n"
            broker.is_ready, broker.status = False, "failing"
            status, _, body = await ask(server, get("/ready"))
            assert status == 503 and json.loads(body)["status"] == "not_ready"
            assert (await ask(server, get("/health")))[0] == 503

    run(scenario())


def test_the_cluster_is_shown_without_quorum_too(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving() as server:
            status, headers, body = await ask(server, get("/cluster"))
            assert (status, headers["content-type"]) == (200, "application/json")
            page = json.loads(body)
            assert (page["env"], page["local"], page["state"]) == ("e", "one", "without_quorum")
            assert page["reason"] == "etcd does not answer"
            [node] = page["nodes"]
            assert {key: node[key] for key in ("id", "address", "port", "pid")} == {
                "id": "one", "address": "10.0.0.1", "port": 7948, "pid": 7}

    run(scenario())


def test_head_and_other_methods_and_other_paths(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving() as server:
            reader, writer = await connect(server)
            writer.write(get("/metrics", "HEAD") + get("/metrics"))
            status, headers, _ = await answer(reader, head_only=True)
            assert status == 200 and headers["content-length"] == "23"
            # the next bytes are the next answer: HEAD had no body, and the connection is kept
            assert (await answer(reader))[2] == b"fluxmq_connections 1.0\n"
            for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                writer.write(get("/health", method, "Content-Length: 3\r\n") + b"abc")
                status, headers, _ = await answer(reader)
                assert (status, headers["allow"]) == (405, "GET, HEAD")
            for path in ("/", "/healthy", "/health/", "//health", "/%68ealth"):
                writer.write(get(path))
                assert (await answer(reader))[0] == 404
            writer.write(get("/health", more="Connection: close\r\n"))
            assert (await answer(reader))[0] == 200
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_any_chunking_gives_the_same_answers(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving() as server:
            reader, writer = await connect(server)
            requests = get("/health") + get("/nowhere") + get("/ready", "POST", "Transfer-Encoding: chunked\r\n") + (
                b"3\r\nabc\r\n0\r\n\r\n") + get("/ready")
            for at in range(len(requests)):
                writer.write(requests[at:at + 1])
                await writer.drain()
                await asyncio.sleep(0)
            assert [(await answer(reader))[0] for _ in range(4)] == [200, 404, 405, 200]
            writer.close()

    run(scenario())


def test_one_asker_has_one_answer_per_turn_of_the_loop(run: Callable[..., None]) -> None:
    """However many requests it sends at once: others have their turn in between."""
    async def ask_much() -> None:
        broker = Broker()
        loop = asyncio.get_running_loop()
        turn = most = count = 0
        seen = -1

        def tick() -> None:
            nonlocal turn
            turn += 1
            if count < 300:
                loop.call_soon(tick)

        def health() -> dict[str, Any]:
            nonlocal seen, most, count
            most, seen = (most + 1 if seen == turn else 1), turn
            count += 1
            assert most <= 2, "the loop and tick() do not begin a turn at the same moment"
            return {}

        broker.health = health      # type: ignore[method-assign]
        async with serving(broker) as server:
            reader, writer = await connect(server)
            writer.write(get("/health") * 300)
            loop.call_soon(tick)
            for _ in range(300):
                assert (await answer(reader))[0] == 503
            writer.close()
        assert count == 300 and turn >= 150

    run(ask_much())


@pytest.mark.parametrize(("request_bytes", "status"), [
    (b"nonsense\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
    (b"GET /" + b"a" * limits.HTTP_HEAD_BYTES_MAX + b" HTTP/1.1\r\nHost: x\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * limits.HTTP_HEAD_BYTES_MAX, 431),
    (get("/health", "POST", f"Content-Length: {1 << 30}\r\n") + b"x" * (limits.HTTP_BODY_BYTES_MAX + 1), 413),
    (get("/health", "POST", "Content-Length: 5\r\nExpect: 100-continue\r\n"), 405),
    (b"GET /health HTTP/1.0\r\n\r\n", 200)])
def test_what_is_no_good_request_is_answered_and_closed(run: Callable[..., None], request_bytes: bytes,
                                                        status: int) -> None:
    async def scenario() -> None:
        async with serving() as server:
            reader, writer = await connect(server)
            writer.write(request_bytes)
            got, headers, _ = await answer(reader)
            assert (got, headers["connection"]) == (status, "close")
            await closed(reader)
            writer.close()
            assert (await ask(server, get("/health")))[0] == 200

    run(scenario())


def test_slow_and_silent_clients_are_closed(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving(idle_seconds_max=0.5, request_seconds_max=0.5) as server:
            silent, _ = await connect(server)
            slow, slow_writer = await connect(server)
            slow_writer.write(b"GET /health HT")
            kept, kept_writer = await connect(server)
            kept_writer.write(get("/health"))
            await answer(kept)
            for reader in (silent, slow, kept):
                await closed(reader)

    run(scenario())


def test_a_reader_that_does_not_read_is_closed(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.metrics = lambda queues: b"x" * (64 << 20)  # type: ignore[method-assign]
        async with serving(broker, request_seconds_max=0.2) as server:
            _, writer = await connect(server)
            writer.write(get("/metrics"))
            await writer.drain()
            while not server._tasks:
                await asyncio.sleep(0.01)
            while server._tasks:
                await asyncio.sleep(0.01)
            writer.close()

    run(scenario())


def test_connections_are_bounded(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving(connections_max=2) as server:
            held = [await connect(server) for _ in range(2)]
            for reader, writer in held:
                writer.write(get("/health"))
                await answer(reader)
            try:
                reader, writer = await connect(server)
                writer.write(get("/health"))
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
            held[0][1].close()
            while len(server._tasks) == 2:
                await asyncio.sleep(0.01)
            assert (await ask(server, get("/health")))[0] == 200
            held[1][1].close()

    run(scenario())


def test_a_page_that_fails_is_500_and_the_connection_goes_on(run: Callable[..., None],
                                                             caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.fault = RuntimeError("secret detail")
        async with serving(broker) as server:
            reader, writer = await connect(server)
            writer.write(get("/health"))
            status, _, body = await answer(reader)
            assert status == 500 and b"secret" not in body
            broker.fault = None
            writer.write(get("/health"))
            assert (await answer(reader))[0] == 200
            writer.close()

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert "secret detail" in caplog.text


def test_stop_closes_everything_and_it_starts_again(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        broker = Broker()
        server = HealthServer("127.0.0.1:0", broker.health, broker.ready, broker.metrics, broker.cluster)
        with pytest.raises(UsageError):
            _ = server.address
        await server.stop()
        for _ in range(2):
            await server.start()
            with pytest.raises(UsageError):
                await server.start()
            reader, writer = await connect(server)
            writer.write(get("/health"))
            await answer(reader)
            await server.stop()
            await closed(reader)
            writer.close()
            assert not server._tasks

    run(scenario())


def test_a_taken_address_is_an_os_error(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving() as server:
            broker = Broker()
            other = HealthServer(server.address, broker.health, broker.ready, broker.metrics, broker.cluster)
            with pytest.raises(OSError):
                await other.start()
            await other.stop()

    run(scenario())


def test_every_interface_is_one_port(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving(addr=":0") as server:
            host, _, port = server.address.rpartition(":")
            assert host == ""
            for target in ["127.0.0.1"] + (["::1"] if socket.has_dualstack_ipv6() else []):
                try:
                    reader, writer = await asyncio.open_connection(target, int(port))
                except OSError:
                    assert target == "::1"
                    continue
                writer.write(get("/health"))
                assert (await answer(reader))[0] == 200
                writer.close()

    run(scenario())
