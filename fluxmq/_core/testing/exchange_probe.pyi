from fluxmq._core.exchange.exchange import Exchanges

__all__ = ["find_rounds"]

def find_rounds(exchanges: Exchanges, name: bytes, keys: list[bytes], headers: bytes, rounds: int) -> int: ...
