"""Clients that connect and say nothing take every descriptor they can get: those who publish go on all the same."""
from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path

import pytest
from crash.process import CrashBroker
from kit.client import Client
from kit.watch import metric, wait_until
from oracle.mqtt import Puback, Publish

from fluxmq.app.descriptors import connections_that_fit, warn_of_descriptor_limit
from fluxmq.model.limits import DESCRIPTORS_KEPT

OPEN_FILES = 700
FLOOD = 800


class Limited(CrashBroker):
    """May have so many open files and no more."""

    def _command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {OPEN_FILES} && exec "$@"', "sh", *super()._command()]


def closed(idle: list[socket.socket]) -> int:
    """How many of them the broker has closed."""
    count = 0
    for each in idle:
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            count += each.recv(1) == b""
    return count


def test_idle_connections_do_not_stop_who_publishes(tmp_path: Path) -> None:
    broker = Limited(tmp_path / "broker", {
        "queues": '[{"name": "q"}]', "queue_manager.segment_size": "1MiB",
        "server.mqtt.tcp.plain.max_connections": "5000"}, {"FLUXMQ_TEST_FILE_BYTES": "40000"})
    broker.start()
    idle: list[socket.socket] = []
    try:
        assert f"{OPEN_FILES} open files leave room for {connections_that_fit(OPEN_FILES)}" in broker.stderr()
        publisher = Client(broker.address)
        publisher.timeout = 30.0
        publisher.connect("publisher")
        for _ in range(FLOOD):
            idle.append(socket.create_connection(broker.address))
            idle[-1].setblocking(False)
        wait_until(lambda: closed(idle) >= FLOOD + 1 - connections_that_fit(OPEN_FILES))
        assert metric(broker, "fluxmq_connect_refused_total", reason="descriptors") >= len(idle) // 4
        assert metric(broker, "fluxmq_connect_refused_total", reason="max_connections") == 0
        before = broker.checkpoints()
        sent = 0
        while broker.checkpoints() < before + 3:    # each rotates the journal, writes segments and the view
            packet_id = publisher.next_packet_id()
            publisher.send(Publish(topic="$queue/q", payload=bytes(20_000), qos=1, packet_id=packet_id))
            assert publisher.answer(Puback, packet_id=packet_id).reason == 0
            publisher.transcript.clear()
            sent += 1
        assert broker.ready() == 200
        for each in idle:
            each.close()
        idle.clear()
        broker.kill()
        broker.start()
        consumer = Client(broker.address)
        consumer.connect("consumer")
        consumer.subscribe("$queue/q", qos=1)
        for _ in range(sent):
            packet = consumer.receive()
            consumer.send(Puback(packet_id=packet.packet_id))
            consumer.transcript.clear()
        broker.check()
    finally:
        for each in idle:
            each.close()
        broker.stop()


def test_what_does_not_fit_is_said_with_both_numbers(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("fluxmq.test")
    warn_of_descriptor_limit([1000, 3000], 4000 + DESCRIPTORS_KEPT, log)
    assert not caplog.records
    warn_of_descriptor_limit([1000, 3001], 4000 + DESCRIPTORS_KEPT, log)
    [record] = caplog.records
    assert "4001" in record.getMessage() and f"{4001 + DESCRIPTORS_KEPT}" in record.getMessage()
    assert connections_that_fit(100) == 50
