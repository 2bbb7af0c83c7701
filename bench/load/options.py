"""Options of the load generator: declared once, used by the command line, the scenarios and the tests."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fluxmq._core.wire.queue_address import queue_topic

__all__ = ["HEAD_SIZE", "LoadOptions", "OptionsError"]

HEAD_SIZE = 16  # bytes of payload that carry run, publisher, sequence number and time: see engine.pyx
FRESH_PUBLISHERS_MAX = 0xFFF
PAYLOAD_SIZE_MAX = 200 * 1024 * 1024


class OptionsError(ValueError):
    """Options that contradict each other. The text suggests a change."""


@dataclass(slots=True, kw_only=True)
class LoadOptions:
    """One run. Times in seconds, sizes in bytes.

    topics: "one" (all publishers on one topic, all subscribers on it), "pairs" (publisher i to subscriber i) or
    "fresh" (every message on a topic of its own, subscribers on a wildcard). filter: how a subscription names its
    topic: as it is, with + for its first level, or with /# behind it. groups: shared subscription groups, 0 for none.
    window: messages in flight in all (closed loop, rate 0). batch: most messages one publisher sends at a time, 0 for
    as many as its window allows. queue: the type of the queue `prefix` that is published to and consumed from, "" for
    an ordinary topic; its subscribers share the messages of a classic queue, and each has all of a stream. start: where
    a stream's subscribers begin, in the words of the SUBSCRIBE's user property `offset` ("" leaves it to the broker).
    sub_addrs: where the subscribers connect, one after the other; empty: where the publishers do. node_pids: of several
    nodes whose processor time is asked for instead of that of broker_pid, without that of their etcd members.
    """

    addr: str = "127.0.0.1:1883"
    transport: Literal["tcp", "tls", "ws", "wss"] = "tcp"
    path: str = "/mqtt"
    cafile: str | None = None
    insecure: bool = False
    version: Literal["3.1.1", "5"] = "3.1.1"
    pubs: int = 1
    subs: int = 1
    topics: Literal["one", "pairs", "fresh"] = "one"
    filter: Literal["exact", "plus", "hash"] = "exact"
    groups: int = 0
    qos: int = 0
    sub_qos: int | None = None
    size: int = 64
    properties: bool = False
    window: int = 1000
    batch: int = 0
    rate: float = 0.0
    duration: float = 5.0
    warmup: float = 1.0
    drain: float = 3.0
    persistent: bool = False
    session_expiry: int = 3600
    username: str | None = None
    password: str | None = None
    receive_maximum: int | None = None
    keep_alive: int = 0
    churn: float = 0.0
    connect_timeout: float = 20.0
    broker_pid: int | None = None
    prefix: str = "b"
    sub_addrs: tuple[str, ...] = ()
    node_pids: tuple[int, ...] = ()
    queue: Literal["", "classic", "stream"] = ""
    start: str = ""

    def check(self) -> None:
        """Raise OptionsError unless the options make sense together."""
        for name, low in (("pubs", 0 if self.start else 1), ("subs", 0), ("groups", 0), ("size", 0), ("window", 1),
                          ("batch", 0), ("keep_alive", 0)):
            if getattr(self, name) < low:
                raise OptionsError(f"{name} is at least {low}, not {getattr(self, name)}")
        if self.size > PAYLOAD_SIZE_MAX:
            raise OptionsError(f"a payload is at most {PAYLOAD_SIZE_MAX} bytes")
        if self.qos not in (0, 1, 2) or self.sub_qos not in (None, 0, 1, 2):
            raise OptionsError("QoS is 0, 1 or 2")
        if self.topics == "pairs" and self.pubs != self.subs:
            raise OptionsError(f"pairs need as many publishers ({self.pubs}) as subscribers ({self.subs})")
        if self.topics == "pairs" and self.groups:
            raise OptionsError("a shared subscription has many subscribers to a topic, pairs have one")
        if self.topics == "fresh" and self.filter == "exact":
            raise OptionsError("every message on a new topic can only be had with --filter plus or hash")
        if self.topics == "fresh" and self.pubs > FRESH_PUBLISHERS_MAX:
            raise OptionsError(f"new topics are numbered for at most {FRESH_PUBLISHERS_MAX} publishers")
        if self.groups > self.subs:
            raise OptionsError(f"{self.groups} groups cannot be had from {self.subs} subscribers")
        if self.version != "5" and self.properties:
            raise OptionsError("properties exist in version 5 only")
        if self.version != "5" and self.receive_maximum is not None:
            raise OptionsError("Receive Maximum exists in version 5 only")
        if self.rate < 0 or self.churn < 0 or self.duration <= 0 or self.warmup < 0:
            raise OptionsError("rates and times are not negative, and the duration is more than 0")
        if self.queue and (self.topics != "one" or self.filter != "exact" or self.groups):
            raise OptionsError("a queue has one topic and no shared subscriptions: leave topics, filter and groups out")
        if self.queue and not (self.sub_qos if self.sub_qos is not None else self.qos) and self.subs:
            raise OptionsError("consumers of a queue acknowledge: their QoS is 1 or 2")
        if self.start and (self.version != "5" or self.queue != "stream"):
            raise OptionsError("only MQTT 5 can say where to begin, and only of a stream")
        for addr in (self.addr, *self.sub_addrs):
            if ":" not in addr or not addr.rpartition(":")[2].isdigit():
                raise OptionsError(f"the address is HOST:PORT, not {addr!r}")

    def subscriber_addr(self, subscriber: int) -> str:
        """Where a subscriber connects."""
        return self.sub_addrs[subscriber % len(self.sub_addrs)] if self.sub_addrs else self.addr

    @property
    def host(self) -> str:
        return self.addr.rpartition(":")[0].strip("[]")

    @property
    def level(self) -> int:
        """The protocol level in CONNECT."""
        return 5 if self.version == "5" else 4

    @property
    def layout(self) -> str:
        """Which subscribers receive from which publishers, in Analyser's terms."""
        if self.groups or (self.queue == "classic" and self.subs):
            return "shared"
        return "pairs" if self.topics == "pairs" else "all"

    def topic(self, publisher: int) -> str:
        """The topic of a publisher; its last seven characters are replaced when every message has its own."""
        if self.queue:
            return queue_topic(self.prefix)
        if self.topics == "fresh":
            return f"{self.prefix}/{publisher:03x}0000000"
        return f"{self.prefix}/{publisher if self.topics == 'pairs' else 0:06d}"

    def topic_filter(self, subscriber: int) -> str:
        """The filter of a subscriber."""
        if self.queue:
            return queue_topic(self.prefix)
        if self.topics == "fresh":
            base = f"{self.prefix}/+" if self.filter == "plus" else f"{self.prefix}/#"
        else:
            number = subscriber if self.topics == "pairs" else 0
            base = {"exact": f"{self.prefix}/{number:06d}", "plus": f"+/{number:06d}",
                    "hash": f"{self.prefix}/{number:06d}/#"}[self.filter]
        return f"$share/g{subscriber % self.groups}/{base}" if self.groups else base
