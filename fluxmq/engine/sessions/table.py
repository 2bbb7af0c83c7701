"""The sessions of a node by namespace and client identifier, without an address object for each: with a million of
sessions a tuple as key would be 64 MB.
"""
from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView

from fluxmq._core.pubsub.session import Session

__all__ = ["SessionTable"]

Address = tuple[bytes, bytes]  # namespace, client identifier
NOTHING: dict[bytes, Session] = {}


class _Values(ValuesView[Session]):
    def __init__(self, table: SessionTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[Session]:
        for sessions in self._table.by_namespace.values():
            yield from sessions.values()


class _Items(ItemsView[Address, Session]):
    def __init__(self, table: SessionTable) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[Address, Session]]:
        for namespace, sessions in self._table.by_namespace.items():
            for name, session in sessions.items():
                yield (namespace, name), session


class SessionTable(MutableMapping[Address, Session]):
    """A mapping from (namespace, client identifier) to Session. As with a dict, nothing may be added or removed while
    it is iterated over."""

    def __init__(self) -> None:
        self.by_namespace: dict[bytes, dict[bytes, Session]] = {}
        self._count = 0

    def __getitem__(self, address: Address) -> Session:
        return self.by_namespace[address[0]][address[1]]

    def get(self, address: Address, default: Session | None = None) -> Session | None:  # type: ignore[override]
        """As of a dict. Every CONNECT asks for a session that is usually not there: without an exception for that."""
        return self.by_namespace.get(address[0], NOTHING).get(address[1], default)

    def __setitem__(self, address: Address, session: Session) -> None:
        namespace, name = address
        sessions = self.by_namespace.get(namespace)
        if sessions is None:
            sessions = self.by_namespace[namespace] = {}
        self._count += name not in sessions
        sessions[name] = session

    def __delitem__(self, address: Address) -> None:
        namespace, name = address
        sessions = self.by_namespace[namespace]
        del sessions[name]
        self._count -= 1
        if not sessions:
            del self.by_namespace[namespace]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Address]:
        for namespace, sessions in self.by_namespace.items():
            for name in sessions:
                yield namespace, name

    def values(self) -> ValuesView[Session]:
        return _Values(self)

    def items(self) -> ItemsView[Address, Session]:
        return _Items(self)

    def of_namespace(self, namespace: bytes) -> list[Session]:
        """A copy of the list of its sessions."""
        return list(self.by_namespace.get(namespace, {}).values())
