"""What nodes say to each other besides frames, as MessagePack: the beginning of a stream, CONTROL records in it, and
the bodies of calls. docs/internals/cluster.md, "Streams".

A struct may get further fields with defaults: an older node leaves them out, and ignores those that it does not know.
"""
from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["VERSIONS", "Adopted", "Adopting", "Answer", "ClientHere", "Control", "Cut", "Has", "Hello", "LifeCut",
           "MoveRefused", "NodeCall", "OperationAnswer", "OperationCall", "Origin", "QueueCall", "Reach", "Reached",
           "ReturnCall", "Serving", "SessionCall", "Switch", "TailCall", "TakeCall", "TakeoverCall", "Unreleased",
           "VoterAnswer", "WhoHas", "answer_of", "client_here_of", "control_of", "encode", "hello_of",
           "move_refused_of", "operation_answer_of", "operation_of", "queue_call_of", "return_of", "tail_of", "take_of",
           "takeover_of", "voter_answer_of"]

VERSIONS = (5, 6)  # of streams: lowest and highest; from 6 on frames say whether they are awaited

U64 = Annotated[int, msgspec.Meta(ge=0)]
Origin = tuple[U64, Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)], U64]  # name, packet identifier, use


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a stream: who opens it, in which life, and which life of the other node it is for."""

    cluster: str
    node: str
    epoch: int
    to_epoch: int
    versions: tuple[int, int] = VERSIONS


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to Hello. position: the last frame of this sender's life that is applied."""

    epoch: int
    version: int
    position: int


class Switch(msgspec.Struct, frozen=True, kw_only=True, tag="switch"):
    """CONTROL, to every node: the sender has taken a session over from node `former`, with this epoch of its owner."""

    namespace: bytes
    client_id: bytes
    epoch: int
    former: str


class Cut(msgspec.Struct, frozen=True, kw_only=True, tag="cut"):
    """CONTROL, to the former owner and to the new one: what the sender has sent before this is for the former owner,
    what it sends behind it for the new one. epoch: of the Switch."""

    namespace: bytes
    client_id: bytes
    epoch: int


class Serving(msgspec.Struct, frozen=True, kw_only=True, tag="serving"):
    """CONTROL, to every node: the sender serves clients from now on; or it leaves, and takes nothing any more."""

    serves: bool = True


class Adopting(msgspec.Struct, frozen=True, kw_only=True, tag="adopting"):
    """CONTROL, to every node: has the receiver made all sessions of a life that it owns at this revision of the store?
    The sender sees none without an owner there."""

    life: int
    revision: int


class Adopted(msgspec.Struct, frozen=True, kw_only=True, tag="adopted"):
    """CONTROL, the answer: it has, and their interest is in front of this. count: of these sessions."""

    life: int
    revision: int
    count: int


class LifeCut(msgspec.Struct, frozen=True, kw_only=True, tag="life-cut"):
    """CONTROL, to every node: what the sender kept for a life has been sent. What it sends behind this is for the
    sessions that were adopted from it, too."""

    life: int


class Unreleased(msgspec.Struct, frozen=True, kw_only=True, tag="unreleased"):
    """CONTROL, to a node that has appeared: messages of QoS 2 of the sender's sessions that await their PUBREL."""

    origins: list[Origin]


class WhoHas(msgspec.Struct, frozen=True, kw_only=True, tag="who-has"):
    """CONTROL, to every node: has the receiver seen to it that a member of a share group (by its mark) gets a message
    of this origin? It answers when it knows the metadata up to this revision. number: of the question."""

    number: int
    origin: Origin
    group: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    revision: int


class Has(msgspec.Struct, frozen=True, kw_only=True, tag="has"):
    """CONTROL, the answer."""

    number: int
    has: bool


class Reach(msgspec.Struct, frozen=True, kw_only=True, tag="reach"):
    """CONTROL: the sender has changed a definition at this revision of the store. The receiver says when it has heard
    of it."""

    revision: U64


class Reached(msgspec.Struct, frozen=True, kw_only=True, tag="reached"):
    """CONTROL, the answer: everything up to this revision, which may be a later one, is known and on disk here."""

    revision: U64


Control = Switch | Cut | Serving | Adopting | Adopted | LifeCut | Unreleased | WhoHas | Has | Reach | Reached


class NodeCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the bodies of calls have in common: the caller, in its life `epoch`, asks this node in its life
    `to_epoch`."""

    cluster: str
    node: str
    epoch: int
    to_epoch: int


class OperationCall(NodeCall, frozen=True, kw_only=True):
    """Body of the call "operation": what an operator asks of a queue that the other node has, as of HTTP. pages: see
    engine/ports/operations.py."""

    method: str
    target: str
    body: bytes
    pages: bool


class OperationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The first part of the answer; the body follows in parts, of this size together."""

    status: int
    content_type: str
    size: U64


class SessionCall(NodeCall, frozen=True, kw_only=True):
    """What the bodies of calls about a session have in common."""

    namespace: bytes
    client_id: bytes


class ReturnCall(SessionCall, frozen=True, kw_only=True):
    """Body of the calls "return" (the caller has stored a session that the other node owns: that one is to fetch it)
    and "stored" (its answer has the parts). identity: of the session."""

    identity: str


class TakeoverCall(SessionCall, frozen=True, kw_only=True):
    """Body of the call "takeover". owner_epoch: of the owner that is asked. clean: the session is not wanted.
    displaces: ClientHere.asked_ms of a client of the owner that is to be displaced, and those before it; None: all,
    as a node asks that knows nothing of ClientHere."""

    owner_epoch: int
    clean: bool
    displaces: int | None = None


class ClientHere(msgspec.Struct, frozen=True, kw_only=True):
    """The only part of the answer to "takeover" when the owner has a client that the call does not displace: the
    session stays. asked_ms: when its CONNECT came, by the owner's clock; age_ms: how long ago. As MessagePack it begins
    with a byte over 127, which no part of a session does (engine/sessions/parts.py)."""

    asked_ms: int
    age_ms: int


class TakeCall(SessionCall, frozen=True, kw_only=True):
    """Body of the call "take": the caller leaves, and asks to have a session taken from it."""


class QueueCall(SessionCall, frozen=True, kw_only=True):
    """Body of the calls about a queue that moves; `client_id` is its name. identity: of the queue. move: of the move,
    drawn by its owner. to: of "move-queue", the node that is to have it. kept: of "queue-here", whether the caller has
    it still, because the move has failed. revision: of "queue-detour", that of queue-data since the move. incarnation,
    moved: of "take-queue", the Placement that the data will have at the node that takes it."""

    identity: int
    move: int = 0
    to: str = ""
    kept: bool = False
    revision: int = 0
    incarnation: Annotated[int, msgspec.Meta(ge=1)] = 1
    moved: U64 = 0


class MoveRefused(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to the call "move-queue" when the queue stays: a QueueRefused (engine/ports/queues.py)."""

    kind: Literal["not_found", "conflict", "invalid", "full", "unavailable"]
    text: str
    hint: str


class TailCall(SessionCall, frozen=True, kw_only=True):
    """Body of the call "tail": a part of what was queued after the takeover. last: nothing follows. part: may be
    empty. had: with the last part of a tail, origins of messages that the session has had (_core/hub/origins.pxd); of
    an early tail those whose use is known. source: the session's name at this node (Departure.source). origins: of
    messages of QoS 2 in this part, by their sequences (MovingSession.origins_behind)."""

    last: bool
    part: bytes
    had: list[Origin] = []
    source: bytes
    origins: list[tuple[U64, Origin]] = []


class VoterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to the call "voter", whose body is empty: what the node knows of its member of etcd. member: its number.
    leaderless_s: for how long it has known no leader, without a break, until age_s ago; None: it knows one, or cannot
    tell. period: distinguishes one such time from another. voters: the members with a vote, as this node knows them."""

    member: int
    leaderless_s: float | None
    age_s: float
    period: int
    voters: dict[int, str]


hello_of = msgspec.msgpack.Decoder(Hello).decode
answer_of = msgspec.msgpack.Decoder(Answer).decode
control_of = msgspec.msgpack.Decoder(Control).decode
operation_of = msgspec.msgpack.Decoder(OperationCall).decode
operation_answer_of = msgspec.msgpack.Decoder(OperationAnswer).decode
return_of = msgspec.msgpack.Decoder(ReturnCall).decode
take_of = msgspec.msgpack.Decoder(TakeCall).decode
takeover_of = msgspec.msgpack.Decoder(TakeoverCall).decode
client_here_of = msgspec.msgpack.Decoder(ClientHere).decode
voter_answer_of = msgspec.msgpack.Decoder(VoterAnswer).decode
move_refused_of = msgspec.msgpack.Decoder(MoveRefused).decode
queue_call_of = msgspec.msgpack.Decoder(QueueCall).decode
tail_of = msgspec.msgpack.Decoder(TailCall).decode
encode = msgspec.msgpack.encode
