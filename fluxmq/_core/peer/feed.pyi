from collections.abc import Callable
from typing import final

from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.stream import Feed

__all__ = ["PeerFeed", "with_expiry"]

def with_expiry(block: bytes, steady_ms: int) -> bytes: ...

@final
class PeerFeed(Feed):
    def __init__(self, outbox: PeerOutbox, queue: Queue,
                 encode: Callable[[int, int, int, int, bytes], bytes]) -> None: ...
    @property
    def outbox(self) -> PeerOutbox: ...
    @property
    def queue(self) -> Queue: ...
    def ask(self, number: int, at: int, offset: int, bytes_max: int) -> None: ...
    def end(self) -> list[int]: ...
