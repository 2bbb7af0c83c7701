"""A broker in this process with clients of both protocols, which are let go of before it ends."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluxmq.access.authority import Authority
from fluxmq.app.server import Server
from fluxmq.engine.ports.cluster import Cluster
from kit.amqp_wire import Wire
from kit.client import Client
from kit.node import Node
from kit.watch import wait_until

__all__ = ["World"]


class World:
    """As Node, with a listener of AMQP."""

    def __init__(self, directory: Path, settings: dict[str, object] | None = None,
                 authority: Authority | None = None, cluster: Cluster | None = None) -> None:
        given: dict[str, object] = {"server.amqp091.plain.addr": "127.0.0.1:0",
                                    "server.admin_socket": directory / "s"}
        self.node = Node(directory, given | (settings or {}), authority, cluster)
        self.clients: list[Client | Wire] = []

    def open(self, version: int = 5) -> Client:
        """A client that has sent nothing yet."""
        client = Client(self.node.address, version)
        self.clients.append(client)
        return client

    def mqtt(self, name: str = "", version: int = 5, **options: Any) -> Client:
        client = self.open(version)
        client.connect(name, **options)
        return client

    def amqp(self, channels: int = 1, *, confirms: bool = False) -> Wire:
        wire = Wire(self.node.listens("amqp091.plain")).login()
        self.clients.append(wire)
        for number in range(1, channels + 1):
            wire.open_channel(number)
            if confirms:
                wire.call(number, "confirm.select")
        return wire

    def wait_until(self, done: Callable[[Server], object]) -> None:
        wait_until(lambda: self.node.call(done))

    def stop(self) -> None:
        for client in self.clients:
            client.close() if isinstance(client, Client) else client.drop()
        self.node.stop()
