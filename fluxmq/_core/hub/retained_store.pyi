from typing import Self, final

from fluxmq._core.memory.ledger import Ledger
from fluxmq._core.pubsub.retained import Retained
from fluxmq._core.pubsub.topics import Topics

__all__ = ["RetainedStore"]

_bytes = bytes

@final
class RetainedStore:
    count_max: int
    bytes_max: int
    def __new__(cls, ledger: Ledger) -> Self: ...
    @property
    def count(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def refused(self) -> int: ...
    def put(self, topics: Topics, topic: _bytes, kept: Retained | None) -> None: ...
    def expire(self, topics: Topics) -> int: ...
