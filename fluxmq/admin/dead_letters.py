"""Replays dead letters in steps, each a batch of its own; between them the node does its other work."""
import asyncio

from fluxmq.admin.bodies import Replay
from fluxmq.engine.ports.queues import QueueRefused, QueuesPort
from fluxmq.model import limits

__all__ = ["replay_dead_letters"]

_STEP = 100
_LOADING_SECONDS = 0.01  # delay before the disk is asked again for a message


async def replay_dead_letters(queues: QueuesPort, name: str, replay: Replay, partition: int | None = None) -> int:
    """partition: of the dead-letter queue. Returns how many were replayed. Raises QueueRefused if the first is refused;
    if a later one is, replaying ends there."""
    max_count = limits.ADMIN_REPLAY_MAX
    counts = [replay.count] if replay.messages is None else [replay.count, len(replay.messages)]
    if not all(1 <= count <= max_count for count in counts):
        raise QueueRefused("invalid", f"1 to {max_count} dead letters at once", "")
    if replay.messages is None:
        return await _replay_oldest(queues, name, replay.count, partition)
    replayed = 0
    for at in range(0, len(replay.messages), _STEP):
        some = replay.messages[at:at + _STEP]
        more = True
        while more:
            try:
                step = queues.dead_replay(name, some, len(some), partition)
            except QueueRefused:
                if not replayed:
                    raise
                return replayed
            replayed, more = replayed + step.moved, step.more
            await asyncio.sleep(_LOADING_SECONDS if more and not step.moved else 0)
    return replayed


async def _replay_oldest(queues: QueuesPort, name: str, count: int, partition: int | None) -> int:
    left = count
    while left:
        requested = min(left, _STEP)
        try:
            step = queues.dead_replay(name, None, requested, partition)
        except QueueRefused:
            if left == count:
                raise
            break
        left -= step.moved
        if step.moved < requested and not step.more:
            break
        await asyncio.sleep(0 if step.moved else _LOADING_SECONDS)
    return count - left
