"""What a player does and when, on a connection and a clock of the test: nothing here waits for anybody."""
from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from kit.story import Story

from fluxmq._core.client.properties import Properties
from fluxmq.client.options import ConnAck
from fluxmq.record.reading import open_recording
from fluxmq.spark.player.options import PlayOptions, PlayStatus
from fluxmq.spark.player.player import Player
from fluxmq.spark.replay.plan import plain_plan

START = 5_000_000_000_000
MILLISECOND = 1_000_000
Sent = tuple[str, str, Any]


class World:
    """A clock that only sleeping moves, and a server that notes what it gets: (client, what, more)."""

    def __init__(self, *, window: int = 100, answers: bool = True) -> None:
        self.now = START
        self.window, self.answers = window, answers
        self.sent: list[Sent] = []
        self.times: list[int] = []
        self.connections: list[Fake] = []
        self.held: deque[Callable[[], object]] = deque()

    async def sleep(self, seconds: float) -> None:
        self.now += max(round(seconds * 1e9), 1)
        await asyncio.sleep(0)

    async def open(self, _address: str, options: Any, **callbacks: Any) -> Fake:
        self.note(options.client_id, "CONNECT", options.clean_start)
        await asyncio.sleep(0)
        return Fake(self, options.client_id, callbacks)

    def note(self, client: str, what: str, more: Any = None) -> None:
        self.sent.append((client, what, more))
        self.times.append(self.now)

    def answer(self, work: Callable[[], object]) -> None:
        """An acknowledgement: in the next turn, or when the test says so."""
        if self.answers:
            asyncio.get_running_loop().call_soon(work)
        else:
            self.held.append(work)


