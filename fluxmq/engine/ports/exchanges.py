"""Exchanges and bindings, as the admin ring lists them."""
from __future__ import annotations

from typing import Any, Protocol

__all__ = ["ExchangesPort"]


class ExchangesPort(Protocol):
    """Names are text. arguments: as a client gave them, as far as JSON can represent them."""

    def exchanges(self, namespace: str | None) -> list[dict[str, Any]]:
        """Those of a namespace, or of all: name, namespace, type, durable, auto_delete, internal, arguments, bindings
        (how many go from it). The predefined ones too, but for the default exchange, to which nothing is bound. Raises
        QueueRefused (not_found) for a namespace that is not there."""

    def bindings(self, namespace: str | None, exchange: str | None, queue: str | None, start: int,
                 count: int) -> tuple[list[dict[str, Any]], int | None]:
        """Bindings from the `start`th on, at most `count`: source, destination, to ("queue" or "exchange"),
        routing_key, arguments, namespace. exchange: only those from it or to it; queue: only those to it. And where the
        next page begins; None: there is none. Raises QueueRefused (not_found)."""
