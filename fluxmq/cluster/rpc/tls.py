"""Mutual TLS between nodes, with certificates that are at hand as PEM texts."""
from __future__ import annotations

import os
import ssl
from typing import Any, NamedTuple

__all__ = ["Tls", "client_context", "identity_of", "meaning_in", "meaning_of", "server_context"]


class Tls(NamedTuple):
    """PEM texts. authority: who vouches for other nodes. certificate, key: of this node, for both directions; the
    certificate names the host or address under which others dial this node."""

    authority: bytes
    certificate: bytes
    key: bytes


def client_context(tls: Tls) -> ssl.SSLContext:
    """To dial with. Raises ssl.SSLError for texts that are no certificates or key."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, tls)


def server_context(tls: Tls) -> ssl.SSLContext:
    """To serve with: who has no certificate of the authority gets no further. Raises as client_context."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, tls)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(protocol: Any, tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # Around the certificates there may be texts, in any encoding.
    authority = tls.authority.decode("ascii", errors="ignore")
    if not authority.strip():
        raise ssl.SSLError("the text of the authority is empty")
    context.load_verify_locations(cadata=authority)
    # The ssl module takes a chain and its key from files only.
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(tls.certificate + b"\n" + tls.key)
        # Without a password OpenSSL would ask at the terminal for that of a key that has one.
        context.load_cert_chain(f"/proc/self/fd/{memory}", password="")
    finally:
        os.close(memory)
    return context


def identity_of(transport: Any) -> str | None:
    """See StreamIn.identity."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return next((name for name in names if name), "")


AT_ONCE = "it closed the connection at once: perhaps it refuses this node's certificate, or expects TLS"
# What OpenSSL says when there is no connection, or gRPC, and what that means.
_MEANINGS = (
    ("Hostname mismatch", "its certificate is not made for the address that is dialled"),
    ("Hostname Verification Check failed", "its certificate is not made for the address that is dialled"),
    ("IP address mismatch", "its certificate is not made for the address that is dialled"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not of the authority in cluster.transport.tls.ca_file, or out of "
                                  "date"),
    ("WRONG_VERSION_NUMBER", "it speaks without TLS"),
    ("RECORD_LAYER_FAILURE", "it speaks without TLS"),
    ("Socket closed", AT_ONCE),
)


def meaning_in(text: str) -> str:
    """What such a text means; "" if that is not known."""
    return next((said for part, said in _MEANINGS if part in text), "")


def meaning_of(error: BaseException | None) -> str:
    """Why there is no connection, for a log."""
    text = str(error) if error is not None else ""
    meaning = meaning_in(text)
    if not meaning and (not text or isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError)):
        meaning = AT_ONCE
    if not meaning:
        number = getattr(error, "errno", None)
        return os.strerror(number) if number is not None and number > 0 else getattr(error, "strerror", None) or text
    return f"{meaning} ({text})" if text else meaning
