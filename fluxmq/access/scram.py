"""SCRAM-SHA-256, the server's half (RFC 5802, RFC 7677), as a machine without I/O, clock or randomness.

    FIRST  client-first in   → server-first out     nonce, salt, iteration count
    FINAL  client-final in   → server-final out     proof checked, our own signature returned; done
    DONE   nothing may come any more

Any refusal raises AuthError(0x87) and ends in DONE. 0x87 and not 0x86, because it is the one refusal that both CONNACK
and DISCONNECT may carry (MQTT 5.0 sections 3.2.2.2 and 3.14.2.1), and re-authentication is refused with DISCONNECT.

What the server keeps of a password is a ScramVerifier: enough to check a client's proof, not enough to log in with
[RFC 5802 section 3]:

    SaltedPassword = PBKDF2(SHA-256, SASLprep(password), salt, iterations)
    StoredKey      = SHA-256(HMAC(SaltedPassword, "Client Key"))
    ServerKey      = HMAC(SaltedPassword, "Server Key")
"""
import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from fluxmq._core.errors import AuthError, UsageError

__all__ = ["ITERATIONS_DEFAULT", "MECHANISM", "ScramServer", "ScramVerifier", "saslprep"]

MECHANISM = "SCRAM-SHA-256"
NOT_AUTHORIZED = 0x87
# The client pays for the iterations at every login, a thief of the users file at every guess. RFC 7677 asks for at
# least 4 096, which is cheaper to guess against than the argon2id hash beside it; 65 536 takes a server core as long as
# that hash does (about 20 ms).
ITERATIONS_DEFAULT = 65_536
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 10_000_000
SALT_SIZE_BYTES = 16
MESSAGE_SIZE_BYTES_MAX = 2_048  # a user name of 255 characters and two nonces fit several times

_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}")
_VERIFIER = re.compile(r"SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
_PROHIBITED = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9, stringprep.in_table_a1,
)


