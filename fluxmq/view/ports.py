"""What the view needs of others, as Protocols: the admin socket of a broker, and a try-out that it may steer."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

__all__ = ["Admin", "Connect", "TryOut"]


class Admin(Protocol):
    """A connection to an admin socket (fluxmq.app.admin_client.AdminClient). Everything raises FluxError."""

    def ask(self, method: str, *segments: str, query: dict[str, Any] | None = None, body: Any = None) -> Any: ...

    def record(self, ring_size: int, *, view: bool = False,
               who: str = "") -> tuple[dict[str, Any], Iterator[bytes]]: ...

    def close(self) -> None: ...


Connect = Callable[[], Admin]


class TryOut(Protocol):
    """A running try-out, over its control socket. ask raises FluxError: it refuses, or has ended."""

    def ask(self, do: str, **given: Any) -> dict[str, Any]: ...
