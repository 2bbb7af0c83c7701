"""`fluxmq client` against a broker that runs: who is connected by MQTT and by AMQP, and who no longer."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker, add_user
from kit.client import Client
from kit.watch import metric, wait_until

from fluxmq.app import cli

Start = Callable[..., Broker]
PROPERTIES = {"connection_name": "billing\x1b[2J", "product": "made by hand"}


def test_who_is_connected(start_broker: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_user(tmp_path / "users", "anna", "secret")
    broker = start_broker(**{"auth.users_file": str(tmp_path / "users"), "amqp091.virtual_hosts": ["/", "shop"]})

    def run(*arguments: str, command: str = "list") -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["client", command, *arguments, "--socket", str(broker.directory / "data" / "admin.sock")])
        said = capsys.readouterr()
        assert (ended.value.code or 0, said.err) == (0, "")
        return said.out

    assert run() == "nobody is connected\n"
    mqtt = Client(broker.address)
    mqtt.connect("sensor", username="anna", password=b"secret")
    mqtt.subscribe("a/#", "b")
    amqp = Wire(broker.addresses["amqp091/plain"]).greet()
    amqp.send(0, "connection.start-ok", client_properties=PROPERTIES, mechanism="PLAIN", response="\0anna\0secret",
              locale="en_US")
    amqp.open("shop")
    for number in (1, 2):
        amqp.open_channel(number)
    amqp.call(1, "queue.declare", queue="q", exclusive=True)
    amqp.call(1, "basic.consume", queue="q")
    answer = json.loads(run("--json"))
    by_mqtt, by_amqp = answer["clients"]  # "/" is first
    assert answer["connected"] == 2
    told = {"protocol": "AMQP 0-9-1", "user": "anna", "virtual_host": "shop", "channels": 2, "subscriptions": 1,
            "name": "billing\x1b[2J", "product": "made by hand", "listener": "amqp091.plain", "blocked": False}
    assert by_amqp | told == by_amqp and by_amqp["since_ms"] > 0 and by_amqp["client_id"].startswith("amqp091-")
    told = {"client_id": "sensor", "protocol": "MQTT 5.0", "user": "anna", "virtual_host": "/", "subscriptions": 2,
            "listener": "mqtt.tcp.plain"}
    assert by_mqtt | told == by_mqtt and by_mqtt["since_ms"] > 0 and by_mqtt["peer"].startswith("127.0.0.1:")
    table = run()
    assert "sensor" in table and "billing\\x1b[2J" in table and "\x1b" not in table
    assert run("-n", "1").endswith("and 1 more; see them with --count 0\n")
    assert len(json.loads(run("-n", "0", "--json"))["clients"]) == 2
    shown = json.loads(run("sensor", "--json", command="show"))
    assert shown["client"] == by_mqtt
    assert shown["subscriptions"] == [{"filter": name, "qos": 0, "no_local": False, "retain_as_published": False,
                                       "identifier": 0} for name in ("a/#", "b")]
    of_shop = ("--namespace", "shop")
    assert json.loads(run(*of_shop, "--json")) == {"clients": [by_amqp], "connected": 1}
    of_amqp = json.loads(run(by_amqp["client_id"], *of_shop, "--json", command="show"))["subscriptions"]
    assert [(one["queue"], one["channel"], one["no_ack"]) for one in of_amqp] == [("q", 1, False)]
    assert "a/#" in run("sensor", command="show")
    assert run("sensor", command="kick") == "sensor is disconnected\nif it comes back: fluxmq ban add 127.0.0.1\n"
    mqtt.expect_closed(0x98)
    run(by_amqp["client_id"], *of_shop, command="kick")
    assert amqp.expect_close(320) == "CONNECTION_FORCED - disconnected by an administrator"
    wait_until(lambda: run() == "nobody is connected\n")
    for reason in ("fluxmq_disconnections_total", "fluxmq_amqp_disconnections_total"):
        assert metric(broker, reason, reason="administrator") == 1


def test_queues_of_the_default_virtual_host_come_first(start_broker: Start, capsys: pytest.CaptureFixture[str]) -> None:
    broker = start_broker(**{"amqp091.virtual_hosts": ["/", "shop"]})
    for vhost, queue in (("shop", "a"), ("/", "z"), ("/", "b")):
        one = Wire(broker.addresses["amqp091/plain"]).login(vhost)
        one.open_channel()
        one.call(1, "queue.declare", queue=queue)
        one.close()
    with pytest.raises(SystemExit):
        cli.main(["queue", "list", "--json", "--socket", str(broker.directory / "data" / "admin.sock")])
    found = [one["name"] for one in json.loads(capsys.readouterr().out)["queues"]]
    assert found == ["b", "z", "shop/a"]
