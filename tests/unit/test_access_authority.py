"""Who gets in, and as whom."""
import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import scramp

from fluxmq._core.errors import AuthError, ConfigError, UsageError
from fluxmq.access.authority import Authority
from fluxmq.access.users import add_user, remove_user

ANNA = {"subject": ((("commonName", "anna"),),)}
NOBODY = {"subject": ((("countryName", "AT"),),)}


@pytest.fixture
def users_file(tmp_path: Path) -> str:
    file = tmp_path / "users"
    add_user(file, "anna", "secret", scram_iterations=4_096)
    return str(file)


@pytest.fixture
def opened() -> Iterator[list[Authority]]:
    made: list[Authority] = []
    yield made
    for authority in made:
        authority.close()


def answer(authority: Authority, username: str | None = None, password: bytes | None = None,
           certificate: Mapping[str, Any] | None = None, username_from: str = "") -> str | int | None:
    """The identity, or the reason code of the refusal; asked in both ways, which must agree."""
    request = ("client", username, password, certificate, username_from)

    def now() -> str | int | None:
        try:
            return authority.authenticate_now(*request)
        except AuthError as error:
            return error.reason

    async def later() -> str | int | None:
        try:
            return await authority.authenticate(*request)
        except AuthError as error:
            return error.reason

    waits = authority.needs_wait(username, password, certificate, username_from)
    if waits:
        with pytest.raises(UsageError):
            now()
        return asyncio.run(later())
    at_once = now()
    assert asyncio.run(later()) == at_once
    return at_once


def test_open_to_all(opened: list[Authority]) -> None:
    authority = Authority()
    opened.append(authority)
    assert authority.open_publish and authority.open_subscribe and authority.methods == ()
    for username, password in ((None, None), ("anna", b"secret"), ("anna", None), (None, b"secret")):
        assert answer(authority, username, password) is None  # a name that is only claimed is no identity
    assert authority.may_publish(None, "c", "a") and authority.may_subscribe(None, "c", "#")


def test_closed_to_all_but_certificates(opened: list[Authority]) -> None:
    authority = Authority(allow_anonymous=False)
    opened.append(authority)
    assert answer(authority) == 0x87
    assert answer(authority, "anna", b"secret") == 0x87
    assert answer(authority, None, None, ANNA, "cn") == "anna"


@pytest.mark.parametrize("allow_anonymous", [None, False, True])
def test_users(users_file: str, allow_anonymous: bool | None, opened: list[Authority]) -> None:
    authority = Authority(users_file, None, allow_anonymous, password_workers=1)
    opened.append(authority)
    assert authority.needs_wait("anna", b"secret")
    assert answer(authority, "anna", b"secret") == "anna"
    assert not authority.needs_wait("anna", b"secret")
    assert answer(authority, "anna", b"secret") == "anna"
    assert answer(authority, "anna", b"wrong") == 0x86
    assert answer(authority, "bert", b"secret") == 0x86
    assert answer(authority, "anna", None) == 0x86
    assert answer(authority, None, b"secret") == 0x86
    assert answer(authority, "", b"secret") == 0x86
    assert answer(authority) == (None if allow_anonymous else 0x87)


@pytest.mark.parametrize("with_users", [True, False])
def test_certificates(users_file: str, with_users: bool, opened: list[Authority]) -> None:
    authority = Authority(users_file if with_users else None, password_workers=1)
    opened.append(authority)
    assert answer(authority, None, None, ANNA, "cn") == "anna"
    assert answer(authority, "anna", None, ANNA, "cn") == "anna"
    assert answer(authority, "anna", b"whatever", ANNA, "cn") == "anna"
    assert answer(authority, "bert", b"whatever", ANNA, "cn") == 0x87
    assert answer(authority, "", None, ANNA, "cn") == 0x87
    assert answer(authority, None, None, NOBODY, "cn") == 0x87
    assert answer(authority, None, None, ANNA, "san") == 0x87
    # A listener that does not take names from certificates, or a client without one: as everywhere.
    for certificate, username_from in ((ANNA, ""), (None, "cn"), ({}, "cn")):
        assert answer(authority, None, None, certificate, username_from) == (0x87 if with_users else None)
        assert answer(authority, "anna", b"wrong", certificate, username_from) == (0x86 if with_users else None)


