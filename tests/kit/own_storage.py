"""What a node's storage directory says of itself, in memory: `fluxmq.cluster.ports.OwnStorage`."""
from __future__ import annotations

from fluxmq.cluster.claim import Claim
from fluxmq.cluster.ports import OwnStorage
from fluxmq.engine.ports.driver import Driver

__all__ = ["OwnStorageInMemory", "claim_of"]


class OwnStorageInMemory:
    """A directory that was in no cluster yet, unless told otherwise."""

    def __init__(self, identity: str, generation: int = 0, replaces: str = "") -> None:
        self.identity, self.generation, self.replaces = identity, generation, replaces

    def advance(self, generation: int, replaces: str | None = None) -> None:
        self.generation = generation
        self.replaces = self.replaces if replaces is None else replaces


def claim_of(name: str, driver: Driver, ttl_s: int, storage: OwnStorage | None = None) -> Claim:
    """A node's; nobody answers at the address of a former life."""
    async def runs(address: str) -> bool:
        return False

    return Claim(name, storage or OwnStorageInMemory(f"disk of {name}"), ttl_s, driver, runs)
