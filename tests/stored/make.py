"""How the archives beside this file were made: directories of the broker as released versions wrote them.

    cd tests; python -m stored.make NAME        writes tests/stored/NAME.tar.xz, with the broker of this tree

An archive is never made again: it shows that a directory of that version still opens (tests/integration/
test_stored_directories.py, which knows what `fill` did). before_namespaces: the last version that had one namespace,
and hid the virtual host of an AMQP queue in the queue's name; at commit 853d40d.
"""
from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from kit.amqp_wire import Wire
from kit.client import Client
from kit.node import Node
from kit.watch import wait_until
from oracle.mqtt import Publish, Pubrec

from fluxmq.engine.queues.admin import QueueAdmin

HERE = Path(__file__).parent
SETTINGS = {"server.amqp091.plain.addr": "127.0.0.1:0", "amqp091.virtual_hosts": "[/, other]"}
LASTING = {"session_expiry_interval": 100_000_000}
VHOSTS = ("/", "other")
PERSISTENT = {"delivery_mode": 2}
# RocksDB makes these anew, and they have paths in them.
LEFT_OUT = ("LOG", "OPTIONS", "LOCK")


def mqtt(node: Node, client_id: str, clean: bool = False) -> Client:
    client = Client(node.listens("mqtt.tcp.plain"), 5)
    client.connect(client_id, clean_start=clean, properties=LASTING)
    return client


def fill(node: Node, part: str) -> None:
    """Of everything something: sessions, retained messages, queues of both protocols. part: "first", before the
    checkpoint, "second", after it."""
    sender = mqtt(node, "sender")
    away = mqtt(node, "away")
    if part == "first":
        for name, kind in (("orders", "classic"), ("events", "stream")):
            node.call(lambda server, name=name, kind=kind:  # type: ignore[misc]
                      QueueAdmin(server.queues.manager).declare({"name": name, "type": kind}))
        away.subscribe("news/#", qos=2)
        away.drop()
        wait_until(lambda: node.call(lambda server: not server.broker.sessions[b"/", b"away"].connected))
    else:
        for number in range(3):     # of the first part; what is not acknowledged is in flight
            away.receive(payload=b"first %d" % number)
        sender.send(Publish(topic="news/b", payload=b"half", qos=2, packet_id=77))
        sender.expect(Pubrec, packet_id=77)
        away.drop()
        wait_until(lambda: node.call(lambda server: not server.broker.sessions[b"/", b"away"].connected))
    for number in range(5):
        sender.publish("news/a", b"%s %d" % (part.encode(), number), 1 + number % 2)
        sender.publish("$queue/orders", b"%s %d" % (part.encode(), number), 1)
        sender.publish("$queue/events", b"%s %d" % (part.encode(), number), 1)
    sender.publish(f"kept/{part}", part.encode(), 1, retain=True)
    sender.drop()
    for vhost in VHOSTS:
        _amqp(node, vhost, part)
    node.settle()


def _amqp(node: Node, vhost: str, part: str) -> None:
    wire = Wire(node.listens("amqp091.plain")).login(vhost=vhost)
    wire.open_channel(1)
    if part == "first":
        wire.call(1, "exchange.declare", exchange="work", type="topic", durable=True)
        wire.call(1, "exchange.declare", exchange="inner", type="fanout", durable=True)
        wire.call(1, "queue.declare", queue="jobs", durable=True, arguments={"x-dead-letter-exchange": "inner"})
        wire.call(1, "queue.declare", queue="dead", durable=True)
        wire.call(1, "queue.declare", queue="ranked", durable=True, arguments={"x-max-priority": 4})
        wire.call(1, "queue.declare", queue="lines", durable=True, arguments={"x-queue-type": "stream"})
        wire.call(1, "queue.bind", queue="jobs", exchange="work", routing_key="job.*")
        wire.call(1, "queue.bind", queue="dead", exchange="inner", routing_key="")
        wire.call(1, "exchange.bind", destination="inner", source="work", routing_key="copy.#")
        wire.call(1, "queue.bind", queue="dead", exchange="amq.topic", routing_key="news.*")
    wire.call(1, "confirm.select")
    for number in range(4):
        body = f"{vhost} {part} {number}".encode()
        wire.publish(1, "work", "job.new", body, properties=PERSISTENT)
        wire.publish(1, "work", "copy.a.b", body, properties=PERSISTENT)
        wire.publish(1, "", "ranked", body, properties=PERSISTENT | {"priority": number})
        wire.publish(1, "", "lines", body, properties=PERSISTENT)
    confirmed = 0
    while confirmed < 16:
        confirmed = wire.expect(1, "basic.ack")["delivery_tag"]
    got = wire.get(1, "jobs", no_ack=False)
    wire.send(1, "basic.ack", delivery_tag=got.arguments["delivery_tag"])
    got = wire.get(1, "jobs", no_ack=False)
    wire.send(1, "basic.reject", delivery_tag=got.arguments["delivery_tag"], requeue=False)
    wire.close()


def make(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        node = Node(directory, {**SETTINGS, "server.admin_socket": directory / "s"})
        try:
            fill(node, "first")
            node.wait(lambda server: server.keeper.checkpoint())
            fill(node, "second")
            # As a power cut leaves it: a stop would be one restart more.
            shutil.copytree(directory / "data", directory / "copy", ignore=lambda _, names: [
                each for each in names if each.startswith(LEFT_OUT)])
        finally:
            node.stop()
        with tarfile.open(HERE / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(directory / "copy", "data", filter=_nobodys)


def unpack(archive: Path, target: Path) -> None:
    """Extracts an archive; the first releases of Python 3.11 do not have the filter."""
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(target)


def _nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    make(sys.argv[1])
