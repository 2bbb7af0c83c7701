"""The wills that the store has, by session and by the life of the node whose client's they are."""
from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from fluxmq.cluster.keys import Name
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.owners import Session
from fluxmq.cluster.ports import Event, Item, Log
from fluxmq.engine.sessions.state import Will
from fluxmq.model.malformed import MALFORMED

__all__ = ["KeptWill", "Life", "StoredWill", "WillTable", "encode"]

Life = tuple[str, int]  # a node and its epoch


class StoredWill(msgspec.Struct, array_like=True, frozen=True):
    """A will in the store. node, life: of whose client, and that node's epoch. owner: the epoch of the session's owner.
    expiry_s: of the session. publisher, publisher_life: the node that publishes it, when its own has ended; "": nobody
    does."""

    node: str
    life: int
    owner: int
    will: Will
    expiry_s: int
    publisher: str = ""
    publisher_life: int = 0


_decode = msgspec.msgpack.Decoder(StoredWill).decode
encode = msgspec.msgpack.encode


class KeptWill(msgspec.Struct, frozen=True):
    """What the store has."""

    revision: int
    stored: StoredWill

    @property
    def life(self) -> Life:
        """Of whose client it is."""
        return self.stored.node, self.stored.life


class WillTable:
    """One per life of a node. on_change: called with a session whose will in the store has changed."""

    def __init__(self, membership: Membership, log: Log) -> None:
        self.on_change: Callable[[Session], None] = lambda session: None
        self._membership = membership
        self._log = log
        self._kept: dict[Session, KeptWill] = {}
        self._identities: set[int] = set()  # of those
        self._of_life: dict[Life, set[Session]] = {}

    def get(self, session: Session) -> KeptWill | None:
        """The will of a session."""
        return self._kept.get(session)

    def items(self) -> list[tuple[Session, KeptWill]]:
        """All of them."""
        return list(self._kept.items())

    def __len__(self) -> int:
        return len(self._kept)

    def has(self, identity: int) -> bool:
        """Whether there is a will with this identity."""
        return identity in self._identities

    def lives(self) -> Iterable[Life]:
        """The lives of which there are wills."""
        return self._of_life.keys()

    def of_life(self, life: Life) -> list[Session]:
        """The sessions whose wills are of a life."""
        return list(self._of_life.get(life, ()))

    def lives_on(self, life: Life) -> bool:
        """Whether a life has not ended."""
        known = self._membership.nodes.get(life[0])
        return known is not None and known.epoch == life[1]

    def is_left(self, kept: KeptWill) -> bool:
        """Whether the life has ended whose will it is."""
        return not self.lives_on(kept.life)

    # ------------------------------------------------------------------ changes

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a will's key that this node has not made, or does not know of yet."""
        session = name.namespace, name.name
        known = self._kept.get(session)
        if known is None or event.revision > known.revision:
            self._read(session, event.key, event.value, event.revision)

    def found(self, session: Session, item: Item | None) -> None:
        """What a transaction has found, which is newer than what the feed reports."""
        if item is None:
            self.set(session, None)
        else:
            self._read(session, item.key, item.value, item.revision)

    def _read(self, session: Session, key: bytes, value: bytes | None, revision: int) -> None:
        try:
            self.set(session, None if value is None else KeptWill(revision, _decode(value)))
        except MALFORMED as error:
            self.set(session, None)
            self._log("error", str(error), "etcd has a will that this version cannot read",
                      {"key": key.decode("utf-8", "replace")})

    def set(self, session: Session, kept: KeptWill | None) -> None:
        """The store has this now."""
        former = self._kept.pop(session, None)
        if former is not None:
            self._identities.discard(former.stored.will.identity)
            sessions = self._of_life[former.life]
            sessions.discard(session)
            if not sessions:
                del self._of_life[former.life]
        if kept is not None:
            self._kept[session] = kept
            self._identities.add(kept.stored.will.identity)
            self._of_life.setdefault(kept.life, set()).add(session)
        self.on_change(session)
