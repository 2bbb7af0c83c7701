"""The cyclic collector may take a session, a group or a connection with everything it refers to, in any order."""
from __future__ import annotations

import subprocess
import sys

import pytest
from kit.python import environment

BEGIN = """
import gc
from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.share_group import ShareGroup

def make():
    hub = Hub(None, 64)
    session = hub.new_session(b"s", 0)
    session.data = [session, hub, hub.ledger]       # as the engine does it: the session's state knows its session
    hub.subscribe(session, b"a", 1, 5)
    for _ in range(20):
        hub.publish_message(b"a", b"x" * 5000, 1)
    assert session.queued == 20
    group = ShareGroup(b"g", b"b")
    group.join(session, 1, 7)
    hub.add_group(group)
    session.data.append(group)
"""


@pytest.mark.parametrize("end", ["make(); gc.collect()", "gc.disable(); make()", "gc.disable(); kept = make; make()"],
                         ids=["collected", "at-exit", "at-exit-of-module"])
def test_a_session_in_a_cycle_goes_quietly(end: str) -> None:
    # A process of its own: what is wrong here ends it.
    result = subprocess.run([sys.executable, "-P", "-c", f"{BEGIN}\n{end}"], capture_output=True, text=True, timeout=60,
                            env=environment(PYTHONFAULTHANDLER="1"))
    assert (result.returncode, result.stderr) == (0, "")
