"""Failed logins and their consequences in a running broker: the machine of guesses.py with clocks, log and timers.

A refusal that is late holds no thread and no turn of the loop: a timer answers it, and its connection is not read
meanwhile. So many may wait at once (DELAYED_REFUSALS_MAX); beyond that refusals leave at once, and count all the same,
for it is the count that bans.
"""
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from fluxmq._core.errors import AuthError
from fluxmq.access.guesses import Ban, Guesses
from fluxmq.engine.ports import guard as ports_guard
from fluxmq.model import limits
from fluxmq.model.origins import Networks, origin_of, read_address, read_origin, show_origin

__all__ = ["Guard"]

BANNED = 0x8A
NONE = Networks(())


class Guard:
    """Machine. clock: seconds, monotonic. wall: seconds since 1970, for what people read. later: schedules a call after
    some seconds. on_log: (level, cause, text, fields). delayed_max: refusals that wait at once. exempt: where no ban
    holds."""

    def __init__(self, guesses: Guesses, *, clock: Callable[[], float], wall: Callable[[], float],
                 later: Callable[[float, Callable[[], None]], Any],
                 on_log: Callable[[str, str, str, dict[str, Any]], None],
                 delayed_max: int = limits.DELAYED_REFUSALS_MAX, exempt: Networks = NONE) -> None:
        self.delayed = 0  # refusals that were late
        self.waiting = 0  # that wait now
        self.begun = {"user": 0, "address": 0}  # bans, by what they are of
        self._guesses = guesses
        self._clock, self._wall, self._later = clock, wall, later
        self._say = on_log
        self._delayed_max = delayed_max
        self._exempt = exempt
        self.shared: ports_guard.SharedBans | None = None  # in a cluster

    def shuts_out(self, origin: bytes) -> bool:
        """See Guard in engine/ports/guard.py."""
        return self._guesses.standing > 0 and self._guesses.shuts_out(origin, self._now())

    def refusal(self, origin: bytes, account: str) -> AuthError | None:
        """See Guard in engine/ports/guard.py."""
        ban = self._guesses.banned(origin, account, self._now())
        if ban is None:
            return None
        return AuthError(BANNED, f"{'too many failed logins; ' if ban.failures else ''}banned until {self._end(ban)}")

    def failed(self, origin: bytes, account: str, answer: Callable[[], None]) -> bool:
        """See Guard in engine/ports/guard.py."""
        failure = self._guesses.failed(origin, account, self._now())
        for ban in failure.bans:
            who = "an address" if ban.account is None else "a user"
            self.begun["address" if ban.account is None else "user"] += 1
            # a cause of its own for each: who is banned must be found in the log, and each costs its guesses
            self._say("warning", f"ban {ban.origin.hex()} {ban.account}", f"{who} is banned there: too many failed "
                      f"logins (auth.ban_after, auth.ban_address_after)", self._fields(ban) | {"until": self._end(ban)})
            if self.shared is not None:
                self.shared.begun(self._shown(ban))
        if not failure.delay_ms or self.waiting >= self._delayed_max:
            answer()
            return False
        self.delayed += 1
        self.waiting += 1

        def now() -> None:
            self.waiting -= 1
            answer()

        self._later(failure.delay_ms / 1000, now)
        return True

    def succeeded(self, origin: bytes, account: str) -> None:
        """See Guard in engine/ports/guard.py."""
        self._guesses.succeeded(origin, account)

    def tick(self) -> None:
        """The clock has moved: says which bans have ended."""
        for ban in self._guesses.ended(self._now()):
            self._say("info", f"unban {ban.origin.hex()} {ban.account}", "a ban has ended", self._fields(ban))

    @property
    def standing(self) -> int:
        """See BansPort."""
        return self._guesses.standing

    def bans(self, count: int) -> Sequence[ports_guard.BanInfo]:
        """See BansPort."""
        return [self._info(ban) for ban in islice(self._guesses.bans(self._now()), count)]

    def ban(self, address: str, user: str | None, seconds: float) -> ports_guard.BanInfo:
        """See BansPort."""
        where = read_address(address)
        if where in self._exempt:
            raise ValueError(f"{address} is in server.exempt_networks: no ban holds there")
        ban = Ban(origin_of(where), user, 0, self._now() + int(seconds * 1000))
        self._guesses.ban(ban)
        self._say("warning", "", "an administrator has banned an address" if user is None else
                  "an administrator has banned a user there", self._fields(ban) | {"until": self._end(ban)})
        if self.shared is not None:
            self.shared.begun(self._shown(ban))
        return self._info(ban)

    async def lift(self, address: str, user: str | None = None) -> Sequence[ports_guard.BanInfo]:
        """See BansPort."""
        origin = read_origin(address)
        elsewhere = () if self.shared is None else await self.shared.lift(origin, user)
        found = [*map(self._learnt, elsewhere), *self._guesses.lift(origin, user)]
        lifted = {ban.account: ban for ban in found if ban.until_ms > self._now()}      # the others are over
        for ban in lifted.values():
            self._say("info", "", "an administrator lifted a ban", self._fields(ban))
        return [self._info(ban) for ban in lifted.values()]

    def learn(self, ban: ports_guard.SharedBan) -> None:
        """See BanTable."""
        learnt = self._learnt(ban)
        if learnt.until_ms > self._now() and self._guesses.learn(learnt):
            who = "an address" if ban.account is None else "a user"
            self._say("info", f"ban {ban.origin.hex()} {ban.account}", f"{who} is banned there, by another node",
                      self._fields(learnt) | {"until": self._end(learnt)})

    def unlearn(self, origin: bytes, account: str | None) -> None:
        """See BanTable."""
        ban = self._guesses.unlearn(origin, account, self._now())
        if ban is not None:
            self._say("info", f"unban {origin.hex()} {account}", "a ban was lifted through another node",
                      self._fields(ban))

    def _shown(self, ban: Ban) -> ports_guard.SharedBan:
        """With the end by the wall clock."""
        return ports_guard.SharedBan(
            origin=ban.origin, account=ban.account, failures=ban.failures,
            length_ms=max(self._guesses.rules.ban_ms, self._left_ms(ban)),
            until_ms=int(self._wall() * 1000) + self._left_ms(ban))

    def _learnt(self, ban: ports_guard.SharedBan) -> Ban:
        """With the end by this node's monotonic clock."""
        left_ms = max(0, min(ban.until_ms - int(self._wall() * 1000), ban.length_ms))
        return Ban(ban.origin, ban.account, ban.failures, self._now() + left_ms)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _left_ms(self, ban: Ban) -> int:
        return max(0, ban.until_ms - self._now())

    def _end(self, ban: Ban) -> str:
        """By the wall clock, RFC 3339."""
        end = datetime.fromtimestamp(self._wall() + self._left_ms(ban) / 1000, UTC)
        return end.isoformat(timespec="seconds").replace("+00:00", "Z")

    def _info(self, ban: Ban) -> ports_guard.BanInfo:
        left_ms = self._left_ms(ban)
        return ports_guard.BanInfo(address=show_origin(ban.origin), user=ban.account, failures=ban.failures,
                                   until_ms=int(self._wall() * 1000) + left_ms, seconds=-(-left_ms // 1000))

    @staticmethod
    def _fields(ban: Ban) -> dict[str, Any]:
        about = {"address": show_origin(ban.origin), "failures": ban.failures}
        return about if ban.account is None else {"user": ban.account} | about


if TYPE_CHECKING:
    # mypy holds the class against the ports here.
    _guard: type[ports_guard.Guard] = Guard
    _bans: type[ports_guard.BansPort] = Guard
    _table: type[ports_guard.BanTable] = Guard
