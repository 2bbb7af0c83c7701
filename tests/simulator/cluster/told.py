"""What happens in a history of brokers, line by line, to compare two plays of it.

    python told.py NUMBER …     in this order, each its lines and an empty one

A line is what is written to a connection between two processes, or a packet that a client gets, with the time.
"""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from simulator.cluster import quorum_history, test_queue_histories, test_repetitions, test_takeover, test_wills
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.network import Pipe

__all__ = ["HISTORIES", "told"]


def queues(number: int) -> None:
    test_queue_histories.run(number, test_queue_histories.LEVELS["all"])


# Of those in which the order in which a node sends to several others has shown.
HISTORIES: Sequence[Callable[[int], object]] = (
    test_takeover.test_a_client_that_moves_on_before_its_session_has_come_whole,
    test_repetitions.test_a_publisher_whose_session_is_adopted_is_heard_once,
    test_wills.test_each_session_gets_a_will_once_whoever_dies_and_comes_back_meanwhile,
    test_takeover.test_a_client_that_hops_under_load_misses_nothing,
    quorum_history.play,
    queues,
)


@contextlib.contextmanager
def listening(lines: list[str]) -> Iterator[None]:
    """Adds what happens in the first world that is made. One of a former history may still be taken apart."""
    worlds: list[object] = []
    write, read, init = Pipe.write, Client.read, Brokers.__init__

    def made(brokers: Brokers, *what: object, **how: object) -> None:
        init(brokers, *what, **how)     # type: ignore[arg-type]
        worlds.append(brokers.world)

    def written(pipe: Pipe, item: object) -> None:
        world = pipe._network.world
        if world in worlds[:1]:
            lines.append(f"{world.now_ms} {item if isinstance(item, tuple | bytes) else type(item).__name__}")
        write(pipe, item)

    def came(client: Client) -> None:
        known = len(client.got)
        read(client)
        lines.extend(f"{client.brokers.world.now_ms} {client.name} {packet}" for packet in client.got[known:])

    with patch.object(Brokers, "__init__", made), patch.object(Pipe, "write", written), \
            patch.object(Client, "read", came):
        yield


def told(play: Callable[[], object]) -> list[str]:
    """What happens in a history."""
    lines: list[str] = []
    with listening(lines):
        play()
    return lines


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        for play in HISTORIES:
            print(*told(partial(play, number)), "", sep="\n")
