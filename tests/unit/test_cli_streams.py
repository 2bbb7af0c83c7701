"""Commands whose standard input or outputs are closed, full, or no longer read; and numbers that are none."""
import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import python
from kit.command import run

from fluxmq.app.pipes import read_lines

ELSEWHERE = Path(__file__).parent     # not the root: there the sources would be taken for the installed package


def shell(line: str) -> tuple[int, str]:
    """Exit status and standard error of a line for the shell; $fluxmq is the command."""
    done = subprocess.run(["bash", "-c", line], cwd=ELSEWHERE, text=True, timeout=60, check=False,
                          capture_output=True, env={**python.environment(), "fluxmq": f"{sys.executable} -m fluxmq"})
    return done.returncode, done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_dev_null(closed: str) -> None:
    assert shell(f"$fluxmq version {closed}") == (0, "")
    status, said = shell(f"$fluxmq pub t --broker localhost:0 --timeout 20 {closed}")
    assert status == 6 and "Traceback" not in said


def test_a_full_disk_behind_the_output_is_said() -> None:
    for command in ("version", "--help", "config explain record"):
        assert shell(f"$fluxmq {command} > /dev/full") == (1, "fluxmq: standard output: No space left on device\n")


def test_a_reader_that_exits_is_no_failure() -> None:
    # true exits at once; the command is started behind it
    assert shell("set -o pipefail; (sleep 0.2; $fluxmq config explain record) | true") == (0, "")


@pytest.mark.parametrize("words", [
    ("pub", "t", "x", "--rate"), ("pub", "t", "x", "--delay"), ("pub", "t", "x", "--timeout"),
    ("sub", "t", "--connect-timeout"), ("topology", "--interval"), ("tryout", "--rate"), ("viz", "--fps"),
    ("viz", "--seconds"), ("queue", "publish", "q", "--delay"), ("bench", "run", "--duration"),
    ("bench", "cluster", "--ttl"), ("bench", "amqp", "--rate"), ("replay", "run", "r", "--quiet"),
    ("replay", "verify", "r", "--settle")])
@pytest.mark.parametrize("number", ["nan", "inf", "1e300"])
def test_what_is_no_number_is_refused(words: tuple[str, ...], number: str) -> None:
    status, said = run(*words, number)
    assert status == 2 and f"Invalid value for '{words[-1]}'" in said


def test_a_device_that_epoll_does_not_take_leaves_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as /dev/zero, which has no end: signals and the connection come in between."""
    left, turns = 100, 0

    def read(descriptor: int, size: int) -> bytes:
        nonlocal left
        left -= 1
        return b"\0" * 8 if left else b""

    async def others() -> None:
        nonlocal turns
        while left:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> list[bytes]:
        beside = asyncio.create_task(others())
        found = [line async for line in read_lines(descriptor)]
        await beside
        return found

    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        with monkeypatch.context() as patched:
            patched.setattr("fluxmq.app.pipes.os.read", read)
            assert asyncio.run(both()) == [b"\0" * 8 * 99]
    finally:
        os.close(descriptor)
    assert turns >= 90
