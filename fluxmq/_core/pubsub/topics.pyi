from typing import Self, final

from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.retained import RetainedTree
from fluxmq._core.pubsub.routes import Routes
from fluxmq._core.pubsub.trie import Trie

__all__ = ["Topics"]

@final
class Topics:
    namespace: Namespace
    trie: Trie
    routes: Routes
    retained: RetainedTree
    retained_bytes: int
    retained_dirty: set[bytes]
    def __new__(cls, namespace: Namespace, route_entries: int, seed: int) -> Self: ...
    @property
    def retained_count(self) -> int: ...
