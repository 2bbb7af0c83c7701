"""Errors while messages are read back: what passes is waited for, what does not stops one queue."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fluxmq._core.errors import CorruptError, ShortageError, StorageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import pump_queues
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.reads import READ_RETRIES_S, SHORTAGE_RETRY_S, QueueReader
from fluxmq.model.mqtt import ReasonCode
from fluxmq.model.queues import QueueSpec


class Segments:
    """Answers reads with one outcome after the other, the last for ever."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes = list(outcomes)
        self.reads = 0

    def read(self, number: int, offset: int, size: int) -> Any:
        self.reads += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def offset_at_time(self, number: int, time_ms: int) -> int:
        return self.read(number, 0, 0)  # type: ignore[no-any-return]


def read(segments: Segments) -> tuple[Queue, QueueReader, list[float], list[StorageError]]:
    """Somebody wants a message that is on disk only."""
    manager = QueueManager(Hub(None), cluster=solo())
    queue = manager.declare(QueueSpec(name="q"))[0]
    queue.logs[0].append_message(b"t", b"x")
    stopped: list[StorageError] = []
    pauses: list[float] = []

    class Driver(LoopDriver):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)

    reader = QueueReader(manager, segments, 0, stopped.append, Driver())  # type: ignore[arg-type]
    manager.hub.awaited = 1
    asyncio.run(reader._read(queue, queue.logs[0], 0))
    return queue, reader, pauses, stopped


@pytest.mark.parametrize("times", [1, len(READ_RETRIES_S)])
def test_an_error_that_passes_is_waited_for(times: int) -> None:
    queue, _, pauses, stopped = read(Segments(*[StorageError("EIO")] * times, (0, 0, [])))
    assert (queue.damage, stopped, pauses) == (None, [], list(READ_RETRIES_S[:times]))


def test_a_shortage_is_no_damage() -> None:
    queue, _, pauses, stopped = read(Segments(*[ShortageError("EMFILE")] * 10, (0, 0, [])))
    assert (queue.damage, stopped, pauses) == (None, [], [SHORTAGE_RETRY_S] * 10)


@pytest.mark.parametrize(("error", "reads"), [(StorageError("EIO"), 1 + len(READ_RETRIES_S)), (CorruptError("bad"), 1)])
def test_one_that_does_not_stops_the_queue(error: StorageError, reads: int) -> None:
    segments = Segments(error)
    queue, reader, _, stopped = read(segments)
    assert (queue.damage, stopped, segments.reads) == (str(error), [error], reads)
    manager = reader.manager
    other = manager.declare(QueueSpec(name="other"))[0]
    pump_queues(manager.hub)
    for refused, reason in ((queue, ReasonCode.UNSPECIFIED_ERROR), (other, 0)):
        assert refused.publish(b"$queue/x", b"", b"", 1, 0) == reason
    with pytest.raises(QueueRefused, match="q is stopped"):
        reader.read_for(queue)
    manager.delete((b"/", b"q"))
    assert not [one for one in manager.states if one.damage is not None]


def test_a_position_in_time_stops_it_too() -> None:
    queue, reader, _, stopped = read(Segments((0, 0, []), CorruptError("bad")))
    log = queue.logs[0]
    log.exported()
    assert not stopped
    if log.first < log.flushed:
        with pytest.raises(QueueRefused, match="q is stopped"):
            reader.offset_at_time(log, 5)
        assert queue.damage == "bad"
