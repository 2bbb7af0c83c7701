"""The port for small documents that operators change and every node of a cluster knows: users, permissions.
fluxmq/cluster/documents.py implements it; the documents themselves are read and written in fluxmq/app/accounts.py.
"""
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

__all__ = ["Document", "Documents", "DocumentsChanged", "Edit", "Edited", "Kind"]


class Kind(Enum):
    """What a document is about."""

    USER = "users"
    DECOY = "user-decoy"  # makes the salts of users that do not exist, see access/users.py
    PERMISSION = "permissions"


class Document(NamedTuple):
    """The name of a document. namespace: "/" if it is of none. name: "" if there is only one of its kind."""

    kind: Kind
    namespace: str
    name: str


class Edited(NamedTuple):
    """What an edit has done. before: of each document, None where there was none. behind: why it is not certain that
    every node knows of it; "" if all do."""

    before: Mapping[Document, bytes | None]
    behind: str


# Called with the documents that have changed, whenever something has; the first time when all are known.
DocumentsChanged = Callable[[Sequence[Document]], None]
# From what a document is, None for none, to what it shall be. Called again if somebody else was first.
Edit = Callable[[bytes | None], bytes | None]


class Documents(Protocol):
    """The documents of a cluster, as this node knows them."""

    def attach(self, changed: DocumentsChanged) -> None:
        """Before any is known."""

    def get(self, document: Document) -> bytes | None:
        """What it is; None: there is none."""

    def names(self, kind: Kind) -> Sequence[Document]:
        """All of a kind."""

    async def edit(self, edits: Mapping[Document, Edit]) -> Edited:
        """Changes documents, each by itself, and returns when every node knows. Raises QueueRefused (unavailable) if
        the cluster decides nothing now; some may have been changed even so."""
