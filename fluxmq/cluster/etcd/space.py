"""The quota of this node's etcd member: what happens when its file has reached it.

    alarm NOSPACE ──► compacted, defragmented ──the file is well below it──► disarmed
                  ▲                           └─it is not ───┐
                  └── something was deleted, or a restart has raised the quota

etcd counts the size of the file, which does not shrink when history is compacted, and no member takes a value before
the alarm is disarmed; deletions it takes. What is in use of the file is known exactly when it was defragmented, and
before as an upper bound, which does not fall with a compaction as long as nothing is written. Each node looks after its
own member, whose alarms the others cannot judge: defragmenting is a request to that member alone, which may listen for
clients on its own machine only.
"""
from __future__ import annotations

import contextlib
import time

from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.ports import Compacted, Log

__all__ = ["Space"]

# Between two attempts that are in vain. The member answers nobody while it is defragmented: so that is at most a tenth
# of the time.
PAUSE_S = 5.0
PAUSE_TIMES = 10
ROOM = 0.9          # of the quota: with more than that in use the alarm would come back at once
ALARM = "NOSPACE"


class Space:
    """own: host:port where this node's member listens for clients. quota_bytes: as it was started with."""

    def __init__(self, store: EtcdStore, own: str, quota_bytes: int, log: Log) -> None:
        self.used_up = False        # as of the last look
        self._store = store
        self._own = own
        self._enough = int(quota_bytes * ROOM)
        self._log = log
        self._tried = 0             # the revision at which it was compacted in vain
        self._again_at = 0.0

    async def look(self) -> None:
        """Makes space if the member has raised the alarm. Raises StoreError."""
        store = self._store
        said = await store.status(self._own)
        alarms = [alarm for alarm in await store.alarms() if alarm == (said.member, ALARM)] if any(
            ALARM in error for error in said.errors) else []
        if alarms and not self.used_up:
            self._log("error", "", (
                "the quota of etcd is used up: clients without a session are refused, and retained messages wait on "
                "their nodes. The nodes compact and defragment; if \"etcd has space again\" does not follow within a "
                "minute, raise cluster.etcd.quota_bytes and restart, one node after the other"),
                {"bytes": said.db_size, "in_use": said.db_size_in_use})
        self.used_up = bool(alarms)
        if not alarms:
            return
        if said.db_size_in_use > self._enough and (
                said.revision == self._tried or time.monotonic() < self._again_at):
            return
        self._tried, self._again_at = said.revision, time.monotonic() + PAUSE_S
        await self._compact(said.revision)
        began = time.monotonic()
        try:
            await store.defragment(self._own)
        finally:
            took = time.monotonic() - began
            self._again_at = max(self._again_at, began + took + took * PAUSE_TIMES)
        if (await store.status(self._own)).db_size > self._enough:
            return
        for alarm in alarms:
            await store.disarm(alarm)
        self.used_up, self._tried = False, 0
        self._log("info", "", "etcd has space again: it was compacted and defragmented", {"was_bytes": said.db_size})

    async def _compact(self, revision: int) -> None:
        with contextlib.suppress(Compacted):        # another node was faster
            await self._store.compact(revision, physical=True)
