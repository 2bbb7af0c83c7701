"""Which node is to have a session, by a hash of both (rendezvous), so that sessions are spread evenly."""
from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fluxmq.cluster.owners import Session

__all__ = ["ranked"]


def ranked(nodes: Iterable[str], session: Session) -> list[str]:
    """The nodes in the order in which they are to have a session: the same for all who ask. When a node comes or goes,
    only its own sessions have another first one."""
    def weight(node: str) -> bytes:
        return hashlib.blake2b(b"\0".join((node.encode(), *session)), digest_size=8).digest()

    return sorted(nodes, key=weight, reverse=True)
