from typing import Self, final

from fluxmq._core.memory.ledger import Ledger
from fluxmq._core.pubsub.retained import RetainedTree
from fluxmq._core.pubsub.session import Replay, Session

__all__ = ["RetainedReplay"]

@final
class RetainedReplay(Replay):
    def __new__(cls, tree: RetainedTree, ledger: Ledger, due: list[Session]) -> Self: ...
    def resume(self, session: Session) -> None: ...
