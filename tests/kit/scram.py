"""The client's half of SCRAM-SHA-256 (RFC 5802, RFC 7677), by the book and without channel binding.

It does not use scramp: the broker does, and a mistake of the library would not show between its own two sides.
"""
from __future__ import annotations

import base64
import hashlib
import hmac
import os


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


class ScramClient:
    """One exchange: `first()`, then `final(server_first)`, then `verify(server_final)`."""

    def __init__(self, username: str, password: str) -> None:
        self.username = username.replace("=", "=3D").replace(",", "=2C")
        self.password = password.encode()
        self.nonce = base64.b64encode(os.urandom(18)).decode()
        self.server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first_bare()}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof for the server's challenge."""
        fields = self.fields(server_first)
        assert fields["r"].startswith(self.nonce), "the server must keep the client's nonce"
        assert len(fields["r"]) > len(self.nonce), "the server must add to the nonce"
        salted = hashlib.pbkdf2_hmac("sha256", self.password, base64.b64decode(fields["s"]), int(fields["i"]))
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={fields['r']}"
        auth_message = f"{self._first_bare()},{server_first.decode()},{without_proof}".encode()
        client_key = _hmac(salted, b"Client Key")
        signature = _hmac(hashlib.sha256(client_key).digest(), auth_message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.server_signature = _hmac(_hmac(salted, b"Server Key"), auth_message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """The server knows the password too."""
        assert base64.b64decode(self.fields(server_final)["v"]) == self.server_signature

    @staticmethod
    def fields(message: bytes) -> dict[str, str]:
        return dict(part.split("=", 1) for part in message.decode().split(","))           # type: ignore[misc]

    def _first_bare(self) -> str:
        return f"n={self.username},r={self.nonce}"


__all__ = ["ScramClient"]
