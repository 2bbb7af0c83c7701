"""A cluster whose etcd members reach each other, and the nodes the members of others, through proxies, one for a pair.

    with PartedCluster(tmp_path, 3) as cluster:
        cluster.cut_off(2)                      # n2 and its member reach nobody, and nobody reaches them
        cluster.member_link(0, 1).stall()       # what n0's member has opened to n1's
        cluster.silence(0, 1)                   # what n0's member sends to n1's is not carried; answers are
        cluster.resume_links()

All members dial a member at one address, which etcd keeps. So each has a Gate there, which asks the kernel whose
connection it is and hands it to the proxy of this pair. Needs no root.
"""
from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from kit.faulty import FaultyCluster
from kit.proxy import FROM_TARGET, TO_TARGET, Proxy

__all__ = ["Gate", "PartedCluster"]

# sock_diag(7): a request for one socket of TCP, and where its answer has the inode.
SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
REQUEST = struct.Struct("=IHHII BBBBI")
SOCKET_ID = struct.Struct("!HH 4s12x 4s12x 4x8s")
INODE_AT = 84
LOOPBACK = socket.inet_aton("127.0.0.1")


class Gate:
    """A listener before a target on loopback. source_of: whose connection one is, by its descriptor's inode; links: the
    proxy of each source; other: that of all others."""

    def __init__(self, links: dict[int, Proxy], other: Proxy, source_of: Callable[[int], int | None]) -> None:
        self._links, self._other, self._source_of = links, other, source_of
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, (_, port) = self._listener.accept()
            except OSError:
                return
            inode = self._inode(port)
            source = self._source_of(inode) if inode else None
            (self._other if source is None else self._links.get(source, self._other)).adopt(client)

    def _inode(self, port: int) -> int:
        """Of the other end of a connection, which has this port; 0: it is gone."""
        about = SOCKET_ID.pack(port, self.port, LOOPBACK, LOOPBACK, b"\xff" * 8)
        head = REQUEST.pack(REQUEST.size + len(about), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0,
                            socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as kernel:
            kernel.send(head + about)
            answer = kernel.recv(4096)
        if struct.unpack_from("=H", answer, 4)[0] != SOCK_DIAG_BY_FAMILY:
            return 0
        return int(struct.unpack_from("=I", answer, INODE_AT)[0])


class PartedCluster(FaultyCluster):
    """As FaultyCluster, with links between members of etcd, and from nodes to the members of others."""

    def __init__(self, directory: Path, count: int, *, ttl_s: int = 4, settings: dict[str, object] | None = None,
                 ) -> None:
        super().__init__(directory, count, ttl_s=ttl_s, settings=settings)
        self._member_links: dict[tuple[int, int], Proxy] = {}
        self._client_links: dict[tuple[int, int], Proxy] = {}
        self._gates: list[Gate] = []
        self._others: list[Proxy] = []
        self._pids: dict[int, int] = {}     # of members and brokers -> node
        members = []
        for number, name in enumerate(self.names):
            peer = self._gate(number, self._peers[name], self._member_links)
            client = self._gate(number, self._etcd_ports[name], self._client_links)
            members.append(f"{name}=http://127.0.0.1:{peer}")
            self[number].settings["cluster.etcd.binary"] = self._told(name, client)
        for broker in self.brokers:
            broker.settings["cluster.etcd.initial_cluster"] = ",".join(members)

    def _gate(self, number: int, port: int, links: dict[tuple[int, int], Proxy]) -> int:
        for source in range(len(self.names)):
            if source != number:
                links[source, number] = Proxy(("127.0.0.1", port))
        self._others.append(Proxy(("127.0.0.1", port)))
        here = {source: link for (source, target), link in links.items() if target == number}
        self._gates.append(Gate(here, self._others[-1], self._owner))
        return self._gates[-1].port

    def _told(self, name: str, port: int) -> str:
        """A program that becomes etcd, and tells the others this port for clients. (What comes last counts.)"""
        program = Path(self._etcd_of(name))
        program.write_text(program.read_text().replace(
            '"$@"', f'"$@" --advertise-client-urls=http://127.0.0.1:{port}'))
        return str(program)

    def _owner(self, inode: int) -> int | None:
        """The node whose broker or member has a socket."""
        wanted = f"socket:[{inode}]"
        for again in (False, True):
            if again:
                self._pids = {pid: number for number, broker in enumerate(self.brokers)
                              for pid in (self.member_pid(number), broker.process.pid if broker.process else 0) if pid}
            for pid, number in self._pids.items():
                with contextlib.suppress(OSError):
                    for entry in os.scandir(f"/proc/{pid}/fd"):
                        with contextlib.suppress(OSError):
                            if os.readlink(entry.path) == wanted:
                                return number
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with contextlib.ExitStack() as ends:
            for link in (*self._member_links.values(), *self._client_links.values(), *self._others):
                ends.callback(link.close)
            for gate in self._gates:
                ends.callback(gate.close)
            ends.callback(super().__exit__, kind, error, trace)

    def member_link(self, source: int, target: int) -> Proxy:
        """What the member of a node has opened to another."""
        return self._member_links[source, target]

    def client_link(self, source: int, target: int) -> Proxy:
        """What a node has opened to the member of another."""
        return self._client_links[source, target]

    def silence(self, source: int, target: int) -> None:
        """Nothing that a member sends to another is carried. A member opens streams to those whose messages it reads,
        and other connections to send."""
        self.member_link(target, source).stall(FROM_TARGET)
        self.member_link(source, target).stall(TO_TARGET)

    def cut_off(self, number: int) -> None:
        """Nothing is carried between a node with its member and the others."""
        for links in (self._links, self._member_links, self._client_links):
            for ends, link in links.items():
                if number in ends:
                    link.stall()

    def resume_links(self) -> None:
        super().resume_links()
        for link in (*self._member_links.values(), *self._client_links.values()):
            link.resume()
