"""The binary answer to a browse: pages of messages as bytes (drawn in `_core/queue/page.pyx`), for programs that read
queues by the million. Asked for by `Accept: application/vnd.fluxmq.messages`.

    GET /api/v1/queues/Q/messages?partition=&lane=&from=&to=     from, to: offsets; [from, to), of one lane
    GET /api/v1/queues/Q/logs?position=                          {"name", "type", "logs": [...], "identity"}, JSON

In a cluster a queue has an identity, which no other one ever has; the numbers of logs are those of one node. With
`identity=` there is a page only of the queue that has it, else conflict.
"""
import asyncio
from typing import Any

import h11

from fluxmq._core.queue.page import PAGE_TYPE
from fluxmq.admin.http import Answer
from fluxmq.engine.ports.queues import QueueRefused, QueuesPort
from fluxmq.model import limits

__all__ = ["PAGE_WORDS", "accepts_pages", "browse_page"]

PAGE_WORDS = ("partition", "lane", "from", "to", "identity")
OFFSET_MAX = 1 << 64
LOADING_SECONDS = 0.002


def accepts_pages(request: h11.Request | None) -> bool:
    """Whether the client asked for pages rather than JSON."""
    wanted = PAGE_TYPE.encode()
    return request is not None and any(name == b"accept" and wanted in value for name, value in request.headers)


async def browse_page(queues: QueuesPort, name: str, query: dict[str, str]) -> Answer:
    """One page. Waits for the disk until there is a message or the end. Raises QueueRefused, StorageError."""
    numbers: dict[str, Any] = {}
    for word, default, maximum in (("partition", 0, 65536), ("lane", 0, 256), ("from", 0, OFFSET_MAX),
                                ("to", OFFSET_MAX - 1, OFFSET_MAX)):
        text = query.get(word, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < maximum):
            raise QueueRefused("invalid", f"{word} is a number below {maximum}, not {text!r}",
                               "a page of messages is asked for by offsets")
        numbers[word] = int(text)
    start, identity = numbers["from"], query.get("identity")
    while True:
        if identity is not None and queues.identity(name) != identity:
            raise QueueRefused("conflict", f"queue {name} was deleted and made again")
        page = queues.page(name, numbers["partition"], numbers["lane"], start, numbers["to"],
                           limits.ADMIN_BROWSE_BYTES_MAX)
        if not page.loading:
            return Answer(200, PAGE_TYPE, page.content)
        await asyncio.sleep(LOADING_SECONDS)
