"""Protection against guessed passwords: counts failed logins, delays refusals, and bans.
It has no I/O and no clock: the caller passes the time, in milliseconds of a clock that never goes back.

Three counts go up with a failed login, and each forgets evenly, so many in `ban_ms` as it takes for a ban:

    pair      one account from one origin        ban of that pair at ban_after
    origin    all accounts from one origin       ban of that origin at ban_origin_after
    account   one account from everywhere        delays only

A count is one number, the time at which all of it will be forgotten: a failure moves that time on by one unit, and what
is left until then, in units, is the count. So nothing has to be swept for a count to be right.

The account itself is never banned, because anyone who knows a name could lock its owner out. So failures elsewhere
only delay refusals at origins from which that account has not logged in yet; they never delay a right password.
Accounts that have logged in from an origin are exempt from its ban, so one
infected machine does not lock out the office that shares its address.

An origin is what model/origins.py makes of an address. Any client may send any account name, so a digest stands for
them. All tables are bounded, and what was touched longest ago leaves first; bans have a table of their own, so that
many failures elsewhere cannot displace a ban. Bans of other nodes of a cluster come in by `learn` and go by `unlearn`.
"""
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeVar

from fluxmq.model import limits

__all__ = ["Ban", "Failure", "Guesses", "Rules"]

FIRST_DELAY_MS = 500
# Failures of one count that are forgotten in `ban_ms` where they lead to no ban.
FORGOTTEN = 10
_DOUBLINGS_MAX = 20  # more is over any delay_max
_NAME_MAX = 255  # characters of an account's name that are kept for people
_K = TypeVar("_K", bound=Hashable)


class Rules(NamedTuple):
    """delay_after: failures that are answered at once. delay_max_ms: 0 = nothing is delayed. ban_after,
    ban_origin_after: 0 = no ban. ban_ms: how long a ban lasts, and failures are remembered; at least 1."""

    delay_after: int
    delay_max_ms: int
    ban_after: int
    ban_origin_after: int
    ban_ms: int


class Ban(NamedTuple):
    """account: None = all of the origin. failures: that led to it; 0: an administrator has made it."""

    origin: bytes
    account: str | None
    failures: int
    until_ms: int


class Failure(NamedTuple):
    """What a failed login leads to. delay_ms: before it is answered. bans: that begin with it."""

    delay_ms: int
    bans: list[Ban]


