"""What clients make the broker keep is bounded in bytes, whatever it is that they send much of."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from kit.amqp_wire import Wire
from kit.broker import Broker, free_port
from kit.client import Client
from kit.watch import Memory, metric

Start = Callable[..., Broker]

MIB = 1 << 20
CONNECTIONS, CHANNELS = 40, 6


def interleaved(wire: Wire, last: int) -> bytes:
    """A message of 1 MiB on each channel: all but `last` bytes of each, and then what is missing."""
    messages = [wire.encode_publish(channel, "", "nowhere", bytes(MIB)) for channel in range(1, CHANNELS + 1)]
    return b"".join(one[:-last] for one in messages) + b"".join(one[-last:] for one in messages)


def test_messages_under_way(start_broker: Start) -> None:
    """240 MiB of them, of which 64 MiB may be in memory; every one is completed in the end."""
    port = free_port()
    broker = start_broker({"server.amqp091.plain.addr": f"127.0.0.1:{port}", "amqp091.memory_high": "512MiB"})
    wires = [Wire(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    left: dict[Wire, memoryview] = {}
    frame = 0
    for wire in wires:
        wire.login()
        for channel in range(1, CHANNELS + 1):
            wire.open_channel(channel)
        frame = wire.frame_max or MIB
        left[wire] = memoryview(interleaved(wire, MIB % (frame - 8) + 8))
    memory = Memory(broker)
    most = 0
    with selectors.DefaultSelector() as selector:
        for wire in wires:
            wire.socket.setblocking(False)
            selector.register(wire.socket, selectors.EVENT_WRITE, wire)
        while selector.get_map():
            for key, _ in selector.select():
                left[key.data] = left[key.data][key.data.socket.send(left[key.data][:frame]):]
                if not left[key.data]:
                    selector.unregister(key.fileobj)
            most = max(most, memory.grown)
    for wire in wires:
        wire.socket.setblocking(True)
        for channel in range(1, CHANNELS + 1):
            wire.call(channel, "basic.qos", prefetch_count=1)
        wire.close()
    assert most < 128 * MIB


def test_properties_of_retained_messages(start_broker: Start, connect: Callable[..., Client]) -> None:
    """A message keeps its properties once, and not the packet that it came in beside them."""
    broker = start_broker()
    publisher = connect(broker, "pub")
    properties = {"user_property": [("k", "x" * 65_000)] * 15}
    memory = Memory(broker)
    for number in range(64):
        publisher.publish(f"t/{number}", b"p", 1, retain=True, properties=properties)
        publisher.transcript.clear()
    assert metric(broker, "fluxmq_retained_messages") == 64
    assert memory.grown < 96 * MIB
