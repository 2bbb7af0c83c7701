"""A short look whether every node serves both protocols: each gets a message of the other protocol from the next node.

    node 1 ── MQTT, tryout/check/node-2/amqp ──► an AMQP queue at node 2, bound to amq.topic
    node 1 ── AMQP, amq.topic ────────────────► an MQTT subscription at node 2
"""
from __future__ import annotations

import asyncio

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.amqp091_machine import AmqpMessage
from fluxmq._core.errors import FluxError
from fluxmq.client import Client
from fluxmq.tryout.amqp import AmqpClient
from fluxmq.tryout.asking import TryoutError
from fluxmq.tryout.demo import USER
from fluxmq.tryout.nodes import Node, Nodes

__all__ = ["check"]

LIMIT_S = 60.0
TOPIC = "tryout/check/{}/{}"
EXCHANGE = "amq.topic"


async def check(nodes: Nodes) -> None:
    """Raises TryoutError."""
    every = list(nodes)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_look(every[number - 1], node)) for number, node in enumerate(every)]
    wrong = [text for task in tasks if (text := task.result())]
    if wrong:
        raise TryoutError("; ".join(wrong))


async def _look(sender: Node, node: Node) -> str:
    """What is wrong with the two; "": nothing."""
    for what, way in (("MQTT to AMQP", _to_amqp), ("AMQP to MQTT", _to_mqtt)):
        try:
            async with asyncio.timeout(LIMIT_S):
                await way(sender, node)
        except (OSError, FluxError) as error:       # TimeoutError is an OSError
            return f"{what}, from {sender.name} to {node.name}: {str(error) or 'nothing came'}"
    return ""


async def _to_amqp(sender: Node, node: Node) -> None:
    came = asyncio.Event()

    def on_message(message: AmqpMessage) -> None:
        came.set()

    topic = TOPIC.format(node.name, "amqp")
    consumer = AmqpClient(node.ports.address("amqp"), "check", on_message)
    await consumer.open()
    try:
        queue = (await consumer.call(m.QueueDeclare(exclusive=True, auto_delete=True))).queue
        await consumer.call(m.QueueBind(queue=queue, exchange=EXCHANGE, routing_key=topic.replace("/", ".")))
        await consumer.consume(queue, 1)
        async with _mqtt(sender) as publisher:
            await publisher.publish(topic, b"checked", 1)
            await came.wait()
    finally:
        await consumer.close()


async def _to_mqtt(sender: Node, node: Node) -> None:
    topic = TOPIC.format(node.name, "mqtt")
    publisher = AmqpClient(sender.ports.address("amqp"), "check")
    await publisher.open(confirms=True)
    try:
        async with _mqtt(node) as consumer:
            await consumer.subscribe(topic, 1)
            await publisher.publish(topic.replace("/", "."), b"checked", exchange=EXCHANGE)
            await anext(consumer.messages)
    finally:
        await publisher.close()


def _mqtt(node: Node) -> Client:
    return Client(node.ports.address("mqtt"), username=USER, password=USER, session_expiry_s=0)
