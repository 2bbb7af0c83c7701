from collections.abc import Callable

from typing_extensions import disjoint_base

from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.memory.commits import Line

__all__ = ["PeerProbe"]

@disjoint_base
class PeerProbe(PeerHop):
    then: Callable[[bytes], object] | None
    def __init__(self, hub: Hub, line: Line | None = None) -> None: ...
    @property
    def hub(self) -> Hub: ...
    @property
    def line(self) -> Line | None: ...
    @property
    def forwarded(self) -> list[tuple[bytes, bytes, int, bool, bytes, int, bytes | None, bool]]: ...
