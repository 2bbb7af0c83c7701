"""CONNECTs that wait until this node owns their session. Those of one session share an attempt (`Owners._attempt`),
which is given up when none of them is left."""
from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fluxmq._core.errors import ProtocolError
from fluxmq.cluster.membership import PATIENCE_S, Membership, State
from fluxmq.engine.ports.cluster import Owner
from fluxmq.engine.ports.driver import Driver, Promise
from fluxmq.model.mqtt import ReasonCode

__all__ = ["NOBODY", "Attempt", "Session", "Takes", "fail"]

Session = tuple[bytes, bytes]  # namespace, client identifier

NOBODY = -1  # as asked_ms: not for a client. Every CONNECT is later
PERIOD_S = 0.5  # how exactly the limit of waiting is kept
RETRY_S = 0.1


class Attempt:
    """promise: for all who wait; an error may end the wait, and not the attempt. callers: asked_ms of each of them."""

    __slots__ = ("callers", "promise")

    def __init__(self, promise: Promise[Owner]) -> None:
        self.promise = promise
        self.callers: list[int] = []


class Takes:
    """begin: called with (session, clean start, what is new in `attempts`). It ends the promise, and takes the attempt
    out."""

    def __init__(self, membership: Membership, driver: Driver,
                 begin: Callable[[Session, bool, Attempt], Coroutine[Any, Any, None]]) -> None:
        self.attempts: dict[Session, Attempt] = {}
        self._membership = membership
        self._driver = driver
        self._begin = begin
        self._limited = False  # _keep_limit runs

    async def take(self, session: Session, clean_start: bool, asked_ms: int) -> Owner:
        """What the attempt returns, or the one that is under way. asked_ms: when the CONNECT came (Hub.mono_ms), or
        NOBODY. Raises ProtocolError."""
        self._refuse_without_quorum()
        attempt = self.attempts.get(session)
        if attempt is None:
            attempt = self.attempts[session] = Attempt(self._driver.promise())
            self._driver.start(self._begin(session, clean_start, attempt))
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
        while self.attempts and self._membership.state is State.MEMBER:
            await self._driver.sleep(PERIOD_S)
            try:
                self._refuse_without_quorum()
            except ProtocolError as error:
                for attempt in self.attempts.values():
                    fail(attempt.promise, error)
        self._limited = False


def fail(promise: Promise[Owner], why: ProtocolError | str) -> None:
    """Ends a wait, unless it has ended."""
    if not promise.done():
        promise.set_exception(why if isinstance(why, ProtocolError)
                              else ProtocolError(ReasonCode.SERVER_UNAVAILABLE, why))
        promise.exception()                 # whoever waited may have gone
