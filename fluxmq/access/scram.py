"""SCRAM-SHA-256, the server's side (RFC 5802, RFC 7677). scramp reads the messages and checks the proof.

What scramp does not do stays here: the stored form of a password, the same answer for a user that does not exist, a
user that is removed during the exchange, limits of size, an authorization identity (a=), salts of less than 12 bytes.
scramp is imported with the first exchange, for its import takes about 30 ms.

Any refusal raises AuthError(0x87). 0x87 and not 0x86, because it is the one refusal that both CONNACK and DISCONNECT
may carry (MQTT 5.0 sections 3.2.2.2 and 3.14.2.1), and re-authentication is refused with DISCONNECT.

What the server keeps of a password is a ScramVerifier: enough to check a client's proof, not enough to log in with
[RFC 5802 section 3]:

    SaltedPassword = PBKDF2(SHA-256, SASLprep(password), salt, iterations)
    StoredKey      = SHA-256(HMAC(SaltedPassword, "Client Key"))
    ServerKey      = HMAC(SaltedPassword, "Server Key")
"""
import base64
import hashlib
import hmac
import re
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
NONCE_SIZE_BYTES_MAX = 512
MESSAGE_SIZE_BYTES_MAX = 2_048  # a user name of 255 characters and two nonces fit several times

WRONG = "user name or password is wrong"
_VERIFIER = re.compile(r"SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")


def saslprep(text: str) -> str:
    """`text` as user names and passwords are compared (RFC 4013: Unicode 3.2, what that does not know is refused).

    Raises ValueError saying what is not allowed.
    """
    if text.isascii() and text.isprintable():
        return text
    from scramp import ScramException
    from scramp.utils import saslprep as prepare

    try:
        return str(prepare(text))
    except ScramException as error:
        raise ValueError(f"SASLprep does not allow it: {error.args[0]}") from None


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
        match = _VERIFIER.fullmatch(text)
        if match is None:
            raise ValueError("the SCRAM verifier is not SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey")
        iterations = int(match[1])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"{iterations} SCRAM iterations are not within {ITERATIONS_MIN} and {ITERATIONS_MAX}")
        try:
            salt, stored_key, server_key = (base64.b64decode(match[index], validate=True) for index in (2, 3, 4))
        except ValueError:      # also of characters outside of ASCII
            raise ValueError("the SCRAM verifier contains text that is not base64") from None
        if len(salt) < 8 or len(stored_key) != 32 or len(server_key) != 32:
            raise ValueError("the SCRAM verifier is cut short")
        return cls(salt, iterations, stored_key, server_key)

    def __str__(self) -> str:
        return (f"SCRAM-SHA-256${self.iterations}:{_b64(self.salt)}"
                f"${_b64(self.stored_key)}:{_b64(self.server_key)}")


class _Gs2Header(str):
    """The GS2 header of the client's first message, which the final message must repeat under its signature. scramp
    asks make_cbind_input for it; its own class has no authorization identity."""

    __slots__ = ()

    def make_cbind_input(self, _: object) -> bytes:
        return self.encode()


class ScramServer:
    """Machine. One authentication exchange, from client-first to server-final.

    lookup: from name (after SASLprep) to its stored keys; None: unknown. Asked at the first message, and again
        before a proof is accepted, so that a user removed meanwhile does not get in.
    nonce: printable ASCII without comma; fresh and unguessable for each exchange, at least 18 bytes of randomness.
    decoy_key, decoy_iterations: for salt and count in the answer to an unknown name. The same name must
        get the same salt for as long as real users keep theirs, or the difference tells who exists.
    """

    def __init__(self, lookup: Callable[[str], ScramVerifier | None], nonce: str, *,
                 decoy_key: bytes, decoy_iterations: int = ITERATIONS_DEFAULT) -> None:
        from scramp import ScramException, ScramMechanism

        self._refusal = ScramException
        try:
            self._exchange = ScramMechanism(MECHANISM).make_server(self._stored, s_nonce=nonce)
        except ScramException as error:
            raise UsageError(f"not a SCRAM nonce: {error}") from None
        self._lookup = lookup
        self._decoy_key = decoy_key
        self._decoy_iterations = decoy_iterations
        self._verifier: ScramVerifier | None = None
        self._salt = b""
        self._first = True
        self._over = False
        self._fault: Exception | None = None    # of the look-up: scramp turns it into a refusal
        self.claimed = ""  # claimed user name; "" before the first message
        self.username: str | None = None  # user name after a valid proof

    def step(self, data: bytes) -> tuple[bytes, bool]:
        """Take the client's next message; return our answer and whether the exchange has succeeded with it.

        Raises AuthError(0x87) when the client is refused; UsageError when the exchange was over already.
        """
        if self._over:
            raise UsageError("this SCRAM exchange is over")
        first, self._first, self._over = self._first, False, True
        if len(data) > MESSAGE_SIZE_BYTES_MAX:
            raise _refused("the SCRAM message is too long")
        try:
            text = bytes(data).decode()
            reply = self._challenge(text) if first else self._answer(text)
        except UnicodeDecodeError:
            raise _refused("the SCRAM message is not UTF-8") from None
        except self._refusal as error:
            if self._fault is not None:
                raise self._fault from None
            wrong = error.server_error is not None and error.server_error.value == "invalid-proof"
            raise _refused(WRONG if wrong else f"the SCRAM message is refused: {error.args[0]}") from None
        self._over = not first
        return reply.encode(), not first

    def _challenge(self, text: str) -> str:
        # gs2-cbind-flag "," [ "a=" authzid ] "," "n=" name "," "r=" nonce [ "," extensions ]   [RFC 5802 section 7]
        flag, _, rest = text.partition(",")
        authzid, _, bare = rest.partition(",")
        exchange = self._exchange
        if authzid.startswith("a="):
            if not bare.startswith(f"n={authzid[2:]},"):
                self.claimed = bare.partition(",")[0].removeprefix("n=")    # the refusal counts as this one's
                raise _refused("acting for another user is not allowed")
            text = f"{flag},,{bare}"
        exchange.set_client_first(text)
        exchange.gs2_header, exchange.salt = _Gs2Header(f"{flag},{authzid},"), _b64(self._salt)
        if len(exchange.nonce) > NONCE_SIZE_BYTES_MAX:
            raise _refused("the SCRAM nonce is too long")
        return str(exchange.get_server_first())

    def _stored(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self.claimed = name
        try:
            self._verifier = self._lookup(name)
        except Exception as error:
            self._fault = error
            raise
        # An unknown user gets random keys, so that refusing it takes the same work as refusing a known one.
        key = self._decoy_key.ljust(32)
        stored = self._verifier or ScramVerifier(
            _hmac(self._decoy_key, name.encode())[:SALT_SIZE_BYTES], self._decoy_iterations, key, key)
        self._salt = stored.salt
        return stored.salt.ljust(SALT_SIZE_BYTES), stored.stored_key, stored.server_key, stored.iterations

    def _answer(self, text: str) -> str:
        self._exchange.set_client_final(text)
        if self._verifier is None or self._lookup(self.claimed) != self._verifier:
            raise _refused(WRONG)
        self.username = self.claimed
        return str(self._exchange.get_server_final())


def _refused(text: str) -> AuthError:
    return AuthError(NOT_AUTHORIZED, text)
