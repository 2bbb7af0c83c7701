"""CONNECTs that wait until this node owns their session. Those of one session share an attempt (Owners), which is
given up when none of them is left."""
from __future__ import annotations

from collections.abc import Awaitable, Callable

from fluxmq._core.errors import ProtocolError
from fluxmq.cluster.membership import PATIENCE_S, Membership, State
from fluxmq.cluster.ports import StoreError
from fluxmq.engine.ports.cluster import Owner
from fluxmq.engine.ports.driver import Driver, Promise, fulfil
from fluxmq.model.mqtt import ReasonCode

__all__ = ["NOBODY", "Session", "Takes"]

Session = tuple[bytes, bytes]  # namespace, client identifier

NOBODY = -1  # as asked_ms: not for a client. Every CONNECT is later
PERIOD_S = 0.5  # how exactly the limit of waiting is kept
RETRY_S = 0.1


class _Attempt:
    """promise: for all who wait; an error may end the wait, and not the attempt. callers: asked_ms of each of them."""

    __slots__ = ("callers", "promise")

    def __init__(self, promise: Promise[Owner]) -> None:
        self.promise = promise
        self.callers: list[int] = []


class Takes:
    """attempt: called with (session, clean start); raises ProtocolError, StoreError. on_taken: called when it has
    succeeded."""

    def __init__(self, membership: Membership, driver: Driver, attempt: Callable[[Session, bool], Awaitable[Owner]],
                 on_taken: Callable[[Session, Owner], None]) -> None:
        self._membership = membership
        self._driver = driver
        self._attempt = attempt
        self._on_taken = on_taken
        self._attempts: dict[Session, _Attempt] = {}
        self._limited = False  # _keep_limit runs

    def under_way(self, session: Session) -> bool:
        """Whether there is an attempt."""
        return session in self._attempts

    def latest(self, session: Session) -> int | None:
        """asked_ms of the latest who waits for it; None: nobody does."""
        attempt = self._attempts.get(session)
        return max(attempt.callers, default=None) if attempt is not None else None

    async def take(self, session: Session, clean_start: bool, asked_ms: int) -> Owner:
        """What the attempt returns, or the one that is under way. asked_ms: when the CONNECT came (Hub.mono_ms), or
        NOBODY. Raises ProtocolError."""
        self._refuse_without_quorum()
        attempt = self._attempts.get(session)
        if attempt is None:
            attempt = self._attempts[session] = _Attempt(self._driver.promise())
            self._driver.start(self._run(session, clean_start, attempt))
        elif attempt.promise.done():
            attempt.promise = self._driver.promise()
        if not self._limited:
            self._limited = True
            self._driver.start(self._keep_limit())
        attempt.callers.append(asked_ms)
        try:
            return await self._driver.result_of(attempt.promise)
        finally:
            attempt.callers.remove(asked_ms)

    async def _run(self, session: Session, clean_start: bool, attempt: _Attempt) -> None:
        try:
            owner = await self._attempt(session, clean_start)
        except StoreError as error:
            _fail(attempt.promise, f"etcd does not answer: {error}")
        except ProtocolError as error:
            _fail(attempt.promise, error)
        except BaseException as error:
            _fail(attempt.promise, f"the session was not taken: {error!r}")
            raise
        else:
            self._on_taken(session, owner)
            fulfil(attempt.promise, owner)
        finally:
            del self._attempts[session]

    # ------------------------------------------------------------------ without quorum

    def _refuse_without_quorum(self) -> None:
        member = self._membership
        if member.late and member.silent_s > PATIENCE_S:
            raise ProtocolError(ReasonCode.SERVER_UNAVAILABLE, f"etcd has no quorum: {member.why_late}")

    async def await_quorum(self) -> None:
        """Before anything is asked of another node. Raises ProtocolError."""
        while self._membership.late:
            self._refuse_without_quorum()
            await self._driver.sleep(RETRY_S)

    async def _keep_limit(self) -> None:
        """Ends the waits of clients for a quorum that is lost."""
        while self._attempts and self._membership.state is State.MEMBER:
            await self._driver.sleep(PERIOD_S)
            try:
                self._refuse_without_quorum()
            except ProtocolError as error:
                for attempt in self._attempts.values():
                    _fail(attempt.promise, error)
        self._limited = False


def _fail(promise: Promise[Owner], why: ProtocolError | str) -> None:
    if not promise.done():
        promise.set_exception(why if isinstance(why, ProtocolError)
                              else ProtocolError(ReasonCode.SERVER_UNAVAILABLE, why))
        promise.exception()                 # whoever waited may have gone
