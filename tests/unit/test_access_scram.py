"""SCRAM-SHA-256: the vector of RFC 7677, and every way in which a client is refused."""
import base64
import hashlib
import hmac

import pytest

from fluxmq._core.errors import AuthError, UsageError
from fluxmq.access.scram import ScramServer, ScramVerifier, saslprep

# RFC 7677 section 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = (b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
         b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

VERIFIER = ScramVerifier.make("pencil", SALT, 4096)


def server(table: dict[str, ScramVerifier] | None = None, nonce: str = SERVER_NONCE) -> ScramServer:
    return ScramServer(({"user": VERIFIER} if table is None else table).get, nonce, decoy_key=b"k" * 16,
                       decoy_iterations=4096)


def test_the_vector_of_rfc_7677() -> None:
    exchange = server()
    assert exchange.step(FIRST) == (CHALLENGE, False)
    assert exchange.username is None
    assert exchange.step(FINAL) == (SIGNATURE, True)
    assert exchange.username == "user"
    with pytest.raises(UsageError):
        exchange.step(FINAL)


@pytest.mark.parametrize("first", [
    b"", b"n", b"n,", b"n,,", b"n,,n=user", b"n,,n=,r=abc", b"n,,r=abc,n=user", b"x,,n=user,r=abc",
    b"n,user,n=user,r=abc",
    b"p=tls-unique,,n=user,r=abc", b"n,,m=future,n=user,r=abc", b"n,a=other,n=user,r=abc", b"n,,n=us=2er,r=abc",
    b"n,,n=user,r=", b"n,,n=user,r=a b", b"n,,n=us\x07er,r=abc", b"\xff\xfe", b"n,,n=user,r=" + b"a" * 600,
    b"n,,n=user,r=abc," + b"x" * 3000,
])
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    exchange = server()
    with pytest.raises(AuthError) as refused:
        exchange.step(first)
    assert refused.value.reason == 0x87
    with pytest.raises(UsageError):
        exchange.step(FIRST)


@pytest.mark.parametrize("first", [b"y,,n=user,r=abc", b"n,a=user,n=user,r=abc", b"n,,n=user,r=abc,z=extension"])
def test_variants_of_the_first_message_are_understood(first: bytes) -> None:
    reply, done = server().step(first)
    assert reply.startswith(b"r=abc") and not done


@pytest.mark.parametrize(("old", "new"), [
    (b"c=biws", b"c=eSws"),            # the binding flag changed on the way
    (b"c=biws", b"c=!"),
    (b"r=rO", b"r=rX"),
    (b"p=dHzb", b"p=dHzc"),
    (b"p=dHzbZapWIk4j", b"p="),
    (b",p=", b",q="),
    (b"c=biws,", b""),
])
def test_a_changed_final_message_is_refused(old: bytes, new: bytes) -> None:
    exchange = server()
    exchange.step(FIRST)
    assert old in FINAL
    with pytest.raises(AuthError) as refused:
        exchange.step(FINAL.replace(old, new))
    assert refused.value.reason == 0x87
    assert exchange.username is None


