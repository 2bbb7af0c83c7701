"""`fluxmq namespace` and `fluxmq queue --namespace` against a broker that runs, with clients of AMQP in namespaces."""
from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker
from kit.watch import metric

from fluxmq.app import cli, exit_codes

Start = Callable[..., Broker]
Run = Callable[..., str]
NO_LIMITS = dict.fromkeys(("connections", "sessions", "queues", "bytes", "messages_per_second"), 0)
EMPTY = {"connections": 0, "sessions": 0, "queues": 0, "messages": 0, "retained": 0, "retained_bytes": 0}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command against a broker: what it prints, on standard error where it fails."""
    def command(broker: Broker, *arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--socket", str(broker.directory / "data" / "admin.sock")])
        said = capsys.readouterr()
        assert (ended.value.code or 0) == status, said
        return said.err if status else said.out

    return command


def work_in(broker: Broker, namespace: str) -> Wire:
    """A client of a virtual host that has made a durable queue `q`."""
    client = Wire(broker.addresses["amqp091/plain"]).login(namespace)
    client.open_channel()
    client.call(1, "queue.declare", queue="q", durable=True)
    return client


def test_made_used_and_deleted_while_the_broker_runs(start_broker: Start, run: Run,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start_broker()
    assert run(broker, "namespace", "create", "shop") == "shop is created\n"
    assert run(broker, "namespace", "create", "shop") == "shop already exists\n"
    client = work_in(broker, "shop")
    shop = json.loads(run(broker, "namespace", "show", "shop", "--json"))
    assert shop == {"name": "shop", "open": True, "kept": True, "configured": False, "limits": NO_LIMITS,
                    "refused": NO_LIMITS, "bytes": 0} | EMPTY | {
        "connections": 1, "queues": 1}
    assert metric(broker, "fluxmq_namespace_connections", namespace="shop") == 1
    assert metric(broker, "fluxmq_namespace_queues", namespace="shop") == 1
    table = run(broker, "namespace", "list").splitlines()
    assert [line.split()[:3] for line in table[1:]] == [["/", "open", "configuration"], ["shop", "open", "operator"]]
    assert "operator" in run(broker, "namespace", "show", "shop")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert "not a terminal: confirm with --yes" in run(broker, "namespace", "delete", "shop", status=2)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = run(broker, "namespace", "delete", "shop", status=exit_codes.FAILURE)
    assert "all that is in it (1 connection, 1 queue)?" in asked and asked.endswith("fluxmq: nothing was done\n")
    client.open_channel(2)  # it is still there
    said = run(broker, "namespace", "delete", "shop", "--yes")
    assert said == "shop is deleted, and with it 1 connection, 1 queue\n"
    assert client.expect_close(320) == "CONNECTION_FORCED - disconnected by an administrator"
    assert json.loads(run(broker, "queue", "list", "--json"))["queues"] == []
    with pytest.raises(AssertionError, match="vhost shop not found"):
        Wire(broker.addresses["amqp091/plain"]).login("shop")
    run(broker, "namespace", "create", "shop")
    again = Wire(broker.addresses["amqp091/plain"]).login("shop")
    again.open_channel()
    again.send(1, "queue.declare", queue="q", passive=True, durable=True)
    assert again.expect(1, "channel.close")["reply_code"] == 404
    broker.kill()
    broker.start()
    assert json.loads(run(broker, "namespace", "show", "shop", "--json")) == shop | EMPTY


def test_what_is_refused(start_broker: Start, run: Run) -> None:
    broker = start_broker(**{"amqp091.virtual_hosts": ["/", "named"]})
    for arguments, text in ((("delete", "/", "--yes"), "always there"),
                            (("delete", "named", "--yes"), "take it out of the configuration"),
                            (("delete", "nobody", "--yes"), "there is no namespace nobody"),
                            (("show", "nobody"), "fluxmq namespace list names those that are"),
                            (("create", "a:b"), "may not contain ':'")):
        assert text in run(broker, "namespace", *arguments, status=exit_codes.FAILURE)
    assert len(json.loads(run(broker, "namespace", "list", "--json"))["namespaces"]) == 2


def test_queues_of_a_namespace(start_broker: Start, run: Run) -> None:
    """Also where a queue of "/" has a name that looks like one of another namespace."""
    broker = start_broker()
    of_shop = ("--namespace", "shop")
    assert "there is no namespace shop" in run(broker, "queue", "create", "q", *of_shop, status=exit_codes.FAILURE)
    run(broker, "namespace", "create", "shop")
    assert run(broker, "queue", "create", "q", *of_shop) == "q is created\n"
    assert run(broker, "queue", "create", "q", *of_shop) == "q already exists, exactly as asked for\n"
    client = Wire(broker.addresses["amqp091/plain"]).login("/")
    client.open_channel()
    client.call(1, "queue.declare", queue="shop/q", durable=True)

    def messages() -> dict[tuple[str, str], int]:
        return {(one["namespace"], one["name"]): one["messages"]
                for one in json.loads(run(broker, "queue", "list", "--json"))["queues"]}

    run(broker, "queue", "publish", "q", "in the shop", *of_shop)
    assert messages() == {("/", "shop/q"): 0, ("shop", "shop/q"): 1}
    run(broker, "queue", "publish", "shop/q", "one")
    run(broker, "queue", "publish", "shop/q", "two", "--namespace", "/")
    assert messages() == {("/", "shop/q"): 2, ("shop", "shop/q"): 1}
    [listed] = json.loads(run(broker, "queue", "list", *of_shop, "--json"))["queues"]
    assert (listed["namespace"], listed["name"], listed["messages"]) == ("shop", "shop/q", 1)
    assert "in the shop" in run(broker, "queue", "tail", "q", *of_shop)
    assert json.loads(run(broker, "queue", "describe", "q", *of_shop, "--json"))["spec"]["namespace"] == "shop"
    assert run(broker, "queue", "purge", "q", *of_shop, "--yes") == "1 message is gone from q\n"
    run(broker, "queue", "delete", "q", *of_shop, "--yes")
    assert messages() == {("/", "shop/q"): 2}
    assert "there is no queue shop/q" in run(broker, "queue", "describe", "q", *of_shop, status=exit_codes.FAILURE)


def test_dead_letters_of_a_namespace(start_broker: Start, run: Run) -> None:
    broker = start_broker()
    of_shop = ("--namespace", "shop")
    run(broker, "namespace", "create", "shop")
    for where in (of_shop, ()):
        run(broker, "queue", "create", "q", "--set", "limits.max_depth=1", "--set", "overflow=drop-head", *where)
        run(broker, "queue", "publish", "q", "old", *where)
        run(broker, "queue", "publish", "q", "new", *where)
    [found] = json.loads(run(broker, "queue", "dlq", "list", *of_shop, "--json"))["dead_letters"]
    assert (found["queue"], found["messages"]) == ("shop/q", 1)
    run(broker, "queue", "purge", "q", *of_shop, "--yes")
    assert run(broker, "queue", "dlq", "replay", "q", "--all", *of_shop) == "1 dead letter is back in q\n"
    assert "old" in run(broker, "queue", "tail", "q", *of_shop)
    assert "old" not in run(broker, "queue", "tail", "q")
