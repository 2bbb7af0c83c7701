"""What the admin ring asks about namespaces, as a Protocol: `NamespacesPort`. `engine.namespaces.NamespaceAdmin` is
one.

Everything happens on the loop's thread and returns at once. What is changed is durable when `QueuesPort.when_durable`
says so, which is about all that a node records. Names are text as a user wrote it.
"""
from __future__ import annotations

from typing import Any, Literal, Protocol

__all__ = ["NamespacesPort"]


class NamespacesPort(Protocol):
    """The namespaces of a node. All but the first method raise QueueRefused."""

    def list_namespaces(self) -> list[dict[str, Any]]:
        """Each namespace, "/" first, then by name: name, open (clients may connect to it), kept (an operator made it),
        configured (the configuration names it), connections, sessions, queues, messages (in its queues), retained (how
        many messages) and retained_bytes."""

    def describe(self, name: str) -> dict[str, Any]:
        """One of them. not_found: there is no such namespace."""

    def create(self, name: str) -> Literal["created", "opened", "unchanged"]:
        """Makes a namespace that is kept until it is deleted, whatever the configuration says. opened: it existed on
        disk, but clients could not connect to it. invalid: the name is not allowed."""

    def delete(self, name: str) -> dict[str, int]:
        """Ends the namespace with all that is in it: connections, sessions (their wills are not published), queues and
        their messages, exchanges, retained messages. Returns how many connections, sessions, queues, messages and
        retained went. Another namespace may have its name at once. not_found; conflict: it is "/", or the configuration
        names it."""
