"""Determines the namespace of an MQTT client: the first of these rules that applies. It never changes.

    <namespace>:<user> as user name     the name in front of the first colon, unless all of it is the name of a user
    the user's entry in the users file  a user bound to a namespace may enter no other
    the listener                        server.mqtt.….namespace
    "/"                                 the default of the listener

RabbitMQ splits at the last colon, because its user names contain none. Here namespace names contain none, and user
names may; a name with one colon has the same meaning in both.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq._core.errors import AuthError
from fluxmq.model.mqtt import ReasonCode

if TYPE_CHECKING:
    from fluxmq._core.memory.namespace import Namespace
    from fluxmq.edge.mqtt.connection import Client
    from fluxmq.edge.mqtt.parts import FrontParts

__all__ = ["find_namespace", "split_user_name"]


def split_user_name(front: FrontParts, username: str | None) -> tuple[str, str | None]:
    """Returns the namespace in a user name of CONNECT, "" for none, and the user to authenticate.

    On a node with no namespace but "/" a colon has no special meaning, for compatibility with earlier versions.
    """
    if username is None or ":" not in username or len(front.hub.namespaces) == 1 or front.authority.has_user(username):
        return "", username
    name, _, user = username.partition(":")
    return (name, user or None) if name else ("", username)


def find_namespace(front: FrontParts, client: Client) -> Namespace:
    """The namespace of an authenticated client. Raises AuthError(0x87) if the client may not use it, and Undecided
    while that question is under way."""
    bound = front.authority.namespace_of(client.identity)
    name = (client.login.namespace if client.login is not None else "") or bound or front.options.namespace
    if bound and name != bound:
        raise AuthError(ReasonCode.NOT_AUTHORIZED, f"user {client.identity!r} may only enter namespace {bound!r}, to "
                                                   f"which the users file binds it, and asked for {name!r}")
    namespace = front.hub.namespaces.get(name.encode())
    if namespace is None or not namespace.open:
        raise AuthError(ReasonCode.NOT_AUTHORIZED, f"there is no namespace {name!r}: add it to `namespaces` in the "
                                                   f"configuration, or make it with `fluxmq namespace create`")
    if not front.asking.may_enter(client, name):
        raise AuthError(ReasonCode.NOT_AUTHORIZED, f"user {client.identity or ''!r} may not enter namespace {name!r}: "
                                                   f"no rule of the access list allows it")
    return namespace
