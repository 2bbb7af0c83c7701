"""What another node says, or what somebody has written into etcd, may be anything: it is refused, and ends nothing."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest

from fluxmq.cluster import keys, messages
from fluxmq.cluster.kept import subscription_of
from fluxmq.cluster.leaving import take
from fluxmq.cluster.operations import NodeOperations
from fluxmq.cluster.ports import CallFailed
from fluxmq.model.malformed import MALFORMED

TEXT = "text"
DEEP = b"\x91" * 100_000
READERS = [name for name in messages.__all__ if name.endswith("_of")]


def with_bad_text(**fields: Any) -> bytes:
    """MessagePack of a map, in which TEXT is replaced by what is not UTF-8."""
    return msgspec.msgpack.encode(fields).replace(TEXT.encode(), b"\xff\xfe\xfd\xfc")


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_says_that_it_is_malformed(reader: str) -> None:
    read: Callable[[bytes], Any] = getattr(messages, reader)
    for data in (b"", b"\xc1", DEEP, b"\xa1\xff", b"\x91\xa1\xff", b"\x81\xa1\xff\x01", b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(MALFORMED):
            read(data)


def test_text_that_is_not_utf_8_and_depth_are_malformed() -> None:
    """Who catches errors of msgspec alone lets depth through, and text before msgspec 0.23."""
    with pytest.raises((UnicodeDecodeError, msgspec.DecodeError)):
        messages.hello_of(with_bad_text(cluster=TEXT))
    with pytest.raises(RecursionError):
        msgspec.msgpack.decode(DEEP)


async def _answer(answer: AsyncIterator[bytes]) -> CallFailed:
    with pytest.raises(CallFailed) as refused:
        async for _ in answer:
            pass
    return refused.value


def test_a_call_with_bad_text_is_refused_and_had_no_effect() -> None:
    nobody = cast(Any, None)
    asked = asyncio.run(_answer(NodeOperations("n", nobody, nobody).answer(with_bad_text(node=TEXT, method=TEXT))))
    assert not asked.reached and "not an operation: " in str(asked) and "utf-8" in str(asked).lower()
    asked = asyncio.run(_answer(take(with_bad_text(node=TEXT), nobody, nobody)))
    assert not asked.reached and "not a request to take a session: " in str(asked) and "utf-8" in str(asked).lower()


def test_values_of_etcd_that_somebody_else_has_written() -> None:
    assert subscription_of(b'{"\xff":1}') is None
    assert subscription_of(b"[" * 100_000) is None
    assert keys.node_of(keys.NODES + b"%FF") == "\ufffd"
