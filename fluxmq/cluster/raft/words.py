"""What nodes say to each other at the beginning of a stream of Raft's, and in it of their replicas, as MessagePack.
Messages themselves are bytes of their own: _core/raft/wire.

A struct may get further fields with defaults: an older node leaves them out, and ignores those that it does not know.
"""
from __future__ import annotations

from typing import Annotated

import msgspec

from fluxmq.model.malformed import MALFORMED

__all__ = ["VERSIONS", "OwnReplica", "RaftAnswer", "RaftHello", "encode", "is_raft", "raft_answer_of", "raft_hello_of",
           "replicas_of"]

VERSIONS = (1, 1)  # of streams: lowest and highest

U32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
U64 = Annotated[int, msgspec.Meta(ge=0)]


class OwnReplica(msgspec.Struct, frozen=True, array_like=True):
    """A replica that the sender has. incarnation: of the group. number: of the replica, which nobody else gets.
    starts: how often it was started. leads: the term in which it leads and serves clients; 0: it does not."""

    group: U64
    incarnation: U64
    number: U32
    starts: U32
    leads: U64 = 0


class RaftHello(msgspec.Struct, frozen=True, kw_only=True, tag="raft"):
    """The first message of a stream. cluster: its name; "": not known yet. disk: identifies the storage directory.
    life: drawn when the process began. replicas: all that the node has; None: too many for here, they follow in the
    stream."""

    cluster: str
    node: str
    disk: str
    life: U64
    versions: tuple[int, int] = VERSIONS
    replicas: list[OwnReplica] | None


class RaftAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="raft"):
    """The answer. replicas: as of RaftHello; None: the node says it in its own stream."""

    version: int
    node: str
    disk: str
    life: U64
    replicas: list[OwnReplica] | None


class _Tagged(msgspec.Struct, frozen=True):
    """What tells the hello of one kind of stream from that of another."""

    type: str = ""


raft_hello_of = msgspec.msgpack.Decoder(RaftHello).decode
raft_answer_of = msgspec.msgpack.Decoder(RaftAnswer).decode
replicas_of = msgspec.msgpack.Decoder(list[OwnReplica]).decode
encode = msgspec.msgpack.encode
_tagged_of = msgspec.msgpack.Decoder(_Tagged).decode


def is_raft(hello: bytes) -> bool:
    """Whether a stream that begins with this is one of Raft's."""
    try:
        return _tagged_of(hello).type == "raft"
    except MALFORMED:
        return False
