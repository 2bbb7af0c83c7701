"""The bytes of a message as a log exports it for a segment: a golden one."""
from __future__ import annotations

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.log import Log


def u(value: int, width: int) -> bytes:
    return value.to_bytes(width, "little")


def test_a_message_is_as_drawn() -> None:
    hub = Hub(None)
    hub.set_clock(1_000, 0)
    log = Log(hub.ledger, 1)
    for _ in range(7):
        log.append_message(b"t", b"another")
    log.append_message(b"a/b", b"hello", properties=b"pp", expires_at=5, not_before=6, qos=1, priority=9)
    [block] = Export(log, 1 << 60)
    raw = block[7][-64:]
    assert raw == (u(64, 4) + u(5, 4) + u(7, 8) + u(1000, 8) + u(5, 8) + u(6, 8) + u(2, 4) + u(3, 2) + b"\x01\x09"
                   + b"a/bpphello" + bytes(6))
