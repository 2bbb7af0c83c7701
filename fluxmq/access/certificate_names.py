"""The user name that a client certificate stands for."""
from collections.abc import Mapping
from typing import Any

from fluxmq._core.errors import ConfigError

__all__ = ["peer_username"]


def peer_username(cert: Mapping[str, Any] | None, source: str) -> str | None:
    """The user name in a verified client certificate; None: it has none.

    cert: what `getpeercert()` returns. source: "cn", the subject's common name, if there is exactly one; or "san", of
    the subject's alternative names the first URI, without one the first DNS name, without one the first e-mail address.
    """
    if not cert:
        return None
    if source == "cn":
        names = [value for group in cert.get("subject", ()) for key, value in group if key == "commonName"]
        # Programs differ in which of two names they use; a client whose certificate has two could choose.
        return _usable(names[0]) if len(names) == 1 else None
    if source == "san":
        for wanted in ("URI", "DNS", "email"):
            for kind, value in cert.get("subjectAltName", ()):
                if kind == wanted:
                    return _usable(value)
        return None
    raise ConfigError("username_from", f"{source!r} is not known; cn and san are")


def _usable(name: str) -> str | None:
    return name if name and name.isprintable() else None
