"""The port for authentication and authorization of clients.

The hot path does not call it while `open_publish` or `open_subscribe` is true; otherwise it caches decisions per
connection and topic until `generation` changes. An Authority that needs an external decision returns None, and the
broker awaits decide_publish or decide_subscribe while the connection is paused (decision 0008). An identity is an
authenticated user name, or None for an anonymous client; the unproved name in a CONNECT is never an identity.
"""
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Authority", "Exchange"]


class Exchange(Protocol):
    """One enhanced authentication (MQTT 5.0 section 4.12), from the client's first message to our last."""

    @property
    def username(self) -> str | None:
        """The authenticated user; None before success."""

    @property
    def claimed(self) -> str:
        """The user name that the client claims; "" until a message has named it."""

    def step(self, data: bytes) -> tuple[bytes, bool]:
        """Takes the client's Authentication Data; returns ours, and whether the exchange has succeeded.

        Raises AuthError with the reason code for CONNACK or DISCONNECT; the exchange is over then.
        """


class Authority(Protocol):
    """Authentication and permission, for all protocols."""

    @property
    def name(self) -> str:
        """The name of the authority, for logs."""

    @property
    def asks(self) -> bool:
        """Whether may_publish and may_subscribe may return None."""

    @property
    def open_publish(self) -> bool:
        """Whether every client may publish to every topic."""

    @property
    def open_subscribe(self) -> bool:
        """Whether every client may subscribe to every filter."""

    @property
    def generation(self) -> int:
        """Increases whenever an earlier answer may have become invalid."""

    @property
    def removed(self) -> frozenset[str]:
        """Identities that were removed by the last change of `generation`."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The authentication methods that `begin_exchange` knows."""

    def needs_wait(self, username: str | None, password: bytes | None,
                   certificate: Mapping[str, Any] | None = None, username_from: str = "") -> bool:
        """Whether authentication takes time. If not, `authenticate_now` answers in the same turn of the loop."""

    def authenticate_now(self, client_id: str, username: str | None, password: bytes | None,
                         certificate: Mapping[str, Any] | None = None, username_from: str = "") -> str | None:
        """As `authenticate`. Raises UsageError where `needs_wait` says that this takes time."""

    async def authenticate(self, client_id: str, username: str | None, password: bytes | None,
                           certificate: Mapping[str, Any] | None = None, username_from: str = "",
                           origin: bytes = b"") -> str | None:
        """Returns the identity of the client that sent a CONNECT. certificate: the verified one of the connection, as
        getpeercert() returns it. username_from: which field of it the listener uses as user name: "cn", "san", or ""
        for none. origin: the address (model/origins.py), so that many logins from one address do not delay others; b""
        = exempt.

        Raises AuthError: 0x86 user name or password is wrong, 0x87 not allowed, 0x88 no check can be made,
        0x89 too many at once.
        """

    def begin_exchange(self, method: str) -> Exchange | None:
        """Begins an exchange; None for an unknown method, which is answered with 0x8C."""

    def finish_exchange(self, exchange: Exchange, username: str | None = None,
                        certificate: Mapping[str, Any] | None = None, username_from: str = "") -> str:
        """Returns the identity after a successful exchange. username: from the CONNECT, or the present identity at
        re-authentication; None if there is none. Raises AuthError(0x87) if it, or the certificate, names another user.
        """

    def has_user(self, name: str) -> bool:
        """Whether a user of exactly this name exists; if so, a colon in it does not separate a namespace."""

    def namespace_of(self, identity: str | None) -> str:
        """The only namespace that this user may use; "" for any."""

    def may_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool | None:
        """Whether a publish to this topic name is allowed in a namespace; None: call decide_publish, which waits. A
        client may use a namespace if it may publish or subscribe to `$vhost/<namespace>` in "/"."""

    def may_subscribe(self, identity: str | None, client_id: str, filter_: str, namespace: str = "/") -> bool | None:
        """Whether a subscription to this valid filter, `$share/group/filter` included, is allowed; None: call
        decide_subscribe, which waits."""

    async def decide_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool:
        """As may_publish, after asking an external service. It is cancelled at the time limit or when the connection
        has ended. An exception counts as a refusal that is not cached. An implementation that wants the answer to be
        used for other connections, or for other questions than publishes, must return it from may_publish later."""

    async def decide_subscribe(self, identity: str | None, client_id: str, filter_: str, namespace: str = "/") -> bool:
        """As may_subscribe, in the same way."""
