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


@given(namespaces, names)
def test_keys_of_documents_lead_back(namespace: bytes, name: bytes) -> None:
    assert keys.parse(keys.document_key(keys.USER, b"/", name)) == Name(keys.USER, b"/", name)
    assert keys.parse(keys.document_key(keys.PERMISSION, namespace, name)) == Name(keys.PERMISSION, namespace, name)
    assert keys.parse(keys.document_key(keys.USER_DECOY, b"/", b"")) == Name(keys.USER_DECOY, b"/", b"")
    assert keys.parse(b"/mqtt/users") is keys.parse(b"/mqtt/users/a/b") is keys.parse(b"/mqtt/ns/x/users/a") is None


@given(st.sampled_from(["10.0.0.1", "2001:db8:0:1::/64"]), names | st.just(b""))
def test_keys_of_bans_lead_back(address: str, user: bytes) -> None:
    key = keys.ban_key(address, user)
    assert keys.parse(key) == Name(keys.BAN_USER, b"/", address.encode(), user)
    assert key.startswith(keys.ban_key(address, b"")) and keys.parse(keys.ban_key(address)) == Name(
        keys.BAN_ADDRESS, b"/", address.encode())


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
    assert keys.document_key(keys.USER, b"/", b"anna") == b"/mqtt/users/anna"
    assert keys.document_key(keys.PERMISSION, b"/", b"anna") == b"/mqtt/permissions/%2F/anna"
    assert keys.document_key(keys.USER_DECOY, b"/", b"") == b"/mqtt/user-decoy"
    assert keys.ban_key("10.0.0.1") == b"/mqtt/bans/address/10.0.0.1"
    assert keys.ban_key("2001:db8::/64", b"anna") == b"/mqtt/bans/user/2001:db8::%2F64/anna"


@pytest.mark.parametrize("client", [b"amqp:x", b"amqp091-x"])
def test_a_client_identifier_that_looks_like_one_of_amqp_is_encoded(client: bytes) -> None:
    key = keys.client_key(keys.OWNER, b"/", client)
    assert client not in key and keys.parse(key) == Name(keys.OWNER, b"/", client)


def test_nodes() -> None:
    assert keys.node_of(keys.node_key("a/b")) == "a/b"
    assert keys.node_of(b"/mqtt/leader") is None
