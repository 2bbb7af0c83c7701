"""Drawings of states are held against the transition tables of the code: each arrow is in the table, each entry drawn.

    A, B ──event──► C ──other event──► D
"""
import re
from pathlib import Path

import pytest

from fluxmq._core.client import session as client_session
from fluxmq._core.client import writer
from fluxmq._core.net import transport
from fluxmq._core.peer import stream
from fluxmq._core.pubsub import session
from fluxmq._core.queue import claim
from fluxmq._core.raft import machine
from fluxmq.edge.amqp091 import handshake

ROOT = Path(__file__).parents[2]
STATE = r"[A-Z][A-Z_0-9]*"
ARROW = re.compile(rf"({STATE}(?:, {STATE})*) ──([^─]+)──► (?=({STATE}))")

HANDSHAKE = {(step, event if isinstance(event, str) else event.__name__): after
             for (step, event), after in handshake.TRANSITIONS.items()}
TABLES = {
    "docs/internals/core.md": session.TRANSITIONS,
    "docs/internals/edge-amqp091.md": HANDSHAKE,
    "fluxmq/_core/client/machine.pxd": writer.TRANSITIONS,
    "fluxmq/_core/client/session.pxd": client_session.TRANSITIONS,
    "fluxmq/_core/net/transport.pxd": transport.PHASE_TRANSITIONS,
    "fluxmq/_core/peer/stream.pxd": stream.TRANSITIONS,
    "fluxmq/_core/pubsub/session.pxd": session.TRANSITIONS,
    "fluxmq/_core/queue/claim.pxd": claim.TRANSITIONS,
    "fluxmq/_core/raft/machine.pxd": machine.TRANSITIONS,
    "fluxmq/edge/amqp091/handshake.py": HANDSHAKE,
}


def drawn(text: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for states, event, after in ARROW.findall(text):
        for state in states.split(", "):
            assert found.setdefault((state, event), after) == after, f"{state} ──{event}──► two states"
    return found


@pytest.mark.parametrize("file", TABLES)
def test_drawing_and_table_agree(file: str) -> None:
    assert drawn((ROOT / file).read_text(encoding="utf-8")) == TABLES[file]


def test_an_arrow_is_read() -> None:
    assert drawn("  A, B_2 ──x, y──► C ──z──► A    D") == {("A", "x, y"): "C", ("B_2", "x, y"): "C", ("C", "z"): "A"}
