"""A cluster of RabbitMQ to measure beside FluxMQ's: nodes as in rabbitmq.py, with one port mapper and one cookie.

All is in one directory and on loopback, and all that was started ends when the context is left, however it is left. A
classic queue is on the node on which it was declared (`client-local`).
"""
from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from fluxmq._core.amqp091 import methods as m
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_session import Session
from fluxmq.bench.load.brokers import Broker, BrokerError, Needs, free_port, wait_listening
from fluxmq.bench.load.rabbitmq import (
    NOT_INSTALLED,
    START_SECONDS,
    find_rabbitmq,
    node_name,
    spawn_node,
    start_epmd,
)

__all__ = ["RabbitCluster", "cluster_lines"]

COOKIE = ".erlang.cookie"


def cluster_lines(first: str) -> str:
    """What rabbitmq.conf has besides: the node that others join at their first start, and where queues are."""
    return ("cluster_formation.peer_discovery_backend = classic_config\n"
            f"cluster_formation.classic_config.nodes.1 = {first}\n"
            "queue_master_locator = client-local\n")


@dataclass(slots=True)
class RabbitCluster:
    """folder: an empty directory of its own. Raises BrokerError when a node does not start or join, also when RabbitMQ
    is not installed."""

    folder: Path
    count: int = 3
    nodes: list[Broker] = field(default_factory=list)
    epmd: Broker | None = None

    def __enter__(self) -> RabbitCluster:
        programs = find_rabbitmq()
        if programs is None:
            raise BrokerError(NOT_INSTALLED)
        try:
            self._start(*programs)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, program: str, epmd_program: str) -> None:
        self.epmd = start_epmd(epmd_program, Needs(folder=self.folder))
        cookie = secrets.token_hex(16)
        needs = [Needs(folder=self.folder / f"node-{number}") for number in range(self.count)]
        first = free_port()
        for number, need in enumerate(needs):
            need.folder.mkdir()
            secret = need.folder / COOKIE
            secret.touch(0o600)     # Erlang accepts no file that others can read.
            secret.write_text(cookie)
            process, addresses = spawn_node(program, need, self.epmd, free_port() if number else first,
                                            cluster_lines(node_name(first)))
            self.nodes.append(Broker(f"rabbitmq node {number}", process, addresses))
            if number == 0:
                # Nodes that find nobody to join become clusters of their own.
                wait_listening(self.nodes[0], need, START_SECONDS)
        for node, need in zip(self.nodes, needs, strict=True):
            wait_listening(node, need, START_SECONDS)
        self.check()

    def check(self) -> None:
        """Raises SessionError, which names the node, when one does not know a queue of the first."""
        name = f"whole-{secrets.token_hex(4)}"
        sessions: list[Session] = []
        try:
            for number in range(self.count):
                sessions.append(Session(AmqpOptions(addr=self.address(number)), None))
                sessions[-1].call(m.QueueDeclare(queue=name, passive=number > 0))
            sessions[0].call(m.QueueDelete(queue=name))
        finally:
            for session in sessions:
                session.close()

    def address(self, number: int) -> str:
        """Of AMQP, HOST:PORT."""
        return self.nodes[number].addresses["amqp"]

    def stop(self) -> None:
        """Ends all nodes and the port mapper; returns when they have ended."""
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.terminate()        # all at once: each takes seconds
        try:
            for node in self.nodes:
                node.stop()
        finally:
            if self.epmd is not None:
                self.epmd.stop()
            self.nodes, self.epmd = [], None
