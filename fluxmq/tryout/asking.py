"""Short questions to a node over HTTP: its admin socket, its health port, its member of etcd. One connection each."""
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from fluxmq._core.errors import FluxError

__all__ = ["NoAnswer", "TryoutError", "ask"]

ANSWER_S = 45.0         # longer than a node takes for any answer
BYTES_MAX = 16 << 20


class TryoutError(FluxError):
    """The try-out cannot go on. The text is one sentence for the user."""


class NoAnswer(TryoutError):
    """Nobody answers there, or the answer is a refusal. status: of HTTP; 0: there was no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


async def ask(place: Path | tuple[str, int], method: str, target: str, body: Any = None, *,
              limit_s: float = ANSWER_S) -> Any:
    """The answer to a request, read as JSON. place: a socket, or host and port. Raises NoAnswer."""
    content = b"" if body is None else json.dumps(body).encode()
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await (asyncio.open_unix_connection(str(place), limit=BYTES_MAX)
                                    if isinstance(place, Path) else asyncio.open_connection(*place, limit=BYTES_MAX))
            try:
                writer.write(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                             f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
                             + content)
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                answer = await _content(reader, head)
            finally:
                writer.close()
        status, found = int(head.split()[1]), json.loads(answer or b"null")
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise NoAnswer(f"{place}: {str(error) or 'no answer in time'}") from error
    if status >= 400:
        detail = found.get("detail") if isinstance(found, dict) else None
        raise NoAnswer(str(detail or f"{method} {target}: status {status}"), status)
    return found


async def _content(reader: asyncio.StreamReader, head: str) -> bytes:
    """What follows the head of an answer: of a length, in chunks, or to the end."""
    fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    if fields.get("transfer-encoding") != "chunked":
        return await reader.read(-1)
    found = b""
    while size := int(await reader.readline(), 16):
        found += await reader.readexactly(size)
        await reader.readline()
    return found
