"""Three tenants with the same names in everything, over kill -9 and losses of power: what each has afterwards is what
the same plan leaves of it when it is alone and dies at the same places, and nothing of another.

A crash comes at a barrier of the plan, when what was answered is durable; before it every tenant sends a burst that
nobody waits for. Of the burst any beginning may be there, for its own tenant.
"""
from __future__ import annotations

import itertools
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from crash.process import CrashBroker, PoweredBroker
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kit.tenant_plans import interleave, read_all, with_barriers
from kit.tenants import CLIENTS, Tenant, specs_of
from oracle.mqtt import Publish

TENANTS = ("/", "a", "b")
SYNC, BURST = 9_000, 10_000       # numbers that no plan has; those of bursts from here on
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
Plan = list[tuple[Any, ...]]
_numbers = itertools.count()


def settings_of(names: tuple[str, ...]) -> dict[str, object]:
    specs = [spec for name in names for spec in specs_of(name)]
    return {"amqp091.virtual_hosts": "[/, a, b]", "queues": msgspec.json.encode(specs).decode()}


def play(broker: CrashBroker, names: tuple[str, ...], plan: Plan, chance: Random) -> dict[str, dict[str, set[str]]]:
    """Of each tenant: who has got what at last, as sets, and what was left in queues."""
    broker.settings |= settings_of(names)
    broker.environ |= {"FLUXMQ_TEST_FILE_BYTES": "4096"}
    broker.start()
    try:
        tenants = [Tenant(name, broker.address, broker.addresses["amqp091/plain"]) for name in names]
        bursts = iter(range(BURST, 1 << 30, 100))

        def crash() -> None:
            for tenant in tenants:
                tenant.drain()
            for tenant in tenants:      # behind everything else in the journal: what was settled is durable too
                tenant.publisher.publish("sync", tenant.body(SYNC), 1, retain=True)
            first = next(bursts)
            for tenant in tenants:
                tenant.publisher.send(*(Publish(topic=topic, payload=tenant.body(first + at), qos=1,
                                                packet_id=tenant.publisher.next_packet_id())
                                        for at in range(30) for topic in ("t/1", "$queue/j0")))
                for at in range(30, 60):
                    tenant.wire.publish(1, "", "q0", tenant.body(first + at), {"delivery_mode": 2})
            broker.crash()
            for tenant in tenants:
                tenant.abandon()
            broker.start()
            for tenant in tenants:
                tenant.open()
                tenant.seen["burst"].append("")

        interleave(tenants, [plan] * len(tenants), chance, crash)
        for tenant in tenants:
            tenant.said.clear()
            read_all(tenant)
        broker.check()
        return {tenant.name: found(tenant) for tenant in tenants}
    finally:
        broker.stop()


def found(tenant: Tenant) -> dict[str, set[str]]:
    """Without the bursts, of which nobody was promised anything, without what was told of how it came, and without a
    reader whom a crash may stop while its stream is read from the disk."""
    sets = {who: {" ".join(one.split()[:2]) for one in came if int(one.split()[1]) < BURST}
            for who, came in tenant.seen.items() if who not in ("orders", "cancelled", "burst", "r0")}
    consumed = {one.split()[1] for who, came in sets.items() if who == "workers" or who.startswith("consumer")
                for one in came}        # these may come again: nobody was promised that a settlement is durable
    sets["left"] = {f"{answer}" for verb, answer in tenant.said
                    if verb == "get" and isinstance(answer, int) and answer < BURST} - consumed
    connected = [answer for verb, answer in tenant.said if verb == "connect"]
    sets["present"] = {who for who, present in zip(CLIENTS, connected, strict=False) if present}
    return {who: came for who, came in sets.items() if came}


def check(folder: Path, plan: Plan, seed: int, powered: bool = False) -> None:
    chance = Random(seed)

    def broker(name: str) -> CrashBroker:
        if not powered:
            return CrashBroker(folder / f"{name}{next(_numbers)}")
        return PoweredBroker(folder / f"{name}{next(_numbers)}", chance)

    whose = chance.choice(TENANTS)
    [wanted] = play(broker("alone"), (whose,), plan, chance).values()
    for name, came in play(broker("together"), TENANTS, plan, chance).items():
        assert came == wanted, name


@settings(max_examples=2, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(plan=with_barriers(10, 30), seed=st.integers(0, 1 << 32))
def test_kill(tmp_path: Path, plan: Plan, seed: int) -> None:
    check(tmp_path, plan, seed)


@settings(max_examples=1, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(plan=with_barriers(10, 30), seed=st.integers(0, 1 << 32))
def test_loss_of_power(tmp_path: Path, plan: Plan, seed: int) -> None:
    check(tmp_path, plan, seed, powered=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=200, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(plan=with_barriers(20, 100), seed=st.integers(0, 1 << 32))
def test_kill_for_long(tmp_path: Path, plan: Plan, seed: int) -> None:
    check(tmp_path, plan, seed)