class _Counts(OrderedDict[_K, int]):
    """Key -> when its count is empty. unit_ms: in which one failure is forgotten.

    Not a cachetools.LRUCache: that would be one more dependency for two lines, and a read would count as a use."""

    def __init__(self, unit_ms: int, entries_max: int) -> None:
        super().__init__()
        self.unit_ms = max(1, unit_ms)
        self.entries_max = entries_max

    def at(self, key: _K, now_ms: int) -> int:
        return max(0, -(-(self.get(key, now_ms) - now_ms) // self.unit_ms))

    def add(self, key: _K, now_ms: int) -> int:
        """One more; returns the count."""
        self[key] = max(self.get(key, now_ms), now_ms) + self.unit_ms
        self.move_to_end(key)
        if len(self) > self.entries_max:
            self.popitem(last=False)
        return self.at(key, now_ms)


class Guesses:
    """Machine. key: secret, 16 to 64 bytes, for digests of names. entries_max: of each count and of bans.
    known_max: logins that are remembered."""

    def __init__(self, rules: Rules, key: bytes, *, entries_max: int = limits.GUESS_ENTRIES_MAX,
                 known_max: int = limits.KNOWN_LOGINS_MAX) -> None:
        self.rules = rules
        self._key = key
        self._entries_max, self._known_max = entries_max, known_max
        each = rules.ban_ms // (rules.ban_after or FORGOTTEN)
        self._pairs: _Counts[tuple[bytes, bytes]] = _Counts(each, entries_max)
        self._accounts: _Counts[bytes] = _Counts(each, entries_max)
        self._origins: _Counts[bytes] = _Counts(rules.ban_ms // (rules.ban_origin_after or FORGOTTEN), entries_max)
        # In the order in which they end, unless _mixed: those that begin here are equally long. b"" stands for every
        # account.
        self._bans: OrderedDict[tuple[bytes, bytes], Ban] = OrderedDict()
        self._mixed = False
        self._known: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self._known_of: Counter[bytes] = Counter()

    def shuts_out(self, origin: bytes, now_ms: int) -> bool:
        """Whether the origin is banned and no account is exempt because it has logged in from there."""
        ban = self._bans.get((origin, b""))
        return ban is not None and ban.until_ms > now_ms and origin not in self._known_of

    def banned(self, origin: bytes, account: str, now_ms: int) -> Ban | None:
        """The ban that keeps this account from logging in from there."""
        pair = origin, self._digest(account)
        ban = self._bans.get(pair)
        if ban is None and pair not in self._known:
            ban = self._bans.get((origin, b""))
        return ban if ban is not None and ban.until_ms > now_ms else None

    def failed(self, origin: bytes, account: str, now_ms: int) -> Failure:
        """Counts a failed login; do not call it for a login that a ban refuses."""
        rules, digest = self.rules, self._digest(account)
        pair = origin, digest
        known = pair in self._known
        of_pair, of_account = self._pairs.add(pair, now_ms), self._accounts.add(digest, now_ms)
        banned = self._bans.get((origin, b""))  # and this account is no part of it: the ban must not grow by it
        of_origin = 0 if banned is not None and banned.until_ms > now_ms else self._origins.add(origin, now_ms)
        bans = []
        if rules.ban_after and of_pair >= rules.ban_after:
            bans.append(self._ban(pair, account[:_NAME_MAX], of_pair, now_ms))
            del self._pairs[pair]
        if rules.ban_origin_after and of_origin >= rules.ban_origin_after:
            bans.append(self._ban((origin, b""), None, of_origin, now_ms))
            del self._origins[origin]
        over = max(of_pair, of_origin, 0 if known else of_account) - rules.delay_after
        delay_ms = FIRST_DELAY_MS << min(over - 1, _DOUBLINGS_MAX) if over > 0 else 0
        return Failure(min(delay_ms, rules.delay_max_ms), bans)

    def succeeded(self, origin: bytes, account: str) -> None:
        """A login was right: its own failures are forgotten, and the place is known."""
        pair = origin, self._digest(account)
        self._pairs.pop(pair, None)
        if pair in self._known:
            self._known.move_to_end(pair)
            return
        self._known[pair] = None
        self._known_of[origin] += 1
        if len(self._known) > self._known_max:
            (forgotten, _), _ = self._known.popitem(last=False)
            self._known_of[forgotten] -= 1
            if not self._known_of[forgotten]:
                del self._known_of[forgotten]

    def ended(self, now_ms: int) -> list[Ban]:
        """Bans that have ended, each once."""
        over = []
        self._sort()
        while self._bans and next(iter(self._bans.values())).until_ms <= now_ms:
            over.append(self._bans.popitem(last=False)[1])
        return over

    @property
    def standing(self) -> int:
        """Bans that `ended` has not named."""
        return len(self._bans)

    def bans(self, now_ms: int) -> Iterator[Ban]:
        """The current bans, the one that ends first on top."""
        self._sort()
        return (ban for ban in self._bans.values() if ban.until_ms > now_ms)

    def ban(self, ban: Ban) -> None:
        """By an administrator: it holds for who has logged in from there, too."""
        pair = self._pair(ban.origin, ban.account)
        for known in [one for one in self._known if one == pair or (ban.account is None and one[0] == ban.origin)]:
            del self._known[known]
            self._known_of[ban.origin] -= 1
        if self._known_of[ban.origin] <= 0:
            del self._known_of[ban.origin]
        self._keep(pair, ban)

    def lift(self, origin: bytes, account: str | None = None) -> list[Ban]:
        """Ends the bans of an origin, or only that of one account there, and forgets what was counted for it."""
        digest = None if account is None else self._digest(account)
        pairs = [pair for pair in self._bans if pair[0] == origin and digest in (None, pair[1])]
        self._origins.pop(origin, None)
        return [self._bans.pop(pair) for pair in pairs]

    def learn(self, ban: Ban) -> bool:
        """A ban that begins elsewhere; instead of one of the same that ends sooner. Whether it is a new one."""
        pair = self._pair(ban.origin, ban.account)
        former = self._bans.get(pair)
        if ban.failures == 0:
            self.ban(ban)
        elif former is None or former.until_ms < ban.until_ms:
            self._keep(pair, ban)
        return former is None

    def unlearn(self, origin: bytes, account: str | None, now_ms: int) -> Ban | None:
        """Ends exactly this ban, and forgets what was counted for the origin; returns it if it was not over."""
        ban = self._bans.get(pair := self._pair(origin, account))
        if ban is None or ban.until_ms <= now_ms:
            return None
        self._origins.pop(origin, None)
        return self._bans.pop(pair)

    def _ban(self, pair: tuple[bytes, bytes], account: str | None, failures: int, now_ms: int) -> Ban:
        ban = Ban(pair[0], account, failures, now_ms + self.rules.ban_ms)
        self._keep(pair, ban)
        return ban

    def _keep(self, pair: tuple[bytes, bytes], ban: Ban) -> None:
        if self._bans and next(reversed(self._bans.values())).until_ms > ban.until_ms:
            self._mixed = True
        self._bans[pair] = ban
        self._bans.move_to_end(pair)
        if len(self._bans) > self._entries_max:
            self._sort()
            self._bans.popitem(last=False)

    def _sort(self) -> None:
        if self._mixed:
            self._bans = OrderedDict(sorted(self._bans.items(), key=lambda item: item[1].until_ms))
            self._mixed = False

    def _pair(self, origin: bytes, account: str | None) -> tuple[bytes, bytes]:
        return origin, b"" if account is None else self._digest(account)

    def _digest(self, account: str) -> bytes:
        return hashlib.blake2b(account.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()
