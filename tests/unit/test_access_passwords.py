"""Passwords off the loop: the line is bounded, equal checks are one, what is remembered is forgotten in time."""
import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluxmq._core.errors import AuthError
from fluxmq.access import passwords as passwords_module
from fluxmq.access.passwords import CACHE_TTL_S, Passwords
from fluxmq.access.users import User, Users


def table(**passwords: str) -> Users:
    return Users({name: User.make(name, password, scram_iterations=4_096) for name, password in passwords.items()},
                 bytes(16))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Stands in for argon2: counts, and holds each check until opened."""

    def __init__(self, right: Callable[[str, bytes], bool]) -> None:
        self.calls: list[bytes] = []
        self.open = threading.Event()
        self._right = right

    def __call__(self, password_hash: str, password: bytes) -> bool:
        self.calls.append(password)
        assert self.open.wait(60)
        return self._right(password_hash, password)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(lambda _, password: password == b"secret")
    monkeypatch.setattr(passwords_module, "_check", gate)
    yield gate
    gate.open.set()


async def settle() -> None:
    """Let every task run up to where it waits for a thread."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_right_wrong_unknown() -> None:
    async def run() -> None:
        passwords = Passwords(table(anna="sécret", bert="other"), workers=1)
        assert await passwords.verify("anna", "sécret".encode())
        assert not await passwords.verify("anna", b"other")
        assert not await passwords.verify("anna", b"")
        assert not await passwords.verify("nobody", b"other")
        assert passwords.remembers("anna", "sécret".encode())
        assert not passwords.remembers("bert", "sécret".encode())
        assert not passwords.remembers("anna", b"other")
        passwords.close()
    asyncio.run(run())


def test_nobody_is_checked_like_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    real = passwords_module._check
    monkeypatch.setattr(passwords_module, "_check", lambda *args: (checked.append(args[0]), real(*args))[1])

    async def run() -> None:
        passwords = Passwords(table(anna="secret"), workers=1)
        assert not await passwords.verify("anna", b"wrong")
        assert not await passwords.verify("nobody", b"wrong")
        passwords.close()
    asyncio.run(run())
    somebody, nobody = checked
    assert somebody != nobody
    assert somebody.split("$")[:4] == nobody.split("$")[:4]


def test_what_was_right_costs_once_until_it_is_old(gate: Gate) -> None:
    clock = Clock()
    gate.open.set()

    async def run() -> None:
        passwords = Passwords(table(anna="secret"), workers=1, clock=clock)
        for _ in range(3):
            assert await passwords.verify("anna", b"secret")
        assert len(gate.calls) == 1
        clock.now += CACHE_TTL_S - 1
        assert await passwords.verify("anna", b"secret")  # does not make it younger
        assert len(gate.calls) == 1
        clock.now += 1
        assert not passwords.remembers("anna", b"secret")
        assert passwords.remembers("anna", b"secret", slack_s=0.5)
        assert await passwords.verify("anna", b"secret")
        assert len(gate.calls) == 2
        for _ in range(3):
            assert not await passwords.verify("anna", b"wrong")  # what is wrong is not remembered
        assert len(gate.calls) == 5
        passwords.close()
    asyncio.run(run())


def test_the_memory_is_bounded(gate: Gate) -> None:
    gate.open.set()

    async def run() -> None:
        users = table(anna="secret")
        one = users._users["anna"]
        many = Users({f"user{index}": one for index in range(6)}, bytes(16))
        passwords = Passwords(many, workers=1, cache_entries_max=4, clock=Clock())
        for index in range(6):
            assert await passwords.verify(f"user{index}", b"secret")
        assert [passwords.remembers(f"user{index}", b"secret") for index in range(6)] == [False] * 2 + [True] * 4
        forgetful = Passwords(many, workers=1, cache_entries_max=0)
        assert await forgetful.verify("user0", b"secret")
        assert not forgetful.remembers("user0", b"secret")
        passwords.close()
        forgetful.close()
    asyncio.run(run())


def test_equal_checks_are_made_once_and_survive_who_leaves(gate: Gate) -> None:
    async def run() -> None:
        passwords = Passwords(table(anna="secret"), workers=1)
        # The one thread is busy with another check: what only waits could still be cancelled.
        other = asyncio.create_task(passwords.verify("anna", b"other"))
        await settle()
        while not gate.calls:
            await asyncio.sleep(0)
        tasks = [asyncio.create_task(passwords.verify("anna", b"secret")) for _ in range(50)]
        await settle()
        tasks[0].cancel()
        await settle()
        gate.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [True] * 49
        assert not await other
        assert gate.calls == [b"other", b"secret"]
        passwords.close()
    asyncio.run(run())


