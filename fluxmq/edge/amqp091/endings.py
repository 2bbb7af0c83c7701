"""Answers that say that a consumer, a channel or a connection has ended: in a cluster they wait until that is so at
every node.

A client that has seen basic.cancel-ok, channel.close-ok or connection.close-ok then finds, wherever it asks, what it
would find on one node: what it had not acknowledged is ready, a queue that had only this user is gone, its name is
free, and a mandatory message to it is returned. Nothing waits when the connection breaks: nobody has been told anything
then.
"""
from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq.edge.amqp091.client import HOLD_END
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.relays import ENDING, UNKNOWN, Answer, Relays

if TYPE_CHECKING:
    from fluxmq.edge.amqp091.client import Client

__all__ = ["Endings"]

NOBODY = 0      # the identity of no queue of a cluster


class Endings:
    """Machine. start: begins a coroutine, and returns its task."""

    def __init__(self, manager: QueueManager, relays: Relays,
                 start: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        self._manager = manager
        self._relays = relays
        self._start = start

    def wait(self, client: Client, queues: Iterable[Queue], then: Callable[[], None]) -> None:
        """Calls then() when these queues know that the client has left, and are gone if they end with that. Nothing
        else of the connection is handled before; then() is not called if that has ended."""
        waiting = [queue for queue in dict.fromkeys(queues) if self._is_to_wait(queue)]
        if not waiting:
            then()
            return
        left = len(waiting)

        def done() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not client.connection.ended:
                then()          # ahead of what the client has sent meanwhile
                if not client.connection.ended:
                    client.release(HOLD_END)

        client.hold(HOLD_END)
        for queue in waiting:
            self._when_settled(queue, done)

    def _is_to_wait(self, queue: Queue) -> bool:
        if self._manager.definer is None or queue.kind == QUEUE_STREAM:
            return False
        # One that is not there has ended while its connection was taken apart; others may not have heard of it.
        return queue not in self._manager.states or queue.relay is not None or queue.ending

    def _when_settled(self, queue: Queue, done: Callable[[], None]) -> None:
        if queue.relay is None or queue not in self._manager.states:
            self.when_gone(queue, done)
            return

        def answered(answer: Answer) -> None:
            if answer.refused in (ENDING, UNKNOWN):
                self.when_gone(queue, done)
            else:       # or its node is away, and hears of it when it is back
                done()

        # Its owner gets the question behind the news that the consumer has left.
        self._relays.ask(queue, "counts", (False,), answered)

    def when_gone(self, queue: Queue, done: Callable[[], None]) -> None:
        """Calls done() when every node knows that the queue, which is about to be deleted, is gone; or that it stays,
        or when that has taken too long."""
        definer, state = self._manager.definer, self._manager.states.get(queue)
        assert definer is not None
        identity = state.id if state is not None else NOBODY
        self._start(definer.await_gone(queue.address, identity)).add_done_callback(lambda task: done())
