"""Certificates: only who has one of the same authority is a node, and a node knows by it who the other is."""
from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from cluster.rpc.conftest import Run
from cluster.rpc.nodes import Node, failure_of, parts_of
from kit.certs import CertificateAuthority, issue, make_ca

from fluxmq.cluster.rpc.envelope import wrap_call, wrap_field
from fluxmq.cluster.rpc.tls import Tls

pytestmark = pytest.mark.usefixtures("no_socket_is_left")
LOOPBACK = "127.0.0.1"
STREAM, CALL = "/fluxmq.cluster.v1.Peer/Stream", "/fluxmq.cluster.v1.Peer/Call"


class Authorities(NamedTuple):
    ours: CertificateAuthority
    theirs: CertificateAuthority


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    return Authorities(make_ca(tmp_path_factory.mktemp("ours")), make_ca(tmp_path_factory.mktemp("theirs")))


def tls(authority: CertificateAuthority, cn: str = "broker-1", *, trusts: CertificateAuthority | None = None,
        **names: Any) -> Tls:
    certificate, key = issue(authority, cn, **({"ip": [LOOPBACK]} | names))
    return Tls((trusts or authority).cert_file.read_bytes(), Path(certificate).read_bytes(), Path(key).read_bytes())


def test_nodes_know_each_other(run: Run, authorities: Authorities) -> None:
    async def test() -> None:
        async with Node(tls=tls(authorities.ours, "broker-1")) as one, \
                Node(tls=tls(authorities.ours, "broker-2")) as other:
            stream = await one.dialled(other.address)
            stream.send(b"x" * 300_000)
            await other.until(lambda: other.frames[b"hello"])
            assert other.streams[b"hello"].identity == "broker-1"
            assert await parts_of(other, one.address, "echo", b"x") == [b"x"]
            assert one.calls == [("echo", b"x", "broker-2")]
    run(test())


@pytest.mark.parametrize("names, expected", [
    ({"cn": ["first", "second"]}, "first"),
    ({"cn": "", "dns": ["broker-3.example", "x.example"], "ip": [LOOPBACK]}, "broker-3.example"),
    ({"cn": "", "ip": [LOOPBACK]}, LOOPBACK),
    ({"cn": "größe"}, "größe")])
def test_names_of_a_certificate(run: Run, authorities: Authorities, names: dict[str, Any], expected: str) -> None:
    async def test() -> None:
        async with Node(tls=tls(authorities.ours, **names)) as one, Node(tls=tls(authorities.ours)) as other:
            await one.dialled(other.address)
            assert other.streams[b"hello"].identity == expected
    run(test())


@asynccontextmanager
async def stranger(kind: str, address: str, authorities: Authorities) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    if kind == "plaintext":
        channel = grpc.aio.insecure_channel(address, options)
    else:
        own = None if kind == "no certificate" else tls(authorities.theirs)
        channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(
            authorities.ours.cert_file.read_bytes(), own and own.key, own and own.certificate), options)
    async with channel:
        yield channel


@pytest.mark.parametrize("kind", ["plaintext", "no certificate", "another authority"])
def test_a_stranger_gets_nothing(run: Run, authorities: Authorities, kind: str) -> None:
    """Neither a stream nor a call, so it cannot ask for a session."""
    async def test() -> None:
        async with Node(tls=tls(authorities.ours)) as node, Node(tls=tls(authorities.ours)) as other:
            async with stranger(kind, node.address, authorities) as channel:
                asking: Any = channel.unary_stream(CALL)(wrap_call("takeover", b"victim"), wait_for_ready=False)
                assert await asking.code() is grpc.StatusCode.UNAVAILABLE
                streaming: Any = channel.stream_stream(STREAM)(wait_for_ready=False)
                with pytest.raises(grpc.aio.AioRpcError):
                    await streaming.write(wrap_field(b"hello"))
                    await streaming.read()
                assert await streaming.code() is grpc.StatusCode.UNAVAILABLE
            assert node.calls == [] and node.streams == {}
            assert await parts_of(other, node.address, "echo", b"x") == [b"x"]
    run(test())


def test_a_node_speaks_to_no_stranger(run: Run, authorities: Authorities) -> None:
    """Who listens at the address of a node learns nothing either: no hello, no call."""
    async def test() -> None:
        async with Node(tls=tls(authorities.ours)) as node:
            async with Node(tls=tls(authorities.theirs, trusts=authorities.ours)) as impostor:
                assert "not of the authority" in await node.refused(impostor.address)
                assert "perhaps it refuses" in await impostor.refused(node.address)
                assert not (await failure_of(node, impostor.address)).reached
                assert impostor.streams == {} and impostor.calls == []
            async with Node() as plain:
                assert "cannot be reached: it speaks without TLS" in await node.refused(plain.address)
                assert plain.streams == {}
            async with Node(tls=tls(authorities.ours, "broker-2", ip=["192.0.2.7"])) as elsewhere:
                assert "not made for the address" in await node.refused(elsewhere.address)
                assert elsewhere.streams == {}
    run(test())


def test_a_certificate_that_has_expired(run: Run, authorities: Authorities) -> None:
    async def test() -> None:
        async with Node(tls=tls(authorities.ours, expired=True)) as old, Node(tls=tls(authorities.ours)) as node:
            assert "cannot be reached" in await old.refused(node.address)
            assert "cannot be reached" in await node.refused(old.address)
            assert old.streams == node.streams == {}
    run(test())


def test_renewed_certificates_hold_for_new_connections(run: Run, authorities: Authorities) -> None:
    async def test() -> None:
        async with Node(tls=tls(authorities.ours)) as one, Node(tls=tls(authorities.ours)) as other:
            before = await one.dialled(other.address, b"before")
            for node in (one, other):
                node.transport.renew(tls(authorities.theirs, "renewed"))
            await one.dialled(other.address, b"after")
            before.send(b"still there")
            await other.until(lambda: other.frames[b"before"])
            assert [other.streams[hello].identity for hello in (b"before", b"after")] == ["broker-1", "renewed"]
            async with Node(tls=tls(authorities.ours)) as late:
                assert "cannot be reached" in await late.refused(other.address)
    run(test())