class Fake:
    """What the player needs of a connection."""

    def __init__(self, world: World, client: str, callbacks: dict[str, Any]) -> None:
        self.world, self.client, self.callbacks = world, client, callbacks
        self.connack = ConnAck(False, 0, Properties())
        self.writable, self.open, self.packets = True, 0, 0
        world.connections.append(self)

    @property
    def window(self) -> int:
        return self.world.window - self.open

    def publish(self, topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes | None,
                done: Callable[[int, int], None] | None = None) -> int:
        self.world.note(self.client, "PUBLISH", topic.decode())
        if done is None:
            return 0
        self.packets += 1
        self.open += 1
        packet = self.packets

        def acknowledged() -> None:
            self.open -= 1
            self.world.note(self.client, "acknowledged", topic.decode())
            done(packet, 0)

        self.world.answer(acknowledged)
        return packet

    def subscribe(self, filters: list[tuple[str, int]], done: Callable[[int, list[int]], None], properties: Any) -> int:
        self.world.note(self.client, "SUBSCRIBE", [name for name, _ in filters])

        def answered() -> None:
            self.world.note(self.client, "SUBACK")
            done(1, [options & 3 for _, options in filters])

        self.world.answer(answered)
        return 1

    def ping(self, done: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(done)

    def acknowledge(self, message: Any) -> None:
        self.world.note(self.client, "PUBACK", message)

    def disconnect(self, reason: int = 0, properties: Any = None) -> None:
        self.world.note(self.client, "DISCONNECT", reason)
        asyncio.get_running_loop().call_soon(self.callbacks["on_closed"], None, reason)

    def abort(self) -> None:
        self.world.note(self.client, "abort")
        asyncio.get_running_loop().call_soon(self.callbacks["on_closed"], None, 0)

    async def closed(self) -> None:
        await asyncio.sleep(0)


def played(tmp_path: Path, story: Story, world: World, meanwhile: Callable[[Player], None] | None = None,
           **options: Any) -> tuple[PlayStatus, list[dict[str, Any]]]:
    """Plays a story; meanwhile(player) is called in every turn of the loop."""
    plan, (operations,) = plain_plan(open_recording(story.write(tmp_path / "recording")))
    status, rows = PlayStatus(), list[dict[str, Any]]()

    async def feed() -> AsyncIterator[pa.RecordBatch]:
        for batch in operations:
            yield batch

    async def run() -> None:
        asked = PlayOptions(run=7, first=plan.survey.first, published=plan.survey.published, silent=plan.survey.silent,
                            clock=lambda: world.now, sleep=world.sleep, open_connection=world.open, quiet_s=0.001,
                            **{"address": "127.0.0.1:1", "meet": lambda word, now: now, **options})
        player = Player(asked, status, lambda batch: rows.extend(batch.to_pylist()), frozenset(plan.survey.manual))

        async def watch() -> None:
            while meanwhile is not None:
                meanwhile(player)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        try:
            await player.run(feed())
        finally:
            watching.cancel()

    asyncio.run(run())
    return status, rows


def paced() -> Story:
    story = Story()
    for client in ("a", "b"):
        story.connect(client, at=0.0)
    for number in range(1, 11):
        story.publish("a" if number % 2 else "b", f"t/{number}", 1, at=number / 10)
    return story


def test_each_is_sent_when_it_is_due(tmp_path: Path) -> None:
    for speed in (0.5, 1.0, 4.0):
        world = World()
        (tmp_path / str(speed)).mkdir()
        status, rows = played(tmp_path / str(speed), paced(), world, speed=speed)
        assert status.complete and status.not_sent == 0
        times = {more: time - START for (_, what, more), time in zip(world.sent, world.times, strict=True)
                 if what == "PUBLISH"}
        assert list(times) == [f"t/{number}" for number in range(1, 11)]
        for number in range(1, 11):
            due = round(number / 10 / speed * 1e9)
            assert 0 <= times[f"t/{number}"] - due <= MILLISECOND
        publishes = sorted((row for row in rows if row["event"] == "publish"), key=lambda row: row["due"])
        assert [row["due"] - START for row in publishes] == [round(n / 10 / speed * 1e9) for n in range(1, 11)]
        assert status.late_ns_max == max(row["sent"] - row["due"] for row in rows if row["due"] is not None)


def test_all_start_at_the_instant_they_agree_on(tmp_path: Path) -> None:
    world = World()
    words: list[str] = []

    def meet(word: str, now: int) -> int:
        words.append(word)
        return now + 70 * MILLISECOND

    played(tmp_path, paced(), world, meet=meet)
    assert words == ["start", "sent"]
    assert world.times[0] >= START + 70 * MILLISECOND
    words.clear()
    (tmp_path / "fast").mkdir()
    played(tmp_path / "fast", paced(), World(), meet=meet, speed=None)
    assert words == ["start", "connected", "published", "sent"]


def test_a_client_whose_window_is_used_up_waits_and_keeps_its_order(tmp_path: Path) -> None:
    world = World(window=3)
    story = Story()
    for client in ("full", "free"):
        story.connect(client, at=0.0)
    for number in range(50):
        story.publish("full", f"full/{number}", 1, at=0.5)
        story.publish("free", f"free/{number}", 0, at=0.5)
    status, _ = played(tmp_path, story, world)
    assert status.complete
    open_now = most = 0
    for client, what, _ in world.sent:
        if client == "full" and what in ("PUBLISH", "acknowledged"):
            open_now += 1 if what == "PUBLISH" else -1
            most = max(most, open_now)
    assert most == 3
    for name in ("full", "free"):
        assert [more for client, what, more in world.sent if (client, what) == (name, "PUBLISH")] == [
            f"{name}/{number}" for number in range(50)]


def test_with_fast_a_session_operation_is_a_barrier(tmp_path: Path) -> None:
    world = World()
    story = Story()
    for client in ("a", "b"):
        story.connect(client)
    for number in range(5):
        story.publish("a", f"before/{number}", 1)
    story.subscribe("b", ("x", 1))
    story.subscribe("b", ("y", 1))
    for number in range(5):
        story.publish("a", f"after/{number}", 1)
    story.lost("b")
    story.publish("a", "last", 1)
    status, rows = played(tmp_path, story, world, speed=None)
    assert status.complete and all(row["due"] is None for row in rows)
    what = [(what, more) for _, what, more in world.sent]
    subscribed = what.index(("SUBSCRIBE", ["x"]))
    acknowledged = [index for index, (kind, more) in enumerate(what) if kind == "acknowledged" and "before" in more]
    assert len(acknowledged) == 5 and max(acknowledged) < subscribed
    answered = [index for index, (kind, _) in enumerate(what) if kind == "SUBACK"]
    assert len(answered) == 2 and max(answered) < what.index(("PUBLISH", "after/0"))
    aborted = what.index(("abort", None))
    assert what.index(("acknowledged", "after/4")) < aborted < what.index(("PUBLISH", "last"))
    assert [json.loads(row["detail"])["by"] for row in rows if row["event"] == "lost-connection"] == ["client"]


def test_a_disconnect_waits_for_what_the_client_sent(tmp_path: Path) -> None:
    world = World(answers=False)
    story = Story()
    story.connect("a", at=0.0)
    story.publish("a", "t", 1, at=0.1)
    story.disconnect("a", at=0.2)
    story.connect("b", at=0.3)
    seen: list[Sent] = []

    def release(_player: Player) -> None:
        if world.held and any(client == "b" for client, _, _ in world.sent):
            seen.extend(world.sent)
            world.answers = True
            world.held.popleft()()

    status, rows = played(tmp_path, story, world, release)
    assert status.complete
    assert ("a", "DISCONNECT", 0) not in seen and ("b", "CONNECT", True) in seen
    assert world.sent.index(("a", "acknowledged", "t")) < world.sent.index(("a", "DISCONNECT", 0))
    assert all(row["acked"] is not None for row in rows if row["event"] == "publish")


def test_operations_without_a_connection_are_counted(tmp_path: Path) -> None:
    """The server closes one connection; the rest goes on, and the result says what is missing."""
    world = World()
    story = paced()

    def hang_up(_player: Player) -> None:
        if ("a", "PUBLISH", "t/3") in world.sent and not any(what == "gone" for _, what, _ in world.sent):
            world.note("a", "gone")
            next(one for one in world.connections if one.client == "a").callbacks["on_closed"](OSError("gone"), 0x97)

    async def server() -> tuple[PlayStatus, list[dict[str, Any]]]:
        listening = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening:
            return await asyncio.to_thread(played, tmp_path, story, world, hang_up, address=f"127.0.0.1:{port}")

    status, rows = asyncio.run(server())
    assert not status.complete and status.not_sent == 3
    assert status.why == "3 operations were not sent: its connection was gone"
    (lost,) = [row for row in rows if row["event"] == "lost-connection"]
    assert (lost["client"], lost["reason"], json.loads(lost["detail"])["by"]) == ("a", 0x97, "broker")
    assert [more for client, what, more in world.sent if (client, what) == ("b", "PUBLISH")] == [
        f"t/{number}" for number in (2, 4, 6, 8, 10)]
