from collections.abc import Callable
from typing import Any, Self, final

from fluxmq._core.ledger import Ledger
from fluxmq._core.queue_claim import GroupOwner
from fluxmq._core.queue_delay import Delays
from fluxmq._core.queue_group import Group
from fluxmq._core.queue_log import Log, Needed
from fluxmq._core.queue_stream import StreamReader

__all__ = ["QUEUE_CLASSIC", "QUEUE_EPHEMERAL", "QUEUE_STREAM", "LogNeeds", "Queue"]

QUEUE_CLASSIC: int
QUEUE_STREAM: int
QUEUE_EPHEMERAL: int

@final
class LogNeeds(Needed): ...

@final
class Queue(GroupOwner):
    messages_max: int
    bytes_max: int
    payload_max: int
    ttl_ms: int
    drop_head: bool
    prompt: bool
    at_once: bool
    ready_max: int
    ready_bytes_max: int
    on_overflow: Callable[[bytes, bytes, bytes, int], None] | None
    capture_confirmed: bool
    on_full: Callable[[Queue], bool] | None
    on_delayed: Callable[[Queue], None] | None
    on_due: Callable[[Queue], None] | None
    delays: Delays | None
    on_stalled: Callable[[Queue], None] | None
    is_repeated: Callable[[bytes, int], bool] | None
    on_produced: Callable[[bytes, int], None] | None
    stirred: bool
    wake: Callable[[], Any] | None
    def __new__(cls, ledger: Ledger, number: int, name: bytes, kind: int, logs: list[Log], lanes: int = 1) -> Self: ...
    @property
    def number(self) -> int: ...
    @property
    def name(self) -> bytes: ...
    @property
    def kind(self) -> int: ...
    @property
    def durable(self) -> bool: ...
    @property
    def logs(self) -> list[Log]: ...
    @property
    def lanes(self) -> int: ...
    @property
    def partitions(self) -> int: ...
    @property
    def groups(self) -> list[Group]: ...
    @property
    def readers(self) -> list[StreamReader]: ...
    @property
    def expiry_ms(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def floors_read(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def notify(self) -> None: ...
    def add_group(self, group: Group) -> None: ...
    def remove_group(self, group: Group) -> None: ...
    def add_reader(self, reader: StreamReader) -> None: ...
    def remove_reader(self, reader: StreamReader) -> None: ...
    def needs(self, log: Log) -> Needed | None: ...
    def is_needed(self, log: Log, offset: int) -> bool: ...
    def publish(self, topic: bytes, payload: bytes, properties: bytes = b"", qos: int = 1,
                expires_at: int = 0, format: int = 0) -> int: ...
    def append_message(self, topic: bytes, payload: bytes, *, properties: bytes = b"", qos: int = 1, priority: int = 0,
                       expires_at: int = 0, not_before: int = 0, partition_key: bytes = b"",
                       forced: bool = False, format: int = 0) -> int: ...
