"""The AMQP 0-9-1 codec is what its generator makes, and its table is what other people's tables are: pika's, and
RabbitMQ's own where it is installed."""
from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pika.spec
import pytest
from kit.amqp091_values import FOLDER, METHODS, TABLE, attributes, load, random_arguments, to_field
from kit.tree import ROOT
from oracle import amqp091 as oracle

from fluxmq._core.amqp091 import methods as amqp091_methods
from fluxmq._core.amqp091.methods import Method, decode_method
from fluxmq.model.amqp import ReplyCode

CORE = ROOT / "fluxmq" / "_core"
PROGRAM = [sys.executable, str(FOLDER / "generate.py")]
MADE = ("amqp091/consts.pxd", "amqp091/methods.pxd", "amqp091/methods.pyi", "amqp091/methods.pyx")


def test_the_files_are_what_the_generator_makes(tmp_path: Path) -> None:
    subprocess.run([*PROGRAM, "--out", tmp_path], check=True)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")) == sorted(MADE)
    for name in MADE:
        assert (tmp_path / name).read_bytes() == (CORE / name).read_bytes(), name


def test_reply_codes_are_those_of_the_table() -> None:
    """model/amqp.py names them for Python, in words that people look for; the table is what the codec has."""
    assert {code.value: (code.name.lower().replace("_", "-"), "connection" if code.closes_connection else "channel")
            for code in ReplyCode if code != ReplyCode.REPLY_SUCCESS} == {
                reply.code: (reply.name, reply.closes) for reply in TABLE.REPLIES if reply.closes}


def test_check_says_what_is_stale(tmp_path: Path) -> None:
    assert subprocess.run([*PROGRAM, "--check"], check=False).returncode == 0
    subprocess.run([*PROGRAM, "--out", tmp_path], check=True)
    (tmp_path / MADE[0]).write_text("something else")
    (tmp_path / MADE[2]).unlink()
    checked = subprocess.run([*PROGRAM, "--check", "--out", tmp_path], check=False, capture_output=True, text=True)
    assert checked.returncode == 1
    assert [line.split()[0] for line in checked.stdout.splitlines()] == [MADE[0], MADE[2]]
    assert (tmp_path / MADE[0]).read_text() == "something else"


def test_what_is_compiled_is_what_is_in_the_tree() -> None:
    numbers = {f"{one.name}.{method.name}": one.number << 16 | method.number
               for one in TABLE.CLASSES for method in one.methods}
    assert {cls.name: cls.number for cls in amqp091_methods.METHODS.values()} == numbers
    assert all(cls.number == number for number, cls in amqp091_methods.METHODS.items())
    for cls, row in METHODS:
        assert cls.fields == tuple(name for name in attributes(row) if name is not None)
        assert (cls.by_client, cls.by_server) == (row.sender != "server", row.sender != "client")
        assert (cls.synchronous, cls.has_content) == (bool(row.answers), row.content)


def test_answers_are_methods_of_the_same_class() -> None:
    for one in TABLE.CLASSES:
        names = {method.name for method in one.methods}
        assert all(set(method.answers) <= names for method in one.methods)


def test_numbers_of_the_header() -> None:
    found = dict(re.findall(r"^    ([A-Z0-9_]+) = ([^#\n]+?)\s*(?:#.*)?$", (CORE / MADE[0]).read_text(), re.MULTILINE))
    assert found["FRAME_END"] == "0xCE" and found["QUEUE_UNBIND_OK"] == "50 << 16 | 51"
    assert found["PROPERTY_CONTENT_TYPE"] == "1 << 15" and found["PROPERTY_CLUSTER_ID"] == "1 << 2"
    assert {int(value) for name, value in found.items() if name.startswith("REPLY_")} == {
        reply.code for reply in TABLE.REPLIES}
    assert load("generate").generate().keys() == set(MADE)


# ── pika ─────────────────────────────────────────────────────────────────────────────────────────────────────


def pika_name(field: Any) -> str:
    return {"no-wait": "nowait", "global": "global_qos"}.get(field.name, field.name.replace("-", "_"))


def of_pika(cls: type[Method]) -> type[Any]:
    """pika.spec.Queue.DeclareOk for QueueDeclareOk."""
    outer, inner = re.findall("[A-Z][a-z]+", cls.__name__)[0], cls.__name__
    found: type[Any] = getattr(getattr(pika.spec, outer), inner.removeprefix(outer))
    return found


