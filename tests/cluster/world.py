"""Nodes' metadata logic (feed, membership, owners) over one store in memory, under a clock that a test moves."""
from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from kit.metadata import MetadataInMemory
from kit.own_storage import OwnStorageInMemory, claim_of
from simulator.driver import SimDriver

from fluxmq.cluster import keys
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.membership import Membership, Node, Registration
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.ports import Change, Compare, Event, Item
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.cluster import Owner

__all__ = ["Member", "World"]

TTL_S = 10


class World:
    def __init__(self) -> None:
        self.ms = 1_000_000
        self.driver = SimDriver(lambda: self.ms)
        self.store = MetadataInMemory(self.driver)
        self.disks: dict[str, OwnStorageInMemory] = {}  # by identity

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.driver.start(coroutine)

    def run(self, ms: int = 1000) -> None:
        for _ in range(max(1, ms // 10)):
            for _ in range(12):
                self.driver.run_ready()
                while self.driver.threads:
                    self.driver.run_thread()
            self.ms += 10

    def end(self, coroutine: Coroutine[Any, Any, Any], ms: int = 3000) -> Any:
        """Runs it to its end."""
        work = self.start(coroutine)
        for _ in range(ms // 10):
            if work.done():
                break
            self.run(10)
        return work.result()

    def member(self, name: str, identity: str | None = None) -> Member:
        member = Member(self, name, identity or f"disk of {name}")
        self.end(member.join(), 20_000)
        self.run(50)
        return member


class NoKeys:
    """Keys: of sessions that have no others."""

    def taking(self, session: Session) -> list[Change]:
        return []

    def taken(self, session: Session, changes: list[Change], revision: int) -> None:
        pass

    def lost(self, session: Session) -> None:
        pass

    async def ending(self, session: Session) -> list[Change]:
        return []


class NoneUnowned:
    """Unowned: no session whose owner is gone."""

    def wait(self, session: Session) -> None:
        return None

    def on_entry(self, session: Session, present: bool) -> None:
        pass


class NoMembership:
    """A Membership, for a feed whose listeners have nothing to do with nodes."""

    key, leader = b"", "nobody"

    def on_event(self, event: Event) -> None:
        """Of a node or of the leader."""


NO_MEMBERSHIP = cast(Membership, NoMembership())


class NoWills:
    """Former: clients that leave nothing."""

    def wait(self, session: Session, clean_start: bool) -> None:
        return None

    def compare(self, session: Session) -> Compare:
        return Compare(keys.client_key(keys.WILL_DATA, *session), 0)

    def compared(self, session: Session, item: Item | None) -> None:
        assert item is None


class Member:
    """What one node has of the cluster, without streams; the Handovers of its owners."""

    def __init__(self, world: World, name: str, identity: str) -> None:
        self.world = world
        self.storage = world.disks.setdefault(identity, OwnStorageInMemory(identity))
        self.log: list[tuple[object, ...]] = []
        self.takeover: Callable[[Session, Owner, bool], Awaitable[None] | None] = lambda session, owner, clean: None
        driver, store = world.driver, world.store
        self.writer = Writer(store, driver)
        self.claim = claim_of(name, driver, TTL_S, self.storage)
        self.membership = Membership(
            name, store, driver, TTL_S, claim=self.claim,
            clock_s=lambda: world.ms / 1000, on_deadline=lambda at: None,
            on_fenced=lambda why: self.log.append(("fenced", why)), on_node=self._on_node)
        self.feed = Feed(store, driver, self.membership)
        self.owners = Owners(self.membership, self.feed, self.writer, driver, keys=NoKeys(),
                             is_here=lambda session: False, limit_s=15.0)
        self.owners.former, self.owners.unowned, self.owners.handovers = NoWills(), NoneUnowned(), self
        self.feed.listen((keys.OWNER,), self.owners.on_event)

    async def join(self) -> None:
        await self.membership.join(Registration(address=f"{self.membership.name}:1"))
        await self.feed.load()
        self.world.start(self.feed.follow())
        self.world.start(self.membership.keep())

    def kill(self) -> None:
        """The process is gone; what the store has of it stays until its lease ends."""
        self.feed.close()
        self.writer.close("killed")
        self.membership.state = self.membership.state.__class__.GONE

    async def fetch(self, session: Session, owner: Owner, clean_start: bool, asked: Callable[[], int]) -> None:
        self.log.append(("takeover", session[1], owner.node))
        answer = self.takeover(session, owner, clean_start)
        if answer is not None:
            await answer

    async def complete(self, session: Session, handover: object, former: Owner, epoch: int) -> None:
        self.log.append(("complete", session[1], former.node))

    def on_lost(self, session: Session, to: str) -> None:
        self.log.append(("lost", session[1]))

    def _on_node(self, node: Node, appeared: bool) -> None:
        self.log.append(("appeared" if appeared else "disappeared", node.name))

    def take(self, client: bytes, clean: bool = False) -> Owner:
        """What a CONNECT does."""
        owner = self.owners.claim((b"/", client))
        return owner or self.world.end(self.owners.take((b"/", client), clean, self.world.ms), 60_000)
