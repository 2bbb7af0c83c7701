"""Small documents of the whole cluster (engine/ports/documents.py): each is a key of the store, and every node has all.

    edit ─► a transaction per document, which compares its revision ─► the feed of every node ─► edit returns
    the store ─► feed ─► tables; at the end of each batch whoever uses them is told what has changed

The tables change by the feed alone, also for what this node has edited.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fluxmq.cluster.keys import DOCUMENTS, Name, document_key
from fluxmq.cluster.ports import Change, Compare, Event, StoreError
from fluxmq.cluster.reaching import Reaching
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.documents import Document, DocumentsChanged, Edit, Edited, Kind
from fluxmq.engine.ports.documents import Documents as Port
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.ports.queues import QueueRefused

__all__ = ["Documents"]

LIMIT_S = 5.0  # of the transactions of an edit
_AGAIN = "repeat it when etcd answers"


class _Entry(NamedTuple):
    value: bytes
    revision: int


class Documents:
    """One per life of a node. joined: whether the feed is loaded and the other nodes are known. without_quorum: whether
    nothing can be changed now."""

    def __init__(self, writer: Writer, driver: Driver, reaching: Reaching, *, joined: Callable[[], bool],
                 without_quorum: Callable[[], bool]) -> None:
        self._writer = writer
        self._driver = driver
        self._reaching = reaching
        self._joined = joined
        self._without_quorum = without_quorum
        self._told: DocumentsChanged | None = None
        self._tables: dict[Kind, dict[Document, _Entry]] = {kind: {} for kind in Kind}
        self._changed: dict[Document, None] = {}
        self.pending = False  # see AtEnd

    def attach(self, changed: DocumentsChanged) -> None:
        """See the port."""
        self._told = changed
        self.pending = True  # of the next batch in any case

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._told = None

    def get(self, document: Document) -> bytes | None:
        """See the port."""
        entry = self._tables[document.kind].get(document)
        return None if entry is None else entry.value

    def names(self, kind: Kind) -> Sequence[Document]:
        """See the port."""
        return sorted(self._tables[kind], key=lambda document: document[1:])

    # ------------------------------------------------------------------ from the store

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a key of DOCUMENTS."""
        try:
            document = Document(Kind(name.kind), name.namespace.decode(), name.name.decode())
        except UnicodeDecodeError:
            return                          # nobody has such a name
        if event.value is None:
            self._tables[document.kind].pop(document, None)
        else:
            self._tables[document.kind][document] = _Entry(event.value, event.revision)
        self._changed[document] = None
        self.pending = True

    def on_batch(self) -> None:
        """All changes of a batch were reported; the first has everything."""
        changed, self._changed = self._changed, {}
        self.pending = False
        if self._told is not None:
            self._told(list(changed))

    # ------------------------------------------------------------------ to the store

    async def edit(self, edits: Mapping[Document, Edit]) -> Edited:
        """See the port."""
        if not self._joined():
            raise QueueRefused("unavailable", "this node has not joined its cluster", "fluxmq cluster status says why")
        if self._without_quorum():
            raise QueueRefused("unavailable", "the cluster decides nothing now: etcd has no quorum", _AGAIN)
        works = {document: self._driver.start(self._edit_one(document, edit)) for document, edit in edits.items()}
        for work in works.values():
            await self._driver.end_of(work)
        try:
            done = {document: work.result() for document, work in works.items()}
        except StoreError as error:
            raise QueueRefused("unavailable", f"the cluster cannot change this now: {error}", _AGAIN) from None
        behind = ""
        revision = max((revision for _, revision in done.values()), default=0)
        if revision:
            try:
                await self._reaching.wait(revision, LIMIT_S)
            except StoreError as error:
                behind = str(error)
        return Edited({document: before for document, (before, _) in done.items()}, behind)

    async def _edit_one(self, document: Document, edit: Edit) -> tuple[bytes | None, int]:
        """What there was, and the revision of the change; 0: nothing was changed. Raises StoreError."""
        key = document_key(document.kind.value, document.namespace.encode(), document.name.encode())
        entry = self._tables[document.kind].get(document)
        while True:
            before = None if entry is None else entry.value
            after = edit(before)
            if after == before:
                return before, 0
            result = await self._writer.change([Compare(key, 0 if entry is None else entry.revision)],
                                               [Change(key, after)], LIMIT_S)
            if result.done:
                return before, result.revision
            found = result.found[0]
            entry = None if found is None else _Entry(found.value, found.revision)


assert {kind.value for kind in Kind} == set(DOCUMENTS)

if TYPE_CHECKING:
    _port: type[Port] = Documents
