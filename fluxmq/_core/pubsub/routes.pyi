from typing import Self, final

from fluxmq._core.pubsub.trie import Trie

__all__ = ["Routes"]

@final
class Routes:
    def __new__(cls, trie: Trie, entries: int, seed: int) -> Self: ...
    @property
    def trie(self) -> Trie: ...
    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
