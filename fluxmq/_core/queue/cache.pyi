from fluxmq._core.memory.ledger import Ledger

__all__ = ["evict_cold"]

def evict_cold(ledger: Ledger, bytes_max: int) -> int: ...
