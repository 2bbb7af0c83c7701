"""When leases end, as each member of the simulated etcd keeps it in memory (etcd 3.4, lease/lessor.go).

Only the lessor of the leader is primary. It alone knows when a lease ends, by its own clock, and nobody else learns of
a renewal. A new leader gives every lease its whole time to live, and an election timeout more, when it applies the
first entry of its term. A member that is not primary lets no lease end.
"""
from __future__ import annotations

from collections.abc import Callable
from enum import Enum

__all__ = ["Lessor", "Renewed"]

RETRY_MS = 3000         # until a lease that has ended, and still exists, is revoked once more


class Renewed(Enum):
    """Why a lease was not renewed."""

    NOT_FOUND = "not found"
    NOT_PRIMARY = "not primary"


class Lessor:
    """now_ms: the member's clock, which goes on while it is paused. extend_ms: an election timeout."""

    def __init__(self, now_ms: Callable[[], int], extend_ms: int) -> None:
        self.primary = False
        self._now_ms = now_ms
        self._extend_ms = extend_ms
        self._ttl_ms: dict[int, int] = {}
        self._ends_ms: dict[int, int] = {}          # of a primary
        self._due_ms: dict[int, int] = {}           # when it is looked at
        self._waiting: list[tuple[int, Callable[[int | Renewed], object]]] = []     # renewals of ended leases

    # ── what is applied ──────────────────────────────────────────────────────────────────────────────────

    def granted(self, lease: int, ttl_s: int) -> None:
        """A lease exists now."""
        self._ttl_ms[lease] = ttl_s * 1000
        if self.primary:
            self._refresh(lease, 0)

    def revoked(self, lease: int) -> None:
        """A lease exists no more."""
        for table in (self._ttl_ms, self._ends_ms, self._due_ms):
            table.pop(lease, None)
        self._answer(Renewed.NOT_FOUND, lease)

    def promote(self) -> None:
        """This member leads, and has applied everything from before its term."""
        self.primary = True
        for lease in self._ttl_ms:
            self._refresh(lease, self._extend_ms)

    def demote(self) -> None:
        """This member does not lead any more, as far as it knows."""
        self.primary = False
        self._ends_ms.clear()
        self._due_ms.clear()
        self._answer(Renewed.NOT_PRIMARY, None)

    def _refresh(self, lease: int, extend_ms: int) -> None:
        self._ends_ms[lease] = self._due_ms[lease] = self._now_ms() + self._ttl_ms[lease] + extend_ms

    # ── what is asked ────────────────────────────────────────────────────────────────────────────────────

    def expired(self) -> list[int]:
        """The leases that have ended and are to be revoked now."""
        now_ms, found = self._now_ms(), []
        for lease, due_ms in self._due_ms.items():
            if due_ms <= now_ms:
                found.append(lease)
        for lease in found:
            self._due_ms[lease] = now_ms + RETRY_MS
        return [lease for lease in found if self._ends_ms[lease] <= now_ms]

    def renew(self, lease: int, done: Callable[[int | Renewed], object]) -> None:
        """done(its time to live in seconds), or why not. One that has ended waits until it was revoked, or until this
        member is not primary any more."""
        if not self.primary:
            done(Renewed.NOT_PRIMARY)
        elif lease not in self._ttl_ms:
            done(Renewed.NOT_FOUND)
        elif self._ends_ms[lease] <= self._now_ms():
            self._waiting.append((lease, done))
        else:
            self._refresh(lease, 0)
            done(self._ttl_ms[lease] // 1000)

    def left_ms(self, lease: int) -> int | None:
        """How long it still has; None: it does not end here."""
        return self._ends_ms[lease] - self._now_ms() if lease in self._ends_ms else None

    def _answer(self, what: Renewed, lease: int | None) -> None:
        waiting, self._waiting = self._waiting, []
        for one, done in waiting:
            if lease is None or one == lease:
                done(what)
            else:
                self._waiting.append((one, done))
