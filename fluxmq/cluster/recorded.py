"""When what this node has recorded is on its disk: what a session or a queue waits for before it changes nodes."""
from __future__ import annotations

from functools import partial

from fluxmq._core.hub.hub import Hub
from fluxmq.engine.ports.driver import Driver, Promise, fulfil

__all__ = ["recorded"]


async def recorded(driver: Driver, hub: Hub) -> None:
    """Returns when everything that was recorded on this node so far is on its disk. It does not wait for other nodes:
    what they confirm or refuse is not of the session or queue that changes nodes."""
    promise: Promise[None] = driver.promise()
    hub.when_gathered(partial(fulfil, promise, None), hub.commits.local)
    hub.wake_up()
    await promise
