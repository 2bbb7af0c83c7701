"""SASL as AMQP 0-9-1 uses it: a single response in connection.start-ok. The Authority decides who may connect.

    PLAIN       [name to act as] NUL name NUL password (RFC 4616); name and password empty: an anonymous client
    AMQPLAIN    a field table with LOGIN and PASSWORD, without its length
    EXTERNAL    TLS has authenticated the client; the response is empty or repeats the name (RFC 4422, appendix A)
"""
from __future__ import annotations

from typing import NamedTuple

from fluxmq._core.amqp091.fields import decode_table
from fluxmq._core.errors import ProtocolError
from fluxmq.model.amqp import ReplyCode

__all__ = ["Claim", "mechanisms", "read_response"]



class Claim(NamedTuple):
    """The user that a client claims to be. None: it names no user."""

    username: str | None
    password: bytes | None


def mechanisms(external: bool) -> tuple[str, ...]:
    """The mechanisms to offer. external: the client has a verified certificate that may name the user."""
    return ("EXTERNAL", "PLAIN", "AMQPLAIN") if external else ("PLAIN", "AMQPLAIN")


def read_response(mechanism: str, response: bytes) -> Claim:
    """mechanism: one of those above. Raises ProtocolError 502 for an invalid response; the text does not repeat its
    contents, which may be a password."""
    if mechanism == "PLAIN":
        return _plain(response)
    if mechanism == "AMQPLAIN":
        return _amqplain(response)
    return Claim(_name(response, mechanism) or None, None)


def _plain(response: bytes) -> Claim:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise ProtocolError(ReplyCode.SYNTAX_ERROR, "a response of PLAIN is NUL, user name, NUL, password")
    if parts[0] not in (b"", parts[1]):
        raise ProtocolError(ReplyCode.SYNTAX_ERROR, "PLAIN asks to act as another user, which is not allowed")
    return _claim(_name(parts[1], "PLAIN"), parts[2])


def _amqplain(response: bytes) -> Claim:
    table = decode_table(response)
    login, password = (_octets(table.get(key)) for key in ("LOGIN", "PASSWORD"))
    if login is None or password is None:
        raise ProtocolError(ReplyCode.SYNTAX_ERROR, "AMQPLAIN wants a table with the texts LOGIN and PASSWORD")
    return _claim(_name(login, "AMQPLAIN"), password)


def _claim(name: str, password: bytes) -> Claim:
    return Claim(name, password) if name or password else Claim(None, None)


def _octets(value: object) -> bytes | None:
    """A text of a table as it was on the wire; None for any other type."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return value if isinstance(value, bytes) else None


def _name(octets: bytes, mechanism: str) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        raise ProtocolError(ReplyCode.SYNTAX_ERROR, f"the user name that {mechanism} gives is not UTF-8") from None
