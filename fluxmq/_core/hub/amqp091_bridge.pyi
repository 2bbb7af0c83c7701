from typing import final

from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.hub.hub import Hub, TopicRelay
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.queue.queue import Queue

__all__ = ["ExchangeRelay", "publish_amqp"]

@final
class ExchangeRelay(TopicRelay):
    def __init__(self, hub: Hub, exchanges: Exchanges, namespace: Namespace) -> None: ...
    @property
    def namespace(self) -> Namespace: ...

def publish_amqp(
    hub: Hub,
    exchange: bytes,
    routing_key: bytes,
    payload: bytes,
    properties: bytes = b"",
    expires_at: int = 0,
    taken: list[Queue] | None = None,
    namespace: Namespace | None = None,
) -> tuple[int, int]: ...
