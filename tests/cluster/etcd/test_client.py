"""EtcdStore with one member: every method, and how it refuses."""
from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import free_port
from kit.certs import issue, make_ca
from kit.etcd import QUICK, EtcdServer, EtcdServers
from kit.loops import run_on

from fluxmq._core.errors import ConfigError, UsageError
from fluxmq.cluster.etcd.admin import Alarm
from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.endpoints import Tls
from fluxmq.cluster.etcd.errors import Cause, EtcdError
from fluxmq.cluster.etcd.stubs import rpc, services
from fluxmq.cluster.etcd.watch import EtcdWatch
from fluxmq.cluster.ports import Change, Compacted, Compare, Event, MetadataStore, StoreError, StoreFull

Run = Callable[[Any], Any]
on_uvloop = functools.partial(run_on, "uvloop")     # for what takes long, and does not depend on the loop
TTL = 4
KEYS = 25_000


def with_store(run: Run, servers: EtcdServers, use: Callable[[EtcdStore], Any], **options: Any) -> Any:
    """What use(store) returns, on a store of its own that is closed in the end."""
    async def inside() -> Any:
        store = EtcdStore(servers.addresses, **options)
        try:
            return await use(store)
        finally:
            await store.close()
            await store.close()

    return run(inside())


# ── transactions and reads ───────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_makes_changes_with_a_compare(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        made = await store.transact([Compare(key, 0)], [Change(key, b"one"), Change(key + b"2", b"two")])
        assert made.done and made.revision > 0 and made.term > 0 and not made.found
        read = await store.read(key, prefix=True)
        assert [(item.key, item.value, item.revision, item.created, item.lease) for item in read.items] == [
            (key, b"one", made.revision, made.revision, 0), (key + b"2", b"two", made.revision, made.revision, 0)]
        assert read.revision == made.revision and read.term == made.term
        changed = await store.transact([Compare(key, made.revision)], [Change(key, b"three"),
                                                                       Change(key + b"2", None)])
        assert changed.done and changed.revision == made.revision + 1
        (item,) = (await store.read(key, prefix=True)).items
        assert (item.value, item.revision, item.created) == (b"three", changed.revision, made.revision)

    with_store(run, one_member, use)


