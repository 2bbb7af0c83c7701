"""Finding members by their peer URLs, and what is said when there are none."""
from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from kit.broker import free_port
from kit.etcd import EtcdServers
from kit.loops import run_on

from fluxmq.cluster.etcd.discovery import Found, NoMembers, find_members

run = functools.partial(run_on, "asyncio")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(self.server.body)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """Answers what `status` and `body` say."""
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(30)


def test_the_first_that_answers_is_asked(one_member: EtcdServers) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"

    async def test() -> Found:
        return await find_members([nobody, one_member.servers[0].peer_url], None)

    found = run(test())
    assert found.at == one_member.servers[0].peer_url
    assert [(member.name, member.peer_urls) for member in found.members] == [("etcd-1", (found.at,))]


@pytest.mark.parametrize("status, body, why", [
    (404, b"", "that is no member of etcd: it answers 404"),
    (200, b"<html>", "that is no member of etcd"),
    (200, b'[{"id": "x"}]', "that is no member of etcd"),
    (200, b"[]", "it knows no members yet")])
def test_what_is_no_member_is_said(server: HTTPServer, status: int, body: bytes, why: str) -> None:
    server.status, server.body = status, body  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(NoMembers) as refused:
        run(find_members([url], None))
    assert str(refused.value).startswith(f"{url}: {why}")


def test_nobody_and_one_who_is_silent() -> None:
    async def test() -> str:
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        try:
            with pytest.raises(NoMembers) as refused:
                await find_members([f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{port}"], None, 0.3)
        finally:
            silent.close()
        return str(refused.value)

    said = run(test())
    assert "connection refused; " in said and said.endswith("no answer within 0.3 s")
