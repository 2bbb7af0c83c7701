"""A storage directory that is set aside: whole, and recognised as the old one until it is."""
from __future__ import annotations

import random

import pytest
from simulator.calls import ROOT, SimOps
from simulator.disk import Dead, Directory, Disk

from fluxmq.storage.aside import set_storage_aside
from fluxmq.storage.node_identity import NodeIdentity


def filled() -> Disk:
    disk = Disk(random.Random(1))
    ops = SimOps(disk)
    for name in ("journal", "state", "queues", "etcd"):
        ops.mkdir(ROOT / name)
        disk.pwrite(ops.open(ROOT / name / "file", True), name.encode(), 0)
    NodeIdentity(ROOT, ops, lambda: "old").advance(3)
    disk.sync_all()
    return disk


def test_what_is_the_stores_goes_and_the_rest_stays() -> None:
    for number in (1, 2):
        disk = filled() if number == 1 else disk        # noqa: F821
        assert set_storage_aside(ROOT, SimOps(disk)) == ROOT / f"former-{number}"
        aside = disk.top.names[f"former-{number}"]
        assert isinstance(aside, Directory) and "node-identity" in aside.names and "etcd" in disk.top.names
        assert NodeIdentity(ROOT, SimOps(disk), lambda: "new").identity == "new"
        NodeIdentity(ROOT, SimOps(disk), lambda: "new").advance(1)


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_death_in_the_middle(kind: str) -> None:
    """It is gone on with, and what is old never counts as new."""
    for at in range(1, 30):
        disk = filled()
        disk.die_at = disk.calls + at
        try:
            set_storage_aside(ROOT, SimOps(disk))
            died = False
        except Dead:
            died = True
        disk.crash(kind)
        found = NodeIdentity(ROOT, SimOps(disk), lambda: "new")
        if found.identity == "new":
            assert not {"journal", "state", "queues"} & set(disk.top.names), at
        else:
            assert found.generation == 3
            set_storage_aside(ROOT, SimOps(disk))
        if not died:
            return
    raise AssertionError("it does not end")
