"""Whoever can connect may send anything: the streams of others live on, and new ones are accepted."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from pathlib import Path

import pytest
from cluster.rpc.conftest import Run
from cluster.rpc.nodes import Node, parts_of
from kit.certs import issue, make_ca
from kit.http2 import CALL, STREAM, begin, field, frame, headers, request, settings

from fluxmq.cluster.rpc.tls import Tls

pytestmark = pytest.mark.usefixtures("no_socket_is_left")
GOAWAY, PING, RST_STREAM, WINDOW_UPDATE, CONTINUATION = 7, 6, 3, 8, 9
NOT_UTF_8 = begin(settings(), request(headers(path=b"/flu\xaamq.cluster.v1.Peer/Call")))
CANCEL = b"\0\0\0\x08"
NOISE = random.Random(1).randbytes(5000)


def _message(*headers_: tuple[bytes, bytes], body: bytes = b"") -> bytes:
    return begin(settings(), request(headers(*headers_), body))


# What a peer may send, by what is wrong with it.
GARBAGE = {
    "a path that is not UTF-8": NOT_UTF_8,
    "noise": NOISE,
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a hello of TLS": bytes.fromhex("16030100a5010000a10303") + NOISE[:160],
    "half of a preface": begin()[:10],
    "half of a frame": begin(settings(), request(headers())[:30]),
    "no path": begin(settings(), request(headers(path=b""))),
    "another path": begin(settings(), request(headers(path=b"/nothing/here\0"))),
    "a long path": begin(settings(), request(headers(path=b"/" + b"a" * 7000))),
    "an authority that is not UTF-8": begin(settings(), request(headers(authority=b"\xff\xfe"))),
    "metadata that are not UTF-8": _message((b"x-y", b"\xff\xfe"), (b"user-agent", b"\xff")),
    "a name of metadata that is not UTF-8": _message((b"x-\xff", b"a")),
    "binary metadata that are not base64": _message((b"x-bin", b"!!!\xff")),
    "a time limit that is none": _message((b"grpc-timeout", b"\xff")),
    "an encoding that is none": _message((b"grpc-encoding", b"\xff\xff")),
    "too many metadata": _message(*((b"x%d" % number, b"v" * 100) for number in range(500))),
    "fields without end": begin(settings(), frame(1, 0, 1, headers()), *(
        frame(CONTINUATION, 0, 1, field(b"y%d" % number, b"v" * 10_000)) for number in range(100))),
    "a flood of SETTINGS": begin(settings() * 5000),
    "a flood of PING": begin(settings(), frame(PING, 0, 0, b"12345678") * 5000),
    "streams that are reset at once": begin(settings(), *(
        request(headers(), None, number) + frame(RST_STREAM, 0, number, CANCEL) for number in range(1, 1000, 2))),
    "calls without end": begin(settings(), *(request(headers(), None, number) for number in range(1, 400, 2))),
    "a stream without hello": begin(settings(), request(headers(path=STREAM), None)),
    "a hello that is no message": begin(settings(), request(headers(path=STREAM), b"\xff\xff\xff")),
    "a call that is no message": begin(settings(), request(headers(path=CALL), b"\xff\xff\xff")),
    "a method that is not UTF-8": begin(settings(), request(headers(path=CALL), b"\x0a\x02\xff\xfe")),
    "a message that is too long": begin(settings(), request(headers(), None), frame(0, 1, 1, b"\0\xff\xff\xff\xff")),
    "a window that is too large": begin(settings(), frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 3),
    "a frame that is too large": begin(settings(), frame(0, 0, 1, b"x" * 70_000)),
    "an index of no field": begin(settings(), frame(1, 4, 1, b"\x80")),
    "GOAWAY": begin(settings(), frame(GOAWAY, 0, 0, bytes(8))),
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged, by whomever."""
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


async def send(node: Node, data: bytes, context: ssl.SSLContext | None = None) -> asyncio.StreamWriter:
    """A connection that sends this, and reads what comes back until it is quiet."""
    reader, writer = await asyncio.open_connection(*node.target, ssl=context)
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(0.1):
            while await reader.read(1 << 16):
                pass
    return writer


async def still_there(node: Node, other: Node, hello: bytes) -> None:
    """A stream that other has opened before carries frames, and so does a new one; a call is answered."""
    stream = next(stream for stream in other.opened if node.frames.get(hello) is not None)
    count = len(node.frames[hello])
    stream.send(b"still")
    await node.until(lambda: len(node.frames[hello]) > count)
    assert await parts_of(other, node.address, "echo", b"x") == [b"x"]
    assert not other.closed and not node.ended


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "mutual TLS"])
def test_garbage_harms_nobody(run: Run, tls: bool, ours: tuple[Tls, ssl.SSLContext],
                              caplog: pytest.LogCaptureFixture) -> None:
    """Streams that are open carry frames, others are accepted, calls are answered, and the log has nothing of it."""
    async def test() -> None:
        settings_ = {"tls": ours[0]} if tls else {}
        async with Node(**settings_) as node, Node(**settings_) as other:
            await other.dialled(node.address)
            for kind, data in GARBAGE.items():
                writer = await send(node, data, ours[1] if tls else None)
                await still_there(node, other, b"hello")
                writer.close()
                assert not node.transport.problem, kind
                assert not warnings(caplog), (kind, caplog.text)
            late = await other.dialled(node.address, b"late")
            late.send(b"frame")
            await node.until(lambda: node.frames[b"late"])
    run(test())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, ssl.SSLContext]:
    """Mutual TLS, and what a client with a certificate has for it."""
    authority = make_ca(tmp_path_factory.mktemp("ca"))
    certificate, key = issue(authority, "broker-1", ip=["127.0.0.1"])
    context = ssl.create_default_context(cafile=str(authority.cert_file))
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return Tls(authority.cert_file.read_bytes(), Path(certificate).read_bytes(), Path(key).read_bytes()), context


@pytest.mark.parametrize("kind", ["noise", "without TLS", "without a certificate"])
def test_before_the_handshake_nobody_reaches_the_loop(
        run: Run, kind: str, ours: tuple[Tls, ssl.SSLContext], caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with Node(tls=ours[0]) as node, Node(tls=ours[0]) as other:
            await other.dialled(node.address)
            context = None
            if kind == "without a certificate":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_alpn_protocols(["h2"])
            writer = await send(node, NOISE if kind == "noise" else NOT_UTF_8, context)
            await still_there(node, other, b"hello")
            writer.close()
            assert not warnings(caplog), caplog.text
    run(test())


def test_connections_that_say_nothing_are_closed(run: Run) -> None:
    """With a preface, and without: by the keepalive of the server."""
    async def test() -> None:
        async with Node() as node:
            for data in (b"", begin()[:10], begin(), begin(settings(), request(headers(), None))):
                reader, writer = await asyncio.open_connection(*node.target)
                writer.write(data)
                with contextlib.suppress(OSError):
                    while await reader.read(1 << 16):
                        pass
                writer.close()
    run(test())
