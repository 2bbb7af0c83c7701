from typing import ClassVar, final

from typing_extensions import disjoint_base

from fluxmq._core.mqtt.props import PropertyValue

Properties = list[tuple[int, PropertyValue]]

@disjoint_base
class Packet:
    packet_type: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    def get(self, identifier: int, default: object = None) -> object: ...
    def get_all(self, identifier: int) -> list[object]: ...
    def __eq__(self, value: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Will(Packet):
    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def retain(self) -> bool: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(
        self,
        topic: str,
        *,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None: ...

@final
class Connect(Packet):
    @property
    def client_id(self) -> str: ...
    @property
    def protocol_level(self) -> int: ...
    @property
    def clean_start(self) -> bool: ...
    @property
    def keep_alive(self) -> int: ...
    @property
    def will(self) -> Will | None: ...
    @property
    def username(self) -> str | None: ...
    @property
    def password(self) -> bytes | None: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(
        self,
        *,
        client_id: str = "",
        protocol_level: int = 5,
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
    ) -> None: ...

@final
class ConnAck(Packet):
    @property
    def session_present(self) -> bool: ...
    @property
    def reason_code(self) -> int: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(
        self,
        *,
        session_present: bool = False,
        reason_code: int = 0,
        properties: Properties | None = None,
    ) -> None: ...

@final
class Publish(Packet):
    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def retain(self) -> bool: ...
    @property
    def dup(self) -> bool: ...
    @property
    def packet_id(self) -> int: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(
        self,
        topic: str,
        *,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties | None = None,
    ) -> None: ...

@disjoint_base
class Ack(Packet):
    @property
    def packet_id(self) -> int: ...
    @property
    def reason_code(self) -> int: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(self, packet_id: int, *, reason_code: int = 0, properties: Properties | None = None) -> None: ...

@final
class PubAck(Ack): ...

@final
class PubRec(Ack): ...

@final
class PubRel(Ack): ...

@final
class PubComp(Ack): ...

@final
class Subscription(Packet):
    @property
    def filter(self) -> str: ...
    @property
    def qos(self) -> int: ...
    @property
    def no_local(self) -> bool: ...
    @property
    def retain_as_published(self) -> bool: ...
    @property
    def retain_handling(self) -> int: ...
    def __init__(
        self,
        filter: str,
        *,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None: ...

@final
class Subscribe(Packet):
    @property
    def packet_id(self) -> int: ...
    @property
    def subscriptions(self) -> list[Subscription]: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(
        self,
        packet_id: int,
        subscriptions: list[Subscription],
        *,
        properties: Properties | None = None,
    ) -> None: ...

@final
class SubAck(Packet):
    @property
    def packet_id(self) -> int: ...
    @property
    def reason_codes(self) -> list[int]: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(self, packet_id: int, reason_codes: list[int], *, properties: Properties | None = None) -> None: ...

@final
class Unsubscribe(Packet):
    @property
    def packet_id(self) -> int: ...
    @property
    def filters(self) -> list[str]: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(self, packet_id: int, filters: list[str], *, properties: Properties | None = None) -> None: ...

@final
class UnsubAck(Packet):
    @property
    def packet_id(self) -> int: ...
    @property
    def reason_codes(self) -> list[int]: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(
        self,
        packet_id: int,
        *,
        reason_codes: list[int] | None = None,
        properties: Properties | None = None,
    ) -> None: ...

@final
class PingReq(Packet):
    def __init__(self) -> None: ...

@final
class PingResp(Packet):
    def __init__(self) -> None: ...

@final
class Disconnect(Packet):
    @property
    def reason_code(self) -> int: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(self, *, reason_code: int = 0, properties: Properties | None = None) -> None: ...

@final
class Auth(Packet):
    @property
    def reason_code(self) -> int: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(self, *, reason_code: int = 0, properties: Properties | None = None) -> None: ...
