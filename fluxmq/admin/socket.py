"""The admin API on a unix socket of this machine: for `fluxmq queue …`, `client …`, `namespace …`, `cluster …`,
`exchange …`, `binding …`, `ban …`, `user …` of a cluster, and for curl --unix-socket.

Who may open the file may do everything, so its mode is 0600: the broker's own user, and root. It is set before clients
can connect. The file of a dead broker is replaced, that of a running one never. The path of a unix
socket is short (sun_path, 108 bytes with its end): a longer one is refused, not cut.
"""
import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fluxmq.admin.http import READ_BYTES, Bounds, HttpServer
from fluxmq.admin.routes import AdminRoutes
from fluxmq.engine.ports.accounts import AccountsPort
from fluxmq.engine.ports.clients import ClientsPort
from fluxmq.engine.ports.exchanges import ExchangesPort
from fluxmq.engine.ports.guard import BansPort
from fluxmq.engine.ports.namespaces import NamespacesPort
from fluxmq.engine.ports.operations import Operations
from fluxmq.engine.ports.overview import ClusterOverview
from fluxmq.engine.ports.queues import QueuesPort
from fluxmq.engine.ports.record import RecordPort
from fluxmq.model import limits

__all__ = ["SOCKET_PATH_BYTES_MAX", "AdminSocket"]

SOCKET_PATH_BYTES_MAX = 107
_BACKLOG = 64


class AdminSocket(HttpServer):
    """Listens from `start` to `stop`, on the running loop. start() raises OSError with a reason that people read."""

    def __init__(self, path: Path, queues: QueuesPort, recordings: RecordPort | None = None, *,
                 clients: Sequence[ClientsPort] = (), bans: BansPort | None = None,
                 accounts: AccountsPort | None = None,
                 namespaces: NamespacesPort | None = None, exchanges: ExchangesPort | None = None,
                 cluster: ClusterOverview | None = None,
                 operations: Operations | None = None,
                 on_log: Callable[[str, str, str, dict[str, Any]], None] | None = None,
                 request_seconds_max: float = limits.HTTP_REQUEST_SECONDS_MAX,
                 handle_seconds_max: float = limits.ADMIN_HANDLE_SECONDS_MAX,
                 idle_seconds_max: float = limits.HTTP_IDLE_SECONDS_MAX,
                 connections_max: int = limits.ADMIN_CONNECTIONS_MAX,
                 body_bytes_max: int = limits.ADMIN_BODY_BYTES_MAX) -> None:
        # half of the connections stay for questions, however many watch a tail
        super().__init__(AdminRoutes(queues, recordings, clients=clients, bans=bans, accounts=accounts,
                                     namespaces=namespaces, exchanges=exchanges, cluster=cluster,
                                     operations=operations, on_log=on_log), Bounds(
            connections_max=connections_max, streams_max=connections_max // 2, body_bytes_max=body_bytes_max,
            takes_bodies=True, request_seconds_max=request_seconds_max, handle_seconds_max=handle_seconds_max,
            idle_seconds_max=idle_seconds_max))
        self.path = path
        self._inode: tuple[int, int] | None = None

    async def _listen(self) -> asyncio.Server:
        length = len(os.fsencode(self.path))
        if length > SOCKET_PATH_BYTES_MAX:
            raise OSError(errno.ENAMETOOLONG, f"the path has {length} bytes, a unix socket's at most "
                                              f"{SOCKET_PATH_BYTES_MAX}; give server.admin_socket a shorter one")
        self._remove_stale()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(self.path))
            # no client can connect before the socket listens, so the mode applies to all connections
            self.path.chmod(0o600)
            status = self.path.stat()
            self._inode = (status.st_dev, status.st_ino)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            return await asyncio.start_unix_server(self._accepted, sock=listener, limit=READ_BYTES, backlog=_BACKLOG)
        except BaseException:
            listener.close()
            self._remove_own()
            raise

    async def stop(self) -> None:
        """As for every server; also removes the file, if it is still this server's."""
        self._remove_own()
        await super().stop()

    def _remove_stale(self) -> None:
        """Removes the file at the path if it is a socket without a listener."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise OSError(errno.EEXIST, "the file is not a socket; it is left alone")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # not blocking: a running broker with a full backlog answers EAGAIN, and counts as running
            probe.setblocking(False)
            try:
                probe.connect(os.fspath(self.path))
            except ConnectionRefusedError:
                self.path.unlink(missing_ok=True)
                return
            except FileNotFoundError:
                return
            except BlockingIOError:
                pass
        raise OSError(errno.EADDRINUSE, "a running broker listens there")

    def _remove_own(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            with contextlib.suppress(OSError):
                status = self.path.lstat()
                if (status.st_dev, status.st_ino) == inode:
                    self.path.unlink()
