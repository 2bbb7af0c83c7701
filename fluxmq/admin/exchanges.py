"""Routes of the admin API over exchanges and bindings: what each answers stands in routes.py, what is in it in
ExchangesPort.

    {"exchanges": [...]}
    {"bindings": [...], "next": n}      next: ?from= of the next page; null: there is none
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.exchanges import ExchangesPort
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model import limits

__all__ = ["list_bindings", "list_exchanges"]


def _answer(body: dict[str, Any]) -> Answer:
    return Answer(200, "application/json", msgspec.json.encode(body) + b"\n", ())


async def list_exchanges(port: ExchangesPort, query: Mapping[str, str]) -> Answer:
    """All exchanges, without pages: applications have some, not thousands. Raises QueueRefused."""
    return _answer({"exchanges": port.exchanges(query.get("namespace"))})


async def list_bindings(port: ExchangesPort, query: Mapping[str, str]) -> Answer:
    """A page. Raises QueueRefused."""
    try:
        start, count = int(query.get("from", "0")), int(query.get("count", str(limits.ADMIN_CLIENTS_MAX)))
    except ValueError:
        start = count = -1
    if start < 0 or not 1 <= count <= limits.ADMIN_CLIENTS_MAX:
        raise QueueRefused("invalid", f"from is a number from 0 on, and count one from 1 to {limits.ADMIN_CLIENTS_MAX}")
    found, following = port.bindings(query.get("namespace"), query.get("exchange"), query.get("queue"), start, count)
    return _answer({"bindings": found, "next": following})
