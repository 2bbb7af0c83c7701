"""The ports through which the edges report failed logins and ask who is banned (`Guard`), and the admin ring shows and
lifts bans (`BansPort`). fluxmq/access/guard.py implements both.

An origin is the key of an address, as model/origins.py makes it. Connections without one are exempt: nobody asks.
"""
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from fluxmq._core.errors import AuthError

__all__ = ["BanInfo", "BansPort", "Guard"]


class Guard(Protocol):
    """What failed logins lead to."""

    def shuts_out(self, origin: bytes) -> bool:
        """Whether nobody could log in from there: a connection need not be taken."""

    def refusal(self, origin: bytes, account: str) -> AuthError | None:
        """AuthError(0x8A) for an account that is banned there. To be asked before a password is checked, and again
        behind it: what began before the ban must not tell whether the password was right."""

    def failed(self, origin: bytes, account: str, answer: Callable[[], None]) -> bool:
        """A login failed that `refusal` does not refuse. Calls `answer`, which says so to the client, at once or later;
        returns whether later. The connection waits meanwhile, and may be gone then."""

    def succeeded(self, origin: bytes, account: str) -> None:
        """A login succeeded."""


class BanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One ban. address: as people write it, of IPv6 a /64. user: None = everybody there. failures: that led to it.
    until_ms: its end by the wall clock. seconds: until then."""

    address: str
    user: str | None
    failures: int
    until_ms: int
    seconds: int


class BansPort(Protocol):
    """Who is banned."""

    @property
    def standing(self) -> int:
        """How many bans stand."""

    def bans(self, most: int) -> Sequence[BanInfo]:
        """Those that stand, the first to end first; at most so many."""

    def lift(self, address: str, user: str | None = None) -> Sequence[BanInfo]:
        """Ends the bans of an address, or only that of a user there. Raises ValueError for what is no address."""
