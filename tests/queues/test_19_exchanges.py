"""`fluxmq exchange list` and `fluxmq binding list`: what AMQP clients have declared, as an operator sees it."""
from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker

from fluxmq.app import cli

Start = Callable[..., Broker]


def run(capsys: pytest.CaptureFixture[str], broker: Broker, *words: str, status: int = 0) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--socket", str(broker.directory / "data" / "admin.sock")])
    said = capsys.readouterr()
    assert ended.value.code == status, said
    return said.err if status else said.out


def test_what_clients_have_declared(start_broker: Start, capsys: pytest.CaptureFixture[str]) -> None:
    broker = start_broker()
    wire = Wire(broker.addresses["amqp091/plain"]).login()
    wire.open_channel(1)
    wire.call(1, "exchange.declare", exchange="jobs", type="topic", durable=True)
    wire.call(1, "exchange.declare", exchange="all", type="headers", arguments={"alternate-exchange": "jobs"})
    wire.call(1, "queue.declare", queue="q", durable=True)
    wire.call(1, "queue.bind", queue="q", exchange="jobs", routing_key="a.#")
    wire.call(1, "exchange.bind", source="all", destination="jobs", arguments={"x-match": "any", "n": 5})
    lines = [line.split() for line in run(capsys, broker, "exchange", "list").splitlines()]
    assert lines[0] == ["NAME", "TYPE", "DURABLE", "AUTO-DELETE", "INTERNAL", "BINDINGS", "ARGUMENTS"]
    assert ["jobs", "topic", "yes", "no", "no", "1", "-"] in lines
    assert ["all", "headers", "no", "no", "no", "1", "alternate-exchange:", "jobs"] in lines
    lines = [line.split() for line in run(capsys, broker, "binding", "list").splitlines()]
    assert lines == [["EXCHANGE", "TO", "NAME", "ROUTING", "KEY", "ARGUMENTS"],
                     ["all", "exchange", "jobs", "-", "n:", "5,", "x-match:", "any"],
                     ["jobs", "queue", "q", "a.#", "-"]]
    found = json.loads(run(capsys, broker, "binding", "list", "--queue", "q", "--json"))
    assert found == {"bindings": [{"source": "jobs", "destination": "q", "to": "queue", "routing_key": "a.#",
                                   "arguments": {}, "namespace": "/"}], "next": None}
    assert "there are more; see them with --count 0" in run(capsys, broker, "binding", "list", "-n", "1")
    assert len(run(capsys, broker, "binding", "list", "-n", "0").splitlines()) == 3
    assert run(capsys, broker, "binding", "list", "--exchange", "amq.fanout") == "nothing is bound\n"
    assert run(capsys, broker, "binding", "list", "--queue", "none", status=1) == (
        "fluxmq: there is no queue none (fluxmq queue list names those that are)\n")
    wire.close()
