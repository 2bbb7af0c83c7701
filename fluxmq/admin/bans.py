"""Who is banned: GET /api/v1/bans, POST (?user=NAME&seconds=N) and DELETE (?user=NAME) of /api/v1/bans/ADDRESS.

    {"bans": [{"address", "user", "failures", "until_ms", "seconds"}, ...], "standing": n}     the first to end first
    {"banned": {...}}      the new one; failures 0
    {"lifted": [...]}      ADDRESS: any of the address's; of IPv6 its /64. Without `user`: all bans of that address

In a cluster all are about all nodes.
"""
from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.guard import BansPort
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model import limits

__all__ = ["add_ban", "lift_bans", "list_bans"]


async def list_bans(port: BansPort) -> Answer:
    """The answer, with at most as many bans as a page of clients has entries."""
    listed = {"bans": port.bans(limits.ADMIN_CLIENTS_MAX), "standing": port.standing}
    return Answer(200, "application/json", msgspec.json.encode(listed) + b"\n", ())


async def add_ban(port: BansPort, address: str, query: Mapping[str, str]) -> Answer:
    """Raises QueueRefused for an invalid address or time, and for an address where no ban holds."""
    try:
        seconds = float(query.get("seconds", "nan"))
        if not 1 <= seconds <= limits.INTERVAL_SECONDS_MAX:
            raise ValueError(f"seconds: how long the ban lasts, from 1 to {limits.INTERVAL_SECONDS_MAX:.0f}")
        if query.get("user") == "":
            raise QueueRefused("invalid", "there is no user without a name", "without a user everybody there is banned")
        ban = port.ban(address, query.get("user"), seconds)
    except ValueError as error:
        raise QueueRefused("invalid", str(error)) from None
    return Answer(200, "application/json", msgspec.json.encode({"banned": ban}) + b"\n", ())


async def lift_bans(port: BansPort, address: str, query: Mapping[str, str]) -> Answer:
    """Raises QueueRefused for an invalid address, if nothing is banned there, and when the cluster decides nothing."""
    try:
        lifted = await port.lift(address, query.get("user"))
    except ValueError as error:
        raise QueueRefused("invalid", str(error)) from None
    if not lifted:
        who = f"the user {query['user']!r} is" if "user" in query else "nobody is"
        raise QueueRefused("not_found", f"{who} {'not ' if 'user' in query else ''}banned at {address}",
                           "fluxmq ban list shows who is")
    return Answer(200, "application/json", msgspec.json.encode({"lifted": lifted}) + b"\n", ())
