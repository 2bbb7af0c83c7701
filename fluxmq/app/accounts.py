"""Users and permissions of a cluster: what their documents in etcd mean (engine/ports/documents.py), for the authority
of this node and for the admin ring.

    /mqtt/users/<user>   {"password": argon2id hash, "scram": verifier, "namespace": ""}     as a line of the users file
    /mqtt/user-decoy     {"key": 16 bytes in base64}                                         as its first line
    /mqtt/permissions/<ns>/<user>   {"rules": [{"allow": "publish", "topics": ["a/#"]}]}     as rules of the access list

The decoy key is made with the first user, so that all nodes answer for unknown names with the same salts.
"""
from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fluxmq.access.acl import ANONYMOUS, VERBS, Acl, AclByUser, Rule, topic_problem
from fluxmq.access.users import DECOY_KEY_SIZE_BYTES, User, Users
from fluxmq.engine.ports.accounts import AccountsPort, Permission, PermissionRule, UserChange, UserInfo
from fluxmq.engine.ports.documents import Document, Documents, Edit, Kind
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.config import Auth
from fluxmq.model.malformed import MALFORMED
from fluxmq.model.namespaces import namespace_problem

__all__ = ["Accounts"]

EVERYWHERE = "*"  # instead of a namespace
_DECOY = Document(Kind.DECOY, "/", "")


class _User(msgspec.Struct, frozen=True):
    password: str
    scram: str
    namespace: str = ""


class _Decoy(msgspec.Struct, frozen=True):
    key: str


class _Permission(msgspec.Struct, frozen=True):
    rules: tuple[PermissionRule, ...]


