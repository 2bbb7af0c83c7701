"""The port through which the admin ring shows and changes users and permissions of a cluster. fluxmq/app/accounts.py
implements it.
"""
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

__all__ = ["AccountsPort", "Permission", "PermissionRule", "UserChange", "UserInfo"]


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the cluster. namespace: the only one that it may enter; "" for any."""

    name: str
    namespace: str


class UserChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored of a user, as in the users file. namespace: None leaves it as it is, or is any for a new user."""

    name: str
    password: str
    scram: str
    namespace: str | None = None


class PermissionRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A rule as in an access list: exactly one of allow and deny is publish, subscribe or all. topics: filters. client:
    globs; empty: all clients of the user."""

    allow: str = ""
    deny: str = ""
    topics: tuple[str, ...]
    client: tuple[str, ...] = ()


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may do in a namespace, "*": in all. user: a name, "*" for every one, "#anonymous" for clients without
    one. rules: None if this version cannot read them; everything is denied then."""

    namespace: str
    user: str
    rules: tuple[PermissionRule, ...] | None


class AccountsPort(Protocol):
    """Users and permissions of a cluster. What changes them raises QueueRefused: invalid; unavailable if the cluster
    decides nothing now. An answer has `behind`, a sentence, if it is not certain that every node knows of the change.
    """

    @property
    def users_used(self) -> bool:
        """Whether clients of this node log in as users of the cluster."""

    @property
    def permissions_used(self) -> bool:
        """Whether they hold for clients of this node."""

    def users(self) -> Sequence[UserInfo]:
        """All, by name."""

    async def put_users(self, changes: Sequence[UserChange]) -> dict[str, Any]:
        """Adds users, or changes them: {"created": n, "changed": n, "behind"}."""

    async def remove_user(self, name: str) -> dict[str, Any]:
        """{"removed": name, "behind"}. Its permissions go with it. Raises QueueRefused(not_found) too."""

    def permissions(self) -> Sequence[Permission]:
        """All, by namespace and user."""

    async def set_permission(self, namespace: str, user: str, rules: Sequence[PermissionRule]) -> dict[str, Any]:
        """Instead of what the user may do there: {"result": "created" or "changed", "behind"}."""

    async def remove_permission(self, namespace: str, user: str) -> dict[str, Any]:
        """{"removed": true, "behind"}. Raises QueueRefused(not_found) too."""