def test_what_is_remembered_counts_a_little_longer_for_the_answer(users_file: str, opened: list[Authority]) -> None:
    now = [1_000.0]
    authority = Authority(users_file, password_workers=1, clock=lambda: now[0])
    opened.append(authority)
    assert answer(authority, "anna", b"secret") == "anna"
    now[0] += 59.999
    assert not authority.needs_wait("anna", b"secret")
    now[0] += 0.002
    assert authority.authenticate_now("c", "anna", b"secret") == "anna"
    assert authority.needs_wait("anna", b"secret")


def test_exchange(users_file: str, opened: list[Authority]) -> None:
    authority = Authority(users_file)
    opened.append(authority)
    assert authority.methods == ("SCRAM-SHA-256",)
    assert authority.begin_exchange("SCRAM-SHA-1") is None
    assert authority.begin_exchange("") is None
    exchange = authority.begin_exchange("SCRAM-SHA-256")
    assert exchange is not None
    with pytest.raises(UsageError):
        authority.finish_exchange(exchange)
    client = scramp.ScramClient(["SCRAM-SHA-256"], "anna", "secret")
    client.set_server_first(exchange.step(client.get_client_first().encode())[0].decode())
    client.set_server_final(exchange.step(client.get_client_final().encode())[0].decode())
    assert authority.finish_exchange(exchange) == "anna"
    assert authority.finish_exchange(exchange, "anna", ANNA, "cn") == "anna"
    for request in (("bert", None, ""), (None, NOBODY, "cn"), (None, {"subject": ((("commonName", "bert"),),)}, "cn")):
        with pytest.raises(AuthError) as refused:
            authority.finish_exchange(exchange, *request)
        assert refused.value.reason == 0x87
    first, second = authority.begin_exchange("SCRAM-SHA-256"), authority.begin_exchange("SCRAM-SHA-256")
    assert first is not None and second is not None
    assert first.step(b"n,,n=anna,r=abc") != second.step(b"n,,n=anna,r=abc")  # a fresh nonce


def test_no_exchange_without_users(opened: list[Authority]) -> None:
    authority = Authority()
    opened.append(authority)
    assert authority.begin_exchange("SCRAM-SHA-256") is None


def test_reload(users_file: str, tmp_path: Path, opened: list[Authority]) -> None:
    acl_file = tmp_path / "acl.yaml"
    acl_file.write_text("version: 1\nrules:\n  - {allow: publish, user: anna, topics: [a]}\n")
    authority = Authority(users_file, str(acl_file), password_workers=1)
    opened.append(authority)
    assert not authority.open_publish and not authority.open_subscribe
    assert authority.may_publish("anna", "c", "a") and not authority.may_publish("anna", "c", "b")
    assert not authority.may_subscribe("anna", "c", "a")
    assert answer(authority, "anna", b"secret") == "anna"
    generation = authority.generation

    # One of the two is bad: neither changes.
    add_user(users_file, "bert", "other", scram_iterations=4_096)
    acl_file.write_text("version: 1\nrules:\n  - {allow: publish}\n")
    (problem,) = authority.reload()
    assert "acl.yaml" in problem and "line 3" in problem
    assert authority.generation == generation
    assert answer(authority, "bert", b"other") == 0x86
    assert authority.may_publish("anna", "c", "a")

    acl_file.write_text("version: 1\nrules:\n  - {allow: all, topics: [b]}\n")
    remove_user(users_file, "anna")
    assert authority.reload() == []
    assert authority.generation > generation
    assert answer(authority, "bert", b"other") == "bert"
    assert answer(authority, "anna", b"secret") == 0x86
    assert authority.may_publish("anna", "c", "b") and not authority.may_publish("anna", "c", "a")
    assert authority.may_subscribe("anna", "c", "$share/g/b")


def test_files_that_cannot_be_used_stop_the_start(users_file: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Authority(str(tmp_path / "missing"))
    with pytest.raises(ConfigError):
        Authority(users_file, str(tmp_path / "missing"))
