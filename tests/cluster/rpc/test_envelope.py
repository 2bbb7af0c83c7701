"""Our writing of the messages of proto/cluster.proto against that of protocol buffers, which reads the same file."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc
from hypothesis import example, given
from hypothesis import strategies as st
from kit.tree import ROOT

from fluxmq.cluster.rpc.envelope import EnvelopeError, call_of, field_of, wrap_call, wrap_field


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Classes by name, in a pool of their own."""
    made = Path(tmp_path_factory.mktemp("proto")) / "cluster.pb"
    assert protoc.main(["protoc", f"--proto_path={ROOT / 'proto'}", f"--descriptor_set_out={made}",
                        "cluster.proto"]) == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file:
        pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"fluxmq.cluster.v1.{name}"))
            for name in ("Frame", "CallRequest", "Part")}


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
def test_frames_and_parts(messages: dict[str, Any], size: int) -> None:
    data = bytes(size)
    for name, field in (("Frame", "batch"), ("Part", "body")):
        theirs = messages[name](**{field: data}).SerializeToString()
        assert wrap_field(data) == theirs and field_of(theirs) == data
        assert getattr(messages[name].FromString(wrap_field(data)), field) == data


@given(method=st.text(), body=st.binary(max_size=300))
@example(method="", body=b"")
@example(method="voter", body=bytes(200))
def test_calls(messages: dict[str, Any], method: str, body: bytes) -> None:
    ours, theirs = wrap_call(method, body), messages["CallRequest"](method=method, body=body).SerializeToString()
    assert ours == theirs and call_of(theirs) == (method, body)


FIELD = st.one_of(
    st.tuples(st.sampled_from([1, 2]), st.just(2), st.binary(max_size=200)),
    st.tuples(st.integers(3, 1 << 28), st.just(2), st.binary(max_size=200)),
    st.tuples(st.integers(3, 1 << 28), st.just(0), st.integers(0, (1 << 64) - 1)),
    st.tuples(st.integers(3, 1 << 28), st.just(1), st.binary(min_size=8, max_size=8)),
    st.tuples(st.integers(3, 1 << 28), st.just(5), st.binary(min_size=4, max_size=4)))


def number(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + number(value // 128)


def field(fields: list[tuple[int, int, Any]]) -> bytes:
    out = b""
    for name, kind, value in fields:
        out += number(name << 3 | kind)
        out += number(value) if kind == 0 else number(len(value)) + value if kind == 2 else value
    return out


@given(st.lists(FIELD, max_size=6))
def test_fields_of_later_versions_repeated_and_in_any_order(messages: dict[str, Any],
                                                            fields: list[tuple[int, int, Any]]) -> None:
    message = field(fields)
    assert field_of(message) == messages["Frame"].FromString(message).batch


@given(st.binary(max_size=40))
@example(b"\x0a" + b"\xff" * 9 + b"\x7f")
def test_any_bytes(messages: dict[str, Any], message: bytes) -> None:
    """Read, or refused with EnvelopeError and nothing else. What we read, protocol buffers read alike, unless it is
    stricter: with numbers over 64 bits, and tags over 32."""
    try:
        ours = field_of(message)
    except EnvelopeError:
        ours = None
    try:
        theirs = messages["Frame"].FromString(message).batch
    except Exception:
        return
    if ours is None:
        assert any(byte & 7 in (3, 4) for byte in message), "protocol buffers read groups, and we do not"
    else:
        assert ours == theirs


@pytest.mark.parametrize("message", [b"\x0a", b"\x0a\x05abc", b"\x0a\x80", b"\x0b", b"\x02\x00", b"\x08",
                                     b"\x0d\x00\x00", b"\xff" * 11, b"\x0a\x01a\x0a\x02b"])
def test_broken_messages(message: bytes) -> None:
    with pytest.raises(EnvelopeError):
        field_of(message)


def test_a_method_that_is_not_utf8() -> None:
    with pytest.raises(EnvelopeError, match="UTF-8"):
        call_of(b"\x0a\x01\xff")
