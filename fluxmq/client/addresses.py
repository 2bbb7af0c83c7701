"""Where the next attempt to connect goes: the addresses of a client in turn, and first where a server has sent it.

    a ── lost ─► b ── fails ─► c ── fails ─► a …            with one address: always there
    a ── Server Reference x ─► x ── fails ─► b …
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from fluxmq.client.errors import UsageError
from fluxmq.client.options import Address

__all__ = ["Addresses"]


class Addresses:
    """given: one address or several. Raises UsageError if there is none."""

    def __init__(self, given: str | Sequence[str]) -> None:
        # Whatever else it is, `check` says what an address is.
        self.all: tuple[str, ...] = tuple(given) if isinstance(given, (list, tuple)) else (cast("str", given),)
        if not self.all:
            raise UsageError("a client needs an address")
        self._at = 0
        self._elsewhere = ""        # where a server has sent the client; until an attempt there fails

    def __len__(self) -> int:
        return len(self.all)

    @property
    def current(self) -> str:
        """Of the connection, or of the next attempt."""
        return self._elsewhere or self.all[self._at]

    def check(self) -> None:
        """Raises UsageError if one of them is no address."""
        for address in self.all:
            Address.of(address)

    def reference(self, told: str) -> str:
        """The address in a Server Reference; "": none that can be used. MQTT 5.0 section 4.13. The scheme stays that of
        the present address, so that nothing that was encrypted is sent in the clear."""
        first, own = told.split()[:1], self.all[self._at]
        if not first or Address.of(own).path:
            return ""
        scheme, separator, _ = own.rpartition("://")
        found = f"{scheme}{separator}{first[0]}"
        try:
            Address.of(found)
        except UsageError:
            return ""
        return found

    def failed(self, reference: str = "") -> None:
        """An attempt has failed. reference: as `reference` has given it."""
        self._elsewhere = reference
        if not reference:
            self._at = (self._at + 1) % len(self.all)

    def lost(self, reference: str = "") -> None:
        """The connection is lost. Who has one address goes on where it was sent; who has several asks the next one."""
        if reference or len(self.all) > 1:
            self.failed(reference)
