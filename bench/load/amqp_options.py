"""Options of the AMQP 0-9-1 load generator: declared once, used by the command line, rows and tests."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fluxmq.bench.load.options import HEAD_SIZE, PAYLOAD_SIZE_MAX, LoadOptions, OptionsError

__all__ = ["AmqpOptions"]

PREFETCH_MAX = 65_535


@dataclass(slots=True, kw_only=True)
class AmqpOptions:
    """One run. Times in seconds, sizes in bytes.

    queue: its type. queues: "one" (all publishers to one queue, all consumers from it), "pairs" (publisher i to queue
    i to consumer i) or "fanout" (one fan-out exchange, a queue for each consumer). Consumers of one queue share its
    messages; readers of a stream have all of them.
    window: messages in flight in all (closed loop, rate 0), from their sending to their confirm, each publisher with
    its share. lag: messages that consumers may be behind in all; None: as the window; 0: as many as will. batch: most
    messages that one publisher sends at a time, 0 for as many as its window allows.
    ack_every: consumers acknowledge every so many messages at once; 0: automatic acknowledgement, prefetch has no
    meaning then. stall: seconds without progress after which a closed loop writes off what is in flight.
    sub_addrs: nodes of a cluster that consumers connect to, one after the other; queue_addr: the one on which the
    queues are declared. Empty: where publishers connect.
    """

    addr: str = "127.0.0.1:5672"
    transport: Literal["tcp", "tls"] = "tcp"
    cafile: str | None = None
    insecure: bool = False
    username: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    queue: Literal["classic", "quorum", "stream"] = "classic"
    queues: Literal["one", "pairs", "fanout"] = "one"
    durable: bool = True
    persistent: bool = True
    confirms: bool = True
    pubs: int = 1
    subs: int = 1
    size: int = 256
    window: int = 1000
    lag: int | None = None
    batch: int = 0
    rate: float = 0.0
    prefetch: int = 1000
    ack_every: int = 1
    duration: float = 5.0
    warmup: float = 1.0
    drain: float = 3.0
    stall: float = 5.0
    connect_timeout: float = 20.0
    broker_pid: int | None = None
    prefix: str = "bench"
    sub_addrs: tuple[str, ...] = ()
    queue_addr: str = ""

    def check(self) -> None:
        """Raise OptionsError unless the options make sense together."""
        for name, low in (("pubs", 1), ("subs", 0), ("size", 1), ("window", 1), ("batch", 0), ("ack_every", 0),
                          ("prefetch", 0), ("lag", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise OptionsError(f"{name} is at least {low}, not {value}")
        if self.size > PAYLOAD_SIZE_MAX:
            raise OptionsError(f"a payload is at most {PAYLOAD_SIZE_MAX} bytes")
        if self.prefetch > PREFETCH_MAX:
            raise OptionsError(f"a prefetch count is at most {PREFETCH_MAX}")
        if self.prefetch and self.ack_every > self.prefetch:
            raise OptionsError(f"with {self.prefetch} messages prefetched, {self.ack_every} never wait for one "
                               "acknowledgement")
        if self.queues == "pairs" and self.pubs != self.subs:
            raise OptionsError(f"pairs need as many publishers ({self.pubs}) as consumers ({self.subs})")
        if self.queues == "fanout" and not self.subs:
            raise OptionsError("a fan-out has a queue for each consumer, and there is none")
        if self.queue == "stream" and self.subs and not (self.prefetch and self.ack_every):
            raise OptionsError("readers of a stream prefetch and acknowledge: neither prefetch nor ack_every is 0")
        if self.queue != "classic" and not self.durable:
            raise OptionsError(f"a {self.queue} queue is durable")
        if self.rate < 0 or self.duration <= 0 or self.warmup < 0 or self.stall <= 0:
            raise OptionsError("rates and times are not negative, duration and stall are more than 0")
        self.connection().check()

    def connection(self) -> LoadOptions:
        """The connection's options, as the sockets of this package take them."""
        return LoadOptions(addr=self.addr, transport=self.transport, cafile=self.cafile, insecure=self.insecure,
                           connect_timeout=self.connect_timeout,
                           sub_addrs=self.sub_addrs + ((self.queue_addr,) if self.queue_addr else ()))

    def subscriber_addr(self, consumer: int) -> str:
        """Where a consumer connects."""
        return self.sub_addrs[consumer % len(self.sub_addrs)] if self.sub_addrs else self.addr

    @property
    def checked(self) -> bool:
        """Whether payloads contain run, publisher, number and time for consumers to check."""
        return self.size >= HEAD_SIZE and self.subs > 0

    @property
    def layout(self) -> str:
        """Which consumers receive from which publishers, in Analyser's terms."""
        if self.queues == "pairs":
            return "pairs"
        return "all" if self.queues == "fanout" or self.queue == "stream" else "shared"

    @property
    def lag_max(self) -> int:
        """Number of messages that consumers may be behind, 0 for any."""
        if not self.subs:
            return 0
        return self.window if self.lag is None else self.lag

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of queue.declare."""
        return {"x-queue-type": self.queue}

    def queue_name(self, run: str, number: int) -> str:
        """Name of queue `number` of this run; each run has queues of its own and deletes them."""
        return f"{self.prefix}-{run}-{number:04d}"
