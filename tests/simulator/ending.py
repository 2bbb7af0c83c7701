"""The end of a history: a last crash or stop, everybody comes back, drains what there is, and the verdict is given."""
from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.amqp_client import AmqpClient
from simulator.judge import Wrong
from simulator.mqtt_client import MqttClient

if TYPE_CHECKING:
    from simulator.history import History

__all__ = ["end"]

NAMES = ("q1", "q2", "dead")     # of queues that AMQP declares
ROUNDS = 14         # of draining, with time between them for what waits
ROUND_MS = 1500


def end(history: History) -> None:
    """Raises Wrong, Refused."""
    world, chance = history.world, history.chance
    disk = world.disk
    disk.die_at, disk.room = None, 1 << 40
    disk.failing.clear()
    how = chance.choice(("quiet", "kill", "power", "power", "stop", "flip"))
    world.tell(f"end {how}")
    if world.node is not None and how == "quiet":
        world.quiet()
    if world.node is not None:
        if how == "stop":
            world.stop()
        else:
            world.crash("kill" if how == "kill" else "power")
    disk.die_at = None
    disk.failing.clear()
    if how == "flip" and not history.calm:
        world.flipped = disk.flip()
        world.tell(f"flip {world.flipped}")
    world.start()
    for client in world.clients:
        client.slow = False
        assert world.node is not None
        if isinstance(client, AmqpClient):
            client.connect(world.node)
        elif client.session.known or chance.random() < 0.5:
            client.connect(world.node, clean=False, kept=client.session.known)
    world.quiet()
    _drain(history)
    world.books.verdict_of_queues()
    _retained(history)


def _drain(history: History) -> None:
    """Every group of every queue has a consumer that takes all, and those of old settle what they get too."""
    world = history.world
    books, node = world.books, world.node
    assert node is not None
    now_ms = lambda: world.clock.mono_ms  # noqa: E731
    books.draining = True
    drained = [(queue, name) for queue in books.queues.values() if queue.name not in NAMES
               for name in ([""] if queue.kind == "stream" else sorted(queue.groups.keys() | {"default"}))]
    drains = {each: MqttClient(f"drain-{each[1]}", 5, books, history.chance, now_ms, each[0])
              for each in sorted({(queue.namespace, name or "default") for queue, name in drained})}
    world.mqtt += drains.values()
    for client in drains.values():
        client.connect(node, clean=True, kept=False)
    hosts = {vhost: AmqpClient(f"drain-{vhost}", vhost, books, history.chance, now_ms) for vhost in history.topologies}
    world.amqp += hosts.values()
    for each in hosts.values():
        each.connect(node)
    world.quiet(judge=False)
    for queue, name in drained:
        drains[queue.namespace, name or "default"].consume(queue.name, name, 1, manual=False,
                                                           offset="" if name else "first")
    for vhost, topology in history.topologies.items():
        for queue_name in NAMES:
            if topology.key(queue_name) in topology.there:
                hosts[vhost].exists(queue_name)
                hosts[vhost].consume(queue_name, 0)
    history.drained_at = world.clock.mono_ms
    for _ in range(ROUNDS):
        world.quiet(judge=False)
        for vhost, each in hosts.items():
            if each.refused and not books.losses_allowed:
                raise Wrong("lost", f"virtual host {vhost}: what was declared is gone: {each.refused[-1]}")
        if not _settle_all(history):
            if all(one.not_before_ms <= world.clock.mono_ms for one in books.messages) and world.clock.mono_ms > \
                    history.drained_at + 3 * ROUND_MS:
                break
        else:
            history.drained_at = world.clock.mono_ms
        for _ in range(ROUND_MS // 250):
            world.tick(250)
    world.quiet()


def _settle_all(history: History) -> bool:
    """Whether anybody had anything in hand."""
    found = False
    for client in history.world.mqtt:
        for held in list(client.held):
            found = True
            if held.packet_id:
                client.answer(held)
            else:
                client.held.remove(held)
                client.order("$ack", held)
    for each in history.world.amqp:
        for delivery in list(each.held):
            found = True
            each.settle(delivery, "ack")
    return found


def _retained(history: History) -> None:
    world = history.world
    assert world.node is not None
    readers = [MqttClient("reader", 5, world.books, history.chance, lambda: world.clock.mono_ms, vhost)
               for vhost in history.topologies]
    world.mqtt += readers
    for reader in readers:
        reader.connect(world.node, clean=True, kept=False)
    world.quiet(judge=False)
    for reader in readers:
        reader.subscribe("r/#", 1)
    world.quiet(judge=False)
    for reader in readers:
        world.books.verdict_of_retained(reader.namespace, reader.retained)
