"""Keys: the focus goes around, the try-out is told what to do, and without one that is said."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq._core.errors import FluxError
from fluxmq.view.belts import ASCII
from fluxmq.view.keys import NO_TRYOUT, STEERING, Keys, Steering, seen_by_tryout
from fluxmq.view.lanes import Lanes
from fluxmq.view.picture import Numbers, Picture

PATIENCE_S = 20.0   # only a failing test needs it


class TryOut:
    """Answers as fluxmq.tryout.control does. asked: orders, without those for the status."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.gone = False
        self.n2 = "up"
        self.traffic = {"rate": 100.0, "confirms": True, "keyed": False}
        self.states = {"pub-1": "running", "con-1": "running"}

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        if self.gone:
            raise FluxError("the try-out has ended")
        if do == "status":
            return {"clients": [{"client": name, "state": state} for name, state in self.states.items()],
                    "nodes": [{"node": "n1", "state": "up"}, {"node": "n2", "state": self.n2}], "traffic": self.traffic}
        self.asked.append({"do": do, **given})
        if do == "rate":
            self.traffic["rate"] *= given["factor"]
        elif do in ("confirms", "routing"):
            word = {"confirms": "confirms", "routing": "keyed"}[do]
            self.traffic[word] = not self.traffic[word]
        elif do == "repartition":
            raise FluxError("repartition comes later")
        elif do in ("pause", "resume"):
            self.states[given["client"]] = "paused" if do == "pause" else "running"
        return {"ok": True, "traffic": self.traffic, "client": given.get("client") or "con-1",
                "node": given.get("node")}


