"""Histories of wills: what subscribers see of devices whose nodes end in every way, and which go on at others.

Each device publishes "online" after its CONNACK and has the will "offline", numbered by its connections; both are
retained, or neither. Nodes are killed and back at once, or after their lease; leases are revoked, of one node or of
all; nodes leave in good order and stand still; connections break, or end with DISCONNECT, or are taken over. What
holds:

    a will comes to each plain persistent subscriber if its connection ended without DISCONNECT 0x00 [MQTT-3.1.2-8]
    no connected subscriber, at whatever node, gets it after anything of its client's later connections
    it does not come while its client is connected, nor after DISCONNECT 0x00 [MQTT-3.1.2-10]
    nor if it has a delay and its client was back before that, with its session [MQTT-3.1.3-9]
    the value that is retained at the end is the last one of the topic

A node that ends within a second after DISCONNECT may have known nothing of it.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from kit.sizes import some
from oracle.mqtt import Connack, Disconnect, Pingreq, Will
from simulator.cluster.brokers import Client
from simulator.cluster.test_brokers import cluster

__all__ = ["LEVELS", "run"]

NAMES = ("one", "two", "three")
DEVICES = 5
STEPS = 6
SLICE_S = 0.05
SESSION_S = 1000
READ_S = 1.0        # within that time a node has read DISCONNECT, and told the store
REST_S = 15.0       # at the end: longer than any delay, and than a node waits for a client to return


@dataclass
class Life:
    """One connection of a device, and its will. began: CONNACK came. ended: when the connection had; None: it is there.
    good: it was ended by DISCONNECT 0x00."""

    number: int
    client: Client
    will: bool
    delay_s: int
    expiry_s: int
    clean: bool
    retain: bool
    began: float | None = None
    ended: float | None = None
    good: bool = False
    acknowledged: bool = False
    packet_id: int = 0

    def says(self, what: str) -> bytes:
        return b"%d %s" % (self.number, what.encode())


@dataclass
class Device:
    """life: the present connection, or the last one. rests: it does not connect before that time."""

    name: str
    retain: bool
    lives: list[Life] = field(default_factory=list)
    rests: float = 0.0

    @property
    def topic(self) -> str:
        return f"w/{self.name}"

    @property
    def life(self) -> Life | None:
        return self.lives[-1] if self.lives else None


class History:
    """faults: names of methods, of which each step calls one."""

    def __init__(self, seed: int, faults: tuple[str, ...]) -> None:
        self.chance = random.Random(seed)
        self.brokers = cluster(*NAMES, seed=seed)
        self.brokers.writer_s = 0.005
        self.brokers.start()
        self.world = self.brokers.world
        self.ends: dict[str, list[float]] = {name: [] for name in NAMES}    # of lives of nodes
        self.devices = [Device(f"d{number}", number % 3 > 0) for number in range(DEVICES)]
        self.watchers = {at: self.brokers.client(at, f"watcher-{at}") for at in NAMES}
        # Without a session, so that nothing comes late that a dead node had: by node, one per connection.
        self.live: dict[str, list[Client]] = {at: [] for at in NAMES}
        self.seen: dict[Client, int] = {}
        self.going_on = True
        for watcher in self.watchers.values():
            watcher.connect(clean_start=False, expiry_s=SESSION_S)
        self.until(lambda: all(watcher.connected for watcher in self.watchers.values()))
        asked = [(watcher, watcher.subscribe("w/#", 1)) for watcher in self.watchers.values()]
        self.until(lambda: all(watcher.acknowledged(packet) for watcher, packet in asked))
        self.world.checks.append(self.look)
        self.drive(2.0)
        for _ in range(STEPS):
            getattr(self, self.chance.choice(faults))()
            self.drive(self.chance.choice((0.3, 1.0, 3.0, 6.0)))
            self.bring_back()
        self.going_on = self.chance.random() < 0.5      # else who has lost its connection stays away
        self.drive(5.0)
        self.going_on = False
        self.brokers.writer_s = 0.05
        self.drive(REST_S)
        self.judge()
        self.judge_retained()

    # ------------------------------------------------------------------ time

    @property
    def now(self) -> float:
        return self.world.now_ms / 1000

    def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        self.brokers.run_until(condition, limit_s)

    def drive(self, seconds: float) -> None:
        """Time passes, and devices and watchers connect again."""
        ends = self.now + seconds
        while self.now < ends:
            for at, watcher in self.watchers.items():
                if not self.live[at] or not self.live[at][-1].open:
                    self.watch(at)
                if not watcher.open and (node := self.a_node(at)):
                    watcher.connect(at=node, clean_start=False, expiry_s=SESSION_S, keep_alive=0)
            for device in self.devices:
                self.go_on(device)
            self.brokers.run_for(SLICE_S)

    def watch(self, at: str) -> None:
        if self.a_node(at) == at:
            watcher = self.brokers.client(at, f"live-{at}")
            watcher.connect(keep_alive=0)
            watcher.subscribe("w/#", 1)
            self.live[at].append(watcher)

    def a_node(self, wanted: str = "") -> str:
        """One that serves; this one if it does. "": none does."""
        serving = [name for name in self.running() if not self.brokers.processes[name].process.paused]
        return wanted if wanted in serving else self.chance.choice(serving) if serving else ""

    def go_on(self, device: Device) -> None:
        life = device.life
        if life is not None and life.ended is None:
            if int(self.now / SLICE_S) % 10 == 0:
                life.client.send(Pingreq())
            return
        if self.now < device.rests or (life is not None and not self.going_on):
            return
        self.connect(device)

    def connect(self, device: Device) -> None:
        at = self.a_node()
        if not at:
            return
        chance = self.chance
        will = device.name == "d0" or chance.random() < 0.85
        expiry_s = chance.choice((0, 0, SESSION_S))
        life = Life(len(device.lives), self.brokers.client(at, device.name), will, chance.choice((0, 0, 0, 1, 4)),
                    expiry_s, chance.random() < (0.3 if expiry_s else 0.7), device.retain)
        properties = (("will_delay_interval", life.delay_s),) if life.delay_s else ()
        device.lives.append(life)
        device.rests = self.now + chance.choice((0.0, 0.1, 0.5, 2.0, 5.0))
        life.client.connect(clean_start=life.clean, expiry_s=expiry_s, keep_alive=chance.choice((0, 2)),
                            will=Will(topic=device.topic, payload=life.says("offline"), qos=1, retain=device.retain,
                                      properties=properties) if will else None)

    # ------------------------------------------------------------------ faults

    def ended(self, *names: str) -> None:
        for name in names:
            self.ends[name].append(self.now)

    def running(self) -> list[str]:
        return [name for name in NAMES if self.brokers.processes[name].serving]

    def bring_back(self) -> None:
        """Until all serve again."""
        for name in NAMES:
            process = self.brokers.processes[name].process
            if process.paused:
                process.resume()
            if not process.alive:
                self.brokers.processes[name].start()
        for _ in range(int(60 / SLICE_S)):
            if len(self.running()) == len(NAMES):
                return
            self.drive(SLICE_S)
        raise AssertionError(f"only {self.running()} serve")

    def revoke_one(self) -> None:
        at = self.chance.choice(NAMES)
        self.ended(at)
        self.brokers.end_lease_of(at)

    def revoke_all(self) -> None:
        for at in self.chance.sample(NAMES, len(NAMES)):
            self.ended(at)
            self.brokers.end_lease_of(at)
            self.brokers.run_for(self.chance.choice((0.0, 0.0, 0.002, 0.1)))

    def kill_and_start(self) -> None:
        """It is back before its lease has ended."""
        at = self.chance.choice(NAMES)
        self.ended(at)
        self.brokers.kill(at)
        self.drive(self.chance.choice((0.05, 0.3)))
        self.brokers.processes[at].start()

    def kill(self) -> None:
        """Its lease ends; it is back some time later."""
        at = self.chance.choice(NAMES)
        self.ended(at)
        self.brokers.kill(at)
        self.drive(self.chance.choice((0.1, 1.0)))
        self.brokers.end_lease_of(at)
        self.drive(self.chance.choice((0.05, 0.65, 0.8, 2.0)))

    def stop(self) -> None:
        """SIGTERM, and it is started again."""
        at = self.chance.choice(NAMES)
        broker = self.brokers.processes[at]
        self.ended(at)
        broker.process.driver.start(broker.stop())
        for _ in range(int(60 / SLICE_S)):
            if not broker.process.alive:
                break
            self.drive(SLICE_S)
        self.ended(at)
        self.drive(self.chance.choice((0.0, 0.3, 1.0)))

    def stand_still(self) -> None:
        """Longer than its lease."""
        at = self.chance.choice(NAMES)
        self.ended(at)
        self.brokers.processes[at].process.pause()
        self.drive(1.0)
        self.brokers.end_lease_of(at)
        self.drive(self.chance.choice((0.1, 0.7, 2.0)))
        self.brokers.processes[at].process.resume()
        self.ended(at)

    def lose_connections(self) -> None:
        for device in self.devices:
            life = device.life
            if life is not None and life.client.open and self.chance.random() < 0.5:
                life.client.leave()

    def lose_connections_and_kill(self) -> None:
        """The node publishes wills in the moment of its end."""
        self.lose_connections()
        self.brokers.run_for(self.chance.choice((0.001, 0.002, 0.005, 0.01)))
        self.kill_and_start() if self.chance.random() < 0.5 else self.kill()

    def disconnect(self) -> None:
        for device in self.devices:
            life = device.life
            if life is not None and life.client.connected and self.chance.random() < 0.5:
                life.client.send(Disconnect())
                life.good, life.ended = True, self.now

    def move(self) -> None:
        """Clients connect again while they are connected."""
        for device in self.devices:
            life = device.life
            if life is not None and life.client.connected and self.chance.random() < 0.5:
                life.ended = self.now
                self.connect(device)

    # ------------------------------------------------------------------ the verdict

    def look(self) -> None:
        """After each event."""
        for device in self.devices:
            life = device.life
            if life is None or life.ended is not None:
                continue
            client = life.client
            if not client.open:
                life.ended = self.now
            elif life.began is None and any(packet.reason == 0 for packet in client.of(Connack)):
                life.began = self.now
                life.packet_id = client.publish(device.topic, life.says("online"), 1, retain=device.retain)
            elif life.packet_id and not life.acknowledged:
                life.acknowledged = client.acknowledged(life.packet_id)
        for watcher in (*self.watchers.values(), *(live[-1] for live in self.live.values() if live)):
            for topic, payload in watcher.messages[self.seen.get(watcher, 0):]:
                number, what = payload.split()
                device = next(device for device in self.devices if device.topic == topic)
                life = device.lives[int(number)]
                assert what == b"online" or life.ended is not None or self.touched(life), (
                    f"will {topic} {payload.decode()} came to {watcher.name} while its client is connected")
            self.seen[watcher] = len(watcher.messages)

    def touched(self, life: Life, after_s: float = 0.0) -> bool:
        """Whether a life of its node has ended since it began; or until some time after its end."""
        until = (self.now if life.ended is None else life.ended) + after_s
        return life.began is None or any(life.began <= at <= until for at in self.ends[life.client.at])

    def judge(self) -> None:
        watchers = [*self.watchers.values(), *(client for live in self.live.values() for client in live)]
        for device in self.devices:
            for life in device.lives:
                later = [each for each in device.lives[life.number + 1:] if each.began is not None]
                must, may = self.demands(life, later[0] if later else None)
                for watcher in watchers:
                    got = [payload for topic, payload in watcher.messages if topic == device.topic]
                    where = f"{device.name} at {life.client.at}, seen by {watcher.name}: {b', '.join(got).decode()}"
                    offline, persistent = life.says("offline"), watcher in self.watchers.values()
                    assert not must or not persistent or offline in got, f"the will {life.number} is missing: {where}"
                    assert may or offline not in got, f"the will {life.number} came, and must not: {where}"
                    if offline in got and life.began is not None and not persistent:
                        self.judge_order(offline, later, got, where)

    @staticmethod
    def judge_order(offline: bytes, later: list[Life], got: list[bytes], where: str) -> None:
        before = got[:got.index(offline)]
        for each in later:
            for says in (each.says("online"), each.says("offline")):
                assert says not in before, f"{says.decode()} before {offline.decode()}: {where}"

    def judge_retained(self) -> None:
        """A client that subscribes now, at whatever node, gets the last thing that became of each device."""
        late = {at: self.brokers.client(at, f"late-{at}") for at in NAMES}
        for client in late.values():
            client.connect(keep_alive=0)
            client.subscribe("w/#", 1)
        self.brokers.run_for(2.0)
        for device in self.devices:
            life = device.life
            if life is None or not device.retain:
                continue
            if life.ended is None:
                expected = life.says("online") if life.acknowledged else None
            else:
                expected = life.says("offline") if self.demands(life, None)[0] else None
            for at, client in late.items():
                got = [payload for topic, payload in client.messages if topic == device.topic]
                assert expected is None or got == [expected], (
                    f"retained at {at} of {device.name}: {got}, not {expected!r}")

    def demands(self, life: Life, later: Life | None) -> tuple[bool, bool]:
        """Whether its will must come; whether it may."""
        if not life.will or life.ended is None:
            return False, False
        if life.began is None:
            return False, True
        if life.good:
            return False, self.touched(life, READ_S)
        if not life.delay_s or not life.expiry_s or later is None or later.clean:
            return True, True
        assert later.began is not None
        # To the others the connection has ended with its node's lease, perhaps before the client noticed.
        return False, later.began >= life.ended + life.delay_s or self.touched(life)


ALL = ("revoke_one", "revoke_all", "kill_and_start", "kill", "stop", "stand_still", "lose_connections",
       "lose_connections_and_kill", "disconnect", "move")
LEVELS = {"wills and leases that are revoked": ("revoke_one", "revoke_all", "disconnect"),
          "wills and nodes that are back at once": ("kill_and_start", "disconnect", "lose_connections"),
          "wills and nodes that stop": ("stop", "disconnect", "move"),
          "wills and everything": ALL}


def run(seed: int, faults: tuple[str, ...] = ALL) -> None:
    History(seed, faults)


@pytest.mark.parametrize("seed", some(1, range(30)))
@pytest.mark.parametrize("level", LEVELS)
def test_wills(level: str, seed: int) -> None:
    run(seed, LEVELS[level])
