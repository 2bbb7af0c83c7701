from fluxmq._core.hub import Hub
from fluxmq._core.queue import Queue

__all__ = ["publish_amqp"]

def publish_amqp(
    hub: Hub,
    exchange: bytes,
    routing_key: bytes,
    payload: bytes,
    properties: bytes = b"",
    expires_at: int = 0,
    taken: list[Queue] | None = None,
) -> tuple[int, int]: ...
