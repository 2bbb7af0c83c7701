"""What the deletion of a session has left in the store, because its node died meanwhile, is deleted by the leader."""
from __future__ import annotations

import contextlib

from fluxmq.cluster.feed import Feed
from fluxmq.cluster.kept import KeptSessions
from fluxmq.cluster.keys import DATA, OWNER, SUBSCRIPTION, client_key, parse
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.owners import Owners
from fluxmq.cluster.ports import Change, Compare, StoreError
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.driver import Driver

__all__ = ["Sweep"]

PERIOD_S = 60.0
SLICE = 2000  # keys looked at in one turn


class Sweep:
    """Deletes subscriptions of sessions that are not in the store, while this node is the leader."""

    def __init__(self, feed: Feed, owners: Owners, sessions: KeptSessions, writer: Writer, driver: Driver,
                 membership: Membership) -> None:
        self._feed = feed
        self._owners = owners
        self._sessions = sessions
        self._writer = writer
        self._driver = driver
        self._membership = membership
        self._closed = False

    def close(self) -> None:
        """Nothing is deleted any more."""
        self._closed = True

    async def keep(self) -> None:
        """Until close()."""
        while not self._closed:
            await self._driver.sleep(PERIOD_S)
            if self._membership.is_leader and not self._closed:
                with contextlib.suppress(StoreError):       # the next time
                    await self._once()

    async def _once(self) -> None:
        for at, (key, revision) in enumerate(self._feed.revisions(), 1):
            if at % SLICE == 0:
                await self._driver.sleep(0)
            name = parse(key)
            if name is None or name.kind != SUBSCRIPTION:
                continue
            session = name.namespace, name.name
            if not self._sessions.revision(session) and session not in self._owners.entries:
                await self._writer.change(
                    [Compare(client_key(DATA, *session), 0), Compare(client_key(OWNER, *session), 0),
                     Compare(key, revision)], [Change(key, None)])
