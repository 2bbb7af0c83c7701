"""`fluxmq cluster recover`: etcd again, when a majority of its members is gone for good.

Of this node's member a cluster of one is made, by etcd's --force-new-cluster, on a copy of its data:

    storage.dir locked ─► is there a leader after all? ─► member copied ─► the copy made a cluster of one, and looked at
      ─► confirmed ─► the copy takes the place of the member, which is kept

The node must not run. It is started afterwards, and the other nodes join anew.
"""
from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxmq._core.errors import ConfigError, FluxError, StorageError
from fluxmq.app.queue_place import confirm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fluxmq.app.cluster import ClusterRuntime
    from fluxmq.cluster.etcd.process import EtcdMember
    from fluxmq.model.config import Config

__all__ = ["recover"]

LEADER_S = 6.0      # several elections: a member that finds others is ready by then
START_S = 60.0      # of a large database
POLL_S = 0.1


class NotRecovered(FluxError):
    """Nothing was changed. The text says why."""


def recover(config: Config, look: bool, yes: bool) -> None:
    """See the command. look: only shows. yes: does not ask. Raises ConfigError, StorageError, NotRecovered."""
    if not config.cluster.enabled:
        raise ConfigError("cluster.enabled", "is false: there is no etcd to recover")
    with _alone(Path(config.storage.dir)):
        asyncio.run(_recover(config, look, yes))


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Holds the lock of the storage directory. Raises StorageError if a broker has it."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        raise StorageError(f"{directory} may not be opened: run this as the user of the broker") from None
    except OSError as error:
        raise StorageError(f"{directory} is not the storage directory of a node: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(f"{directory} is in use: stop this node, and all others, first") from None
        yield
    finally:
        os.close(descriptor)


def _quiet(level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
    """etcd's log is told only when it fails."""


async def _recover(config: Config, look: bool, yes: bool) -> None:
    # Not on top: these need the packages of the extra [cluster].
    from fluxmq.app.cluster import ClusterRuntime
    from fluxmq.cluster.etcd.joining import has_data, set_aside

    runtime = ClusterRuntime(config, _quiet, _quiet)
    try:
        options = runtime.options()
        directory, copy = options.data_dir, options.data_dir / "recovered"
        if not has_data(directory):
            raise NotRecovered(f"{directory} has no data of a member of etcd: recover on a node that has, or let this "
                               "one join (cluster.etcd.bootstrap: false)")
        async with _running(runtime, directory):
            await _no_leader(runtime)
        shutil.rmtree(copy, ignore_errors=True)
        try:
            shutil.copytree(directory / "member", copy / "member")
            async with _running(runtime, copy, "--force-new-cluster") as member:
                revision = await _made(runtime, member)
            click.echo(f"this node's member of etcd has revision {revision}", err=True)
            if look:
                return
            confirm(yes, "Make a cluster of one of it? What it has not got is lost, and no other member may run again "
                         "with its data.")
            former = set_aside(directory)
            (copy / "member").rename(directory / "member")
            runtime.forget_members()
        except OSError as error:
            raise StorageError(f"{directory}: {error}") from None
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    finally:
        await runtime.store.close()
    click.echo(f"etcd has one member now, of this node, with revision {revision}; what was there is in {former}.\n"
               "Start this node. On each other node move cluster.etcd.data_dir away, set cluster.etcd.bootstrap to "
               "false, and start it.")


@asynccontextmanager
async def _running(runtime: ClusterRuntime, directory: Path, *flags: str) -> AsyncIterator[EtcdMember]:
    """The member, with its data in a directory. Nobody starts it again when it ends."""
    from fluxmq.cluster.etcd.process import EtcdMember

    member = EtcdMember(runtime.binary(), replace(runtime.options(), data_dir=directory, state="existing", flags=flags),
                        on_log=_quiet, on_line=_quiet, on_exit=lambda ended: None)
    member.start()
    try:
        yield member
    finally:
        await member.stop()


async def _no_leader(runtime: ClusterRuntime) -> None:
    """Raises NotRecovered if etcd works. A member that has just been started answers only when it knows a leader."""
    from fluxmq.cluster.ports import StoreError

    ends = time.monotonic() + LEADER_S
    while time.monotonic() < ends:
        try:
            said = await runtime.store.status(runtime.store.endpoints[0], limit_s=1.0)
        except StoreError:
            await asyncio.sleep(POLL_S)
            continue
        if said.leader:
            raise NotRecovered("etcd has a leader, so a majority of its members is alive: there is nothing to recover. "
                               "Members that are gone are removed by `fluxmq cluster voters remove`")
        await asyncio.sleep(POLL_S)


async def _made(runtime: ClusterRuntime, member: EtcdMember) -> int:
    """Waits until the cluster of one serves; its revision."""
    from fluxmq.cluster.ports import StoreError

    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        if member.last_exit is not None:
            raise NotRecovered(member.last_exit.text)
        try:
            said = await runtime.store.status(runtime.store.endpoints[0], limit_s=1.0)
            members = await runtime.store.members(local=True)
        except StoreError:
            await asyncio.sleep(POLL_S)
            continue
        if said.leader == said.member and len(members) == 1 and not said.learner:
            return said.revision
        await asyncio.sleep(POLL_S)
    raise NotRecovered(f"etcd did not become a cluster of one within {START_S:g} s; nothing was changed. Try another "
                       "node that survived")
