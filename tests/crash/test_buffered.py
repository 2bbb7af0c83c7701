"""Buffered durability: a loss of power takes the last interval, and takes it from everybody.

Run as a program: `test_buffered.py DIRECTORY` takes a checkpoint while messages come for two sessions, over a journal
that syncs once an hour, and ends without a word to the disk.
"""
from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kit.carrier import Carrier
from kit.powercut import PowerCut
from kit.python import TESTS, environment

from fluxmq._core.hub.hub import Hub
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.engine import durability
from fluxmq.engine.broker import Broker
from fluxmq.engine.durability import Keeper
from fluxmq.storage.store import RocksStore

SESSIONS = (b"one", b"two", b"three")


def opened(directory: Path, identity: int) -> tuple[RocksStore, Broker, Keeper]:
    store = RocksStore(directory, identity=identity, durability="buffered", interval=3600.0)
    store.start()
    broker = Broker(Hub(store.journal), cluster=solo())
    return store, broker, Keeper(broker, store, 1 << 20, LoopDriver())


async def checkpoint_between_slices(directory: Path) -> None:
    durability.SLICE_SESSIONS = 1
    store, broker, keeper = opened(directory, 1)
    journal = store.journal
    assert journal is not None
    asyncio.get_running_loop().add_reader(journal.event_fd, journal.poll)
    for name in SESSIONS:
        connection = Carrier(stays=True)
        broker.connect(name, version=5, clean_start=False, expiry_s=100, keep_alive_s=0, will=None, username=None,
                       connection=connection)
        session = broker.sessions[b"/", name]
        broker.subscribe(session, b"t", 1, 0)
        broker.disconnect(session, connection, publish_will=False)
    taking = asyncio.ensure_future(keeper.checkpoint())
    await asyncio.sleep(0)                                  # a copy of one session is made
    broker.hub.publish_message(b"t", b"for all of them", 1)
    journal.submit()
    while not taking.done():
        await asyncio.sleep(0.001)
    await taking
    print("taken", flush=True)


def test_what_a_checkpoint_exports_is_on_the_medium_before_the_view(tmp_path: Path) -> None:
    """Sessions that were copied after the message came have it; so must those that were copied before."""
    cut = PowerCut(tmp_path / "cut")
    program: Any = subprocess.run([sys.executable, __file__, str(cut.live)], env=environment(TESTS, **cut.env),
                                  capture_output=True, timeout=60, check=False)
    assert program.stdout == b"taken\n", program.stderr
    store, broker, keeper = opened(cut.restore(tmp_path / "after"), 2)
    try:
        keeper.recover()
        assert [broker.sessions[b"/", name].queued for name in SESSIONS] in ([0, 0, 0], [1, 1, 1])
    finally:
        store.close()


if __name__ == "__main__":
    asyncio.run(checkpoint_between_slices(Path(sys.argv[1])))
    os._exit(0)
