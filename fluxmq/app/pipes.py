"""Standard input and output on an event loop, without threads and without changing what others share with us: a reader
or writer that waits does not keep the loop from answering the broker, and Ctrl-C ends it at once.

A regular file is always ready, and epoll does not take it; a terminal or a pipe is awaited. A descriptor is never made
non-blocking, because the shell has the same one: what is written in one piece is at most what a pipe that can be
written takes (PIPE_BUF).
"""
from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Callable

__all__ = ["read_all", "read_lines", "write_all"]

_READ_BYTES = 1 << 16


def _must_wait(descriptor: int) -> bool:
    """Whether reading or writing it may block."""
    return not stat.S_ISREG(os.fstat(descriptor).st_mode)


async def _ready(descriptor: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    try:
        add(descriptor, tell)
    except PermissionError:  # a device that epoll does not take, such as /dev/zero, does not block
        await asyncio.sleep(0)  # and may have no end: signals and the connection have their turns
        return
    try:
        await done
    finally:
        remove(descriptor)


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    loop, waits = asyncio.get_running_loop(), _must_wait(descriptor)
    while True:
        if waits:
            await _ready(descriptor, loop.add_reader, loop.remove_reader)
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            return
        yield data
        if not waits:
            await asyncio.sleep(0)  # a large file leaves turns to the connection


async def read_all(descriptor: int) -> bytes:
    """Everything until the end."""
    return b"".join([piece async for piece in _pieces(descriptor)])


async def read_lines(descriptor: int) -> AsyncIterator[bytes]:
    """Each line as soon as it is there, without its end; also a last one without an end."""
    rest: list[bytes] = []
    async for piece in _pieces(descriptor):
        first, *others = piece.split(b"\n")
        rest.append(first)
        for line in others:
            yield b"".join(rest)
            rest = [line]
    last = b"".join(rest)
    if last:
        yield last


async def write_all(descriptor: int, data: bytes) -> None:
    """Raises OSError; BrokenPipeError when nobody reads any more."""
    loop, waits = asyncio.get_running_loop(), _must_wait(descriptor)
    view = memoryview(data)
    while view:
        if waits and not select.select([], [descriptor], [], 0)[1]:
            await _ready(descriptor, loop.add_writer, loop.remove_writer)
        view = view[os.write(descriptor, view[:select.PIPE_BUF] if waits else view):]
