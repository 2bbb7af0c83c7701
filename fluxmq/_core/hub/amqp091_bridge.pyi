from typing import final

from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.targets import ExchangeHop
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.queue.queue import Queue

__all__ = ["AmqTopicHop", "publish_amqp"]

@final
class AmqTopicHop(ExchangeHop):
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
