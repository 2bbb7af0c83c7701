"""The part of the composition root that is about namespaces: those of the configuration, and who looks after all."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluxmq._core.memory.namespace import Namespace
from fluxmq.engine.namespaces import NamespaceAdmin
from fluxmq.engine.ports.clients import ClientsPort
from fluxmq.model.namespaces import NamespaceLimits

if TYPE_CHECKING:
    from fluxmq.app.server import Server

__all__ = ["configured", "declare", "port"]


def configured(server: Server) -> frozenset[str]:
    """Names of those that the configuration has: nobody deletes them."""
    config = server.config
    return frozenset((*config.namespace_names(), *(spec.namespace for spec in config.queues)))


def port(server: Server, clients: Sequence[ClientsPort]) -> NamespaceAdmin:
    """For the admin ring. clients: of all protocols."""
    return NamespaceAdmin(server.broker, server.queue_manager, server.amqp091.exchanges, clients,
                          lambda: configured(server))


def set_limits(namespace: Namespace, limits: NamespaceLimits) -> None:
    """What is there stays, and counts."""
    namespace.connections_max, namespace.sessions_max = limits.connections, limits.sessions
    namespace.queues_max, namespace.bytes_max = limits.queues, limits.bytes
    namespace.limit_rate(limits.messages_per_second)


def declare(server: Server) -> None:
    """The namespaces of the configuration, after what is on disk is known: before, their numbers could be others'."""
    for name in server.config.namespace_names():
        server.hub.namespaces.add(name.encode())
    for spec in server.config.namespaces:
        set_limits(server.hub.namespaces[spec.name.encode()], spec.limits)
    for namespace in server.hub.namespaces.values():
        if not namespace.open:
            server.log.warning("a namespace is on the disk and not in the configuration: nobody can connect to it. Add "
                               "it to `namespaces`, or open it with `fluxmq namespace create`, or delete it with "
                               "`fluxmq namespace delete`", extra={"namespace": namespace.text})
