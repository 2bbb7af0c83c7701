"""The part of the composition root that declares the namespaces of the configuration."""
from __future__ import annotations

from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.namespace import Namespace
from fluxmq.app.logs import Notes
from fluxmq.model.config import Config
from fluxmq.model.namespaces import NamespaceLimits

__all__ = ["configured", "declare"]


def configured(config: Config) -> frozenset[str]:
    """Names of the namespaces in the configuration, which cannot be deleted."""
    return frozenset((*config.namespace_names(), *(spec.namespace for spec in config.queues)))


def set_limits(namespace: Namespace, limits: NamespaceLimits) -> None:
    """Sets the limits. Existing connections, sessions and queues stay, and count."""
    namespace.connections_max, namespace.sessions_max = limits.connections, limits.sessions
    namespace.queues_max, namespace.bytes_max = limits.queues, limits.bytes
    namespace.limit_rate(limits.messages_per_second)


def declare(config: Config, hub: Hub, notes: Notes) -> None:
    """Declares the configured namespaces after recovery: before it, they could get numbers of stored ones."""
    for name in config.namespace_names():
        hub.namespaces.add(name.encode())
    for spec in config.namespaces:
        set_limits(hub.namespaces[spec.name.encode()], spec.limits)
    for namespace in hub.namespaces.values():
        if not namespace.open:
            notes.log.warning("a namespace is on the disk and not in the configuration: nobody can connect to it. Add "
                              "it to `namespaces`, or open it with `fluxmq namespace create`, or delete it with "
                              "`fluxmq namespace delete`", extra={"namespace": namespace.text})
