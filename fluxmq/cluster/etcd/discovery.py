"""The members of an etcd that this node has no client address of: `GET /members` at a member's peer URL.

The answer is what that member knows, without asking the others. With TLS both sides show a certificate, as members do.
"""
from __future__ import annotations

import asyncio
import http
import http.client
import ssl
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from fluxmq._core.errors import FluxError
from fluxmq.cluster.etcd.admin import Member
from fluxmq.cluster.etcd.endpoints import Tls
from fluxmq.model.address import parse_address
from fluxmq.model.malformed import MALFORMED

__all__ = ["Found", "NoMembers", "find_members"]

LIMIT_S = 2.0
ANSWER_BYTES_MAX = 1 << 20


class NoMembers(FluxError):
    """No member answered. The text names each, and why."""


class Found(NamedTuple):
    """members: as the one at `at`, a peer URL, knows them; learners are not marked."""

    at: str
    members: Sequence[Member]


class _Member(msgspec.Struct, frozen=True, kw_only=True, rename={"peer_urls": "peerURLs", "client_urls": "clientURLs"}):
    id: int
    peer_urls: list[str] = []
    name: str = ""
    client_urls: list[str] = []


async def find_members(urls: Sequence[str], tls: Tls | None, limit_s: float = LIMIT_S) -> Found:
    """Asks all of the peer URLs at once, and takes the first answer, in the order of the list. Raises NoMembers."""
    answers = await asyncio.gather(*(_ask(url, tls, limit_s) for url in urls))
    for url, (members, _) in zip(urls, answers, strict=True):
        if members:
            return Found(url, members)
    raise NoMembers("; ".join(f"{url}: {why}" for url, (_, why) in zip(urls, answers, strict=True)))


async def _ask(url: str, tls: Tls | None, limit_s: float) -> tuple[list[Member], str]:
    try:
        # In a thread: the answer of a large cluster is in chunks, which http.client reads.
        body = await asyncio.to_thread(_get, url, tls, limit_s)
        found = msgspec.json.decode(body, type=list[_Member])
    except TimeoutError:
        return [], f"no answer within {limit_s:g} s"
    except ssl.SSLCertVerificationError as error:
        return [], f"its certificate is refused here: {error.verify_message}"
    except ssl.SSLError as error:
        return [], (f"TLS fails ({(error.reason or str(error)).lower().replace('_', ' ')}): it refuses the certificate "
                    "of this node, or speaks without TLS")
    except ConnectionRefusedError as error:
        return [], (error.strerror or str(error)).lower()
    except (ConnectionError, http.client.BadStatusLine):
        return [], "it closed the connection: it refuses the certificate of this node, or expects TLS"
    except OSError as error:
        return [], error.strerror or str(error)
    except (ValueError, http.client.HTTPException, *MALFORMED) as error:
        return [], f"that is no member of etcd: {error}"
    return [Member(one.id, one.name, tuple(one.peer_urls), tuple(one.client_urls), False) for one in found], (
        "" if found else "it knows no members yet")


def _get(url: str, tls: Tls | None, limit_s: float) -> bytes:
    """Raises ValueError for an answer that is none of etcd's."""
    parts = urlsplit(url)
    address = parse_address(parts.netloc)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        if tls is None:
            raise ValueError("https without the files of TLS")
        context = ssl.create_default_context(cafile=str(tls.ca))
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        connection = http.client.HTTPSConnection(address.host, address.port, timeout=limit_s, context=context)
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=limit_s)
    try:
        connection.request("GET", "/members", headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise ValueError(f"it answers {answer.status} {answer.reason}")
    return body