class Accounts:
    """An AccountsPort, of one life of a node. documents: of its cluster. learn: takes users and permissions, None for
    those that are as they were or that this node does not use. say: (level, cause, text, fields)."""

    def __init__(self, documents: Documents, learn: Callable[[Users | None, Acl | None], None], auth: Auth,
                 say: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self._documents = documents
        self._learn = learn
        self._say = say
        self.users_used = auth.cluster_users
        self.permissions_used = auth.cluster_permissions
        self._users: dict[str, User] = {}
        self._permissions: dict[Document, Permission] = {}
        self._rules: dict[Document, tuple[Rule, ...] | None] = {}
        self._told = False
        documents.attach(self._changed)

    def _changed(self, changed: Sequence[Document]) -> None:
        users = permissions = not self._told
        for document in changed:
            if document.kind is Kind.USER:
                self._read_user(document)
            elif document.kind is Kind.PERMISSION:
                self._read_permission(document)
            users = users or document.kind in (Kind.USER, Kind.DECOY)
            permissions = permissions or document.kind is Kind.PERMISSION
        self._told = True
        users, permissions = users and self.users_used, permissions and self.permissions_used
        if users or permissions:
            self._learn(Users(dict(self._users), self._decoy()) if users else None,
                        self._acl() if permissions else None)

    def _acl(self) -> Acl:
        rules: dict[str, tuple[Rule, ...] | None] = {}
        for document, some in self._rules.items():
            others = rules.get(document.name, ())
            rules[document.name] = None if some is None or others is None else others + some
        return AclByUser(rules)

    def _read_permission(self, document: Document) -> None:
        self._permissions.pop(document, None)
        self._rules.pop(document, None)
        value = self._documents.get(document)
        if value is None:
            return
        try:
            given = msgspec.json.decode(value, type=_Permission).rules
            self._rules[document] = tuple(_rule(document, rule) for rule in given)
            self._permissions[document] = Permission(namespace=document.namespace, user=document.name, rules=given)
        except ValueError as error:
            self._rules[document] = None
            self._permissions[document] = Permission(namespace=document.namespace, user=document.name, rules=None)
            self._say("error", f"permission {document.namespace} {document.name}",
                      "permissions in etcd cannot be used: everything is denied to this user",
                      {"user": document.name, "namespace": document.namespace, "why": str(error)})

    def _read_user(self, document: Document) -> None:
        self._users.pop(document.name, None)
        value = self._documents.get(document)
        if value is None:
            return
        try:
            found = msgspec.json.decode(value, type=_User)
            self._users[document.name] = User.of(document.name, found.password, found.scram, found.namespace)
        except ValueError as error:
            self._say("error", f"user {document.name}", "a user in etcd cannot be used, and cannot log in",
                      {"user": document.name, "why": str(error)})

    def _decoy(self) -> bytes:
        value = self._documents.get(_DECOY)
        try:
            key = b"" if value is None else base64.b64decode(msgspec.json.decode(value, type=_Decoy).key, validate=True)
        except (*MALFORMED, ValueError):
            key = b""
        # Without users, or with what somebody else has written, only the cost of an answer is like that of a user's.
        return key if len(key) == DECOY_KEY_SIZE_BYTES else secrets.token_bytes(DECOY_KEY_SIZE_BYTES)

    # ------------------------------------------------------------------ AccountsPort

    def users(self) -> Sequence[UserInfo]:
        """See the port."""
        return [UserInfo(name=user.name, namespace=user.namespace) for _, user in sorted(self._users.items())]

    async def put_users(self, changes: Sequence[UserChange]) -> dict[str, Any]:
        """See the port."""
        edits: dict[Document, Edit] = {}
        for change in changes:
            try:
                User.of(change.name, change.password, change.scram, change.namespace or "")
            except ValueError as error:
                raise QueueRefused("invalid", f"the user {change.name!r}: {error}") from None
            edits[Document(Kind.USER, "/", change.name)] = _put(change)
        if len(edits) < len(changes):
            raise QueueRefused("invalid", "a user is named twice")
        if self._documents.get(_DECOY) is None:
            edits[_DECOY] = _make_decoy
        done = await self._documents.edit(edits)
        created = sum(before is None for document, before in done.before.items() if document.kind is Kind.USER)
        return {"created": created, "changed": len(changes) - created, "behind": done.behind}

    async def remove_user(self, name: str) -> dict[str, Any]:
        """See the port."""
        document = Document(Kind.USER, "/", name)
        edits: dict[Document, Edit] = {document: _no_more}
        if self._documents.get(document) is not None:       # else it may be the name of a certificate
            edits |= {one: _no_more for one in self._permissions if one.name == name}
        done = await self._documents.edit(edits)
        if done.before[document] is None:
            raise QueueRefused("not_found", f"the cluster has no user {name}", "fluxmq user list shows all")
        return {"removed": name, "behind": done.behind}


    def permissions(self) -> Sequence[Permission]:
        """See the port."""
        return [permission for _, permission in sorted(self._permissions.items(), key=lambda item: item[0][1:])]

    async def set_permission(self, namespace: str, user: str, rules: Sequence[PermissionRule]) -> dict[str, Any]:
        """See the port."""
        document = Document(Kind.PERMISSION, namespace, user)
        if namespace not in ("/", EVERYWHERE) and (problem := namespace_problem(namespace)):
            raise QueueRefused("invalid", f"the namespace {problem}")
        try:
            for number, rule in enumerate(rules, 1):
                _rule(document, rule, f"rule {number}: ")
        except ValueError as error:
            raise QueueRefused("invalid", str(error)) from None
        value = msgspec.json.encode(_Permission(tuple(rules)))
        done = await self._documents.edit({document: lambda before: value})
        return {"result": "created" if done.before[document] is None else "changed", "behind": done.behind}

    async def remove_permission(self, namespace: str, user: str) -> dict[str, Any]:
        """See the port."""
        document = Document(Kind.PERMISSION, namespace, user)
        done = await self._documents.edit({document: _no_more})
        if done.before[document] is None:
            raise QueueRefused("not_found", f"{user} has no permissions in the namespace {namespace}",
                               "fluxmq permission list shows all")
        return {"removed": True, "behind": done.behind}


def _rule(document: Document, rule: PermissionRule, where: str = "") -> Rule:
    """Raises ValueError."""
    verb = rule.allow or rule.deny
    if bool(rule.allow) == bool(rule.deny) or verb not in VERBS:
        raise ValueError(f"{where}either `allow` or `deny` is one of {', '.join(VERBS)}")
    if not rule.topics:
        raise ValueError(f"{where}a rule needs topics")
    for topic in rule.topics:
        if problem := topic_problem(topic):
            raise ValueError(f"{where}`{topic}`: {problem}")
    return Rule(allows=bool(rule.allow), verb=verb, topics=rule.topics, clients=rule.client,
                users=() if document.name == ANONYMOUS else (document.name,), anonymous=document.name == ANONYMOUS,
                namespaces=() if document.namespace == "/" else (document.namespace,))


def _no_more(before: bytes | None) -> None:
    return None


def _put(change: UserChange) -> Edit:
    def edit(before: bytes | None) -> bytes:
        namespace = change.namespace
        if namespace is None:
            try:
                namespace = "" if before is None else msgspec.json.decode(before, type=_User).namespace
            except MALFORMED:
                namespace = ""
        return msgspec.json.encode(_User(change.password, change.scram, namespace))
    return edit


def _make_decoy(before: bytes | None) -> bytes:
    return before or msgspec.json.encode(_Decoy(base64.b64encode(secrets.token_bytes(DECOY_KEY_SIZE_BYTES)).decode()))


if TYPE_CHECKING:
    _port: type[AccountsPort] = Accounts
