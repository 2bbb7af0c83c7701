from typing import Self, final

from fluxmq._core.peer.outbox import PeerOutbox

__all__ = ["Asked"]

@final
class Asked:
    def __new__(cls, number: int, outbox: PeerOutbox) -> Self: ...
    @property
    def number(self) -> int: ...
