"""A member of etcd whose quota is used up: it has space again as soon as what is in use allows it."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.etcd import EtcdServers
from kit.loops import run_on

from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.errors import Cause, EtcdError
from fluxmq.cluster.etcd.space import Space
from fluxmq.cluster.ports import Change

QUOTA = 4 << 20
VALUE = bytes(200_000)


def with_full_store(tmp_path: Path, keys: int, quota: int, use: Callable[[EtcdStore, Space, list[str]], Any]) -> None:
    """use(store, its Space, the log), when the quota is used up by so many keys and their history. quota: what the
    Space takes for it."""
    servers = EtcdServers(tmp_path, flags=("--unsafe-no-fsync", f"--quota-backend-bytes={QUOTA}"))
    log: list[str] = []

    async def inside() -> None:
        store = EtcdStore(servers.addresses)
        try:
            number = 0
            with pytest.raises(EtcdError) as full:
                while True:
                    await store.transact([], [Change(b"%d" % (number % keys), VALUE)])
                    number += 1
                    await asyncio.sleep(0.01)   # etcd looks at the size of its file, which it writes every 100 ms
            assert full.value.cause is Cause.NOSPACE
            await use(store, Space(store, servers.addresses[0], quota,
                                   lambda level, cause, text, fields: log.append(level)), log)
        finally:
            await store.close()

    try:
        run_on("uvloop", inside())
    finally:
        servers.end()


def test_history_that_has_used_up_the_quota_is_given_up(tmp_path: Path) -> None:
    async def use(store: EtcdStore, space: Space, log: list[str]) -> None:
        await space.look()
        assert log == ["error", "info"] and not space.used_up and await store.alarms() == []
        assert (await store.transact([], [Change(b"0", VALUE)])).done
        assert len((await store.read(b"0")).items) == 1
        await space.look()
        assert log == ["error", "info"]

    with_full_store(tmp_path, 3, QUOTA, use)


def test_nothing_is_done_before_enough_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Space has a smaller quota than etcd: of that much fewer values use up, etcd's file may have holes."""
    now = time.monotonic

    async def use(store: EtcdStore, space: Space, log: list[str]) -> None:
        for _ in range(2):
            await space.look()
            assert log == ["error"] and space.used_up and len(await store.alarms()) == 1
        with pytest.raises(EtcdError, match="quota is used up"):
            await store.transact([], [Change(b"0", VALUE)])
        items = (await store.read(b"", prefix=True)).items
        for item in items[3:]:      # etcd's count of what is in use may not show all of it
            await store.transact([], [Change(item.key, None)])
        monkeypatch.setattr(time, "monotonic", lambda: now() + 60.0)
        await space.look()
        assert log == ["error", "info"] and not space.used_up
        assert (await store.transact([], [Change(b"0", VALUE)])).done

    with_full_store(tmp_path, 1000, QUOTA // 4, use)
