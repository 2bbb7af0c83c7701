"""The ports through which the edges report failed logins and ask who is banned (`Guard`), the admin ring shows and
lifts bans (`BansPort`), and the nodes of a cluster share them (`BanTable`, `SharedBans`). fluxmq/access/guard.py
implements all but the last, which is fluxmq/cluster/bans.py.

An origin is the key of an address, as model/origins.py makes it. Connections without one are exempt.
"""
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from fluxmq._core.errors import AuthError

__all__ = ["BanInfo", "BanTable", "BansPort", "Guard", "SharedBan", "SharedBans"]


class Guard(Protocol):
    """Counts failed logins and bans origins and accounts."""

    def shuts_out(self, origin: bytes) -> bool:
        """Whether all users at this origin are banned, so that its connections need not be accepted."""

    def refusal(self, origin: bytes, account: str) -> AuthError | None:
        """AuthError(0x8A) for an account that is banned at this origin. The caller must ask before it checks a password
        and again afterwards: a check that began before the ban must not reveal whether the password was right."""

    def failed(self, origin: bytes, account: str, answer: Callable[[], None]) -> bool:
        """Counts a failed login that `refusal` does not refuse. Calls `answer`, which answers the client, at once or
        later; returns whether later. The connection waits meanwhile, and may have ended by then."""

    def succeeded(self, origin: bytes, account: str) -> None:
        """Counts a successful login."""


class BanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One ban. address: in readable form, for IPv6 a /64. user: None = all users at the address. failures: that caused
    it; 0: an administrator has made it. until_ms: its end by the wall clock. seconds: until then."""

    address: str
    user: str | None
    failures: int
    until_ms: int
    seconds: int


class BansPort(Protocol):
    """Shows, makes and lifts bans."""

    @property
    def standing(self) -> int:
        """Number of current bans."""

    def bans(self, count: int) -> Sequence[BanInfo]:
        """Current bans, ordered by their end; at most `count`."""

    def ban(self, address: str, user: str | None, seconds: float) -> BanInfo:
        """Bans an address, or a user at it; in a cluster on all nodes, soon. Connections that are open stay. Raises
        ValueError for an invalid address, and for one where no ban holds."""

    async def lift(self, address: str, user: str | None = None) -> Sequence[BanInfo]:
        """Ends the bans of an address, or only that of a user at it; in a cluster on all nodes. Raises ValueError for
        an invalid address, QueueRefused (unavailable) if the cluster's metadata cannot be changed now."""


class SharedBan(msgspec.Struct, frozen=True, kw_only=True):
    """A ban of a cluster. account: None = all of the origin. until_ms: its end by the wall clock. length_ms: of all of
    it; it never lasts longer, however wrong a clock is."""

    origin: bytes
    account: str | None
    failures: int
    until_ms: int
    length_ms: int


class BanTable(Protocol):
    """The bans of one node."""

    def learn(self, ban: SharedBan) -> None:
        """Another node has banned, or a former life of this one. Bans that are over are left out."""

    def unlearn(self, origin: bytes, account: str | None) -> None:
        """The cluster has this ban no more: somebody has lifted it, or it is over."""


class SharedBans(Protocol):
    """The bans of a cluster."""

    def begun(self, ban: SharedBan) -> None:
        """This node bans: all others get to know it."""

    async def lift(self, origin: bytes, account: str | None) -> Sequence[SharedBan]:
        """Ends the bans of an origin, or only that of one account there, on all other nodes; the caller does so on this
        one. Returns those that the cluster had. Raises QueueRefused (unavailable)."""
