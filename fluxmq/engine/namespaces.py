"""Namespaces for the admin ring: implements `engine.ports.namespaces.NamespacesPort`, without I/O.

A namespace is an object of the hub (_core/memory/namespace.pxd); the broker, the queues and the exchanges own its
contents. Ending a namespace is implemented here, because it involves all of them, in an order that stops further
changes first.

    connections, sessions ──► queues ──► exchanges ──► retained messages, the namespace itself

All of it is recorded in one batch of the journal, so a crash leaves the whole namespace or nothing of it.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fluxmq._core.memory.namespace import ROOT, Namespace
from fluxmq.engine.broker import Broker
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.ports.clients import ClientsPort
from fluxmq.engine.ports.namespaces import NamespacesPort
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.limits import NAMESPACE_BYTES_MAX
from fluxmq.model.mqtt import ReasonCode
from fluxmq.model.namespaces import namespace_problem

__all__ = ["NamespaceAdmin", "in_order"]


def in_order(namespace: Namespace) -> tuple[bool, bytes]:
    """The sort key for lists of namespaces: "/" comes first."""
    return namespace.name != ROOT, namespace.name


class NamespaceAdmin:
    """Machine. See the port. clients: of all protocols. configured: returns the names in the configuration. shut:
    returns why the node serves no clients now; "": it does."""

    def __init__(self, broker: Broker, queues: QueueManager, exchanges: ExchangeManager, clients: Sequence[ClientsPort],
                 configured: Callable[[], Container[str]], shut: Callable[[], str] = lambda: "") -> None:
        self._broker, self._queues, self._exchanges = broker, queues, exchanges
        self._hub = broker.hub
        self._clients = clients
        self._configured = configured
        self._shut = shut

    def list_namespaces(self) -> list[dict[str, Any]]:
        """See NamespacesPort."""
        messages: Counter[bytes] = Counter()
        for (namespace, _), state in self._queues.queues.items():
            messages[namespace] += state.queue.waiting
        configured = self._configured()
        return [self._shown(one, messages[one.name], configured)
                for one in sorted(self._hub.namespaces.values(), key=in_order)]

    def describe(self, name: str) -> dict[str, Any]:
        """See NamespacesPort."""
        found = self._find(name)
        return self._shown(found, self._messages(found), self._configured())

    def _find(self, name: str) -> Namespace:
        found = self._hub.namespaces.get(name.encode("utf-8", "surrogateescape"))
        if found is None:
            raise QueueRefused("not_found", f"there is no namespace {name}",
                               "fluxmq namespace list names those that are")
        return found

    def _messages(self, namespace: Namespace) -> int:
        return sum(state.queue.waiting for address, state in self._queues.queues.items()
                   if address[0] == namespace.name)

    @staticmethod
    def _shown(one: Namespace, messages: int, configured: Container[str]) -> dict[str, Any]:
        return {"name": one.text, "open": one.open, "kept": one.kept,
                "configured": one.name == ROOT or one.text in configured, "connections": one.connections,
                "sessions": one.sessions, "queues": one.queues, "messages": messages,
                "retained": one.topics.retained_count, "retained_bytes": one.topics.retained_bytes, "bytes": one.bytes,
                "limits": {"connections": one.connections_max, "sessions": one.sessions_max, "queues": one.queues_max,
                           "bytes": one.bytes_max, "messages_per_second": one.rate_max},
                "refused": {"connections": one.refused_connections, "sessions": one.refused_sessions,
                            "queues": one.refused_queues, "bytes": one.refused_bytes,
                            "messages_per_second": one.held_back}}

    def create(self, name: str) -> Literal["created", "opened", "unchanged"]:
        """See NamespacesPort."""
        raw = name.encode("utf-8", "surrogateescape")
        known = self._hub.namespaces.get(raw)
        if known is self._hub.root:
            return "unchanged"
        if known is None and (problem := namespace_problem(name)):
            raise QueueRefused("invalid", f"the name {problem}", f"a name is 1 to {NAMESPACE_BYTES_MAX} bytes that can "
                                                                 f"be printed, without ':'")
        was_open = known is not None and known.open
        self._hub.namespaces.add(raw, True)
        return "created" if known is None else "unchanged" if was_open else "opened"

    def delete(self, name: str) -> dict[str, int]:
        """See NamespacesPort."""
        namespace = self._find(name)
        if namespace.name == ROOT:
            raise QueueRefused("conflict", "the namespace / is always there", "delete what is in it one by one")
        if namespace.text in self._configured():
            raise QueueRefused("conflict", f"namespace {namespace.text} is in the configuration, and would be made "
                                           f"again", "take it out of the configuration and restart")
        if why := self._shut():
            # What the cluster keeps of its sessions in etcd could not be deleted, and they would come back.
            raise QueueRefused("unavailable", f"{why}: namespace {namespace.text} is not deleted",
                               "repeat it when the node serves clients")
        if self._exchanges.definer is not None and (shared := self._exchanges.defined_in(namespace.name)
                                                    + namespace.queues):
            raise QueueRefused("conflict", f"namespace {namespace.text} has {shared} queues and exchanges, which all "
                                           f"nodes of the cluster have", "delete them first")
        topics = namespace.topics
        gone = {"connections": namespace.connections, "sessions": namespace.sessions, "queues": namespace.queues,
                "messages": self._messages(namespace), "retained": topics.retained_count}
        self._end_sessions(namespace)
        self._end_connections(namespace)
        for address in [address for address in self._queues.queues if address[0] == namespace.name]:
            # the queue may have been deleted together with another one, or with its connection
            if address in self._queues.queues:
                self._queues.delete(address)
        self._exchanges.end_vhost(namespace.name)
        self._broker.share_groups.end_of(namespace)
        self._hub.namespaces.end(namespace)
        return gone

    def _end_sessions(self, namespace: Namespace) -> None:
        """Ends the namespace's MQTT sessions and their connections. Wills are not published: the namespace is ending,
        and another one may be created under the same name."""
        broker = self._broker
        for session in broker.arrivals.of_namespace(namespace.name):
            broker.drop_arrival(session)
        for session in broker.sessions.of_namespace(namespace.name):
            connection = session.data.connection
            if connection is not None:
                broker.disconnect(session, connection, publish_will=False)
                connection.displaced(ReasonCode.ADMINISTRATIVE_ACTION)
            if session.data is not None:
                broker.end_session(session, publish_will=False, offer_qos=0)

    def _end_connections(self, namespace: Namespace) -> None:
        """Ends the remaining connections: those without a session."""
        for port in self._clients:
            for of, client_id in list(port.ids()):
                if of == namespace.text:
                    port.disconnect(of, client_id)


if TYPE_CHECKING:
    # Lets mypy check the class against the port.
    _port: type[NamespacesPort] = NamespaceAdmin
