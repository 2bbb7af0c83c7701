"""What keys do: they move the focus, freeze the picture, and steer a try-out.

Tab goes around nodes, clients of the try-out and lanes. An order to a try-out goes out in a thread, because a node that
is restarted may keep its answer for a while; what it said stands in the status line.
"""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxmq._core.errors import FluxError
from fluxmq.view.picture import Picture
from fluxmq.view.ports import TryOut

__all__ = ["Keys", "Steering", "seen_by_tryout"]

NO_TRYOUT = "there is no try-out to steer: `fluxmq tryout --hold` starts one"
FASTER, SLOWER = 1.5, 1 / 1.5
WORDS = {"down": "down", "stopped": "hangs", "starting": "starting"}     # states of a try-out's nodes that do not serve
ASK_S = 1.0         # between two looks at the try-out's clients
STEERING = frozenset("krn[]cg+-=_")


class Steering:
    """Handle. Orders to a try-out, one after the other. connect: makes a connection to its control socket.

    clients: (name, state) as it last said; nodes: state of each; traffic: what the publishers do, in words.
    """

    def __init__(self, connect: Callable[[], TryOut]) -> None:
        self.clients: list[tuple[str, str]] = []
        self.nodes: dict[str, str] = {}
        self.traffic = ""
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._connect = connect
        self._orders: queue.SimpleQueue[tuple[str, Callable[[TryOut], str]] | None] = queue.SimpleQueue()
        self._tryout: TryOut | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="viz steering")
        self._thread.start()

    def order(self, doing: str, do: Callable[[TryOut], str]) -> None:
        """do: returns what to say then. doing: what is said until then."""
        self._said.put(doing)
        self._orders.put((doing, do))

    def said(self) -> str:
        """The newest of what was said since the last call; "": nothing."""
        text = ""
        while not self._said.empty():
            text = self._said.get()
        return text

    def close(self) -> None:
        self._orders.put(None)

    def _run(self) -> None:
        look = 0.0
        while True:
            try:
                order = self._orders.get(timeout=max(look - time.monotonic(), 0.01))
            except queue.Empty:
                order = ("", self._look)
                look = time.monotonic() + ASK_S
            if order is None:
                return
            try:
                if self._tryout is None:
                    self._tryout = self._connect()
                if text := order[1](self._tryout):
                    self._said.put(text)
                if order[0]:
                    look = 0.0
            except (FluxError, KeyError, TypeError, ValueError) as error:
                self._tryout = None if isinstance(error, FluxError) and not order[0] else self._tryout
                if order[0]:
                    self._said.put(str(error))
                else:
                    self.clients, self.nodes, self.traffic = [], {}, ""

    def _look(self, tryout: TryOut) -> str:
        found = tryout.ask("status")
        self.clients = [(str(client["client"]), str(client["state"])) for client in found["clients"]]
        self.nodes = {str(node["node"]): str(node["state"]) for node in found["nodes"]}
        traffic = found["traffic"]
        self.traffic = (f"{traffic['rate']:g}/s each, confirms {'on' if traffic['confirms'] else 'off'}, "
                        f"{'keyed' if traffic['keyed'] else 'round robin'}")
        return ""