def octets(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize(("cls", "row"), METHODS, ids=lambda value: getattr(value, "__name__", ""))
def test_pika_writes_and_reads_the_same(cls: type[Method], row: Any) -> None:
    theirs = of_pika(cls)
    assert cls.number == theirs.INDEX
    for seed in range(20):
        # Text only, and empty tables: what pika makes of other values is its own, and tables have their tests.
        wire = [[] if field.kind == "table" else value.decode("latin-1").encode()[:100] if isinstance(value, bytes)
                else value for field, value in zip(row.fields, random_arguments(Random(seed), row), strict=True)]
        given = [(field, name, to_field(field.kind, value)) for field, name, value in zip(
            row.fields, attributes(row), wire, strict=True) if name is not None]
        method = cls(**{name: value for _, name, value in given})
        peer = theirs(**{pika_name(field): value for field, _, value in given})
        assert cls.synchronous == bool(peer.synchronous)
        assert method.encode() == cls.number.to_bytes(4, "big") + b"".join(peer.encode())
        back = peer.decode(method.encode(), 4)
        for field, name, value in given:
            assert getattr(decode_method(method.encode()), name) == value
            # A longstr is bytes to pika, or str, as it likes.
            assert octets(getattr(back, pika_name(field))) == octets(value)


def test_pika_knows_the_same_properties_and_reply_codes() -> None:
    flags = {entry.name.replace("-", "_"): 1 << entry.bit for entry in TABLE.PROPERTIES}
    assert flags == {name: getattr(pika.spec.BasicProperties, f"FLAG_{name.upper()}") for name in flags}
    assert list(flags) == list(oracle.PROPERTIES)
    assert [entry.kind for entry in TABLE.PROPERTIES] == list(oracle.PROPERTIES.values())
    for reply in TABLE.REPLIES:
        assert getattr(pika.spec, reply.name.replace("-", "_").upper()) == reply.code


# ── RabbitMQ ─────────────────────────────────────────────────────────────────────────────────────────────────

ASK = """
M = rabbit_framing_amqp_0_9_1,
[begin Name = M:lookup_method_name({C, N}),
       io:format("~s ~p ~p ~w~n", [Name, M:is_method_synchronous(M:method_record(Name)), M:method_has_content(Name),
                                   M:method_fieldnames(Name)]) end || {C, N} <- [$METHODS]],
[begin {Hard, Code, _} = M:lookup_amqp_exception(Name), io:format("~p ~p~n", [Code, Hard]) end || Name <- [$REPLIES]],
halt().
"""
RESERVED = re.compile(r"ticket|reserved_\d|insist|capabilities|known_hosts|out_of_band|channel_id|cluster_id")


def test_rabbitmq_has_the_same_table() -> None:
    """Asked in its own words: the module that RabbitMQ's build makes from its copy of the specification. Where it is
    missing the test is skipped, whatever FLUXMQ_REQUIRE_TOOLS says: pika's table is there always."""
    erl = shutil.which("erl")
    folders = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/plugins/rabbit_common-*/ebin"))
    if erl is None or not folders:
        pytest.skip("rabbitmq is not installed (Debian package: rabbitmq-server)")
    errors = [reply for reply in TABLE.REPLIES if reply.closes]
    pairs = ",".join(f"{{{cls.number >> 16},{cls.number & 0xFFFF}}}" for cls, _ in METHODS)
    ask = ASK.replace("$METHODS", pairs).replace("$REPLIES", ",".join(reply.name.replace("-", "_") for reply in errors))
    lines = subprocess.run([erl, "-noshell", "-pa", folders[-1], "-eval", ask], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    assert len(lines) == len(METHODS) + len(errors)
    for (cls, row), line in zip(METHODS, lines, strict=False):
        name, synchronous, content, fields = line.split(" ", 3)
        assert name == cls.name.replace("-", "_")
        assert (synchronous == "true", content == "true") == (cls.synchronous, cls.has_content)
        names = [entry for entry in fields.strip("[]").replace("'", "").split(",") if entry]
        assert ["reserved" if RESERVED.fullmatch(entry) else entry for entry in names] == [
            {"no-wait": "nowait"}.get(field.name, field.name.replace("-", "_")) for field in row.fields]
    assert lines[len(METHODS):] == [f"{reply.code} {str(reply.closes == 'connection').lower()}" for reply in errors]