def test_a_failed_compare_tells_what_is_there(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        made = await store.transact([], [Change(key + b"a", b"A"), Change(key + b"c", b"")])
        refused = await store.transact(
            [Compare(key + b"c", made.revision), Compare(key + b"b", 0), Compare(key + b"a", 0)],
            [Change(key + b"a", b"other"), Change(key + b"b", b"new")])
        assert not refused.done and refused.revision == made.revision
        c, b, a = refused.found
        assert b is None and a is not None and c is not None
        assert (a.value, a.revision, c.value) == (b"A", made.revision, b"")
        assert [item.value for item in (await store.read(key, prefix=True)).items] == [b"A", b""]

    with_store(run, one_member, use)


def test_transactions_have_limits(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        keys = [key + b"%d" % number for number in range(129)]
        full = await store.transact([Compare(one, 0) for one in keys[:128]], [Change(one, b"") for one in keys[:128]])
        assert full.done
        for compares, changes in (([Compare(one, 0) for one in keys], []), ([], [Change(one, b"") for one in keys])):
            with pytest.raises(UsageError):
                await store.transact(compares, changes)
        with pytest.raises(StoreError, match="duplicate key") as refused:
            await store.transact([], [Change(key, b"1"), Change(key, b"2")])
        assert not refused.value.retry

    with_store(run, one_member, use)


def test_reads_of_one_key_and_of_none(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        await store.transact([], [Change(key + b"a", b"1"), Change(key + b"a/b", b"2"), Change(key + b"b", b"3")])
        assert [item.value for item in (await store.read(key + b"a")).items] == [b"1"]
        assert [item.value for item in (await store.read(key + b"a", prefix=True)).items] == [b"1", b"2"]
        assert [item.value for item in (await store.read(key + b"a", local=True)).items] == [b"1"]
        missing = await store.read(key + b"x", prefix=True)
        assert missing.items == [] and missing.revision > 0

    with_store(run, one_member, use)


def test_the_end_of_a_prefix(run: Run, one_member: EtcdServers) -> None:
    """Bytes 0xFF have no successor; an empty prefix is everything."""
    async def use(store: MetadataStore) -> None:
        await store.transact([], [Change(b"\xff\xffa", b"1"), Change(b"\xff", b"2"), Change(b"z\xff\xff", b"3"),
                                  Change(b"{", b"4")])
        assert [item.key for item in (await store.read(b"\xff", prefix=True)).items] == [b"\xff", b"\xff\xffa"]
        assert [item.key for item in (await store.read(b"z\xff", prefix=True)).items] == [b"z\xff\xff"]
        everything = [item.key for item in (await store.read(b"", prefix=True)).items]
        assert everything == sorted(everything) and {b"\xff", b"{", b"z\xff\xff"} <= set(everything)

    with_store(run, one_member, use)


def test_a_large_read_is_of_one_revision(one_member: EtcdServers, key: bytes) -> None:
    """25 000 keys, in pages, while others change them: all values are from one transaction round."""
    async def fill(store: EtcdStore, value: bytes) -> None:
        await asyncio.gather(*(store.transact([], [Change(key + b"%05d" % number, value)
                                                   for number in range(start, min(start + 128, KEYS))])
                               for start in range(0, KEYS, 128)))

    async def use(store: EtcdStore) -> None:
        await fill(store, b"old")
        flag = asyncio.Event()
        changes = 0

        async def change() -> None:
            nonlocal changes
            while not flag.is_set():
                # The first and the last key in one transaction: pages of two revisions would differ.
                changes += 1
                await store.transact([], [Change(key + b"%05d" % number, b"%d" % changes)
                                          for number in (0, KEYS - 1)])

        changing = asyncio.create_task(change())
        read = await store.read(key, prefix=True)
        flag.set()
        await changing
        assert changes > 1
        assert [item.key for item in read.items] == [key + b"%05d" % number for number in range(KEYS)]
        assert read.items[0].value == read.items[-1].value
        assert max(item.revision for item in read.items) <= read.revision

    with_store(on_uvloop, one_member, use, limit_s=10.0)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_ends_and_the_watch_tells(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        lease = await store.grant(TTL)
        made = await store.transact([], [Change(key + b"a", b"1", lease), Change(key + b"b", b"2", lease)])
        (item,) = (await store.read(key + b"a")).items
        assert item.lease == lease
        renewal = await store.renew(lease)
        assert renewal.ttl_s >= TTL and renewal.term == made.term
        watch = store.watch(key, made.revision)
        ended = await watch.next()
        assert {(event.key, event.value) for event in ended.events} == {(key + b"a", None), (key + b"b", None)}
        assert {event.revision for event in ended.events} == {ended.revision}
        assert (await store.renew(lease)).ttl_s == 0
        watch.close()

    with_store(run, one_member, use)


def test_revoking_deletes_the_keys(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        lease = await store.grant(60)
        assert (await store.transact([Compare(key, 0)], [Change(key, b"1", lease)])).done
        await store.revoke(lease)
        await store.revoke(lease)       # it does not exist any more
        assert (await store.read(key)).items == []
        assert (await store.renew(lease)).ttl_s == 0
        with pytest.raises(EtcdError, match="the lease does not exist") as refused:
            await store.transact([], [Change(key, b"1", lease)])
        assert refused.value.cause is Cause.LEASE and not refused.value.retry and not refused.value.sent

    with_store(run, one_member, use)


def test_a_number_that_somebody_has_is_not_used_twice(run: Run, one_member: EtcdServers,
                                                      seed_of_leases: int) -> None:
    """Two stores draw the same numbers: each gets a lease of its own."""
    async def use(store: EtcdStore) -> None:
        other = EtcdStore(one_member.addresses, seed=seed_of_leases)
        first, second = await store.grant(60), await other.grant(60)
        assert first != second
        for lease in (first, second):
            assert (await store.renew(lease)).ttl_s > 0
        await other.close()

    with_store(run, one_member, use, seed=seed_of_leases)


@pytest.fixture
def seed_of_leases(key: bytes) -> int:
    return int.from_bytes(key, "big")


# ── watches ──────────────────────────────────────────────────────────────────────────────────────────────────


async def take(watch: Any, count: int) -> list[Event]:
    """The next events, at least so many."""
    found: list[Event] = []
    while len(found) < count:
        batch = await watch.next()
        assert [event.revision for event in batch.events] == sorted(event.revision for event in batch.events)
        assert not batch.events or batch.revision == batch.events[-1].revision
        found.extend(batch.events)
    return found


def test_a_watch_tells_every_change_in_order(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        before = (await store.read(key)).revision
        first = await store.transact([], [Change(key + b"a", b"1")])
        watch = store.watch(key, before)
        second = await store.transact([], [Change(key + b"a", b"2"), Change(b"/elsewhere" + key, b"")])
        third = await store.transact([], [Change(key + b"a", None)])
        assert await take(watch, 3) == [
            Event(key + b"a", b"1", first.revision, first.revision, 0),
            Event(key + b"a", b"2", second.revision, first.revision, 0), Event(key + b"a", None, third.revision, 0, 0)]
        watch.close()
        later = store.watch(key, second.revision)
        assert [event.value for event in await take(later, 1)] == [None]

    with_store(run, one_member, use)


def test_a_revision_comes_in_one_batch(run: Run, one_member: EtcdServers, key: bytes) -> None:
    """What etcd has to tell at once is more than it puts into a message: it sends fragments, cut anywhere."""
    async def use(store: EtcdStore) -> None:
        after = (await store.read(key)).revision
        for _ in range(5):
            made = await store.transact([], [Change(key + b"%d" % number, bytes(12_000)) for number in range(100)])
        fragments = 0
        take_response = EtcdWatch._take

        def counting(watch: EtcdWatch, endpoint: Any, response: Any, before: list[Any]) -> None:
            nonlocal fragments
            fragments += response.fragment
            take_response(watch, endpoint, response, before)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EtcdWatch, "_take", counting)
            watch = store.watch(key, after)
            revisions: list[int] = []
            while len(revisions) < 500:
                batch = await watch.next()
                assert not revisions or batch.events[0].revision > revisions[-1], "a revision is divided"
                revisions += [event.revision for event in batch.events]
        assert fragments >= 2 and revisions == sorted([*range(made.revision - 4, made.revision + 1)] * 100)

    with_store(run, one_member, use, limit_s=10.0)


def test_next_may_be_cancelled(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        watch = store.watch(key, (await store.read(key)).revision)
        for value in (b"1", b"2", b"3"):
            waiting = asyncio.create_task(watch.next())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await store.transact([], [Change(key, value)])
            assert [event.value for event in await take(watch, 1)] == [value]

    with_store(run, one_member, use)


def test_after_close_a_watch_says_so(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: MetadataStore) -> None:
        watch = store.watch(key, 0)
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        watch.close()
        watch.close()
        for ended in (waiting, watch.next()):
            with pytest.raises(StoreError) as closed:
                await ended
            assert not closed.value.retry and not isinstance(closed.value, Compacted)

    with_store(run, one_member, use)


def test_what_is_compacted_is_told(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: EtcdStore) -> None:
        first = await store.transact([], [Change(key, b"1")])
        last = await store.transact([], [Change(key, b"2")])
        await store.compact(last.revision, physical=True)
        with pytest.raises(Compacted):
            await store.compact(first.revision)
        watch = store.watch(key, first.revision - 1)
        for _ in range(2):
            with pytest.raises(Compacted, match="has been compacted"):
                await watch.next()
        # A watch from the compacted revision on would leave out what was deleted at it.
        with pytest.raises(Compacted):
            await store.watch(key, last.revision - 1).next()
        await store.transact([], [Change(key, b"3")])
        assert [event.value for event in await take(store.watch(key, last.revision), 1)] == [b"3"]
        await store.defragment(one_member.addresses[0])

    with_store(run, one_member, use)


def test_a_read_begins_again_when_its_revision_is_compacted(run: Run, one_member: EtcdServers, key: bytes) -> None:
    """Between two pages somebody compacts."""
    async def use(store: EtcdStore) -> None:
        for start in range(0, 1200, 100):
            made = await store.transact([], [Change(key + b"%04d" % number, b"old")
                                             for number in range(start, start + 100)])
        asked = store._endpoints.ask
        pages = 0

        async def compacting(*what: Any, **how: Any) -> Any:
            nonlocal pages
            answer = await asked(*what, **how)
            pages += 1
            if pages == 1:
                again = await asked(*what, **how)       # both are of the same revision
                assert again[1].header.revision == made.revision
                store._endpoints.ask = asked            # type: ignore[method-assign]
                changed = await store.transact([], [Change(key + b"0000", b"new")])
                await store.compact(changed.revision)
            return answer

        store._endpoints.ask = compacting               # type: ignore[method-assign]
        read = await store.read(key, prefix=True)
        assert len(read.items) == 1200 and read.items[0].value == b"new"
        assert read.revision > made.revision

    with_store(run, one_member, use)


# ── members and maintenance ──────────────────────────────────────────────────────────────────────────────────


def test_the_status_of_a_member(run: Run, one_member: EtcdServers, key: bytes) -> None:
    async def use(store: EtcdStore) -> None:
        made = await store.transact([], [Change(key, b"1")])
        status = await store.status(one_member.addresses[0])
        assert status.leader == status.member != 0 and not status.learner
        assert status.revision == made.revision and status.db_size >= status.db_size_in_use > 0
        assert status.errors == () and await store.alarms() == []
        (member,) = await store.members()
        assert member.id == status.member and member.client_urls == (f"http://{one_member.addresses[0]}",)
        assert member.name == "etcd-1" and not member.learner and await store.members(local=True) == [member]

    with_store(run, one_member, use)


def test_a_learner_is_added_promoted_and_removed(tmp_path: Path, key: bytes) -> None:
    # Otherwise a member is removed only after all have been connected for 5 s.
    servers = EtcdServers(tmp_path, flags=(*QUICK, "--strict-reconfig-check=false"))
    newcomer = EtcdServer(tmp_path, "newcomer", servers.flags)

    async def use(store: EtcdStore) -> None:
        added = await store.member_add([newcomer.peer_url], learner=True)
        assert added.learner and added.name == "" and added.peer_urls == (newcomer.peer_url,)
        with pytest.raises(StoreError) as early:
            await store.member_promote(added.id)
        assert early.value.retry, "it may be promoted when it has the log"
        newcomer.start(f"{servers.cluster},newcomer={newcomer.peer_url}", "existing")
        await refused_by_a_learner(newcomer, servers, key)
        while True:
            try:
                await store.member_promote(added.id)
                break
            except StoreError as error:
                assert error.retry, error
                await asyncio.sleep(0.05)
        while (status := await store.status(newcomer.address)).learner:
            await asyncio.sleep(0.05)
        assert status.member == added.id
        assert [member.learner for member in await store.members()] == [False, False]
        with pytest.raises(StoreError, match="can only promote a learner") as twice:
            await store.member_promote(added.id)
        assert not twice.value.retry
        await store.member_remove(added.id)
        assert [member.name for member in await store.members()] == ["etcd-1"]

    try:
        with_store(on_uvloop, servers, use, limit_s=5.0)
    finally:
        newcomer.kill()
        servers.end()


async def refused_by_a_learner(learner: EtcdServer, servers: EtcdServers, key: bytes) -> None:
    """It does not serve; a store that asks it first goes on to a voter."""
    store = EtcdStore([learner.address], limit_s=0.5)
    while True:
        try:
            assert (await store.status(learner.address)).learner
            with pytest.raises(EtcdError) as refused:
                await store.transact([], [Change(key, b"1")])
            if refused.value.cause is Cause.LEARNER:
                break
        except StoreError:
            await asyncio.sleep(0.05)
    assert "it is a learner" in str(refused.value) and not refused.value.sent
    store.set_endpoints([learner.address, *servers.addresses])
    assert (await store.transact([], [Change(key, b"1")])).done
    await store.close()


def test_a_full_store_is_told_apart(tmp_path: Path) -> None:
    servers = EtcdServers(tmp_path, flags=("--unsafe-no-fsync", f"--quota-backend-bytes={4 << 20}"))

    async def use(store: EtcdStore) -> None:
        written = 0
        with pytest.raises(EtcdError, match="quota is used up") as full:
            while True:
                await store.transact([], [Change(b"%d" % written, bytes(200_000))])
                written += 1
                await asyncio.sleep(0.01)       # etcd looks at the size of its file, which it writes every 100 ms
        assert full.value.cause is Cause.NOSPACE and full.value.retry and isinstance(full.value, StoreFull)
        (alarm,) = await store.alarms()
        assert alarm == Alarm((await store.status(servers.addresses[0])).member, "NOSPACE")
        assert any("NOSPACE" in error for error in (await store.status(servers.addresses[0])).errors)
        with pytest.raises(EtcdError, match="quota is used up"):
            await store.grant(60)
        assert (await store.read(b"0")).items, "reads go on"
        revision = 0
        for number in range(written):           # deleting is allowed
            revision = (await store.transact([], [Change(b"%d" % number, None)])).revision
        await store.compact(revision, physical=True)
        await store.defragment(servers.addresses[0])
        await store.disarm(alarm)
        assert await store.alarms() == []
        assert (await store.transact([], [Change(b"again", b"")])).done

    try:
        with_store(on_uvloop, servers, use)
    finally:
        servers.end()


def test_a_store_that_demands_a_login(tmp_path: Path) -> None:
    servers = EtcdServers(tmp_path)

    async def use(store: EtcdStore) -> None:
        auth = services.AuthStub(store._endpoints.get(servers.addresses[0]).channel)
        watch = store.watch(b"k", 0)
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="secret"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.AuthEnable(rpc.AuthEnableRequest())
        for asked in (store.transact([], [Change(b"k", b"")]), store.read(b"k"), store.read(b"k", local=True)):
            with pytest.raises(EtcdError, match="demands a login") as refused:
                await asked
            assert refused.value.cause is Cause.AUTH and not refused.value.retry and not refused.value.sent
        watch.close()
        with pytest.raises(EtcdError) as refused:
            await store.watch(b"k", 0).next()
        assert refused.value.cause is Cause.AUTH and not refused.value.retry

    try:
        with_store(on_uvloop, servers, use)
    finally:
        servers.end()


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────


def test_nobody_answers() -> None:
    async def inside() -> None:
        ports = [free_port(), free_port()]
        store = EtcdStore([f"127.0.0.1:{port}" for port in ports], limit_s=0.3)
        for asked in (store.transact([], [Change(b"k", b"")]), store.read(b"k"), store.read(b"k", local=True),
                      store.grant(5), store.renew(1), store.revoke(1), store.members()):
            with pytest.raises(EtcdError, match="Connection refused") as refused:
                await asked
            assert refused.value.retry and not refused.value.sent and refused.value.cause is Cause.UNREACHABLE
            assert all(str(port) in str(refused.value) for port in ports)
        watch = store.watch(b"k", 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.next(), 0.3)
        await store.close()
        with pytest.raises(StoreError) as closed:
            await watch.next()
        assert not closed.value.retry

    on_uvloop(inside())


def test_after_close_nothing_is_asked(run: Run, one_member: EtcdServers) -> None:
    async def inside() -> None:
        store = EtcdStore(one_member.addresses)
        await store.read(b"k")
        waiting = [asyncio.create_task(store.status(one_member.addresses[0])) for _ in range(3)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.wait(waiting)
        assert all(task.exception() is None or isinstance(task.exception(), StoreError) for task in waiting)
        for asked in (store.read(b"k"), store.transact([], []), store.status(one_member.addresses[0])):
            with pytest.raises(EtcdError, match="was closed") as closed:
                await asked
            assert not closed.value.retry

    run(inside())


def test_a_member_of_another_cluster_is_refused(run: Run, one_member: EtcdServers, tmp_path: Path) -> None:
    other = EtcdServers(tmp_path)

    async def use(store: EtcdStore) -> None:
        await store.read(b"k")
        store.set_endpoints(other.addresses)
        with pytest.raises(EtcdError, match="belongs to cluster") as refused:
            await store.transact([], [Change(b"k", b"")])
        assert refused.value.cause is Cause.FOREIGN and not refused.value.retry
        store.set_endpoints(one_member.addresses)
        assert await store.read(b"k")

    try:
        with_store(run, one_member, use)
    finally:
        other.end()


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    ca = make_ca(tmp_path / "ca")
    stranger = make_ca(tmp_path / "stranger")
    certificate, key = issue(ca, "etcd", ip=["127.0.0.1"])
    servers = EtcdServers(tmp_path / "etcd", tls=(str(ca.cert_file), certificate, key))
    own = issue(ca, "node-1")

    async def inside() -> None:
        store = EtcdStore([f"https://{servers.addresses[0]}"], tls=Tls(ca.cert_file, Path(own[0]), Path(own[1])))
        assert (await store.transact([], [Change(b"k", b"")])).done
        assert (await store.status(servers.addresses[0])).leader
        await store.close()
        for tls, said in ((Tls(ca.cert_file), "demands a certificate"),
                          (Tls(stranger.cert_file, Path(own[0]), Path(own[1])), "CERTIFICATE_VERIFY_FAILED"),
                          (None, "no connection|broke|Socket closed"),
                          (Tls(tmp_path / "missing.pem"), "missing.pem")):
            store = EtcdStore(servers.addresses, tls=tls, limit_s=0.5)
            why = ""
            while not re.search(said, why):         # the last attempt may have had no time for an answer
                with pytest.raises(StoreError) as refused:
                    await store.read(b"k")
                why = str(refused.value)
            await store.close()

    try:
        on_uvloop(inside())
    finally:
        servers.end()


@pytest.mark.parametrize(("addresses", "said"), [
    ([], "at least one"), (["127.0.0.1"], "host:port"), (["ftp://a:1"], "host:port"), ([":2379"], "host:port"),
    (["https://127.0.0.1:2379"], "needs the files of TLS")])
def test_endpoints_are_checked(addresses: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        EtcdStore(addresses)
    assert refused.value.path == "cluster.etcd.endpoints"


def test_without_tls_where_it_is_configured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is without TLS"):
        EtcdStore(["http://127.0.0.1:2379"], tls=Tls(tmp_path / "ca.pem"))