def test_a_long_line_is_refused_and_gets_shorter_again(gate: Gate) -> None:
    async def run() -> None:
        passwords = Passwords(table(anna="secret"), workers=1, waiting_max=3)
        tasks = [asyncio.create_task(passwords.verify("anna", b"wrong%d" % index)) for index in range(3)]
        await settle()
        with pytest.raises(AuthError) as refused:
            await passwords.verify("anna", b"secret")
        assert refused.value.reason == 0x89
        gate.open.set()
        assert await asyncio.gather(*tasks) == [False] * 3
        # A future wakes its waiters before it runs the callback that shortens the line.
        while passwords._checks:
            await asyncio.sleep(0)
        assert await passwords.verify("anna", b"secret")
        passwords.close()
    asyncio.run(run())


def test_a_flood_from_one_place_holds_up_no_other(gate: Gate) -> None:
    """Who comes from elsewhere is next but for one check of each place, however long the flood's line is."""
    async def run() -> None:
        passwords = Passwords(table(anna="secret"), workers=1, waiting_max=300)
        flood = [asyncio.create_task(passwords.verify("anna", b"a%d" % number, b"A")) for number in range(100)]
        flood += [asyncio.create_task(passwords.verify("anna", b"b%d" % number, b"B")) for number in range(100)]
        await settle()
        while not gate.calls:
            await asyncio.sleep(0)
        bystander = asyncio.create_task(passwords.verify("anna", b"secret", b"C"))
        await settle()
        gate.open.set()
        assert await bystander
        assert await asyncio.gather(*flood) == [False] * 200
        assert gate.calls.index(b"secret") == 3     # behind the one that ran and one of each line
        for place in (b"a", b"b"):
            assert [call for call in gate.calls if call.startswith(place)] == [place + b"%d" % number for number in
                                                                              range(100)]
        passwords.close()
    asyncio.run(run())


def test_where_all_is_full_the_longest_line_gives_way(gate: Gate) -> None:
    async def run() -> None:
        passwords = Passwords(table(anna="secret"), workers=1, waiting_max=10)
        flood = [asyncio.create_task(passwords.verify("anna", b"a%d" % number, b"A")) for number in range(10)]
        await settle()
        while not gate.calls:
            await asyncio.sleep(0)
        others = [asyncio.create_task(passwords.verify("anna", b"%c" % place, b"%c" % place)) for place in b"BCD"]
        await settle()
        with pytest.raises(AuthError) as refused:       # one more of the flood displaces nobody
            await passwords.verify("anna", b"a10", b"A")
        assert refused.value.reason == 0x89
        assert len(passwords._checks) == 10 and passwords._pool._work_queue.qsize() == 9
        gate.open.set()
        found = await asyncio.gather(*flood, return_exceptions=True)
        assert found[:7] == [False] * 7
        assert [error.reason for error in found[7:] if isinstance(error, AuthError)] == [0x89] * 3
        assert await asyncio.gather(*others) == [False] * 3
        assert len(gate.calls) == 10 and not passwords._lines
        passwords.close()
    asyncio.run(run())


def test_a_password_changed_during_its_check_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    started, release = threading.Event(), threading.Event()
    real = passwords_module._check

    def slow(password_hash: str, password: bytes) -> bool:
        right = real(password_hash, password)
        started.set()
        assert release.wait(60)
        return right

    monkeypatch.setattr(passwords_module, "_check", slow)

    async def run() -> None:
        passwords = Passwords(table(anna="secret", bert="secret"), workers=2)
        tasks = [asyncio.create_task(passwords.verify(name, b"secret")) for name in ("anna", "bert")]
        await asyncio.to_thread(started.wait, 60)
        passwords.replace(table(anna="changed"))
        release.set()
        assert await asyncio.gather(*tasks) == [False, False]
        assert await passwords.verify("anna", b"changed")
        passwords.close()
    asyncio.run(run())


def test_reading_the_file_again_forgets(gate: Gate) -> None:
    gate.open.set()

    async def run() -> None:
        users = table(anna="secret")
        passwords = Passwords(users, workers=1)
        assert await passwords.verify("anna", b"secret")
        passwords.replace(users)
        assert not passwords.remembers("anna", b"secret")
        passwords.close()
    asyncio.run(run())


def test_closing_answers_who_waits(gate: Gate) -> None:
    async def run() -> None:
        passwords = Passwords(table(anna="secret"), workers=1)
        tried = (b"secret", b"second", b"third")
        tasks = [asyncio.create_task(passwords.verify("anna", password)) for password in tried]
        await settle()
        while not gate.calls:
            await asyncio.sleep(0)
        passwords.close()
        gate.open.set()
        first, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert first is True
        with pytest.raises(AuthError):
            await passwords.verify("anna", b"fourth")
        assert [type(other) for other in others] == [AuthError] * 2
        assert {other.reason for other in others if isinstance(other, AuthError)} == {0x88}
    asyncio.run(run())


def test_a_hash_that_cannot_be_computed_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(AuthError) as refused:
        passwords_module._check("$argon2id$v=19$m=1,t=1,p=1$c29tZXNhbHQ$c29tZWhhc2hzb21laGFzaA", b"secret")
    assert refused.value.reason == 0x88
