"""The admin socket over a real unix socket: its file, its routes against a naive fake, durability, and every bound."""
import asyncio
import base64
import io
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.fake_queues import FakeQueues

from fluxmq._core.errors import StorageError
from fluxmq.admin.http import Answer, Request
from fluxmq.admin.routes import AdminRoutes
from fluxmq.admin.socket import SOCKET_PATH_BYTES_MAX, AdminSocket
from fluxmq.app.config import load
from fluxmq.app.exit_codes import BindError
from fluxmq.app.server import Server
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model import limits

Q = "/api/v1/queues"


@asynccontextmanager
async def serving(path: Path, queues: FakeQueues, **bounds: Any) -> AsyncIterator[AdminSocket]:
    server = AdminSocket(path, queues, **bounds)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(path: Path, method: str, target: str, body: Any = None, more: str = "") -> tuple[int, Any]:
    """One request on a connection of its own; body: bytes as they are, else JSON."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}"
                     f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(answer) if answer else None
    finally:
        writer.close()


async def wait_until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_owner_may_open_it_and_it_goes_with_the_broker(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "admin.sock"
        for _ in range(2):
            async with serving(path, FakeQueues()):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_ISSOCK(path.stat().st_mode)
                assert await ask(path, "GET", Q) == (200, {"queues": []})
            assert not path.exists()

    run(scenario())


def test_the_file_of_a_dead_broker_is_replaced_of_a_living_one_never(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "admin.sock"
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(path))
        dead.close()
        async with serving(path, FakeQueues()):
            other = AdminSocket(path, FakeQueues())
            with pytest.raises(OSError, match="a running broker listens there"):
                await other.start()
            await other.stop()
            assert (await ask(path, "GET", Q))[0] == 200

    run(scenario())


def test_a_living_one_whose_backlog_is_full_lives(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "admin.sock"
        held = []
        with socket.socket(socket.AF_UNIX) as busy:
            busy.bind(str(path))
            busy.listen(0)
            while True:
                client = socket.socket(socket.AF_UNIX)
                held.append(client)
                client.setblocking(False)
                try:
                    client.connect(str(path))
                except BlockingIOError:
                    break
            with pytest.raises(OSError, match="a running broker listens there"):
                await AdminSocket(path, FakeQueues()).start()
        for client in held:
            client.close()

    run(scenario())


def test_what_is_no_socket_is_left_alone(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "admin.sock"
        path.write_text("precious")
        with pytest.raises(OSError, match="not a socket"):
            await AdminSocket(path, FakeQueues()).start()
        assert path.read_text() == "precious"
        with pytest.raises(OSError):
            await AdminSocket(tmp_path / "missing" / "admin.sock", FakeQueues()).start()

    run(scenario())


def test_a_path_that_is_too_long_is_refused_with_the_key_to_set(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        path = Path("x" * (SOCKET_PATH_BYTES_MAX + 1))
        with pytest.raises(OSError, match=r"108 bytes.*107.*server.admin_socket"):
            await AdminSocket(path, FakeQueues()).start()

    run(scenario())


def test_a_file_that_another_has_put_there_stays(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "admin.sock"
        async with serving(path, FakeQueues()):
            os.rename(path, tmp_path / "moved")
            path.write_text("of somebody else")
        assert path.exists()

    run(scenario())


# ── the broker that opens it ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("sets", "expected"), [
    (["storage.dir={dir}/data"], "{dir}/data/admin.sock"),
    (["storage.dir={dir}/data", "server.admin_socket={dir}/s"], "{dir}/s"),
    (["storage.dir={dir}/data", "server.admin_socket=off"], ""),
    (["storage.dir={dir}/" + "x" * 110], ""),
    (["storage.type=memory"], ""),
    (["storage.type=memory", "server.admin_socket={dir}/s"], "{dir}/s")])
def test_the_broker_opens_it_where_the_configuration_says(run: Callable[..., None], tmp_path: Path, sets: list[str],
                                                          expected: str) -> None:
    async def scenario() -> None:
        server = broker(*[text.format(dir=tmp_path) for text in sets])
        try:
            server.initialize()
            server.queues.admin = FakeQueues()
            await server.start()
            out = io.StringIO()
            server.announce(out)
            path = expected.format(dir=tmp_path)
            assert [line.split()[2] for line in out.getvalue().splitlines() if " admin " in line] == [path][:bool(path)]
            if path:
                assert (await ask(Path(path), "GET", Q))[0] == 200
        finally:
            await server.stop()
        assert [each for each in tmp_path.rglob("*") if each.is_socket()] == []

    run(scenario())


def test_a_socket_that_was_asked_for_and_cannot_be_ends_the_start(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        for path, why in ((tmp_path / ("x" * 110), "a unix socket's at most"), (tmp_path / "missing" / "s", "No such")):
            server = broker("storage.type=memory", f"server.admin_socket={path}")
            try:
                server.initialize()
                server.queues.admin = FakeQueues()
                with pytest.raises(BindError, match=f"^server.admin_socket: cannot listen on .*{why}"):
                    await server.start()
            finally:
                await server.stop()

    run(scenario())


def broker(*sets: str) -> Server:
    config, _ = load(sets=["server.mqtt.tcp.plain.addr=127.0.0.1:0", "server.mqtt.websocket.plain.addr=",
                           "server.amqp091.plain.addr=", "server.health_enabled=false", "server.shutdown_timeout=1s",
                           *sets])
    return Server(config)


# ── routes ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_life_of_a_queue(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        async with serving(path, queues):
            assert await ask(path, "PUT", f"{Q}/a%2Fb", {"type": "classic"}) == (
                201, {"name": "a/b", "result": "created"})
            assert (await ask(path, "PUT", f"{Q}/a%2Fb", {"type": "classic"}))[1]["result"] == "unchanged"
            assert (await ask(path, "PUT", f"{Q}/a%2Fb", {"topics": ["x/#"]}))[1]["result"] == "changed"
            status, body = await ask(path, "PUT", f"{Q}/a%2Fb", {"type": "stream"})
            assert (status, body["error"], body["hint"]) == (409, "conflict", "delete it first")
            assert (await ask(path, "PUT", f"{Q}/x", {"name": "y"}))[0] == 400
            assert (await ask(path, "PUT", f"{Q}/x", {"tpye": "y"}))[1]["detail"] == "unknown: tpye"
            status, body = await ask(path, "POST", f"{Q}/a%2Fb/messages", {"payload": "ä", "key": "k"})
            assert (status, body) == (202, {"accepted": 1, "messages": [{"partition": 0, "offset": 0}]})
            await ask(path, "POST", f"{Q}/a%2Fb/messages", {"messages": [
                {"payload": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}, {"payload": "3"}]})
            status, body = await ask(path, "GET", f"{Q}/a%2Fb/messages?count=2")
            assert [m["payload"] for m in body["messages"]] == ["ä", "/wA="]
            assert [m["encoding"] for m in body["messages"]] == ["utf-8", "base64"]
            status, body = await ask(path, "GET", f"{Q}/a%2Fb/messages?from={quote(body['next'])}")
            assert [m["payload"] for m in body["messages"]] == ["3"]
            assert (await ask(path, "GET", f"{Q}/a%2Fb"))[1]["messages"] == 3
            assert (await ask(path, "DELETE", f"{Q}/a%2Fb?if_empty=true"))[0] == 409
            assert await ask(path, "POST", f"{Q}/a%2Fb/purge") == (200, {"purged": 3, "unsettled": 0})
            assert await ask(path, "DELETE", f"{Q}/a%2Fb?if_empty=1&if_unused=") == (
                200, {"deleted": True, "messages": 0})
            status, body = await ask(path, "GET", f"{Q}/a%2Fb")
            assert (status, body["error"]) == (404, "not_found")

    run(scenario())


def test_groups(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q", "partitions": 2})
        queues.queues["q"].groups["g h@#"] = [3, 4]
        async with serving(path, queues):
            group = f"{Q}/q/groups/{quote('g h@#')}"
            assert (await ask(path, "GET", f"{Q}/q/groups"))[1]["groups"][0]["name"] == "g h@#"
            status, body = await ask(path, "POST", f"{group}/seek", {"position": "first", "partition": 1})
            assert (status, [place["next"] for place in body["positions"]]) == (200, [3, 0])
            assert (await ask(path, "POST", f"{group}/seek", {"position": "nowhere"}))[0] == 400
            assert (await ask(path, "POST", f"{group}/seek", {"place": 1}))[0] == 400
            assert (await ask(path, "DELETE", group))[0] == 200
            assert (await ask(path, "DELETE", group))[0] == 404

    run(scenario())


def test_dead_letters(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q"})
        for n in range(20):
            queues.die("q", b"%d" % n)
        dlq = f"{Q}/q/dlq"
        async with serving(path, queues):
            queues.unloaded = 3
            _, body = await ask(path, "GET", f"{dlq}?from=last")
            assert [m["payload"] for m in body["messages"]] == ["19"]
            assert body["messages"][0]["user_properties"] == [["x-death-reason", "rejected"]]
            queues.unloaded = 2
            assert await ask(path, "POST", f"{dlq}/replay", {"messages": [[0, 7], [0, 9], [0, 99]]}) == (
                200, {"replayed": 2})
            assert await ask(path, "POST", f"{dlq}/replay", {"count": 10}) == (200, {"replayed": 10})
            assert (await ask(path, "GET", "/api/v1/dlq"))[1]["dead_letters"][0]["messages"] == 8
            queues.unloaded = 2
            assert await ask(path, "POST", f"{dlq}/replay") == (200, {"replayed": 8})
            assert {m.payload for m in queues.queues["q"].partitions[0]} == {b"%d" % n for n in range(20)}
            queues.die("q", b"x")
            assert await ask(path, "POST", f"{dlq}/purge") == (200, {"purged": 1})
            assert (await ask(path, "POST", f"{dlq}/replay", {"count": 0}))[0] == 400

    run(scenario())


def test_what_changes_something_is_answered_when_it_is_durable(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q"})
        queues.queues["q"].groups.update(g=[0], h=[0])
        queues.die("q", b"")
        async with serving(path, queues):
            queues.held = True
            for method, target, body in [
                    ("PUT", f"{Q}/r", {}), ("POST", f"{Q}/q/messages", {"payload": "1"}),
                    ("POST", f"{Q}/q/groups/g/seek", {"position": "first"}), ("DELETE", f"{Q}/q/groups/h", None),
                    ("POST", f"{Q}/q/dlq/replay", None), ("POST", f"{Q}/q/dlq/purge", None),
                    ("POST", f"{Q}/q/purge", None), ("DELETE", f"{Q}/q", None)]:
                asked = asyncio.create_task(ask(path, method, target, body))
                await wait_until(lambda: queues.waiting)
                assert (await ask(path, "GET", Q))[0] == 200
                assert not asked.done()
                queues.sync()
                assert (await asked)[0] < 300, target
            queues.declare({"name": "q"})
            queues.sync_fault = StorageError("no space left")
            asked = asyncio.create_task(ask(path, "POST", f"{Q}/q/messages", {"payload": "1"}))
            await wait_until(lambda: queues.waiting)
            queues.sync()
            status, answer = await asked
            assert (status, answer["error"], answer["detail"]) == (503, "storage", "no space left")

    run(scenario())


def test_an_answer_that_never_becomes_durable_is_given_up(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q"})
        queues.held = True
        async with serving(path, queues, handle_seconds_max=0.05):
            status, body = await ask(path, "POST", f"{Q}/q/purge")
            assert (status, body["error"]) == (504, "timeout")
            queues.sync()

    run(scenario())


def test_a_batch_that_stops_half_way_says_how_far_it_came(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q"})
        queues.capacity = 2
        async with serving(path, queues):
            status, body = await ask(path, "POST", f"{Q}/q/messages", {"messages": [{"payload": "x"}] * 3})
            assert (status, body["error"], body["accepted"]) == (507, "full", 2)
            # what cannot be read leaves no half
            for bad in ({"payload": "!", "encoding": "base64"}, {"payload": 1}, {}, {"payload": "", "expiry_s": -1},
                        {"payload": "", "nonsense": 1}):
                queues.purge("q")
                assert (await ask(path, "POST", f"{Q}/q/messages", {"messages": [{"payload": "x"}, bad]}))[0] == 400
                assert queues.list_queues()[0]["messages"] == 0
            for count in (0, limits.ADMIN_MESSAGES_MAX + 1):
                assert (await ask(path, "POST", f"{Q}/q/messages", {"messages": [{"payload": ""}] * count}))[0] == 400

    run(scenario())


def test_tail_gives_what_is_there_and_what_comes(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q"})
        async with serving(path, queues) as server:
            await ask(path, "POST", f"{Q}/q/messages", {"messages": [{"payload": "0"}, {"payload": "1"}]})
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(f"GET {Q}/q/tail?from=last HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and b"application/x-ndjson" in head

            async def line() -> Any:
                while True:
                    size = int(await reader.readline(), 16)
                    text = (await reader.readexactly(size + 2)).strip()
                    if text:
                        return json.loads(text)

            assert (await line())["payload"] == "1"
            for n in range(2, 5):
                queues.unloaded = n
                await ask(path, "POST", f"{Q}/q/messages", {"payload": str(n)})
                assert (await line())["payload"] == str(n)
            writer.close()
            # who leaves is noticed although there is nothing to say
            await wait_until(lambda: not server._tasks)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(f"GET {Q}/q/tail HTTP/1.0\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            queues.delete("q", if_unused=False, if_empty=False)
            assert json.loads(await reader.read())["error"] == "not_found"
            writer.close()
            assert (await ask(path, "GET", f"{Q}/q/tail"))[0] == 404

    run(scenario())


def test_tails_leave_connections_to_others(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q"})
        async with serving(path, queues, connections_max=4) as server:
            tails = []
            for _ in range(2):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(f"GET {Q}/q/tail HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                await reader.readuntil(b"\r\n\r\n")
                tails.append(writer)
            assert (await ask(path, "GET", f"{Q}/q/tail"))[0] == 503
            assert (await ask(path, "GET", Q))[0] == 200
            tails.pop().close()
            await wait_until(lambda: server._streams == 1)
            await server.stop()
            assert not server._tasks

    run(scenario())


@pytest.mark.parametrize(("method", "target", "status"), [
    ("GET", "/", 404), ("GET", "/api/v1", 404), ("GET", "/api/v1/queues/", 404), ("GET", f"{Q}/a/b", 404),
    ("GET", f"{Q}/%ff", 400), ("GET", f"{Q}?x=%ff", 400), ("GET", f"{Q}?x", 400), ("GET", f"{Q}?count=1", 400),
    ("GET", f"{Q}/q/messages?count=0", 400), ("GET", f"{Q}/q/messages?count=1001", 400),
    ("GET", f"{Q}/q/messages?partition=x", 400), ("GET", f"{Q}/q/messages?partition=1", 404),
    ("DELETE", f"{Q}/q?if_empty=perhaps", 400), ("POST", f"{Q}", 405), ("POST", f"{Q}/q/tail", 405),
    ("HEAD", f"{Q}/q/tail", 405), ("HEAD", f"{Q}/q", 200), ("POST", f"{Q}/q/messages", 400),
    ("GET", f"{Q}/..%2F..%2Fetc", 404)])
def test_what_cannot_be_is_said_with_a_status(run: Callable[..., None], tmp_path: Path, method: str, target: str,
                                              status: int) -> None:
    async def scenario() -> None:
        queues = FakeQueues()
        queues.declare({"name": "q"})
        async with serving(tmp_path / "s", queues):
            got, body = await ask(tmp_path / "s", method, target)
            assert got == status
            assert body is None or set(body) == {"error", "detail", "hint"}

    run(scenario())


def test_bodies_are_bounded_and_may_be_asked_leave_for(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        path, queues = tmp_path / "s", FakeQueues()
        queues.declare({"name": "q"})
        async with serving(path, queues, body_bytes_max=100_000):
            status, body = await ask(path, "POST", f"{Q}/q/messages", {"payload": "x" * 100_000})
            assert (status, body["error"]) == (413, "too_large")
            assert (await ask(path, "POST", f"{Q}/q/messages", {"payload": "x" * 90_000}))[0] == 202
            reader, writer = await asyncio.open_unix_connection(path)
            content = b'{"payload": "x"}'
            writer.write(f"POST {Q}/q/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                         f"Content-Length: {len(content)}\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(content)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 202")
            writer.close()

    run(scenario())


def test_a_bug_is_500_and_tells_nothing(run: Callable[..., None], tmp_path: Path,
                                        caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        queues = FakeQueues()
        queues.fault = RuntimeError("secret detail")
        async with serving(tmp_path / "s", queues):
            status, body = await ask(tmp_path / "s", "GET", Q)
            assert (status, body["error"]) == (500, "internal") and "secret" not in str(body)

    run(scenario())
    assert "secret detail" in caplog.text


def test_refusals_have_their_status(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        queues = FakeQueues()
        async with serving(tmp_path / "s", queues):
            for kind, status in (("not_found", 404), ("conflict", 409), ("invalid", 400), ("full", 507),
                                 ("unavailable", 503)):
                queues.fault = QueueRefused(kind, "so", "do")  # type: ignore[arg-type]
                assert await ask(tmp_path / "s", "GET", f"{Q}/q") == (
                    status, {"error": kind, "detail": "so", "hint": "do"})

    run(scenario())


def test_what_is_changed_is_logged() -> None:
    """And nothing else: neither questions, nor what is refused, nor messages."""
    said: list[dict[str, Any]] = []
    routes = AdminRoutes(FakeQueues(), on_log=lambda level, cause, text, fields: said.append({"level": level} | fields))

    async def scenario() -> None:
        for method, target, body in (
                ("PUT", f"{Q}/q", b"{}"), ("GET", Q, b""), ("POST", f"{Q}/q/messages", b'{"payload": "x"}'),
                ("POST", f"{Q}/none/purge", b""), ("POST", f"{Q}/q/purge", b""),
                ("DELETE", f"{Q}/q?if_unused=true", b"")):
            await routes.handle(Request(method, target, body, None))  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert said == [{"level": "info", "request": f"PUT {Q}/q"}, {"level": "info", "request": f"POST {Q}/q/purge"},
                    {"level": "info", "request": f"DELETE {Q}/q", "if_unused": "true"}]


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 7), st.integers(1, 3))
def test_pages_are_the_whole_queue_once(payloads: list[bytes], count: int, partitions: int) -> None:
    """Whatever the size of a page: every message comes, in the order of its partition, and its bytes are the same."""
    queues = FakeQueues()
    queues.declare({"name": "q", "partitions": partitions})
    routes = AdminRoutes(queues)

    async def call(method: str, target: str, body: Any = None) -> Any:
        request = Request(method, target, json.dumps(body).encode(), None)  # type: ignore[arg-type]
        answer = await routes.handle(request)
        assert isinstance(answer, Answer) and answer.status < 300, answer
        return json.loads(answer.body)

    async def scenario() -> None:
        for n, payload in enumerate(payloads):
            await call("POST", f"{Q}/q/messages", {
                "payload": base64.b64encode(payload).decode(), "encoding": "base64",
                "user_properties": [["partition-key", str(n)]]})
        found, position = [], "first"
        while page := await call("GET", f"{Q}/q/messages?count={count}&from={quote(position)}"):
            found += page["messages"]
            position = page["next"]
            assert len(page["messages"]) <= count
            if not page["messages"]:
                break
        got = [base64.b64decode(m["payload"]) if m["encoding"] == "base64" else m["payload"].encode() for m in found]
        assert sorted(got) == sorted(payloads)
        places = [(m["partition"], m["offset"]) for m in found]
        assert len(set(places)) == len(places)
        for partition in range(partitions):
            offsets = [offset for at, offset in places if at == partition]
            assert offsets == sorted(offsets)

    asyncio.run(scenario())
