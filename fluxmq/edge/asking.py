"""Permissions that an external authority decides asynchronously (decision 0008).

    packet ─► decide() ─► the Authority knows          1 or 0, at once
                     └─► it does not know (None)       the connection is paused, the packet stays in front of it
                            └─► all answers are there, or the time is up: verdicts on `connection.verdicts`, the
                                connection goes on, the same packet comes again, and decide() finds them

All requests use this mechanism: publishes of the hot path, methods and packets of the cold half, wills. A CONNECT whose
session another node may own waits in the same way, limited only by the connection's time-out; so does a packet that
changes a definition of which all nodes of a cluster must know (Deferred), as long as that takes. Verdicts for a packet
are dropped when it has been handled; only the hot path caches decisions, per topic.
"""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol

from fluxmq._core.errors import ProtocolError
from fluxmq._core.net.transport import Transport
from fluxmq.engine.ports.access import Authority
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.mqtt import ReasonCode
from fluxmq.model.virtual_hosts import virtual_host_topic

__all__ = ["ASKED_AT_ONCE_MAX", "NO_ANSWER", "PUBLISH", "SUBSCRIBE", "Asking", "Undecided"]

PUBLISH, SUBSCRIBE, CLAIM, CHANGE = "publish", "subscribe", "claim", "change"
NO_ANSWER = -1  # a refusal that must not be cached: there was no answer
ASKED_AT_ONCE_MAX = 256  # questions about one packet under way at the same time; further ones follow later

# PUBLISH or SUBSCRIBE, the topic or filter, and the namespace that it is in; CLAIM or CHANGE, the client identifier,
# nothing.
Question = tuple[str, str, str]
ROOT = "/"


class Undecided(Exception):
    """Raised by a check of the cold half before it has changed anything: the question is under way."""


class Asker(Protocol):
    """A client of any protocol."""

    identity: str | None

    @property
    def client_id(self) -> str:
        """Its name, MQTT 5.0 section 3.1.3.1."""

    @property
    def connection(self) -> Transport:
        """Its connection."""

    @property
    def place_name(self) -> str:
        """The namespace of the client."""


class Verdicts:
    """The answers about the packet that a connection waits with, under one generation of the permissions; under
    whatever generation, what came of the change of a definition (Deferred.result), or why it was not made."""

    __slots__ = ("answers", "generation", "refused", "result")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.answers: dict[Question, int] = {}
        self.result: Any = None
        self.refused: QueueRefused | None = None


