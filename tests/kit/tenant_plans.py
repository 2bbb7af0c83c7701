"""What a tenant does in tests/property/test_tenants.py and others: plans of operations, how a plan ends, and the state
of a node as one tenant has it. Everything has the same name for every tenant."""
from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st

from kit.tenants import AMQP_QUEUES, CLIENTS, DEAD_QUEUES, EXCHANGES, MQTT_QUEUES, PREDECLARED, Tenant
from kit.watch import wait_until

__all__ = ["BARRIER", "book", "clear_up", "interleave", "operations", "plans", "read_all", "setting", "state_of",
           "with_barriers"]

Operation = tuple[Any, ...]
BARRIER: Operation = ("barrier",)       # every tenant has come here before one goes on

TOPICS = ("t/1", "t/2", "t/will", "cap/x", "deep/a/b")
FILTERS = ("t/1", "t/+", "#", "+/2", "deep/#", "cap/x")
KEYS = ("t.1", "t.*", "#", "k", "deep.#")
ADDRESSES = ("t.1", "t.2", "k", "deep.a.b", "cap.x")
HEADERS = ({"h": "1", "x-match": "any"}, {"h": "2", "x-match": "all"})
KINDS = ("direct", "fanout", "topic", "headers")
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {}, {"x-dead-letter-exchange": "x0"}, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1"},
    {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "t.1"}, {"x-max-length": 3})
GROUPS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("ack", "manual"),), (("ack", "manual"), ("consumer-group", "g")), ())

truth = st.booleans()
qos = st.integers(0, 2)
queues = st.sampled_from(AMQP_QUEUES)
exchanges = st.sampled_from(EXCHANGES)
sources = st.sampled_from((*EXCHANGES, *PREDECLARED))
LAST = 8_000                             # the number of what ends a stream; no plan has it
NUMBER = "number"                        # in its place comes one that no other operation of the plan has


def _op(verb: str, *arguments: Any) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(verb), *(one if isinstance(one, st.SearchStrategy) else st.just(one)
                                      for one in arguments))


def _who(kind: str) -> st.SearchStrategy[str]:
    return st.sampled_from([one for one in CLIENTS if one[0] in kind])


def operations() -> st.SearchStrategy[Operation]:
    """Any of them."""
    sessions = st.one_of(
        _op("connect", _who("cswr"), st.sampled_from([False, False, True]), st.sampled_from([None, None, NUMBER])),
        _op("leave", _who("cswr"), st.sampled_from(["drop", "disconnect"])),
        _op("subscribe", _who("c"), st.sampled_from(FILTERS), qos),
        _op("unsubscribe", _who("c"), st.sampled_from(FILTERS)),
        _op("subscribe", _who("s"), st.sampled_from(["$share/g/t/+", "$share/g/#", "$share/h/t/+"]), qos),
        _op("unsubscribe", _who("s"), st.sampled_from(["$share/g/t/+", "$share/g/#"])),
        _op("subscribe", _who("w"), st.sampled_from(["$queue/j0", "$queue/j1", "$share/g/$queue/j0", "$queue/q0"]),
            st.sampled_from([1, 2]), st.sampled_from(GROUPS)),
        _op("unsubscribe", _who("w"), st.sampled_from(["$queue/j0", "$queue/j1"])),
        _op("subscribe", _who("r"), "$queue/st", 1, st.sampled_from([(("offset", "first"),), ()])))
    messages = st.one_of(
        _op("publish", st.sampled_from(TOPICS), qos, truth, NUMBER),
        _op("publish", st.sampled_from(TOPICS), qos, False, NUMBER),
        _op("publish", st.sampled_from(TOPICS), st.sampled_from([0, 1]), True, 0),
        _op("put", st.sampled_from(["j0", "j1", "st", "q0"]), NUMBER, st.sampled_from([0, 0, 1, 2, 3]),
            st.sampled_from([False, False, True])),
        _op("delay", NUMBER))
    amqp = st.one_of(
        _op("exchange", exchanges, st.sampled_from(KINDS), truth),
        _op("exchange", exchanges, "topic", True),
        _op("exchange_delete", exchanges, truth),
        _op("queue", queues, st.sampled_from([True, True, False]), st.sampled_from(ARGUMENTS)),
        _op("queue_delete", queues), _op("purge", queues),
        _op("bind", queues, sources, st.sampled_from(KEYS), {}, st.sampled_from([True, True, False])),
        _op("bind", queues, "amq.topic", st.sampled_from(KEYS), {}, True),
        _op("bind", queues, "amq.headers", "", st.sampled_from(HEADERS), True),
        _op("bind_exchange", exchanges, sources, st.sampled_from(KEYS), st.sampled_from([True, True, False])),
        _op("bind_exchange", "amq.fanout", exchanges, st.sampled_from(KEYS), True))
    through = st.one_of(
        _op("send", sources, st.sampled_from(ADDRESSES), st.sampled_from(({}, {"h": "1"})), truth, NUMBER),
        _op("send", "amq.topic", st.sampled_from(ADDRESSES), {}, truth, NUMBER),
        _op("send", "", st.sampled_from((*AMQP_QUEUES, "j0", "nobody")), {}, True, NUMBER),
        _op("get", st.sampled_from((*AMQP_QUEUES, "j0", "j1")), st.sampled_from(["no_ack", "ack", "back", "reject"])),
        _op("consume", st.sampled_from((*AMQP_QUEUES, "j0"))), _op("cancel", queues), _op("rpc", NUMBER))
    admin = _op("admin", st.sampled_from(["purge", "delete", "describe"]),
                st.sampled_from((*AMQP_QUEUES, "j0", "j0.dlq", "graves")))
    clients = st.one_of(_op("kick", _who("cs")), _op("look"))
    return st.one_of(sessions, sessions, messages, messages, amqp, amqp, through, through, admin, clients)


