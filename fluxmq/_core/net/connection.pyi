from ssl import SSLSocket
from typing import Self, final

from typing_extensions import disjoint_base

from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.transport import Handler, Transport
from fluxmq._core.pubsub.session import Session

__all__ = ["ClientFacts", "Connection"]

@disjoint_base
class ClientFacts:
    packet_size_max: int
    version: int
    problem_information: bool
    publish_will: bool
    clean_start: bool
    taken: bool
    present: bool
    def __new__(cls, *_: object) -> Self: ...

@final
class Connection(Transport):
    incarnation: int
    counted: bool
    keep_alive_ms: int
    def __new__(
        cls, hub: Hub, fd: int, epoll: int, handler: Handler, tls: SSLSocket | None = None, websocket: bool = False
    ) -> Self: ...
    @property
    def session(self) -> Session | None: ...
    @property
    def version(self) -> int: ...
    @property
    def open(self) -> bool: ...
    @property
    def topic_aliases(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]: ...
    def set_version(self, level: int) -> None: ...
    def accept(self, session: Session, window: int, packet_size_max: int, alias_max: int) -> None: ...
    def tick(self) -> str: ...