class _Pending:
    """What one connection waits for. then: called when every answer is there, instead of handling a packet again.
    result, refused: as in Verdicts."""

    __slots__ = ("answers", "client_id", "connection", "generation", "identity", "refused", "result", "tasks", "then",
                 "timer")

    def __init__(self, connection: Transport, identity: str | None, client_id: str, generation: int) -> None:
        self.connection = connection
        self.identity = identity
        self.client_id = client_id
        self.generation = generation
        self.tasks: dict[Question, asyncio.Future[Any]] = {}  # questions without an answer yet
        self.answers: dict[Question, int] = {}
        self.result: Any = None
        self.refused: QueueRefused | None = None
        self.then: Callable[[], None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Asking:
    """Machine. authority: answers the questions. limit_s: time allowed for an answer (auth.ask_timeout). on_log: called
    with (level, cause, text, fields). start: starts the claim of a session."""

    def __init__(self, authority: Authority, on_log: Callable[[str, str, str, dict[str, Any]], None],
                 limit_s: float = 5.0,
                 start: Callable[[Coroutine[Any, Any, object]], asyncio.Future[Any]] = asyncio.ensure_future) -> None:
        self.authority = authority
        self.start = start
        self.limit_s = limit_s
        self.on_log = on_log
        self.answers = {"allowed": 0, "refused": 0, "late": 0, "failed": 0}  # labels of fluxmq_decisions_total
        self._pending: dict[Transport, _Pending] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """Connections that wait for an answer."""
        return len(self._pending)

    def decide(self, client: Asker, action: str, topic: str, namespace: str | None = None) -> int | None:
        """Returns 1, 0 or NO_ANSWER. None: the question is under way, and the connection is paused until the answer is
        there. namespace: None means the client's."""
        authority, connection = self.authority, client.connection
        question = action, topic, client.place_name if namespace is None else namespace
        verdicts: Verdicts | None = connection.verdicts
        if verdicts is not None and verdicts.generation == authority.generation:
            found = verdicts.answers.get(question)
            if found is not None:
                return found
        known = (authority.may_publish if action == PUBLISH else authority.may_subscribe)(
            client.identity, client.client_id, *question[1:])
        if known is None:
            if connection.ended:
                return NO_ANSWER
            self._ask(client, question)
        return known

    def may_enter(self, client: Asker, namespace: str) -> bool:
        """Whether this client may use a namespace: it may if it may publish or subscribe to `$vhost/<namespace>`. A
        rule for `$vhost/<namespace>/#`, or one with that `namespace`, permits that. All clients may use "/". Raises
        Undecided. Each operation in the namespace is checked separately."""
        if namespace == ROOT or self.authority.open_publish or self.authority.open_subscribe:
            return True
        topic = virtual_host_topic(namespace)
        for action in (PUBLISH, SUBSCRIBE):
            decided = self.decide(client, action, topic, ROOT)
            if decided is None:
                raise Undecided
            if decided > 0:
                return True
        return False

    def decide_filters(self, client: Asker, filters: Iterable[str]) -> dict[str, int] | None:
        """Returns the decision for each filter, as `decide` does. None: some questions are under way."""
        decided: dict[str, int] = {}
        asked = 0
        for filter_ in filters:
            if filter_ in decided:
                continue
            found = self.decide(client, SUBSCRIBE, filter_)
            if found is not None:
                decided[filter_] = found
                continue
            asked += 1
            if asked == ASKED_AT_ONCE_MAX:
                break
        return None if asked else decided

    def claim(self, connection: Transport, client_id: str, taking: Coroutine[Any, Any, object]) -> None:
        """Waits while `taking` claims a session for a client that connects. When the claim has succeeded, the function
        given to `then` is called; otherwise the connection is refused."""
        pending = self._wait(connection, None, client_id, None)
        task = pending.tasks[CLAIM, client_id, ""] = self.start(taking)
        task.add_done_callback(partial(self._claimed, pending))

    def change(self, client: Asker, deferred: Deferred) -> QueueRefused | None:
        """Waits while a definition is changed for the packet in front, which is handled again when that is done.
        Returns why it could not be changed, when the packet has come again because of that; it does not wait then."""
        verdicts: Verdicts | None = client.connection.verdicts
        if verdicts is not None and verdicts.refused is not None:
            return verdicts.refused
        pending = self._wait(client.connection, client.identity, client.client_id, None)
        pending.result = deferred.result
        task = pending.tasks[CHANGE, client.client_id, ""] = self.start(deferred.change())
        task.add_done_callback(partial(self._changed, pending))
        return None

    def wait(self, client: Asker, then: Callable[[], None]) -> Callable[[], None]:
        """Waits until what is returned is called, and calls then() before the next packet is handled; not if the
        connection has ended."""
        pending = self._wait(client.connection, client.identity, client.client_id, None)
        pending.then = then

        def done() -> None:
            if self._pending.get(pending.connection) is pending:
                self._finish(pending)

        return done

    @staticmethod
    def result_of(connection: Transport) -> Any:
        """Deferred.result of the change that was made for the packet in front; None: there was none."""
        verdicts: Verdicts | None = connection.verdicts
        return None if verdicts is None else verdicts.result

    def then(self, connection: Transport, what: Callable[[], None]) -> None:
        """Calls `what` when the answers for this connection are there, before its next packet is handled."""
        self._pending[connection].then = what

    def forget(self, connection: Transport) -> None:
        """Called when the connection has ended: its answers are not needed any more."""
        pending = self._pending.pop(connection, None)
        if pending is not None:
            self._end(pending)

    async def decide_alone(self, identity: str | None, client_id: str, filter_: str, namespace: str) -> bool:
        """Whether an existing subscription is still allowed; no connection waits for this."""
        question = SUBSCRIBE, filter_, namespace
        try:
            async with asyncio.timeout(self.limit_s):
                allowed = await self.authority.decide_subscribe(identity, client_id, filter_, namespace) is True
        except TimeoutError:
            self.answers["late"] += 1
            self._log_refusal(identity, client_id, question, "late", f"did not answer within {self.limit_s:g} s")
            return False
        except Exception as error:
            self.answers["failed"] += 1
            self._log_refusal(identity, client_id, question, "failed", f"could not decide ({error!r})")
            return False
        self.answers["allowed" if allowed else "refused"] += 1
        return allowed

    # ------------------------------------------------------------------ questions under way

    def _ask(self, client: Asker, question: Question) -> None:
        connection, identity, client_id = client.connection, client.identity, client.client_id
        loop = self._loop = self._loop or asyncio.get_running_loop()
        pending = self._pending.get(connection) or self._wait(connection, identity, client_id, self.limit_s)
        if question in pending.tasks:
            return
        decide = self.authority.decide_publish if question[0] == PUBLISH else self.authority.decide_subscribe
        answer: Coroutine[Any, Any, bool] = decide(identity, client_id, *question[1:])
        task = pending.tasks[question] = loop.create_task(answer)
        task.add_done_callback(partial(self._answered, pending, question))

    def _wait(self, connection: Transport, identity: str | None, client_id: str, limit_s: float | None) -> _Pending:
        pending = self._pending[connection] = _Pending(connection, identity, client_id, self.authority.generation)
        if limit_s is not None:
            pending.timer = asyncio.get_running_loop().call_later(limit_s, self._late, pending)
        connection.hub.awaited += 1  # the loop must take its turns, or the answer is delayed until a linger ends
        connection.ask()
        return pending

    def _claimed(self, pending: _Pending, task: asyncio.Future[object]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if pending.tasks.pop((CLAIM, pending.client_id, ""), None) is None:
            return  # the connection has ended
        connection = pending.connection
        if error is not None:
            if not isinstance(error, ProtocolError):
                self.on_log("error", "claim failed", f"a session could not be taken ({error!r})",
                            {"client_id": pending.client_id})
                error = ProtocolError(ReasonCode.SERVER_UNAVAILABLE, "the session could not be taken")
            refusal = error
            pending.then = lambda: connection.fail(refusal)
        self._finish(pending)

    def _changed(self, pending: _Pending, task: asyncio.Future[object]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if pending.tasks.pop((CHANGE, pending.client_id, ""), None) is None:
            return  # the connection has ended
        if error is not None:
            pending.result = None
            if not isinstance(error, QueueRefused):
                self.on_log("error", "change failed", f"a definition could not be changed ({error!r})",
                            {"client_id": pending.client_id})
                error = QueueRefused("unavailable", "the definition could not be changed")
            pending.refused = error
        self._finish(pending)

    def _answered(self, pending: _Pending, question: Question, task: asyncio.Task[bool]) -> None:
        error: BaseException | None = None if not task.cancelled() else asyncio.CancelledError()
        if error is None:
            error = task.exception()
        if pending.tasks.get(question) is not task:
            return  # the time limit has passed, or the connection has ended
        del pending.tasks[question]
        if error is not None:
            self.answers["failed"] += 1
            pending.answers[question] = NO_ANSWER
            self._log_refusal(pending.identity, pending.client_id, question, "failed", f"could not decide ({error!r})")
        else:
            allowed = task.result() is True
            self.answers["allowed" if allowed else "refused"] += 1
            pending.answers[question] = int(allowed)
        if not pending.tasks:
            self._finish(pending)

    def _late(self, pending: _Pending) -> None:
        """Refuses once, when the time limit has passed, everything that is still undecided."""
        late = list(pending.tasks)
        self.answers["late"] += len(late)
        for question in late:
            pending.answers[question] = NO_ANSWER
        self._log_refusal(pending.identity, pending.client_id, late[0], "late",
                          f"did not answer within {self.limit_s:g} s")
        self._finish(pending)

    def _log_refusal(self, identity: str | None, client_id: str, question: Question, cause: str, what: str) -> None:
        action, topic, namespace = question
        self.on_log("warning", f"decision {cause}", f"{self.authority.name} {what}: {action} refused",
                    {"client_id": client_id, "user": identity, "topic": topic} | (
                        {"namespace": namespace} if namespace != ROOT else {}))

    def _finish(self, pending: _Pending) -> None:
        connection = pending.connection
        del self._pending[connection]
        self._end(pending)
        # Under newer permissions it is asked again.
        if pending.generation == self.authority.generation or pending.result is not None or pending.refused is not None:
            verdicts: Verdicts | None = connection.verdicts
            if verdicts is None or verdicts.generation != pending.generation:
                verdicts = connection.verdicts = Verdicts(pending.generation)
            verdicts.answers.update(pending.answers)
            verdicts.result, verdicts.refused = pending.result, pending.refused
        if pending.then is not None:
            pending.then()
        if connection not in self._pending:
            connection.answered()

    @staticmethod
    def _end(pending: _Pending) -> None:
        pending.connection.hub.awaited -= 1
        if pending.timer is not None:
            pending.timer.cancel()
        tasks, pending.tasks = pending.tasks, {}
        for task in tasks.values():
            task.cancel()
