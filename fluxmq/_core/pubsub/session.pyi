from collections.abc import Mapping
from typing import Any, Self, final

from typing_extensions import disjoint_base

from fluxmq._core.memory.ledger import Ledger
from fluxmq._core.memory.namespace import Namespace

__all__ = ["TRANSITIONS", "ClaimKeeper", "Replay", "Session", "SessionFacts"]

TRANSITIONS: dict[tuple[str, str], str]

@disjoint_base
class ClaimKeeper: ...

@disjoint_base
class Replay: ...

@disjoint_base
class SessionFacts:
    asked_ms: int
    since_ms: int
    expiry_s: int
    epoch: int
    keep_alive_s: int
    version: int
    kept: bool
    restored: bool
    here: bool
    durable: bool
    frozen: bool
    counted: bool
    def __new__(cls, *_: object) -> Self: ...

@final
class Session:
    journalled: bool
    dirty: bool
    data: Any
    moving: object
    queue_max: int
    queue_bytes_max: int
    queue_rejects: bool
    claim_keeper: ClaimKeeper | None
    def __new__(cls, name: bytes, namespace: Namespace, number: int, ledger: Ledger) -> Self: ...
    @property
    def name(self) -> bytes: ...
    @property
    def namespace(self) -> Namespace: ...
    @property
    def number(self) -> int: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def received_count(self) -> int: ...
    @property
    def subscriptions(self) -> Mapping[bytes, tuple[int, int]]: ...
    def keep_subscription(self, filter: bytes, options: int, identifier: int) -> None: ...
    def forget_subscription(self, filter: bytes) -> bool: ...
    def clear(self) -> None: ...
    def detach(self) -> int: ...
    def set_number(self, number: int) -> None: ...
    @property
    def connected(self) -> bool: ...
    @property
    def inflight(self) -> int: ...
    def mark_received(self, packet_id: int, received: bool) -> None: ...