def setting() -> list[Operation]:
    """What most plans need, so that few operations are about nothing."""
    return [*(("connect", who, False, None) for who in CLIENTS), ("subscribe", "c0", "t/+", 1),
            ("subscribe", "s0", "$share/g/t/+", 1), ("subscribe", "s1", "$share/g/t/+", 1),
            ("subscribe", "w0", "$queue/j0", 1, GROUPS[0]), ("exchange", "x0", "topic", True),
            ("queue", "q0", True, ARGUMENTS[1]), ("queue", "q1", True, {}),
            ("bind", "q0", "amq.topic", "t.*", {}, True), ("bind", "q1", "x0", "#", {}, True),
            ("bind_exchange", "x0", "amq.topic", "deep.#", True)]


def _numbered(drawn: list[Operation]) -> list[Operation]:
    numbers = itertools.count(1)
    return [tuple(next(numbers) if one == NUMBER else one for one in operation) for operation in drawn]


def plans(least: int, most: int) -> st.SearchStrategy[list[Operation]]:
    return st.lists(operations(), min_size=least, max_size=most).map(lambda drawn: setting() + _numbered(drawn))


def with_barriers(least: int, most: int) -> st.SearchStrategy[list[Operation]]:
    """Two barriers, one of them right at the end, between operations whose outcome a crash leaves certain."""
    return st.tuples(plans(least, most), plans(least, most)).map(
        lambda two: [*map(_steady, two[0]), BARRIER, *map(_steady, map(_later, two[1])), BARRIER])


def _steady(operation: Operation) -> Operation:
    """What a burst would decide, and when a will comes of a client that a crash has cut off, is left out."""
    if operation[0] == "get" or (operation[0] == "queue" and "x-max-length" in operation[3]):
        return ("drain",)
    return (*operation[:3], None) if operation[0] == "connect" else operation


def _later(operation: Operation) -> Operation:
    """With another number than any operation of the first half has."""
    at = {"publish": 4, "put": 2, "send": 5}.get(operation[0])
    if at is None or not operation[at]:
        return operation
    return (*operation[:at], operation[at] + 1000, *operation[at + 1:])


