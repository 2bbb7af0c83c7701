"""Options and status of playing one partition."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fluxmq.client.connection import Connection

__all__ = ["PlayOptions", "PlayStatus"]

START_SOON_NS = 50_000_000


def _alone(_word: str, now: int) -> int:
    """meet() for a player without others."""
    return now + START_SOON_NS


def _to_nobody(_why: str) -> None:
    """tell() for a player without others."""


@dataclass(slots=True, kw_only=True)
class PlayOptions:
    """address: of the broker, as Connection.open takes it, or those of the nodes of a cluster, separated by commas;
    amqp_address: where AMQP clients go, likewise. nodes: of a recording of several nodes, the number of the node of
    each merged recording; copies: of the plan. run: tag of the traces, unsigned 32 bits. first: recorded instant (ns)
    that is T0; published: that of the first publish of all players, silent: of the last. speed: of the recording; None,
    as fast as possible. username, password: instead of the recorded logins. quiet_s: how long no delivery must come
    after the last operation; quiet_max_s: how long that is waited for. patience_s: how long acknowledgements may stand
    still. window: as fast as possible, publishes after which subscribers must have caught up.

    meet(word, now): "start" answers T0, ns since 1970; "connected" (as fast as possible only) returns when every player
    has done what came before the first publish of all; "published" (so too), when every player's publishes are
    acknowledged; "sent", when every player has sent all. It may block.
    report_lost_broker(why): the broker went away; lost_broker(): what another player told, or "". They may block.
    clock: ns since 1970. sleep, open_connection: for tests with a clock of their own.
    """

    address: str
    run: int
    amqp_address: str = ""
    nodes: tuple[int, ...] = (0,)
    copies: int = 1
    first: int = 0
    published: int = 0
    silent: int = 0
    speed: float | None = 1.0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    quiet_s: float = 1.0
    quiet_max_s: float = 30.0
    patience_s: float = 10.0
    window: int = 1000
    meet: Callable[[str, int], int] = _alone
    report_lost_broker: Callable[[str], None] = _to_nobody
    lost_broker: Callable[[], str] = str
    clock: Callable[[], int] = time.time_ns
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    open_connection: Callable[..., Awaitable[Any]] = Connection.open

    def address_of(self, link: int, client: int, *, amqp: bool) -> str:
        """Where a connection goes. Those of one recorded node go to one node; if a single broker was recorded, those of
        one client do. link, client: its numbers among the operations."""
        found = ((amqp and self.amqp_address) or self.address).split(",")
        several = len(set(self.nodes)) > 1
        return found[(self.nodes[link // self.copies % len(self.nodes)] if several else client) % len(found)]


@dataclass(slots=True)
class PlayStatus:
    """What one player did; filled in while it plays. why: "" when complete. not_sent: operations whose connection was
    gone, or that the broker's limits forbid. unknown_settlements: commands about messages whose delivery
    the recording does not show. started: T0."""

    complete: bool = False
    why: str = ""
    started: int = 0
    finished: int = 0
    operations: int = 0
    publishes: int = 0
    deliveries: int = 0
    not_sent: int = 0
    unknown_settlements: int = 0
    lost_connections: int = 0
    refused_connections: int = 0
    late_ns_max: int = 0