def saslprep(text: str) -> str:
    """`text` as user names and passwords are compared (RFC 4013: Unicode 3.2, what that does not know is refused).

    Raises ValueError naming the character that is not allowed.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char))
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for char in prepared:
        if any(prohibited(char) for prohibited in _PROHIBITED):
            raise ValueError(f"the character U+{ord(char):04X} is not allowed")
    # RFC 3454 section 6: text that holds a right-to-left character is right-to-left at both ends, and wholly.
    if any(stringprep.in_table_d1(char) for char in prepared):
        if any(stringprep.in_table_d2(char) for char in prepared):
            raise ValueError("left-to-right and right-to-left characters are mixed")
        if not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
            raise ValueError("right-to-left text must begin and end with a right-to-left character")
    return prepared


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What is stored of one user's password. salt: at least 8 bytes; the two keys: 32 bytes each."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def make(cls, password: str, salt: bytes, iterations: int = ITERATIONS_DEFAULT) -> "ScramVerifier":
        """The verifier of `password`. Raises ValueError when SASLprep does not allow the password."""
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
        stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
        return cls(salt, iterations, stored_key, _hmac(salted, b"Server Key"))

    @classmethod
    def parse(cls, text: str) -> "ScramVerifier":
        """Read what `str()` wrote. Raises ValueError with what is wrong."""
        found = _VERIFIER.fullmatch(text)
        if found is None:
            raise ValueError("the SCRAM verifier is not SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey")
        iterations = int(found[1])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"{iterations} SCRAM iterations are not within {ITERATIONS_MIN} and {ITERATIONS_MAX}")
        try:
            salt, stored_key, server_key = (base64.b64decode(found[index], validate=True) for index in (2, 3, 4))
        except binascii.Error:
            raise ValueError("the SCRAM verifier contains text that is not base64") from None
        if len(salt) < 8 or len(stored_key) != 32 or len(server_key) != 32:
            raise ValueError("the SCRAM verifier is cut short")
        return cls(salt, iterations, stored_key, server_key)

    def __str__(self) -> str:
        return (f"SCRAM-SHA-256${self.iterations}:{_b64(self.salt)}"
                f"${_b64(self.stored_key)}:{_b64(self.server_key)}")


class ScramServer:
    """Machine. One authentication exchange, from client-first to server-final.

    lookup: name (after SASLprep) to what is stored of it; None for nobody. Asked at the first message, and again
        before a proof is accepted, so that a user removed meanwhile does not get in.
    nonce: printable ASCII without comma; fresh and unguessable for each exchange, at least 18 bytes of randomness.
    decoy_key, decoy_iterations: what salt and count a name that nobody has is answered with. The same name must
        get the same salt for as long as real users keep theirs, or the difference tells who exists.
    """

    def __init__(self, lookup: Callable[[str], ScramVerifier | None], nonce: str, *,
                 decoy_key: bytes, decoy_iterations: int = ITERATIONS_DEFAULT) -> None:
        if _NONCE.fullmatch(nonce) is None:
            raise UsageError("a SCRAM nonce is printable ASCII without comma")
        self._lookup = lookup
        self._nonce = nonce
        self._decoy_key = decoy_key
        self._decoy_iterations = decoy_iterations
        self._state = "FIRST"
        self._name = ""
        self._verifier: ScramVerifier | None = None
        self._gs2_header = ""
        self._client_first_bare = ""
        self._server_first = ""
        self._username: str | None = None

    @property
    def username(self) -> str | None:
        """Who has proved to know the password; None before the exchange has succeeded."""
        return self._username

    @property
    def claimed(self) -> str:
        """Whom the client says it is; "" before its first message."""
        return self._name

    def step(self, data: bytes) -> tuple[bytes, bool]:
        """Take the client's next message; return our answer and whether the exchange has succeeded with it.

        Raises AuthError(0x87) when the client is refused; UsageError when the exchange was over already.
        """
        state, self._state = self._state, "DONE"
        if state == "DONE":
            raise UsageError("this SCRAM exchange is over")
        if len(data) > MESSAGE_SIZE_BYTES_MAX:
            raise _refused("the SCRAM message is too long")
        try:
            text = bytes(data).decode("utf-8")
        except UnicodeDecodeError:
            raise _refused("the SCRAM message is not UTF-8") from None
        if state == "FIRST":
            reply = self._first(text)
            self._state = "FINAL"
            return reply.encode(), False
        return self._final(text).encode(), True

    def _first(self, text: str) -> str:
        # gs2-cbind-flag "," [ "a=" authzid ] "," "n=" name "," "r=" nonce [ "," extensions ]   [RFC 5802 section 7]
        flag, _, rest = text.partition(",")
        authzid, comma, bare = rest.partition(",")
        if flag.startswith("p="):
            raise _refused("channel binding is not offered: use SCRAM-SHA-256 without it")
        if flag not in ("n", "y") or not comma or (authzid and not authzid.startswith("a=")):
            raise _refused("the SCRAM client-first message is malformed")
        if bare.startswith("m="):
            raise _refused("the SCRAM message asks for a mandatory extension that is not known")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise _refused("the SCRAM client-first message is malformed")
        client_nonce = fields[1][2:]
        if _NONCE.fullmatch(client_nonce) is None:
            raise _refused("the SCRAM nonce is malformed")
        self._name = _decode_name(fields[0][2:])
        if authzid and _decode_name(authzid[2:]) != self._name:
            raise _refused("acting for another user is not allowed")
        self._verifier = self._lookup(self._name)
        salt, iterations = self._decoy() if self._verifier is None else (self._verifier.salt, self._verifier.iterations)
        self._nonce = client_nonce + self._nonce
        self._gs2_header = f"{flag},{authzid},"
        self._client_first_bare = bare
        self._server_first = f"r={self._nonce},s={_b64(salt)},i={iterations}"
        return self._server_first

    def _decoy(self) -> tuple[bytes, int]:
        return _hmac(self._decoy_key, self._name.encode())[:SALT_SIZE_BYTES], self._decoy_iterations

    def _final(self, text: str) -> str:
        # "c=" base64(gs2-header) "," "r=" nonce [ "," extensions ] "," "p=" proof
        without_proof, comma, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not comma or len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise _refused("the SCRAM client-final message is malformed")
        try:
            header = base64.b64decode(fields[0][2:], validate=True)
            proof = base64.b64decode(proof_text, validate=True)
        except ValueError:
            raise _refused("the SCRAM client-final message is not base64 where it must be") from None
        # The client repeats under its signature which binding it asked for: a middle man who changed "y" is found here.
        if header != self._gs2_header.encode():
            raise _refused("the SCRAM channel binding differs from the first message")
        if not hmac.compare_digest(fields[1][2:].encode(), self._nonce.encode()):
            raise _refused("the SCRAM nonce is not the one of this exchange")
        if len(proof) != 32:
            raise _refused("the SCRAM proof is not 32 bytes")
        auth_message = f"{self._client_first_bare},{self._server_first},{without_proof}".encode()
        # Nobody's keys are made up, so that refusing nobody takes the same work as refusing somebody.
        verifier = self._verifier or ScramVerifier(b"", 0, self._decoy_key.ljust(32), self._decoy_key.ljust(32))
        client_key = bytes(a ^ b for a, b in zip(proof, _hmac(verifier.stored_key, auth_message), strict=True))
        proved = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
        if not proved or self._verifier is None or self._lookup(self._name) != self._verifier:
            raise _refused("user name or password is wrong")
        self._username = self._name
        return f"v={_b64(_hmac(verifier.server_key, auth_message))}"


def _refused(text: str) -> AuthError:
    return AuthError(NOT_AUTHORIZED, text)


def _decode_name(text: str) -> str:
    """A saslname: comma and equals sign are written =2C and =3D, no other = may stand in it [RFC 5802 section 5.1]."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if name.count("=") != text.count("=3D") or not name:
        raise _refused("the SCRAM user name is malformed")
    try:
        return saslprep(name)
    except ValueError as error:
        raise _refused(f"the SCRAM user name is malformed: {error}") from None
