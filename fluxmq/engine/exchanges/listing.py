"""Exchanges and bindings for operators: `engine.ports.exchanges.ExchangesPort` over an ExchangeManager."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from fluxmq._core.amqp091.fields import decode_table
from fluxmq._core.exchange.exchange import Binding, Exchange, Exchanges
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.amqp.admin import plain, text
from fluxmq.model.amqp import wire

__all__ = ["ExchangeListing"]


class ExchangeListing:
    """Machine. See the port."""

    def __init__(self, manager: ExchangeManager) -> None:
        self._manager = manager

    def exchanges(self, namespace: str | None) -> list[dict[str, Any]]:
        return [{"name": text(name), "namespace": text(vhost), "type": text(exchange.data.type),
                 "durable": exchange.durable, "auto_delete": exchange.auto_delete, "internal": exchange.internal,
                 "arguments": plain(decode_table(exchange.data.arguments)), "bindings": len(exchange.outbound)}
                for vhost, hosted in self._hosts(namespace) for name, exchange in sorted(hosted.exchanges.items())
                if name]

    def bindings(self, namespace: str | None, exchange: str | None, queue: str | None, start: int,
                 count: int) -> tuple[list[dict[str, Any]], int | None]:
        found: list[Binding] = []
        known = False
        for _, hosted in self._hosts(namespace):
            here, there = self._chosen(hosted, exchange, queue)
            known = known or here
            if len(found) <= count:
                found += islice(there, start + count + 1 - len(found))
        if not known:
            kind, name = ("queue", queue) if queue is not None else ("exchange", exchange)
            raise QueueRefused("not_found", f"there is no {kind} {name}", f"fluxmq {kind} list names those that are")
        page = found[start:start + count]
        return [_shown(one) for one in page], start + count if len(found) > start + count else None

    def _hosts(self, namespace: str | None) -> list[tuple[bytes, Exchanges]]:
        if namespace is None:
            return sorted(self._manager.vhosts.items(), key=lambda item: (item[0] != b"/", item[0]))
        hosted = self._manager.vhosts.get(wire(namespace))
        if hosted is None:
            raise QueueRefused("not_found", f"no exchange of namespace {namespace} has been used",
                               "fluxmq namespace list names the namespaces")
        return [(wire(namespace), hosted)]

    @staticmethod
    def _chosen(hosted: Exchanges, exchange: str | None, queue: str | None) -> tuple[bool, Iterator[Binding]]:
        """Whether what is named is there; and the bindings that are asked for, in the order in which they were made."""
        if queue is not None:
            end = hosted.queues.get(wire(queue))
            bound = sorted(end.inbound or (), key=_order) if end is not None else []
            return end is not None, (one for one in bound if exchange is None or text(one.source.name) == exchange)
        if exchange is not None:
            source = hosted.exchanges.get(wire(exchange))
            if source is None:
                return False, iter(())
            return True, iter([*source.outbound, *sorted(source.inbound or (), key=_order)])
        return True, (one for _, source in sorted(hosted.exchanges.items()) for one in source.outbound)


def _order(binding: Binding) -> tuple[bytes, bytes, bytes]:
    return binding.source.name, binding.key, binding.arguments


def _shown(binding: Binding) -> dict[str, Any]:
    to_exchange = isinstance(binding.destination, Exchange)
    return {"source": text(binding.source.name), "destination": text(binding.destination.name),
            "to": "exchange" if to_exchange else "queue", "routing_key": text(binding.key),
            "arguments": plain(decode_table(binding.arguments)), "namespace": text(binding.source.data.vhost)}