def interleave(tenants: list[Tenant], plans: list[list[Operation]], chance: Random,
               at_barrier: Callable[[], None] = lambda: None) -> None:
    """Every tenant plays its whole plan; the next tenant is up to chance, and none passes a barrier alone, of which all
    plans have as many."""
    places = [0] * len(tenants)
    while True:
        ready = [at for at, (place, plan) in enumerate(zip(places, plans, strict=True))
                 if place < len(plan) and plan[place] != BARRIER]
        if ready:
            at = chance.choice(ready)
            tenants[at].play(plans[at][places[at]])
            places[at] += 1
        elif places[0] < len(plans[0]):
            at_barrier()
            places = [place + 1 for place in places]
        else:
            break
    for tenant in tenants:
        tenant.drain()


# ── the end of a plan ────────────────────────────────────────────────────────────────────────────────────────


def read_all(tenant: Tenant) -> None:
    """What is left for anybody: offline messages, what is retained, what is in queues and streams."""
    for who in CLIENTS:
        tenant.play(("connect", who, False, None))
    for queue in AMQP_QUEUES:
        tenant.play(("queue", queue, True, {}))                 # refused where it is another
    tenant.play(("connect", "reader", True, None))
    tenant.play(("subscribe", "reader", "#", 1))
    tenant.play(("subscribe", "reader", "$queue/st", 1, (("offset", "first"),)))
    tenant.play(("put", "st", LAST, 0, False))       # a stream is read from the disk, in its own time

    def read() -> bool:
        tenant.drain()
        return f"$queue/st {LAST} qos 1" in tenant.seen["reader"]
    wait_until(read)
    tenant.play(("leave", "reader", "disconnect"))
    for who in CLIENTS:
        tenant.play(("leave", who, "disconnect"))
    for queue in (*AMQP_QUEUES, *MQTT_QUEUES[:-1], *DEAD_QUEUES):
        before = len(tenant.said)
        while len(tenant.said) == before or isinstance(tenant.said[-1][1], int):
            tenant.play(("get", queue, "no_ack"))


def clear_up(tenant: Tenant, delete: Callable[[str, str], None]) -> None:
    """Nothing is left. delete: a queue, by namespace and name."""
    for who in (*CLIENTS, "reader"):
        client = tenant.clients.pop(who, None)
        if client is not None:
            client.close()
        tenant._client(who, clean_start=True).disconnect()      # a session that ends with its connection
    tenant.publisher.disconnect()
    for topic in TOPICS:
        last = tenant._client("last")
        last.publish(topic, b"", 1, retain=True)
        last.disconnect()
    for exchange in EXCHANGES:
        tenant.play(("exchange_delete", exchange, False))
    tenant.wire.close()
    for queue in (*AMQP_QUEUES, *MQTT_QUEUES, *DEAD_QUEUES):
        delete(tenant.name, queue)


def book(tenant: Tenant) -> dict[str, Any]:
    """What a tenant has seen, in a form that two runs of a plan have in common: where members share, their order is
    free."""
    free = ("shared", "workers", "orders")
    return {who: Counter(came) if who in free else came for who, came in tenant.seen.items()} | {"said": tenant.said}


def state_of(server: Any, name: str) -> dict[str, Any]:
    """What the node has in one namespace."""
    manager, raw = server.queues.manager, name.encode()
    exchanges = server.amqp091.exchanges.vhosts.get(raw)
    return {
        "sessions": {client: (dict(session.subscriptions), session.queued)
                     for (where, client), session in server.broker.sessions.items() if where == raw},
        "groups": sorted((group, filter_) for where, group, filter_
                         in server.broker.hub.groups if where.name == raw),
        "retained": sorted((topic, kept.payload.split(b"|")[1:]) for topic, kept
                           in server.hub.namespaces[raw].topics.retained),
        "queues": {queue: (state.queue.depth, len(state.queue.delays or ()), sorted(state.groups), sorted(
                       state.producers)) for (where, queue), state in manager.queues.items() if where == raw},
        "exchanges": sorted((one.name, one.kind, sorted((binding.key, binding.destination.name)
                                                        for binding in one.outbound))
                            for one in exchanges.exchanges.values()) if exchanges is not None else [],
        "counted": (server.hub.namespaces[raw].sessions, server.hub.namespaces[raw].queues),
    }


