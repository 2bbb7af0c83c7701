from collections.abc import Callable

from typing_extensions import disjoint_base

from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.net.connection import Connection
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.pubsub.session import Session

__all__ = ["PeerProbe", "forward_many", "open_connection", "parse_many", "queued", "release_all"]

def queued(session: Session) -> list[tuple[bytes, bytes, int, bytes, int]]: ...
def forward_many(
    outbox: PeerOutbox, topic: bytes, payload: bytes, qos: int, times: int, group: bytes | None = None,
    filter: bytes | None = None, namespace: Namespace | None = None, expires_at: int = 0
) -> None: ...

def release_all(hub: Hub, name: int, first: int, last: int) -> None: ...
def open_connection(hub: Hub, fd: int) -> Connection: ...
def parse_many(connection: Connection, data: bytes, times: int, reader: Session | None = None) -> None: ...

@disjoint_base
class PeerProbe(PeerHop):
    then: Callable[[bytes], object] | None
    def __init__(self, hub: Hub, line: Line | None = None) -> None: ...
    @property
    def hub(self) -> Hub: ...
    @property
    def line(self) -> Line | None: ...
    @property
    def grouped(self) -> list[tuple[bytes, bytes, bytes, int]]: ...
    @property
    def forwarded(self) -> list[tuple[bytes, bytes, int, bool, bytes, int, bytes | None, bool]]: ...
