"""LocalMember: what this node's member of etcd knows of a leader.

While it knows one, Status tells so, cheaply. Otherwise its metrics do, on a Unix socket in its data directory: etcd
serves them also before it has found a leader for the first time, when it does not answer clients yet, and only they
tell how often it has come to know one. So a leader between two looks does not escape.

What a life that has ended saw, its log tells ("elected leader", "changed leader"), which is read to its end. So does it
of one that has just begun and does not tell its metrics yet: a member that cannot start is started again and again, and
each time reads its data first. The log is believed if it has agreed with the metrics once.
"""
from __future__ import annotations

import asyncio
import os
import re

from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.errors import Cause, EtcdError
from fluxmq.cluster.etcd.process import METRICS_SOCKET, EtcdMember
from fluxmq.cluster.ports import MemberLook, StoreError

__all__ = ["EtcdLocalMember", "read_metrics"]

LIMIT_S = 0.25
PAGE_BYTES_MAX = 4 << 20
_FIELDS = {name: re.compile(rb"^" + pattern, re.MULTILINE) for name, pattern in {
    "leader": rb"etcd_server_has_leader (\S+)$",
    "seen": rb"etcd_server_leader_changes_seen_total (\S+)$",
    "id": rb'etcd_server_id\{server_id="([0-9a-f]+)"\} 1$'}.items()}


class EtcdLocalMember:
    """A LocalMember. endpoint: host:port where the member serves clients."""

    def __init__(self, member: EtcdMember, store: EtcdStore, endpoint: str) -> None:
        self._member = member
        self._store = store
        self._endpoint = endpoint
        self._led = False  # it knew a leader at the last look
        self._compared = 0  # the life in which log and metrics were compared
        self._log_agrees = False
        self._number = 0  # of the member, as its metrics say

    @property
    def life(self) -> int:
        """See the port; so are the next three."""
        return self._member.starts

    @property
    def running(self) -> bool:
        return bool(self._member.pid)

    @property
    def ended_with(self) -> int | None:
        return self._member.leaders_seen if self._log_agrees else None

    async def look(self) -> MemberLook:
        if self._led and self._compared == self.life:
            try:
                status = await self._store.status(self._endpoint, limit_s=LIMIT_S)
                if status.leader:
                    return MemberLook(status.member, True, None)
            except StoreError:
                pass                        # the metrics may tell
        try:
            page = await self._page()
        except EtcdError:
            if self._begins():
                return MemberLook(self._number, False, 0)
            raise
        look = read_metrics(page)
        self._led, self._number = look.leader, look.member
        if look.leaders_seen and self._compared != self.life:
            self._compared = self.life
            self._log_agrees = self._member.leaders_seen >= look.leaders_seen
        return look

    def _begins(self) -> bool:
        """Whether it has known no leader in this life by now, for certain, as its log tells."""
        if not self.running or not self._log_agrees or self._compared == self.life:
            return False
        self._member.drain()
        return self._member.leaders_seen == 0

    async def _page(self) -> bytes:
        try:
            # The path of a socket has at most 107 bytes.
            directory = os.open(self._member.options.data_dir, os.O_PATH | os.O_DIRECTORY)
            try:
                async with asyncio.timeout(LIMIT_S):
                    reader, writer = await asyncio.open_unix_connection(
                        f"/proc/self/fd/{directory}/{METRICS_SOCKET}", limit=PAGE_BYTES_MAX)
                    try:
                        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                        return await reader.read()
                    finally:
                        writer.transport.abort()
            finally:
                os.close(directory)
        except (OSError, TimeoutError) as error:
            raise EtcdError(Cause.LATE, self._endpoint,
                            f"the etcd member of this node does not tell its metrics: {error!r}") from None


def read_metrics(page: bytes) -> MemberLook:
    """What the page at /metrics says. Raises StoreError if it lacks something."""
    found = {name: pattern.search(page) for name, pattern in _FIELDS.items()}
    if None in found.values():
        missing = ", ".join(name for name, match in found.items() if match is None)
        raise EtcdError(Cause.REFUSED, "", f"the metrics of the etcd member lack what is needed: {missing}")
    leader, seen, number = (match[1] for match in found.values() if match is not None)
    led = float(leader) > 0
    # Each number of a page is read by itself: the leader may stand there when it was not counted yet.
    return MemberLook(int(number, 16), led, max(int(float(seen)), led))
