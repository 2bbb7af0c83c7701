"""The faults of a campaign: each is done to nodes under load, and undone. PROXIED and SPACED name those that can be
done to nodes with proxies between them, and to nodes in network namespaces."""
from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from campaign.nodes import NODES, Nodes, ProxiedNodes, SpacedNodes
from kit.broker import Broker
from kit.proxy import FROM_TARGET, TO_TARGET

__all__ = ["PROXIED", "SPACED", "Done", "Fault"]

GRACE_S = 1.0       # for which a fault goes on when its effect is there


@dataclass(frozen=True)
class Done:
    """what: in words. fails: nodes that have died or lost their lease by it: what only they had comes late, and QoS 2
    that was on its way to their sessions may come twice (docs/guide/cluster-faults.md). restarts: nodes that have a new
    lease because they went in good order, for which neither holds."""

    what: str
    fails: frozenset[int] = frozenset()
    restarts: frozenset[int] = frozenset()


def _start(nodes: Nodes, *numbers: int) -> None:
    """Side by side: none is ready before a majority runs."""
    with ThreadPoolExecutor(len(numbers)) as pool:
        list(pool.map(Broker.start, [nodes[number] for number in numbers]))


def kill(nodes: Nodes, chance: Random) -> Done:
    """kill -9, and started again when its lease has ended."""
    number = chance.randrange(NODES)
    nodes[number].kill()
    nodes.gone(number)
    time.sleep(GRACE_S)
    _start(nodes, number)
    return Done(f"kill -9 of n{number}, back after its lease", frozenset({number}))


def kill_fast(nodes: Nodes, chance: Random) -> Done:
    """kill -9, and started again at once."""
    number = chance.randrange(NODES)
    nodes[number].kill()
    _start(nodes, number)
    return Done(f"kill -9 of n{number}, back at once", frozenset({number}))


def kill_all(nodes: Nodes, chance: Random) -> Done:
    """kill -9 of all nodes."""
    order = chance.sample(range(NODES), NODES)
    for number in order:
        nodes[number].kill()
    _start(nodes, *order)
    return Done("kill -9 of all", frozenset(range(NODES)))


def stop(nodes: Nodes, chance: Random) -> Done:
    """SIGTERM, and started again when the process has ended."""
    number = chance.randrange(NODES)
    nodes[number].terminate()
    _start(nodes, number)
    return Done(f"SIGTERM to n{number}, back at once", restarts=frozenset({number}))


def leave(nodes: Nodes, chance: Random) -> Done:
    """`fluxmq cluster leave`, and started again."""
    number = chance.randrange(NODES)
    nodes.leave(number)
    _start(nodes, number)
    return Done(f"n{number} leaves and comes back", restarts=frozenset({number}))


def still_half(nodes: Nodes, chance: Random) -> Done:
    """SIGSTOP for half of a lease."""
    number = chance.randrange(NODES)
    nodes.pause(number)
    time.sleep(nodes.ttl_s / 2)
    nodes.resume(number)
    return Done(f"n{number} stands still for half a lease")


def still(nodes: Nodes, chance: Random) -> Done:
    """SIGSTOP until the lease has ended, and on."""
    number = chance.randrange(NODES)
    nodes.pause(number)
    nodes.gone(number)
    time.sleep(GRACE_S)
    nodes.resume(number)
    return Done(f"n{number} stands still beyond its lease", frozenset({number}))


def revoke_one(nodes: Nodes, chance: Random) -> Done:
    """etcd ends a lease."""
    number = chance.randrange(NODES)
    nodes.revoke(number)
    time.sleep(GRACE_S)
    return Done(f"the lease of n{number} is revoked", frozenset({number}))


def revoke_all(nodes: Nodes, chance: Random) -> Done:
    """etcd ends all leases."""
    nodes.revoke(*chance.sample(range(NODES), NODES))
    time.sleep(GRACE_S)
    return Done("all leases are revoked", frozenset(range(NODES)))


def one_way(nodes: ProxiedNodes, chance: Random) -> Done:
    """What one node sends to another, or the answers to it, stands still; both keep their leases."""
    source = chance.randrange(NODES)
    target = chance.choice(nodes.others(source))
    direction, word = chance.choice([(TO_TARGET, "sends"), (FROM_TARGET, "is answered")])
    nodes.link(source, target).stall(direction)
    time.sleep(chance.uniform(1.5, 3) * nodes.ttl_s)
    nodes.resume_links()
    return Done(f"what n{source} {word} over its link to n{target} stands still")


def both_ways(nodes: ProxiedNodes, chance: Random) -> Done:
    """No node reaches one that keeps its lease."""
    number = chance.randrange(NODES)
    for link in nodes.links_of(number):
        link.stall()
    time.sleep(chance.uniform(1, 2.5) * nodes.ttl_s)
    nodes.resume_links()
    return Done(f"no other node reaches n{number}, nor it them; etcd is reached")


def cut_off(nodes: ProxiedNodes, chance: Random) -> Done:
    """A node and its member of etcd reach no other, nor are they reached."""
    number = chance.randrange(NODES)
    nodes.cut_off(number)
    nodes.gone(number)
    time.sleep(GRACE_S)
    nodes.resume_links()
    return Done(f"n{number} is cut off with its member of etcd", frozenset({number}))


def unplug(nodes: SpacedNodes, chance: Random) -> Done:
    """The plug of a node is pulled: nobody is told that its packets go nowhere."""
    number = chance.randrange(NODES)
    nodes.network.cut(number)
    nodes.gone(number)
    time.sleep(GRACE_S)
    nodes.resume_links()
    return Done(f"n{number} is unplugged", frozenset({number}))


def lose_from(nodes: SpacedNodes, chance: Random) -> Done:
    """What a node and its member of etcd send vanishes."""
    number = chance.randrange(NODES)
    nodes.network.lose_from(number)
    nodes.gone(number)
    time.sleep(GRACE_S)
    nodes.resume_links()
    return Done(f"what n{number} sends vanishes", frozenset({number}))


def lose_to(nodes: SpacedNodes, chance: Random) -> Done:
    """What is sent to a node and its member of etcd vanishes."""
    number = chance.randrange(NODES)
    nodes.network.lose_to(number)
    nodes.gone(number)
    time.sleep(GRACE_S)
    nodes.resume_links()
    return Done(f"what is sent to n{number} vanishes", frozenset({number}))


def vanish_half(nodes: SpacedNodes, chance: Random) -> Done:
    """Nothing passes between a node and the others for half of a lease."""
    number = chance.randrange(NODES)
    nodes.network.lose_from(number)
    nodes.network.lose_to(number)
    time.sleep(nodes.ttl_s / 2)
    nodes.resume_links()
    return Done(f"n{number} is not there for half a lease")


def nothing(nodes: Nodes, chance: Random) -> Done:
    """For queues that move, and clients that hop, without a fault."""
    time.sleep(nodes.ttl_s)
    return Done("no fault")


Fault = Callable[[Any, Random], Done]
ANYWHERE: dict[str, Fault] = {
    "kill": kill, "kill-fast": kill_fast, "kill-all": kill_all, "stop": stop, "leave": leave,
    "still-half": still_half, "still": still, "nothing": nothing,
}
PROXIED = ANYWHERE | {"revoke-one": revoke_one, "revoke-all": revoke_all, "one-way": one_way, "both-ways": both_ways,
                      "cut-off": cut_off}
SPACED = ANYWHERE | {"unplug": unplug, "lose-from": lose_from, "lose-to": lose_to, "vanish-half": vanish_half}
