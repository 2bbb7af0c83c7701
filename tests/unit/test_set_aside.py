"""A queue that is set aside, because the cluster has another one of its name: what is found of it by later starts."""
from __future__ import annotations

from pathlib import Path

import pytest
from kit.definer import defined
from kit.stored_node import StoredNode

from fluxmq.model.queues import QueueSpec

Q, ASIDE = (b"/", b"q"), (b"/", b"q.moved-1")


def filled(directory: Path, checkpoint: bool) -> StoredNode:
    """With a queue of three messages, of which a group has settled one, and another queue."""
    node = StoredNode(directory, small=1 << 20)
    queue, _ = node.manager.declare(QueueSpec(name="q"))
    defined(node.manager).identify(Q, 77)
    for body in (b"one", b"two", b"three"):
        queue.publish(b"$queue/q", body)
    node.manager.group(queue, b"g")
    node.manager.declare(QueueSpec(name="other"))
    node.checkpoint() if checkpoint else node.sync()
    return node


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_it_has_another_name_from_the_next_start_on(tmp_path: Path, before: bool, after: bool) -> None:
    node = filled(tmp_path, before)
    assert node.hub.root.queues == 2
    defined(node.manager).set_aside(Q, "it was moved")
    assert [*node.manager.queues] == [(b"/", b"other")] and node.hub.root.queues == 1
    assert "q.moved-1" in node.notes[-1][1]
    made, _ = node.manager.declare(QueueSpec(name="q"))          # another one
    made.publish(b"$queue/q", b"another")
    node.checkpoint() if after else node.sync()
    node.close()
    for _ in range(2):
        node = StoredNode(tmp_path)
        states = node.manager.queues
        assert sorted(states) == [(b"/", b"other"), Q, ASIDE] and node.hub.root.queues == 3
        assert (states[ASIDE].queue.depth, states[Q].queue.depth) == (3, 1)
        assert states[ASIDE].id == 0 and states[ASIDE].spec.name == "q.moved-1"
        assert [key for key in states[ASIDE].groups] == [(b"g", b"")]
        node.checkpoint()
        node.close()


def test_an_identity_is_kept(tmp_path: Path) -> None:
    node = filled(tmp_path, False)
    node.close()
    for _ in range(2):
        node = StoredNode(tmp_path)
        assert node.manager.queues[Q].id == 77 and node.manager.queues[b"/", b"other"].id == 0
        node.checkpoint()
        node.close()
