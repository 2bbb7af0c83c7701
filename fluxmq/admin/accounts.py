"""Users of the cluster: GET, POST /api/v1/users, DELETE /api/v1/users/NAME. Permissions: GET /api/v1/permissions, PUT,
DELETE /api/v1/permissions/USER?namespace=NAME.

    {"users": [{"name", "namespace"}, ...], "used": true}       used: whether this node's clients log in by them
    {"users": [{"name", "password", "scram", "namespace"}]} ─► {"created": n, "changed": n, "behind": "", "used": true}
    {"removed": name, "behind": "", "used": true}
    {"permissions": [{"namespace", "user", "rules": [...]}], "used": true}       rules: as in the access list
    {"rules": [{"allow": "publish", "topics": ["a/#"], "client": ["x-*"]}]} ─► {"result": "created", "behind": "", ...}

What is sent is what the users file has of a user: hashes, no password. The answer comes when every node knows; behind:
why that is not certain.
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.accounts import AccountsPort, PermissionRule, UserChange

__all__ = ["account_routes"]

_Routes = dict[tuple[str | None, ...], dict[str, tuple[Callable[[Any], Awaitable[Answer]], str]]]


class _Rules(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[PermissionRule]


class _Users(msgspec.Struct, forbid_unknown_fields=True):
    users: list[UserChange]


def account_routes(port: AccountsPort) -> _Routes:
    """As AdminRoutes has them: path, method, what answers a call, and words of the query."""
    return {
        ("users",): {"GET": (lambda call: _list_users(port), ""),
                     "POST": (lambda call: _put_users(port, call.body), "")},
        ("users", None): {"DELETE": (lambda call: _remove_user(port, call.names[0]), "")},
        ("permissions",): {"GET": (lambda call: _list_permissions(port), "")},
        ("permissions", None): {"PUT": (lambda call: _set_permission(port, call), "namespace"),
                                "DELETE": (lambda call: _remove_permission(port, call), "namespace")},
    }


def _answer(about: dict[str, Any], used: bool) -> Answer:
    return Answer(200, "application/json", msgspec.json.encode(about | {"used": used}) + b"\n", ())


async def _list_users(port: AccountsPort) -> Answer:
    return _answer({"users": port.users()}, port.users_used)


async def _put_users(port: AccountsPort, body: bytes) -> Answer:
    """Raises QueueRefused, and msgspec.DecodeError."""
    return _answer(await port.put_users(msgspec.json.decode(body, type=_Users).users), port.users_used)


async def _remove_user(port: AccountsPort, name: str) -> Answer:
    """Raises QueueRefused."""
    return _answer(await port.remove_user(name), port.users_used)


async def _list_permissions(port: AccountsPort) -> Answer:
    return _answer({"permissions": port.permissions()}, port.permissions_used)


async def _set_permission(port: AccountsPort, call: Any) -> Answer:
    """Raises QueueRefused, and msgspec.DecodeError."""
    rules = msgspec.json.decode(call.body, type=_Rules).rules
    return _answer(await port.set_permission(call.query.get("namespace", "/"), call.names[0], rules),
                   port.permissions_used)


async def _remove_permission(port: AccountsPort, call: Any) -> Answer:
    """Raises QueueRefused."""
    return _answer(await port.remove_permission(call.query.get("namespace", "/"), call.names[0]),
                   port.permissions_used)
