"""Passwords checked off the loop: argon2id in a few threads, bounded lines before them, a short memory behind them.

One check costs about 23 ms of a core on purpose, so four things keep a reconnect storm, or a flood of guesses, from
standing in the way of others:
  - what was right is remembered for a minute, under a keyed hash that dies with the process;
  - equal checks (a fleet that shares one account) are made once and answered to all who wait;
  - each origin (an address, model/origins.py) has a line of its own, and they are served in turn: who comes from
    another place than the flood waits for as many checks as there are places, however long the flood's line is;
  - more than can be served in some seconds is refused with 0x89 (server busy), and the last of the longest line leaves.
The hash being checked is part of the key, so nothing remembered outlives a change of the password in the file.
"""
import asyncio
import hashlib
import os
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from fluxmq._core.errors import AuthError
from fluxmq.access.users import Users

__all__ = ["Passwords"]

SERVER_UNAVAILABLE = 0x88
SERVER_BUSY = 0x89
WAITING_PER_WORKER_MAX = 256  # times 23 ms: about 6 s, less than clients wait for a CONNACK
CACHE_TTL_S = 60.0
CACHE_ENTRIES_MAX = 10_000  # about 1.5 MB


class _Check(NamedTuple):
    """right: what the thread will have found."""

    password_hash: str
    password: bytes
    right: Future[bool]


class Passwords:
    """Machine. All checks of one broker against one table of users, which `replace` exchanges.

    workers: threads; None leaves one core to the loop, and is 1 at least. waiting_max: checks that may run or wait;
    None is 256 for each thread. clock: seconds, monotonic.
    """

    def __init__(self, users: Users, *, workers: int | None = None, waiting_max: int | None = None,
                 cache_entries_max: int = CACHE_ENTRIES_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        count = max(1, len(os.sched_getaffinity(0)) - 1) if workers is None else workers
        self._users = users
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="fluxmq-password")
        self._waiting_max = WAITING_PER_WORKER_MAX * count if waiting_max is None else waiting_max
        self._cache_entries_max = cache_entries_max
        self._clock = clock
        self._key = secrets.token_bytes(32)
        # Time to live is the same for all, so the order of insertion is the order of expiry: cachetools.TTLCache would
        # be a dependency for the three lines of _remember.
        self._expiry_by_key: OrderedDict[bytes, float] = OrderedDict()
        self._checks: dict[bytes, Future[bool]] = {}  # what runs and what waits
        # What waits, by origin; the first origin is next. Threads take from it, so the lock is held for a few steps.
        self._lines: OrderedDict[bytes, deque[_Check]] = OrderedDict()
        self._lock = threading.Lock()

    def remembers(self, name: str, password: bytes, *, slack_s: float = 0.0) -> bool:
        """Whether this password was found right a short while ago. slack_s: how much longer than usual it counts."""
        if name not in self._users:
            return False
        expiry = self._expiry_by_key.get(self._digest(name, password))
        return expiry is not None and self._clock() < expiry + slack_s

    async def verify(self, name: str, password: bytes, origin: bytes = b"") -> bool:
        """Whether `password` is the one of `name`. An unknown name takes as long as a known one.
        origin: whose line it waits in; b"" stands for all that are not told apart.

        Raises AuthError(0x89) when too many checks wait already, AuthError(0x88) when none can be made.
        """
        while True:
            if self.remembers(name, password):
                return True
            digest = self._digest(name, password)
            password_hash = self._users.password_hash(name)
            check = self._checks.get(digest) or self._start(digest, password_hash, password, origin)
            # Shielded: one of several who wait for the same check may go away without taking it from the others.
            try:
                right = await asyncio.shield(asyncio.wrap_future(check))
            except asyncio.CancelledError:
                if check.cancelled():  # by close(), not by the caller that waits here
                    raise AuthError(SERVER_UNAVAILABLE, "the broker is stopping") from None
                raise
            if self._users.password_hash(name) != password_hash:
                continue  # the file was read again meanwhile: the checked hash is out of date
            if right and name in self._users:
                self._remember(digest)
                return True
            return False

    def replace(self, users: Users) -> None:
        """From now on check against `users`, and forget what was remembered."""
        self._users = users
        self._expiry_by_key.clear()

    def close(self) -> None:
        """Give up what waits; a check that runs ends by itself within milliseconds."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = [check for line in self._lines.values() for check in line]
            self._lines.clear()
        for check in left:
            check.right.cancel()

    def _digest(self, name: str, password: bytes) -> bytes:
        # Neither a name nor a hash holds NUL, so the three parts cannot be cut differently.
        head = f"{name}\0{self._users.password_hash(name)}\0".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(head + password, key=self._key, digest_size=32).digest()

    def _start(self, digest: bytes, password_hash: str, password: bytes, origin: bytes) -> Future[bool]:
        full = len(self._checks) >= self._waiting_max
        if full and not self._displace(origin):
            raise AuthError(SERVER_BUSY, "too many logins at once; try again later")
        right: Future[bool] = Future()
        with self._lock:
            self._lines.setdefault(origin, deque()).append(_Check(password_hash, password, right))
        self._checks[digest] = right
        right.add_done_callback(lambda _: self._checks.pop(digest, None))
        try:
            if not full:  # else a thread is scheduled for the check that left
                self._pool.submit(self._check_next)
        except RuntimeError:  # shut down
            self.close()
        return right

    def _displace(self, origin: bytes) -> bool:
        """Makes room for one of this origin: what the longest line has last is refused, unless that is about as long
        as its own."""
        with self._lock:
            longest = max(self._lines.values(), key=len, default=deque[_Check]())
            if len(longest) < len(self._lines.get(origin, ())) + 2:
                return False
            last = longest.pop()
        last.right.set_exception(AuthError(SERVER_BUSY, "too many logins at once; try again later"))
        return True

    def _check_next(self) -> None:
        """In a thread: the oldest of the origin whose turn it is."""
        with self._lock:
            if not self._lines:
                return
            origin, line = self._lines.popitem(last=False)
            check = line.popleft()
            if line:
                self._lines[origin] = line
        try:
            check.right.set_result(_check(check.password_hash, check.password))
        except Exception as error:
            check.right.set_exception(error)

    def _remember(self, digest: bytes) -> None:
        now = self._clock()
        cache = self._expiry_by_key
        cache[digest] = now + CACHE_TTL_S
        cache.move_to_end(digest)
        while cache and (len(cache) > self._cache_entries_max or next(iter(cache.values())) <= now):
            cache.popitem(last=False)


def _check(password_hash: str, password: bytes) -> bool:
    """Runs in a thread; argon2 works without the GIL."""
    # Not at the top: a broker without users has no use for it, and it takes a part of its start.
    from argon2.exceptions import VerificationError, VerifyMismatchError
    from argon2.low_level import Type, verify_secret

    try:
        return verify_secret(password_hash.encode("ascii"), password, Type.ID)
    except VerifyMismatchError:
        return False
    except VerificationError as error:  # no memory
        raise AuthError(SERVER_UNAVAILABLE, f"a password could not be checked: {error}") from None
