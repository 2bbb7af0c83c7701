"""Who is banned for failed logins: GET /api/v1/bans, DELETE /api/v1/bans/ADDRESS?user=NAME.

    {"bans": [{"address", "user", "failures", "until_ms", "seconds"}, ...], "standing": n}     the first to end first
    {"lifted": [...]}      ADDRESS: any of the address's; of IPv6 its /64. Without `user`: all bans of that address

In a cluster both are about all nodes.
"""
from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.guard import BansPort
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model import limits

__all__ = ["lift_bans", "list_bans"]


async def list_bans(port: BansPort) -> Answer:
    """The answer, with at most as many bans as a page of clients has entries."""
    listed = {"bans": port.bans(limits.ADMIN_CLIENTS_MAX), "standing": port.standing}
    return Answer(200, "application/json", msgspec.json.encode(listed) + b"\n", ())


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
