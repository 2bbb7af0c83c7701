"""Names of keys: exact below a prefix, whatever clients choose, and no MQTT client is taken for one of AMQP."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster import keys
from fluxmq.cluster.keys import Name

names = st.binary(min_size=1, max_size=20) | st.sampled_from(
    [b"a/b", b"%2F", b"%", b"ns", b"amqp:x", b"amqp091-x", b"owner", b"a/owner", b"+/#", b"$SYS/x", "ä/ö".encode()])
namespaces = st.just(b"/") | names


@given(st.sampled_from([keys.OWNER, keys.DATA, keys.WILL_DATA]), namespaces, names)
def test_keys_of_clients_lead_back(kind: str, namespace: bytes, client: bytes) -> None:
    assert keys.parse(keys.client_key(kind, namespace, client)) == Name(kind, namespace, client)


@given(namespaces, names, names)
def test_keys_of_subscriptions_lead_back(namespace: bytes, client: bytes, filter_: bytes) -> None:
    key = keys.subscription_key(namespace, client, filter_)
    assert keys.parse(key) == Name(keys.SUBSCRIPTION, namespace, client, filter_)
    assert key.startswith(keys.subscription_key(namespace, client))


@given(st.sampled_from([keys.RETAINED_DATA, keys.RETAINED_INDEX]), namespaces, names)
def test_keys_of_topics_lead_back(kind: str, namespace: bytes, topic: bytes) -> None:
    assert keys.parse(keys.topic_key(kind, namespace, topic)) == Name(kind, namespace, topic)


@given(namespaces, names, names)
def test_a_prefix_holds_the_subscriptions_of_one_client(namespace: bytes, one: bytes, other: bytes) -> None:
    key = keys.subscription_key(namespace, other, b"f")
    assert key.startswith(keys.subscription_key(namespace, one)) == (one == other)


@given(st.binary(max_size=60))
def test_foreign_keys_are_no_error(text: bytes) -> None:
    keys.parse(text)
    keys.parse(keys.ROOT + text)


def test_the_prefixes_are_those_of_the_documentation() -> None:
    assert keys.client_key(keys.OWNER, b"/", b"a/b") == b"/mqtt/sessions/a%2Fb/owner"
    assert keys.client_key(keys.WILL_DATA, b"tenant", b"c") == b"/mqtt/ns/tenant/will-data/c"
    assert keys.subscription_key(b"/", b"c", b"t/#") == b"/mqtt/subscriptions/c/t%2F#"
    assert keys.topic_key(keys.RETAINED_DATA, b"/", b"t/1") == b"/mqtt/retained-data/t%2F1"


@pytest.mark.parametrize("client", [b"amqp:x", b"amqp091-x"])
def test_a_client_identifier_that_looks_like_one_of_amqp_is_encoded(client: bytes) -> None:
    key = keys.client_key(keys.OWNER, b"/", client)
    assert client not in key and keys.parse(key) == Name(keys.OWNER, b"/", client)


def test_nodes() -> None:
    assert keys.node_of(keys.node_key("a/b")) == "a/b"
    assert keys.node_of(b"/mqtt/leader") is None
