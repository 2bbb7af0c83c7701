"""One header more in a property list, read and written by a codec that shares nothing with ours."""
from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from kit.oracle_packets import amqp_properties, amqp_value
from oracle.amqp091 import parse_properties

from fluxmq._core.bridge.header import with_number

names = st.one_of(st.sampled_from(("a", "x-stream-offset", "x-stream", "x-stream-offsets", "zz")), st.text(max_size=20))
values = st.one_of(st.integers(-5, 5), st.text(max_size=9), st.booleans(), st.none(),
                   st.lists(st.booleans(), max_size=3))
properties = st.fixed_dictionaries({}, optional={
    "content_type": st.text(max_size=9), "content_encoding": st.text(max_size=9),
    "headers": st.dictionaries(names, values, max_size=6), "delivery_mode": st.integers(0, 255),
    "priority": st.integers(0, 255), "reply_to": st.text(max_size=9), "timestamp": st.integers(0, 2**60),
    "cluster_id": st.text(max_size=9)})


@given(properties, st.integers(-2**63, 2**63 - 1))
@example({}, 0)
@example({"headers": {"x-stream-offset": "mine"}, "content_type": "t"}, 7)
def test_the_header_is_added_and_nothing_else_changes(told: dict[str, Any], number: int) -> None:
    before = amqp_properties(told)
    found = parse_properties(with_number(before, b"x-stream-offset", number))
    headers = told.get("headers", {}) | {"x-stream-offset": number}
    assert dict(found.pop("headers")) == {name.encode(): amqp_value(value) for name, value in headers.items()}
    assert found == {name: value for name, value in parse_properties(before).items() if name != "headers"}


@given(st.dictionaries(names, values, max_size=8))
def test_it_stands_where_it_belongs(headers: dict[str, Any]) -> None:
    in_order = dict(sorted(headers.items(), key=lambda item: item[0].encode()))
    written = with_number(amqp_properties({"headers": in_order}), b"x-stream-offset", 1)
    names_found = [name for name, _ in parse_properties(written)["headers"]]
    assert names_found == sorted(names_found)
