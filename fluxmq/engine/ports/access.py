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
        """Who has been proved; None before success."""

    @property
    def claimed(self) -> str:
        """Whom the client says it is; "" before a message of it has said so."""

    def step(self, data: bytes) -> tuple[bytes, bool]:
        """The client's Authentication Data in; ours out, and whether the exchange has succeeded with it.

        Raises AuthError with the reason code for CONNACK or DISCONNECT; the exchange is over then.
        """


class Authority(Protocol):
    """Authentication and permission, for all protocols."""

    @property
    def name(self) -> str:
        """Who decides, for logs."""

    @property
    def asks(self) -> bool:
        """Whether may_publish and may_subscribe may answer None."""

    @property
    def open_publish(self) -> bool:
        """Every publish is allowed to everybody."""

    @property
    def open_subscribe(self) -> bool:
        """Every subscription is allowed to everybody."""

    @property
    def generation(self) -> int:
        """Grows whenever an earlier answer may no longer hold."""

    @property
    def removed(self) -> frozenset[str]:
        """Identities that the last change of `generation` took away."""

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
        """The identity of who sends this CONNECT. certificate: the verified one of the connection, as getpeercert()
        returns it. username_from: the listener's source of a user name in it: "cn", "san", or "" for none. origin: the
        address (model/origins.py), so that many logins from one place do not hold up those from others; b"" = exempt.

        Raises AuthError: 0x86 user name or password is wrong, 0x87 not allowed, 0x88 no check can be made,
        0x89 too many at once.
        """

    def begin_exchange(self, method: str) -> Exchange | None:
        """A new exchange; None for a method that is not known, to be answered with 0x8C."""

    def finish_exchange(self, exchange: Exchange, username: str | None = None,
                        certificate: Mapping[str, Any] | None = None, username_from: str = "") -> str:
        """The identity that a successful exchange gives. username: of the CONNECT, or at re-authentication the identity
        so far; None when there is none. Raises AuthError(0x87) when it, or the certificate, names somebody else.
        """

    def has_user(self, name: str) -> bool:
        """Whether somebody has this name, colons included: then it is not `<namespace>:<user>`."""

    def namespace_of(self, identity: str | None) -> str:
        """The only namespace that this user may enter; "" for any."""

    def may_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool | None:
        """Whether a publish to this topic name is allowed, in a namespace; None: that takes time, decide_publish will
        say. Publish or subscribe to `$vhost/<namespace>` in "/" is asked of a client that wants to enter one."""

    def may_subscribe(self, identity: str | None, client_id: str, filter_: str, namespace: str = "/") -> bool | None:
        """Whether a subscription to this valid filter, `$share/group/filter` included, is allowed; None: that takes
        time, decide_subscribe will say."""

    async def decide_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool:
        """As may_publish, after asking. It is cancelled when its time is up or nobody waits any more; what it raises
        is a refusal that is not remembered. Who wants an answer to be known to other connections, or to further
        questions that are not about a publish, remembers it himself for may_publish."""

    async def decide_subscribe(self, identity: str | None, client_id: str, filter_: str, namespace: str = "/") -> bool:
        """As may_subscribe, in the same way."""
