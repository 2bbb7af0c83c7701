"""Operators' requests about queues of other nodes: the call "operation", both sides (engine/ports/operations.py).

    the node that got it ── OperationCall ─► the node that has the queue: Handler
                         ◄── OperationAnswer, and the body in parts

The answer is that of the other node's own admin interface. It is made as a whole before it is sent, so an operator who
gives up ends nothing in the middle.
"""
from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from fluxmq.cluster.messages import OperationAnswer, OperationCall, encode, operation_answer_of, operation_of
from fluxmq.cluster.peers import Peers
from fluxmq.cluster.ports import CallFailed, Transport
from fluxmq.engine.ports.operations import Handler, Operation, Outcome
from fluxmq.engine.ports.queues import QueueElsewhere
from fluxmq.model.malformed import MALFORMED

__all__ = ["OPERATION", "NodeOperations"]

OPERATION = "operation"  # method of Transport.call
PART_BYTES = 1 << 20
OUTCOME_BYTES_MAX = 64 << 20  # what the command line takes, too: a list of 200 000 queues
READS = ("GET", "HEAD")


class NodeOperations:
    """Both sides: `engine.ports.operations.Operations`. node: the name of this one. peers: empty before it
    has its lease."""

    def __init__(self, node: str, transport: Transport, peers: Peers) -> None:
        self._name = node
        self._transport = transport
        self._peers = peers
        self._handler: Handler | None = None

    def answer_by(self, handler: Handler) -> None:
        """See the port."""
        self._handler = handler

    async def ask(self, node: str, operation: Operation, limit_s: float) -> Outcome:
        """See the port."""
        peer = self._peers.peers.get(node)
        if peer is None:
            raise QueueElsewhere(node, f"node {node} is away", f"start node {node}, and try again when it serves",
                                 away=True)
        call = OperationCall(**self._peers.asks(peer), **msgspec.structs.asdict(operation))
        parts: list[bytes] = []
        try:
            async for part in self._transport.call(peer.address, OPERATION, encode(call), limit_s):
                parts.append(part)
            return _joined(parts)
        except (CallFailed, *MALFORMED) as error:
            reached = not isinstance(error, CallFailed) or error.reached
            done = "; it may have been done" if reached and operation.method not in READS else ""
            raise QueueElsewhere(node, f"node {node} has not answered: {error}{done}",
                                 "fluxmq cluster members says whether it serves", away=True) from None

    async def answer(self, body: bytes) -> AsyncIterator[bytes]:
        """Of the call. Raises CallFailed."""
        try:
            call = operation_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not an operation: {error}", reached=False) from None
        self._peers.caller_of(call)
        if self._handler is None:
            raise CallFailed(f"node {self._name} takes no operations of other nodes", reached=False)
        outcome = await self._handler(Operation(call.method, call.target, call.body, call.pages), call.node)
        size = len(outcome.body)
        if size > OUTCOME_BYTES_MAX:
            raise CallFailed(f"its answer has {size} bytes, over {OUTCOME_BYTES_MAX}")
        yield encode(OperationAnswer(status=outcome.status, content_type=outcome.content_type, size=size))
        for at in range(0, size, PART_BYTES):
            yield outcome.body[at:at + PART_BYTES]


def _joined(parts: list[bytes]) -> Outcome:
    """Raises CallFailed, MsgspecError."""
    if not parts:
        raise CallFailed("the answer is empty")
    head, body = operation_answer_of(parts[0]), b"".join(parts[1:])
    if len(body) != head.size:
        raise CallFailed(f"the answer has {len(body)} bytes of {head.size}")
    return Outcome(head.status, head.content_type, body)
