"""What a member of real etcd tells of the leaders that it has known, also before it serves clients."""
from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster.etcd.test_process import Watched, options_of
from kit.broker import free_port
from kit.etcd import etcd_binary
from kit.loops import LOOPS, run_on
from kit.standstill import stand_still

from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.local_member import EtcdLocalMember, read_metrics
from fluxmq.cluster.etcd.process import EtcdOptions
from fluxmq.cluster.ports import MemberLook, StoreError

SECONDS = 30.0


class Looked:
    """A member and what it tells. Use it on a loop."""

    def __init__(self, options: EtcdOptions) -> None:
        self.watched = Watched(etcd_binary(), options)
        self.member = self.watched.member
        self.store = EtcdStore([options.advertise_client])
        self.local = EtcdLocalMember(self.member, self.store, self.store.endpoints[0])

    async def until(self, leader: bool) -> MemberLook:
        while True:
            try:
                if (look := await self.local.look()).leader is leader:
                    return look
            except StoreError:
                pass
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await self.member.stop()
        await self.store.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_member_that_never_found_a_leader(loop: str, tmp_path: Path) -> None:
    """It answers no client."""
    async def use() -> None:
        options = options_of(tmp_path)
        others = f"{options.initial_cluster},node-2=http://127.0.0.1:{free_port()}"
        looked = Looked(options_of(tmp_path, listen_peer=options.listen_peer, advertise_peer=options.advertise_peer,
                                   initial_cluster=others))
        looked.member.start()
        assert looked.local.life == 1 and looked.local.running
        look = await looked.until(False)
        assert look.member and look.leaders_seen == 0
        await looked.stop()

    run_on(loop, use(), SECONDS)


def test_the_log_and_the_metrics_count_the_same_leaders(tmp_path: Path) -> None:
    async def use() -> None:
        looked = Looked(options_of(tmp_path / ("long " * 30)))      # no path of a socket may be that long
        looked.member.start()
        assert looked.local.ended_with is None
        look = await looked.until(True)
        assert look.leaders_seen == 1 and looked.member.leaders_seen == 1
        again = await looked.until(True)
        assert again == MemberLook(look.member, True, None)         # from its status
        assert looked.store.endpoints and await looked.store.voters() == {look.member: "node-1"}
        os.kill(looked.member.pid, signal.SIGKILL)
        await looked.watched.until(lambda: looked.watched.exits)
        assert not looked.local.running and looked.local.ended_with == 1
        with pytest.raises(StoreError):
            await looked.local.look()
        assert (await looked.until(True)).leaders_seen == 1 and looked.local.life == 2
        await looked.stop()
        # What a former life has left is no data of etcd.
        assert not looked.watched.said("found invalid file")

    run_on("uvloop", use(), SECONDS)


def test_a_member_that_starts_has_known_no_leader_so_far(tmp_path: Path) -> None:
    """Its metrics come later, and its log tells: if it was believed before."""
    async def use() -> None:
        looked = Looked(options_of(tmp_path))
        looked.member.start()
        look = await looked.until(True)
        slow = tmp_path / "slow"
        line = '{"level":"info","msg":"raft.node: 1 elected leader 1 at term 2"}'
        slow.write_text(f"#!/bin/sh\nread _ < go\necho '{line}'\nexec sleep 60\n")
        slow.chmod(0o755)
        looked.member._binary = str(slow)
        os.mkfifo(looked.member.options.data_dir / "go")
        os.kill(looked.member.pid, signal.SIGKILL)
        await looked.watched.until(lambda: looked.local.life == 2)
        assert await looked.local.look() == MemberLook(look.member, False, 0)
        with open(looked.member.options.data_dir / "go", "w") as go:
            go.write("go\n")
        await looked.watched.until(lambda: looked.member.leaders_seen)
        with pytest.raises(StoreError):
            await looked.local.look()
        await looked.stop()

    run_on("uvloop", use(), SECONDS)


def test_a_member_that_stands_still_does_not_answer(tmp_path: Path) -> None:
    async def use() -> None:
        looked = Looked(options_of(tmp_path))
        looked.member.start()
        await looked.until(True)
        stand_still(looked.member.pid)
        try:
            with pytest.raises(StoreError):
                await looked.local.look()
        finally:
            os.kill(looked.member.pid, signal.SIGCONT)
        await looked.stop()

    run_on("uvloop", use(), SECONDS)


PAGE = b"""# TYPE etcd_server_has_leader gauge
etcd_server_has_leader 0
etcd_server_id{server_id="d38c58135f1f7c1e"} 1
etcd_server_leader_changes_seen_total 1.2e+01
"""


def test_the_page_of_metrics() -> None:
    assert read_metrics(PAGE) == MemberLook(0xd38c58135f1f7c1e, False, 12)
    first = PAGE.replace(b"leader 0", b"leader 1").replace(b"1.2e+01", b"0")
    assert read_metrics(first) == MemberLook(0xd38c58135f1f7c1e, True, 1)
    lines: list[Any] = PAGE.splitlines(keepends=True)
    for left_out in range(1, 4):
        with pytest.raises(StoreError, match="lack what is needed"):
            read_metrics(b"".join(line for number, line in enumerate(lines) if number != left_out))
