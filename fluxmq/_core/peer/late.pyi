from typing_extensions import disjoint_base

from fluxmq._core.peer.stream import FrameStream

__all__ = ["LateStream"]

@disjoint_base
class LateStream(FrameStream):
    given_up_answer: bytes | None
    @property
    def late_bytes(self) -> int: ...