def proved(without_proof: bytes, bare: bytes = FIRST[3:], challenge: bytes = CHALLENGE, salt: bytes = SALT) -> bytes:
    """A client-final message over these fields, signed as one who knows the password signs it."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    message = bare + b"," + challenge + b"," + without_proof
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    return without_proof + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


@pytest.mark.parametrize(("first", "header", "salt"), [
    (b"n,a=user,n=user,r=abc", b"n,a=user,", SALT), (b"y,,n=user,r=abc", b"y,,", SALT),
    (b"n,,n=user,r=abc", b"n,,", SALT[:8]), (b"n,,n=user,r=abc,z=extension", b"n,,", SALT + SALT),
])
def test_what_scramp_alone_does_not_take_succeeds(first: bytes, header: bytes, salt: bytes) -> None:
    exchange = server({"user": ScramVerifier.make("pencil", salt, 4096)})
    challenge, _ = exchange.step(first)
    nonce, s, _ = challenge.split(b",")
    assert base64.b64decode(s[2:]) == salt
    bare = first.split(b",", 2)[2]
    exchange.step(proved(b"c=" + base64.b64encode(header) + b"," + nonce, bare, challenge, salt))
    assert exchange.username == "user"


def test_a_right_proof_over_a_wrong_header_or_nonce_is_refused() -> None:
    nonce = CHALLENGE.split(b",")[0]
    for fields, right in ((b"c=biws," + nonce, True), (b"c=eSws," + nonce, False), (b"c=biws," + nonce + b"x", False),
                          (b"c=biws," + nonce[:-1], False), (b"c=biws,r=rOprNGfwEbeRWgbNEkqO", False)):
        exchange = server()
        exchange.step(FIRST)
        if right:
            assert proved(fields) == FINAL
            assert exchange.step(proved(fields)) == (SIGNATURE, True)
        else:
            with pytest.raises(AuthError):
                exchange.step(proved(fields))


def test_nobody_is_answered_like_somebody() -> None:
    # Same shape, same salt at every try, another salt for another name; and no proof is ever right.
    first = b"n,,n=ghost,r=rOprNGfwEbeRWgbNEkqO"
    replies = {server().step(first)[0] for _ in range(3)}
    assert len(replies) == 1
    (reply,) = replies
    assert len(reply) == len(CHALLENGE) and reply.endswith(b",i=4096")
    assert server().step(first.replace(b"ghost", b"spook"))[0] != reply
    somebody, nobody = server(), server()
    somebody.step(FIRST)
    nobody.step(first)
    texts = []
    for exchange in (somebody, nobody):
        with pytest.raises(AuthError) as refused:
            exchange.step(FINAL.replace(b"p=dHzb", b"p=AAAA"))
        texts.append((refused.value.reason, refused.value.text))
    assert texts[0] == texts[1]


def test_a_user_removed_during_the_exchange_does_not_get_in() -> None:
    table = {"user": VERIFIER}
    exchange = server(table)
    exchange.step(FIRST)
    table.clear()
    with pytest.raises(AuthError):
        exchange.step(FINAL)


def test_escapes_in_names() -> None:
    table = {"a,b=c": VERIFIER}
    reply, _ = server(table).step(b"n,,n=a=2Cb=3Dc,r=abc")
    assert base64.b64encode(SALT) in reply


def test_a_fault_of_the_look_up_is_no_refusal() -> None:
    def lookup(name: str) -> ScramVerifier | None:
        raise OSError("the users file is gone")

    exchange = ScramServer(lookup, SERVER_NONCE, decoy_key=b"k" * 16)
    with pytest.raises(OSError, match="the users file is gone"):
        exchange.step(b"n,,n=user,r=abc")


def test_a_refused_authorization_identity_names_who_tried() -> None:
    exchange = server()
    with pytest.raises(AuthError, match="acting for another user"):
        exchange.step(b"n,a=admin,n=user,r=abc")
    assert exchange.claimed == "user"


def test_a_nonce_with_a_comma_is_our_mistake() -> None:
    with pytest.raises(UsageError):
        server(nonce="a,b")


def test_saslprep_by_the_examples_of_rfc_4013() -> None:
    assert saslprep("I\u00adX") == "IX"
    assert saslprep("user") == "user"
    assert saslprep("USER") == "USER"
    assert saslprep("\u00aa") == "a"
    assert saslprep("\u2168") == "IX"
    for text in ("\u0007", "\u0627\u0031"):
        with pytest.raises(ValueError, match="SASLprep does not allow it"):
            saslprep(text)


@pytest.mark.parametrize("text", [
    "", "SCRAM-SHA-1$4096:c2FsdHNhbHQ=$a:b", "SCRAM-SHA-256$10:{s}${k}:{k}", "SCRAM-SHA-256$99999999:{s}${k}:{k}",
    "SCRAM-SHA-256$4096:c2E=${k}:{k}", "SCRAM-SHA-256$4096:{s}$c2E=:{k}", "SCRAM-SHA-256$4096:{s}${k}:abc",
])
def test_a_damaged_verifier_is_told(text: str) -> None:
    salt, key = base64.b64encode(SALT).decode(), base64.b64encode(b"k" * 32).decode()
    ScramVerifier.parse(f"SCRAM-SHA-256$4096:{salt}${key}:{key}")
    with pytest.raises(ValueError, match="SCRAM"):
        ScramVerifier.parse(text.format(s=salt, k=key))
