"""Debian's amqp-tools, on the command line: amqp-publish, -consume, -get, -declare-queue, -delete-queue."""
from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from kit.amqp_wire import TIMEOUT, Wire
from kit.tools import require_tool
from kit.watch import wait_until

Tool = Callable[..., "subprocess.CompletedProcess[bytes]"]
Name = Callable[[str], str]


@pytest.fixture
def tool(amqp_broker) -> Tool:
    """Run one: tool("amqp-get", "-q", "queue"). Its standard input is `given`."""
    host, port = amqp_broker.amqp

    def run(program: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        path = require_tool(program, package="amqp-tools")
        return subprocess.run([path, f"--url=amqp://guest:guest@{host}:{port}/%2f", *arguments], input=given,
                              capture_output=True, timeout=TIMEOUT, check=False)

    return run


def good(done: subprocess.CompletedProcess[bytes]) -> bytes:
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout


def test_a_message_by_the_command_line(tool: Tool, name: Name) -> None:
    """Declare a queue, publish to it, get it back, delete the queue: four commands, as in a shell."""
    assert good(tool("amqp-declare-queue", "-q", name("q"))).strip() == name("q").encode()
    good(tool("amqp-publish", "-r", name("q"), "-b", "hello from a shell"))
    good(tool("amqp-publish", "-r", name("q"), "-p", "-C", "text/plain", given=b"from standard input"))
    assert good(tool("amqp-get", "-q", name("q"))) == b"hello from a shell"
    assert good(tool("amqp-get", "-q", name("q"))) == b"from standard input"
    empty = tool("amqp-get", "-q", name("q"))
    assert (empty.returncode, empty.stdout) == (2, b"")     # how the tool says that there was none
    assert good(tool("amqp-delete-queue", "-q", name("q"))).strip() == b"0"


def test_delete_says_how_many_messages_went(tool: Tool, name: Name) -> None:
    """And refuses with --if-empty while there are some."""
    good(tool("amqp-declare-queue", "-q", name("q"), "-d"))
    for _ in range(3):
        good(tool("amqp-publish", "-r", name("q"), "-b", "x"))
    wait_until(lambda: tool("amqp-delete-queue", "-q", name("q"), "-e").returncode != 0)
    assert good(tool("amqp-delete-queue", "-q", name("q"))).strip() == b"3"


def test_consume_gives_each_message_to_a_program(tool: Tool, name: Name) -> None:
    """amqp-consume runs a command for each message, with the body on its standard input, and acknowledges it."""
    good(tool("amqp-declare-queue", "-q", name("q")))
    for body in ("one\n", "two\n", "three\n"):
        good(tool("amqp-publish", "-r", name("q"), "-b", body))
    assert good(tool("amqp-consume", "-q", name("q"), "-c", "2", "-p", "1", "cat")) == b"one\ntwo\n"
    assert good(tool("amqp-consume", "-q", name("q"), "-c", "1", "-A", "cat")) == b"three\n"
    assert good(tool("amqp-delete-queue", "-q", name("q"))).strip() == b"0"


def test_consume_by_an_exchange(tool: Tool, wire: Wire, amqp_broker, name: Name) -> None:
    """amqp-consume with an exchange and a key makes a queue of its own, bound there."""
    host, port = amqp_broker.amqp
    wire.call(1, "exchange.declare", exchange=name("x"), type="topic")
    program = require_tool("amqp-consume", package="amqp-tools")
    with subprocess.Popen([program, f"--url=amqp://guest:guest@{host}:{port}/%2f", "-e", name("x"), "-r", "a.#", "-c",
                           "1", "cat"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consumer:
        def taken() -> bool:
            """Whether the tool's queue is bound by now: else the message comes back."""
            wire.publish(1, name("x"), "b", mandatory=True)
            wire.expect_content(1, "basic.return")
            wire.publish(1, name("x"), "a.b", b"by the topic", mandatory=True)
            return wire.nothing_waits()

        try:
            while not taken():
                wire.expect_content(1, "basic.return")
            out, err = consumer.communicate(timeout=TIMEOUT)
        finally:
            consumer.kill()
    assert b"by the topic" in out and consumer.returncode == 0, err
    wire.call(1, "exchange.delete", exchange=name("x"))


def test_errors_are_said(tool: Tool, name: Name) -> None:
    """The tool prints what the broker said."""
    done = tool("amqp-get", "-q", name("missing"))
    assert done.returncode == 1 and b"404" in done.stderr and name("missing").encode() in done.stderr
