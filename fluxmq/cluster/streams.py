"""A transport has one handler of streams, and a node two kinds of them: those between queues and sessions
(cluster/peers.py), and those of Raft (cluster/raft/streams.py). This divides them."""
from __future__ import annotations

from fluxmq.cluster.ports import StreamHandler, StreamIn, StreamOut
from fluxmq.cluster.raft.streams import RaftStreams
from fluxmq.cluster.raft.words import is_raft

__all__ = ["DividedStreams"]


class DividedStreams:
    """A StreamHandler. peers: gets every stream that is not Raft's."""

    def __init__(self, peers: StreamHandler, raft: RaftStreams) -> None:
        self._peers = peers
        self._raft = raft

    def _of(self, stream: StreamIn | StreamOut) -> StreamHandler:
        return self._raft if self._raft.has(stream) else self._peers

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        """See StreamHandler."""
        return (self._raft if is_raft(hello) else self._peers).on_stream(stream, hello)

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        """See StreamHandler."""
        self._of(stream).on_frame(stream, frame)

    def on_end(self, stream: StreamIn) -> None:
        """See StreamHandler."""
        self._of(stream).on_end(stream)

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        """See StreamHandler."""
        self._of(stream).on_open(stream, answer)

    def on_closed(self, stream: StreamOut, why: str) -> None:
        """See StreamHandler."""
        self._of(stream).on_closed(stream, why)