class View:
    """A picture with two nodes, two clients and two lanes, and its keys."""

    def __init__(self, steered: bool = True) -> None:
        self.tryout = TryOut()
        self.steering = Steering(lambda: self.tryout) if steered else None
        lanes = Lanes()
        self.picture = Picture(lanes, 80, 24, ASCII)
        lanes.learn_queues([("orders", [("n2", 0, False), ("n1", 0, False)])], 0.0)
        self.picture.numbers = Numbers(nodes=[("n1", "serving", 1), ("n2", "serving", 1)],
                                       clients=[("pub-1", "running"), ("con-1", "running")] if steered else [])
        self.keys = Keys(self.picture, self.steering)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.keys.press(key)

    def told(self, do: Callable[[], object]) -> list[dict[str, Any]]:
        """What the try-out was told by that, and the status line then has what it said."""
        before = len(self.tryout.asked)
        do()
        deadline = time.monotonic() + PATIENCE_S
        assert self.steering is not None
        while len(self.tryout.asked) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.tryout.asked[before:]

    def says(self, part: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        assert self.steering is not None
        while part not in (self.steering.said() or ""):
            assert time.monotonic() < deadline, part
            time.sleep(0.001)

    def close(self) -> None:
        if self.steering is not None:
            self.steering.close()


def test_the_focus_goes_around() -> None:
    view = View()
    ring = [("node", "n1"), ("node", "n2"), ("client", "pub-1"), ("client", "con-1"), ("lane", "orders/0"),
            ("lane", "orders/1")]
    seen = []
    for _ in range(7):
        view.press("tab")
        seen.append(view.picture.focus)
    assert seen == [*ring, ring[0]]
    view.press("backtab")
    assert view.picture.focus == ring[-1]
    view.picture.focus = None
    view.press("backtab")
    assert view.picture.focus == ring[-1]
    view.picture.focus = ("lane", "is gone")
    view.press("tab")
    assert view.picture.focus == ring[0]
    view.close()


@pytest.mark.parametrize("key", sorted(STEERING))
def test_without_a_tryout_it_says_so(key: str) -> None:
    view = View(steered=False)
    view.press("tab", key)
    assert view.picture.status == NO_TRYOUT
    assert not view.keys.quit


def test_space_freezes_the_picture() -> None:
    view = View(steered=False)
    view.press("space")
    assert view.keys.frozen and "frozen" in view.picture.status
    view.press("space")
    assert not view.keys.frozen


@pytest.mark.parametrize(("keys", "order", "said"), [
    (["n"], {"do": "nack", "client": None}, "con-1 gives back its next delivery"),
    (["]"], {"do": "rate", "factor": 1.5}, "each publisher sends 150/s"),
    (["["], {"do": "rate", "factor": 1 / 1.5}, "each publisher sends 66.7/s"),
    (["c"], {"do": "confirms"}, "confirms off"),
    (["g"], {"do": "routing"}, "messages have keys"),
    (["tab", "k"], {"do": "kill", "node": "n1"}, "n1: kill"),
    (["tab", "tab", "r"], {"do": "restart", "node": "n2"}, "n2: restart"),
    (["tab"] * 3 + ["k"], {"do": "kill", "client": "pub-1"}, "pub-1: kill"),
    (["tab"] * 4 + ["n"], {"do": "nack", "client": "con-1"}, "con-1 gives back its next delivery"),
    (["tab"] * 3 + ["space"], {"do": "pause", "client": "pub-1"}, "pub-1: pause"),
    (["tab"] * 5 + ["k"], {"do": "kill", "node": "n2"}, "n2: kill"),
    (["tab"] * 5 + ["+"], {"do": "repartition", "queue": "orders", "partitions": 4}, "repartition comes later"),
    (["tab"] * 5 + ["-"], {"do": "repartition", "queue": "orders", "partitions": 1}, "repartition comes later")])
def test_a_key_is_an_order(keys: list[str], order: dict[str, Any], said: str) -> None:
    view = View()
    assert view.told(lambda: view.press(*keys)) == [order]
    view.says(said)
    assert not view.keys.frozen
    view.close()


def test_who_was_killed_is_restarted_though_its_lanes_have_moved() -> None:
    view = View()
    assert view.told(lambda: view.press(*["tab"] * 5, "k")) == [{"do": "kill", "node": "n2"}]
    view.picture.lanes.learn_queues([("orders", [("n1", 0, False), ("n1", 0, False)])], 1.0)
    assert view.told(lambda: view.press("r")) == [{"do": "restart", "node": "n2"}]
    view.close()


def test_a_client_that_is_paused_is_resumed() -> None:
    view = View()
    view.picture.numbers = Numbers(clients=[("pub-1", "paused")])
    view.picture.focus = ("client", "pub-1")
    assert view.told(lambda: view.press("space")) == [{"do": "resume", "client": "pub-1"}]
    view.close()


@pytest.mark.parametrize("key", ["k", "r", "+", "-"])
def test_some_keys_need_a_focus(key: str) -> None:
    view = View()
    view.press(key)
    assert "Tab to " in view.picture.status
    assert view.tryout.asked == []
    view.close()


def test_clients_and_traffic_are_asked_for_and_a_tryout_that_has_gone_is_tried_again() -> None:
    view = View()
    assert view.steering is not None
    steering = view.steering
    deadline = time.monotonic() + PATIENCE_S
    while not steering.clients:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert steering.clients == [("pub-1", "running"), ("con-1", "running")]
    assert steering.traffic == "100/s each, confirms on, round robin"
    view.tryout.gone = True
    view.press("n")
    view.says("the try-out has ended")
    while steering.clients:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    view.tryout.gone = False
    assert view.told(lambda: view.press("n")) == [{"do": "nack", "client": None}]
    view.close()


def test_the_help_comes_and_goes_with_any_key() -> None:
    view = View()
    view.press("?")
    assert view.picture.help
    view.press("k")
    assert not view.picture.help
    assert view.tryout.asked == []
    view.press("?", "q")
    assert view.keys.quit
    view.close()


@pytest.mark.parametrize(("of_tryout", "shown"), [
    ("down", "down"), ("stopped", "hangs"), ("starting", "starting"), ("up", "serving")])
def test_a_node_that_the_tryout_has_killed_is_down_before_its_lease_ends(of_tryout: str, shown: str) -> None:
    view = View()
    assert view.steering is not None
    view.tryout.n2 = of_tryout
    deadline = time.monotonic() + PATIENCE_S
    while view.steering.nodes.get("n2") != of_tryout:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    cluster = [("n1", "serving", 3), ("n2", "serving", 4)]
    assert seen_by_tryout(cluster, view.steering.nodes) == [("n1", "serving", 3), ("n2", shown, 4)]
    # What the cluster says of a node that does not serve is kept: it says more.
    assert seen_by_tryout([("n2", "leaving", 4)], view.steering.nodes) == [("n2", "leaving", 4)]
    view.steering.close()