def seen_by_tryout(nodes: Sequence[tuple[str, str, int]], states: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """The nodes of a picture, for which a try-out knows better: the cluster says that a node serves until its lease
    ends. states: those of the try-out."""
    return [(name, WORDS[states[name]] if state == "serving" and states.get(name) in WORDS else state, sessions)
            for name, state, sessions in nodes]


class Keys:
    """Machine. steering: None: there is no try-out. nodes and clients: names for the focus, asked for at each key."""

    def __init__(self, picture: Picture, steering: Steering | None) -> None:
        self.quit = False
        self.frozen = False
        self.redraw = False
        self._picture = picture
        self._steering = steering
        self._killed = ""       # the node that was killed last

    def press(self, key: str) -> None:
        picture = self._picture
        if key == "q":
            self.quit = True
        elif picture.help:
            picture.help = False
        elif key == "?":
            picture.help = True
        elif key == "redraw":
            self.redraw = True
        elif key in ("tab", "down", "backtab", "up"):
            self._focus(1 if key in ("tab", "down") else -1)
        elif key == "space":
            self._space()
        elif key in STEERING:
            if self._steering is None:
                picture.status = NO_TRYOUT
            else:
                self._steer(self._steering, key)

    def _focus(self, step: int) -> None:
        picture = self._picture
        nodes = picture.numbers.nodes
        ring: list[tuple[str, str]] = [("node", name) for name, _, _ in nodes] if len(nodes) > 1 else []
        ring += [("client", name) for name, _ in picture.numbers.clients]
        ring += [("lane", lane.title) for lane in picture.lanes.shown()]
        if not ring:
            return
        at = ring.index(picture.focus) if picture.focus in ring else -1 if step > 0 else 0
        picture.focus = ring[(at + step) % len(ring)]
        picture.status = " ".join(picture.focus)

    def _space(self) -> None:
        focus, steering = self._picture.focus, self._steering
        if steering is not None and focus is not None and focus[0] == "client":
            paused = dict(self._picture.numbers.clients).get(focus[1]) == "paused"
            self._client(steering, "resume" if paused else "pause", focus[1])
            return
        self.frozen = not self.frozen
        self._picture.status = "frozen: space goes on" if self.frozen else ""

    def _steer(self, steering: Steering, key: str) -> None:
        focus = self._picture.focus
        if key in "kr":
            self._kill(steering, "kill" if key == "k" else "restart")
        elif key == "n":
            client = focus[1] if focus is not None and focus[0] == "client" else None
            steering.order("nack", lambda tryout: f"{tryout.ask('nack', client=client)['client']} gives back its next "
                                                  "delivery")
        elif key in "[]":
            factor = FASTER if key == "]" else SLOWER
            steering.order("rate", lambda tryout: f"each publisher sends "
                                                  f"{tryout.ask('rate', factor=factor)['traffic']['rate']:.3g}/s")
        elif key == "c":
            steering.order("confirms", lambda tryout: "confirms " + _switch(
                tryout.ask("confirms")["traffic"]["confirms"], ("on", "off")))
        elif key == "g":
            steering.order("routing", lambda tryout: "messages " + _switch(
                tryout.ask("routing")["traffic"]["keyed"], ("have keys", "take the partitions in turn")))
        else:
            self._repartition(steering, key in "+=")

    def _client(self, steering: Steering, what: str, client: str) -> None:
        steering.order(f"{what} {client}", lambda tryout: f"{tryout.ask(what, client=client)['client']}: {what}")

    def _kill(self, steering: Steering, what: str) -> None:
        focus = self._picture.focus
        if focus is not None and focus[0] == "client":
            self._client(steering, what, focus[1])
            return
        node = focus[1] if focus is not None and focus[0] == "node" else self._owner(focus)
        if what == "restart" and self._killed and (focus is None or focus[0] == "lane"):
            node = self._killed     # its lanes have another owner by now
        if not node:
            self._picture.status = f"Tab to a node, a client or a lane: then this would {what} it"
            return
        if what == "kill":
            self._killed = node
        steering.order(f"{what} {node}", lambda tryout: f"{tryout.ask(what, node=node)['node']}: {what}")

    def _owner(self, focus: tuple[str, str] | None) -> str:
        if focus is None:
            return ""
        return next((lane.owner for lane in self._picture.lanes.shown() if lane.title == focus[1]), "")

    def _repartition(self, steering: Steering, more: bool) -> None:
        focus = self._picture.focus
        lanes = [lane for lane in self._picture.lanes.shown() if lane.kind == "queue"]
        name = next((lane.name for lane in lanes if focus == ("lane", lane.title)), "")
        if not name:
            self._picture.status = "Tab to a lane of a queue: then this would change its partitions"
            return
        count = sum(lane.name == name for lane in lanes)
        wanted = count * 2 if more else max(count // 2, 1)
        steering.order(f"{name}: {wanted} partitions", lambda tryout: _repartitioned(tryout.ask(
            "repartition", queue=name, partitions=wanted), name, wanted))


def _switch(on: bool, words: Sequence[str]) -> str:
    return words[0] if on else words[1]


def _repartitioned(_: dict[str, Any], name: str, wanted: int) -> str:
    return f"{name} gets {wanted} partitions"
