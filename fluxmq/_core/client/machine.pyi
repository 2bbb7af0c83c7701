from collections.abc import Callable, Sequence

from typing_extensions import Buffer, disjoint_base

from fluxmq._core.client.message import Message
from fluxmq._core.client.session import Session
from fluxmq._core.client.writer import ClientWriter
from fluxmq._core.mqtt.packets import ConnAck, Connect, Disconnect
from fluxmq._core.mqtt.packets import Properties as PropertyList

__all__ = ["SESSION_LOST", "STATE_CLOSED", "STATE_CONNECTING", "STATE_NEW", "STATE_OPEN", "ClientMachine"]

STATE_NEW: int
STATE_CONNECTING: int
STATE_OPEN: int
STATE_CLOSED: int
SESSION_LOST: int

@disjoint_base
class ClientMachine(ClientWriter):
    on_message: Callable[[Message], object] | None
    def __init__(
        self,
        on_message: Callable[[Message], object] | None = None,
        *,
        session: Session | None = None,
        manual_ack: bool = False,
        republish: bool = True,
        topic_aliases: int = 0,
        max_inflight: int = 65535,
    ) -> None: ...
    @property
    def session(self) -> Session: ...
    @property
    def manual_ack(self) -> bool: ...
    @property
    def republish(self) -> bool: ...
    @property
    def answer_properties(self) -> PropertyList: ...
    @property
    def keep_alive(self) -> int: ...
    @property
    def receive_maximum(self) -> int: ...
    @property
    def maximum_qos(self) -> int: ...
    @property
    def retain_available(self) -> bool: ...
    @property
    def window(self) -> int: ...
    def start(self, connect: Connect) -> None: ...
    def publish(
        self,
        topic: bytes | str,
        payload: bytes | str | bytearray | memoryview | None = b"",
        qos: int = 0,
        retain: bool = False,
        properties: bytes | PropertyList | None = None,
        done: Callable[[int, int], object] | None = None,
    ) -> int: ...
    def subscribe(
        self,
        filters: Sequence[tuple[bytes | str, int]],
        done: Callable[[int, list[int]], object] | None = None,
        properties: bytes | PropertyList | None = None,
    ) -> int: ...
    def unsubscribe(
        self,
        filters: Sequence[bytes | str],
        done: Callable[[int, list[int]], object] | None = None,
        properties: bytes | PropertyList | None = None,
    ) -> int: ...
    def ping(self, done: Callable[[], object] | None = None) -> None: ...
    def acknowledge(self, message: Message, reason: int = 0) -> bool: ...
    def leave(self, reason: int = 0, properties: PropertyList | None = None) -> None: ...
    def feed(self, data: Buffer) -> None: ...
    def end(self) -> None: ...
    def accepted(self, session_present: bool) -> None: ...
    def connected(self, connack: ConnAck) -> None: ...
    def dismissed(self, disconnect: Disconnect) -> None: ...
