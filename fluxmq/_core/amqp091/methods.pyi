from typing import Any, ClassVar, final

from typing_extensions import disjoint_base

@disjoint_base
class Method:
    number: ClassVar[int]
    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]
    by_client: ClassVar[bool]
    by_server: ClassVar[bool]
    synchronous: ClassVar[bool]
    has_content: ClassVar[bool]
    def __init__(self) -> None: ...
    def encode(self) -> bytes: ...
    def frame(self, channel: int) -> bytes: ...
    def __eq__(self, value: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

METHODS: dict[int, type[Method]]

def decode_method(payload: bytes) -> Method: ...

@final
class ConnectionStart(Method):
    @property
    def version_major(self) -> int: ...
    @property
    def version_minor(self) -> int: ...
    @property
    def server_properties(self) -> dict[str, Any]: ...
    @property
    def mechanisms(self) -> str: ...
    @property
    def locales(self) -> str: ...
    def __init__(
        self,
        *,
        version_major: int = 0,
        version_minor: int = 0,
        server_properties: dict[str, Any] | None = None,
        mechanisms: str = "",
        locales: str = "",
    ) -> None: ...

@final
class ConnectionStartOk(Method):
    @property
    def client_properties(self) -> dict[str, Any]: ...
    @property
    def mechanism(self) -> str: ...
    @property
    def response(self) -> bytes: ...
    @property
    def locale(self) -> str: ...
    def __init__(
        self,
        *,
        client_properties: dict[str, Any] | None = None,
        mechanism: str = "",
        response: bytes = b"",
        locale: str = "",
    ) -> None: ...

@final
class ConnectionSecure(Method):
    @property
    def challenge(self) -> bytes: ...
    def __init__(
        self,
        *,
        challenge: bytes = b"",
    ) -> None: ...

@final
class ConnectionSecureOk(Method):
    @property
    def response(self) -> bytes: ...
    def __init__(
        self,
        *,
        response: bytes = b"",
    ) -> None: ...

@final
class ConnectionTune(Method):
    @property
    def channel_max(self) -> int: ...
    @property
    def frame_max(self) -> int: ...
    @property
    def heartbeat(self) -> int: ...
    def __init__(
        self,
        *,
        channel_max: int = 0,
        frame_max: int = 0,
        heartbeat: int = 0,
    ) -> None: ...

@final
class ConnectionTuneOk(Method):
    @property
    def channel_max(self) -> int: ...
    @property
    def frame_max(self) -> int: ...
    @property
    def heartbeat(self) -> int: ...
    def __init__(
        self,
        *,
        channel_max: int = 0,
        frame_max: int = 0,
        heartbeat: int = 0,
    ) -> None: ...

@final
class ConnectionOpen(Method):
    @property
    def virtual_host(self) -> str: ...
    def __init__(
        self,
        *,
        virtual_host: str = "",
    ) -> None: ...

@final
class ConnectionOpenOk(Method): ...

@final
class ConnectionClose(Method):
    @property
    def reply_code(self) -> int: ...
    @property
    def reply_text(self) -> str: ...
    @property
    def class_id(self) -> int: ...
    @property
    def method_id(self) -> int: ...
    def __init__(
        self,
        *,
        reply_code: int = 0,
        reply_text: str = "",
        class_id: int = 0,
        method_id: int = 0,
    ) -> None: ...

@final
class ConnectionCloseOk(Method): ...

@final
class ConnectionBlocked(Method):
    @property
    def reason(self) -> str: ...
    def __init__(
        self,
        *,
        reason: str = "",
    ) -> None: ...

@final
class ConnectionUnblocked(Method): ...

@final
class ConnectionUpdateSecret(Method):
    @property
    def new_secret(self) -> bytes: ...
    @property
    def reason(self) -> str: ...
    def __init__(
        self,
        *,
        new_secret: bytes = b"",
        reason: str = "",
    ) -> None: ...

@final
class ConnectionUpdateSecretOk(Method): ...

@final
class ChannelOpen(Method): ...

@final
class ChannelOpenOk(Method): ...

@final
class ChannelFlow(Method):
    @property
    def active(self) -> bool: ...
    def __init__(
        self,
        *,
        active: bool = False,
    ) -> None: ...

@final
class ChannelFlowOk(Method):
    @property
    def active(self) -> bool: ...
    def __init__(
        self,
        *,
        active: bool = False,
    ) -> None: ...

@final
class ChannelClose(Method):
    @property
    def reply_code(self) -> int: ...
    @property
    def reply_text(self) -> str: ...
    @property
    def class_id(self) -> int: ...
    @property
    def method_id(self) -> int: ...
    def __init__(
        self,
        *,
        reply_code: int = 0,
        reply_text: str = "",
        class_id: int = 0,
        method_id: int = 0,
    ) -> None: ...

@final
class ChannelCloseOk(Method): ...

@final
class ExchangeDeclare(Method):
    @property
    def exchange(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def passive(self) -> bool: ...
    @property
    def durable(self) -> bool: ...
    @property
    def auto_delete(self) -> bool: ...
    @property
    def internal(self) -> bool: ...
    @property
    def no_wait(self) -> bool: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    def __init__(
        self,
        *,
        exchange: str = "",
        type: str = "",
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        no_wait: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

@final
class ExchangeDeclareOk(Method): ...

@final
class ExchangeDelete(Method):
    @property
    def exchange(self) -> str: ...
    @property
    def if_unused(self) -> bool: ...
    @property
    def no_wait(self) -> bool: ...
    def __init__(
        self,
        *,
        exchange: str = "",
        if_unused: bool = False,
        no_wait: bool = False,
    ) -> None: ...

@final
class ExchangeDeleteOk(Method): ...

@final
class ExchangeBind(Method):
    @property
    def destination(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def no_wait(self) -> bool: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    def __init__(
        self,
        *,
        destination: str = "",
        source: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

@final
class ExchangeBindOk(Method): ...

@final
class ExchangeUnbind(Method):
    @property
    def destination(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def no_wait(self) -> bool: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    def __init__(
        self,
        *,
        destination: str = "",
        source: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

@final
class ExchangeUnbindOk(Method): ...

@final
class QueueDeclare(Method):
    @property
    def queue(self) -> str: ...
    @property
    def passive(self) -> bool: ...
    @property
    def durable(self) -> bool: ...
    @property
    def exclusive(self) -> bool: ...
    @property
    def auto_delete(self) -> bool: ...
    @property
    def no_wait(self) -> bool: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    def __init__(
        self,
        *,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        no_wait: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

@final
class QueueDeclareOk(Method):
    @property
    def queue(self) -> str: ...
    @property
    def message_count(self) -> int: ...
    @property
    def consumer_count(self) -> int: ...
    def __init__(
        self,
        *,
        queue: str = "",
        message_count: int = 0,
        consumer_count: int = 0,
    ) -> None: ...

@final
class QueueBind(Method):
    @property
    def queue(self) -> str: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def no_wait(self) -> bool: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    def __init__(
        self,
        *,
        queue: str = "",
        exchange: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

@final
class QueueBindOk(Method): ...

@final
class QueuePurge(Method):
    @property
    def queue(self) -> str: ...
    @property
    def no_wait(self) -> bool: ...
    def __init__(
        self,
        *,
        queue: str = "",
        no_wait: bool = False,
    ) -> None: ...

@final
class QueuePurgeOk(Method):
    @property
    def message_count(self) -> int: ...
    def __init__(
        self,
        *,
        message_count: int = 0,
    ) -> None: ...

@final
class QueueDelete(Method):
    @property
    def queue(self) -> str: ...
    @property
    def if_unused(self) -> bool: ...
    @property
    def if_empty(self) -> bool: ...
    @property
    def no_wait(self) -> bool: ...
    def __init__(
        self,
        *,
        queue: str = "",
        if_unused: bool = False,
        if_empty: bool = False,
        no_wait: bool = False,
    ) -> None: ...

@final
class QueueDeleteOk(Method):
    @property
    def message_count(self) -> int: ...
    def __init__(
        self,
        *,
        message_count: int = 0,
    ) -> None: ...

@final
class QueueUnbind(Method):
    @property
    def queue(self) -> str: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    def __init__(
        self,
        *,
        queue: str = "",
        exchange: str = "",
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

@final
class QueueUnbindOk(Method): ...

@final
class BasicQos(Method):
    @property
    def prefetch_size(self) -> int: ...
    @property
    def prefetch_count(self) -> int: ...
    @property
    def global_(self) -> bool: ...
    def __init__(
        self,
        *,
        prefetch_size: int = 0,
        prefetch_count: int = 0,
        global_: bool = False,
    ) -> None: ...

@final
class BasicQosOk(Method): ...

@final
class BasicConsume(Method):
    @property
    def queue(self) -> str: ...
    @property
    def consumer_tag(self) -> str: ...
    @property
    def no_local(self) -> bool: ...
    @property
    def no_ack(self) -> bool: ...
    @property
    def exclusive(self) -> bool: ...
    @property
    def no_wait(self) -> bool: ...
    @property
    def arguments(self) -> dict[str, Any]: ...
    def __init__(
        self,
        *,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        no_wait: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None: ...

@final
class BasicConsumeOk(Method):
    @property
    def consumer_tag(self) -> str: ...
    def __init__(
        self,
        *,
        consumer_tag: str = "",
    ) -> None: ...

@final
class BasicCancel(Method):
    @property
    def consumer_tag(self) -> str: ...
    @property
    def no_wait(self) -> bool: ...
    def __init__(
        self,
        *,
        consumer_tag: str = "",
        no_wait: bool = False,
    ) -> None: ...

@final
class BasicCancelOk(Method):
    @property
    def consumer_tag(self) -> str: ...
    def __init__(
        self,
        *,
        consumer_tag: str = "",
    ) -> None: ...

@final
class BasicPublish(Method):
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def mandatory(self) -> bool: ...
    @property
    def immediate(self) -> bool: ...
    def __init__(
        self,
        *,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None: ...

@final
class BasicReturn(Method):
    @property
    def reply_code(self) -> int: ...
    @property
    def reply_text(self) -> str: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    def __init__(
        self,
        *,
        reply_code: int = 0,
        reply_text: str = "",
        exchange: str = "",
        routing_key: str = "",
    ) -> None: ...

@final
class BasicDeliver(Method):
    @property
    def consumer_tag(self) -> str: ...
    @property
    def delivery_tag(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    def __init__(
        self,
        *,
        consumer_tag: str = "",
        delivery_tag: int = 0,
        redelivered: bool = False,
        exchange: str = "",
        routing_key: str = "",
    ) -> None: ...

@final
class BasicGet(Method):
    @property
    def queue(self) -> str: ...
    @property
    def no_ack(self) -> bool: ...
    def __init__(
        self,
        *,
        queue: str = "",
        no_ack: bool = False,
    ) -> None: ...

@final
class BasicGetOk(Method):
    @property
    def delivery_tag(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def message_count(self) -> int: ...
    def __init__(
        self,
        *,
        delivery_tag: int = 0,
        redelivered: bool = False,
        exchange: str = "",
        routing_key: str = "",
        message_count: int = 0,
    ) -> None: ...

@final
class BasicGetEmpty(Method): ...

@final
class BasicAck(Method):
    @property
    def delivery_tag(self) -> int: ...
    @property
    def multiple(self) -> bool: ...
    def __init__(
        self,
        *,
        delivery_tag: int = 0,
        multiple: bool = False,
    ) -> None: ...

@final
class BasicReject(Method):
    @property
    def delivery_tag(self) -> int: ...
    @property
    def requeue(self) -> bool: ...
    def __init__(
        self,
        *,
        delivery_tag: int = 0,
        requeue: bool = False,
    ) -> None: ...

@final
class BasicRecoverAsync(Method):
    @property
    def requeue(self) -> bool: ...
    def __init__(
        self,
        *,
        requeue: bool = False,
    ) -> None: ...

@final
class BasicRecover(Method):
    @property
    def requeue(self) -> bool: ...
    def __init__(
        self,
        *,
        requeue: bool = False,
    ) -> None: ...

@final
class BasicRecoverOk(Method): ...

@final
class BasicNack(Method):
    @property
    def delivery_tag(self) -> int: ...
    @property
    def multiple(self) -> bool: ...
    @property
    def requeue(self) -> bool: ...
    def __init__(
        self,
        *,
        delivery_tag: int = 0,
        multiple: bool = False,
        requeue: bool = False,
    ) -> None: ...

@final
class ConfirmSelect(Method):
    @property
    def no_wait(self) -> bool: ...
    def __init__(
        self,
        *,
        no_wait: bool = False,
    ) -> None: ...

@final
class ConfirmSelectOk(Method): ...

@final
class TxSelect(Method): ...

@final
class TxSelectOk(Method): ...

@final
class TxCommit(Method): ...

@final
class TxCommitOk(Method): ...

@final
class TxRollback(Method): ...

@final
class TxRollbackOk(Method): ...
