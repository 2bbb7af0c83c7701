from typing import final

from fluxmq._core.ledger import Ledger
from fluxmq._core.retained import RetainedTree
from fluxmq._core.session import Replay, Session

__all__ = ["RetainedReplay"]

@final
class RetainedReplay(Replay):
    def __init__(self, tree: RetainedTree, ledger: Ledger, due: list[Session]) -> None: ...
