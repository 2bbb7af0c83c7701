"""SCRAM-SHA-256 against an independent client, and against garbage."""
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.scram import ScramClient

from fluxmq._core.errors import AuthError
from fluxmq.access.scram import ITERATIONS_MIN, ScramServer, ScramVerifier, saslprep

DECOY_KEY = bytes(range(16))
SALT = b"0123456789abcdef"


def preparable(text: str) -> bool:
    try:
        return bool(saslprep(text))
    except ValueError:
        return False


texts = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20)
names = (texts | st.sampled_from(["a=b,c", "=2C", "=3D,", "user", "I\u00adX", "\u2168"])).filter(preparable)


@settings(deadline=None, max_examples=60)
@given(names, texts.filter(preparable), texts.filter(preparable))
def test_an_independent_client_gets_in_with_the_right_password_only(name: str, password: str, other: str) -> None:
    table = {saslprep(name): ScramVerifier.make(password, SALT, ITERATIONS_MIN)}
    for tried in (password, other):
        client = ScramClient(saslprep(name), saslprep(tried))
        server = ScramServer(table.get, "c2VydmVyLW5vbmNl", decoy_key=DECOY_KEY)
        challenge, done = server.step(client.first())
        assert not done
        final = client.final(challenge)
        if saslprep(tried) == saslprep(password):
            reply, done = server.step(final)
            assert done
            client.verify(reply)
            assert server.username == saslprep(name)
        else:
            with pytest.raises(AuthError) as refused:
                server.step(final)
            assert refused.value.reason == 0x87
            assert server.username is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=80) | st.builds(
    lambda parts: ",".join(parts).encode(),
    st.lists(st.sampled_from(["n", "y", "p=tls-unique", "", "a=u", "n=u", "n=", "n==", "r=abc", "r=", "m=x", "c=biws",
                              "p=AAAA", "p=" + "A" * 43 + "=", "r=abcnonce", "\x00"]), max_size=6)),
    min_size=1, max_size=2))
def test_garbage_raises_autherror_only(messages: list[bytes]) -> None:
    server = ScramServer({"u": ScramVerifier(SALT, 4096, b"s" * 32, b"k" * 32)}.get, "nonce", decoy_key=DECOY_KEY)
    try:
        for message in messages:
            server.step(message)
    except AuthError as error:
        assert error.reason == 0x87
    assert server.username is None


@settings(deadline=None, max_examples=20)
@given(texts.filter(preparable), st.binary(min_size=8, max_size=32))
def test_a_verifier_is_read_as_it_was_written(password: str, salt: bytes) -> None:
    verifier = ScramVerifier.make(password, salt, ITERATIONS_MIN)
    assert ScramVerifier.parse(str(verifier)) == verifier
    for end in range(len(str(verifier))):
        with pytest.raises(ValueError, match="SCRAM"):
            ScramVerifier.parse(str(verifier)[:end])
